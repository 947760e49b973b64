/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_store.h"
#include "cli.h"
#include "journal/journal_recover.h"
#include "journal/journal_verify.h"
#include "pair.h"

#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SNAPSHOT_EVERY 100000u
#define BATCH 512u
#define QUERIES 5000u
#define SEGMENT_BYTES (UINT64_C(1) << 30)
#define PAYLOAD_MAX (1u << 20)

/* ---- a prefill node's journal, of rooms that a machine went through
 * -------------------------------------------- */

struct recorder {
    struct pair pair;
    struct journal *journal;
    struct journal_machine machine; /* lends the working memory; its machine is the pair's */
    unsigned char *packed;
    uint64_t *rooms;
    uint64_t entries;
    uint64_t payload;
    uint64_t snapshots_ns;
    uint64_t snapshots;
};

static void must_journal(struct recorder *r, enum status status)
{
    if (status != STATUS_OK) {
        bench_fail("journal", journal_detail(r->journal)->text);
    }
}

static void keep_snapshot(struct recorder *r)
{
    struct status_detail detail;
    const uint64_t start = bench_now_ns();
    r->machine.sm = r->pair.sm[PAIR_P];
    must_journal(r, journal_commit(r->journal));
    const enum status status =
        journal_segment_full(r->journal)
            ? journal_machine_begin_segment(r->journal, &r->machine, r->entries, &detail)
            : journal_machine_snapshot(r->journal, &r->machine, &detail);
    if (status != STATUS_OK) {
        bench_fail("snapshot", detail.text);
    }
    r->machine.sm = NULL;
    r->snapshots++;
    r->snapshots_ns += bench_now_ns() - start;
}

static void record(void *context, uint32_t node, const struct sm_input *input,
                   const struct sm_output *output)
{
    struct recorder *r = context;
    struct codec_entry entry;
    size_t size = 0;
    if (node != PAIR_P) {
        return;
    }
    memset(&entry, 0, sizeof entry);
    entry.input = *input;
    entry.wall_ns = UINT64_C(1790000000000000000) + input->time_ns;
    entry.transitions = output->transitions;
    entry.transition_count = output->transition_count;
    entry.digest = output->digest;
    entry.effects = codec_effects_digest(output);
    entry.bounds = r->machine.bounds;
    entry.machine_version = SM_MACHINE_VERSION;
    entry.program = (struct sm_text){"bench", 5};
    if (codec_entry_pack(&entry, &r->machine.scratch, r->packed, PAYLOAD_MAX, &size) != STATUS_OK) {
        bench_fail("entry", "cannot be packed");
    }
    const uint32_t also =
        journal_other_rooms(output->transitions, output->transition_count, input->room, r->rooms);
    const struct journal_record out = {++r->entries, input->room, 0,   r->packed,
                                       size,         r->rooms,    also};
    must_journal(r, journal_append(r->journal, &out));
    r->payload += size;
    if (r->entries % BATCH == 0) {
        must_journal(r, journal_commit(r->journal));
    }
}

static void one_room(struct pair *pair, uint64_t room)
{
    struct sm_run run = {(uint32_t)(room % 32u) * 16u, 16};
    struct sm_input open = pair_command(SM_IN_OPEN, SM_DECODE, 0, room);
    struct sm_input send = pair_command(SM_IN_SEND, SM_PREFILL, 0, room);
    struct sm_input input = pair_command(SM_IN_OPEN, SM_PREFILL, 0, room);
    open.u.command.pages = send.u.command.pages = (struct sm_runs){&run, 1};
    send.u.command.last = true;
    pair_step(pair, PAIR_P, &input);
    input.kind = SM_IN_ADMIT;
    pair_step(pair, PAIR_P, &input);
    pair_step(pair, PAIR_D, &open);
    if (room % 10u == 0) {
        struct sm_input abort = pair_command(SM_IN_ABORT, SM_PREFILL, 0, room);
        abort.u.command.cause.http = 499;
        abort.u.command.cause.typed = true;
        abort.u.command.cause.reason = (struct sm_text){"client closed the connection", 28};
        pair_step(pair, PAIR_P, &abort);
    } else {
        pair_step(pair, PAIR_P, &send);
    }
    pair_pass(pair, 1000000);
}

