/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries whose bytes follow from their number, a row of random but repeatable work on a journal
 * made of them, and the look at what is left of it.
 */
#ifndef TESTS_POWER_STORE_H
#define TESTS_POWER_STORE_H

#include "journal/journal_writer.h"

/* A whole protobuf entry, about `number`'s room and now and then another one. */
struct journal_record store_entry(uint64_t number);
/* The items of a snapshot at `entry` into the open batch. */
enum status store_put_snapshot(struct journal *journal, uint64_t entry);

/* The same through the journal thread; each waits while its queue is full. */
void store_submit(struct journal_writer *writer, uint64_t number);
void store_submit_snapshot(struct journal_writer *writer, uint64_t entry, uint64_t now_ns);

enum store_state {
    STORE_WELL = 0,
    STORE_LOST,   /* it opens and verifies, and lacks what was promised */
    STORE_BROKEN, /* it does not */
    STORE_STATES
};
/* What was promised at a point of the disk's log (enum disk_mark). */
struct store_promise {
    uint64_t acknowledged; /* entries up to this must be there */
    uint64_t trimmed_to;   /* none before this must */
    uint64_t committed;    /* entries up to this are there, or it is told that they may not be */
    uint64_t epoch;        /* no smaller one may be the last */
};
struct store_promise store_promised(uint32_t at);

/*
 * Opens the journal as a reader and as the next process would, compares every entry, and goes on
 * writing.
 */
enum store_state store_look(const char *path, const struct store_promise *promise, char *out_text,
                            size_t text_size);

#endif
