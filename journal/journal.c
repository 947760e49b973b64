/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, identity, and appending in batches. */
#include "bundle_private.h"
#include "journal_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAP_BYTES_FIRST (UINT64_C(4) << 30)
#define MAP_BYTES_MAX (UINT64_C(64) << 30)
#define FULL_BLOCKS 16u

/* A write that does half of what it should is an I/O error to LMDB; often the disk is full. */
static bool is_full(const struct journal *journal)
{
    struct statvfs info;
    return statvfs(journal->path, &info) == 0 && info.f_bavail < FULL_BLOCKS;
}

enum status journal_lmdb_status(struct journal *journal, int code, const char *what)
{
    code = code == EIO && is_full(journal) ? ENOSPC : code;
    enum status status = STATUS_JOURNAL_IO;
    const char *way_out = "check the disk; the node goes on by itself when it can write again";
    switch (code) {
    case MDB_SUCCESS:
        return STATUS_OK;
    case MDB_NOTFOUND:
        return STATUS_NOT_FOUND;
    case ENOSPC:
    case EDQUOT:
    case MDB_MAP_FULL:
        status = STATUS_JOURNAL_FULL;
        way_out = code == MDB_MAP_FULL ? "raise journal.map_max" : "free some space on its disk";
        break;
    case MDB_INVALID:
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_PANIC:
        status = STATUS_JOURNAL_DAMAGED;
        way_out = "run `stateroom verify` on a copy of it";
        break;
    case MDB_VERSION_MISMATCH:
        status = STATUS_JOURNAL_VERSION;
        way_out = "use the program version that wrote it";
        break;
    case ENOENT:
        status = STATUS_NOT_FOUND;
        way_out = "name the directory of a journal";
        break;
    case EACCES:
    case EPERM:
        status = STATUS_JOURNAL_IO;
        way_out = "check the permissions of the directory and its files";
        break;
    default:
        break;
    }
    return status_fail(status, &journal->detail, code, "journal %s: %s: %s; %s", journal->path,
                       what, mdb_strerror(code), way_out);
}

const struct status_detail *journal_detail(const struct journal *journal)
{
    return &journal->detail;
}

/* ---- the lock: one writer, and its pid for the second
 * ---------------------------------------------------- */

static enum status take_lock(struct journal *journal)
{
    char path[4200];
    (void)snprintf(path, sizeof path, "%s/LOCK", journal->path);
    const enum status status = lock_file_take(path, &journal->lock);
    if (status == STATUS_AGAIN) {
        return status_fail(STATUS_JOURNAL_LOCKED, &journal->detail, 0,
                           "journal %s: process %s has it; stop that process or name another "
                           "directory (journal.path)",
                           journal->path, journal->lock.holder);
    }
    return status == STATUS_OK
               ? STATUS_OK
               : journal_lmdb_status(journal, journal->lock.error, "its LOCK file cannot be made");
}

/* ---- identity
 * --------------------------------------------------------------------------------------------- */

/* The head of the newest segment, as of now. */
static enum status read_newest(struct journal *journal, struct segment_meta *out_meta)
{
    MDB_txn *txn = NULL;
    TRY(segment_begin_reading(journal, journal_newest(journal), &txn));
    const enum status status = segment_get_meta(journal, journal_newest(journal), txn, out_meta);
    mdb_txn_abort(txn);
    return status;
}

static void identity_of(const struct journal *journal, const struct segment_meta *meta,
                        struct journal_identity *out)
{
    out->node_id = meta->node_id;
    out->epoch = meta->epoch;
    out->last = meta->last;
    out->first = meta->last == 0 ? 0 : journal->segments[0].first;
    memcpy(out->chain, meta->chain, sizeof out->chain);
}

