/* SPDX-License-Identifier: Apache-2.0 */
/* Verification, in this process or in a child. */
#include "journal/journal_verify.h"

#include "bundle_private.h"
#include "journal/journal_recover.h"
#include "journal_private.h"
#include "schemas/codec.h"
#include "verify_look.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)96 << 20)
/* After so many the rest is not looked at: pages that are damaged can be a maze. */
#define FAULTS_MAX 1000u
#define HEAD_TRIES 1000u
/* Of the page that is an LMDB file's head: a page's head (16), then MDB_meta. */
#define LMDB_META_BYTES 152u
#define LMDB_META_PAGE_SIZE 40u
#define LMDB_META_TXN 144u

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

/* Whether who asks for the entry by its number gets what stands in the row. */
static bool found_by_number(const struct look *look, uint64_t number, const MDB_val *value)
{
    MDB_val key = journal_val(&number, sizeof number);
    MDB_val found;
    return mdb_get(look->txn, look->segment->entries, &key, &found) == MDB_SUCCESS &&
           found.mv_data == value->mv_data && found.mv_size == value->mv_size;
}

static enum status cannot_be_walked(struct look *look, int code)
{
    char what[64];
    (void)snprintf(what, sizeof what, "entry %" PRIu64 " cannot be reached", look->expected);
    look->report->faults++;
    look->report->first_fault =
        look->report->first_fault == 0 ? look->expected : look->report->first_fault;
    return journal_lmdb_status(look->journal, code, what);
}

static enum status walk_entries(struct look *look, MDB_cursor *cursor)
{
    MDB_val key;
    MDB_val value;
    int code = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    while (code == MDB_SUCCESS && look->report->faults < FAULTS_MAX) {
        uint64_t number = 0;
        if (key.mv_size == sizeof number) {
            memcpy(&number, key.mv_data, sizeof number);
        }
        *look->at = number;
        if (number > look->expected) {
            look_note(look, look->expected, "missing");
        } else if (number < look->expected) {
            look_note(look, number, "repeated, or out of its order");
        } else if (!found_by_number(look, number, &value)) {
            look_note(look, number, "not found by its number");
        }
        look_at_frame(look, number, value.mv_data, value.mv_size);
        look->report->entries++;
        look->expected = number + 1u;
        code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    return code == MDB_NOTFOUND || code == MDB_SUCCESS ? STATUS_OK : cannot_be_walked(look, code);
}

/*
 * Each room's row must name an entry of that room. That none of the room's entries is after it is
 * seen entry by entry (room_indexed), so the row is then the newest.
 */
static void walk_heads(struct look *look, MDB_cursor *cursor)
{
    MDB_val key;
    MDB_val value;
    int code = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    for (; code == MDB_SUCCESS && look->report->faults < FAULTS_MAX;
         code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
        struct journal_head head = {.room = 0};
        MDB_val frame;
        uint64_t room = 0;
        uint64_t number = 0;
        if (key.mv_size == sizeof room && value.mv_size == sizeof number) {
            memcpy(&room, key.mv_data, sizeof room);
            memcpy(&number, value.mv_data, sizeof number);
        }
        MDB_val entry_key = journal_val(&number, sizeof number);
        *look->at = number;
        if (mdb_get(look->txn, look->segment->entries, &entry_key, &frame) == MDB_SUCCESS &&
            frame.mv_size >= JOURNAL_HEAD_BYTES) {
            journal_head_read(frame.mv_data, &head);
        }
        if (head.room != room || room == 0) {
            look_note(look, number, "what the room index names, but not of that room");
        }
    }
    if (code != MDB_NOTFOUND && code != MDB_SUCCESS) {
        look_note(look, look->meta.first, "in a segment whose room index cannot be walked");
    }
}

/* LMDB's own two heads, by its file format (0.9): the transaction of each. */
static bool read_lmdb_heads(const char *path, uint64_t out_txns[2])
{
    unsigned char head[LMDB_META_BYTES];
    uint32_t page_size = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool well = fd >= 0 && pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head;
    memcpy(out_txns, head + LMDB_META_TXN, sizeof *out_txns);
    memcpy(&page_size, head + LMDB_META_PAGE_SIZE, sizeof page_size);
    well = well && pread(fd, head, sizeof head, (off_t)page_size) == (ssize_t)sizeof head;
    memcpy(out_txns + 1, head + LMDB_META_TXN, sizeof *out_txns);
    if (fd >= 0) {
        (void)close(fd);
    }
    return well;
}

/*
 * Whether this is the newest tree that the file has had. LMDB does not check its heads: a bit of a
 * transaction's number, or of the page that its tree begins with, makes it take an older state for
 * the newest one, in which nothing else is wrong. A writer may commit between the two reads.
 */
static void verify_newest(struct look *look)
{
    char path[SEGMENT_PATH_BYTES];
    uint64_t txns[2] = {0, 1};
    uint64_t id = 0;
    MDB_val key = journal_val("txn", 3);
    MDB_val value;
    bool well = false;
    if (mdb_get(look->txn, look->segment->meta, &key, &value) == MDB_SUCCESS &&
        value.mv_size == sizeof id) {
        memcpy(&id, value.mv_data, sizeof id);
        if (id < mdb_txn_id(look->txn)) {
            look_note(look, look->meta.last + 1u, "missing: the file's head leads to an old state");
        }
    }
    segment_path(look->journal, look->segment, path, sizeof path);
    for (uint32_t i = 0; i < HEAD_TRIES && !well; i++) {
        well = read_lmdb_heads(path, txns) && txns[0] % 2u == 0 && txns[1] % 2u == 1 &&
               (txns[0] + 1u == txns[1] || txns[1] + 1u == txns[0]);
    }
    if (!well) {
        look_note(look, look->meta.last + 1u, "perhaps missing: the file's two heads do not agree");
    }
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
        status = journal_lmdb_status(look->journal,
                                     mdb_cursor_open(look->txn, look->segment->heads, &cursor),
                                     "its room index cannot be read");
    }
    if (status == STATUS_OK) {
        walk_heads(look, cursor);
        mdb_cursor_close(cursor);
        verify_newest(look);
    }
    mdb_txn_abort(look->txn);
    return status;
}

