/* Calls every function of pleach.h: what works, what is refused, a failed commit that gives the block back, several
 * threads. `program.rs` compiles it with sanitizers and runs it. The argument is a folder that does not exist yet. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pleach.h"

#define OK(call) ok(call, __LINE__)
#define FAILS(call, code) fails(call, code, __LINE__)
#define HOLDS(claim) holds(claim, #claim, __LINE__)
#define BLAKE3 "blake3"

static void holds(bool claim, const char *text, int line) {
    if (!claim) {
        fprintf(stderr, "line %d: not %s\n", line, text);
        exit(1);
    }
}

static void ok(pleach_error *error, int line) {
    if (error) {
        fprintf(stderr, "line %d: %" PRIu32 " %s; %s\n", line, error->code, error->text, error->advice_text);
        exit(1);
    }
}

static void fails(pleach_error *error, uint32_t code, int line) {
    if (!error || error->code != code || error->outcome != PLEACH_DID_NOT_HAPPEN) {
        fprintf(stderr, "line %d: %" PRIu32 " wanted, not %s\n", line, code, error ? error->text : "success");
        exit(1);
    }
    if (code == PLEACH_ARGUMENT || code == PLEACH_SPENT) {
        HOLDS(error->advice == PLEACH_FIX_CALL);
    }
    HOLDS(strlen(error->text) > 0 && strlen(error->advice_text) > 0);
    pleach_error_free(error);
}

typedef struct key {
    uint8_t bytes[32];
} key;

static key key_of(uint8_t byte) {
    key made;
    memset(made.bytes, byte, sizeof made.bytes);
    return made;
}

static bool equals(const pleach_bytes *bytes, const char *text) {
    return bytes->data && bytes->len == strlen(text) && memcmp(bytes->data, text, bytes->len) == 0;
}

/* Does the session read this value? NULL: none. */
static void reads(pleach_session *session, uint8_t ns, uint8_t byte, const char *text) {
    pleach_bytes value = {0};
    OK(pleach_session_read(session, ns, key_of(byte).bytes, &value));
    HOLDS(text ? equals(&value, text) : !value.data);
    pleach_bytes_free(&value);
    HOLDS(!value.data && !value.owner);
    pleach_bytes_free(&value); /* Once more does no harm. */
}

static void put(pleach_batch *batch, uint8_t ns, uint8_t byte, const char *text) {
    OK(pleach_batch_put(batch, ns, key_of(byte).bytes, (const uint8_t *)text, strlen(text)));
}

static pleach_session *session_on(pleach_db *db, pleach_overlay *over) {
    pleach_session *session = NULL;
    OK(pleach_session_open(db, over, 0, &session));
    return session;
}

static pleach_block *block_with(pleach_db *db, pleach_overlay *over, uint8_t byte, const char *text) {
    pleach_session *session = session_on(db, over);
    pleach_batch *batch = NULL;
    pleach_block *block = NULL;
    OK(pleach_batch_new(&batch));
    put(batch, 0, byte, text);
    OK(pleach_session_finish(session, batch, &block));
    pleach_batch_free(batch);
    pleach_session_free(session);
    return block;
}

static void refuses(const char *folder) {
    pleach_db *db = NULL;
    pleach_bytes bytes = {0};
    key out, one = key_of(1);
    uint64_t number;
    uint8_t lookup;
    FAILS(pleach_open(folder, "", &db), 201);
    FAILS(pleach_open(folder, "cash_mib=1", &db), 206);
    FAILS(pleach_open(folder, "create", &db), 206);
    FAILS(pleach_open(folder, "\xff", &db), PLEACH_ARGUMENT);
    FAILS(pleach_open(NULL, "", &db), PLEACH_ARGUMENT);
    FAILS(pleach_open(folder, NULL, &db), PLEACH_ARGUMENT);
    FAILS(pleach_open(folder, "create=true", NULL), PLEACH_ARGUMENT);
    HOLDS(!db);
    FAILS(pleach_root(NULL, 0, out.bytes), PLEACH_ARGUMENT);
    FAILS(pleach_sync(NULL), PLEACH_ARGUMENT);
    FAILS(pleach_block_commit(NULL, &number), PLEACH_ARGUMENT);
    FAILS(pleach_hash("md5", NULL, 0, out.bytes), PLEACH_ARGUMENT);
    FAILS(pleach_hash(BLAKE3, NULL, 1, out.bytes), PLEACH_ARGUMENT);
    FAILS(pleach_hash(BLAKE3, one.bytes, SIZE_MAX, out.bytes), PLEACH_ARGUMENT);
    FAILS(pleach_verify_keys(BLAKE3, one.bytes, one.bytes, 32, one.bytes, SIZE_MAX / 16, &lookup, out.bytes),
          PLEACH_ARGUMENT);
    FAILS(pleach_verify_key(BLAKE3, one.bytes, one.bytes, 32, one.bytes, &lookup, out.bytes), PLEACH_REFUSED);
    FAILS(pleach_verify_keys(BLAKE3, one.bytes, NULL, 0, NULL, 0, NULL, NULL), PLEACH_REFUSED);
    FAILS(pleach_verify_range(BLAKE3, one.bytes, one.bytes, 32, one.bytes, one.bytes, &bytes), PLEACH_REFUSED);
    FAILS(pleach_verify_witness(BLAKE3, one.bytes, one.bytes, 32, NULL, 0, NULL, NULL, out.bytes), PLEACH_REFUSED);
    HOLDS(!bytes.data);
    pleach_error_free(NULL);
    pleach_bytes_free(NULL);
    pleach_db_free(NULL);
    pleach_session_free(NULL);
    pleach_cursor_free(NULL);
    pleach_batch_free(NULL);
    pleach_block_free(NULL);
    pleach_overlay_free(NULL);
}

