/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: the list of them, one LMDB environment each, the head of each; beginning another,
 * removing old ones. */
#include "bundle_private.h"
#include "journal_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_DIGITS 20u
/* LMDB's for its 126 readers has 8 KiB; what is more are more readers. */
#define LOCK_FILE_BYTES 16384
/* Old segments that a reader has open at one time: each may keep a removed file alive. */
#define OPEN_MAX 8u

/* ---- names
 * --------------------------------------------------------------------------------------------- */

void segment_path(const struct journal *journal, const struct segment *segment, char *out_path,
                  size_t size)
{
    if (segment == &journal->next) {
        (void)snprintf(out_path, size, "%s/next.mdb", journal->path);
    } else {
        (void)snprintf(out_path, size, "%s/%020" PRIu64 ".mdb", journal->path, segment->first);
    }
}

/* The number that a segment's file is named by; 0: it is no segment's. */
static uint64_t number_of_name(const char *name)
{
    if (strspn(name, "0123456789") != NAME_DIGITS || strcmp(name + NAME_DIGITS, ".mdb") != 0) {
        return 0;
    }
    errno = 0;
    const uint64_t number = strtoull(name, NULL, 10);
    return errno == 0 ? number : 0;
}

enum status journal_sync_names(struct journal *journal)
{
    const int fd = open(journal->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = fd < 0 ? errno : 0;
    if (fd >= 0) {
        code = fsync(fd) != 0 ? errno : 0;
        (void)close(fd);
    }
    return journal_lmdb_status(journal, code, "its directory cannot be synced");
}

/* ---- the head of a segment
 * ------------------------------------------------------------------------------------ */

struct raw_meta {
    uint32_t format;
    uint32_t features; /* bits that a reader must know; none yet */
    struct segment_meta meta;
};

enum status segment_put_meta(struct journal *journal, struct segment *segment, MDB_txn *txn,
                             const struct segment_meta *meta)
{
    const struct raw_meta raw = {JOURNAL_FORMAT_VERSION, 0, *meta};
    const uint64_t id = mdb_txn_id(txn);
    MDB_val key = journal_val("journal", 7);
    MDB_val value = journal_val(&raw, sizeof raw);
    int code = mdb_put(txn, segment->meta, &key, &value, 0);
    if (code == MDB_SUCCESS) {
        /* For verification: a page number that was altered can lead to an older, whole tree. */
        key = journal_val("txn", 3);
        value = journal_val(&id, sizeof id);
        code = mdb_put(txn, segment->meta, &key, &value, 0);
    }
    return journal_lmdb_status(journal, code, "its head cannot be written");
}

enum status segment_get_meta(struct journal *journal, struct segment *segment, MDB_txn *txn,
                             struct segment_meta *out_meta)
{
    MDB_val key = journal_val("journal", 7);
    MDB_val value;
    struct raw_meta raw;
    const int code = mdb_get(txn, segment->meta, &key, &value);
    if (code != MDB_SUCCESS) {
        return code == MDB_NOTFOUND ? STATUS_NOT_FOUND
                                    : journal_lmdb_status(journal, code, "its head cannot be read");
    }
    memset(&raw, 0, sizeof raw);
    memcpy(&raw, value.mv_data, value.mv_size < 8u ? value.mv_size : 8u);
    if (raw.format != JOURNAL_FORMAT_VERSION || raw.features != 0 || value.mv_size != sizeof raw) {
        return status_fail(STATUS_JOURNAL_VERSION, &journal->detail, 0,
                           "journal %s: format %u, features 0x%x; this program reads format %u "
                           "without features; use the program version that wrote it",
                           journal->path, raw.format, raw.features, JOURNAL_FORMAT_VERSION);
    }
    memcpy(&raw, value.mv_data, sizeof raw);
    *out_meta = raw.meta;
    if (out_meta->first != segment->first || out_meta->last + 1u < out_meta->first) {
        return status_fail(STATUS_JOURNAL_DAMAGED, &journal->detail, 0,
                           "journal %s: the segment from entry %" PRIu64
                           " has the head of another one",
                           journal->path, segment->first);
    }
    return STATUS_OK;
}

/* ---- opening and closing
 * ---------------------------------------------------------------------------------------- */

static enum status open_tables(struct journal *journal, struct segment *segment, bool create)
{
    const unsigned int flags = create ? MDB_CREATE : 0u;
    MDB_txn *txn = NULL;
    int code = mdb_txn_begin(segment->env, NULL, create ? 0u : MDB_RDONLY, &txn);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "it cannot be opened");
    }
    code = mdb_dbi_open(txn, "entries", flags | MDB_INTEGERKEY, &segment->entries);
    code = code != 0 ? code : mdb_dbi_open(txn, "heads", flags | MDB_INTEGERKEY, &segment->heads);
    code = code != 0 ? code : mdb_dbi_open(txn, "meta", flags, &segment->meta);
    code = code != 0 ? code : mdb_dbi_open(txn, "snapshots", flags, &segment->snapshots);
    code = code != 0 ? code : mdb_dbi_open(txn, "also", flags, &segment->also);
    if (code != MDB_SUCCESS) {
        mdb_txn_abort(txn);
        return code == MDB_NOTFOUND
                   ? status_fail(STATUS_JOURNAL_DAMAGED, &journal->detail, 0,
                                 "journal %s: the segment from entry %" PRIu64
                                 " lacks the tables of one: it is damaged, or another program's",
                                 journal->path, segment->first)
                   : journal_lmdb_status(journal, code, "its tables cannot be opened");
    }
    return journal_lmdb_status(journal, mdb_txn_commit(txn), "it cannot be written");
}

