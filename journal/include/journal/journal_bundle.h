/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bundles: a journal, or a part of one, in one file that can be sent: checked, chained, compressed.
 * The bytes are specified in journal/FORMAT.md. journal_open reads one wherever it reads a
 * directory; here they are written, and journals copied between the two forms.
 *
 * Layer: zstd, xxHash, files; knows entries as framed bytes. Never steps the machine, never logs.
 *
 * Ownership: bytes given to a writer are copied.
 *
 * Threads: one owner.
 *
 * Limits: a block holds about 256 KiB of entries, or one entry of JOURNAL_PAYLOAD_MAX; a writer
 * needs three blocks of memory, a reader a few more and 16 bytes an entry once rooms are asked for.
 *
 * Durability: a bundle has its name when bundle_finish has returned; until then it is NAME.part,
 * whose whole blocks can be read with journal_options.salvage.
 *
 * Failure: a bundle that is damaged is STATUS_JOURNAL_DAMAGED with the block and its place; nothing
 * in a file can crash its reader or make it use memory without bound.
 */
#ifndef JOURNAL_JOURNAL_BUNDLE_H
#define JOURNAL_JOURNAL_BUNDLE_H

#include "journal/journal.h"
#include "schemas/codec.h"

struct bundle_writer;

/*
 * Begins PATH.part ("-": standard output, nothing is renamed). STATUS_EXISTS when PATH is there.
 * head->first and head->chain say where the entries begin.
 */
enum status bundle_create(const char *path, const struct codec_bundle *head,
                          struct bundle_writer **out_writer, struct status_detail *out_detail);
/* A segment begins with the next entry; if that is not 1, a snapshot must follow. */
enum status bundle_segment(struct bundle_writer *writer, uint64_t began_ns);
/* Items 0, 1, ... of a snapshot at the last entry. */
enum status bundle_snapshot_item(struct bundle_writer *writer, uint64_t entry, uint32_t index,
                                 const unsigned char *bytes, size_t size);
/* The next entry; record->number must be that. */
enum status bundle_entry(struct bundle_writer *writer, const struct journal_record *record);
/* What was put last becomes a whole block of the file. */
enum status bundle_settle(struct bundle_writer *writer);
/* Chain over all entries so far. */
void bundle_chain(const struct bundle_writer *writer, uint64_t out_chain[2]);
const struct status_detail *bundle_detail(const struct bundle_writer *writer);
/* Ends it, flushes it and gives it its name; frees the writer also on failure. */
enum status bundle_finish(struct bundle_writer *take_writer, uint64_t *out_bytes,
                          struct status_detail *out_detail);
/* Gives it up: the file goes. */
void bundle_abandon(struct bundle_writer *take_writer);

/* What a bundle says of itself; NULL for a directory. Borrowed from the handle. */
const struct codec_bundle *journal_bundle_head(const struct journal *journal);
/* With journal_options.salvage: why the bundle could not be read to its end; "" it could. */
const char *journal_bundle_broken(const struct journal *journal);

/* ---- copying
 * ------------------------------------------------------------------------------------------ */

/* The chain over everything up to an entry, or up to the one before the journal's first. */
enum status journal_chain_at(struct journal *journal, uint64_t number, uint64_t out_chain[2]);

/* Where entries go: a bundle or a new journal; the same calls in the same order as a bundle's. */
struct journal_sink {
    struct bundle_writer *bundle; /* one of the two */
    struct journal *journal;
    uint32_t items; /* of the snapshot that is being written */
    struct codec_arena arena;
    uint64_t *rooms; /* SM_TRANSITIONS_MAX */
};

/* A directory's: made empty by journal_open, it takes node, epoch and chain from `head`. */
enum status journal_sink_open(struct journal_sink *out_sink, struct journal *borrow_journal,
                              struct bundle_writer *borrow_bundle, const struct codec_bundle *head,
                              struct status_detail *out_detail);
void journal_sink_close(struct journal_sink *sink);
/* Detail of the last failure of what it writes to. */
const struct status_detail *journal_sink_detail(const struct journal_sink *sink);

struct journal_copied {
    uint64_t entries;
    uint64_t last; /* copied */
    uint64_t last_wall_ns;
    uint64_t bytes; /* payload */
};

struct journal_copy_options {
    void (*progress)(void *context, uint64_t number); /* before each entry is read; or NULL */
    void *context;
    bool last_snapshot; /* also the one at the last entry, if there is one */
};

/*
 * Copies entries from..until, with the snapshots that segments begin with. The snapshot that the
 * first entry needs, when that begins no segment, is the caller's to put first. On failure what was
 * copied before is in the sink, and *out_copied says how far it came.
 */
enum status journal_copy(struct journal *journal, uint64_t from, uint64_t until,
                         struct journal_sink *sink, const struct journal_copy_options *options,
                         struct journal_copied *out_copied, struct status_detail *out_detail);

/* Into a sink, as the calls of a bundle. */
enum status sink_segment(struct journal_sink *sink, uint64_t began_ns);
enum status sink_snapshot_item(struct journal_sink *sink, uint64_t entry, uint32_t index,
                               const unsigned char *bytes, size_t size);
enum status sink_entry(struct journal_sink *sink, const struct journal_record *record);
/* What was put last is committed, or a whole block. */
enum status sink_settle(struct journal_sink *sink);

/*
 * By their names alone: the first entry of the newest segment that begins before `before` (0: of
 * all); 0 when there is none. For a journal whose newest segment cannot be opened.
 */
uint64_t journal_newest_named(const char *path, uint64_t before);

/* Removes whole segments whose entries are all before `number`; never the newest. */
enum status journal_trim_before(struct journal *journal, uint64_t number, uint32_t *out_removed);

/*
 * Rewrites the segments of a journal that is open for writing without the space that nothing uses;
 * close it afterwards. Each goes over at once, or stays as it was.
 */
enum status journal_compact(struct journal *journal, uint64_t *out_before, uint64_t *out_after);

#endif