/* The first block: a batch with all its steps, its witness, and its commit. */
static void first_block(pleach_db *db) {
    pleach_session *session = session_on(db, NULL);
    pleach_batch *batch = NULL;
    pleach_block *block = NULL;
    pleach_bytes witness = {0};
    key before, after, root, seven = key_of(7), answers[2];
    uint64_t number;
    OK(pleach_batch_new(&batch));
    for (uint8_t byte = 1; byte <= 9; byte++) {
        char text[] = {'v', (char)('0' + byte), 0};
        put(batch, 0, byte, text);
    }
    put(batch, 0, 9, "last"); /* The last put counts. */
    OK(pleach_batch_read(batch, 0, seven.bytes));
    OK(pleach_batch_read(batch, 0, key_of(100).bytes));
    OK(pleach_batch_put(batch, 0, key_of(10).bytes, NULL, 0)); /* An empty value. */
    put(batch, 200, 1, "nowhere");
    FAILS(pleach_batch_put(batch, 0, NULL, NULL, 0), PLEACH_ARGUMENT);
    FAILS(pleach_batch_put(batch, 0, seven.bytes, NULL, 3), PLEACH_ARGUMENT);
    FAILS(pleach_batch_delete_prefix(batch, 0, seven.bytes, 33), PLEACH_ARGUMENT);
    /* A finish that fails gives session and batch back. */
    FAILS(pleach_session_finish(session, batch, &block), 410);
    HOLDS(!block);
    OK(pleach_namespace_add(db, 200, true, &number));
    pleach_session_free(session);
    session = session_on(db, NULL);
    OK(pleach_session_root(session, 0, before.bytes));
    OK(pleach_session_finish(session, batch, &block));
    FAILS(pleach_session_root(session, 0, root.bytes), PLEACH_SPENT);
    pleach_session_free(session);
    OK(pleach_block_previous_root(block, 0, root.bytes));
    HOLDS(memcmp(&root, &before, 32) == 0);
    FAILS(pleach_block_root(block, 200, root.bytes), 411);
    FAILS(pleach_block_root(block, 201, root.bytes), 410);
    OK(pleach_block_root(block, 0, root.bytes));
    OK(pleach_block_witness(block, 0, &witness));
    uint8_t lookups[2];
    key asked[2] = {seven, key_of(100)};
    OK(pleach_verify_witness(BLAKE3, before.bytes, witness.data, witness.len, asked[0].bytes, 2, lookups,
                             answers[0].bytes, after.bytes));
    HOLDS(memcmp(&after, &root, 32) == 0);
    HOLDS(lookups[0] == PLEACH_ABSENT && lookups[1] == PLEACH_ABSENT);
    pleach_bytes_free(&witness);
    OK(pleach_block_witness(block, 0, &witness));
    HOLDS(!witness.data); /* It was taken. */
    OK(pleach_block_commit(block, &number));
    HOLDS(number == 2);
    FAILS(pleach_block_commit(block, &number), PLEACH_SPENT);
    pleach_block_free(block);
    OK(pleach_root(db, 0, after.bytes));
    HOLDS(memcmp(&after, &root, 32) == 0);
    FAILS(pleach_root(db, 200, after.bytes), 411);
    /* The batch is empty and can be filled again. */
    OK(pleach_batch_delete(batch, 0, key_of(8).bytes));
    OK(pleach_batch_delete_prefix(batch, 200, NULL, 0));
    OK(pleach_session_open(db, NULL, PLEACH_WITHOUT_WITNESS, &session));
    OK(pleach_session_finish(session, batch, &block));
    OK(pleach_block_witness(block, 0, &witness));
    HOLDS(!witness.data);
    OK(pleach_block_commit(block, &number));
    pleach_block_free(block);
    pleach_session_free(session);
    pleach_batch_free(batch);
    FAILS(pleach_session_open(db, NULL, 2, &session), PLEACH_ARGUMENT);
}

static void reading(pleach_db *db) {
    pleach_session *session = session_on(db, NULL), *past = NULL;
    uint64_t number, oldest, newest;
    OK(pleach_session_commit_number(session, &number));
    HOLDS(number == 3);
    OK(pleach_history(db, &oldest, &newest));
    HOLDS(oldest == 0 && newest == 3);
    reads(session, 0, 9, "last");
    reads(session, 0, 8, NULL);
    reads(session, 0, 10, "");
    reads(session, 200, 1, NULL);
    OK(pleach_session_at(db, 2, &past));
    reads(past, 0, 8, "v8");
    reads(past, 200, 1, "nowhere");
    pleach_session_free(past);
    FAILS(pleach_session_at(db, 4, &past), 401);

    key asked[3] = {key_of(1), key_of(8), key_of(3)};
    pleach_bytes values[3];
    OK(pleach_session_prefetch(session, 0, asked[0].bytes, 3));
    OK(pleach_session_read_many(session, 0, asked[0].bytes, 3, values));
    HOLDS(equals(&values[0], "v1") && !values[1].data && equals(&values[2], "v3"));
    for (int at = 0; at < 3; at++) {
        pleach_bytes_free(&values[at]);
    }
    OK(pleach_session_read_many(session, 0, NULL, 0, NULL));
    FAILS(pleach_session_read_many(session, 0, asked[0].bytes, 3, NULL), PLEACH_ARGUMENT);
    FAILS(pleach_session_read_many(session, 0, asked[0].bytes, SIZE_MAX, values), PLEACH_ARGUMENT);
    FAILS(pleach_session_read(session, 201, asked[0].bytes, values), 410);
    FAILS(pleach_session_read(session, 0, NULL, values), PLEACH_ARGUMENT);
    pleach_session_free(session);
}

/* The cursor's next or previous pair has this key; 0: there is none. */
static void steps(pleach_cursor *cursor, bool forward, uint8_t byte) {
    pleach_pair pair;
    OK(forward ? pleach_cursor_next(cursor, &pair) : pleach_cursor_previous(cursor, &pair));
    if (byte == 0) {
        HOLDS(!pair.key && !pair.value);
        return;
    }
    HOLDS(pair.key && memcmp(pair.key, key_of(byte).bytes, 32) == 0);
    HOLDS(byte > 8 || (pair.value_len == 2 && pair.value[1] == '0' + byte));
}

/* The cursor's next or previous pairs have these keys, 0 behind them; they are asked for by up to `most`. */
static void steps_many(pleach_cursor *cursor, bool forward, size_t most, const uint8_t *bytes) {
    pleach_pairs pairs;
    size_t at, room, used;
    OK(forward ? pleach_cursor_next_many(cursor, most, &pairs) : pleach_cursor_previous_many(cursor, most, &pairs));
    for (at = 0, used = 0, room = most; bytes[at]; at++, room--) {
        HOLDS(at < pairs.count && room > 0);
        HOLDS(memcmp(pairs.keys + 32 * at, key_of(bytes[at]).bytes, 32) == 0);
        HOLDS(bytes[at] > 8 || (pairs.lengths[at] == 2 && pairs.values[used + 1] == '0' + bytes[at]));
        used += pairs.lengths[at];
    }
    HOLDS(pairs.count == at);
}

