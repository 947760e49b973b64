/* SPDX-License-Identifier: Apache-2.0 */
/* Private to verification: one look at entries, in a segment or in a bundle. */
#ifndef JOURNAL_VERIFY_LOOK_H
#define JOURNAL_VERIFY_LOOK_H

#include "journal/journal_verify.h"
#include "journal_private.h"
#include "schemas/codec.h"

/* What is looked at, and what the entries before said. */
struct look {
    struct journal *journal; /* of a segment; with what follows */
    struct segment *segment;
    MDB_txn *txn; /* NULL: a bundle, which has no index to look at */
    struct segment_meta meta;
    uint64_t expected; /* number of the next entry */
    uint64_t chain[2];
    /* The entry before cannot be read, nor its chain: the next one's is taken as it is. */
    bool chain_unknown;
    volatile uint64_t *at; /* the entry that is looked at, for who survives a crash */
    struct codec_arena arena;
    struct journal_fault_report *report;
};

void look_note(struct look *look, uint64_t number, const char *what);
/* One entry: frame, chain, parse, and its rooms in the index. */
void look_at_frame(struct look *look, uint64_t number, const unsigned char *bytes, size_t size);

#endif
