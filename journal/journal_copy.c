/* SPDX-License-Identifier: Apache-2.0 */
/* Journals copied between directories and bundles, and rewritten without unused space. */
#include "bundle_private.h"
#include "journal/journal_recover.h"
#include "journal_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)96 << 20)
#define BATCH_ENTRIES 4096u

/* ---- where entries come from
 * ------------------------------------------------------------------------------- */

enum status journal_chain_at(struct journal *journal, uint64_t number, uint64_t out_chain[2])
{
    struct journal_record record;
    if (journal->bundle != NULL) {
        if (number + 1u == bundle_head(journal->bundle)->first) {
            memcpy(out_chain, bundle_head(journal->bundle)->chain, 2u * sizeof *out_chain);
            return STATUS_OK;
        }
        return bundle_read(journal->bundle, number, &record, out_chain, &journal->detail);
    }
    struct segment *segment = journal_segment_of(journal, number + 1u);
    if (segment != NULL && segment->first == number + 1u) {
        struct segment_meta meta;
        MDB_txn *txn = NULL;
        TRY(segment_begin_reading(journal, segment, &txn));
        const enum status status = segment_get_meta(journal, segment, txn, &meta);
        mdb_txn_abort(txn);
        TRY(status);
        memcpy(out_chain, meta.before, sizeof meta.before);
        return STATUS_OK;
    }
    struct journal_head head;
    TRY(journal_read(journal, number, &record));
    journal_head_read(record.payload - JOURNAL_HEAD_BYTES, &head);
    memcpy(out_chain, head.chain, sizeof head.chain);
    return STATUS_OK;
}

const struct codec_bundle *journal_bundle_head(const struct journal *journal)
{
    return journal->bundle != NULL ? bundle_head(journal->bundle) : NULL;
}

const char *journal_bundle_broken(const struct journal *journal)
{
    return journal->bundle != NULL ? bundle_broken(journal->bundle) : "";
}

/* ---- where they go
 * ------------------------------------------------------------------------------------------ */

/* A journal without an entry becomes one that goes on after first - 1. */
static void adopt(struct journal *journal, const struct codec_bundle *head)
{
    struct segment_meta *meta = &journal->meta;
    meta->node_id = head->node_id;
    meta->epoch = head->epoch;
    meta->last = head->first - 1u;
    memcpy(meta->chain, head->chain, sizeof meta->chain);
    journal->pending = *meta;
    journal->adopted = head->first > 1u ? head->first : 0;
}

enum status journal_sink_open(struct journal_sink *sink, struct journal *borrow_journal,
                              struct bundle_writer *borrow_bundle, const struct codec_bundle *head,
                              struct status_detail *out_detail)
{
    memset(sink, 0, sizeof *sink);
    sink->journal = borrow_journal;
    sink->bundle = borrow_bundle;
    void *memory = journal_take_pages(ARENA_BYTES);
    sink->rooms = malloc(SM_TRANSITIONS_MAX * sizeof *sink->rooms);
    codec_arena_init(&sink->arena, memory, ARENA_BYTES);
    if (memory == NULL || sink->rooms == NULL) {
        journal_sink_close(sink);
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to copy a journal");
    }
    if (borrow_journal != NULL) {
        adopt(borrow_journal, head);
    }
    return STATUS_OK;
}

void journal_sink_close(struct journal_sink *sink)
{
    journal_give_pages(sink->arena.memory, ARENA_BYTES);
    free(sink->rooms);
    memset(sink, 0, sizeof *sink);
}

/* A snapshot that begins a segment makes that part of the journal when its last item is there. */
static enum status end_snapshot(struct journal_sink *sink)
{
    struct journal *journal = sink->journal;
    if (sink->items == 0 || journal == NULL) {
        return STATUS_OK;
    }
    sink->items = 0;
    if (journal->next.env == NULL) {
        return STATUS_OK;
    }
    TRY(journal_segment_end(journal));
    /* The one that the directory was made with holds nothing. */
    return journal->segment_count > 1u && journal->segments[0].first == 1u &&
                   journal->segments[1].first == journal->adopted
               ? journal_remove_oldest(journal)
               : STATUS_OK;
}

enum status sink_segment(struct journal_sink *sink, uint64_t began_ns)
{
    struct journal *journal = sink->journal;
    if (sink->bundle != NULL) {
        return bundle_segment(sink->bundle, began_ns);
    }
    TRY(end_snapshot(sink));
    TRY(journal_commit(journal));
    if (journal->meta.last == 0) {
        return STATUS_OK;
    }
    return journal_segment_begin(journal, began_ns);
}

