/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal on a real disk: nothing acknowledged is lost to kill -9, every flipped bit of an
 * entry is found, a second writer is refused by pid, a failing disk loses nothing, and replay tells
 * a changed entry.
 */
#include "journal/journal.h"
#include "journal/journal_gate.h"
#include "journal/journal_recover.h"
#include "journal/journal_verify.h"
#include "recording.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

TestSuite(journal, .init = make_directory, .fini = remove_directory, .timeout = 120);

static enum status append(struct journal *journal, uint64_t number, uint64_t room)
{
    char text[100];
    (void)snprintf(text, sizeof text, "entry %llu of room %llu", (unsigned long long)number,
                   (unsigned long long)room);
    const uint64_t also[1] = {room + 1000u};
    const struct journal_record record = {number,
                                          room,
                                          0,
                                          (const unsigned char *)text,
                                          strlen(text),
                                          also,
                                          number % 3u == 0 ? 1u : 0u};
    return journal_append(journal, &record);
}

Test(journal, what_was_committed_is_there_after_a_reopen_and_what_was_not_is_not)
{
    struct journal *journal = open_journal(JOURNAL_SYNC, false);
    struct journal_record record;
    struct journal_identity before;
    struct journal_identity after;
    uint64_t number = 0;
    for (uint64_t n = 1; n <= 100; n++) {
        cr_assert_eq(append(journal, n, 1u + n % 7u), STATUS_OK);
    }
    cr_assert_eq(journal_note_epoch(journal, 5), STATUS_OK);
    cr_assert_eq(journal_commit(journal), STATUS_OK);
    cr_assert_eq(append(journal, 101, 3), STATUS_OK);
    (void)journal_identity(journal, &before);
    journal_close(journal);
    journal = open_journal(JOURNAL_SYNC, false);
    (void)journal_identity(journal, &after);
    cr_assert_eq(after.last, 100u);
    cr_assert_eq(after.epoch, 5u);
    cr_assert_eq(after.node_id, before.node_id);
    cr_assert_eq(append(journal, 102, 1), STATUS_INVALID, "a gap was accepted");
    /* The room's entries by back-pointers: 1 + n % 7 == 4 for n = 3, 10, ... 94. */
    cr_assert_eq(journal_room_last(journal, 4, &number), STATUS_OK);
    for (uint64_t expected = 94; number != 0; expected -= 7u) {
        cr_assert_eq(number, expected);
        cr_assert_eq(journal_read(journal, number, &record), STATUS_OK);
        cr_assert_eq(record.room, 4u);
        number = journal_room_before(journal, &record, &number) == STATUS_OK ? number : 0;
    }
    cr_assert_eq(journal_room_also(journal, 1004, 1, &number), STATUS_OK);
    cr_assert_eq(number % 3u, 0u);
    cr_assert_eq(journal_room_also(journal, 9999, 1, &number), STATUS_END);
    journal_close(journal);
}

/* Every fifth child is killed while it still opens the journal, the others while they commit. */
static void let_it_run(uint32_t round, const _Atomic uint64_t *acknowledged)
{
    const struct timespec pause = {0, (long)(round * 7919u % 23u) * 100000};
    const uint64_t until = atomic_load(acknowledged) + 3u * (round % 7u);
    for (uint32_t i = 0; i < 100000u && round % 5u != 0 && atomic_load(acknowledged) < until; i++) {
        (void)usleep(100);
    }
    (void)nanosleep(&pause, NULL);
}

