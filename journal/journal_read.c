/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: entries, the room index, snapshots. Read transactions are short: an old one keeps old
 * pages. */
#include "journal_private.h"

#include <string.h>

/* Reads in one read transaction; then it lets go of the pages that it kept alive. */
#define READS_PER_TRANSACTION 4096u

static MDB_val val_of(const void *data, size_t size)
{
    const MDB_val val = {size, (void *)(uintptr_t)data};
    return val;
}

void journal_read_pause(struct journal *journal)
{
    if (journal->read != NULL && journal->read_active) {
        mdb_txn_reset(journal->read);
        journal->read_active = false;
    }
}

/* The transaction to read in: the open batch when there is one, else a short one of our own. */
static enum status reading(struct journal *journal, MDB_txn **out_txn)
{
    if (journal->write != NULL) {
        *out_txn = journal->write;
        return STATUS_OK;
    }
    if (journal->read_active && ++journal->reads >= READS_PER_TRANSACTION) {
        journal_read_pause(journal);
    }
    if (!journal->read_active) {
        if (journal->read != NULL && mdb_txn_renew(journal->read) != MDB_SUCCESS) {
            mdb_txn_abort(
                journal->read); /* the writer's map has grown: a fresh one takes it over */
            journal->read = NULL;
        }
        if (journal->read == NULL) {
            TRY(journal_begin_reading(journal, &journal->read));
        }
        journal->read_active = true;
        journal->reads = 0;
    }
    *out_txn = journal->read;
    return STATUS_OK;
}

enum status journal_read(struct journal *journal, uint64_t number, struct journal_record *out)
{
    MDB_txn *txn = NULL;
    TRY(reading(journal, &txn));
    MDB_val key = val_of(&number, sizeof number);
    MDB_val value;
    const int code = mdb_get(txn, journal->entries, &key, &value);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "an entry cannot be read");
    }
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

enum status journal_room_last(struct journal *journal, uint64_t room, uint64_t *out_number)
{
    MDB_txn *txn = NULL;
    TRY(reading(journal, &txn));
    MDB_val key = val_of(&room, sizeof room);
    MDB_val value;
    const int code = mdb_get(txn, journal->heads, &key, &value);
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

enum status journal_room_next(struct journal *journal, uint64_t after, uint64_t *out_room,
                              uint64_t *out_number)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    TRY(reading(journal, &txn));
    if (after == UINT64_MAX) {
        return STATUS_END;
    }
    int code = mdb_cursor_open(txn, journal->heads, &cursor);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "its room index cannot be read");
    }
    const uint64_t from = after + 1u;
    MDB_val key = val_of(&from, sizeof from);
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

void journal_also_key(unsigned char *key, uint64_t room, uint64_t number)
{
    for (size_t i = 0; i < 8; i++) {
        key[i] = (unsigned char)(room >> (56u - 8u * i));
        key[8 + i] = (unsigned char)(number >> (56u - 8u * i));
    }
}

enum status journal_room_also(struct journal *journal, uint64_t room, uint64_t from,
                              uint64_t *out_number)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    unsigned char raw[16];
    TRY(reading(journal, &txn));
    int code = mdb_cursor_open(txn, journal->also, &cursor);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "its room index cannot be read");
    }
    journal_also_key(raw, room, from);
    MDB_val key = val_of(raw, sizeof raw);
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
    TRY(journal_note_epoch(journal, journal->write != NULL ? journal->pending.epoch
                                                           : journal->identity.epoch));
    snapshot_key(raw, entry, index);
    MDB_val key = val_of(raw, sizeof raw);
    MDB_val value = val_of(bytes, size);
    const enum status status =
        journal_lmdb_status(journal, mdb_put(journal->write, journal->snapshots, &key, &value, 0),
                            "a snapshot cannot be written");
    if (status != STATUS_OK) {
        journal_abort(journal);
    }
    return status;
}

enum status journal_snapshot_newest(struct journal *journal, uint64_t entry, uint64_t *out_entry)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    unsigned char raw[12];
    TRY(reading(journal, &txn));
    int code = mdb_cursor_open(txn, journal->snapshots, &cursor);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "its snapshots cannot be read");
    }
    snapshot_key(raw, entry, UINT32_MAX);
    MDB_val key = val_of(raw, sizeof raw);
    MDB_val value;
    code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    code = mdb_cursor_get(cursor, &key, &value, code == MDB_SUCCESS ? MDB_PREV : MDB_LAST);
    if (code == MDB_SUCCESS) {
        *out_entry = snapshot_entry(&key);
    }
    mdb_cursor_close(cursor);
    return code == MDB_SUCCESS ? STATUS_OK : STATUS_NOT_FOUND;
}

enum status journal_snapshot_get(struct journal *journal, uint64_t entry, uint32_t index,
                                 const unsigned char **out_bytes, size_t *out_size)
{
    MDB_txn *txn = NULL;
    unsigned char raw[12];
    TRY(reading(journal, &txn));
    snapshot_key(raw, entry, index);
    MDB_val key = val_of(raw, sizeof raw);
    MDB_val value;
    const int code = mdb_get(txn, journal->snapshots, &key, &value);
    if (code == MDB_NOTFOUND) {
        return STATUS_END;
    }
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "a snapshot cannot be read");
    }
    *out_bytes = value.mv_data;
    *out_size = value.mv_size;
    return STATUS_OK;
}

enum status journal_snapshot_prune(struct journal *journal, uint32_t keep)
{
    uint64_t newest = UINT64_MAX;
    for (uint32_t i = 0; i < keep; i++) {
        uint64_t found = 0;
        if (newest == 0 ||
            journal_snapshot_newest(journal, newest == UINT64_MAX ? newest : newest - 1u, &found) !=
                STATUS_OK) {
            return STATUS_OK;
        }
        newest = found;
    }
    MDB_cursor *cursor = NULL;
    MDB_val key;
    MDB_val value;
    TRY(journal_note_epoch(journal, journal->write != NULL ? journal->pending.epoch
                                                           : journal->identity.epoch));
    int code = mdb_cursor_open(journal->write, journal->snapshots, &cursor);
    while (code == MDB_SUCCESS) {
        code = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
        if (code != MDB_SUCCESS || snapshot_entry(&key) >= newest) {
            break;
        }
        code = mdb_cursor_del(cursor, 0);
    }
    if (cursor != NULL) {
        mdb_cursor_close(cursor);
    }
    return code == MDB_NOTFOUND || code == MDB_SUCCESS
               ? STATUS_OK
               : journal_lmdb_status(journal, code, "old snapshots cannot be dropped");
}