static unsigned int env_flags(const struct journal *journal, const struct segment *segment)
{
    const bool newest =
        segment == &journal->next || segment == &journal->segments[journal->segment_count - 1u];
    unsigned int flags = MDB_NOTLS | MDB_NOSUBDIR;
    if (!segment->write) {
        /* A segment that is not the newest never changes: it needs no lock, and no right to make
         * one. */
        return flags | MDB_RDONLY | (newest ? 0u : MDB_NOLOCK);
    }
    /* The second flush of a commit is ours to make or to leave out (journal_flush). */
    flags |= MDB_NORDAHEAD | MDB_NOMETASYNC;
    return flags | (journal->options.mode == JOURNAL_NO_SYNC ? MDB_NOSYNC : 0u);
}

/*
 * LMDB makes its lock file as long as it needs it, without space, and then writes to it through a
 * map: on a full disk that kills the process. So the space is taken before. Once it is there the
 * file is not opened: closing it would give up the locks that this process has on it.
 */
static int make_lock_file(const char *segment_path)
{
    char path[SEGMENT_PATH_BYTES + 8u];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s-lock", segment_path);
    if (stat(path, &info) == 0 && (uint64_t)info.st_blocks * 512u >= LOCK_FILE_BYTES) {
        return 0;
    }
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (fd < 0) {
        return errno;
    }
    const int code = posix_fallocate(fd, 0, LOCK_FILE_BYTES);
    (void)close(fd);
    return code;
}

static enum status open_env(struct journal *journal, struct segment *segment)
{
    char path[SEGMENT_PATH_BYTES];
    uint64_t map_bytes = journal->options.map_bytes_first;
    int code = mdb_env_create(&segment->env);
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "no memory");
    }
    if (map_bytes > journal->options.map_bytes_max) {
        map_bytes = journal->options.map_bytes_max;
    }
    (void)mdb_env_set_maxdbs(segment->env, 8);
    (void)mdb_env_set_maxreaders(segment->env, 126);
    /* A reader's map is as large as the file says. */
    (void)mdb_env_set_mapsize(segment->env, segment->write ? map_bytes : 0);
    segment_path(journal, segment, path, sizeof path);
    code = segment->write ? make_lock_file(path) : 0;
    if (code == 0) {
        code = mdb_env_open(segment->env, path, env_flags(journal, segment), 0640);
    }
    if (code != MDB_SUCCESS) {
        return journal_lmdb_status(journal, code, "it cannot be opened");
    }
    int dead = 0;
    (void)mdb_reader_check(segment->env, &dead); /* a killed reader would keep old pages for ever */
    return STATUS_OK;
}

