/* SPDX-License-Identifier: Apache-2.0 */
/* Verification, in this process or in a child. */
#include "journal/journal_verify.h"

#include "journal_private.h"
#include "schemas/codec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)96 << 20)

static void note(struct journal_fault_report *report, uint64_t number, const char *what)
{
    report->faults++;
    if (report->first_fault == 0) {
        report->first_fault = number;
        (void)snprintf(report->text, sizeof report->text, "entry %" PRIu64 " is %s", number, what);
    }
}

/* Whether each room besides its own that the entry is about can find it. */
static bool others_indexed(const struct journal *journal, MDB_txn *txn, uint64_t number,
                           const struct codec_entry *entry)
{
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        unsigned char raw[16];
        MDB_val value;
        const uint64_t room = entry->transitions[i].room;
        journal_also_key(raw, room, number);
        MDB_val key = {sizeof raw, raw};
        if (room != 0 && room != entry->input.room &&
            mdb_get(txn, journal->also, &key, &value) != MDB_SUCCESS) {
            return false;
        }
    }
    return true;
}

/* One entry: frame, chain, parse, and its room's back-pointer. */
static void verify_value(struct journal *journal, MDB_txn *txn, uint64_t number,
                         const MDB_val *value, uint64_t chain[2], struct codec_arena *arena,
                         struct journal_fault_report *report)
{
    struct journal_head head;
    const char *broken = NULL;
    uint64_t next[2];
    if (journal_frame_check(value->mv_data, value->mv_size, number, &head, &broken) != STATUS_OK) {
        note(report, number, broken);
        if (value->mv_size >= JOURNAL_HEAD_BYTES) {
            memcpy(chain, head.chain, sizeof next); /* go on from what it claims */
        }
        return;
    }
    const unsigned char *payload = (const unsigned char *)value->mv_data + JOURNAL_HEAD_BYTES;
    journal_chain_next(chain, payload, head.payload_size, next);
    if (memcmp(next, head.chain, sizeof next) != 0) {
        note(report, number, "out of the chain: an entry before it was altered, lost or swapped");
    }
    memcpy(chain, head.chain, sizeof next);
    struct codec_entry entry;
    codec_arena_reset(arena);
    if (codec_entry_unpack(payload, head.payload_size, arena, &entry) != STATUS_OK) {
        note(report, number, "not parsable");
    } else if (entry.input.room != head.room) {
        note(report, number, "indexed under another room than its own");
    } else if (!others_indexed(journal, txn, number, &entry)) {
        note(report, number, "missing in the index of a room that it is about");
    }
    if (head.room != 0) {
        MDB_val key = {sizeof head.room, &head.room};
        MDB_val last;
        uint64_t newest = 0;
        if (mdb_get(txn, journal->heads, &key, &last) == MDB_SUCCESS &&
            last.mv_size == sizeof newest) {
            memcpy(&newest, last.mv_data, sizeof newest);
        }
        if (newest < number) {
            note(report, number, "missing in the room index");
        }
    }
}

static enum status walk(struct journal *journal, MDB_txn *txn, MDB_cursor *cursor,
                        const struct journal_identity *identity, struct codec_arena *arena,
                        struct journal_fault_report *report)
{
    MDB_val key;
    MDB_val value;
    uint64_t chain[2] = {0, 0};
    uint64_t expected = identity->first;
    int code = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    while (code == MDB_SUCCESS) {
        uint64_t number = 0;
        if (key.mv_size == sizeof number) {
            memcpy(&number, key.mv_data, sizeof number);
        }
        if (number != expected) {
            note(report, expected, "missing");
        }
        verify_value(journal, txn, number, &value, chain, arena, report);
        report->entries++;
        expected = number + 1u;
        code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (code != MDB_NOTFOUND) {
        return journal_lmdb_status(journal, code, "it cannot be walked");
    }
    if (identity->last != 0 && expected != identity->last + 1u) {
        note(report, expected, "missing: the journal's head knows later ones");
    } else if (memcmp(chain, identity->chain, sizeof chain) != 0) {
        note(report, identity->last, "not the one that the journal's head names");
    }
    return STATUS_OK;
}

enum status journal_verify(struct journal *journal, struct journal_fault_report *out_report,
                           struct status_detail *out_detail)
{
    struct codec_arena arena;
    struct journal_identity identity;
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    memset(out_report, 0, sizeof *out_report);
    void *memory = malloc(ARENA_BYTES);
    if (memory == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to verify a journal");
    }
    codec_arena_init(&arena, memory, ARENA_BYTES);
    /* One read transaction for the whole walk: head and entries must be of one moment. */
    enum status status = journal_begin_reading(journal, &txn);
    if (status == STATUS_OK) {
        status = journal_get_identity(journal, txn, &identity);
    }
    if (status == STATUS_OK) {
        status = journal_lmdb_status(journal, mdb_cursor_open(txn, journal->entries, &cursor),
                                     "it cannot be read");
    }
    if (status == STATUS_OK) {
        status = walk(journal, txn, cursor, &identity, &arena, out_report);
        mdb_cursor_close(cursor);
    }
    if (txn != NULL) {
        mdb_txn_abort(txn);
    }
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
    const struct journal_options options = {path, JOURNAL_SYNC, true, 0};
    memset(&result, 0, sizeof result);
    result.status = journal_open(&options, &journal, &result.detail);
    if (result.status == STATUS_OK) {
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
