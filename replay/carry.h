/* SPDX-License-Identifier: Apache-2.0 */
/* What export, import, slice and repair share: journals carried from one form into another. */
#ifndef REPLAY_CARRY_H
#define REPLAY_CARRY_H

#include "cli.h"

#include "journal/journal_bundle.h"
#include "journal/journal_recover.h"

/* A head for entries from `first` on; what it borrows lives in `memory`. */
struct carry_head {
    struct codec_bundle head;
    char node[SM_NAME_BYTES_MAX + 1u];
    unsigned char *started; /* the entry of the start in force at `first` */
};

enum status carry_head_make(struct journal *journal, uint64_t first, struct carry_head *out_head,
                            struct status_detail *out_detail);
void carry_head_free(struct carry_head *head);

/*
 * The machine as it was after `entry`, which must not be the last one's next;
 * STATUS_JOURNAL_VERSION when another machine version wrote that part.
 */
enum status carry_machine_at(struct journal *journal, uint64_t entry,
                             struct journal_machine *out_machine, struct status_detail *out_detail);

/*
 * From..until into the sink, with a snapshot first when the range begins in a segment's middle.
 * options NULL: a progress line, and the snapshot at the last entry too.
 */
enum status carry_range(struct journal *journal, uint64_t from, uint64_t until,
                        struct journal_sink *sink, const struct journal_copy_options *options,
                        struct journal_copied *out_copied, struct status_detail *out_detail);

/*
 * A new journal at `path` from another one, up to `until` (0: whole); made as path.part. What was
 * copied before a failure is kept when `keep_part` is set and at least one entry was.
 */
enum status carry_into_directory(struct journal *journal, const char *path, uint64_t until,
                                 const struct journal_copy_options *options, bool keep_part,
                                 struct journal_copied *out_copied,
                                 struct status_detail *out_detail);
/* Removes what a command that was ended has left at path.part. */
void carry_remove_part(const char *path);

/* Bytes a person reads: "1.2 GiB". */
void carry_bytes_text(uint64_t bytes, char *out, size_t size);

#endif