static void close_the_longest_unread(struct journal *journal, const struct segment *but)
{
    struct segment *found = NULL;
    uint32_t open_count = 0;
    for (uint32_t i = 0; i + 1u < journal->segment_count; i++) {
        struct segment *segment = &journal->segments[i];
        if (segment->env != NULL && segment != but) {
            open_count++;
            found = found == NULL || segment->used < found->used ? segment : found;
        }
    }
    if (open_count >= OPEN_MAX) {
        segment_close(found);
    }
}

enum status segment_open(struct journal *journal, struct segment *segment, bool create)
{
    if (segment->env != NULL && (segment->write || !create)) {
        return STATUS_OK;
    }
    segment_close(segment); /* opened only to be read, after a failure */
    close_the_longest_unread(journal, segment);
    segment->write = create;
    enum status status = open_env(journal, segment);
    status = status == STATUS_OK ? open_tables(journal, segment, create) : status;
    if (status != STATUS_OK) {
        segment_close(segment);
    }
    return status;
}

void segment_close(struct segment *segment)
{
    if (segment->read != NULL) {
        mdb_txn_abort(segment->read);
    }
    if (segment->env != NULL) {
        mdb_env_close(segment->env);
    }
    *segment = (struct segment){.first = segment->first};
}

bool segment_is_stuck(const struct segment *segment)
{
    MDB_txn *txn = NULL;
    const int code = mdb_txn_begin(segment->env, NULL, MDB_RDONLY, &txn);
    if (code == MDB_SUCCESS) {
        mdb_txn_abort(txn);
    }
    return code == MDB_PANIC;
}

enum status segment_begin_reading(struct journal *journal, struct segment *segment,
                                  MDB_txn **out_txn)
{
    TRY(segment_open(journal, segment, false));
    int code = mdb_txn_begin(segment->env, NULL, MDB_RDONLY, out_txn);
    if (code == MDB_MAP_RESIZED) {
        code = mdb_env_set_mapsize(segment->env, 0);
        if (code != MDB_SUCCESS) {
            segment_close(segment); /* LMDB has no map any more, and does not look */
            return journal_lmdb_status(journal, code, "it cannot be read");
        }
        code = mdb_txn_begin(segment->env, NULL, MDB_RDONLY, out_txn);
    }
    return journal_lmdb_status(journal, code, "it cannot be read");
}

uint64_t segment_bytes(const struct segment *segment)
{
    MDB_envinfo info;
    MDB_stat stat;
    (void)mdb_env_info(segment->env, &info);
    (void)mdb_env_stat(segment->env, &stat);
    return ((uint64_t)info.me_last_pgno + 1u) * stat.ms_psize;
}

/* ---- the list
 * -------------------------------------------------------------------------------------------- */

struct segment *journal_newest(struct journal *journal)
{
    return &journal->segments[journal->segment_count - 1u];
}

uint32_t journal_segment_index(const struct journal *journal, const struct segment *segment)
{
    return (uint32_t)(segment - journal->segments);
}

struct segment *journal_segment_of(struct journal *journal, uint64_t number)
{
    uint32_t low = 0;
    uint32_t high = journal->segment_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2u;
        if (journal->segments[middle].first <= number) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low == 0 ? NULL : &journal->segments[low - 1u];
}

