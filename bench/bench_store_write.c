/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_store.h"
#include "journal/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define PAYLOAD_BYTES 120u /* about the mean entry of a demo */
#define HEAD_BYTES 56u
#define TURN_NS UINT64_C(200000000)

static unsigned char payload[PAYLOAD_BYTES];

/* One way to keep entries. A batch is durable when `batch` returns. */
struct store {
    const char *name;
    void (*open)(struct store *store, const char *path);
    void (*batch)(struct store *store, uint32_t size);
    void (*close)(struct store *store);
    uint64_t next;
    struct journal *journal;
    MDB_env *env;
    int fd;
    sqlite3 *sqlite;
    sqlite3_stmt *insert;
};

/* ---- the journal: each batch durable before the next, and as the node's writer does it
 * --------------------------- */

static void journal_begin(struct store *store, const char *path)
{
    struct status_detail detail;
    const struct journal_options options = {.path = path};
    if (journal_open(&options, &store->journal, &detail) != STATUS_OK) {
        bench_fail("journal", detail.text);
    }
}

static void append_all(struct store *store, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++) {
        const uint64_t n = ++store->next;
        const struct journal_record record = {n, n % 97u + 1u, 0, payload, PAYLOAD_BYTES, NULL, 0};
        if (journal_append(store->journal, &record) != STATUS_OK) {
            bench_fail("journal", journal_detail(store->journal)->text);
        }
    }
}

static void journal_batch(struct store *store, uint32_t size)
{
    append_all(store, size);
    if (journal_commit(store->journal) != STATUS_OK) {
        bench_fail("journal", journal_detail(store->journal)->text);
    }
}

static void journal_batch_ahead(struct store *store, uint32_t size)
{
    append_all(store, size);
    if (journal_commit_ahead(store->journal) != STATUS_OK) {
        bench_fail("journal", journal_detail(store->journal)->text);
    }
}

static void journal_end(struct store *store)
{
    if (journal_flush(store->journal) != STATUS_OK ||
        journal_durable(store->journal) != store->next) {
        bench_fail("journal", "not all is durable");
    }
    journal_close(store->journal);
}

/* ---- bare LMDB
 * --------------------------------------------------------------------------------------------- */

static void must(int rc, const char *what)
{
    if (rc != 0) {
        bench_fail(what, mdb_strerror(rc));
    }
}

static void lmdb_begin(struct store *store, const char *path)
{
    if (mkdir(path, 0700) != 0) {
        bench_fail(path, strerror(errno));
    }
    must(mdb_env_create(&store->env), "mdb_env_create");
    must(mdb_env_set_mapsize(store->env, (size_t)4 << 30), "mdb_env_set_mapsize");
    must(mdb_env_open(store->env, path, 0, 0600), "mdb_env_open");
}

static void lmdb_batch(struct store *store, uint32_t size)
{
    MDB_txn *txn;
    MDB_dbi dbi;
    must(mdb_txn_begin(store->env, NULL, 0, &txn), "mdb_txn_begin");
    must(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi), "mdb_dbi_open");
    for (uint32_t i = 0; i < size; i++) {
        uint64_t n = ++store->next;
        MDB_val key = {sizeof n, &n};
        MDB_val value = {PAYLOAD_BYTES, payload};
        must(mdb_put(txn, dbi, &key, &value, MDB_APPEND), "mdb_put");
    }
    must(mdb_txn_commit(txn), "mdb_txn_commit");
}

static void lmdb_end(struct store *store)
{
    mdb_env_close(store->env);
}

/* ---- a bare file: a head with a check, appended, fdatasync
 * -------------------------------------------------------- */

static void file_begin(struct store *store, const char *path)
{
    store->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (store->fd < 0) {
        bench_fail(path, strerror(errno));
    }
}

static void file_batch(struct store *store, uint32_t size)
{
    static unsigned char bytes[1024u * (HEAD_BYTES + PAYLOAD_BYTES)];
    size_t used = 0;
    for (uint32_t i = 0; i < size; i++) {
        unsigned char *at = bytes + used;
        const uint64_t n = ++store->next;
        const uint64_t check = XXH3_64bits_withSeed(payload, PAYLOAD_BYTES, n);
        memset(at, 0, HEAD_BYTES);
        memcpy(at, &n, sizeof n);
        memcpy(at + 8, &check, sizeof check);
        memcpy(at + HEAD_BYTES, payload, PAYLOAD_BYTES);
        used += HEAD_BYTES + PAYLOAD_BYTES;
    }
    if (write(store->fd, bytes, used) != (ssize_t)used || fdatasync(store->fd) != 0) {
        bench_fail("file", strerror(errno));
    }
}

static void file_end(struct store *store)
{
    (void)close(store->fd);
}