enum status sink_snapshot_item(struct journal_sink *sink, uint64_t entry, uint32_t index,
                               const unsigned char *bytes, size_t size)
{
    if (sink->bundle != NULL) {
        return bundle_snapshot_item(sink->bundle, entry, index, bytes, size);
    }
    sink->items++;
    return journal_snapshot_put(sink->journal, entry, index, bytes, size);
}

enum status sink_entry(struct journal_sink *sink, const struct journal_record *record)
{
    struct codec_entry entry;
    struct journal_record own = *record;
    if (sink->bundle != NULL) {
        return bundle_entry(sink->bundle, record);
    }
    TRY(end_snapshot(sink));
    codec_arena_reset(&sink->arena);
    if (codec_entry_unpack(record->payload, record->payload_size, &sink->arena, &entry) !=
        STATUS_OK) {
        return status_fail(STATUS_JOURNAL_DAMAGED, &sink->journal->detail, 0,
                           "entry %" PRIu64 " does not parse", record->number);
    }
    own.also = sink->rooms;
    own.also_count =
        journal_other_rooms(entry.transitions, entry.transition_count, record->room, sink->rooms);
    TRY(journal_append(sink->journal, &own));
    return record->number % BATCH_ENTRIES == 0 ? journal_commit(sink->journal) : STATUS_OK;
}

enum status sink_settle(struct journal_sink *sink)
{
    if (sink->bundle != NULL) {
        return bundle_settle(sink->bundle);
    }
    TRY(end_snapshot(sink));
    /* Also when there is no entry: whose journal it is must be in it. */
    TRY(journal_note_epoch(sink->journal, sink->journal->meta.epoch));
    return journal_commit(sink->journal);
}

const struct status_detail *journal_sink_detail(const struct journal_sink *sink)
{
    return sink->bundle != NULL ? bundle_detail(sink->bundle) : journal_detail(sink->journal);
}

/* A snapshot that broke off begins no segment. */
static void give_up_segment(struct journal_sink *sink)
{
    if (sink->journal != NULL && sink->journal->next.env != NULL) {
        journal_abort(sink->journal);
        sink->items = 0;
    }
}

/* ---- copying
 * ------------------------------------------------------------------------------------------ */

struct copying {
    struct journal *from;
    struct journal_sink *sink;
    struct status_detail *detail;
};

static enum status source_failed(struct copying *copying, enum status status)
{
    *copying->detail = *journal_detail(copying->from);
    return status;
}

static enum status sink_failed(struct copying *copying, enum status status)
{
    *copying->detail = *journal_sink_detail(copying->sink);
    return status;
}

static enum status copy_snapshot(struct copying *copying, uint64_t entry)
{
    const unsigned char *bytes = NULL;
    size_t size = 0;
    for (uint32_t index = 0;; index++) {
        enum status status = journal_snapshot_get(copying->from, entry, index, &bytes, &size);
        if (status == STATUS_END) {
            return STATUS_OK;
        }
        if (status != STATUS_OK) {
            return source_failed(copying, status);
        }
        status = sink_snapshot_item(copying->sink, entry, index, bytes, size);
        if (status != STATUS_OK) {
            return sink_failed(copying, status);
        }
    }
}

/* The segment that begins with the entry, and what it begins with. */
static enum status copy_beginning(struct copying *copying, uint64_t number, uint32_t *at)
{
    struct journal_segment segment;
    uint64_t first = journal_segment_first(copying->from, *at);
    while (first != 0 && first < number) {
        first = journal_segment_first(copying->from, ++*at);
    }
    if (first != number) {
        return STATUS_OK;
    }
    enum status status = journal_segment_at(copying->from, *at, &segment);
    if (status != STATUS_OK) {
        return source_failed(copying, status);
    }
    status = sink_segment(copying->sink, segment.began_ns);
    if (status != STATUS_OK) {
        return sink_failed(copying, status);
    }
    return number > 1u ? copy_snapshot(copying, number - 1u) : STATUS_OK;
}

static enum status copy_entry(struct copying *copying, uint64_t number, struct journal_copied *out)
{
    struct journal_record record;
    enum status status = journal_read(copying->from, number, &record);
    if (status != STATUS_OK) {
        return source_failed(copying, status);
    }
    status = sink_entry(copying->sink, &record);
    if (status != STATUS_OK) {
        return sink_failed(copying, status);
    }
    out->entries++;
    out->last = number;
    out->bytes += record.payload_size;
    return STATUS_OK;
}