/* Commits in a child; what it was told is durable stands in shared memory. */
Test(journal, nothing_acknowledged_is_lost_to_kill_9)
{
    _Atomic uint64_t *acknowledged =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t total = 0;
    for (uint32_t round = 0; round < 60u; round++) {
        const pid_t child = fork();
        if (child == 0) {
            struct journal *journal = open_journal(JOURNAL_SYNC, false);
            struct journal_identity identity;
            (void)journal_identity(journal, &identity);
            for (uint64_t n = identity.last + 1u;; n++) {
                if (append(journal, n, n % 50u + 1u) != STATUS_OK) {
                    _exit(1);
                }
                if (n % 3u == 0) {
                    if (journal_commit(journal) != STATUS_OK) {
                        _exit(1);
                    }
                    atomic_store(acknowledged, n);
                }
            }
        }
        let_it_run(round, acknowledged);
        (void)kill(child, SIGKILL);
        int status = 0;
        (void)waitpid(child, &status, 0);
        cr_assert(WIFSIGNALED(status), "the child ended by itself");
        struct journal *journal = open_journal(JOURNAL_SYNC, false);
        struct journal_identity identity;
        struct journal_fault_report report;
        struct status_detail detail;
        (void)journal_identity(journal, &identity);
        cr_assert_geq(identity.last, atomic_load(acknowledged), "round %u", round);
        const enum status verified = journal_verify(journal, &report, &detail);
        cr_assert(verified == STATUS_OK || strstr(report.text, "not parsable") != NULL, "%s",
                  detail.text); /* these payloads are no protobuf: everything else must hold */
        total = identity.last;
        journal_close(journal);
    }
    cr_assert_gt(total, 100u, "the children did not get anywhere");
}

Test(journal, the_second_writer_is_refused_with_the_pid_of_the_first)
{
    struct journal *journal = open_journal(JOURNAL_SYNC, false);
    int pipe_fds[2];
    char text[STATUS_DETAIL_BYTES] = "";
    char pid[32];
    cr_assert_eq(pipe(pipe_fds), 0);
    const pid_t child = fork();
    if (child == 0) {
        const struct journal_options options = {.path = directory};
        struct journal *second = NULL;
        struct status_detail detail = {"opened", 0};
        (void)journal_open(&options, &second, &detail);
        (void)!write(pipe_fds[1], detail.text, strlen(detail.text));
        _exit(0);
    }
    (void)waitpid(child, NULL, 0);
    cr_assert_gt(read(pipe_fds[0], text, sizeof text - 1u), 0);
    (void)snprintf(pid, sizeof pid, "process %ld has it", (long)getpid());
    cr_assert_not_null(strstr(text, pid), "%s", text);
    journal_close(journal);
}

Test(journal, a_disk_that_fails_leaves_the_batch_unwritten_and_the_rest_readable)
{
    struct journal *journal = open_journal(JOURNAL_SYNC, false);
    struct journal_record record;
    struct journal_identity identity;
    cr_assert_eq(append(journal, 1, 1), STATUS_OK);
    cr_assert_eq(journal_commit(journal), STATUS_OK);
    /* Four appends, the commit, its flush; then nothing is left that could fail. */
    for (uint32_t nth = 0; nth < 7u; nth++) {
        bool failed = false;
        const enum status wanted = nth % 2u == 0 ? STATUS_JOURNAL_FULL : STATUS_JOURNAL_IO;
        (void)journal_identity(journal, &identity);
        journal_fault(journal, wanted, nth);
        for (uint64_t i = 1; i <= 4u && !failed; i++) {
            failed = append(journal, identity.last + i, 2) != STATUS_OK;
        }
        failed = failed || journal_commit(journal) != STATUS_OK;
        journal_fault(journal, STATUS_OK, 0);
        cr_assert(failed == (nth < 6u), "the %u-th call", nth);
        struct journal_identity after;
        (void)journal_identity(journal, &after);
        /* After a flush that failed the batch is there, and nobody may be told of it. */
        cr_assert_eq(after.last, nth < 5u ? identity.last : identity.last + 4u);
        cr_assert_eq(journal_durable(journal), failed ? identity.last : identity.last + 4u);
        cr_assert_eq(journal_read(journal, identity.last, &record), STATUS_OK);
        cr_assert_eq(append(journal, after.last + 1u, 2), STATUS_OK);
        cr_assert_eq(journal_commit(journal), STATUS_OK);
        cr_assert_eq(journal_durable(journal), after.last + 1u);
    }
    journal_close(journal);
}

