/* The C interface of Pleach.
 *
 * Errors: a function that can fail returns NULL, or an error that the caller frees (`pleach_error_free`). After an
 * error nothing is written to results. A NULL pointer, a bad length or a handle of another kind gives
 * `PLEACH_ARGUMENT`, unless the function says that NULL has a meaning, and a spent handle `PLEACH_SPENT`; a panic inside of
 * the library gives `PLEACH_PANIC`. Compilers warn where nobody looks at the error that a function returns.
 *
 * Ownership: the caller frees each handle once, by the function `_free` of its type, whatever became of it. NULL is
 * allowed there, and a handle of another kind stays as it is. Handles may be freed in any order. A `pleach_bytes` that a
 * function fills belongs to the caller, who frees it by `pleach_bytes_free`: start with `{0}`, which may be freed, too.
 * What the caller passes in is copied, and stays the caller's; no other thread changes it during the call.
 *
 * Spent handles: a block that was committed, a block that became an overlay, and a session or load that was finished are
 * spent.
 * They still have to be freed. When the call fails, they are as they were before it, and the call can be repeated.
 *
 * Threads: handles move between threads, and all functions may be called from any number of threads at the same time,
 * on the same handle, too, with two exceptions: the `_free` of a handle comes after its last use, and a
 * `pleach_pair` or `pleach_pairs` is overwritten by the next move of its cursor. Calls that change a handle (a batch, a cursor, a finish,
 * a commit of a block) wait for each other. There is no global
 * state but the function of `pleach_log` and the histograms of `pleach_metrics`. After a `fork` the child opens the database itself.
 *
 * Keys, roots and hashes have 32 bytes. A pointer to `n` keys points to 32 * n bytes. Pointers are aligned as C aligns
 * their types; results of one call do not overlap each other or its arguments. */
#ifndef PLEACH_H
#define PLEACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An error that nobody looks at is a warning of the compiler. */
#ifdef __GNUC__
#define PLEACH_CHECK __attribute__((warn_unused_result))
#else
#define PLEACH_CHECK
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Code of an error: the library panicked, which is a bug of it, and wrote why to standard error, too. What the call was to
 * spend may be lost. Free what is open, and open the database again. */
#define PLEACH_PANIC 901

/* Code of an error: a NULL pointer, a length that cannot be, text that is not UTF-8, or a handle of another kind. */
#define PLEACH_ARGUMENT 902

/* Code of an error: a proof or witness was refused. Nothing of what it claims is proven. */
#define PLEACH_REFUSED 903

/* Code of an error: the handle is spent. */
#define PLEACH_SPENT 904

/* Outcome of an error: the operation did not take place. */
#define PLEACH_DID_NOT_HAPPEN 0

/* Outcome of an error: it took place as a whole or not at all. Opening the database again tells. */
#define PLEACH_UNKNOWN 1

/* Advice that has no number: `advice_text` says it. */
#define PLEACH_ADVICE_OTHER 0

/* The call can be repeated as it is. */
#define PLEACH_RETRY 1

/* Free space on the device and do it again. */
#define PLEACH_FREE_SPACE 2

/* Raise the process's limit of threads or descriptors and do it again. */
#define PLEACH_RAISE_LIMIT 3

/* Begin again on a newer state: a block on the newest one, a read on one that the history has. */
#define PLEACH_MAKE_AGAIN 4

/* Let go of whoever holds the database. */
#define PLEACH_CLOSE_OTHERS 5

/* Change the call. */
#define PLEACH_FIX_CALL 6

/* Close the database and open it again. */
#define PLEACH_REOPEN 7

/* Open the database in this process, after the fork. */
#define PLEACH_OPEN_HERE 8

/* Open it with the version of this software that it belongs to. */
#define PLEACH_OTHER_VERSION 9

/* Something is damaged or missing: see `pleach check` and `pleach repair`. */
#define PLEACH_RESTORE 10

/* An error. Only the library makes one; later versions may add fields at the end. */
typedef struct pleach_error {
    /* Number of this kind of error: docs/errors.md lists those below 900, the others are `PLEACH_PANIC` and so on. */
    uint32_t code;
    /* What became of the operation: `PLEACH_DID_NOT_HAPPEN` or `PLEACH_UNKNOWN`. */
    uint32_t outcome;
    /* What to do: `PLEACH_RETRY` or one of the others. */
    uint32_t advice;
    /* What happened, in UTF-8, as long as the error lives. */
    const char *text;
    /* What to do, in UTF-8, as long as the error lives. */
    const char *advice_text;
} pleach_error;

