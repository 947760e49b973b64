/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: a journal goes over into another, each replays by itself, a room's history crosses
 * them, old ones go and give their space back, a reader that stands still or reads on does not
 * matter, and kill -9 while one begins loses nothing.
 */
#include "recording.h"

#include "journal/journal_verify.h"
#include "journal/journal_writer.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COMMANDS 300u
#define NOW UINT64_C(1000000000000)

TestSuite(segments, .init = make_directory, .fini = remove_directory, .timeout = 120);

static void another_segment(struct recording *r, uint64_t now_ns)
{
    cr_assert_eq(journal_commit(r->journal), STATUS_OK);
    cr_assert_eq(journal_segment_begin(r->journal, now_ns), STATUS_OK);
    record_snapshot(r);
    cr_assert_eq(journal_segment_end(r->journal), STATUS_OK, "%s",
                 journal_detail(r->journal)->text);
}

/* 300 commands in six segments; the k-th begins at wall time NOW + k. */
static void record_segments(struct recording *r, enum journal_mode mode)
{
    record_begin(r, mode, 0);
    for (uint64_t i = 0; i < COMMANDS; i++) {
        record_command(r, i, 0);
        /* In the middle of a room: one command of three is left for the next segment. */
        if (i % 50u == 49u && i + 1u < COMMANDS) {
            another_segment(r, NOW + i / 50u + 1u);
        }
    }
    cr_assert_eq(journal_commit(r->journal), STATUS_OK);
}

static void expect_well(uint64_t entries)
{
    struct journal_fault_report report;
    struct status_detail detail = {"", 0};
    cr_assert_eq(journal_verify_in_child(directory, &report, &detail), STATUS_OK, "%s",
                 detail.text);
    cr_assert_eq(report.entries, entries);
}

static enum status replay_all(struct journal *journal, uint64_t until, bool from_snapshot,
                              struct journal_replayed *out, uint64_t *out_digest)
{
    struct journal_machine machine;
    const struct journal_replay options = {
        .until = until, .from_snapshot = from_snapshot, .check = true};
    struct status_detail detail = {"", 0};
    cr_assert_eq(journal_machine_open(&machine, &detail), STATUS_OK);
    const enum status status = journal_replay(journal, &machine, &options, out, &detail);
    *out_digest = machine.sm != NULL ? sm_digest(machine.sm) : 0;
    journal_machine_close(&machine);
    return status;
}

static uint32_t history_length(struct journal *journal, uint64_t room)
{
    struct journal_record record;
    uint64_t number = 0;
    uint32_t count = 0;
    enum status status = journal_room_last(journal, room, &number);
    while (status == STATUS_OK) {
        cr_assert_eq(journal_read(journal, number, &record), STATUS_OK);
        cr_assert_eq(record.room, room);
        count++;
        status = journal_room_before(journal, &record, &number);
    }
    cr_assert_eq(status, STATUS_END);
    return count;
}

Test(segments, entries_rooms_and_replay_cross_them)
{
    struct recording r = {0};
    struct journal_replayed replayed;
    struct journal_record record;
    uint64_t digest = 0;
    record_segments(&r, JOURNAL_SYNC);
    const uint64_t last = r.next - 1u;
    cr_assert_eq(journal_segment_count(r.journal), 6u);
    for (uint32_t handle = 0; handle < 2u; handle++) {
        struct journal *journal = handle == 0 ? r.journal : open_journal(JOURNAL_SYNC, true);
        for (uint64_t number = 1; number <= last; number++) {
            cr_assert_eq(journal_read(journal, number, &record), STATUS_OK);
            cr_assert_eq(record.number, number);
        }
        cr_assert_eq(journal_read(journal, last + 1u, &record), STATUS_NOT_FOUND);
        uint64_t room = 0;
        uint64_t number = 0;
        uint32_t rooms = 0;
        while (journal_room_next(journal, room, &room, &number) == STATUS_OK) {
            cr_assert_eq(room, ++rooms);
            cr_assert_eq(history_length(journal, room), 3u, "room %u", rooms);
            cr_assert_eq(journal_read(journal, number, &record), STATUS_OK);
            cr_assert_eq(record.room, room);
        }
        cr_assert_eq(rooms, COMMANDS / 3u);
        cr_assert_eq(replay_all(journal, 0, false, &replayed, &digest), STATUS_OK);
        cr_assert_eq(replayed.entries, last);
        cr_assert_eq(digest, sm_digest(r.machine.sm));
        cr_assert_eq(replay_all(journal, 0, true, &replayed, &digest), STATUS_OK);
        cr_assert_eq(replayed.started_at, 252u, "the snapshot that the newest segment begins with");
        cr_assert_eq(digest, sm_digest(r.machine.sm));
        /* Up to the last entry of a segment, and to the first of the next. */
        cr_assert_eq(replay_all(journal, 252, true, &replayed, &digest), STATUS_OK);
        cr_assert_eq(replayed.entries, 0u);
        cr_assert_eq(replay_all(journal, 251, true, &replayed, &digest), STATUS_OK);
        cr_assert_eq(replayed.started_at, 202u);
        if (handle == 1u) {
            journal_close(journal);
        }
    }
    journal_close(r.journal);
    expect_well(last);
    r.journal = open_journal(JOURNAL_SYNC, false);
    record_command(&r, COMMANDS, 0);
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    journal_close(r.journal);
    expect_well(last + 1u);
}