enum status journal_identity(struct journal *journal, struct journal_identity *out_identity)
{
    struct segment_meta meta = journal->meta;
    if (journal->bundle != NULL) {
        bundle_identity(journal->bundle, out_identity);
        return STATUS_OK;
    }
    if (journal->options.read_only) {
        TRY(journal_scan(journal, true));
        if (journal->segment_count == 0) {
            return status_fail(STATUS_NOT_FOUND, &journal->detail, 0,
                               "journal %s: it has been removed", journal->path);
        }
        TRY(read_newest(journal, &meta));
    }
    identity_of(journal, &meta, out_identity);
    return STATUS_OK;
}

/* ---- open
 * -------------------------------------------------------------------------------------------------
 */

static enum status make_directory(struct journal *journal)
{
    if (mkdir(journal->path, 0750) == 0 || errno == EEXIST) {
        return STATUS_OK;
    }
    if (errno != ENOENT && errno != EACCES) {
        return journal_lmdb_status(journal, errno, "its directory cannot be made");
    }
    return status_fail(STATUS_JOURNAL_IO, &journal->detail, errno,
                       "journal %s: its directory cannot be made: %s; make the directory that "
                       "it is in, for this user, or name another one (journal.path)",
                       journal->path, strerror(errno));
}

/* The directory that holds the journal's: its name must survive power loss too, also when the start
 * that made it got no further. */
