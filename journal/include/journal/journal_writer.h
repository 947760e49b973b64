/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal thread: commits what has arrived, batch after batch, and says how far the journal is
 * durable. No timer: a batch is what has arrived while the last one was being written (at most a
 * bound). In mode SYNC a batch is durable when the one after it is committed, which saves a flush;
 * when nothing follows it is flushed at once. It begins segments and removes old ones.
 *
 * Layer: journal.h, threads.
 *
 * Ownership: the writer owns the journal handle from start to stop.
 *
 * Threads: one thread submits (the machine's); the rest is the writer's own thread.
 *
 * Failure: when a commit or a flush fails, the writer keeps the status, drops what it was given
 * after the last entry that is in the journal (writer_written), and waits for writer_retry with new
 * entries. The numbers after that one are given again. A segment that cannot be begun is no failure
 * of the journal: it is counted, and tried again at the next snapshot.
 */
#ifndef JOURNAL_JOURNAL_WRITER_H
#define JOURNAL_JOURNAL_WRITER_H

#include "journal/journal.h"

struct journal_writer;

struct writer_options {
    int wake_fd; /* an eventfd of the machine thread, written when durable moves or fails */
    struct journal_retention retention; /* applied whenever a segment has begun */
};

/* Takes the handle over. */
enum status writer_start(struct journal *take_journal, const struct writer_options *options,
                         struct journal_writer **out_writer, struct status_detail *out_detail);
/* Commits what it has, stops the thread, and gives the handle back. */
struct journal *writer_stop(struct journal_writer *writer);

/*
 * Room for one entry of `size` bytes; NULL when the queue is full. Fill it, then writer_submit.
 * `also`: other rooms that it is about (copied).
 */
unsigned char *writer_begin(struct journal_writer *writer, uint64_t number, uint64_t room,
                            const uint64_t *also, uint32_t also_count, size_t size);
void writer_submit(struct journal_writer *writer);

/* Greatest entry that is durable. */
uint64_t writer_durable(const struct journal_writer *writer);
/* Greatest entry that is in the journal; after a flush that failed it may be past the durable one.
 */
uint64_t writer_written(const struct journal_writer *writer);
/* The newest segment is full: the next snapshot begins another. */
bool writer_wants_snapshot(const struct journal_writer *writer);
/* STATUS_OK, or why the last commit failed; the text goes to out_detail. */
enum status writer_failure(struct journal_writer *writer, struct status_detail *out_detail);
/*
 * After a failure: what was submitted and is not in the journal is forgotten; the next entry
 * submitted is writer_written + 1. Blocks until the thread has emptied its queue.
 */
void writer_retry(struct journal_writer *writer);

/*
 * Snapshots, through the same thread and in order with entries: items from index 0 on, then end.
 * now_ns: wall time, for the segment that may begin with it. False: queue full.
 */
bool writer_snapshot_item(struct journal_writer *writer, uint64_t entry, uint32_t index,
                          uint64_t now_ns, const unsigned char *bytes, size_t size);
bool writer_snapshot_end(struct journal_writer *writer, uint64_t entry);

/* For tests: see journal_fault. */
void writer_fault(struct journal_writer *writer, enum status status, uint32_t after);

struct writer_counters {
    uint64_t batches;
    uint64_t entries;
    uint64_t failures;
    uint64_t commit_ns_max;
    uint64_t segments_begun;
    uint64_t segments_removed;
    uint64_t segment_failures; /* a segment could not be begun, or an old one not removed */
    size_t queue_bytes;
};
void writer_counters(const struct journal_writer *writer, struct writer_counters *out_counters);

#endif