Test(segments, one_that_is_given_up_never_was)
{
    struct recording r = {0};
    record_begin(&r, JOURNAL_SYNC, 0);
    record_command(&r, 0, 0);
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    cr_assert_eq(journal_segment_begin(r.journal, NOW), STATUS_OK);
    record_snapshot(&r);
    journal_abort(r.journal);
    cr_assert_eq(journal_segment_count(r.journal), 1u);
    record_command(&r, 1, 0);
    cr_assert_eq(journal_segment_begin(r.journal, NOW), STATUS_INVALID, "in an open batch");
    record_command(&r, 2, 0);
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    cr_assert_eq(journal_segment_begin(r.journal, NOW), STATUS_OK);
    cr_assert_eq(journal_commit(r.journal), STATUS_INVALID, "begun and not ended");
    journal_close(r.journal);
    expect_well(r.next - 1u);
}

/* Two segments of one name: trimming the older one took the file of both. */
Test(segments, one_without_an_entry_is_replaced)
{
    const struct journal_retention one_only = {1, 0};
    struct recording r = {0};
    uint32_t removed = 0;
    record_begin(&r, JOURNAL_SYNC, 0);
    record_command(&r, 0, 0);
    another_segment(&r, NOW);
    const uint64_t last = r.next - 1u;
    cr_assert_eq(journal_segment_count(r.journal), 2u);
    cr_assert_not(journal_segment_full(r.journal));
    another_segment(&r, NOW + 1u);
    cr_assert_eq(journal_segment_count(r.journal), 2u);
    cr_assert_eq(journal_trim(r.journal, &one_only, NOW + 2u, &removed), STATUS_OK);
    cr_assert_eq(removed, 1u);
    record_command(&r, 1, 0);
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    journal_close(r.journal);
    expect_well(r.next - 1u - last);
}

/* A power loss while a journal is made must not leave a directory that no program opens. */
Test(segments, a_new_journal_is_whole_or_was_never_there)
{
    const struct journal_options reading = {.path = directory, .read_only = true};
    struct journal *reader = NULL;
    struct status_detail detail;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/next.mdb", directory);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite("half of one", 1, 11, file), 11u);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(journal_open(&reading, &reader, &detail), STATUS_NOT_FOUND, "%s", detail.text);
    struct recording r = {0};
    record_begin(&r, JOURNAL_SYNC, 0);
    record_command(&r, 0, 0);
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    journal_close(r.journal);
    cr_assert_neq(access(path, F_OK), 0);
    expect_well(r.next - 1u);
}

static void leave_running(const char *boot)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/RUNNING", directory);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(boot, 1, strlen(boot), file), strlen(boot));
    cr_assert_eq(fclose(file), 0);
}

/* What mode process may lose is told once, and only when the system went down under it. */
Test(segments, a_loss_that_power_may_have_caused_is_told)
{
    for (enum journal_mode mode = JOURNAL_SYNC; mode <= JOURNAL_PROCESS; mode++) {
        struct journal *journal = open_journal(JOURNAL_PROCESS, false);
        cr_assert_not(journal_power_lost(journal));
        journal_close(journal);
        journal = open_journal(mode, false);
        cr_assert_not(journal_power_lost(journal), "it was closed");
        journal_close(journal);
        leave_running("another boot\n");
        journal = open_journal(JOURNAL_SYNC, false);
        journal_close(journal); /* nobody asked: not told yet */
        journal = open_journal(mode, false);
        cr_assert(journal_power_lost(journal));
        cr_assert_not(journal_power_lost(journal));
        journal_close(journal);
        journal = open_journal(JOURNAL_SYNC, false);
        cr_assert_not(journal_power_lost(journal));
        journal_close(journal);
    }
}

