/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the reader of bundles: its state. */
#ifndef JOURNAL_BUNDLE_READER_H
#define JOURNAL_BUNDLE_READER_H

#include "bundle_private.h"

#include <zstd.h>

/* Blocks that are kept unpacked. */
#define SLOTS 4u
#define HEAD_ARENA_BYTES ((size_t)8 << 20)

struct bundle_block {
    uint64_t at; /* its head, in the file */
    uint64_t number;
    uint16_t kind;
};

struct bundle_segment {
    uint64_t first;
    uint64_t at;
    uint64_t block;
};

struct bundle_snapshot {
    uint64_t entry;
    uint64_t first_block;
    uint64_t blocks;
    uint32_t items;
};

struct bundle_slot {
    unsigned char *raw; /* NULL: empty */
    uint32_t *offsets;  /* of entries or items, and the end */
    struct block_head head;
    uint64_t block;
    uint64_t used;
};

struct room_entry {
    uint64_t room;
    uint64_t number;
};

struct room_list {
    struct room_entry *at; /* sorted */
    uint64_t count;
};

struct bundle {
    char path[4096];
    int fd;
    uint64_t size;
    struct codec_bundle head; /* in head_memory and head_bytes */
    unsigned char *head_bytes;
    void *head_memory;
    struct codec_arena head_arena;
    uint64_t blocks_at; /* where the first block begins */
    struct bundle_block *blocks;
    uint64_t block_count;
    struct bundle_segment *segments;
    uint64_t segment_count;
    struct bundle_snapshot *snapshots;
    uint64_t snapshot_count;
    /* While the blocks are found, and what is left of it: the next one's place. */
    uint64_t ordinal;
    uint64_t chain[2];
    uint64_t next; /* number after the last entry */
    bool ended;
    char broken[STATUS_DETAIL_BYTES];
    uint64_t last_chain[2];
    struct bundle_slot slots[SLOTS];
    uint64_t tick;
    uint64_t item_block; /* where the last item of a snapshot was */
    uint32_t item_first;
    unsigned char *stored;
    uint32_t stored_size;
    ZSTD_DCtx *zstd;
    bool indexed;
    struct room_list own;
    struct room_list also;
};

enum status bundle_open_file(const char *path, struct bundle **out_bundle,
                             struct status_detail *out_detail);
enum status bundle_read_head(struct bundle *bundle, struct status_detail *out_detail);
enum status bundle_pread(const struct bundle *bundle, uint64_t at, unsigned char *out, size_t size);
/* What is wrong with a block's head at the place where the row of blocks has come to; NULL. */
const char *bundle_block_wrong(const struct bundle *bundle, const unsigned char *bytes,
                               const struct block_head *head);
/* Takes a block that is not wrong into the row; NULL, or why it does not fit there. */
const char *bundle_take_block(struct bundle *bundle, const struct block_head *head, uint64_t at);
/* The block's bytes as they are stored, checked, into bundle->stored. False: no memory for them. */
bool bundle_read_stored(struct bundle *bundle, uint64_t at, const unsigned char *head_bytes,
                        const struct block_head *head, const char **out_wrong);
/* Reads the block whose head is in slot->head; on failure the slot is to be emptied. */
enum status bundle_load_into(struct bundle *bundle, uint64_t at, const unsigned char *head_bytes,
                             struct bundle_slot *slot, const char **out_wrong);
void bundle_empty_slot(struct bundle_slot *slot);
enum status bundle_load(struct bundle *bundle, uint64_t block, struct bundle_slot **out_slot,
                        struct status_detail *out_detail);
void *bundle_grow(void *list, uint64_t count, size_t each);

#endif
