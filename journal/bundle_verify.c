/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying a bundle: every byte is looked at, also behind a fault. */
#include "bundle_reader.h"
#include "journal_private.h"
#include "little_endian.h"
#include "statemachine/sm_image.h"
#include "verify_look.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)96 << 20)
#define SEARCH_BYTES (1u << 20)

struct walk {
    struct bundle *bundle;
    struct look look;
    uint64_t at;
    uint64_t entries; /* that the blocks hold, for the end */
    bool ended;
};

static void note_block(struct walk *walk, const char *what)
{
    struct journal_fault_report *report = walk->look.report;
    report->faults++;
    if (report->first_fault == 0) {
        report->first_fault = walk->look.expected;
        (void)snprintf(report->text, sizeof report->text,
                       "block %" PRIu64 " at byte %" PRIu64 " (from entry %" PRIu64 ") %s",
                       walk->bundle->ordinal, walk->at, walk->look.expected, what);
    }
}

/* ---- what is in a block
 * -------------------------------------------------------------------------------- */

static void look_at_entries(struct walk *walk, const struct bundle_slot *slot)
{
    struct look *look = &walk->look;
    if (slot->head.number > look->expected) {
        look_note(look, look->expected, "missing");
    } else if (slot->head.number < look->expected) {
        look_note(look, slot->head.number, "repeated");
    }
    for (uint32_t i = 0; i < slot->head.count; i++) {
        look_at_frame(look, slot->head.number + i, slot->raw + slot->offsets[i],
                      slot->offsets[i + 1u] - slot->offsets[i]);
        look->report->entries++;
        walk->entries++;
    }
    look->expected = slot->head.number + slot->head.count;
}

static void look_at_items(struct walk *walk, const struct bundle_slot *slot)
{
    struct codec_snapshot head;
    struct sm_item item;
    if (slot->head.number + 1u != walk->look.expected) {
        note_block(walk, "is of a snapshot at another entry");
    }
    for (uint32_t i = 0; i < slot->head.count; i++) {
        const unsigned char *bytes = slot->raw + slot->offsets[i] + 4u;
        const size_t size = slot->offsets[i + 1u] - slot->offsets[i] - 4u;
        codec_arena_reset(&walk->look.arena);
        const enum status status =
            slot->head.index + i == 0 ? codec_snapshot_unpack(bytes, size, &walk->look.arena, &head)
                                      : codec_item_unpack(bytes, size, &walk->look.arena, &item);
        if (status != STATUS_OK) {
            note_block(walk, "has an item of a snapshot that does not parse");
            return;
        }
    }
}

static void look_at_end(struct walk *walk, const struct bundle_slot *slot)
{
    walk->ended = true;
    if (slot->head.raw != BLOCK_END_BYTES || get64(slot->raw) != walk->entries ||
        get64(slot->raw + 8) + 1u != walk->look.expected ||
        get64(slot->raw + 16) != walk->look.chain[0] ||
        get64(slot->raw + 24) != walk->look.chain[1]) {
        note_block(walk, "names another end than the bundle has");
    }
}

static void look_into(struct walk *walk, const unsigned char *bytes, struct bundle_slot *slot)
{
    const char *wrong = NULL;
    if (bundle_load_into(walk->bundle, walk->at, bytes, slot, &wrong) != STATUS_OK) {
        note_block(walk, wrong != NULL ? wrong : "does not fit into memory");
        if (slot->head.kind == BLOCK_ENTRIES && slot->head.number == walk->look.expected) {
            walk->look.expected += slot->head.count;
            walk->entries += slot->head.count;
            walk->look.chain_unknown = true;
        }
    } else if (slot->head.kind == BLOCK_ENTRIES) {
        look_at_entries(walk, slot);
    } else if (slot->head.kind == BLOCK_SNAPSHOT) {
        look_at_items(walk, slot);
    } else if (slot->head.kind == BLOCK_END) {
        look_at_end(walk, slot);
    } else if (slot->head.kind == BLOCK_SEGMENT) {
        if (slot->head.raw != BLOCK_SEGMENT_BYTES || slot->head.number != walk->look.expected) {
            note_block(walk, "begins a segment that does not follow the one before it");
        }
    } else {
        note_block(walk, "is of a kind that this program does not know");
    }
}

/* ---- from block to block
 * ------------------------------------------------------------------------------- */

/* Whether a whole block begins with these bytes: its head and what it stores fit each other. */
static bool whole_block(struct walk *walk, const unsigned char *bytes, uint64_t at)
{
    struct bundle *bundle = walk->bundle;
    struct block_head head;
    if (get32(bytes) != BLOCK_MAGIC) {
        return false;
    }
    block_head_read(bytes, &head);
    if (head.stored > BLOCK_STORED_MAX || head.raw > BLOCK_RAW_MAX ||
        at + BLOCK_HEAD_BYTES + head.stored > bundle->size) {
        return false;
    }
    const char *wrong = NULL;
    return bundle_read_stored(bundle, at, bytes, &head, &wrong) && wrong == NULL;
}

