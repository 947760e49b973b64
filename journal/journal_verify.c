/* SPDX-License-Identifier: Apache-2.0 */
/* Verification, in this process or in a child. */
#include "journal/journal_verify.h"

#include "bundle_private.h"
#include "journal_private.h"
#include "schemas/codec.h"
#include "verify_look.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)96 << 20)

void look_note(struct look *look, uint64_t number, const char *what)
{
    struct journal_fault_report *report = look->report;
    report->faults++;
    if (report->first_fault == 0) {
        report->first_fault = number;
        (void)snprintf(report->text, sizeof report->text, "entry %" PRIu64 " is %s", number, what);
    }
}

/* Whether each room besides its own that the entry is about can find it. */
static bool others_indexed(const struct look *look, uint64_t number,
                           const struct codec_entry *entry)
{
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        unsigned char raw[16];
        MDB_val value;
        const uint64_t room = entry->transitions[i].room;
        journal_also_key(raw, room, number);
        MDB_val key = {sizeof raw, raw};
        if (room != 0 && room != entry->input.room &&
            mdb_get(look->txn, look->segment->also, &key, &value) != MDB_SUCCESS) {
            return false;
        }
    }
    return true;
}

static bool room_indexed(const struct look *look, uint64_t number, uint64_t room)
{
    MDB_val key = {sizeof room, &room};
    MDB_val last;
    uint64_t newest = 0;
    if (room != 0 && mdb_get(look->txn, look->segment->heads, &key, &last) == MDB_SUCCESS &&
        last.mv_size == sizeof newest) {
        memcpy(&newest, last.mv_data, sizeof newest);
    }
    return room == 0 || newest >= number;
}

/* One entry: frame, chain, parse, and its room's back-pointer. */
void look_at_frame(struct look *look, uint64_t number, const unsigned char *bytes, size_t size)
{
    struct journal_head head;
    const char *broken = NULL;
    uint64_t next[2];
    if (journal_frame_check(bytes, size, number, &head, &broken) != STATUS_OK) {
        look_note(look, number, broken);
        if (size >= JOURNAL_HEAD_BYTES) {
            memcpy(look->chain, head.chain, sizeof next); /* go on from what it claims */
        }
        return;
    }
    const unsigned char *payload = bytes + JOURNAL_HEAD_BYTES;
    journal_chain_next(look->chain, payload, head.payload_size, next);
    if (!look->chain_unknown && memcmp(next, head.chain, sizeof next) != 0) {
        look_note(look, number,
                  "out of the chain: an entry before it was altered, lost or swapped");
    }
    look->chain_unknown = false;
    memcpy(look->chain, head.chain, sizeof next);
    struct codec_entry entry;
    codec_arena_reset(&look->arena);
    if (codec_entry_unpack(payload, head.payload_size, &look->arena, &entry) != STATUS_OK) {
        look_note(look, number, "not parsable");
    } else if (entry.input.room != head.room) {
        look_note(look, number, "indexed under another room than its own");
    } else if (look->txn != NULL && !others_indexed(look, number, &entry)) {
        look_note(look, number, "missing in the index of a room that it is about");
    }
    if (look->txn != NULL && !room_indexed(look, number, head.room)) {
        look_note(look, number, "missing in the room index");
    }
}