/* Bytes that the caller owns. `data` is NULL where there are none: a key without a value, a witness that was not
 * made. An empty value has another `data`, and `len` 0. */
typedef struct pleach_bytes {
    /* The bytes, until they are freed. */
    const uint8_t *data;
    /* How many they are. */
    size_t len;
    /* For `pleach_bytes_free` alone. */
    void *owner;
} pleach_bytes;

/* An open database. */
typedef struct pleach_db pleach_db;

/* Kind of a namespace: there is none. */
#define PLEACH_NO_NAMESPACE 0

/* Kind of a namespace: with a Merkle trie, a root and proofs. */
#define PLEACH_MERKLE 1

/* Kind of a namespace: without a trie. */
#define PLEACH_PLAIN 2

/* A session: it reads one fixed state, whatever is committed meanwhile. */
typedef struct pleach_session pleach_session;

/* Flag of `pleach_session_open`: the finish makes no witness. */
#define PLEACH_WITHOUT_WITNESS 1

/* A cursor over the pairs of a range. It outlives its session, whose state it reads. */
typedef struct pleach_cursor pleach_cursor;

/* A pair of a cursor, which has its memory: it is there until the cursor moves or is freed. `key` is NULL at the end. */
typedef struct pleach_pair {
    /* The 32 bytes of the key. */
    const uint8_t *key;
    /* The bytes of the value. */
    const uint8_t *value;
    /* How many they are. */
    size_t value_len;
} pleach_pair;

/* Pairs of a cursor, which has their memory: they are there until the cursor moves or is freed. */
typedef struct pleach_pairs {
    /* How many they are: 0 at the end. */
    size_t count;
    /* Their keys, 32 bytes each. */
    const uint8_t *keys;
    /* The bytes of their values, one value after the other. */
    const uint8_t *values;
    /* How many bytes each value has. */
    const size_t *lengths;
} pleach_pairs;

/* Step of `pleach_batch_add`: the block has read the key. */
#define PLEACH_READ 1

/* Step of `pleach_batch_add`: the block gives the key a value. May come with `PLEACH_READ`. */
#define PLEACH_PUT 2

/* Step of `pleach_batch_add`: the block deletes the key. May come with `PLEACH_READ`. */
#define PLEACH_DELETE 4

/* A batch: what a block reads and writes. */
typedef struct pleach_batch pleach_batch;

/* A block: a new root and the changes that lead to it, in memory. */
typedef struct pleach_block pleach_block;

/* An overlay: a block that is kept in memory as a state for further sessions. */
typedef struct pleach_overlay pleach_overlay;

/* A bulk load that is under way. */
typedef struct pleach_load pleach_load;

/* Level of a message: something failed, or will. */
#define PLEACH_LOG_ERROR 1

/* Level of a message: an operator should look at it. */
#define PLEACH_LOG_WARNING 2

/* Level of a message: a database was opened or closed. */
#define PLEACH_LOG_INFO 3

/* A function that gets messages of the library: its context, the level, and a text in UTF-8 that lives for the call.
 * Any thread may call it, several at the same time. It calls no function of this library, and throws nothing. */
typedef void (*pleach_logger)(void *context, uint32_t level, const char *text);

/* What a proof says of a key: it has no value. */
#define PLEACH_ABSENT 0

/* What a proof says of a key: it has a value, with this hash. */
#define PLEACH_PRESENT 1

/* What a proof says of a key: nothing. */
#define PLEACH_OUT_OF_SCOPE 2

/* Frees an error. */
void pleach_error_free(pleach_error *error);

/* Frees bytes, and makes the struct one without bytes, which may be freed again. */
void pleach_bytes_free(pleach_bytes *bytes);

/* The version of the library, such as "0.1.0". It lives as long as the program. */
const char *pleach_version(void);