static enum status sync_parent(struct journal *journal)
{
    char path[SEGMENT_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/..", journal->path);
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* A parent that we may not open is not ours: it was there before. */
    int code = fd < 0 && errno != EACCES ? errno : 0;
    if (fd >= 0) {
        code = fsync(fd) != 0 ? errno : 0;
        (void)close(fd);
    }
    return journal_lmdb_status(journal, code, "the directory above it cannot be synced");
}

static enum status make_first_segment(struct journal *journal)
{
    uint64_t node_id = 0;
    while (node_id == 0) {
        if (getrandom(&node_id, sizeof node_id, 0) != (ssize_t)sizeof node_id) {
            return journal_lmdb_status(journal, errno, "no random number for its identity");
        }
    }
    return journal_first_segment(journal, node_id);
}

static enum status open_for_writing(struct journal *journal)
{
    TRY(make_directory(journal));
    TRY(sync_parent(journal));
    TRY(take_lock(journal));
    TRY(journal_scan(journal, true));
    if (journal->segment_count == 0) {
        TRY(journal_refuse_older(journal));
    }
    TRY(journal_running_begin(journal));
    journal->running = journal->options.mode == JOURNAL_PROCESS;
    if (journal->segment_count == 0) {
        return make_first_segment(journal);
    }
    TRY(segment_open(journal, journal_newest(journal), true));
    const enum status status = read_newest(journal, &journal->meta);
    if (status == STATUS_NOT_FOUND) {
        return status_fail(STATUS_JOURNAL_DAMAGED, &journal->detail, 0,
                           "journal %s: the segment from entry %" PRIu64 " has no head: it is not "
                           "whole; move that file away to go back to the end of the segment "
                           "before, or run `stateroom repair`",
                           journal->path, journal_newest(journal)->first);
    }
    TRY(status);
    /* The last process may have died between a name and its sync, or before a flush. */
    journal->names_unsynced = true;
    journal->uncertain = true;
    journal_keep_heads(journal);
    return journal_flush_fully(journal);
}

static enum status open_for_reading(struct journal *journal)
{
    struct stat info;
    if (stat(journal->path, &info) != 0) {
        return journal_lmdb_status(journal, errno, "it cannot be opened");
    }
    if (!S_ISDIR(info.st_mode)) {
        return bundle_open(journal->path, journal->options.salvage, &journal->bundle,
                           &journal->detail);
    }
    TRY(journal_scan(journal, true));
    if (journal->segment_count == 0) {
        TRY(journal_refuse_older(journal));
        return status_fail(STATUS_NOT_FOUND, &journal->detail, 0,
                           "journal %s: there is no journal; name the directory of one",
                           journal->path);
    }
    const enum status status = read_newest(journal, &journal->meta);
    return status == STATUS_NOT_FOUND
               ? status_fail(STATUS_JOURNAL_VERSION, &journal->detail, 0,
                             "journal %s: not a journal: it has no head", journal->path)
               : status;
}

enum status journal_open(const struct journal_options *options, struct journal **out_journal,
                         struct status_detail *out_detail)
{
    struct journal *journal = calloc(1, sizeof *journal);
    if (journal == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a journal");
    }
    journal->options = *options;
    journal->lock.fd = -1;
    journal->options.map_bytes_max =
        options->map_bytes_max == 0 ? MAP_BYTES_MAX : options->map_bytes_max;
    journal->options.map_bytes_first =
        options->map_bytes_first == 0 ? MAP_BYTES_FIRST : options->map_bytes_first;
    enum status status = STATUS_OK;
    if (options->path == NULL || options->path[0] == '\0' ||
        strlen(options->path) >= sizeof journal->path) {
        status = status_fail(STATUS_INVALID, &journal->detail, 0,
                             "the journal's path is empty or too long");
    } else {
        memcpy(journal->path, options->path, strlen(options->path) + 1u);
        status = options->read_only ? open_for_reading(journal) : open_for_writing(journal);
    }
    if (status != STATUS_OK) {
        if (out_detail != NULL) {
            *out_detail = journal->detail;
        }
        journal_close(journal);
        return status;
    }
    journal->pending = journal->meta;
    *out_journal = journal;
    return STATUS_OK;
}

void journal_close(struct journal *journal)
{
    if (journal == NULL) {
        return;
    }
    journal_abort(journal);
    if (!journal->options.read_only && journal->segment_count > 0) {
        const bool flushed = journal_flush_fully(journal) == STATUS_OK;
        if (flushed && journal->running) {
            journal_running_end(journal);
        }
    }
    for (uint32_t i = 0; i < journal->segment_count; i++) {
        segment_close(&journal->segments[i]);
    }
    bundle_close(journal->bundle);
    free(journal->segments);
    lock_file_give(&journal->lock);
    free(journal);
}

/* ---- writing
 * ------------------------------------------------------------------------------------------------
 */

void journal_fault(struct journal *journal, enum status status, uint32_t after)
{
    journal->fault = status;
    journal->fault_after = after;
}

static enum status injected(struct journal *journal)
{
    if (journal->fault == STATUS_OK) {
        return STATUS_OK;
    }
    if (journal->fault_after > 0) {
        journal->fault_after--;
        return STATUS_OK;
    }
    return status_fail(journal->fault, &journal->detail, 0, "journal %s: %s (injected)",
                       journal->path, status_text(journal->fault));
}

void journal_abort(struct journal *journal)
{
    if (journal->write != NULL) {
        mdb_txn_abort(journal->write);
        journal->write = NULL;
    }
    if (journal->next.env != NULL) {
        journal_drop_next(journal);
    }
    journal->pending = journal->meta;
}

struct segment *journal_written(struct journal *journal)
{
    return journal->next.env != NULL ? &journal->next : journal_newest(journal);
}

enum status journal_begin_batch(struct journal *journal)
{
    if (journal->write != NULL) {
        return STATUS_OK;
    }
    TRY(journal_mend(journal));
    journal->pending = journal->meta;
    return journal_lmdb_status(
        journal, mdb_txn_begin(journal_newest(journal)->env, NULL, 0, &journal->write),
        "no batch can be begun");
}

/* Doubles the map; the batch has to be begun again, so this happens before one. */
static enum status grow(struct journal *journal, struct segment *newest, uint64_t size)
{
    if (size > journal->options.map_bytes_max) {
        size = journal->options.map_bytes_max;
    }
    if (newest->read != NULL) {
        mdb_txn_abort(newest->read);
        newest->read = NULL;
        newest->read_active = false;
    }
    const enum status status =
        journal_lmdb_status(journal, mdb_env_set_mapsize(newest->env, size), "its map cannot grow");
    if (status != STATUS_OK) {
        segment_close(newest); /* LMDB has no map any more, and does not look */
    }
    return status;
}

/* A quarter of the map must be free when a batch begins: no batch is that large. */
static enum status ensure_space(struct journal *journal)
{
    MDB_envinfo info;
    struct segment *newest = journal_newest(journal);
    if (journal->write != NULL) {
        return STATUS_OK;
    }
    TRY(journal_mend(journal));
    (void)mdb_env_info(newest->env, &info);
    if (segment_bytes(newest) > (uint64_t)info.me_mapsize / 4u * 3u &&
        info.me_mapsize < journal->options.map_bytes_max) {
        return grow(journal, newest, (uint64_t)info.me_mapsize * 2u);
    }
    return STATUS_OK;
}

static enum status append_record(struct journal *journal, const struct journal_record *record)
{
    struct journal_head head = {JOURNAL_FORMAT_VERSION,
                                0,
                                (uint32_t)record->payload_size,
                                0,
                                record->number,
                                record->room,
                                0,
                                {0, 0}};
    const struct segment *segment = journal_written(journal);
    MDB_val room_key = journal_val(&record->room, sizeof record->room);
    MDB_val value;
    int code = record->room == 0 ? MDB_NOTFOUND
                                 : mdb_get(journal->write, segment->heads, &room_key, &value);
    if (code == MDB_SUCCESS && value.mv_size == sizeof head.room_before) {
        memcpy(&head.room_before, value.mv_data, sizeof head.room_before);
    } else if (code != MDB_NOTFOUND) {
        return journal_lmdb_status(journal, code, "its room index cannot be read");
    }
    journal_chain_next(journal->pending.chain, record->payload, record->payload_size, head.chain);
    unsigned char bytes[JOURNAL_HEAD_BYTES];
    journal_head_write(&head, bytes);
    head.check = journal_head_check(bytes, record->payload, record->payload_size);
    journal_head_write(&head, bytes);