Test(segments, the_oldest_go_by_age_and_by_size_and_the_rest_replays)
{
    struct recording r = {0};
    struct journal_identity identity;
    struct journal_replayed replayed;
    struct journal_record record;
    struct journal_segment segment;
    uint64_t digest = 0;
    uint32_t removed = 0;
    record_segments(&r, JOURNAL_SYNC);
    const uint64_t last = r.next - 1u;
    struct journal *reader = open_journal(JOURNAL_SYNC, true);
    cr_assert_eq(journal_read(reader, 10, &record), STATUS_OK);
    /* What began at NOW + 3 ended the segment before: entries older than that go. */
    const struct journal_retention by_age = {0, 1000};
    cr_assert_eq(journal_trim(r.journal, &by_age, NOW + 1000u + 3u, &removed), STATUS_OK);
    cr_assert_eq(removed, 2u);
    (void)journal_identity(r.journal, &identity);
    cr_assert_eq(identity.first, 103u);
    cr_assert_eq(identity.last, last);
    cr_assert_eq(journal_segment_at(r.journal, 0, &segment), STATUS_OK);
    cr_assert_eq(segment.began_ns, NOW + 2u);
    (void)journal_identity(reader, &identity);
    cr_assert_eq(identity.first, 103u, "a reader sees it too");
    cr_assert_eq(journal_read(reader, 10, &record), STATUS_NOT_FOUND);
    cr_assert_not_null(strstr(journal_detail(reader)->text, "trimmed"));
    cr_assert_eq(replay_all(reader, 0, false, &replayed, &digest), STATUS_OK);
    cr_assert_eq(replayed.started_at, 102u);
    cr_assert_eq(digest, sm_digest(r.machine.sm));
    expect_well(last - 102u);
    const struct journal_retention by_size = {1, 0};
    cr_assert_eq(journal_trim(r.journal, &by_size, NOW, &removed), STATUS_OK);
    cr_assert_eq(removed, 3u, "never the newest");
    cr_assert_eq(replay_all(reader, 0, false, &replayed, &digest), STATUS_OK);
    cr_assert_eq(digest, sm_digest(r.machine.sm));
    journal_close(reader);
    journal_close(r.journal);
    expect_well(last - 252u);
}

/* A node trims while somebody verifies: what is left is well, and what a hand took away is not. */
Test(segments, one_that_is_trimmed_during_a_verification_is_no_fault)
{
    struct recording r = {0};
    struct journal_fault_report report;
    struct status_detail detail = {"", 0};
    char path[128];
    uint32_t removed = 0;
    record_segments(&r, JOURNAL_NO_SYNC);
    struct journal *reader = open_journal(JOURNAL_SYNC, true); /* has read the directory */
    const struct journal_retention by_age = {0, 1000};
    cr_assert_eq(journal_trim(r.journal, &by_age, NOW + 1000u + 3u, &removed), STATUS_OK);
    cr_assert_eq(removed, 2u);
    cr_assert_eq(journal_verify(reader, &report, &detail), STATUS_OK, "%s", detail.text);
    cr_assert_eq(report.entries, r.next - 1u - 102u);
    journal_close(reader);
    reader = open_journal(JOURNAL_SYNC, true);
    (void)snprintf(path, sizeof path, "%s/%020u.mdb", directory, 153u);
    cr_assert_eq(unlink(path), 0);
    cr_assert_neq(journal_verify(reader, &report, &detail), STATUS_OK, "a hole is not seen");
    journal_close(reader);
    journal_close(r.journal);
}

