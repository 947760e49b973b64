/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, identity, and appending in batches. */
#include "journal_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAP_BYTES_DEFAULT (UINT64_C(64) << 30)
#define MAP_BYTES_FIRST (UINT64_C(1) << 30)

enum status journal_lmdb_status(struct journal *journal, int code, const char *what)
{
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

/* ---- identity in the meta table
 * --------------------------------------------------------------------------- */

struct meta {
    uint32_t format;
    uint32_t features; /* bits that a reader must know; none yet */
    uint64_t node_id;
    uint64_t epoch;
    uint64_t last;
    uint64_t first;
    uint64_t chain[2];
};

static MDB_val val_of(const void *data, size_t size)
{
    const MDB_val val = {size, (void *)(uintptr_t)data};
    return val;
}

static int put_meta(struct journal *journal, MDB_txn *txn, const struct journal_identity *identity)
{
    const struct meta meta = {JOURNAL_FORMAT_VERSION,
                              0,
                              identity->node_id,
                              identity->epoch,
                              identity->last,
                              identity->first,
                              {identity->chain[0], identity->chain[1]}};
    MDB_val key = val_of("journal", 7);
    MDB_val value = val_of(&meta, sizeof meta);
    return mdb_put(txn, journal->meta, &key, &value, 0);
}

enum status journal_get_identity(struct journal *journal, MDB_txn *txn,
                                 struct journal_identity *out_identity)
{
    MDB_val key = val_of("journal", 7);
    MDB_val value;
    struct meta meta;
    const int code = mdb_get(txn, journal->meta, &key, &value);
    if (code != MDB_SUCCESS) {
        return code == MDB_NOTFOUND ? STATUS_NOT_FOUND
                                    : journal_lmdb_status(journal, code, "its head cannot be read");
    }
    if (value.mv_size != sizeof meta) {
        return status_fail(STATUS_JOURNAL_VERSION, &journal->detail, 0,
                           "journal %s: its head is of another format", journal->path);
    }
    memcpy(&meta, value.mv_data, sizeof meta);
    if (meta.format != JOURNAL_FORMAT_VERSION || meta.features != 0) {
        return status_fail(STATUS_JOURNAL_VERSION, &journal->detail, 0,
                           "journal %s: format %u, features 0x%x; this program reads format %u "
                           "without features; use the program version that wrote it",
                           journal->path, meta.format, meta.features, JOURNAL_FORMAT_VERSION);
    }
    out_identity->node_id = meta.node_id;
    out_identity->epoch = meta.epoch;
    out_identity->last = meta.last;
    out_identity->first = meta.first;
    out_identity->chain[0] = meta.chain[0];
    out_identity->chain[1] = meta.chain[1];
    return STATUS_OK;
}

static enum status new_identity(struct journal *journal, MDB_txn *txn)
{
    struct journal_identity *identity = &journal->identity;
    memset(identity, 0, sizeof *identity);
    while (identity->node_id == 0) {
        if (getrandom(&identity->node_id, sizeof identity->node_id, 0) !=
            (ssize_t)sizeof identity->node_id) {
            return journal_lmdb_status(journal, errno, "no random number for its identity");
        }
    }
    return journal_lmdb_status(journal, put_meta(journal, txn, identity),
                               "its head cannot be written");
}

/* ---- open
 * -------------------------------------------------------------------------------------------------
 */

static enum status open_tables(struct journal *journal)
{
    const unsigned int create = journal->options.read_only ? 0u : MDB_CREATE;
    MDB_txn *txn = NULL;
    int code = mdb_txn_begin(journal->env, NULL, journal->options.read_only ? MDB_RDONLY : 0, &txn);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "it cannot be opened");
    }
    code = mdb_dbi_open(txn, "entries", create | MDB_INTEGERKEY, &journal->entries);
    code = code != 0 ? code : mdb_dbi_open(txn, "heads", create | MDB_INTEGERKEY, &journal->heads);
    code = code != 0 ? code : mdb_dbi_open(txn, "meta", create, &journal->meta);
    code = code != 0 ? code : mdb_dbi_open(txn, "snapshots", create, &journal->snapshots);
    code = code != 0 ? code : mdb_dbi_open(txn, "also", create, &journal->also);
    if (code != MDB_SUCCESS) {
        mdb_txn_abort(txn);
        if (code == MDB_NOTFOUND) {
            return status_fail(STATUS_JOURNAL_VERSION, &journal->detail, 0,
                               "journal %s: not a journal: it lacks the tables of one",
                               journal->path);
        }
        return journal_lmdb_status(journal, code, "its tables cannot be opened");
    }
    enum status status = journal_get_identity(journal, txn, &journal->identity);
    if (status == STATUS_NOT_FOUND && !journal->options.read_only) {
        status = new_identity(journal, txn);
    } else if (status == STATUS_NOT_FOUND) {
        status = status_fail(STATUS_JOURNAL_VERSION, &journal->detail, 0,
                             "journal %s: not a journal: it has no head", journal->path);
    }
    if (status != STATUS_OK) {
        mdb_txn_abort(txn);
        return status;
    }
    return journal_lmdb_status(journal, mdb_txn_commit(txn), "it cannot be written");
}