/* Opens the database in a folder. Options are `key=value` pairs between white space or commas, such as
 * `create=true cache_mib=64`: `cache_mib`, `create`, `direct`, `durability` (`commit`, `none`, `periodic:MILLISECONDS`),
 * `hasher` (`blake3`, `sha2-256`), `history`, `undo_memory_mib`, `history_disk_mib`, `kept_log_mib`, `in_flight`, `io` (`auto`, `uring`,
 * `blocking`), `log_limit_mib`, `read_only`, `require_history`, `threads`. An empty text takes the defaults. One process opens a
 * database for writing; any number open it with `read_only=true` beside it. Errors: codes 1xx to 3xx of docs/errors.md. */
PLEACH_CHECK pleach_error *pleach_open(const char *folder, const char *options, pleach_db **db);

/* Closes the database with a checkpoint, so that the next open reads no log. `open_handles` becomes the number of
 * sessions, blocks, overlays and cursors that live: they go on reading, and keep the folder locked until they are freed.
 * It may be NULL, where nobody wants to know. After an error other than codes 601 to 603 the close can be repeated. */
PLEACH_CHECK pleach_error *pleach_close(pleach_db *db, size_t *open_handles);

/* Frees the handle of a database. Without a `pleach_close` before, the next open reads the log; nothing is lost. This
 * waits for background work. */
void pleach_db_free(pleach_db *db);

/* The number of the newest commit; 0 in a new database. */
PLEACH_CHECK pleach_error *pleach_commit_number(pleach_db *db, uint64_t *number);

/* The root of a Merkle namespace in the newest commit; 32 zeros when the namespace is empty. Errors: 410, there is no
 * such namespace; 411, it is plain. */
PLEACH_CHECK pleach_error *pleach_root(pleach_db *db, uint8_t ns, uint8_t root[32]);

/* The commits that `pleach_session_at` and `pleach_rollback` reach: the oldest and the newest. */
PLEACH_CHECK pleach_error *pleach_history(pleach_db *db, uint64_t *oldest, uint64_t *newest);

/* When a commit was made, in seconds since 1970; 0 where that is not known. Errors: 401, there is no such commit yet; 502, the history has no record of it, as of its oldest commit (commit 0 has none of its own, and is no error); 309,
 * it is damaged. */
PLEACH_CHECK pleach_error *pleach_committed_at(pleach_db *db, uint64_t commit, uint64_t *seconds);

/* The commit that a rollback went back to, whose state it has; the number of the commit itself where it is no rollback.
 * Errors as of `pleach_committed_at`. */
PLEACH_CHECK pleach_error *pleach_rolled_back_to(pleach_db *db, uint64_t commit, uint64_t *number);

/* The commits from `first` to `last` that changed a key, ascending, or from the newest on with `newest_first`: at most
 * `capacity` of them, at least 1. `count` becomes how many are in `commits`; 0 says that there are no more, otherwise the
 * next call begins behind the last one found. With `first` 0, or the oldest commit of the history, the range begins
 * with the commit after that: what the oldest one changed is not recorded. Errors: 502, the range begins before the
 * history; 309, the history is damaged; those of a read. */
PLEACH_CHECK pleach_error *pleach_changes_of(
    pleach_db *db,
    uint8_t ns,
    const uint8_t key[32],
    uint64_t first,
    uint64_t last,
    bool newest_first,
    uint64_t *commits,
    size_t capacity,
    size_t *count);

/* What the open warns of, as text without a NUL, a line each: a budget that is larger than the memory of the process,
 * another way of I/O than was wanted, files and commits that are damaged or missing. The text is empty where all is well. */
PLEACH_CHECK pleach_error *pleach_notes(pleach_db *db, pleach_bytes *notes);

/* The options that the database was opened with, as text without a NUL that `pleach_open` understands. */
PLEACH_CHECK pleach_error *pleach_options(pleach_db *db, pleach_bytes *options);

/* The name of the database's hash function, without a NUL: what the functions `pleach_verify_` want. */
PLEACH_CHECK pleach_error *pleach_hasher(pleach_db *db, pleach_bytes *name);

/* Makes all commits durable that were acknowledged before, for `durability=none` and `periodic`. Errors: 601 and 602
 * after a failed write or sync. */
PLEACH_CHECK pleach_error *pleach_sync(pleach_db *db);

/* Goes on to the newest commit of a database that was opened with `read_only=true`, and gives its number. Sessions stay
 * where they are. */