/* A lost, a foreign and a cut segment are each found. */
Test(segments, one_that_is_missing_or_of_another_journal_is_found)
{
    struct recording r = {0};
    struct journal_fault_report report;
    struct status_detail detail;
    char command[256];
    record_segments(&r, JOURNAL_NO_SYNC);
    journal_close(r.journal);
    (void)snprintf(command, sizeof command, "mv %s/%020u.mdb %s/away", directory, 103u, directory);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(journal_verify_in_child(directory, &report, &detail), STATUS_JOURNAL_DAMAGED);
    cr_assert_eq(report.first_fault, 103u, "%s", detail.text);
    cr_assert_not_null(strstr(detail.text, "segment"), "%s", detail.text);
    (void)snprintf(command, sizeof command, "cp %s/%020u.mdb %s/%020u.mdb", directory, 53u,
                   directory, 103u);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(journal_verify_in_child(directory, &report, &detail), STATUS_JOURNAL_DAMAGED);
    cr_assert_not_null(strstr(detail.text, "the head of another one"), "%s", detail.text);
    (void)snprintf(command, sizeof command, "mv %s/away %s/%020u.mdb", directory, directory, 103u);
    cr_assert_eq(system(command), 0);
    expect_well(r.next - 1u);
}

/* ---- versions of the machine
 * ---------------------------------------------------------------------------------------- */

/* What a node of this version does with the journal of an older one. */
static enum status take_over(struct journal *journal, struct journal_machine *machine,
                             struct journal_replayed *out, struct status_detail *out_detail)
{
    const struct journal_replay options = {.from_snapshot = true, .upgrade = true};
    cr_assert_eq(journal_machine_open(machine, out_detail), STATUS_OK);
    return journal_replay(journal, machine, &options, out, out_detail);
}

Test(segments, another_version_takes_over_at_a_graceful_stop_and_only_there)
{
    struct recording r = {.version = SM_MACHINE_VERSION - 1u};
    struct journal_replayed replayed;
    struct journal_machine machine;
    struct status_detail detail = {"", 0};
    uint64_t digest = 0;
    record_begin(&r, JOURNAL_SYNC, 0);
    for (uint64_t i = 0; i < 30u; i++) {
        record_command(&r, i, 0);
    }
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    cr_assert_eq(take_over(r.journal, &machine, &replayed, &detail), STATUS_JOURNAL_VERSION);
    cr_assert_not_null(strstr(detail.text, "stop it gracefully"), "%s", detail.text);
    journal_machine_close(&machine);
    record_snapshot(&r); /* as a graceful stop leaves it */
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    const uint64_t end = r.next - 1u;
    cr_assert_eq(take_over(r.journal, &machine, &replayed, &detail), STATUS_OK, "%s", detail.text);
    cr_assert_eq(replayed.started_at, end);
    cr_assert_eq(replayed.version, SM_MACHINE_VERSION - 1u);
    cr_assert_eq(sm_digest(machine.sm), sm_digest(r.machine.sm));
    cr_assert_eq(journal_machine_begin_segment(r.journal, &machine, NOW, &detail), STATUS_OK);
    journal_machine_close(&machine);
    r.version = 0;
    for (uint64_t i = 30; i < 60u; i++) {
        record_command(&r, i, 0);
    }
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    /* Replay runs what is its own, and says what it left out. */
    cr_assert_eq(replay_all(r.journal, 0, false, &replayed, &digest), STATUS_OK);
    cr_assert_eq(replayed.skipped, SM_MACHINE_VERSION - 1u);
    cr_assert_eq(replayed.started_at, end);
    cr_assert_eq(replayed.entries, 30u);
    cr_assert_eq(digest, sm_digest(r.machine.sm));
    cr_assert_eq(take_over(r.journal, &machine, &replayed, &detail), STATUS_OK);
    cr_assert_eq(replayed.version, SM_MACHINE_VERSION);
    journal_machine_close(&machine);
    journal_close(r.journal);
    expect_well(r.next - 1u);
}

Test(segments, an_older_snapshot_is_none_where_more_entries_follow)
{
    struct recording r = {.version = SM_MACHINE_VERSION - 1u};
    struct journal_replayed replayed;
    struct journal_machine machine;
    struct status_detail detail = {"", 0};
    record_begin(&r, JOURNAL_SYNC, 0);
    record_command(&r, 0, 0);
    record_snapshot(&r);
    record_command(&r, 1, 0);
    cr_assert_eq(journal_commit(r.journal), STATUS_OK);
    cr_assert_eq(take_over(r.journal, &machine, &replayed, &detail), STATUS_JOURNAL_VERSION);
    journal_machine_close(&machine);
    journal_close(r.journal);
}

/* ---- through the writer
 * ---------------------------------------------------------------------------------------- */

struct submitted {
    struct journal_writer *writer;
    uint64_t next;
    int wake_fd;
};

