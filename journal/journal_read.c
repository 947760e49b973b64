/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: entries, the room index, snapshots. Read transactions are short: an old one keeps old
 * pages. */
#include "bundle_private.h"
#include "journal_private.h"

#include <string.h>

/* Reads in one read transaction; then it lets go of the pages that it kept alive. */
#define READS_PER_TRANSACTION 4096u

static void pause_segment(struct segment *segment)
{
    if (segment->read != NULL && segment->read_active) {
        mdb_txn_reset(segment->read);
        segment->read_active = false;
    }
}

void journal_read_pause(struct journal *journal)
{
    for (uint32_t i = 0; i < journal->segment_count; i++) {
        pause_segment(&journal->segments[i]);
    }
}

static enum status renew(struct journal *journal, struct segment *segment)
{
    if (segment->read != NULL && mdb_txn_renew(segment->read) != MDB_SUCCESS) {
        mdb_txn_abort(segment->read); /* the writer's map has grown: a fresh one takes it over */
        segment->read = NULL;
    }
    if (segment->read == NULL) {
        TRY(segment_begin_reading(journal, segment, &segment->read));
    }
    segment->read_active = true;
    segment->reads = 0;
    return STATUS_OK;
}

/* The transaction to read a segment in: the open batch when there is one, else a short one of our
 * own. */
static enum status reading(struct journal *journal, struct segment *segment, MDB_txn **out_txn)
{
    segment->used = ++journal->tick;
    if (journal->write != NULL && journal->next.env == NULL && segment == journal_newest(journal)) {
        *out_txn = journal->write;
        return STATUS_OK;
    }
    if (segment->read_active && ++segment->reads >= READS_PER_TRANSACTION) {
        pause_segment(segment);
    }
    if (!segment->read_active) {
        TRY(renew(journal, segment));
    }
    *out_txn = segment->read;
    return STATUS_OK;
}

/*
 * Another process may have begun a segment, or removed one, since the directory was read: cheap,
 * but only between transactions of the newest, so that a scan of it does not pay for each entry.
 */
static enum status look_again(struct journal *journal)
{
    if (!journal->options.read_only || journal_newest(journal)->read_active) {
        return STATUS_OK;
    }
    TRY(journal_scan(journal, false));
    return journal->segment_count > 0 ? STATUS_OK
                                      : status_fail(STATUS_NOT_FOUND, &journal->detail, 0,
                                                    "journal %s: it was removed", journal->path);
}

static enum status get_frame(struct journal *journal, uint64_t number, MDB_val *out_value)
{
    struct segment *segment = journal_segment_of(journal, number);
    MDB_txn *txn = NULL;
    if (segment == NULL) {
        return status_fail(STATUS_NOT_FOUND, &journal->detail, 0,
                           "journal %s: entry %llu was trimmed away", journal->path,
                           (unsigned long long)number);
    }
    TRY(reading(journal, segment, &txn));
    MDB_val key = journal_val(&number, sizeof number);
    const int code = mdb_get(txn, segment->entries, &key, out_value);
    return code == MDB_NOTFOUND ? status_fail(STATUS_NOT_FOUND, &journal->detail, 0,
                                              "journal %s: entry %llu is not in it", journal->path,
                                              (unsigned long long)number)
                                : journal_lmdb_status(journal, code, "an entry cannot be read");
}

enum status journal_read(struct journal *journal, uint64_t number, struct journal_record *out)
{
    MDB_val value;
    if (journal->bundle != NULL) {
        uint64_t chain[2];
        return bundle_read(journal->bundle, number, out, chain, &journal->detail);
    }
    TRY(look_again(journal));
    enum status status = get_frame(journal, number, &value);
    if (status == STATUS_NOT_FOUND && journal->options.read_only) {
        /* What a transaction sees stands still; the journal does not. */
        journal_read_pause(journal);
        TRY(journal_scan(journal, true));
        status = journal->segment_count > 0 ? get_frame(journal, number, &value) : status;
    }
    TRY(status);
    struct journal_head head;
    const char *broken = NULL;
    if (journal_frame_check(value.mv_data, value.mv_size, number, &head, &broken) != STATUS_OK) {
        return status_fail(STATUS_JOURNAL_DAMAGED, &journal->detail, 0,
                           "journal %s: entry %llu is %s", journal->path,
                           (unsigned long long)number, broken);
    }
    out->number = number;
    out->room = head.room;
    out->room_before = head.room_before;
    out->payload = (const unsigned char *)value.mv_data + JOURNAL_HEAD_BYTES;
    out->payload_size = head.payload_size;
    return STATUS_OK;
}