static int by_first(const void *a, const void *b)
{
    const struct segment *x = a;
    const struct segment *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

enum status journal_add_segment(struct journal *journal, uint64_t first)
{
    if (journal->segment_count == journal->segment_capacity) {
        const uint32_t capacity =
            journal->segment_capacity == 0 ? 16u : 2u * journal->segment_capacity;
        struct segment *grown = realloc(journal->segments, capacity * sizeof *grown);
        if (grown == NULL) {
            return status_fail(STATUS_NO_MEMORY, &journal->detail, 0, "no memory for a journal");
        }
        journal->segments = grown;
        journal->segment_capacity = capacity;
    }
    journal->segments[journal->segment_count++] = (struct segment){.first = first};
    return STATUS_OK;
}

static struct segment *segment_named(struct journal *journal, uint64_t first)
{
    for (uint32_t i = 0; i < journal->segment_count; i++) {
        if (journal->segments[i].first == first) {
            return &journal->segments[i];
        }
    }
    return NULL;
}

static void drop_unseen(struct journal *journal, uint64_t tick)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < journal->segment_count; i++) {
        if (journal->segments[i].used >= tick) {
            journal->segments[kept++] = journal->segments[i];
        } else {
            segment_close(&journal->segments[i]);
        }
    }
    journal->segment_count = kept;
    if (kept > 0) {
        qsort(journal->segments, kept, sizeof journal->segments[0], by_first);
    }
}

enum status journal_scan(struct journal *journal, bool in_any_case)
{
    struct stat stat_now;
    if (stat(journal->path, &stat_now) != 0) {
        return journal_lmdb_status(journal, errno, "its directory cannot be read");
    }
    if (!in_any_case && stat_now.st_mtim.tv_sec == journal->scanned.tv_sec &&
        stat_now.st_mtim.tv_nsec == journal->scanned.tv_nsec) {
        return STATUS_OK;
    }
    DIR *directory = opendir(journal->path);
    if (directory == NULL) {
        return journal_lmdb_status(journal, errno, "its directory cannot be read");
    }
    const uint64_t tick = ++journal->tick;
    const uint64_t leave_from = journal->options.leave_from;
    enum status status = STATUS_OK;
    for (struct dirent *entry = readdir(directory); entry != NULL && status == STATUS_OK;
         entry = readdir(directory)) {
        uint64_t first = number_of_name(entry->d_name);
        first = leave_from != 0 && first >= leave_from ? 0 : first;
        if (first != 0 && segment_named(journal, first) == NULL) {
            status = journal_add_segment(journal, first);
        }
        if (first != 0 && status == STATUS_OK) {
            segment_named(journal, first)->used = tick;
        }
    }
    (void)closedir(directory);
    TRY(status);
    drop_unseen(journal, tick);
    journal->scanned = stat_now.st_mtim;
    return STATUS_OK;
}

enum status journal_refuse_older(struct journal *journal)
{
    char path[SEGMENT_PATH_BYTES];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/data.mdb", journal->path);
    return stat(path, &info) != 0
               ? STATUS_OK
               : status_fail(STATUS_JOURNAL_VERSION, &journal->detail, 0,
                             "journal %s: data.mdb is a journal of format 1, or another program's; "
                             "this program reads format %u: use the program version that wrote it, "
                             "or name another directory (journal.path)",
                             journal->path, JOURNAL_FORMAT_VERSION);
}

/* ---- beginning another
 * ---------------------------------------------------------------------------------------- */

bool journal_segment_full(const struct journal *journal)
{
    const struct segment *newest = &journal->segments[journal->segment_count - 1u];
    /* However large the snapshot that it begins with: without an entry it is not full. */
    return journal->options.segment_bytes != 0 && newest->env != NULL &&
           journal->meta.last >= newest->first &&
           segment_bytes(newest) >= journal->options.segment_bytes;
}

void journal_drop_next(struct journal *journal)
{
    char path[SEGMENT_PATH_BYTES];
    char lock[SEGMENT_PATH_BYTES + 8u];
    segment_close(&journal->next);
    segment_path(journal, &journal->next, path, sizeof path);
    (void)snprintf(lock, sizeof lock, "%s-lock", path);
    (void)unlink(path);
    (void)unlink(lock);
}

