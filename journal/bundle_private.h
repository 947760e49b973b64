/* SPDX-License-Identifier: Apache-2.0 */
/* Private to bundles: the bytes around a block, and the reader behind a journal's handle. */
#ifndef JOURNAL_BUNDLE_PRIVATE_H
#define JOURNAL_BUNDLE_PRIVATE_H

#include "journal/journal_bundle.h"
#include "journal/journal_verify.h"

#include <stdio.h>

#define BUNDLE_MAGIC "SRBUNDLE"
#define BUNDLE_FORMAT 1u
/* magic 8, format 4, payload bytes 4, check 8 */
#define BUNDLE_HEAD_BYTES 24u
#define BUNDLE_HEAD_PAYLOAD_MAX (1u << 20)

#define BLOCK_MAGIC 0x4b425253u /* "SRBK" */
#define BLOCK_HEAD_BYTES 64u
#define BLOCK_CHECKED_BYTES 48u /* of a head, before its chain */
#define BLOCK_RAW_AIM (256u << 10)
#define BLOCK_RAW_MAX (JOURNAL_PAYLOAD_MAX + (64u << 10))
#define BLOCK_STORED_MAX (BLOCK_RAW_MAX + (256u << 10))

enum block_kind { BLOCK_SEGMENT = 1, BLOCK_SNAPSHOT = 2, BLOCK_ENTRIES = 3, BLOCK_END = 4 };
enum block_packing { BLOCK_PLAIN = 0, BLOCK_ZSTD = 1 };

#define BLOCK_SEGMENT_BYTES 8u /* when it began */
#define BLOCK_END_BYTES 32u    /* entries, last, chain */

struct block_head {
    uint16_t kind;
    uint16_t packing;
    uint32_t stored;
    uint32_t raw;
    uint64_t ordinal;
    uint64_t number; /* segment, entries: of the first entry; snapshot, end: of the last */
    uint32_t index;  /* snapshot: of its first item */
    uint32_t count;  /* items or entries */
    uint64_t check;  /* XXH3-64 of the stored bytes, seeded with that of the head with this 0 */
    uint64_t chain[2];
};

void block_head_write(const struct block_head *head, unsigned char *bytes);
void block_head_read(const unsigned char *bytes, struct block_head *out_head);
uint64_t block_check(const unsigned char *head_bytes, const unsigned char *stored, size_t size);
/* XXH3-128 over (chain of the block before, the head without its chain). */
void block_chain_next(const uint64_t before[2], const unsigned char *head_bytes,
                      uint64_t out_chain[2]);
/* Of the file's head: what the first block's chain begins with. */
void bundle_chain_begin(const unsigned char *head_and_payload, size_t size, uint64_t out_chain[2]);
uint64_t bundle_head_check(const unsigned char *head, const unsigned char *payload, size_t size);

/* ---- reading
 * ------------------------------------------------------------------------------------------ */

struct bundle;

/*
 * salvage: what is damaged ends the bundle instead of failing. The detail names file, block and
 * place.
 */
enum status bundle_open(const char *path, bool salvage, struct bundle **out_bundle,
                        struct status_detail *out_detail);
void bundle_close(struct bundle *bundle);
const struct codec_bundle *bundle_head(const struct bundle *bundle);
const char *bundle_broken(const struct bundle *bundle);
void bundle_identity(const struct bundle *bundle, struct journal_identity *out_identity);
/* Each does what the function of journal.h with the same name does. */
enum status bundle_read(struct bundle *bundle, uint64_t number, struct journal_record *out_record,
                        uint64_t out_chain[2], struct status_detail *out_detail);
enum status bundle_room_last(struct bundle *bundle, uint64_t room, uint64_t *out_number,
                             struct status_detail *out_detail);
enum status bundle_room_before(struct bundle *bundle, uint64_t room, uint64_t number,
                               uint64_t *out_number, struct status_detail *out_detail);
enum status bundle_room_next(struct bundle *bundle, uint64_t after, uint64_t *out_room,
                             uint64_t *out_number, struct status_detail *out_detail);
enum status bundle_room_also(struct bundle *bundle, uint64_t room, uint64_t from,
                             uint64_t *out_number, struct status_detail *out_detail);
enum status bundle_snapshot_newest(const struct bundle *bundle, uint64_t entry,
                                   uint64_t *out_entry);
enum status bundle_snapshot_get(struct bundle *bundle, uint64_t entry, uint32_t index,
                                const unsigned char **out_bytes, size_t *out_size,
                                struct status_detail *out_detail);
uint32_t bundle_segment_count(const struct bundle *bundle);
uint64_t bundle_segment_first(const struct bundle *bundle, uint32_t index);
enum status bundle_segment_at(struct bundle *bundle, uint32_t index,
                              struct journal_segment *out_segment,
                              struct status_detail *out_detail);

/* Looks at every byte; goes on after a fault at the next whole block. */
enum status bundle_verify(const char *path, struct journal_fault_report *out_report,
                          struct status_detail *out_detail);

#endif