PLEACH_CHECK pleach_error *pleach_refresh(pleach_db *db, uint64_t *number);

/* Undoes the newest `commits` commits by a new one, whose number it gives. Errors: 402, there are fewer; 501, another
 * commit came between; 502, they are not in the history; and those of a commit. */
PLEACH_CHECK pleach_error *pleach_rollback(pleach_db *db, uint64_t commits, uint64_t *number);

/* Adds an empty namespace, a plain one if `plain`, and gives the number of the commit that does so. Blocks and overlays
 * on the newest commit become stale. Errors: 412, it exists; 503, a dropped one of this number can still be read; and
 * those of a commit. */
PLEACH_CHECK pleach_error *pleach_namespace_add(
    pleach_db *db,
    uint8_t ns,
    bool plain,
    uint64_t *number);

/* Drops a namespace with all that is in it, and gives the number of the commit that does so. Blocks and overlays on the
 * newest commit become stale. Errors: 410, there is none; 412, namespace 0 always exists; and those of a commit. */
PLEACH_CHECK pleach_error *pleach_namespace_drop(pleach_db *db, uint8_t ns, uint64_t *number);

/* Lists the namespaces of the newest commit: `kinds[n]` becomes `PLEACH_NO_NAMESPACE`, `PLEACH_MERKLE` or `PLEACH_PLAIN`. */
PLEACH_CHECK pleach_error *pleach_namespaces(pleach_db *db, uint8_t kinds[256]);

/* Begins a session on the overlay, or on the newest commit where `over` is NULL. `flags` is 0 or
 * `PLEACH_WITHOUT_WITNESS`. Errors: 403, the overlay is of another open; 603, the database is closed. */
PLEACH_CHECK pleach_error *pleach_session_open(
    pleach_db *db,
    pleach_overlay *over,
    uint32_t flags,
    pleach_session **session);

/* Begins a session on a commit of the history. Errors: 401, there is no such commit yet; 502, it is older than the
 * history; 309, it is damaged. */
PLEACH_CHECK pleach_error *pleach_session_at(
    pleach_db *db,
    uint64_t commit,
    pleach_session **session);

/* Frees a session. */
void pleach_session_free(pleach_session *session);

/* The number of the commit that the session reads, below overlays where it reads one. */
PLEACH_CHECK pleach_error *pleach_session_commit_number(pleach_session *session, uint64_t *number);

/* The root of a Merkle namespace in the session's state. Errors as of `pleach_root`. */
PLEACH_CHECK pleach_error *pleach_session_root(
    pleach_session *session,
    uint8_t ns,
    uint8_t root[32]);

/* Reads the value of a key; no bytes where it has none. Errors: 410, there is no such namespace; 502, the state is older
 * than what is kept; those of the device. */
PLEACH_CHECK pleach_error *pleach_session_read(
    pleach_session *session,
    uint8_t ns,
    const uint8_t key[32],
    pleach_bytes *value);

/* Reads the values of `count` keys together, into as many `values`, in the order of the keys; each is freed by itself.
 * Errors as of `pleach_session_read`. */
PLEACH_CHECK pleach_error *pleach_session_read_many(
    pleach_session *session,
    uint8_t ns,
    const uint8_t *keys,
    size_t count,
    pleach_bytes *values);

/* Announces `count` keys: their pages begin to arrive, and the call returns at once. What could not be prefetched is read
 * when it is needed. */
PLEACH_CHECK pleach_error *pleach_session_prefetch(
    pleach_session *session,
    uint8_t ns,
    const uint8_t *keys,
    size_t count);

/* Proves what the state says of a key, present or absent, for `pleach_verify_key`. Errors: 411, the namespace is plain;
 * those of a read. */
PLEACH_CHECK pleach_error *pleach_session_prove(
    pleach_session *session,
    uint8_t ns,
    const uint8_t key[32],
    pleach_bytes *proof);

/* Proves what the state says of `count` keys in one proof, for `pleach_verify_keys`. Errors as of `pleach_session_prove`. */
PLEACH_CHECK pleach_error *pleach_session_prove_many(
    pleach_session *session,
    uint8_t ns,
    const uint8_t *keys,
    size_t count,
    pleach_bytes *proof);