/* An empty segment to be, in a batch of its own, after what `meta` says. */
static enum status open_next(struct journal *journal, const struct segment_meta *meta,
                             uint64_t now_ns)
{
    journal_drop_next(journal);
    journal->next.first = meta->last + 1u;
    enum status status = segment_open(journal, &journal->next, true);
    if (status == STATUS_OK) {
        status =
            journal_lmdb_status(journal, mdb_txn_begin(journal->next.env, NULL, 0, &journal->write),
                                "a segment cannot be begun");
    }
    if (status != STATUS_OK) {
        journal_drop_next(journal);
        return status;
    }
    struct segment_meta *pending = &journal->pending;
    *pending = *meta;
    pending->first = journal->next.first;
    memcpy(pending->before, pending->chain, sizeof pending->before);
    pending->began_ns = now_ns;
    return STATUS_OK;
}

enum status journal_segment_begin(struct journal *journal, uint64_t now_ns)
{
    if (journal->write != NULL || journal->next.env != NULL) {
        return status_fail(STATUS_INVALID, &journal->detail, 0,
                           "journal %s: a segment cannot begin in a batch", journal->path);
    }
    /* The old one ends here: after this nothing makes it durable any more. */
    TRY(journal_flush_fully(journal));
    return open_next(journal, &journal->meta, now_ns);
}

static enum status publish_next(struct journal *journal)
{
    char from[SEGMENT_PATH_BYTES];
    char to[SEGMENT_PATH_BYTES];
    char lock_from[SEGMENT_PATH_BYTES + 8u];
    char lock_to[SEGMENT_PATH_BYTES + 8u];
    const struct segment named = {.first = journal->next.first};
    segment_path(journal, &journal->next, from, sizeof from);
    segment_path(journal, &named, to, sizeof to);
    (void)snprintf(lock_from, sizeof lock_from, "%s-lock", from);
    (void)snprintf(lock_to, sizeof lock_to, "%s-lock", to);
    /* The lock first: who sees the segment must find the writer's lock beside it. */
    if (rename(lock_from, lock_to) != 0 || rename(from, to) != 0) {
        return journal_lmdb_status(journal, errno, "a segment cannot be named");
    }
    return STATUS_OK;
}

/* It takes the newest one's place when that has no entry: the two have one name. */
static bool replaces_newest(struct journal *journal)
{
    return journal->segment_count > 0 && journal_newest(journal)->first == journal->next.first;
}

static enum status finish_next(struct journal *journal)
{
    TRY(segment_put_meta(journal, &journal->next, journal->write, &journal->pending));
    MDB_txn *txn = journal->write;
    journal->write = NULL;
    TRY(journal_lmdb_status(journal, mdb_txn_commit(txn), "a segment cannot be committed"));
    if (journal->options.mode != JOURNAL_NO_SYNC) {
        TRY(journal_lmdb_status(journal, mdb_env_sync(journal->next.env, 1),
                                "a segment cannot be synced"));
    }
    const uint32_t count = journal->segment_count;
    if (!replaces_newest(journal)) {
        TRY(journal_add_segment(journal, journal->next.first));
    }
    const enum status status = publish_next(journal);
    if (status != STATUS_OK) {
        journal->segment_count = count;
    }
    return status;
}

enum status journal_segment_end(struct journal *journal)
{
    const uint32_t before = journal->segment_count; /* 0: this is the journal's first */
    const enum status status = finish_next(journal);
    if (status != STATUS_OK) {
        journal_abort(journal);
        return status;
    }
    const uint64_t first = journal->next.first;
    if (before > 0) {
        segment_close(&journal->segments[before - 1u]);
    }
    *journal_newest(journal) = journal->next;
    journal->next = (struct segment){.first = first};
    journal->meta = journal->pending;
    /* The segment is there; nothing in it is durable before its name is. */
    journal->names_unsynced = true;
    journal_keep_heads(journal);
    return journal_flush(journal);
}

enum status journal_first_segment(struct journal *journal, uint64_t node_id)
{
    const struct segment_meta nothing = {.node_id = node_id};
    TRY(open_next(journal, &nothing, 0));
    return journal_segment_end(journal);
}

/* ---- looking and removing
 * ------------------------------------------------------------------------------------------- */

