/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage to a journal's file: what verification finds well can be read, and is what was written;
 * an entry that is missing, repeated, swapped or another one is named.
 */
#include "journal_private.h"
#include "recording.h"

#include "journal/journal_bundle.h"
#include "journal/journal_verify.h"

#include <lmdb.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(damage, .init = make_directory, .fini = remove_directory, .timeout = 300);

#define COMMANDS 60u
#define ROOMS (COMMANDS / 3u)

static uint64_t last_entry;

static void record_small(void)
{
    struct recording r = {0};
    record_begin(&r, JOURNAL_NO_SYNC, 0);
    for (uint64_t i = 0; i < COMMANDS; i++) {
        record_command(&r, i, 0);
        if (i == COMMANDS / 2u) {
            record_snapshot(&r);
        }
        cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    }
    last_entry = r.next - 1u;
    journal_close(r.journal);
}

/* All that a reader gets, as one number: entries by number, and each room's history. */
static uint64_t all_that_is_read(void)
{
    uint64_t digest = 1;
    struct journal_record record;
    struct journal_identity identity;
    struct journal *journal = open_journal(JOURNAL_NO_SYNC, true);
    enum status status = journal_identity(journal, &identity);
    for (uint64_t n = identity.first; n <= identity.last && status == STATUS_OK; n++) {
        status = journal_read(journal, n, &record);
        for (size_t i = 0; i < record.payload_size && status == STATUS_OK; i++) {
            digest = digest * 31u + record.payload[i];
        }
        digest = digest * 31u + record.room;
    }
    for (uint64_t room = 1; room <= ROOMS && status == STATUS_OK; room++) {
        uint64_t number = 0;
        status = journal_room_last(journal, room, &number);
        while (status == STATUS_OK) {
            digest = digest * 31u + number;
            status = journal_read(journal, number, &record);
            status = status == STATUS_OK ? journal_room_before(journal, &record, &number) : status;
        }
        status = status == STATUS_END ? STATUS_OK : status;
    }
    journal_close(journal);
    return status == STATUS_OK ? digest : 0;
}

/* In a child, which damaged pages may kill. */
static bool reads_as(uint64_t digest)
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        (void)alarm(30);
        _exit(all_that_is_read() == digest ? 0 : 1);
    }
    (void)waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void segment_file(char *out, size_t size)
{
    (void)snprintf(out, size, "%s/00000000000000000001.mdb", directory);
}

/* One bit of every few bytes of the whole file: pages, their heads, branches, free space, all. */
Test(damage, what_is_found_well_after_a_flip_reads_as_it_was)
{
    char path[96];
    uint32_t silent = 0;
    uint32_t found = 0;
    struct stat info;
    record_small();
    const uint64_t digest = all_that_is_read();
    cr_assert_neq(digest, 0u);
    segment_file(path, sizeof path);
    FILE *file = fopen(path, "rb+");
    cr_assert_not_null(file);
    cr_assert_eq(fstat(fileno(file), &info), 0);
    for (long at = 0; at < info.st_size; at += 61) {
        struct journal_fault_report report;
        struct status_detail detail = {"", 0};
        (void)fseek(file, at, SEEK_SET);
        const int byte = fgetc(file);
        (void)fseek(file, at, SEEK_SET);
        (void)fputc(byte ^ 1 << at % 8, file);
        (void)fflush(file);
        if (journal_verify_in_child(directory, &report, &detail) != STATUS_OK) {
            cr_assert_gt(strlen(detail.text), 0u, "byte %ld", at);
            found++;
        } else {
            cr_assert(reads_as(digest), "byte %ld: nothing was found, and it reads otherwise", at);
            silent++;
        }
        (void)fseek(file, at, SEEK_SET);
        (void)fputc(byte, file);
        (void)fflush(file);
    }
    (void)fclose(file);
    cr_assert(found > 50u && silent > 0u, "%u found, %u of no consequence", found, silent);
}

/* ---- with LMDB's own hand
 * ------------------------------------------------------------------------------------- */

struct hand {
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi entries;
    MDB_dbi heads;
};

static void take(struct hand *hand)
{
    char path[96];
    segment_file(path, sizeof path);
    cr_assert_eq(mdb_env_create(&hand->env), 0);
    cr_assert_eq(mdb_env_set_maxdbs(hand->env, 8), 0);
    cr_assert_eq(mdb_env_open(hand->env, path, MDB_NOSUBDIR, 0600), 0);
    cr_assert_eq(mdb_txn_begin(hand->env, NULL, 0, &hand->txn), 0);
    cr_assert_eq(mdb_dbi_open(hand->txn, "entries", MDB_INTEGERKEY, &hand->entries), 0);
    cr_assert_eq(mdb_dbi_open(hand->txn, "heads", MDB_INTEGERKEY, &hand->heads), 0);
}