/* ---- the room index
 * ------------------------------------------------------------------------------------------ */

static enum status head_in(struct journal *journal, struct segment *segment, uint64_t room,
                           uint64_t *out_number)
{
    MDB_txn *txn = NULL;
    TRY(reading(journal, segment, &txn));
    MDB_val key = journal_val(&room, sizeof room);
    MDB_val value;
    const int code = mdb_get(txn, segment->heads, &key, &value);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "its room index cannot be read");
    }
    if (value.mv_size != sizeof *out_number) {
        return status_fail(STATUS_JOURNAL_DAMAGED, &journal->detail, 0,
                           "journal %s: its room index is damaged", journal->path);
    }
    memcpy(out_number, value.mv_data, sizeof *out_number);
    return STATUS_OK;
}

/* In the `count` oldest segments. */
static enum status head_before(struct journal *journal, uint32_t count, uint64_t room,
                               uint64_t *out_number)
{
    enum status status = STATUS_NOT_FOUND;
    for (uint32_t i = count; i > 0 && status == STATUS_NOT_FOUND; i--) {
        status = head_in(journal, &journal->segments[i - 1u], room, out_number);
    }
    return status;
}

enum status journal_room_last(struct journal *journal, uint64_t room, uint64_t *out_number)
{
    if (journal->bundle != NULL) {
        return bundle_room_last(journal->bundle, room, out_number, &journal->detail);
    }
    TRY(look_again(journal));
    return head_before(journal, journal->segment_count, room, out_number);
}

enum status journal_room_before(struct journal *journal, const struct journal_record *record,
                                uint64_t *out_number)
{
    if (journal->bundle != NULL) {
        return bundle_room_before(journal->bundle, record->room, record->number, out_number,
                                  &journal->detail);
    }
    if (record->room_before != 0) {
        *out_number = record->room_before;
        return STATUS_OK;
    }
    const struct segment *segment = journal_segment_of(journal, record->number);
    if (record->room == 0 || segment == NULL) {
        return STATUS_END;
    }
    const enum status status =
        head_before(journal, journal_segment_index(journal, segment), record->room, out_number);
    return status == STATUS_NOT_FOUND ? STATUS_END : status;
}

/* The segment's smallest room from `from` on. */
static enum status room_from(struct journal *journal, struct segment *segment, uint64_t from,
                             uint64_t *out_room, uint64_t *out_number)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    TRY(reading(journal, segment, &txn));
    int code = mdb_cursor_open(txn, segment->heads, &cursor);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "its room index cannot be read");
    }
    MDB_val key = journal_val(&from, sizeof from);
    MDB_val value;
    code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    enum status status = STATUS_OK;
    if (code == MDB_NOTFOUND) {
        status = STATUS_END;
    } else if (code != MDB_SUCCESS || key.mv_size != sizeof *out_room ||
               value.mv_size != sizeof *out_number) {
        status = journal_lmdb_status(journal, code != MDB_SUCCESS ? code : MDB_CORRUPTED,
                                     "its room index cannot be read");
    } else {
        memcpy(out_room, key.mv_data, sizeof *out_room);
        memcpy(out_number, value.mv_data, sizeof *out_number);
    }
    mdb_cursor_close(cursor);
    return status;
}

enum status journal_room_next(struct journal *journal, uint64_t after, uint64_t *out_room,
                              uint64_t *out_number)
{
    if (journal->bundle != NULL) {
        return bundle_room_next(journal->bundle, after, out_room, out_number, &journal->detail);
    }
    bool found = false;
    TRY(look_again(journal));
    /* From the newest on: of a room that stands in several, that one's entry is its last. */
    for (uint32_t i = journal->segment_count; i > 0 && after != UINT64_MAX; i--) {
        uint64_t room = 0;
        uint64_t number = 0;
        const enum status status =
            room_from(journal, &journal->segments[i - 1u], after + 1u, &room, &number);
        if (status == STATUS_OK && (!found || room < *out_room)) {
            *out_room = room;
            *out_number = number;
            found = true;
        } else if (status != STATUS_OK && status != STATUS_END) {
            return status;
        }
    }
    return found ? STATUS_OK : STATUS_END;
}