static enum status open_env(struct journal *journal)
{
    unsigned int flags = MDB_NOTLS;
    uint64_t map_bytes = MAP_BYTES_FIRST;
    int code = mdb_env_create(&journal->env);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "no memory");
    }
    if (journal->options.read_only) {
        flags |= MDB_RDONLY;
        map_bytes = 0; /* as large as the file says */
    } else {
        flags |= MDB_NORDAHEAD;
        flags |= journal->options.mode == JOURNAL_PROCESS ? MDB_NOMETASYNC : 0u;
        flags |= journal->options.mode == JOURNAL_NO_SYNC ? MDB_NOSYNC : 0u;
    }
    if (map_bytes > journal->options.map_bytes_max) {
        map_bytes = journal->options.map_bytes_max;
    }
    (void)mdb_env_set_maxdbs(journal->env, 8);
    (void)mdb_env_set_maxreaders(journal->env, 126);
    if (map_bytes != 0) {
        (void)mdb_env_set_mapsize(journal->env, map_bytes);
    }
    code = mdb_env_open(journal->env, journal->path, flags, 0640);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "it cannot be opened");
    }
    int dead = 0;
    (void)mdb_reader_check(journal->env, &dead); /* a killed reader would keep old pages for ever */
    return open_tables(journal);
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
        options->map_bytes_max == 0 ? MAP_BYTES_DEFAULT : options->map_bytes_max;
    enum status status = STATUS_OK;
    if (options->path == NULL || options->path[0] == '\0' ||
        strlen(options->path) >= sizeof journal->path) {
        status = status_fail(STATUS_INVALID, &journal->detail, 0,
                             "the journal's path is empty or too long");
    } else {
        memcpy(journal->path, options->path, strlen(options->path) + 1u);
    }
    if (status == STATUS_OK && !options->read_only && mkdir(journal->path, 0750) != 0 &&
        errno != EEXIST) {
        status =
            status_fail(STATUS_JOURNAL_IO, &journal->detail, errno,
                        "journal %s: its directory cannot be made: %s; make the directory that "
                        "it is in, for this user, or name another one (journal.path)",
                        journal->path, strerror(errno));
    }
    if (status == STATUS_OK && !options->read_only) {
        status = take_lock(journal);
    }
    if (status == STATUS_OK) {
        status = open_env(journal);
    }
    if (status != STATUS_OK) {
        if (out_detail != NULL) {
            *out_detail = journal->detail;
        }
        journal_close(journal);
        return status;
    }
    journal->pending = journal->identity;
    *out_journal = journal;
    return STATUS_OK;
}

void journal_close(struct journal *journal)
{
    if (journal == NULL) {
        return;
    }
    journal_abort(journal);
    if (journal->read != NULL) {
        mdb_txn_abort(journal->read);
    }
    if (journal->env != NULL) {
        mdb_env_close(journal->env);
    }
    lock_file_give(&journal->lock);
    free(journal);
}

enum status journal_begin_reading(struct journal *journal, MDB_txn **out_txn)
{
    int code = mdb_txn_begin(journal->env, NULL, MDB_RDONLY, out_txn);
    if (code == MDB_MAP_RESIZED) {
        (void)mdb_env_set_mapsize(journal->env, 0);
        code = mdb_txn_begin(journal->env, NULL, MDB_RDONLY, out_txn);
    }
    return journal_lmdb_status(journal, code, "it cannot be read");
}

