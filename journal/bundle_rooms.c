/* SPDX-License-Identifier: Apache-2.0 */
/* The room index of a bundle, made in memory when it is first asked for. */
#include "bundle_reader.h"
#include "journal_private.h"

#include "journal/journal_recover.h"

#include <inttypes.h>
#include <stdlib.h>

#define ARENA_BYTES ((size_t)96 << 20)
/* 1 GiB of pairs. */
#define PAIRS_MAX (UINT64_C(64) << 20)

static bool pair_add(struct room_list *list, uint64_t room, uint64_t number)
{
    struct room_entry *grown =
        list->count < PAIRS_MAX ? bundle_grow(list->at, list->count, sizeof *grown) : NULL;
    if (grown == NULL) {
        return false;
    }
    list->at = grown;
    list->at[list->count++] = (struct room_entry){room, number};
    return true;
}

static int by_room(const void *a, const void *b)
{
    const struct room_entry *x = a;
    const struct room_entry *y = b;
    if (x->room != y->room) {
        return x->room < y->room ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

static enum status index_entry(struct bundle *bundle, uint64_t number, struct codec_arena *arena,
                               uint64_t *rooms, struct status_detail *out_detail)
{
    struct journal_record record;
    struct codec_entry entry;
    uint64_t chain[2];
    TRY(bundle_read(bundle, number, &record, chain, out_detail));
    bool well = record.room == 0 || pair_add(&bundle->own, record.room, number);
    codec_arena_reset(arena);
    if (codec_entry_unpack(record.payload, record.payload_size, arena, &entry) != STATUS_OK) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "bundle %s: entry %" PRIu64 " does not parse", bundle->path, number);
    }
    const uint32_t count =
        journal_other_rooms(entry.transitions, entry.transition_count, record.room, rooms);
    for (uint32_t i = 0; i < count && well; i++) {
        well = pair_add(&bundle->also, rooms[i], number);
    }
    return well ? STATUS_OK
                : status_fail(STATUS_NO_MEMORY, out_detail, 0,
                              "bundle %s: no memory for an index of its rooms; make a journal of "
                              "it with `stateroom import`",
                              bundle->path);
}

static enum status make_index(struct bundle *bundle, struct status_detail *out_detail)
{
    struct codec_arena arena;
    if (bundle->indexed) {
        return STATUS_OK;
    }
    void *memory = journal_take_pages(ARENA_BYTES);
    uint64_t *rooms = malloc(SM_TRANSITIONS_MAX * sizeof *rooms);
    enum status status =
        memory == NULL || rooms == NULL
            ? status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to read a bundle")
            : STATUS_OK;
    codec_arena_init(&arena, memory, ARENA_BYTES);
    bundle->own.count = 0;
    bundle->also.count = 0;
    for (uint64_t n = bundle->head.first; n < bundle->next && status == STATUS_OK; n++) {
        status = index_entry(bundle, n, &arena, rooms, out_detail);
    }
    journal_give_pages(memory, ARENA_BYTES);
    free(rooms);
    TRY(status);
    if (bundle->own.count > 1u) {
        qsort(bundle->own.at, bundle->own.count, sizeof *bundle->own.at, by_room);
    }
    if (bundle->also.count > 1u) {
        qsort(bundle->also.at, bundle->also.count, sizeof *bundle->also.at, by_room);
    }
    bundle->indexed = true;
    return STATUS_OK;
}

/* Place of the first pair that is not before (room, number). */
static uint64_t lower(const struct room_list *list, uint64_t room, uint64_t number)
{
    const struct room_entry key = {room, number};
    uint64_t low = 0;
    uint64_t high = list->count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2u;
        if (by_room(&list->at[middle], &key) < 0) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

enum status bundle_room_before(struct bundle *bundle, uint64_t room, uint64_t number,
                               uint64_t *out_number, struct status_detail *out_detail)
{
    TRY(make_index(bundle, out_detail));
    const uint64_t at = lower(&bundle->own, room, number);
    if (room == 0 || at == 0 || bundle->own.at[at - 1u].room != room) {
        return STATUS_END;
    }
    *out_number = bundle->own.at[at - 1u].number;
    return STATUS_OK;
}

enum status bundle_room_last(struct bundle *bundle, uint64_t room, uint64_t *out_number,
                             struct status_detail *out_detail)
{
    const enum status status = bundle_room_before(bundle, room, UINT64_MAX, out_number, out_detail);
    return status == STATUS_END ? STATUS_NOT_FOUND : status;
}

enum status bundle_room_next(struct bundle *bundle, uint64_t after, uint64_t *out_room,
                             uint64_t *out_number, struct status_detail *out_detail)
{
    TRY(make_index(bundle, out_detail));
    const uint64_t at =
        after == UINT64_MAX ? bundle->own.count : lower(&bundle->own, after + 1u, 0);
    if (at >= bundle->own.count) {
        return STATUS_END;
    }
    *out_room = bundle->own.at[at].room;
    return bundle_room_before(bundle, *out_room, UINT64_MAX, out_number, out_detail);
}

enum status bundle_room_also(struct bundle *bundle, uint64_t room, uint64_t from,
                             uint64_t *out_number, struct status_detail *out_detail)
{
    TRY(make_index(bundle, out_detail));
    const uint64_t at = lower(&bundle->also, room, from);
    if (at >= bundle->also.count || bundle->also.at[at].room != room) {
        return STATUS_END;
    }
    *out_number = bundle->also.at[at].number;
    return STATUS_OK;
}