void journal_also_key(unsigned char *key, uint64_t room, uint64_t number)
{
    for (size_t i = 0; i < 8; i++) {
        key[i] = (unsigned char)(room >> (56u - 8u * i));
        key[8 + i] = (unsigned char)(number >> (56u - 8u * i));
    }
}

static enum status also_in(struct journal *journal, struct segment *segment, uint64_t room,
                           uint64_t from, uint64_t *out_number)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    unsigned char raw[16];
    TRY(reading(journal, segment, &txn));
    int code = mdb_cursor_open(txn, segment->also, &cursor);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "its room index cannot be read");
    }
    journal_also_key(raw, room, from);
    MDB_val key = journal_val(raw, sizeof raw);
    MDB_val value;
    code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    const bool found =
        code == MDB_SUCCESS && key.mv_size == sizeof raw && memcmp(key.mv_data, raw, 8) == 0;
    if (found) {
        *out_number = 0;
        for (size_t i = 8; i < 16; i++) {
            *out_number = *out_number << 8 | ((const unsigned char *)key.mv_data)[i];
        }
    }
    mdb_cursor_close(cursor);
    if (code != MDB_SUCCESS && code != MDB_NOTFOUND) {
        return journal_lmdb_status(journal, code, "its room index cannot be read");
    }
    return found ? STATUS_OK : STATUS_END;
}

enum status journal_room_also(struct journal *journal, uint64_t room, uint64_t from,
                              uint64_t *out_number)
{
    if (journal->bundle != NULL) {
        return bundle_room_also(journal->bundle, room, from, out_number, &journal->detail);
    }
    TRY(look_again(journal));
    const struct segment *first = journal_segment_of(journal, from);
    enum status status = STATUS_END;
    for (uint32_t i = first == NULL ? 0 : journal_segment_index(journal, first);
         i < journal->segment_count && status == STATUS_END; i++) {
        status = also_in(journal, &journal->segments[i], room, from, out_number);
    }
    return status;
}

/* ---- snapshots: keys are (entry, index), big-endian, so that they sort
 * ------------------------------------ */

static void snapshot_key(unsigned char *key, uint64_t entry, uint32_t index)
{
    for (size_t i = 0; i < 8; i++) {
        key[i] = (unsigned char)(entry >> (56u - 8u * i));
    }
    for (size_t i = 0; i < 4; i++) {
        key[8 + i] = (unsigned char)(index >> (24u - 8u * i));
    }
}

static uint64_t snapshot_entry(const MDB_val *key)
{
    uint64_t entry = 0;
    for (size_t i = 0; i < 8 && i < key->mv_size; i++) {
        entry = entry << 8 | ((const unsigned char *)key->mv_data)[i];
    }
    return entry;
}

enum status journal_snapshot_put(struct journal *journal, uint64_t entry, uint32_t index,
                                 const unsigned char *bytes, size_t size)
{
    unsigned char raw[12];
    TRY(journal_begin_batch(journal));
    snapshot_key(raw, entry, index);
    MDB_val key = journal_val(raw, sizeof raw);
    MDB_val value = journal_val(bytes, size);
    const enum status status = journal_lmdb_status(
        journal, mdb_put(journal->write, journal_written(journal)->snapshots, &key, &value, 0),
        "a snapshot cannot be written");
    if (status != STATUS_OK) {
        journal_abort(journal);
    }
    return status;
}

static enum status snapshot_in(struct journal *journal, struct segment *segment, uint64_t entry,
                               uint64_t *out_entry)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    unsigned char raw[12];
    TRY(reading(journal, segment, &txn));
    int code = mdb_cursor_open(txn, segment->snapshots, &cursor);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "its snapshots cannot be read");
    }
    snapshot_key(raw, entry, UINT32_MAX);
    MDB_val key = journal_val(raw, sizeof raw);
    MDB_val value;
    code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    code = mdb_cursor_get(cursor, &key, &value, code == MDB_SUCCESS ? MDB_PREV : MDB_LAST);
    if (code == MDB_SUCCESS) {
        *out_entry = snapshot_entry(&key);
    }
    mdb_cursor_close(cursor);
    return code == MDB_SUCCESS ? STATUS_OK : STATUS_NOT_FOUND;
}