static void set_up(struct recorder *r, const char *path)
{
    struct status_detail detail;
    const struct journal_options options = {
        .path = path, .mode = JOURNAL_NO_SYNC, .segment_bytes = SEGMENT_BYTES};
    memset(r, 0, sizeof *r);
    if (journal_open(&options, &r->journal, &detail) != STATUS_OK ||
        journal_machine_open(&r->machine, &detail) != STATUS_OK) {
        bench_fail("journal", detail.text);
    }
    r->machine.bounds = pair_bounds();
    r->packed = malloc(PAYLOAD_MAX);
    r->rooms = malloc(SM_TRANSITIONS_MAX * sizeof *r->rooms);
    if (r->packed == NULL || r->rooms == NULL) {
        bench_fail("recorder", "no memory");
    }
}

/* Returns how many rooms it has. */
static uint64_t make_journal(const char *path, uint64_t entries)
{
    static struct recorder r;
    uint64_t room = 0;
    uint64_t kept = 0;
    set_up(&r, path);
    const uint64_t start = bench_now_ns();
    pair_open_watched(&r.pair, 1, 1, record, &r);
    r.pair.unchecked = true;
    while (r.entries < entries) {
        one_room(&r.pair, ++room);
        if (r.entries / SNAPSHOT_EVERY > kept && r.entries + SNAPSHOT_EVERY / 2u < entries) {
            kept = r.entries / SNAPSHOT_EVERY;
            keep_snapshot(&r);
        }
    }
    must_journal(&r, journal_commit(r.journal));
    printf("a prefill node's journal of %llu entries, %llu rooms, %.1f entries a room, a snapshot "
           "every %u (%.2f ms each)\n  made in %.1f s with both machines, %u segments\n",
           (unsigned long long)r.entries, (unsigned long long)room,
           (double)r.entries / (double)room, SNAPSHOT_EVERY,
           r.snapshots > 0 ? (double)r.snapshots_ns / 1e6 / (double)r.snapshots : 0.0,
           (double)(bench_now_ns() - start) / 1e9, journal_segment_count(r.journal));
    printf("%-44s %10.1f bytes an entry\n", "payload (protobuf)",
           (double)r.payload / (double)r.entries);
    journal_close(r.journal);
    pair_close(&r.pair);
    journal_machine_close(&r.machine);
    free(r.packed);
    free(r.rooms);
    return room;
}

/* ---- how large it is
 * ---------------------------------------------------------------------------------------- */

static uint64_t table_bytes(MDB_txn *txn, const char *table, unsigned int flags)
{
    MDB_dbi dbi;
    MDB_stat stat;
    if (mdb_dbi_open(txn, table, flags, &dbi) != 0 || mdb_stat(txn, dbi, &stat) != 0) {
        bench_fail(table, "cannot be opened");
    }
    return (stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) * stat.ms_psize;
}

static void say_sizes(const char *path, uint64_t entries)
{
    static const char *const tables[] = {"entries", "heads", "also", "snapshots"};
    static const char *const words[] = {"entries (frame of 56, payload, LMDB's pages)",
                                        "index of rooms", "index of other rooms", "snapshots"};
    uint64_t bytes[4] = {0, 0, 0, 0};
    uint64_t files = 0;
    struct journal *journal = NULL;
    struct status_detail detail;
    const struct journal_options options = {.path = path, .read_only = true};
    if (journal_open(&options, &journal, &detail) != STATUS_OK) {
        bench_fail("journal", detail.text);
    }
    for (uint32_t i = 0; i < journal_segment_count(journal); i++) {
        char file[600];
        struct stat info;
        MDB_env *env = NULL;
        MDB_txn *txn = NULL;
        (void)snprintf(file, sizeof file, "%s/%020llu.mdb", path,
                       (unsigned long long)journal_segment_first(journal, i));
        if (stat(file, &info) != 0 || mdb_env_create(&env) != 0 ||
            mdb_env_set_maxdbs(env, 8) != 0 ||
            mdb_env_open(env, file, MDB_NOSUBDIR | MDB_RDONLY | MDB_NOLOCK, 0600) != 0 ||
            mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) != 0) {
            bench_fail(file, "cannot be opened");
        }
        files += (uint64_t)info.st_size;
        for (uint32_t k = 0; k < 4u; k++) {
            bytes[k] += table_bytes(txn, tables[k], k < 2u ? MDB_INTEGERKEY : 0);
        }
        mdb_txn_abort(txn);
        mdb_env_close(env);
    }
    for (uint32_t k = 0; k < 4u; k++) {
        printf("%-44s %10.1f bytes an entry\n", words[k], (double)bytes[k] / (double)entries);
    }
    printf("%-44s %10.1f bytes an entry, %.2f GB\n",
           "files, with the pages free for the next batch", (double)files / (double)entries,
           (double)files / 1e9);
    journal_close(journal);
}

/* ---- what is read from it
 * ------------------------------------------------------------------------------------ */