static void blocks_of_pairs(pleach_db *db) {
    pleach_session *session = session_on(db, NULL);
    pleach_cursor *cursor = NULL;
    pleach_pairs pairs;
    const uint8_t all[] = {1, 2, 3, 4, 5, 6, 7, 9, 10, 0}, back[] = {10, 9, 7, 6, 5, 4, 3, 2, 1, 0};
    const uint8_t three[] = {1, 2, 3, 0}, next[] = {4, 5, 6, 0}, rest[] = {7, 9, 10, 0}, few[] = {5, 4, 0};
    OK(pleach_cursor_range(session, 0, NULL, NULL, &cursor));
    steps_many(cursor, true, SIZE_MAX, all);
    steps_many(cursor, true, 100, all + 9); /* The end, again and again. */
    steps_many(cursor, true, 1, all + 9);
    steps_many(cursor, false, 100, back);
    steps_many(cursor, false, 100, back + 9);
    /* In blocks, and beside single steps: the cursor is on the last pair of a block. */
    steps_many(cursor, true, 3, three);
    steps_many(cursor, true, 3, next);
    steps_many(cursor, false, 2, few);
    steps(cursor, true, 5);
    steps(cursor, true, 6);
    steps_many(cursor, true, 3, rest);
    steps(cursor, true, 0);
    steps(cursor, false, 10);
    OK(pleach_cursor_seek(cursor, key_of(8).bytes));
    steps_many(cursor, true, 2, rest + 1);
    pleach_cursor_free(cursor);
    FAILS(pleach_cursor_next_many(NULL, 1, &pairs), PLEACH_ARGUMENT);
    OK(pleach_cursor_range(session, 0, key_of(4).bytes, key_of(6).bytes, &cursor));
    pleach_session_free(session);
    FAILS(pleach_cursor_next_many(cursor, 0, &pairs), PLEACH_ARGUMENT);
    FAILS(pleach_cursor_previous_many(cursor, 1, NULL), PLEACH_ARGUMENT);
    steps_many(cursor, true, 3, next); /* It begins where it was: a call that fails moves nothing. */
    pleach_cursor_free(cursor);
}

static void cursors(pleach_db *db) {
    pleach_session *session = session_on(db, NULL);
    pleach_cursor *cursor = NULL;
    OK(pleach_cursor_range(session, 0, NULL, NULL, &cursor));
    steps(cursor, false, 0);
    for (uint8_t byte = 1; byte <= 10; byte++) {
        if (byte != 8) {
            steps(cursor, true, byte);
        }
    }
    steps(cursor, true, 0);
    steps(cursor, true, 0);
    steps(cursor, false, 10);
    steps(cursor, false, 9);
    steps(cursor, true, 10);
    OK(pleach_cursor_seek(cursor, key_of(8).bytes));
    steps(cursor, true, 9);
    steps(cursor, false, 7);
    steps(cursor, true, 9);
    OK(pleach_cursor_seek(cursor, key_of(8).bytes));
    steps(cursor, false, 7);
    OK(pleach_cursor_seek(cursor, NULL)); /* Behind the last pair. */
    steps(cursor, true, 0);
    steps(cursor, false, 10);
    OK(pleach_cursor_seek(cursor, NULL));
    steps(cursor, false, 10);
    FAILS(pleach_cursor_seek(NULL, NULL), PLEACH_ARGUMENT);
    pleach_cursor_free(cursor);

    key from = key_of(3), to = key_of(5);
    OK(pleach_cursor_range(session, 0, from.bytes, to.bytes, &cursor));
    pleach_session_free(session); /* The cursor goes on. */
    OK(pleach_cursor_seek(cursor, key_of(1).bytes));
    steps(cursor, false, 0);
    steps(cursor, true, 3);
    OK(pleach_cursor_seek(cursor, key_of(9).bytes));
    steps(cursor, true, 0);
    steps(cursor, false, 5);
    steps(cursor, false, 4);
    steps(cursor, false, 3);
    steps(cursor, false, 0);
    steps(cursor, true, 3);
    pleach_cursor_free(cursor);

    session = session_on(db, NULL);
    OK(pleach_cursor_prefix(session, 0, from.bytes, 2, &cursor));
    steps(cursor, true, 3);
    steps(cursor, true, 0);
    pleach_cursor_free(cursor);
    OK(pleach_cursor_range(session, 0, to.bytes, from.bytes, &cursor)); /* No key is in there. */
    steps(cursor, true, 0);
    steps(cursor, false, 0);
    pleach_cursor_free(cursor);
    FAILS(pleach_cursor_prefix(session, 0, from.bytes, 33, &cursor), PLEACH_ARGUMENT);
    FAILS(pleach_cursor_range(session, 201, NULL, NULL, &cursor), 410);
    pleach_session_free(session);
}

static void proofs(pleach_db *db) {
    pleach_session *session = session_on(db, NULL);
    pleach_bytes proof = {0}, pairs = {0}, name = {0};
    key root, hash, wanted, asked[3] = {key_of(1), key_of(8), key_of(77)}, hashes[3];
    uint8_t lookup, lookups[3];
    OK(pleach_hasher(db, &name));
    HOLDS(equals(&name, BLAKE3));
    pleach_bytes_free(&name);
    OK(pleach_session_root(session, 0, root.bytes));
    OK(pleach_hash(BLAKE3, (const uint8_t *)"v1", 2, wanted.bytes));

    OK(pleach_session_prove(session, 0, asked[0].bytes, &proof));
    OK(pleach_verify_key(BLAKE3, root.bytes, proof.data, proof.len, asked[0].bytes, &lookup, hash.bytes));
    HOLDS(lookup == PLEACH_PRESENT && memcmp(&hash, &wanted, 32) == 0);
    FAILS(pleach_verify_key("sha2-256", root.bytes, proof.data, proof.len, asked[0].bytes, &lookup, hash.bytes),
          PLEACH_REFUSED);
    FAILS(pleach_verify_key(BLAKE3, hash.bytes, proof.data, proof.len, asked[0].bytes, &lookup, hash.bytes),
          PLEACH_REFUSED);
    pleach_bytes_free(&proof);

    OK(pleach_session_prove_many(session, 0, asked[0].bytes, 2, &proof));
    OK(pleach_verify_keys(BLAKE3, root.bytes, proof.data, proof.len, asked[0].bytes, 3, lookups, hashes[0].bytes));
    HOLDS(lookups[0] == PLEACH_PRESENT && memcmp(&hashes[0], &wanted, 32) == 0);
    HOLDS(lookups[1] == PLEACH_ABSENT && lookups[2] == PLEACH_OUT_OF_SCOPE);
    pleach_bytes_free(&proof);

    /* All pairs of a range, at most four in a proof. */
    key first = key_of(0), last = key_of(0xff), end;
    size_t found = 0;
    for (bool more = true; more;) {
        OK(pleach_session_prove_range(session, 0, first.bytes, last.bytes, 4, end.bytes, &proof));
        OK(pleach_verify_range(BLAKE3, root.bytes, proof.data, proof.len, first.bytes, end.bytes, &pairs));
        found += pairs.len / 64;
        if (found == 4) {
            HOLDS(memcmp(pairs.data, &asked[0], 32) == 0 && memcmp(pairs.data + 32, &wanted, 32) == 0);
        }
        more = memcmp(&end, &last, 32) != 0;
        first = end;
        for (int at = 31; at >= 0 && ++first.bytes[at] == 0; at--) {
        }
        pleach_bytes_free(&proof);
        pleach_bytes_free(&pairs);
    }
    HOLDS(found == 9);
    FAILS(pleach_session_prove_range(session, 0, last.bytes, asked[0].bytes, 4, end.bytes, &proof), 405);
    FAILS(pleach_session_prove(session, 200, asked[0].bytes, &proof), 411);
    FAILS(pleach_session_prove(session, 0, asked[0].bytes, NULL), PLEACH_ARGUMENT);
    pleach_session_free(session);
}