/* Proves at most `limit` pairs (0 counts as 1) from the key `first` on, and that there is no other up to `end`, for
 * `pleach_verify_range`. `end` becomes `last`, or the key up to which the proof goes because of the limit: the next call
 * begins behind it. Errors: 405, `last` is before `first`; those of `pleach_session_prove`. */
PLEACH_CHECK pleach_error *pleach_session_prove_range(
    pleach_session *session,
    uint8_t ns,
    const uint8_t first[32],
    const uint8_t last[32],
    size_t limit,
    uint8_t end[32],
    pleach_bytes *proof);

/* Makes a block of what the batch did. Nothing is written to the device. The session is spent, and the batch is empty and
 * can be filled again; after an error both are as they were. Errors: 408, a value is too large; 410, a namespace is
 * missing; those of a read. */
PLEACH_CHECK pleach_error *pleach_session_finish(
    pleach_session *session,
    pleach_batch *batch,
    pleach_block **block);

/* A cursor over the keys from `first` to `last`, both of which belong to the range; NULL is the first or the last key
 * there is. It stands before the first pair. Errors: 410, there is no such namespace. */
PLEACH_CHECK pleach_error *pleach_cursor_range(
    pleach_session *session,
    uint8_t ns,
    const uint8_t first[32],
    const uint8_t last[32],
    pleach_cursor **cursor);

/* A cursor over the keys that begin with these bytes, at most 32. It stands before the first pair. Errors: 410, there
 * is no such namespace. */
PLEACH_CHECK pleach_error *pleach_cursor_prefix(
    pleach_session *session,
    uint8_t ns,
    const uint8_t *prefix,
    size_t prefix_len,
    pleach_cursor **cursor);

/* Frees a cursor. */
void pleach_cursor_free(pleach_cursor *cursor);

/* Goes before a key: the next pair is the first one from this key on, the previous one the last before it. A key
 * outside of the range goes to its nearer end; NULL goes behind the last pair. Nothing is read yet. */
PLEACH_CHECK pleach_error *pleach_cursor_seek(pleach_cursor *cursor, const uint8_t key[32]);

/* Goes to the next pair and gives it; behind the last one the cursor is at the end, and a `pleach_cursor_previous`
 * gives the last one again. Errors are those of a read, and leave the cursor where it is. */
PLEACH_CHECK pleach_error *pleach_cursor_next(pleach_cursor *cursor, pleach_pair *pair);

/* Goes to the pair before and gives it; before the first one the cursor is at the beginning, and a
 * `pleach_cursor_next` gives the first one again. Errors are those of a read, and leave the cursor where it is. */
PLEACH_CHECK pleach_error *pleach_cursor_previous(pleach_cursor *cursor, pleach_pair *pair);

/* Goes over the next pairs, as so many calls of `pleach_cursor_next`, and gives them together: up to `most`, which is
 * not 0, and fewer where their values have 64 KiB; none at the end. The cursor is then on the last of them. Pairs
 * before an error are given first, and the error by the next call. */
PLEACH_CHECK pleach_error *pleach_cursor_next_many(
    pleach_cursor *cursor,
    size_t most,
    pleach_pairs *pairs);

/* Goes over the pairs before, as so many calls of `pleach_cursor_previous`, and gives them together, the last one first:
 * otherwise as `pleach_cursor_next_many`. */
PLEACH_CHECK pleach_error *pleach_cursor_previous_many(
    pleach_cursor *cursor,
    size_t most,
    pleach_pairs *pairs);

/* A batch without accesses. */
PLEACH_CHECK pleach_error *pleach_batch_new(pleach_batch **batch);

/* Frees a batch. */
void pleach_batch_free(pleach_batch *batch);

/* The block has read this key: the witness proves its value before the block. A key may be read and written. */
PLEACH_CHECK pleach_error *pleach_batch_read(
    pleach_batch *batch,
    uint8_t ns,
    const uint8_t key[32]);

/* The block gives this key a value, of at most 64 MiB. The last put or delete of a key counts. */
PLEACH_CHECK pleach_error *pleach_batch_put(
    pleach_batch *batch,
    uint8_t ns,
    const uint8_t key[32],
    const uint8_t *value,
    size_t value_len);

