/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at every entry of a journal: its check, the chain, the numbers, the room index, whether it
 * parses; and at every snapshot, whether it restores.
 *
 * Layer: journal, codec. LMDB trusts its file: pages that were damaged may crash the process that
 * maps them, so what is not trusted is verified in a child process (verify_in_child).
 */
#ifndef JOURNAL_JOURNAL_VERIFY_H
#define JOURNAL_JOURNAL_VERIFY_H

#include "journal/journal.h"

struct journal_fault_report {
    uint64_t entries;     /* looked at */
    uint64_t faults;      /* found */
    uint64_t first_fault; /* entry; 0 none */
    char text[256];       /* about the first fault */
    /* The child died, at the entry first_fault or after it (0: at once): pages are damaged. */
    bool crashed;
};

/* STATUS_JOURNAL_DAMAGED when a fault was found; the report is filled in. */
enum status journal_verify(struct journal *journal, struct journal_fault_report *out_report,
                           struct status_detail *out_detail);
/* Opens the journal read-only in a child process, verifies there, and reports. */
enum status journal_verify_in_child(const char *path, struct journal_fault_report *out_report,
                                    struct status_detail *out_detail);

#endif