enum status journal_identity(struct journal *journal, struct journal_identity *out_identity)
{
    if (!journal->options.read_only) {
        *out_identity = journal->identity;
        return STATUS_OK;
    }
    MDB_txn *txn = NULL;
    TRY(journal_begin_reading(journal, &txn));
    const enum status status = journal_get_identity(journal, txn, out_identity);
    mdb_txn_abort(txn);
    return status;
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
    journal->pending = journal->identity;
}

static enum status begin(struct journal *journal)
{
    if (journal->write != NULL) {
        return STATUS_OK;
    }
    journal->pending = journal->identity;
    return journal_lmdb_status(journal, mdb_txn_begin(journal->env, NULL, 0, &journal->write),
                               "no batch can be begun");
}

/* Doubles the map; the batch has to be begun again, so this happens before one. */
static enum status grow(struct journal *journal)
{
    MDB_envinfo info;
    (void)mdb_env_info(journal->env, &info);
    uint64_t size = (uint64_t)info.me_mapsize * 2u;
    if (size > journal->options.map_bytes_max) {
        size = journal->options.map_bytes_max;
    }
    if (size <= info.me_mapsize) {
        return journal_lmdb_status(journal, MDB_MAP_FULL, "it has reached journal.map_max");
    }
    if (journal->read != NULL) {
        mdb_txn_abort(journal->read);
        journal->read = NULL;
        journal->read_active = false;
    }
    return journal_lmdb_status(journal, mdb_env_set_mapsize(journal->env, size),
                               "its map cannot grow");
}

/* A quarter of the map must be free when a batch begins: no batch is that large. */
static enum status ensure_space(struct journal *journal)
{
    MDB_envinfo info;
    MDB_stat stat;
    if (journal->write != NULL) {
        return STATUS_OK;
    }
    (void)mdb_env_info(journal->env, &info);
    (void)mdb_env_stat(journal->env, &stat);
    const uint64_t used = ((uint64_t)info.me_last_pgno + 1u) * stat.ms_psize;
    if (used > (uint64_t)info.me_mapsize / 4u * 3u &&
        info.me_mapsize < journal->options.map_bytes_max) {
        return grow(journal);
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
    MDB_val room_key = val_of(&record->room, sizeof record->room);
    MDB_val value;
    int code = record->room == 0 ? MDB_NOTFOUND
                                 : mdb_get(journal->write, journal->heads, &room_key, &value);
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

    MDB_val key = val_of(&record->number, sizeof record->number);
    value = val_of(NULL, JOURNAL_HEAD_BYTES + record->payload_size);
    code = mdb_put(journal->write, journal->entries, &key, &value, MDB_APPEND | MDB_RESERVE);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "an entry cannot be appended");
    }
    memcpy(value.mv_data, bytes, JOURNAL_HEAD_BYTES);
    memcpy((unsigned char *)value.mv_data + JOURNAL_HEAD_BYTES, record->payload,
           record->payload_size);
    if (record->room != 0) {
        value = val_of(&record->number, sizeof record->number);
        code = mdb_put(journal->write, journal->heads, &room_key, &value, 0);
    }
    for (uint32_t i = 0; i < record->also_count && (code == MDB_SUCCESS || code == MDB_NOTFOUND);
         i++) {
        unsigned char raw[16];
        journal_also_key(raw, record->also[i], record->number);
        MDB_val also_key = val_of(raw, sizeof raw);
        value = val_of("", 0);
        code = mdb_put(journal->write, journal->also, &also_key, &value, 0);
    }
    journal->pending.last = record->number;
    journal->pending.first = journal->pending.first == 0 ? record->number : journal->pending.first;
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
    status = status == STATUS_OK ? begin(journal) : status;
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
    TRY(begin(journal));
    journal->pending.epoch = epoch;
    return STATUS_OK;
}

enum status journal_commit(struct journal *journal)
{
    if (journal->write == NULL) {
        return STATUS_OK;
    }
    enum status status = injected(journal);
    if (status == STATUS_OK) {
        status = journal_lmdb_status(journal, put_meta(journal, journal->write, &journal->pending),
                                     "its head cannot be written");
    }
    if (status != STATUS_OK) {
        journal_abort(journal);
        return status;
    }
    const int code = mdb_txn_commit(journal->write);
    journal->write = NULL;
    if (code != MDB_SUCCESS) {
        journal->pending = journal->identity;
        return journal_lmdb_status(journal, code, "a batch cannot be committed");
    }
    journal->identity = journal->pending;
    journal_read_pause(journal); /* reads of this handle see the batch from now on */
    return STATUS_OK;
}