/* A stale block comes back, and is committed when its state is the newest again. */
static void a_failed_commit_gives_the_block_back(pleach_db *db) {
    pleach_block *late = block_with(db, NULL, 20, "late"), *early = block_with(db, NULL, 21, "early");
    key before, after;
    uint64_t number, committed;
    OK(pleach_block_root(late, 0, before.bytes));
    OK(pleach_block_commit(early, &committed));
    FAILS(pleach_block_commit(late, &number), 501);
    FAILS(pleach_block_commit(late, &number), 501);
    FAILS(pleach_block_commit(late, NULL), PLEACH_ARGUMENT);
    OK(pleach_block_root(late, 0, after.bytes));
    HOLDS(memcmp(&before, &after, 32) == 0);
    OK(pleach_rollback(db, 1, &number));
    HOLDS(number == committed + 1);
    OK(pleach_block_commit(late, &number));
    HOLDS(number == committed + 2);
    OK(pleach_root(db, 0, after.bytes));
    HOLDS(memcmp(&before, &after, 32) == 0);
    FAILS(pleach_rollback(db, 1000, &number), 402);

    /* What the history says of these commits. */
    uint64_t to, seconds, commits[2];
    size_t found;
    OK(pleach_rolled_back_to(db, committed + 1, &to));
    HOLDS(to == committed - 1);
    OK(pleach_rolled_back_to(db, committed, &to));
    HOLDS(to == committed);
    OK(pleach_committed_at(db, committed, &seconds));
    HOLDS(seconds > 1600000000 && seconds <= (uint64_t)time(NULL));
    FAILS(pleach_committed_at(db, committed + 100, &seconds), 401);
    key one = key_of(21); /* Written, and taken back. */
    OK(pleach_changes_of(db, 0, one.bytes, 0, UINT64_MAX, false, commits, 2, &found));
    HOLDS(found == 2 && commits[0] == committed && commits[1] == committed + 1);
    OK(pleach_changes_of(db, 0, one.bytes, commits[1] + 1, UINT64_MAX, false, commits, 2, &found));
    HOLDS(found == 0);
    OK(pleach_changes_of(db, 0, one.bytes, 0, UINT64_MAX, true, commits, 1, &found));
    HOLDS(found == 1 && commits[0] == committed + 1);
    OK(pleach_changes_of(db, 0, one.bytes, 0, commits[0] - 1, true, commits, 2, &found));
    HOLDS(found == 1 && commits[0] == committed);
    FAILS(pleach_changes_of(db, 0, one.bytes, 0, 9, true, commits, 0, &found), PLEACH_ARGUMENT);
    OK(pleach_changes_of(db, 77, one.bytes, 0, UINT64_MAX, true, commits, 2, &found));
    HOLDS(found == 0); /* No commit has changed a namespace that there is not. */
    pleach_block_free(late);
    pleach_block_free(early);
}

static void overlays(pleach_db *db) {
    pleach_block *block = block_with(db, NULL, 30, "one");
    pleach_overlay *one = NULL, *two = NULL, *fork = NULL;
    uint64_t before, number;
    key root, newest;
    OK(pleach_commit_number(db, &before));
    OK(pleach_block_into_overlay(block, &one));
    FAILS(pleach_block_into_overlay(block, &two), PLEACH_SPENT);
    pleach_block_free(block);
    block = block_with(db, one, 31, "two");
    OK(pleach_block_into_overlay(block, &two));
    pleach_block_free(block);
    block = block_with(db, one, 31, "fork");
    OK(pleach_block_into_overlay(block, &fork));
    pleach_block_free(block);
    pleach_session *session = session_on(db, two);
    reads(session, 0, 30, "one");
    reads(session, 0, 31, "two");
    pleach_session_free(session);
    OK(pleach_overlay_root(two, 0, root.bytes));
    OK(pleach_overlay_commit(two, &number));
    HOLDS(number == before + 1);
    OK(pleach_overlay_commit(two, &number));
    HOLDS(number == before + 1); /* It is committed. */
    FAILS(pleach_overlay_commit(fork, &number), 501);
    OK(pleach_root(db, 0, newest.bytes));
    HOLDS(memcmp(&root, &newest, 32) == 0);
    pleach_overlay_free(one);
    pleach_overlay_free(two);
    pleach_overlay_free(fork);
}

/* The keys of the prefix of `prefixes`. */
static key prefixed(uint8_t last) {
    key made = key_of(60);
    made.bytes[31] = last;
    return made;
}