/* ---- SQLite, write-ahead log, synchronous FULL, with the index that the journal has
 * ------------------------------ */

static void sql(struct store *store, const char *text)
{
    if (sqlite3_exec(store->sqlite, text, NULL, NULL, NULL) != SQLITE_OK) {
        bench_fail(text, sqlite3_errmsg(store->sqlite));
    }
}

static void sqlite_begin(struct store *store, const char *path)
{
    if (sqlite3_open(path, &store->sqlite) != SQLITE_OK) {
        bench_fail(path, "SQLite cannot open it");
    }
    sql(store, "pragma journal_mode=wal");
    sql(store, "pragma synchronous=full");
    sql(store, "create table entries(n integer primary key, room integer, payload blob)");
    sql(store, "create index rooms on entries(room, n)");
    if (sqlite3_prepare_v2(store->sqlite, "insert into entries values(?1, ?2, ?3)", -1,
                           &store->insert, NULL) != SQLITE_OK) {
        bench_fail("insert", sqlite3_errmsg(store->sqlite));
    }
}

static void sqlite_batch(struct store *store, uint32_t size)
{
    sql(store, "begin");
    for (uint32_t i = 0; i < size; i++) {
        const sqlite3_int64 n = (sqlite3_int64)++store->next;
        sqlite3_bind_int64(store->insert, 1, n);
        sqlite3_bind_int64(store->insert, 2, n % 97 + 1);
        sqlite3_bind_blob(store->insert, 3, payload, PAYLOAD_BYTES, SQLITE_STATIC);
        if (sqlite3_step(store->insert) != SQLITE_DONE) {
            bench_fail("insert", sqlite3_errmsg(store->sqlite));
        }
        (void)sqlite3_reset(store->insert);
    }
    sql(store, "commit");
}

static void sqlite_end(struct store *store)
{
    (void)sqlite3_finalize(store->insert);
    (void)sqlite3_close(store->sqlite);
}

/* ---- turns
 * --------------------------------------------------------------------------------------------------
 */

#define STORES 5u

static const struct store kinds[STORES] = {
    {.name = "file", .open = file_begin, .batch = file_batch, .close = file_end},
    {.name = "journal", .open = journal_begin, .batch = journal_batch, .close = journal_end},
    {.name = "ahead", .open = journal_begin, .batch = journal_batch_ahead, .close = journal_end},
    {.name = "lmdb", .open = lmdb_begin, .batch = lmdb_batch, .close = lmdb_end},
    {.name = "sqlite", .open = sqlite_begin, .batch = sqlite_batch, .close = sqlite_end},
};

static double one_turn(const char *directory, const struct store *kind, uint32_t batch,
                       uint32_t round)
{
    char path[512];
    struct store store = *kind;
    (void)snprintf(path, sizeof path, "%s/%s-%u-%u", directory, kind->name, batch, round);
    store.open(&store, path);
    const uint64_t start = bench_now_ns();
    uint64_t now = start;
    while (now - start < TURN_NS) {
        store.batch(&store, batch);
        now = bench_now_ns();
    }
    store.close(&store);
    return (double)store.next * 1e9 / (double)(now - start);
}

static void by_batch(const char *directory, uint32_t batch)
{
    double rates[STORES][BENCH_ROUNDS];
    double ratios[STORES][BENCH_ROUNDS];
    for (uint32_t round = 0; round < BENCH_ROUNDS; round++) {
        for (uint32_t i = 0; i < STORES; i++) {
            rates[i][round] = one_turn(directory, &kinds[i], batch, round);
            ratios[i][round] = rates[i][round] / rates[0][round];
        }
    }
    printf("%6u", batch);
    for (uint32_t i = 0; i < STORES; i++) {
        printf(" %9.0f", bench_median(rates[i]));
    }
    for (uint32_t i = 1; i < STORES; i++) {
        printf("  %7.2f", bench_median(ratios[i]));
    }
    printf("\n");
}

void bench_store_write(const char *directory)
{
    static const uint32_t batches[] = {1, 8, 64, 512};
    for (size_t i = 0; i < PAYLOAD_BYTES; i++) {
        payload[i] = (unsigned char)(i * 37u);
    }
    printf("durable entries a second of %u bytes, median of %u rounds, and as a ratio to the file\n"
           "  file: appended with a check, fdatasync a batch; journal: each batch durable before "
           "the next;\n  ahead: as the node's journal thread does it, durable when the next one "
           "is; lmdb: bare;\n  sqlite: WAL, synchronous=FULL, with an index of rooms\n"
           " batch      file   journal     ahead      lmdb    sqlite  journal    ahead     lmdb   "
           "sqlite\n",
           PAYLOAD_BYTES, BENCH_ROUNDS);
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        by_batch(directory, batches[i]);
    }
}