static void submit_entry(struct submitted *s, size_t size)
{
    unsigned char *slot = NULL;
    while (slot == NULL) {
        slot = writer_begin(s->writer, s->next, 1u + s->next % 500u, NULL, 0, size);
    }
    memset(slot, (int)(s->next & 255u), size);
    writer_submit(s->writer);
    s->next++;
}

static void submit_snapshot(struct submitted *s)
{
    unsigned char bytes[3000];
    memset(bytes, 7, sizeof bytes);
    for (uint32_t index = 0; index < 5u; index++) {
        while (!writer_snapshot_item(s->writer, s->next - 1u, index, NOW + s->next, bytes,
                                     sizeof bytes)) {
        }
    }
    while (!writer_snapshot_end(s->writer, s->next - 1u)) {
    }
}

static void wait_durable(const struct submitted *s)
{
    struct status_detail detail;
    while (writer_durable(s->writer) < s->next - 1u) {
        cr_assert_eq(writer_failure(s->writer, &detail), STATUS_OK, "%s", detail.text);
        (void)usleep(200);
    }
}

static void start_in_mode(struct submitted *s, enum journal_mode mode, uint64_t segment_bytes,
                          uint64_t keep_bytes)
{
    const struct journal_options options = {
        .path = directory, .mode = mode, .segment_bytes = segment_bytes};
    struct journal *journal = NULL;
    struct journal_identity identity;
    struct status_detail detail;
    cr_assert_eq(journal_open(&options, &journal, &detail), STATUS_OK, "%s", detail.text);
    (void)journal_identity(journal, &identity);
    s->next = identity.last + 1u;
    s->wake_fd = eventfd(0, EFD_NONBLOCK);
    const struct writer_options writer = {s->wake_fd, {keep_bytes, 0}};
    cr_assert_eq(writer_start(journal, &writer, &s->writer, &detail), STATUS_OK);
}

static void start(struct submitted *s, uint64_t segment_bytes, uint64_t keep_bytes)
{
    start_in_mode(s, JOURNAL_SYNC, segment_bytes, keep_bytes);
}

static uint64_t bytes_on_disk(void)
{
    struct journal *reader = open_journal(JOURNAL_SYNC, true);
    const uint32_t count = journal_segment_count(reader);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct journal_segment segment;
        if (journal_segment_at(reader, i, &segment) == STATUS_OK) {
            bytes += segment.bytes;
        }
    }
    journal_close(reader);
    return bytes;
}

Test(segments, a_reader_that_stands_still_does_not_make_it_grow)
{
    struct submitted s;
    struct journal_record record;
    struct writer_counters counters;
    start(&s, 256u << 10, 2u << 20);
    submit_entry(&s, 300);
    wait_durable(&s);
    /* It reads one entry, and never lets go of what it saw. */
    struct journal *reader = open_journal(JOURNAL_SYNC, true);
    cr_assert_eq(journal_read(reader, 1, &record), STATUS_OK);
    for (uint32_t i = 0; i < 40000u; i++) {
        submit_entry(&s, 300);
        if (writer_wants_snapshot(s.writer) && i % 200u == 0) {
            submit_snapshot(&s);
        }
        if (i % 10u == 0) {
            wait_durable(&s); /* small batches: the case in which LMDB reuses pages most */
        }
    }
    wait_durable(&s);
    writer_counters(s.writer, &counters);
    cr_assert_gt(counters.segments_begun, 20u);
    cr_assert_eq(counters.segment_failures, 0u);
    cr_assert_gt(counters.segments_removed, 10u);
    /* 40,000 entries take 14 MB; what is kept is bounded, with a segment's share above it. */
    cr_assert_lt(bytes_on_disk(), (2u << 20) + (1u << 20));
    journal_close(reader);
    journal_close(writer_stop(s.writer));
    (void)close(s.wake_fd);
}

Test(segments, a_snapshot_that_breaks_off_gives_no_segment_and_loses_no_entry)
{
    struct submitted s;
    struct writer_counters counters;
    const unsigned char bytes[16] = {0};
    start(&s, 4096, 0);
    for (uint32_t i = 0; i < 20u; i++) {
        submit_entry(&s, 100);
        wait_durable(&s);
        cr_assert(writer_snapshot_item(s.writer, s.next - 1u, 0, NOW, bytes, sizeof bytes));
    }
    submit_entry(&s, 100);
    wait_durable(&s);
    writer_counters(s.writer, &counters);
    cr_assert_eq(counters.segments_begun, 0u);
    cr_assert_eq(counters.segment_failures, 20u);
    submit_snapshot(&s);
    submit_entry(&s, 100);
    wait_durable(&s);
    writer_counters(s.writer, &counters);
    cr_assert_eq(counters.segments_begun, 1u);
    journal_close(writer_stop(s.writer));
    (void)close(s.wake_fd);
}