/* Reads, puts, deletes and a prefix in one batch: what is put stays, what is read goes with its prefix. */
static void prefixes(pleach_db *db) {
    pleach_session *session = session_on(db, NULL);
    pleach_batch *batch = NULL;
    pleach_block *block = NULL;
    pleach_bytes witness = {0}, value = {0};
    uint64_t number;
    OK(pleach_batch_new(&batch));
    for (uint8_t last = 1; last <= 5; last++) {
        OK(pleach_batch_put(batch, 0, prefixed(last).bytes, (const uint8_t *)"old", 3));
    }
    OK(pleach_session_finish(session, batch, &block));
    OK(pleach_block_commit(block, &number));
    pleach_session_free(session);
    pleach_block_free(block);

    session = session_on(db, NULL);
    OK(pleach_batch_read(batch, 0, prefixed(1).bytes));
    OK(pleach_batch_put(batch, 0, prefixed(2).bytes, (const uint8_t *)"new", 3));
    OK(pleach_batch_delete_prefix(batch, 0, prefixed(0).bytes, 31));
    OK(pleach_batch_read(batch, 0, prefixed(3).bytes));
    OK(pleach_batch_put(batch, 0, prefixed(3).bytes, (const uint8_t *)"new", 3));
    OK(pleach_batch_delete(batch, 0, prefixed(4).bytes));
    OK(pleach_batch_read(batch, 0, prefixed(9).bytes)); /* It has no value. */
    OK(pleach_session_finish(session, batch, &block));
    key before, after, root, asked[4] = {prefixed(1), prefixed(3), prefixed(5), prefixed(9)}, hashes[4];
    uint8_t lookups[4];
    OK(pleach_block_witness(block, 0, &witness));
    OK(pleach_block_previous_root(block, 0, before.bytes));
    OK(pleach_block_root(block, 0, root.bytes));
    OK(pleach_verify_witness(BLAKE3, before.bytes, witness.data, witness.len, asked[0].bytes, 4, lookups,
                             hashes[0].bytes, after.bytes));
    HOLDS(memcmp(&after, &root, 32) == 0);
    HOLDS(lookups[0] == PLEACH_PRESENT && lookups[1] == PLEACH_PRESENT); /* As they were read. */
    HOLDS(lookups[2] == PLEACH_PRESENT && lookups[3] == PLEACH_ABSENT);
    pleach_bytes_free(&witness);
    OK(pleach_block_commit(block, &number));
    pleach_session_free(session);
    pleach_block_free(block);
    pleach_batch_free(batch);

    session = session_on(db, NULL);
    for (uint8_t last = 1; last <= 9; last++) {
        OK(pleach_session_read(session, 0, prefixed(last).bytes, &value));
        HOLDS(last == 2 || last == 3 ? equals(&value, "new") : !value.data);
        pleach_bytes_free(&value);
    }
    pleach_session_free(session);
}

static void namespaces(pleach_db *db) {
    uint8_t kinds[256];
    uint64_t number;
    key root, zeros = {{0}};
    OK(pleach_namespace_add(db, 5, false, &number));
    FAILS(pleach_namespace_add(db, 5, false, &number), 412);
    FAILS(pleach_namespace_add(db, 6, false, NULL), PLEACH_ARGUMENT);
    OK(pleach_namespaces(db, kinds));
    for (int at = 0; at < 256; at++) {
        HOLDS(kinds[at] == (at == 200 ? PLEACH_PLAIN : at == 0 || at == 5 ? PLEACH_MERKLE : PLEACH_NO_NAMESPACE));
    }
    OK(pleach_root(db, 5, root.bytes));
    HOLDS(memcmp(&root, &zeros, 32) == 0);
    OK(pleach_namespace_drop(db, 5, &number));
    FAILS(pleach_namespace_drop(db, 5, &number), 410);
    FAILS(pleach_namespace_drop(db, 0, &number), 412);
}

enum kind { DB, SESSION, CURSOR, BATCH, BLOCK, OVERLAY, LOAD, KINDS };

/* The call, with each handle of another kind as `it`. */
#define OF_ANOTHER_KIND(own, call)          \
    for (int of = 0; of < KINDS; of++) {    \
        void *it = all[of];                 \
        if (of != (own)) {                  \
            FAILS((call), PLEACH_ARGUMENT); \
        }                                   \
    }

/* A `_free` does nothing with the handles of other kinds. */
#define LEFT_ALONE(own, free_one)        \
    for (int of = 0; of < KINDS; of++) { \
        void *it = all[of];              \
        if (of != (own)) {               \
            free_one(it);                \
        }                                \
    }