    MDB_val key = journal_val(&record->number, sizeof record->number);
    value = journal_val(NULL, JOURNAL_HEAD_BYTES + record->payload_size);
    code = mdb_put(journal->write, segment->entries, &key, &value, MDB_APPEND | MDB_RESERVE);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "an entry cannot be appended");
    }
    memcpy(value.mv_data, bytes, JOURNAL_HEAD_BYTES);
    memcpy((unsigned char *)value.mv_data + JOURNAL_HEAD_BYTES, record->payload,
           record->payload_size);
    if (record->room != 0) {
        value = journal_val(&record->number, sizeof record->number);
        code = mdb_put(journal->write, segment->heads, &room_key, &value, 0);
    }
    for (uint32_t i = 0; i < record->also_count && (code == MDB_SUCCESS || code == MDB_NOTFOUND);
         i++) {
        unsigned char raw[16];
        journal_also_key(raw, record->also[i], record->number);
        MDB_val also_key = journal_val(raw, sizeof raw);
        value = journal_val("", 0);
        code = mdb_put(journal->write, segment->also, &also_key, &value, 0);
    }
    journal->pending.last = record->number;
    journal->pending.chain[0] = head.chain[0];
    journal->pending.chain[1] = head.chain[1];
    return journal_lmdb_status(journal, code == MDB_NOTFOUND ? MDB_SUCCESS : code,
                               "its room index cannot be written");
}

enum status journal_append(struct journal *journal, const struct journal_record *record)
{
    if (record->payload_size > JOURNAL_PAYLOAD_MAX) {
        journal_abort(journal);
        return status_fail(STATUS_TOO_LARGE, &journal->detail, 0,
                           "journal %s: an entry of %zu bytes is over the bound of %u",
                           journal->path, record->payload_size, JOURNAL_PAYLOAD_MAX);
    }
    enum status status = injected(journal);
    status = status == STATUS_OK ? ensure_space(journal) : status;
    status = status == STATUS_OK ? journal_begin_batch(journal) : status;
    if (status == STATUS_OK && record->number != journal->pending.last + 1u) {
        status = status_fail(STATUS_INVALID, &journal->detail, 0,
                             "journal %s: entry %llu cannot follow entry %llu", journal->path,
                             (unsigned long long)record->number,
                             (unsigned long long)journal->pending.last);
    }
    status = status == STATUS_OK ? append_record(journal, record) : status;
    if (status != STATUS_OK) {
        journal_abort(journal);
    }
    return status;
}