/* The same where no segment is due: half of one in the journal would look like damage. */
Test(segments, a_snapshot_that_breaks_off_is_not_in_the_journal)
{
    struct submitted s;
    const unsigned char bytes[16] = {0};
    uint64_t entry = 0;
    start(&s, 0, 0);
    for (uint32_t i = 0; i < 20u; i++) {
        submit_entry(&s, 100);
        wait_durable(&s);
        cr_assert(writer_snapshot_item(s.writer, s.next - 1u, 0, NOW, bytes, sizeof bytes));
        cr_assert(writer_snapshot_item(s.writer, s.next - 1u, 1, NOW, bytes, sizeof bytes));
        /* The thread has seen them, or has not: neither matters. */
        (void)usleep(i % 2u == 0 ? 2000 : 0);
    }
    submit_entry(&s, 100);
    wait_durable(&s);
    struct journal *journal = open_journal(JOURNAL_SYNC, true);
    cr_assert_eq(journal_snapshot_newest(journal, s.next, &entry), STATUS_NOT_FOUND, "at %u",
                 (unsigned)entry);
    submit_snapshot(&s);
    submit_entry(&s, 100);
    wait_durable(&s);
    journal_read_pause(journal);
    cr_assert_eq(journal_snapshot_newest(journal, s.next, &entry), STATUS_OK);
    cr_assert_eq(entry, s.next - 2u);
    journal_close(journal);
    journal_close(writer_stop(s.writer));
    (void)close(s.wake_fd);
}

/* A new journal, a segment in between, and the journal opened again: each has been a way to hear
 * nothing more. */
Test(segments, each_mode_says_when_it_is_durable)
{
    for (enum journal_mode mode = JOURNAL_SYNC; mode <= JOURNAL_NO_SYNC; mode++) {
        struct writer_counters counters;
        for (uint32_t life = 0; life < 2u; life++) {
            struct submitted s;
            start_in_mode(&s, mode, 4096, 0);
            submit_entry(&s, 100);
            wait_durable(&s);
            submit_snapshot(&s);
            submit_entry(&s, 100);
            wait_durable(&s);
            writer_counters(s.writer, &counters);
            cr_assert_eq(counters.segments_begun, 1u);
            cr_assert_eq(counters.failures, 0u);
            journal_close(writer_stop(s.writer));
            (void)close(s.wake_fd);
        }
    }
}

static void write_until_killed(_Atomic uint64_t *acknowledged)
{
    struct submitted s;
    start(&s, 64u << 10, 512u << 10);
    for (uint32_t i = 0;; i++) {
        submit_entry(&s, 200);
        if (i % 20u == 0) {
            wait_durable(&s);
            atomic_store(acknowledged, s.next - 1u);
        }
        if (writer_wants_snapshot(s.writer) && i % 20u == 5u) {
            submit_snapshot(&s);
        }
    }
}

Test(segments, kill_9_while_they_begin_and_go_loses_nothing)
{
    _Atomic uint64_t *acknowledged =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct journal_identity identity = {0};
    for (uint32_t round = 0; round < 40u; round++) {
        const pid_t child = fork();
        if (child == 0) {
            write_until_killed(acknowledged);
        }
        (void)usleep(20000u + round * 7919u % 60000u);
        (void)kill(child, SIGKILL);
        int status = 0;
        (void)waitpid(child, &status, 0);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "round %u", round);
        struct journal *journal = open_journal(JOURNAL_SYNC, false);
        struct journal_fault_report report;
        struct status_detail detail;
        (void)journal_identity(journal, &identity);
        cr_assert_geq(identity.last, atomic_load(acknowledged), "round %u", round);
        const enum status verified = journal_verify(journal, &report, &detail);
        cr_assert(verified == STATUS_OK || strstr(report.text, "not parsable") != NULL, "%s",
                  detail.text); /* these payloads are no protobuf: everything else must hold */
        journal_close(journal);
    }
    cr_assert_gt(identity.first, 1u, "no segment was ever removed");
}