/* Segments that may hold a snapshot at this entry or one before: how many, from the oldest on. */
static uint32_t segments_with_snapshots(struct journal *journal, uint64_t entry)
{
    const struct segment *last =
        journal_segment_of(journal, entry == UINT64_MAX ? entry : entry + 1u);
    return last == NULL ? 0 : journal_segment_index(journal, last) + 1u;
}

enum status journal_snapshot_newest(struct journal *journal, uint64_t entry, uint64_t *out_entry)
{
    if (journal->bundle != NULL) {
        return bundle_snapshot_newest(journal->bundle, entry, out_entry);
    }
    enum status status = STATUS_NOT_FOUND;
    TRY(look_again(journal));
    for (uint32_t i = segments_with_snapshots(journal, entry); i > 0 && status == STATUS_NOT_FOUND;
         i--) {
        status = snapshot_in(journal, &journal->segments[i - 1u], entry, out_entry);
    }
    return status;
}

enum status journal_snapshot_get(struct journal *journal, uint64_t entry, uint32_t index,
                                 const unsigned char **out_bytes, size_t *out_size)
{
    if (journal->bundle != NULL) {
        return bundle_snapshot_get(journal->bundle, entry, index, out_bytes, out_size,
                                   &journal->detail);
    }
    unsigned char raw[12];
    int code = MDB_NOTFOUND;
    const uint32_t count = segments_with_snapshots(journal, entry);
    snapshot_key(raw, entry, index);
    /* In the segment that holds the entry, or as the one that the next segment begins with. */
    for (uint32_t i = count; i > 0 && i + 2u > count && code == MDB_NOTFOUND; i--) {
        MDB_txn *txn = NULL;
        MDB_val key = journal_val(raw, sizeof raw);
        MDB_val value;
        TRY(reading(journal, &journal->segments[i - 1u], &txn));
        code = mdb_get(txn, journal->segments[i - 1u].snapshots, &key, &value);
        if (code == MDB_SUCCESS) {
            *out_bytes = value.mv_data;
            *out_size = value.mv_size;
        }
    }
    return code == MDB_NOTFOUND ? STATUS_END
                                : journal_lmdb_status(journal, code, "a snapshot cannot be read");
}

/* Entry of the oldest of the newest `keep` snapshots of the segment; 0: there are not as many. */
static uint64_t oldest_kept(struct journal *journal, struct segment *segment, uint32_t keep)
{
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < keep; i++) {
        uint64_t found = 0;
        if (oldest == 0 ||
            snapshot_in(journal, segment, oldest == UINT64_MAX ? oldest : oldest - 1u, &found) !=
                STATUS_OK) {
            return 0;
        }
        oldest = found;
    }
    return oldest;
}

enum status journal_snapshot_prune(struct journal *journal, uint32_t keep)
{
    struct segment *segment = journal_newest(journal);
    MDB_cursor *cursor = NULL;
    MDB_val value;
    unsigned char raw[12];
    TRY(journal_begin_batch(journal));
    const uint64_t before = oldest_kept(journal, segment, keep);
    int code = mdb_cursor_open(journal->write, segment->snapshots, &cursor);
    /* Not the one that it begins with: without it the segment could not be replayed. */
    snapshot_key(raw, segment->first, 0);
    MDB_val key = journal_val(raw, sizeof raw);
    code = code == MDB_SUCCESS ? mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE) : code;
    while (code == MDB_SUCCESS && snapshot_entry(&key) < before) {
        code = mdb_cursor_del(cursor, 0);
        code = code == MDB_SUCCESS ? mdb_cursor_get(cursor, &key, &value, MDB_NEXT) : code;
    }
    if (cursor != NULL) {
        mdb_cursor_close(cursor);
    }
    return code == MDB_NOTFOUND || code == MDB_SUCCESS
               ? STATUS_OK
               : journal_lmdb_status(journal, code, "old snapshots cannot be dropped");
}