uint32_t journal_segment_count(struct journal *journal)
{
    if (journal->bundle != NULL) {
        return bundle_segment_count(journal->bundle);
    }
    if (journal->options.read_only) {
        (void)journal_scan(journal, true);
    }
    return journal->segment_count;
}

uint64_t journal_segment_first(const struct journal *journal, uint32_t index)
{
    if (journal->bundle != NULL) {
        return bundle_segment_first(journal->bundle, index);
    }
    return index < journal->segment_count ? journal->segments[index].first : 0;
}

static uint64_t file_bytes(const struct journal *journal, const struct segment *segment)
{
    char path[SEGMENT_PATH_BYTES];
    struct stat info;
    segment_path(journal, segment, path, sizeof path);
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

enum status journal_segment_at(struct journal *journal, uint32_t index, struct journal_segment *out)
{
    struct segment_meta meta;
    MDB_txn *txn = NULL;
    if (journal->bundle != NULL) {
        return bundle_segment_at(journal->bundle, index, out, &journal->detail);
    }
    if (index >= journal->segment_count) {
        return STATUS_NOT_FOUND;
    }
    struct segment *segment = &journal->segments[index];
    TRY(segment_begin_reading(journal, segment, &txn));
    const enum status status = segment_get_meta(journal, segment, txn, &meta);
    mdb_txn_abort(txn);
    TRY(status);
    segment->used = ++journal->tick;
    out->first = meta.first;
    out->last = meta.last;
    out->began_ns = meta.began_ns;
    out->bytes = file_bytes(journal, segment);
    out->newest = index + 1u == journal->segment_count;
    return STATUS_OK;
}

enum status journal_remove_oldest(struct journal *journal)
{
    char path[SEGMENT_PATH_BYTES];
    char lock[SEGMENT_PATH_BYTES + 8u];
    segment_close(&journal->segments[0]);
    segment_path(journal, &journal->segments[0], path, sizeof path);
    (void)snprintf(lock, sizeof lock, "%s-lock", path);
    if (unlink(path) != 0 && errno != ENOENT) {
        return journal_lmdb_status(journal, errno, "an old segment cannot be removed");
    }
    (void)unlink(lock);
    journal->segment_count--;
    memmove(journal->segments, journal->segments + 1,
            journal->segment_count * sizeof journal->segments[0]);
    /* Before the next one goes: a power loss must not bring this one back without that one. */
    journal->names_unsynced = true;
    return journal_flush(journal);
}

enum status journal_trim_before(struct journal *journal, uint64_t number, uint32_t *out_removed)
{
    *out_removed = 0;
    while (journal->segment_count > 1u && journal->segments[1].first <= number) {
        TRY(journal_remove_oldest(journal));
        ++*out_removed;
    }
    return STATUS_OK;
}

uint64_t journal_newest_named(const char *path, uint64_t before)
{
    uint64_t newest = 0;
    DIR *directory = opendir(path);
    for (struct dirent *entry = directory != NULL ? readdir(directory) : NULL; entry != NULL;
         entry = readdir(directory)) {
        const uint64_t first = number_of_name(entry->d_name);
        newest = first > newest && (before == 0 || first < before) ? first : newest;
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
    return newest;
}

enum status journal_trim(struct journal *journal, const struct journal_retention *retention,
                         uint64_t now_ns, uint32_t *out_removed)
{
    uint64_t total = 0;
    *out_removed = 0;
    for (uint32_t i = 0; i < journal->segment_count; i++) {
        total += file_bytes(journal, &journal->segments[i]);
    }
    while (journal->segment_count > 1u) {
        struct journal_segment after;
        TRY(journal_segment_at(journal, 1, &after));
        const bool too_old = retention->keep_ns != 0 && after.began_ns != 0 &&
                             after.began_ns + retention->keep_ns < now_ns;
        if (!too_old && (retention->keep_bytes == 0 || total <= retention->keep_bytes)) {
            break;
        }
        total -= file_bytes(journal, &journal->segments[0]);
        TRY(journal_remove_oldest(journal));
        ++*out_removed;
    }
    return STATUS_OK;
}