Test(journal, a_map_that_is_too_small_says_so)
{
    const struct journal_options options = {
        .path = directory, .mode = JOURNAL_NO_SYNC, .map_bytes_max = 1u << 20};
    struct journal *journal = NULL;
    struct status_detail detail;
    enum status status = journal_open(&options, &journal, &detail);
    cr_assert_eq(status, STATUS_OK);
    uint64_t n = 0;
    while (status == STATUS_OK && n < 100000u) {
        n++;
        status = append(journal, n, n);
        status = status == STATUS_OK ? journal_commit(journal) : status;
    }
    cr_assert_eq(status, STATUS_JOURNAL_FULL);
    cr_assert_not_null(strstr(journal_detail(journal)->text, "journal.map_max"), "%s",
                       journal_detail(journal)->text);
    struct journal_identity identity;
    (void)journal_identity(journal, &identity);
    cr_assert_eq(identity.last, n - 1u);
    journal_close(journal);
}

/* ---- with a machine
 * ----------------------------------------------------------------------------------------- */

static enum status replay(struct recording *r, bool from_snapshot, struct journal_replayed *out,
                          uint64_t *out_digest)
{
    struct journal_machine machine;
    struct journal_replay options;
    struct status_detail detail = {"", 0};
    memset(&options, 0, sizeof options);
    options.from_snapshot = from_snapshot;
    options.check = true;
    cr_assert_eq(journal_machine_open(&machine, &detail), STATUS_OK);
    const enum status status = journal_replay(r->journal, &machine, &options, out, &detail);
    if (status != STATUS_OK) {
        fprintf(stderr, "replay: %s\n", detail.text);
    }
    *out_digest = machine.sm != NULL ? sm_digest(machine.sm) : 0;
    journal_machine_close(&machine);
    return status;
}

Test(journal, replay_is_identical_from_the_start_and_from_a_snapshot)
{
    struct recording r = {0};
    struct journal_replayed all;
    struct journal_replayed tail;
    uint64_t digest_all = 0;
    uint64_t digest_tail = 0;
    record_run(&r, 0);
    cr_assert_eq(replay(&r, false, &all, &digest_all), STATUS_OK);
    cr_assert_eq(replay(&r, true, &tail, &digest_tail), STATUS_OK);
    cr_assert_eq(all.entries, 302u);
    cr_assert_eq(tail.started_at, 153u);
    cr_assert_eq(tail.entries, 302u - 153u);
    cr_assert_eq(digest_all, sm_digest(r.machine.sm));
    cr_assert_eq(digest_tail, digest_all);
    cr_assert_eq(all.violation.invariant, 0u);
    journal_close(r.journal);
}

Test(journal, a_changed_entry_is_the_first_difference)
{
    struct recording r = {0};
    struct journal_replayed replayed;
    uint64_t digest = 0;
    record_run(&r, 77);
    cr_assert_eq(replay(&r, false, &replayed, &digest), STATUS_JOURNAL_DIVERGED);
    cr_assert_eq(replayed.divergence.number, 77u);
    cr_assert_gt(strlen(replayed.divergence.recorded), 0u);
    cr_assert_gt(strlen(replayed.divergence.replayed), 0u);
    cr_assert_str_neq(replayed.divergence.recorded, replayed.divergence.replayed);
    journal_close(r.journal);
}