/*
 * Where a segment begins there must be a snapshot, else it cannot be replayed without those before;
 * and each of its snapshots must be a state of the machine.
 */
static void verify_snapshots(struct look *look, struct journal_machine *machine)
{
    const unsigned char *bytes = NULL;
    size_t size = 0;
    uint64_t entry = look->meta.last;
    if (look->meta.first > 1u &&
        journal_snapshot_get(look->journal, look->meta.first - 1u, 0, &bytes, &size) != STATUS_OK) {
        look_note(
            look, look->meta.first,
            "in a segment that does not begin with a snapshot: it cannot be replayed by itself");
    }
    while (journal_snapshot_newest(look->journal, entry, &entry) == STATUS_OK &&
           entry + 1u >= look->meta.first && entry > 0) {
        *look->at = entry;
        /* One that its node has pruned meanwhile is gone as a whole. */
        if (journal_snapshot_check(look->journal, machine, entry) != STATUS_OK &&
            journal_snapshot_get(look->journal, entry, 0, &bytes, &size) == STATUS_OK) {
            look_note(look, entry, "followed by a snapshot that is damaged");
        }
        entry--;
    }
}

/*
 * A node removes whole segments, oldest first, while we read: then this one and all before it are
 * gone, and what is left is a journal. Reads the directory again.
 */
static bool was_trimmed(struct journal *journal, uint64_t first)
{
    return journal->options.read_only && journal_scan(journal, true) == STATUS_OK &&
           journal->segment_count > 0 && journal->segments[0].first > first;
}