enum status journal_note_epoch(struct journal *journal, uint64_t epoch)
{
    TRY(journal_begin_batch(journal));
    journal->pending.epoch = epoch;
    return STATUS_OK;
}

static enum status put_pending(struct journal *journal)
{
    TRY(injected(journal));
    return segment_put_meta(journal, journal_written(journal), journal->write, &journal->pending);
}

/* A segment that was begun becomes part of the journal only by journal_segment_end. */
static enum status commit(struct journal *journal)
{
    if (journal->next.env != NULL) {
        journal_abort(journal);
        return status_fail(STATUS_INVALID, &journal->detail, 0,
                           "journal %s: a segment was begun and not ended", journal->path);
    }
    const enum status status = put_pending(journal);
    if (status != STATUS_OK) {
        journal_abort(journal);
        return status;
    }
    MDB_txn *txn = journal->write;
    journal->write = NULL;
    const int code = mdb_txn_commit(txn);
    if (code != MDB_SUCCESS) {
        journal->pending = journal->meta;
        journal->uncertain = journal->options.mode != JOURNAL_NO_SYNC;
        return journal_lmdb_status(journal, code, "a batch cannot be committed");
    }
    /* This commit's flush of its pages carried the head of the one before. */
    const bool carried = !journal->names_unsynced;
    const bool at_once = journal->options.mode != JOURNAL_SYNC && carried;
    journal->durable = at_once   ? journal->pending.last
                       : carried ? journal->meta.last
                                 : journal->durable;
    journal->meta = journal->pending;
    journal->unflushed = true;
    journal_read_pause(journal); /* reads of this handle see the batch from now on */
    journal_keep_heads(journal);
    return STATUS_OK;
}

enum status journal_commit_ahead(struct journal *journal)
{
    if (journal->write == NULL) {
        return STATUS_OK;
    }
    TRY(commit(journal));
    return journal->names_unsynced ? journal_flush(journal) : STATUS_OK;
}

uint64_t journal_durable(const struct journal *journal)
{
    return journal->durable;
}

enum status journal_flush_fully(struct journal *journal)
{
    if (journal->options.mode == JOURNAL_NO_SYNC) {
        journal->names_unsynced = false;
        journal->uncertain = false;
        journal->unflushed = false;
        journal->durable = journal->meta.last; /* as durable as this mode promises */
        return STATUS_OK;
    }
    if (journal->names_unsynced) {
        TRY(journal_sync_names(journal));
        journal->names_unsynced = false;
    }
    enum status status = STATUS_OK;
    if (journal->unflushed || journal->uncertain) {
        status = injected(journal);
        status = status == STATUS_OK ? journal_mend(journal) : status;
    }
    if (status == STATUS_OK && journal->unflushed) {
        status = journal_lmdb_status(journal, mdb_env_sync(journal_newest(journal)->env, 1),
                                     "its last batch cannot be flushed");
    }
    journal->uncertain = status != STATUS_OK;
    journal->unflushed = journal->unflushed && status != STATUS_OK;
    journal->durable = status == STATUS_OK ? journal->meta.last : journal->durable;
    return status;
}

enum status journal_flush(struct journal *journal)
{
    /* Without power loss the last batch is there already. */
    const bool needless =
        journal->options.mode == JOURNAL_PROCESS && !journal->uncertain && !journal->names_unsynced;
    return needless ? STATUS_OK : journal_flush_fully(journal);
}

enum status journal_commit(struct journal *journal)
{
    if (journal->write == NULL) {
        return STATUS_OK;
    }
    const bool start = journal->pending.epoch != journal->meta.epoch;
    TRY(commit(journal));
    return start ? journal_flush_fully(journal) : journal_flush(journal);
}