/* Every bit of the frames and payloads of some entries, flipped in every copy that the file has. */
Test(journal, every_flipped_bit_of_an_entry_is_found)
{
    struct recording r = {0};
    struct journal_record record;
    char path[96];
    uint32_t flips = 0;
    record_run(&r, 0);
    cr_assert_eq(journal_read(r.journal, 40, &record), STATUS_OK);
    const size_t size = record.payload_size + 56u;
    unsigned char *frame = malloc(size);
    memcpy(frame, record.payload - 56, size);
    journal_close(r.journal);
    (void)snprintf(path, sizeof path, "%s/00000000000000000001.mdb", directory);
    FILE *file = fopen(path, "rb+");
    cr_assert_not_null(file);
    (void)fseek(file, 0, SEEK_END);
    const size_t length = (size_t)ftell(file);
    unsigned char *bytes = malloc(length);
    (void)fseek(file, 0, SEEK_SET);
    cr_assert_eq(fread(bytes, 1, length, file), length);
    size_t at = 0;
    while (at + size <= length && memcmp(bytes + at, frame, size) != 0) {
        at++;
    }
    cr_assert_lt(at + size, length, "the entry is not in the file");
    for (size_t bit = 0; bit < size * 8u; bit += 5u) {
        struct journal_fault_report report;
        struct status_detail detail;
        const unsigned char flipped = bytes[at + bit / 8u] ^ (unsigned char)(1u << bit % 8u);
        (void)fseek(file, (long)(at + bit / 8u), SEEK_SET);
        cr_assert_eq(fputc(flipped, file), flipped);
        (void)fflush(file);
        const enum status status = journal_verify_in_child(directory, &report, &detail);
        cr_assert_eq(status, STATUS_JOURNAL_DAMAGED, "bit %zu was not seen", bit);
        cr_assert(report.crashed || report.first_fault == 40u, "bit %zu: entry %llu", bit,
                  (unsigned long long)report.first_fault);
        (void)fseek(file, (long)(at + bit / 8u), SEEK_SET);
        (void)fputc(bytes[at + bit / 8u], file);
        (void)fflush(file);
        flips++;
    }
    cr_assert_gt(flips, 100u);
    (void)fclose(file);
}

/* ---- the gate
 * --------------------------------------------------------------------------------------------------
 */

Test(gate, effects_wait_for_their_entry_except_the_journals_own)
{
    struct gate *gate = NULL;
    struct status_detail detail;
    struct sm_output *out = calloc(1, sizeof *out);
    uint64_t number = 0;
    char reason[] = "a reason";
    struct sm_run run = {5, 6};
    cr_assert_eq(gate_create(1u << 20, &gate, &detail), STATUS_OK);
    for (uint64_t n = 1; n <= 4u; n++) {
        out->effect_count = 2;
        out->effects[0].kind = SM_FX_TELL;
        out->effects[0].room = n;
        out->effects[0].u.tell.cause.reason = (struct sm_text){reason, 8};
        out->effects[1].kind = SM_FX_PAGES_FREE;
        out->effects[1].room = n;
        out->effects[1].u.pages = (struct sm_runs){&run, 1};
        out->effects[0].without_journal = n == 3u;
        gate_push(gate, n, out);
    }
    memset(reason, 'x', 8); /* copies are deep */
    run.first = 99;
    const struct sm_effect *effect = gate_pop(gate, 0, &number);
    cr_assert_eq(effect->room, 3u, "only the journal's own may leave");
    cr_assert_null(gate_pop(gate, 0, &number));
    for (uint64_t n = 1; n <= 2u; n++) {
        effect = gate_pop(gate, 2, &number);
        cr_assert_eq(number, n);
        cr_assert_eq(memcmp(effect->u.tell.cause.reason.bytes, "a reason", 8), 0);
        effect = gate_pop(gate, 2, &number);
        cr_assert_eq(effect->u.pages.at[0].first, 5u);
    }
    cr_assert_null(gate_pop(gate, 2, &number));
    gate_drop_after(gate, 3);
    effect = gate_pop(gate, 10, &number);
    cr_assert_eq(number, 3u);
    cr_assert_null(gate_pop(gate, 10, &number), "what was dropped has left");
    cr_assert_eq(gate_waiting(gate), 0u);
    gate_destroy(gate);
    free(out);
}