static struct journal *open_to_read(const char *path)
{
    struct journal *journal = NULL;
    struct status_detail detail;
    const struct journal_options options = {.path = path, .read_only = true};
    if (journal_open(&options, &journal, &detail) != STATUS_OK) {
        bench_fail("journal", detail.text);
    }
    return journal;
}

static void say_rate(const char *what, uint64_t entries, uint64_t ns)
{
    printf("%-44s %10.0f entries/s, %.2f s for a million\n", what,
           (double)entries * 1e9 / (double)ns, (double)ns / 1e3 / (double)entries);
}

static void scan(const char *path, uint64_t entries, bool unpack)
{
    struct journal *journal = open_to_read(path);
    struct journal_record record;
    struct codec_entry entry;
    struct codec_arena arena;
    void *memory = malloc((size_t)64 << 20);
    codec_arena_init(&arena, memory, memory != NULL ? (size_t)64 << 20 : 0);
    const uint64_t start = bench_now_ns();
    for (uint64_t n = 1; n <= entries; n++) {
        codec_arena_reset(&arena);
        if (journal_read(journal, n, &record) != STATUS_OK ||
            (unpack && codec_entry_unpack(record.payload, record.payload_size, &arena, &entry) !=
                           STATUS_OK)) {
            bench_fail("journal", journal_detail(journal)->text);
        }
    }
    say_rate(unpack ? "scan: read, checked and unpacked" : "scan: read and checked", entries,
             bench_now_ns() - start);
    journal_close(journal);
    free(memory);
}

static void verify(const char *path, uint64_t entries)
{
    struct journal_fault_report report;
    struct status_detail detail;
    struct journal *journal = open_to_read(path);
    const uint64_t start = bench_now_ns();
    if (journal_verify(journal, &report, &detail) != STATUS_OK || report.entries != entries) {
        bench_fail("verify", detail.text);
    }
    say_rate("verify: chain, indexes, snapshots", entries, bench_now_ns() - start);
    journal_close(journal);
}

/* From opening to a machine that can go on. */
static void replay(const char *what, const char *path, bool from_snapshot)
{
    struct journal_machine machine;
    struct journal_replayed replayed;
    struct status_detail detail;
    const struct journal_replay options = {.from_snapshot = from_snapshot};
    const uint64_t start = bench_now_ns();
    struct journal *journal = open_to_read(path);
    if (journal_machine_open(&machine, &detail) != STATUS_OK ||
        journal_replay(journal, &machine, &options, &replayed, &detail) != STATUS_OK) {
        bench_fail("replay", detail.text);
    }
    const uint64_t took = bench_now_ns() - start;
    if (from_snapshot) {
        printf("%-44s %10.3f s, %llu entries after the snapshot\n", what, (double)took / 1e9,
               (unsigned long long)replayed.entries);
    } else {
        say_rate(what, replayed.entries, took);
    }
    journal_machine_close(&machine);
    journal_close(journal);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void query(const char *path, uint64_t rooms)
{
    static double took[QUERIES];
    struct journal *journal = open_to_read(path);
    struct history history;
    struct status_detail detail;
    uint64_t seed = 1;
    /* The first half warms the file's pages. */
    for (uint32_t i = 0; i < 2u * QUERIES; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t room = (seed >> 20) % rooms + 1u;
        const uint64_t start = bench_now_ns();
        if (history_read(journal, room, &history, &detail) != STATUS_OK || history.count < 3u) {
            bench_fail("history", "a room is not as it was");
        }
        took[i % QUERIES] = (double)(bench_now_ns() - start) / 1e3;
        history_free(&history);
    }
    journal_close(journal);
    qsort(took, QUERIES, sizeof *took, by_value);
    printf("%-44s %10.1f us median, %.1f us the slowest of a hundred\n",
           "history of a room at random, warm", took[QUERIES / 2u], took[QUERIES * 99u / 100u]);
}

void bench_store_read(const char *directory, uint64_t entries)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/read", directory);
    printf("\n");
    const uint64_t rooms = make_journal(path, entries);
    struct journal *journal = open_to_read(path);
    struct journal_identity identity;
    if (journal_identity(journal, &identity) != STATUS_OK) {
        bench_fail("journal", journal_detail(journal)->text);
    }
    journal_close(journal);
    say_sizes(path, identity.last);
    scan(path, identity.last, false);
    scan(path, identity.last, true);
    verify(path, identity.last);
    replay("replay from the start, all compared", path, false);
    replay("recovery from the newest snapshot", path, true);
    query(path, rooms);
}