/* Bindings that know nothing but pointers can mix them up: memory was read as something else. */
static void handles_of_another_kind(pleach_db *db) {
    pleach_session *session = session_on(db, NULL), *made = NULL;
    pleach_cursor *cursor = NULL, *second = NULL;
    pleach_batch *batch = NULL;
    pleach_block *block = block_with(db, NULL, 33, "block"), *under = block_with(db, NULL, 34, "overlay"), *next = NULL;
    pleach_overlay *overlay = NULL, *over = NULL;
    pleach_load *load = NULL, *other = NULL;
    pleach_bytes bytes = {0};
    pleach_pair pair;
    pleach_pairs pairs;
    uint8_t kinds[256];
    key one = key_of(1), out;
    uint64_t number, newest;
    size_t open_handles;
    OK(pleach_cursor_range(session, 0, NULL, NULL, &cursor));
    OK(pleach_batch_new(&batch));
    OK(pleach_block_into_overlay(under, &overlay));
    pleach_block_free(under);
    OK(pleach_load_begin(db, 0, &load)); /* Of a namespace with pairs: it fails. */
    void *all[KINDS] = {db, session, cursor, batch, block, overlay, load};

    OF_ANOTHER_KIND(DB, pleach_close(it, &open_handles));
    OF_ANOTHER_KIND(DB, pleach_commit_number(it, &number));
    OF_ANOTHER_KIND(DB, pleach_root(it, 0, out.bytes));
    OF_ANOTHER_KIND(DB, pleach_history(it, &number, &newest));
    OF_ANOTHER_KIND(DB, pleach_committed_at(it, 1, &number));
    OF_ANOTHER_KIND(DB, pleach_rolled_back_to(it, 1, &number));
    OF_ANOTHER_KIND(DB, pleach_changes_of(it, 0, one.bytes, 0, 1, true, &number, 1, &open_handles));
    OF_ANOTHER_KIND(DB, pleach_notes(it, &bytes));
    OF_ANOTHER_KIND(DB, pleach_options(it, &bytes));
    OF_ANOTHER_KIND(DB, pleach_hasher(it, &bytes));
    OF_ANOTHER_KIND(DB, pleach_sync(it));
    OF_ANOTHER_KIND(DB, pleach_refresh(it, &number));
    OF_ANOTHER_KIND(DB, pleach_rollback(it, 1, &number));
    OF_ANOTHER_KIND(DB, pleach_namespace_add(it, 7, false, &number));
    OF_ANOTHER_KIND(DB, pleach_namespace_drop(it, 7, &number));
    OF_ANOTHER_KIND(DB, pleach_namespaces(it, kinds));
    OF_ANOTHER_KIND(DB, pleach_session_open(it, NULL, 0, &made));
    OF_ANOTHER_KIND(DB, pleach_session_at(it, 1, &made));
    OF_ANOTHER_KIND(OVERLAY, pleach_session_open(db, it, 0, &made));
    OF_ANOTHER_KIND(SESSION, pleach_session_commit_number(it, &number));
    OF_ANOTHER_KIND(SESSION, pleach_session_root(it, 0, out.bytes));
    OF_ANOTHER_KIND(SESSION, pleach_session_read(it, 0, one.bytes, &bytes));
    OF_ANOTHER_KIND(SESSION, pleach_session_read_many(it, 0, one.bytes, 1, &bytes));
    OF_ANOTHER_KIND(SESSION, pleach_session_prefetch(it, 0, one.bytes, 1));
    OF_ANOTHER_KIND(SESSION, pleach_session_prove(it, 0, one.bytes, &bytes));
    OF_ANOTHER_KIND(SESSION, pleach_session_prove_many(it, 0, one.bytes, 1, &bytes));
    OF_ANOTHER_KIND(SESSION, pleach_session_prove_range(it, 0, one.bytes, one.bytes, 1, out.bytes, &bytes));
    OF_ANOTHER_KIND(SESSION, pleach_session_finish(it, batch, &next));
    OF_ANOTHER_KIND(BATCH, pleach_session_finish(session, it, &next));
    OF_ANOTHER_KIND(SESSION, pleach_cursor_range(it, 0, NULL, NULL, &second));
    OF_ANOTHER_KIND(SESSION, pleach_cursor_prefix(it, 0, NULL, 0, &second));
    OF_ANOTHER_KIND(CURSOR, pleach_cursor_seek(it, one.bytes));
    OF_ANOTHER_KIND(CURSOR, pleach_cursor_next(it, &pair));
    OF_ANOTHER_KIND(CURSOR, pleach_cursor_previous(it, &pair));
    OF_ANOTHER_KIND(CURSOR, pleach_cursor_next_many(it, 1, &pairs));
    OF_ANOTHER_KIND(CURSOR, pleach_cursor_previous_many(it, 1, &pairs));
    OF_ANOTHER_KIND(BATCH, pleach_batch_read(it, 0, one.bytes));
    OF_ANOTHER_KIND(BATCH, pleach_batch_put(it, 0, one.bytes, NULL, 0));
    OF_ANOTHER_KIND(BATCH, pleach_batch_delete(it, 0, one.bytes));
    OF_ANOTHER_KIND(BATCH, pleach_batch_delete_prefix(it, 0, NULL, 0));
    OF_ANOTHER_KIND(BATCH, pleach_batch_add(it, 0, NULL, NULL, NULL, NULL, 0));
    OF_ANOTHER_KIND(BLOCK, pleach_block_root(it, 0, out.bytes));
    OF_ANOTHER_KIND(BLOCK, pleach_block_previous_root(it, 0, out.bytes));
    OF_ANOTHER_KIND(BLOCK, pleach_block_witness(it, 0, &bytes));
    OF_ANOTHER_KIND(BLOCK, pleach_block_commit(it, &number));
    OF_ANOTHER_KIND(BLOCK, pleach_block_into_overlay(it, &over));
    OF_ANOTHER_KIND(OVERLAY, pleach_overlay_root(it, 0, out.bytes));
    OF_ANOTHER_KIND(OVERLAY, pleach_overlay_commit(it, &number));
    OF_ANOTHER_KIND(DB, pleach_load_begin(it, 0, &other));
    OF_ANOTHER_KIND(LOAD, pleach_load_put(it, one.bytes, NULL, NULL, 0));
    OF_ANOTHER_KIND(LOAD, pleach_load_finish(it, &number));
    OF_ANOTHER_KIND(DB, pleach_metrics(it, &bytes));
    OF_ANOTHER_KIND(DB, pleach_backup(it, "nowhere", true, &number));
    HOLDS(!made && !second && !next && !over && !other && !bytes.data);

    LEFT_ALONE(DB, pleach_db_free);
    LEFT_ALONE(SESSION, pleach_session_free);
    LEFT_ALONE(CURSOR, pleach_cursor_free);
    LEFT_ALONE(BATCH, pleach_batch_free);
    LEFT_ALONE(BLOCK, pleach_block_free);
    LEFT_ALONE(OVERLAY, pleach_overlay_free);
    LEFT_ALONE(LOAD, pleach_load_free);
    reads(session, 0, 33, NULL);
    OK(pleach_block_root(block, 0, out.bytes));
    OK(pleach_overlay_root(overlay, 0, out.bytes));
    OK(pleach_cursor_next(cursor, &pair));
    OK(pleach_batch_read(batch, 0, one.bytes));
    pleach_session_free(session);
    pleach_cursor_free(cursor);
    pleach_batch_free(batch);
    pleach_block_free(block);
    pleach_overlay_free(overlay);
    FAILS(pleach_load_finish(load, &number), 413);
    pleach_load_free(load);
    /* Not promised, but so it is with the allocators of the system and of the sanitizers. */
    FAILS(pleach_session_root(session, 0, out.bytes), PLEACH_ARGUMENT);
    pleach_session_free(session);
}

typedef struct shared {
    pleach_db *db;
    pleach_session *session;
    uint8_t number;
} shared;

static void *reader(void *argument) {
    shared *given = argument;
    size_t found = 0;
    for (;;) {
        pleach_bytes value = {0};
        pleach_error *error = pleach_session_read(given->session, 0, key_of(1).bytes, &value);
        if (error) { /* Another thread has finished the session. */
            FAILS(error, PLEACH_SPENT);
            return (void *)found;
        }
        HOLDS(equals(&value, "v1"));
        pleach_bytes_free(&value);
        found++;
    }
}

static void *writer(void *argument) {
    shared *given = argument;
    char text[] = {'w', (char)('0' + given->number), 0};
    for (;;) {
        pleach_block *block = block_with(given->db, NULL, (uint8_t)(40 + given->number), text);
        uint64_t number;
        pleach_error *error = pleach_block_commit(block, &number);
        pleach_block_free(block);
        if (!error) {
            return NULL;
        }
        HOLDS(error->advice == PLEACH_MAKE_AGAIN);
        FAILS(error, 501);
    }
}

static void threads(pleach_db *db) {
    pthread_t readers[3], writers[3];
    shared reading = {db, session_on(db, NULL), 0}, writing[3];
    for (uint8_t at = 0; at < 3; at++) {
        writing[at] = (shared){db, NULL, at};
        HOLDS(pthread_create(&readers[at], NULL, reader, &reading) == 0);
        HOLDS(pthread_create(&writers[at], NULL, writer, &writing[at]) == 0);
    }
    for (int at = 0; at < 3; at++) {
        HOLDS(pthread_join(writers[at], NULL) == 0);
    }
    pleach_batch *batch = NULL;
    pleach_block *block = NULL;
    OK(pleach_batch_new(&batch));
    OK(pleach_session_finish(reading.session, batch, &block)); /* While others read it. */
    for (int at = 0; at < 3; at++) {
        HOLDS(pthread_join(readers[at], NULL) == 0);
    }
    pleach_batch_free(batch);
    pleach_block_free(block);
    pleach_session_free(reading.session);
    pleach_session *session = session_on(db, NULL);
    reads(session, 0, 40, "w0");
    reads(session, 0, 41, "w1");
    reads(session, 0, 42, "w2");
    pleach_session_free(session);
}