/* The block deletes this key. */
PLEACH_CHECK pleach_error *pleach_batch_delete(
    pleach_batch *batch,
    uint8_t ns,
    const uint8_t key[32]);

/* The steps of `count` keys in one call, for languages in which a call costs more: keys one after the other, a step of
 * each (`PLEACH_READ`, `PLEACH_PUT`, `PLEACH_DELETE`, or one of the latter and `PLEACH_READ`), values one after the other,
 * and the length of each, which is 0 where the step is no put. After an error the batch is as it was. */
PLEACH_CHECK pleach_error *pleach_batch_add(
    pleach_batch *batch,
    uint8_t ns,
    const uint8_t *keys_of_steps,
    const uint8_t *steps,
    const uint8_t *values_of_steps,
    const size_t *lengths,
    size_t count);

/* The block deletes all keys that begin with these bytes, at most 32, except those that it puts, in whatever order the
 * calls come. A key that it reads was read before the delete, and is deleted, too. */
PLEACH_CHECK pleach_error *pleach_batch_delete_prefix(
    pleach_batch *batch,
    uint8_t ns,
    const uint8_t *prefix,
    size_t prefix_len);

/* Frees a block. One that was not committed leaves no trace. */
void pleach_block_free(pleach_block *block);

/* The root of a Merkle namespace in the block's state. Errors as of `pleach_root`. */
PLEACH_CHECK pleach_error *pleach_block_root(pleach_block *block, uint8_t ns, uint8_t root[32]);

/* The root of a Merkle namespace in the state before the block: what its witness is verified against. Errors as of
 * `pleach_root`. */
PLEACH_CHECK pleach_error *pleach_block_previous_root(
    pleach_block *block,
    uint8_t ns,
    uint8_t root[32]);

/* Takes the block's witness of a namespace, once, for `pleach_verify_witness`: no bytes where there is none, because
 * it was taken, the session makes none, the namespace is plain, or the batch has no access in it. */
PLEACH_CHECK pleach_error *pleach_block_witness(
    pleach_block *block,
    uint8_t ns,
    pleach_bytes *witness);

/* Commits the block, with the overlays below it, and gives the number of the commit. The block is spent; after an
 * error it is as it was. Errors: 501, other commits came first: make the block again; 105, the device is full: free
 * space and call again; 601 and 602 after a failed write or sync; 603, the database is closed; 416, it is read-only.
 * Of all errors only those with the outcome `PLEACH_UNKNOWN` may have committed. */
PLEACH_CHECK pleach_error *pleach_block_commit(pleach_block *block, uint64_t *number);

/* Keeps the block in memory, as a state that sessions read and that can be committed later. The block is spent: take
 * its witness before. */
PLEACH_CHECK pleach_error *pleach_block_into_overlay(pleach_block *block, pleach_overlay **overlay);

/* Frees an overlay. Sessions and overlays on it keep what they need. */
void pleach_overlay_free(pleach_overlay *overlay);

/* The root of a Merkle namespace in the overlay's state. Errors as of `pleach_root`. */
PLEACH_CHECK pleach_error *pleach_overlay_root(
    pleach_overlay *overlay,
    uint8_t ns,
    uint8_t root[32]);

/* Commits the overlay and those below it as one commit, and gives its number; of one that is committed it gives the
 * number again. What stands on it stays valid. Errors as of `pleach_block_commit`; the overlay is never spent. */
PLEACH_CHECK pleach_error *pleach_overlay_commit(pleach_overlay *overlay, uint64_t *number);

/* Begins a bulk load into an empty namespace: pairs in any order, each key once, become one commit, far faster than by
 * batches. Nothing else can be committed until the load is finished or freed, and no earlier commit can be read
 * afterwards. Sessions and overlays have to be freed before. Most errors come from the first `pleach_load_put` after
 * they happened, or from `pleach_load_finish`. */
PLEACH_CHECK pleach_error *pleach_load_begin(pleach_db *db, uint8_t ns, pleach_load **load);

/* Gives `count` pairs to a load: their keys one after the other, their values one after the other, and the length of
 * each value. It waits while the load has enough to do. An error ends the load, which then changes nothing. Errors: 410,
 * there is no such namespace; 413, it has pairs; 504, sessions or overlays are open. */