static enum status walk_entries(struct look *look, MDB_cursor *cursor)
{
    MDB_val key;
    MDB_val value;
    int code = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    while (code == MDB_SUCCESS) {
        uint64_t number = 0;
        if (key.mv_size == sizeof number) {
            memcpy(&number, key.mv_data, sizeof number);
        }
        if (number != look->expected) {
            look_note(look, look->expected, "missing");
        }
        look_at_frame(look, number, value.mv_data, value.mv_size);
        look->report->entries++;
        look->expected = number + 1u;
        code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    return code == MDB_NOTFOUND ? STATUS_OK
                                : journal_lmdb_status(look->journal, code, "it cannot be walked");
}

/* What a segment says of its beginning, against the end of the one before. */
static void verify_beginning(struct look *look, bool oldest)
{
    const struct segment_meta *meta = &look->meta;
    if (!oldest && meta->first != look->expected) {
        look_note(look, look->expected, "missing: its segment was removed or cut");
    } else if (!oldest && memcmp(meta->before, look->chain, sizeof look->chain) != 0) {
        look_note(look, meta->first, "in a segment that does not follow the one before it");
    }
    look->expected = meta->first;
    memcpy(look->chain, meta->before, sizeof look->chain);
}

static void verify_end(struct look *look)
{
    const struct segment_meta *meta = &look->meta;
    if (look->expected != meta->last + 1u) {
        look_note(look, look->expected, "missing: the journal's head knows later ones");
    } else if (memcmp(look->chain, meta->chain, sizeof look->chain) != 0) {
        look_note(look, meta->last, "not the one that the journal's head names");
    }
    look->expected = meta->last + 1u;
    memcpy(look->chain, meta->chain, sizeof look->chain);
}

static enum status verify_segment(struct look *look, bool oldest)
{
    MDB_cursor *cursor = NULL;
    /* One read transaction for the whole walk: head and entries must be of one moment. */
    TRY(segment_begin_reading(look->journal, look->segment, &look->txn));
    enum status status = segment_get_meta(look->journal, look->segment, look->txn, &look->meta);
    if (status == STATUS_OK) {
        status = journal_lmdb_status(look->journal,
                                     mdb_cursor_open(look->txn, look->segment->entries, &cursor),
                                     "it cannot be read");
    }
    if (status == STATUS_OK) {
        verify_beginning(look, oldest);
        status = walk_entries(look, cursor);
        mdb_cursor_close(cursor);
    }
    if (status == STATUS_OK) {
        verify_end(look);
    }
    mdb_txn_abort(look->txn);
    return status;
}

/* Where a segment begins there must be a snapshot, else it cannot be replayed without those before.
 */
static void verify_snapshot(struct look *look)
{
    const unsigned char *bytes = NULL;
    size_t size = 0;
    if (look->meta.first > 1u &&
        journal_snapshot_get(look->journal, look->meta.first - 1u, 0, &bytes, &size) != STATUS_OK) {
        look_note(
            look, look->meta.first,
            "in a segment that does not begin with a snapshot: it cannot be replayed by itself");
    }
}

enum status journal_verify(struct journal *journal, struct journal_fault_report *out_report,
                           struct status_detail *out_detail)
{
    struct look look;
    enum status status = STATUS_OK;
    if (journal->bundle != NULL) {
        return bundle_verify(journal->path, out_report, out_detail);
    }
    memset(out_report, 0, sizeof *out_report);
    memset(&look, 0, sizeof look);
    look.journal = journal;
    look.report = out_report;
    void *memory = malloc(ARENA_BYTES);
    if (memory == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to verify a journal");
    }
    codec_arena_init(&look.arena, memory, ARENA_BYTES);
    for (uint32_t i = 0; i < journal->segment_count && status == STATUS_OK; i++) {
        look.segment = &journal->segments[i];
        look.segment->used = ++journal->tick;
        status = verify_segment(&look, i == 0);
        if (status == STATUS_OK) {
            verify_snapshot(&look);
        }
    }
    journal_read_pause(journal);
    free(memory);
    if (status != STATUS_OK) {
        *out_detail = journal->detail;
        return status;
    }
    return out_report->faults == 0 ? STATUS_OK
                                   : status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                                                 "journal %s: %s", journal->path, out_report->text);
}

struct child_report {
    enum status status;
    struct journal_fault_report report;
    struct status_detail detail;
};

static void child(const char *path, int fd)
{
    struct child_report result;
    struct journal *journal = NULL;
    const struct journal_options options = {.path = path, .read_only = true};
    memset(&result, 0, sizeof result);
    struct stat info;
    const bool file = stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
    result.status = file ? bundle_verify(path, &result.report, &result.detail)
                         : journal_open(&options, &journal, &result.detail);
    if (result.status == STATUS_OK && !file) {
        result.status = journal_verify(journal, &result.report, &result.detail);
        journal_close(journal);
    }
    const ssize_t written = write(fd, &result, sizeof result);
    _exit(written == (ssize_t)sizeof result ? 0 : 1);
}

enum status journal_verify_in_child(const char *path, struct journal_fault_report *out_report,
                                    struct status_detail *out_detail)
{
    int fds[2];
    int wait_status = 0;
    struct child_report result;
    memset(out_report, 0, sizeof *out_report);
    if (pipe(fds) != 0) {
        return status_fail(STATUS_SYSTEM, out_detail, errno, "pipe: %s", strerror(errno));
    }
    const pid_t pid = fork();
    if (pid == 0) {
        (void)close(fds[0]);
        child(path, fds[1]);
    }
    (void)close(fds[1]);
    ssize_t size = -1;
    if (pid > 0) {
        do {
            size = read(fds[0], &result, sizeof result);
        } while (size < 0 && errno == EINTR);
        (void)waitpid(pid, &wait_status, 0);
    }
    (void)close(fds[0]);
    if (pid < 0) {
        return status_fail(STATUS_SYSTEM, out_detail, errno, "fork: %s", strerror(errno));
    }
    if (size != (ssize_t)sizeof result || WIFSIGNALED(wait_status)) {
        out_report->crashed = true;
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "journal %s: its pages are damaged: the process that read it died of "
                           "signal %d",
                           path, WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0);
    }
    *out_report = result.report;
    *out_detail = result.detail;
    return result.status;
}