/* The copied chain must be the journal's own: else an entry is not the one that was there. */
static enum status same_chain(struct copying *copying, uint64_t number)
{
    uint64_t here[2];
    uint64_t there[2];
    const enum status status = journal_chain_at(copying->from, number, here);
    if (status != STATUS_OK) {
        return source_failed(copying, status);
    }
    if (copying->sink->bundle != NULL) {
        bundle_chain(copying->sink->bundle, there);
    } else {
        memcpy(there, copying->sink->journal->pending.chain, sizeof there);
    }
    return memcmp(here, there, sizeof here) == 0
               ? STATUS_OK
               : status_fail(
                     STATUS_JOURNAL_DAMAGED, copying->detail, 0,
                     "entry %" PRIu64
                     " is out of the chain: an entry before it was altered, lost or swapped",
                     number);
}

static enum status copy_all(struct copying *copying, uint64_t from, uint64_t until,
                            const struct journal_copy_options *options, struct journal_copied *out)
{
    uint32_t at = 0;
    for (uint64_t number = from; number <= until; number++) {
        if (options->progress != NULL) {
            options->progress(options->context, number);
        }
        TRY(copy_beginning(copying, number, &at));
        TRY(copy_entry(copying, number, out));
        /* Each entry: a chain that breaks later than the entry that broke it saves nothing. */
        TRY(same_chain(copying, number));
    }
    return until >= from && options->last_snapshot ? copy_snapshot(copying, until) : STATUS_OK;
}

static uint64_t wall_of(struct copying *copying, uint64_t number)
{
    struct journal_record record;
    struct codec_entry entry;
    codec_arena_reset(&copying->sink->arena);
    return number != 0 && journal_read(copying->from, number, &record) == STATUS_OK &&
                   codec_entry_unpack(record.payload, record.payload_size, &copying->sink->arena,
                                      &entry) == STATUS_OK
               ? entry.wall_ns
               : 0;
}

enum status journal_copy(struct journal *journal, uint64_t from, uint64_t until,
                         struct journal_sink *sink, const struct journal_copy_options *options,
                         struct journal_copied *out, struct status_detail *out_detail)
{
    struct copying copying = {journal, sink, out_detail};
    memset(out, 0, sizeof *out);
    const enum status status = copy_all(&copying, from, until, options, out);
    if (status != STATUS_OK) {
        give_up_segment(sink);
    }
    out->last_wall_ns = wall_of(&copying, out->last);
    journal_read_pause(journal);
    const enum status settled = sink_settle(sink);
    if (status != STATUS_OK) {
        return status;
    }
    return settled == STATUS_OK ? STATUS_OK : sink_failed(&copying, settled);
}

/* ---- without unused space
 * ------------------------------------------------------------------------------------- */

static enum status rewrite(struct journal *journal, struct segment *segment, const char *path,
                           const char *fresh)
{
    MDB_txn *txn = NULL;
    TRY(segment_begin_reading(journal, segment, &txn)); /* opens it */
    mdb_txn_abort(txn);
    const int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    int code = fd < 0 ? errno : 0;
    code = code == 0 ? mdb_env_copyfd2(segment->env, fd, MDB_CP_COMPACT) : code;
    code = code == 0 && fsync(fd) != 0 ? errno : code;
    if (fd >= 0) {
        (void)close(fd);
    }
    code = code == 0 && rename(fresh, path) != 0 ? errno : code;
    if (code != 0) {
        (void)unlink(fresh);
    }
    return journal_lmdb_status(journal, code, "a segment cannot be rewritten");
}

static uint64_t size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

enum status journal_compact(struct journal *journal, uint64_t *out_before, uint64_t *out_after)
{
    enum status status = STATUS_OK;
    *out_before = 0;
    *out_after = 0;
    for (uint32_t i = 0; i < journal->segment_count && status == STATUS_OK; i++) {
        char path[SEGMENT_PATH_BYTES];
        char fresh[SEGMENT_PATH_BYTES + 8u];
        segment_path(journal, &journal->segments[i], path, sizeof path);
        (void)snprintf(fresh, sizeof fresh, "%s.new", path);
        *out_before += size_of(path);
        status = rewrite(journal, &journal->segments[i], path, fresh);
        *out_after += size_of(path);
    }
    TRY(status);
    return journal_sync_names(journal);
}