static void give(struct hand *hand)
{
    cr_assert_eq(mdb_txn_commit(hand->txn), 0);
    mdb_env_close(hand->env);
}

static MDB_val copy_of(struct hand *hand, uint64_t number)
{
    MDB_val key = {sizeof number, &number};
    MDB_val value;
    cr_assert_eq(mdb_get(hand->txn, hand->entries, &key, &value), 0);
    void *copy = malloc(value.mv_size);
    memcpy(copy, value.mv_data, value.mv_size);
    return (MDB_val){value.mv_size, copy};
}

static void put(struct hand *hand, uint64_t number, MDB_val value)
{
    MDB_val key = {sizeof number, &number};
    cr_assert_eq(mdb_put(hand->txn, hand->entries, &key, &value, 0), 0);
}

static void expect_fault(uint64_t number, const char *text)
{
    struct journal_fault_report report;
    struct status_detail detail = {"", 0};
    cr_assert_eq(journal_verify_in_child(directory, &report, &detail), STATUS_JOURNAL_DAMAGED,
                 "%s: not found", text);
    cr_assert_eq(report.first_fault, number, "%s", detail.text);
    cr_assert_not_null(strstr(detail.text, text), "%s", detail.text);
}

Test(damage, a_missing_entry_is_named)
{
    struct hand hand;
    uint64_t number = 20;
    MDB_val key = {sizeof number, &number};
    record_small();
    take(&hand);
    cr_assert_eq(mdb_del(hand.txn, hand.entries, &key, NULL), 0);
    give(&hand);
    expect_fault(20, "missing");
}

Test(damage, a_last_entry_that_is_missing_is_named)
{
    struct hand hand;
    record_small();
    MDB_val key = {sizeof last_entry, &last_entry};
    take(&hand);
    cr_assert_eq(mdb_del(hand.txn, hand.entries, &key, NULL), 0);
    give(&hand);
    expect_fault(last_entry, "missing");
}

Test(damage, swapped_entries_are_named)
{
    struct hand hand;
    record_small();
    take(&hand);
    const MDB_val a = copy_of(&hand, 20);
    const MDB_val b = copy_of(&hand, 21);
    put(&hand, 20, b);
    put(&hand, 21, a);
    give(&hand);
    expect_fault(20, "entry 20");
}

Test(damage, a_repeated_entry_is_named)
{
    struct hand hand;
    record_small();
    take(&hand);
    put(&hand, 31, copy_of(&hand, 30));
    give(&hand);
    expect_fault(31, "entry 31");
    remove_directory();
    make_directory();
    record_small();
    take(&hand);
    put(&hand, last_entry + 1u, copy_of(&hand, last_entry));
    give(&hand);
    expect_fault(last_entry + 1u, "entry 6");
}

/* Somebody who can make the check of an entry fit cannot make the chain fit. */
Test(damage, an_entry_that_was_rewritten_with_a_right_check_is_named)
{
    struct hand hand;
    struct journal_head head;
    record_small();
    take(&hand);
    const MDB_val value = copy_of(&hand, 25);
    unsigned char *bytes = value.mv_data;
    journal_head_read(bytes, &head);
    bytes[value.mv_size - 1u] ^= 1u;
    head.check = 0;
    journal_head_write(&head, bytes);
    head.check = journal_head_check(bytes, bytes + JOURNAL_HEAD_BYTES, head.payload_size);
    journal_head_write(&head, bytes);
    put(&hand, 25, value);
    give(&hand);
    expect_fault(25, "out of the chain");
}

Test(damage, a_room_index_that_is_wrong_is_found)
{
    struct hand hand;
    uint64_t room = 7;
    uint64_t number = 20; /* of another room, and before the room's newest */
    MDB_val key = {sizeof room, &room};
    MDB_val value = {sizeof number, &number};
    record_small();
    take(&hand);
    cr_assert_eq(mdb_put(hand.txn, hand.heads, &key, &value, 0), 0);
    give(&hand);
    expect_fault(21, "missing in the room index");
    number = last_entry; /* of another room, and after its newest */
    take(&hand);
    cr_assert_eq(mdb_put(hand.txn, hand.heads, &key, &value, 0), 0);
    give(&hand);
    expect_fault(last_entry, "not of that room");
}