/* Does the open warn of the budget? It may warn of something else, such as a system without io_uring. */
static bool warns_of_the_budget(pleach_db *db) {
    pleach_bytes notes = {0};
    OK(pleach_notes(db, &notes));
    HOLDS(notes.data);
    bool found = memmem(notes.data, notes.len, "cache_mib: ", 11) != NULL;
    pleach_bytes_free(&notes);
    return found;
}

/* A reader beside the process that writes, here in the same process, and the close. */
static void readers_and_close(pleach_db *db, const char *folder) {
    pleach_db *reader = NULL, *second = NULL;
    pleach_bytes options = {0};
    uint64_t number, newest;
    FAILS(pleach_open(folder, "", &second), 102);
    OK(pleach_open(folder, "read_only=true cache_mib=16777216", &reader)); /* More than a process can have. */
    HOLDS(warns_of_the_budget(reader) && !warns_of_the_budget(db));
    pleach_db_free(reader);
    OK(pleach_open(folder, "read_only=true cache_mib=64", &reader));
    pleach_block *block = block_with(db, NULL, 50, "new");
    OK(pleach_block_commit(block, &newest));
    pleach_block_free(block);
    OK(pleach_refresh(reader, &number));
    HOLDS(number == newest);
    pleach_session *session = session_on(reader, NULL);
    reads(session, 0, 50, "new");
    pleach_session_free(session);
    block = block_with(reader, NULL, 51, "no");
    FAILS(pleach_block_commit(block, &number), 416);
    pleach_block_free(block);
    pleach_db_free(reader);

    OK(pleach_sync(db));
    OK(pleach_options(db, &options));
    HOLDS(options.len > 0 && memchr(options.data, '=', options.len));
    session = session_on(db, NULL);
    size_t open_handles;
    OK(pleach_close(db, &open_handles));
    HOLDS(open_handles == 1);
    reads(session, 0, 50, "new"); /* What lives goes on reading. */
    FAILS(pleach_session_open(db, NULL, 0, &session), 603);
    pleach_session_free(session);
    pleach_db_free(db);

    /* What was committed is there. */
    char *text = calloc(options.len + 1, 1);
    memcpy(text, options.data, options.len);
    pleach_bytes_free(&options);
    OK(pleach_open(folder, text, &db));
    free(text);
    OK(pleach_commit_number(db, &number));
    HOLDS(number == newest);
    session = session_on(db, NULL);
    pleach_db_free(db); /* Before its session, and without a close. */
    reads(session, 0, 50, "new");
    pleach_session_free(session);
}

/* A block in one call. */
static void many_steps(pleach_db *db) {
    enum { READ_ONE, PUT_BOTH, PUT_EMPTY, DELETED, READ_AND_DELETED, ALL };
    uint8_t keys[32 * ALL];
    const uint8_t steps[ALL] = {PLEACH_READ, PLEACH_READ | PLEACH_PUT, PLEACH_PUT, PLEACH_DELETE, PLEACH_READ | PLEACH_DELETE};
    const size_t lengths[ALL] = {0, 4, 0, 0, 0}, wrong[ALL] = {1, 4, 0, 0, 0};
    const uint8_t *values = (const uint8_t *)"both?", none = 0, two = PLEACH_PUT | PLEACH_DELETE;
    pleach_batch *batch = NULL;
    pleach_block *block = NULL;
    pleach_bytes witness = {0};
    key lookups_of, before, after, root;
    uint8_t lookups[ALL], hashes[32 * ALL];
    uint64_t number;
    for (uint8_t at = 0; at < ALL; at++) {
        memset(keys + 32 * at, 60 + at, 32);
    }
    OK(pleach_batch_new(&batch));
    put(batch, 0, 60 + DELETED, "old");
    put(batch, 0, 60 + READ_AND_DELETED, "older");
    pleach_session *session = session_on(db, NULL);
    OK(pleach_session_finish(session, batch, &block));
    OK(pleach_block_commit(block, &number));
    pleach_block_free(block);
    pleach_session_free(session);

    OK(pleach_batch_add(batch, 0, keys, steps, values, lengths, ALL));
    FAILS(pleach_batch_add(batch, 0, keys, steps, values, wrong, ALL), PLEACH_ARGUMENT);
    FAILS(pleach_batch_add(batch, 0, keys, &none, values, lengths, 1), PLEACH_ARGUMENT);
    FAILS(pleach_batch_add(batch, 0, keys, &two, values, lengths, 1), PLEACH_ARGUMENT);
    FAILS(pleach_batch_add(batch, 0, keys, NULL, values, lengths, 1), PLEACH_ARGUMENT);
    FAILS(pleach_batch_add(batch, 0, keys, steps, values, NULL, 1), PLEACH_ARGUMENT);
    FAILS(pleach_batch_add(batch, 0, keys, steps, NULL, lengths, ALL), PLEACH_ARGUMENT);
    session = session_on(db, NULL);
    OK(pleach_session_finish(session, batch, &block));
    pleach_session_free(session);
    OK(pleach_block_previous_root(block, 0, before.bytes));
    OK(pleach_block_root(block, 0, root.bytes));
    OK(pleach_block_witness(block, 0, &witness));
    OK(pleach_verify_witness(BLAKE3, before.bytes, witness.data, witness.len, keys, ALL, lookups, hashes, after.bytes));
    HOLDS(memcmp(&after, &root, 32) == 0);
    HOLDS(lookups[READ_ONE] == PLEACH_ABSENT && lookups[READ_AND_DELETED] == PLEACH_PRESENT);
    OK(pleach_hash(BLAKE3, (const uint8_t *)"older", 5, lookups_of.bytes));
    HOLDS(memcmp(hashes + 32 * READ_AND_DELETED, &lookups_of, 32) == 0);
    pleach_bytes_free(&witness);
    OK(pleach_block_commit(block, &number));
    pleach_block_free(block);
    pleach_batch_free(batch);
    session = session_on(db, NULL);
    reads(session, 0, 60 + READ_ONE, NULL);
    reads(session, 0, 60 + PUT_BOTH, "both");
    reads(session, 0, 60 + PUT_EMPTY, "");
    reads(session, 0, 60 + DELETED, NULL);
    reads(session, 0, 60 + READ_AND_DELETED, NULL);
    pleach_session_free(session);
}