PLEACH_CHECK pleach_error *pleach_load_put(
    pleach_load *load,
    const uint8_t *keys_of_pairs,
    const uint8_t *values_of_pairs,
    const size_t *lengths,
    size_t count);

/* Ends a load: all pairs become the next commit, durable when the call returns. Gives the number of pairs. The load is
 * over afterwards, whatever came of it, and is still to be freed. Errors: 406, a key came twice; and those of
 * `pleach_load_put`. */
PLEACH_CHECK pleach_error *pleach_load_finish(pleach_load *load, uint64_t *pairs);

/* Frees a load. One that was not finished is given up: it changes nothing. */
void pleach_load_free(pleach_load *load);

/* Gives messages of the library to a function: of all databases of the process, from now on, of this level and more
 * serious ones (`PLEACH_LOG_ERROR` is the most serious). A second call replaces the function, NULL ends it; when either
 * returns, no thread is inside of the function before. What an open warns of is in `pleach_notes`, too. Errors: 902,
 * another part of the process has set a `tracing` subscriber. */
PLEACH_CHECK pleach_error *pleach_log(uint32_t level, pleach_logger logger, void *context);

/* All metrics of a database in the text format of Prometheus: docs/metrics.md describes each. The label `database` is the
 * folder, as it was given. Counters count from the open on, histograms from the first open of the folder in this process. */
PLEACH_CHECK pleach_error *pleach_metrics(pleach_db *db, pleach_bytes *text);

/* Copies the database to a folder, which is missing or empty, while sessions and commits go on, and gives the number of
 * the newest commit in the copy. With `verify`, each page of the copy is read again and hashed up to the roots. Errors:
 * 105, no room for the copy; 504, a load or another backup runs. */
PLEACH_CHECK pleach_error *pleach_backup(
    pleach_db *db,
    const char *folder,
    bool verify,
    uint64_t *number);

/* Hashes bytes by "blake3" or "sha2-256": keys of an application, and values for a comparison with a `value_hash`. */
PLEACH_CHECK pleach_error *pleach_hash(
    const char *hasher,
    const uint8_t *data,
    size_t len,
    uint8_t hash[32]);

/* Verifies a proof of a key against a root. `lookup` becomes `PLEACH_PRESENT`, `PLEACH_ABSENT` or `PLEACH_OUT_OF_SCOPE`,
 * `value_hash` the hash of the value, or zeros. Errors: `PLEACH_REFUSED`. */
PLEACH_CHECK pleach_error *pleach_verify_key(
    const char *hasher,
    const uint8_t root[32],
    const uint8_t *proof,
    size_t proof_len,
    const uint8_t key[32],
    uint8_t *lookup,
    uint8_t value_hash[32]);

/* Verifies a proof of several keys against a root, and says of `count` keys what `pleach_verify_key` says of one, in
 * `count` `lookups` and `value_hashes` of 32 bytes each. Errors: `PLEACH_REFUSED`. */
PLEACH_CHECK pleach_error *pleach_verify_keys(
    const char *hasher,
    const uint8_t root[32],
    const uint8_t *proof,
    size_t proof_len,
    const uint8_t *keys,
    size_t count,
    uint8_t *lookups,
    uint8_t *value_hashes);

/* Verifies a proof of the keys from `first` to `last` against a root. `pairs` become all pairs of the range in order, 64
 * bytes each: the key and the hash of its value. Errors: `PLEACH_REFUSED`. */
PLEACH_CHECK pleach_error *pleach_verify_range(
    const char *hasher,
    const uint8_t root[32],
    const uint8_t *proof,
    size_t proof_len,
    const uint8_t first[32],
    const uint8_t last[32],
    pleach_bytes *pairs);

/* Verifies a block's witness against the root before the block. `new_root` becomes the root after it; of `count` keys it
 * says what the state before the block has, as `pleach_verify_keys` does. Errors: `PLEACH_REFUSED`. */
PLEACH_CHECK pleach_error *pleach_verify_witness(
    const char *hasher,
    const uint8_t previous_root[32],
    const uint8_t *witness,
    size_t witness_len,
    const uint8_t *keys,
    size_t count,
    uint8_t *lookups,
    uint8_t *value_hashes,
    uint8_t new_root[32]);

#ifdef __cplusplus
}
#endif

#endif