static enum status verify_segments(struct look *look, struct status_detail *out_detail)
{
    struct journal *journal = look->journal;
    struct journal_machine machine;
    enum status status = journal_machine_open(&machine, out_detail);
    TRY(status);
    bool oldest = true;
    for (uint32_t i = 0; i < journal->segment_count && status == STATUS_OK; i++) {
        look->segment = &journal->segments[i];
        look->segment->used = ++journal->tick;
        const uint64_t first = look->segment->first;
        status = verify_segment(look, oldest);
        oldest = false;
        if (status == STATUS_OK) {
            verify_snapshots(look, &machine);
        } else if (status == STATUS_NOT_FOUND && was_trimmed(journal, first)) {
            status = STATUS_OK;
            oldest = true;
            i = UINT32_MAX; /* the oldest now is a later one */
        }
    }
    if (status != STATUS_OK) {
        *out_detail = journal->detail;
    }
    journal_machine_close(&machine);
    return status;
}

static enum status verify_noting(struct journal *journal, volatile uint64_t *at,
                                 struct journal_fault_report *out_report,
                                 struct status_detail *out_detail)
{
    struct look look;
    memset(out_report, 0, sizeof *out_report);
    memset(&look, 0, sizeof look);
    look.journal = journal;
    look.report = out_report;
    look.at = at;
    void *memory = journal_take_pages(ARENA_BYTES);
    if (memory == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to verify a journal");
    }
    codec_arena_init(&look.arena, memory, ARENA_BYTES);
    const enum status status = verify_segments(&look, out_detail);
    journal_read_pause(journal);
    journal_give_pages(memory, ARENA_BYTES);
    TRY(status);
    return out_report->faults == 0 ? STATUS_OK
                                   : status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                                                 "journal %s: %s", journal->path, out_report->text);
}

enum status journal_verify(struct journal *journal, struct journal_fault_report *out_report,
                           struct status_detail *out_detail)
{
    volatile uint64_t at = 0;
    return journal->bundle != NULL ? bundle_verify(journal->path, out_report, out_detail)
                                   : verify_noting(journal, &at, out_report, out_detail);
}

/* ---- in a child
 * --------------------------------------------------------------------------------------------- */

/* In memory that both have. */
struct child_report {
    volatile uint64_t at; /* the entry that it looks at */
    volatile bool over;
    enum status status;
    struct journal_fault_report report;
    struct status_detail detail;
};

static void child(const char *path, struct child_report *result)
{
    struct journal *journal = NULL;
    const struct journal_options options = {.path = path, .read_only = true};
    struct stat info;
    const bool file = stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
    result->status = file ? bundle_verify(path, &result->report, &result->detail)
                          : journal_open(&options, &journal, &result->detail);
    if (result->status == STATUS_OK && !file) {
        result->status = verify_noting(journal, &result->at, &result->report, &result->detail);
        journal_close(journal);
    }
    result->over = true;
}

static enum status child_died(const char *path, const struct child_report *result, int wait_status,
                              struct journal_fault_report *out_report,
                              struct status_detail *out_detail)
{
    char where[64] = "when it was opened";
    out_report->crashed = true;
    out_report->faults = 1;
    out_report->first_fault = result->at;
    if (result->at != 0) {
        (void)snprintf(where, sizeof where, "at entry %" PRIu64 " or the one after it", result->at);
    }
    (void)snprintf(out_report->text, sizeof out_report->text, "its pages are damaged %s", where);
    return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                       "journal %s: its pages are damaged: the process that read it died of "
                       "signal %d, %s",
                       path, WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0, where);
}

enum status journal_verify_in_child(const char *path, struct journal_fault_report *out_report,
                                    struct status_detail *out_detail)
{
    int wait_status = 0;
    memset(out_report, 0, sizeof *out_report);
    struct child_report *result =
        mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (result == MAP_FAILED) {
        return status_fail(STATUS_NO_MEMORY, out_detail, errno, "no memory to verify a journal");
    }
    const pid_t pid = fork();
    if (pid == 0) {
        child(path, result);
        _exit(0);
    }
    const int error = errno;
    while (pid > 0 && waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    enum status status = STATUS_OK;
    if (pid < 0) {
        status = status_fail(STATUS_SYSTEM, out_detail, error, "fork: %s", strerror(error));
    } else if (!result->over) {
        status = child_died(path, result, wait_status, out_report, out_detail);
    } else {
        *out_report = result->report;
        *out_detail = result->detail;
        status = result->status;
    }
    (void)munmap(result, sizeof *result);
    return status;
}
