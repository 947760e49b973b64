/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "journal/journal.h"

#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BATCH 64u
#define BATCHES 200u
#define ENTRIES (BATCH * BATCHES)
#define PAYLOAD_BYTES 180u /* about the mean entry of a demo */

static unsigned char payload[PAYLOAD_BYTES];

static void must(int rc, const char *what)
{
    if (rc != 0) {
        bench_fail(what, mdb_strerror(rc));
    }
}

/* Seconds for all batches, each durable before the next. */
static double write_journal(struct journal *journal)
{
    const uint64_t start = bench_now_ns();
    for (uint64_t n = 1; n <= ENTRIES; n++) {
        const struct journal_record record = {n, n % 97u + 1u, 0, payload, PAYLOAD_BYTES, NULL, 0};
        if (journal_append(journal, &record) != STATUS_OK ||
            (n % BATCH == 0 && journal_commit(journal) != STATUS_OK)) {
            bench_fail("journal", journal_detail(journal)->text);
        }
    }
    return (double)(bench_now_ns() - start) / 1e9;
}

static double read_journal(struct journal *journal)
{
    const uint64_t start = bench_now_ns();
    uint64_t bytes = 0;
    struct journal_record record;
    for (uint64_t n = 1; n <= ENTRIES; n++) {
        if (journal_read(journal, n, &record) != STATUS_OK) {
            bench_fail("journal", journal_detail(journal)->text);
        }
        bytes += record.payload_size;
    }
    journal_read_pause(journal);
    if (bytes != (uint64_t)ENTRIES * PAYLOAD_BYTES) {
        bench_fail("journal", "bytes are missing");
    }
    return (double)(bench_now_ns() - start) / 1e9;
}

static double write_bare(MDB_env *env)
{
    MDB_txn *txn;
    MDB_dbi dbi;
    const uint64_t start = bench_now_ns();
    for (uint64_t n = 1; n <= ENTRIES;) {
        must(mdb_txn_begin(env, NULL, 0, &txn), "mdb_txn_begin");
        must(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi), "mdb_dbi_open");
        for (uint32_t i = 0; i < BATCH; i++, n++) {
            MDB_val key = {sizeof n, &n};
            MDB_val value = {PAYLOAD_BYTES, payload};
            must(mdb_put(txn, dbi, &key, &value, MDB_APPEND), "mdb_put");
        }
        must(mdb_txn_commit(txn), "mdb_txn_commit");
    }
    return (double)(bench_now_ns() - start) / 1e9;
}

static double read_bare(MDB_env *env)
{
    MDB_txn *txn;
    MDB_dbi dbi;
    const uint64_t start = bench_now_ns();
    uint64_t bytes = 0;
    must(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "mdb_txn_begin");
    must(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi), "mdb_dbi_open");
    for (uint64_t n = 1; n <= ENTRIES; n++) {
        MDB_val key = {sizeof n, &n};
        MDB_val value;
        must(mdb_get(txn, dbi, &key, &value), "mdb_get");
        bytes += value.mv_size + *(const unsigned char *)value.mv_data;
    }
    mdb_txn_abort(txn);
    if (bytes < (uint64_t)ENTRIES * PAYLOAD_BYTES) {
        bench_fail("lmdb", "bytes are missing");
    }
    return (double)(bench_now_ns() - start) / 1e9;
}

static void in_directory(const char *directory, double *out)
{
    char path[512];
    struct status_detail detail;
    (void)snprintf(path, sizeof path, "%s/journal", directory);
    const struct journal_options options = {.path = path};
    struct journal *journal = NULL;
    if (journal_open(&options, &journal, &detail) != STATUS_OK) {
        bench_fail("journal", detail.text);
    }
    out[0] = write_journal(journal);
    out[2] = read_journal(journal);
    journal_close(journal);
    MDB_env *env;
    (void)snprintf(path, sizeof path, "%s/bare", directory);
    if (mkdir(path, 0700) != 0) {
        bench_fail(path, "cannot be made");
    }
    must(mdb_env_create(&env), "mdb_env_create");
    must(mdb_env_set_mapsize(env, (size_t)1 << 30), "mdb_env_set_mapsize");
    must(mdb_env_open(env, path, 0, 0600), "mdb_env_open");
    out[1] = write_bare(env);
    out[3] = read_bare(env);
    mdb_env_close(env);
}

void bench_journal(const char *directory)
{
    double journal_write[BENCH_ROUNDS];
    double journal_read_rate[BENCH_ROUNDS];
    double write_ratio[BENCH_ROUNDS];
    double read_ratio[BENCH_ROUNDS];
    for (uint32_t round = 0; round < BENCH_ROUNDS; round++) {
        char path[400];
        char command[512];
        double seconds[4];
        (void)snprintf(path, sizeof path, "%s/bench-journal-XXXXXX", directory);
        if (mkdtemp(path) == NULL) {
            bench_fail(directory, "no directory can be made in it");
        }
        in_directory(path, seconds);
        (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
        if (system(command) != 0) {
            bench_fail(path, "cannot be removed");
        }
        journal_write[round] = ENTRIES / seconds[0];
        write_ratio[round] = seconds[1] / seconds[0];
        journal_read_rate[round] = ENTRIES / seconds[2];
        read_ratio[round] = seconds[3] / seconds[2];
    }
    printf("journal  %10.0f durable entries/s in batches of %u, %.2f of bare LMDB\n",
           bench_median(journal_write), BATCH, bench_median(write_ratio));
    printf("journal  %10.0f entries/s read and checked, %.2f of bare LMDB (which checks nothing)\n",
           bench_median(journal_read_rate), bench_median(read_ratio));
}