/* Messages of the library, all in one text. */
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[1 << 16];

static void listen(void *context, uint32_t level, const char *text) {
    HOLDS(context == said && level >= PLEACH_LOG_ERROR && level <= PLEACH_LOG_INFO);
    pthread_mutex_lock(&said_lock);
    strncat(said, text, sizeof said - strlen(said) - 1);
    pthread_mutex_unlock(&said_lock);
}

/* Times are histograms, of this database alone, and go on when it is opened again. */
static void metrics(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s\"measured", folder);
    const char *options = "create=true cache_mib=64";
    uint64_t number;
    for (int commits = 1; commits <= 2; commits++) {
        pleach_db *db = NULL;
        pleach_bytes text = {0};
        OK(pleach_open(path, options, &db));
        pleach_block *block = block_with(db, NULL, 1, "one");
        OK(pleach_block_commit(block, &number));
        pleach_block_free(block);
        OK(pleach_metrics(db, &text));
        const char *said[] = {"# TYPE pleach_commit_seconds histogram\npleach_commit_seconds_bucket{database=\"",
                              "pleach_commit_seconds_bucket{database=\"%s\",le=\"0.0001\"} 0\n",
                              "pleach_commit_seconds_bucket{database=\"%s\",le=\"+Inf\"} %d\n",
                              "pleach_commit_seconds_count{database=\"%s\"} %d\n",
                              "pleach_finish_seconds_count{database=\"%s\"} %d\n",
                              "pleach_stall_seconds_count{database=\"%s\"} %d\n",
                              "pleach_phase_seconds_count{database=\"%s\",phase=\"log\"} %d\n"};
        char label[4096], wanted[8192];
        snprintf(label, sizeof label, "%s\\\"measured", folder);
        for (size_t at = 0; at < sizeof said / sizeof *said; at++) {
            snprintf(wanted, sizeof wanted, said[at], label, commits);
            HOLDS(memmem(text.data, text.len, wanted, strlen(wanted)));
        }
        pleach_bytes_free(&text);
        OK(pleach_close(db, NULL));
        pleach_db_free(db);
    }
}

/* A load in parts, one that is given up, those that are refused; a backup, metrics and messages. */
static void loads_and_watches(const char *folder) {
    char path[4096], copy[4096];
    snprintf(path, sizeof path, "%s-loaded", folder);
    snprintf(copy, sizeof copy, "%s-copy", folder);
    pleach_db *db = NULL;
    pleach_load *load = NULL;
    pleach_bytes text = {0};
    uint64_t number;
    uint8_t keys[3 * 32];
    size_t lengths[3] = {2, 0, 3};
    for (uint8_t at = 0; at < 3; at++) {
        memset(keys + 32 * at, 3 - at, 32);
    }
    OK(pleach_log(PLEACH_LOG_INFO, listen, said));
    OK(pleach_open(path, "create=true cache_mib=64", &db));
    HOLDS(strstr(said, "opened"));
    said[0] = 0;
    OK(pleach_log(PLEACH_LOG_ERROR, listen, said));

    OK(pleach_namespace_add(db, 7, false, &number));
    OK(pleach_load_begin(db, 7, &load));
    OK(pleach_load_put(load, keys, (const uint8_t *)"given", lengths, 3));
    pleach_load_free(load); /* Given up. */
    OK(pleach_commit_number(db, &number));
    HOLDS(number == 1);
    OK(pleach_load_begin(db, 0, &load));
    FAILS(pleach_load_put(load, keys, (const uint8_t *)"?", NULL, 1), PLEACH_ARGUMENT);
    FAILS(pleach_load_put(load, keys, NULL, lengths, 1), PLEACH_ARGUMENT);
    OK(pleach_load_put(load, keys, (const uint8_t *)"aa", lengths, 1));
    OK(pleach_load_put(load, keys + 32, (const uint8_t *)"ccc", lengths + 1, 2));
    OK(pleach_load_finish(load, &number));
    HOLDS(number == 3);
    FAILS(pleach_load_finish(load, &number), PLEACH_SPENT);
    FAILS(pleach_load_put(load, keys, (const uint8_t *)"aa", lengths, 1), PLEACH_SPENT);
    pleach_load_free(load);
    OK(pleach_load_begin(db, 7, &load));
    OK(pleach_load_put(load, keys, (const uint8_t *)"aa", lengths, 1));
    OK(pleach_load_put(load, keys, (const uint8_t *)"bb", lengths, 1));
    FAILS(pleach_load_finish(load, &number), 406);
    pleach_load_free(load);

    OK(pleach_metrics(db, &text));
    const char *counter = "# TYPE pleach_cache_hits_total counter\npleach_cache_hits_total{database=\"";
    HOLDS(memmem(text.data, text.len, counter, strlen(counter)));
    pleach_bytes_free(&text);
    OK(pleach_backup(db, copy, true, &number));
    HOLDS(number == 2);
    FAILS(pleach_backup(db, copy, true, &number), 203); /* It is not empty. */
    FAILS(pleach_backup(db, NULL, true, &number), PLEACH_ARGUMENT);
    OK(pleach_close(db, NULL)); /* Nobody wants to know what is open. */
    pleach_db_free(db);
    HOLDS(!said[0]); /* That was no error. */
    OK(pleach_log(PLEACH_LOG_INFO, NULL, NULL));

    OK(pleach_open(copy, "read_only=true", &db));
    pleach_session *session = session_on(db, NULL);
    reads(session, 0, 3, "aa");
    reads(session, 0, 2, "");
    reads(session, 0, 1, "ccc");
    reads(session, 7, 1, NULL);
    pleach_session_free(session);
    pleach_db_free(db);
    HOLDS(!said[0]);
}

int main(int count, char **arguments) {
    HOLDS(count == 2);
    const char *folder = arguments[1];
    pleach_db *db = NULL;
    refuses(folder);
    OK(pleach_open(folder, "create=true, cache_mib=64 history=100", &db));
    first_block(db);
    reading(db);
    cursors(db);
    blocks_of_pairs(db);
    proofs(db);
    a_failed_commit_gives_the_block_back(db);
    overlays(db);
    prefixes(db);
    namespaces(db);
    handles_of_another_kind(db);
    threads(db);
    many_steps(db);
    readers_and_close(db, folder);
    metrics(folder);
    loads_and_watches(folder);
    printf("pleach %s: all as it should be\n", pleach_version());
    return 0;
}