/* Behind a head that makes no sense: where the next whole block is; the size: there is none. */
static uint64_t next_block(struct walk *walk, uint64_t from, unsigned char *window)
{
    const uint64_t size = walk->bundle->size;
    while (from + BLOCK_HEAD_BYTES <= size) {
        const size_t got = (size_t)(size - from < SEARCH_BYTES ? size - from : SEARCH_BYTES);
        if (bundle_pread(walk->bundle, from, window, got) != STATUS_OK) {
            return size;
        }
        for (size_t i = 0; i + BLOCK_HEAD_BYTES <= got; i++) {
            if (window[i] == (BLOCK_MAGIC & 0xffu) && whole_block(walk, window + i, from + i)) {
                return from + i;
            }
        }
        from += got - BLOCK_HEAD_BYTES + 1u;
    }
    return size;
}

/* What is wrong with the head of the block at walk->at, in its place; NULL. */
static const char *head_wrong(struct walk *walk, const unsigned char *bytes,
                              struct block_head *out_head)
{
    block_head_read(bytes, out_head);
    const char *wrong = bundle_block_wrong(walk->bundle, bytes, out_head);
    return wrong == NULL && walk->at + BLOCK_HEAD_BYTES + out_head->stored > walk->bundle->size
               ? "is cut off"
               : wrong;
}

static void walk_blocks(struct walk *walk, unsigned char *window)
{
    struct bundle *bundle = walk->bundle;
    unsigned char bytes[BLOCK_HEAD_BYTES];
    struct bundle_slot slot;
    while (walk->at + sizeof bytes <= bundle->size && !walk->ended) {
        memset(&slot, 0, sizeof slot);
        if (bundle_pread(bundle, walk->at, bytes, sizeof bytes) != STATUS_OK) {
            note_block(walk, "cannot be read");
            return;
        }
        const char *wrong = head_wrong(walk, bytes, &slot.head);
        if (wrong != NULL) {
            note_block(walk, wrong);
            const bool whole = whole_block(walk, bytes, walk->at);
            const uint64_t at = whole ? walk->at : next_block(walk, walk->at + 1u, window);
            if (at >= bundle->size || bundle_pread(bundle, at, bytes, sizeof bytes) != STATUS_OK) {
                walk->at = bundle->size;
                return;
            }
            walk->at = at;
            block_head_read(bytes, &slot.head);
            bundle->ordinal = slot.head.ordinal;
        }
        if (walk->look.report->faults == 0) {
            /* What a reader would not take is a fault here too. */
            wrong = bundle_take_block(bundle, &slot.head, walk->at);
            if (wrong != NULL) {
                note_block(walk, wrong);
            }
        }
        look_into(walk, bytes, &slot);
        bundle->block_count++;
        memcpy(bundle->chain, slot.head.chain, sizeof bundle->chain);
        walk->at += sizeof bytes + slot.head.stored;
        bundle->ordinal++;
        bundle_empty_slot(&slot);
    }
}

static enum status verify_open(struct bundle *bundle, struct journal_fault_report *report,
                               struct status_detail *out_detail)
{
    struct walk walk;
    memset(&walk, 0, sizeof walk);
    walk.bundle = bundle;
    walk.look.report = report;
    walk.look.expected = bundle->head.first;
    walk.at = bundle->blocks_at;
    bundle->next = bundle->head.first;
    memcpy(walk.look.chain, bundle->head.chain, sizeof walk.look.chain);
    void *memory = journal_take_pages(ARENA_BYTES);
    unsigned char *window = malloc(SEARCH_BYTES);
    if (memory == NULL || window == NULL) {
        journal_give_pages(memory, ARENA_BYTES);
        free(window);
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to verify a bundle");
    }
    codec_arena_init(&walk.look.arena, memory, ARENA_BYTES);
    walk_blocks(&walk, window);
    if (!walk.ended) {
        note_block(&walk, "is missing: the file is cut off");
    } else if (walk.at != bundle->size) {
        note_block(&walk, "stands after the end of the bundle");
    }
    journal_give_pages(memory, ARENA_BYTES);
    free(window);
    return report->faults == 0 ? STATUS_OK
                               : status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0, "bundle %s: %s",
                                             bundle->path, report->text);
}

enum status bundle_verify(const char *path, struct journal_fault_report *report,
                          struct status_detail *out_detail)
{
    struct bundle *bundle = NULL;
    memset(report, 0, sizeof *report);
    TRY(bundle_open_file(path, &bundle, out_detail));
    enum status status = bundle_read_head(bundle, out_detail);
    if (status == STATUS_OK) {
        status = verify_open(bundle, report, out_detail);
    } else if (status == STATUS_JOURNAL_DAMAGED) {
        report->faults = 1;
        report->first_fault = 1;
        (void)snprintf(report->text, sizeof report->text, "%s", "its head is damaged");
    }
    bundle_close(bundle);
    return status;
}
