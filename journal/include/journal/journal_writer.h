/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal thread: commits what has arrived, batch after batch, and says how far the journal is
 * durable. No timer: a batch is what has arrived while the last one was being written (at most a
 * bound).
 *
 * Layer: journal.h, threads.
 *
 * Ownership: the writer owns the journal handle from start to stop.
 *
 * Threads: one thread submits (the machine's); the rest is the writer's own thread.
 *
 * Failure: when a commit fails, the writer keeps the status, drops what it was given after the last
 * durable entry, and waits for writer_retry with new entries. Entries between are refused by then:
 * their numbers are given again.
 */
#ifndef JOURNAL_JOURNAL_WRITER_H
#define JOURNAL_JOURNAL_WRITER_H

#include "journal/journal.h"

struct journal_writer;

/* Takes the handle over. wake_fd: an eventfd of the machine thread, written when durable moves or
 * fails. */
enum status writer_start(struct journal *take_journal, int wake_fd,
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
/* STATUS_OK, or why the last commit failed; the text goes to out_detail. */
enum status writer_failure(struct journal_writer *writer, struct status_detail *out_detail);
/*
 * After a failure: what was submitted and is not durable is forgotten; the next entry submitted is
 * writer_durable + 1. Blocks until the thread has emptied its queue.
 */
void writer_retry(struct journal_writer *writer);

/* Snapshots, through the same thread and in order with entries: items, then end. False: queue full.
 */
bool writer_snapshot_item(struct journal_writer *writer, uint64_t entry, uint32_t index,
                          const unsigned char *bytes, size_t size);
bool writer_snapshot_end(struct journal_writer *writer, uint64_t entry);

/* For tests: see journal_fault. */
void writer_fault(struct journal_writer *writer, enum status status, uint32_t after);

struct writer_counters {
    uint64_t batches;
    uint64_t entries;
    uint64_t failures;
    uint64_t commit_ns_max;
    size_t queue_bytes;
};
void writer_counters(const struct journal_writer *writer, struct writer_counters *out_counters);

#endif
