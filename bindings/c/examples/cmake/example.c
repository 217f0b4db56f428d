/* Opens a database in the folder that is named, writes a block, and reads it. */
#include <pleach.h>
#include <stdio.h>
#include <stdlib.h>

static void check(pleach_error *error) {
    if (error) {
        fprintf(stderr, "%u: %s; %s\n", error->code, error->text, error->advice_text);
        exit(1);
    }
}

int main(int count, char **arguments) {
    pleach_db *db = NULL;
    pleach_session *session = NULL;
    pleach_batch *batch = NULL;
    pleach_block *block = NULL;
    pleach_bytes value = {NULL, 0, NULL};
    uint8_t key[32];
    uint64_t number;
    check(pleach_open(count > 1 ? arguments[1] : "state", "create=true cache_mib=64", &db));
    check(pleach_hash("blake3", (const uint8_t *)"alice", 5, key));
    check(pleach_session_open(db, NULL, PLEACH_WITHOUT_WITNESS, &session));
    check(pleach_batch_new(&batch));
    check(pleach_batch_put(batch, 0, key, (const uint8_t *)"90", 2));
    check(pleach_session_finish(session, batch, &block));
    check(pleach_block_commit(block, &number));
    pleach_block_free(block), pleach_batch_free(batch), pleach_session_free(session);
    check(pleach_session_open(db, NULL, 0, &session));
    check(pleach_session_read(session, 0, key, &value));
    printf("pleach %s, commit %llu: %.*s\n", pleach_version(), (unsigned long long)number, (int)value.len, (const char *)value.data);
    pleach_bytes_free(&value), pleach_session_free(session);
    check(pleach_close(db, NULL));
    pleach_db_free(db);
    return 0;
}
