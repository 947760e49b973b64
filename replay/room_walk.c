/* SPDX-License-Identifier: Apache-2.0 */
/* The entries that are about one room, in order. */
#include "cli.h"

#include "schemas/text.h"

#include "statemachine/sm_image.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)64 << 20)

struct numbers {
    uint64_t *at;
    uint32_t count;
    uint32_t capacity;
};

static bool number_add(struct numbers *numbers, uint64_t number)
{
    if (numbers->count == numbers->capacity) {
        const uint32_t capacity = numbers->capacity == 0 ? 256u : numbers->capacity * 2u;
        uint64_t *grown = realloc(numbers->at, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        numbers->at = grown;
        numbers->capacity = capacity;
    }
    numbers->at[numbers->count++] = number;
    return true;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* All entries about the room: its own by back-pointers, others by the second index. */
static enum status collect(struct journal *journal, uint64_t room, struct numbers *out)
{
    uint64_t number = 0;
    struct journal_record record;
    enum status status = journal_room_last(journal, room, &number);
    while (status == STATUS_OK) {
        TRY(journal_read(journal, number, &record));
        if (!number_add(out, number)) {
            return STATUS_NO_MEMORY;
        }
        status = journal_room_before(journal, &record, &number);
    }
    if (status != STATUS_END && status != STATUS_NOT_FOUND) {
        return status;
    }
    number = 0;
    while ((status = journal_room_also(journal, room, number + 1u, &number)) == STATUS_OK) {
        if (!number_add(out, number)) {
            return STATUS_NO_MEMORY;
        }
    }
    if (out->count > 1u) {
        qsort(out->at, out->count, sizeof *out->at, by_number);
    }
    return status == STATUS_END ? STATUS_OK : status;
}

static enum status visit(struct journal *journal, const struct numbers *numbers,
                         struct codec_arena *arena, room_entry_fn each, void *context)
{
    for (uint32_t i = 0; i < numbers->count; i++) {
        struct journal_record record;
        struct codec_entry entry;
        TRY(journal_read(journal, numbers->at[i], &record));
        codec_arena_reset(arena);
        TRY(codec_entry_unpack(record.payload, record.payload_size, arena, &entry));
        if (!each(context, numbers->at[i], &entry)) {
            return STATUS_NO_MEMORY;
        }
    }
    return numbers->count == 0 ? STATUS_NOT_FOUND : STATUS_OK;
}

/* Kept: who lists rooms comes here a million times. NULL: no memory. */
static bool take_arena(struct codec_arena *arena)
{
    static void *memory;
    memory = memory != NULL ? memory : malloc(ARENA_BYTES);
    codec_arena_init(arena, memory, memory != NULL ? ARENA_BYTES : 0);
    return memory != NULL;
}

enum status room_walk(struct journal *journal, uint64_t room, room_entry_fn each, void *context,
                      struct status_detail *out_detail)
{
    struct codec_arena arena;
    struct numbers numbers = {NULL, 0, 0};
    if (!take_arena(&arena)) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory");
    }
    enum status status = collect(journal, room, &numbers);
    if (status == STATUS_OK) {
        status = visit(journal, &numbers, &arena, each, context);
    }
    if (status == STATUS_NOT_FOUND) {
        (void)status_fail(status, out_detail, 0, "the journal knows nothing of room %" PRIu64,
                          room);
    } else if (status == STATUS_NO_MEMORY) {
        (void)status_fail(status, out_detail, 0, "no memory");
    } else if (status != STATUS_OK) {
        *out_detail = *journal_detail(journal);
    }
    journal_read_pause(journal);
    free(numbers.at);
    return status;
}

/* ---- the node's name
 * --------------------------------------------------------------------------------- */

/* A journal without its beginning has the name in the snapshot that it begins with. */
static bool name_in_snapshot(struct journal *journal, struct codec_arena *arena,
                             struct sm_text *out_name)
{
    struct journal_identity identity;
    struct sm_item item;
    const unsigned char *bytes = NULL;
    size_t size = 0;
    if (journal_identity(journal, &identity) != STATUS_OK || identity.first < 2u ||
        journal_snapshot_get(journal, identity.first - 1u, 1, &bytes, &size) != STATUS_OK ||
        codec_item_unpack(bytes, size, arena, &item) != STATUS_OK || item.kind != SM_ITEM_NODE ||
        item.text_count == 0) {
        return false;
    }
    *out_name = item.texts[0];
    return true;
}

void room_node_name(struct journal *journal, char *out, size_t size)
{
    struct codec_arena arena;
    struct journal_record record;
    struct codec_entry entry;
    struct sm_text name = {"node", 4};
    if (take_arena(&arena)) {
        if (journal_read(journal, 1, &record) == STATUS_OK &&
            codec_entry_unpack(record.payload, record.payload_size, &arena, &entry) == STATUS_OK &&
            entry.input.kind == SM_IN_NODE_STARTED) {
            name = entry.input.u.node_started.name;
        } else {
            codec_arena_reset(&arena);
            (void)name_in_snapshot(journal, &arena, &name);
        }
    }
    (void)text_clean(name.bytes, name.size, out, size);
    journal_read_pause(journal);
}
