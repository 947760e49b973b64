/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing the whole state. Indices of halves and writes are kept, since what the machine does next
 * depends on them; everything else is found again by its order.
 */
#include "sm_rows.h"

/* ---- packing
 * ------------------------------------------------------------------------------------------ */

/*
 * The rows take the machine by a writable pointer because restoring fills it; while packing every
 * field is written with the value that it has.
 */
static struct sm *writable(const struct sm *sm)
{
    return (struct sm *)(uintptr_t)sm;
}

static struct row row_begin(struct sm_item *item, uint32_t kind)
{
    sm_zero(item, sizeof *item);
    item->kind = kind;
    struct row row = {item, NULL, 0, true};
    return row;
}

static void pack_list(const struct sm *sm, struct sm_item *item, const struct sm_page_list *list,
                      struct sm_run *scratch, uint32_t scratch_count)
{
    struct sm_page_cursor cursor = sm_list_start(list);
    const uint32_t count = sm_list_read(sm, &cursor, list->pages, scratch, scratch_count);
    SM_ASSERT(count != SM_NONE);
    item->runs[0].at = scratch;
    item->runs[0].count = count;
    item->runs_count = 1;
}

static void pack_half(const struct sm *sm, uint32_t index, struct sm_item *item)
{
    struct sm_half *half = sm_half_at(sm, index);
    struct row row = row_begin(item, SM_ITEM_HALF);
    uint32_t side = half->side;
    uint32_t flags = (sm_bits_has(sm, &sm->work, index) ? 1u : 0u) |
                     (sm_bits_has(sm, &sm->blocked, index) ? 2u : 0u);
    sm_row32(&row, &index);
    sm_row64(&row, &half->room);
    sm_row64(&row, &half->generation);
    sm_row32(&row, &side);
    sm_row64(&row, &half->wake_ns);
    sm_row32(&row, &flags);
    sm_row_half(writable(sm), half, &row);
}

enum {
    STAGE_NODE,
    STAGE_PEERS,
    STAGE_ENGINES,
    STAGE_HALVES,
    STAGE_RANKS,
    STAGE_DESTINATIONS,
    STAGE_WRITES,
    STAGE_TOMBSTONES,
    STAGE_QUARANTINE,
    STAGE_END
};

static void next_stage(struct sm_pack *cursor)
{
    cursor->stage++;
    cursor->index = 0;
    cursor->inner = 0;
}

static bool pack_node(const struct sm *sm, struct sm_pack *cursor, struct sm_item *item)
{
    struct row row = row_begin(item, SM_ITEM_NODE);
    sm_row_node(writable(sm), &row);
    item->texts[0].bytes = sm->name;
    item->texts[0].size = sm->name_size;
    item->text_count = 1;
    next_stage(cursor);
    return true;
}

static bool pack_peer(const struct sm *sm, struct sm_pack *cursor, struct sm_item *item)
{
    if (cursor->index == sm->peer_count) {
        next_stage(cursor);
        return false;
    }
    struct sm_peer *peer = sm_peer_at(sm, cursor->index);
    struct row row = row_begin(item, SM_ITEM_PEER);
    sm_row_peer(peer, &row);
    item->texts[0].bytes = peer->name;
    item->texts[0].size = peer->name_size;
    item->text_count = 1;
    cursor->index++;
    return true;
}

static bool pack_engine(const struct sm *sm, struct sm_pack *cursor, struct sm_item *item)
{
    if (cursor->index == SM_RANKS_MAX) {
        next_stage(cursor);
        return false;
    }
    struct row row = row_begin(item, SM_ITEM_ENGINE);
    sm_row32(&row, &cursor->index);
    sm_row_engine(&writable(sm)->engines[cursor->index], &row);
    cursor->index++;
    return true;
}

/* Halves, each followed by its ranks and destinations: index is the half, inner the record. */
static bool pack_halves(const struct sm *sm, struct sm_pack *cursor, struct sm_item *item,
                        struct sm_run *scratch, uint32_t scratch_count)
{
    if (cursor->stage == STAGE_HALVES) {
        const uint32_t at = sm_bits_next(sm, &sm->halves_used, cursor->index);
        if (at == SM_NONE) {
            cursor->stage = STAGE_WRITES;
            cursor->index = 0;
            return false;
        }
        pack_half(sm, at, item);
        cursor->index = at;
        cursor->stage = STAGE_RANKS;
        cursor->inner = sm_half_at(sm, at)->ranks;
        return true;
    }
    if (cursor->stage == STAGE_RANKS) {
        if (cursor->inner == SM_NONE) {
            cursor->stage = STAGE_DESTINATIONS;
            cursor->inner = sm_half_at(sm, cursor->index)->destinations;
            return false;
        }
        struct sm_rank *rank = sm_rank_at(sm, cursor->inner);
        struct row row = row_begin(item, SM_ITEM_RANK);
        sm_row_rank(writable(sm), rank, &row);
        pack_list(sm, item, &rank->pages, scratch, scratch_count);
        cursor->inner = rank->next;
        return true;
    }
    if (cursor->inner == SM_NONE) {
        cursor->stage = STAGE_HALVES;
        cursor->index++;
        return false;
    }
    struct sm_destination *destination = sm_destination_at(sm, cursor->inner);
    struct row row = row_begin(item, SM_ITEM_DESTINATION);
    sm_row_destination(destination, &row);
    pack_list(sm, item, &destination->pages, scratch, scratch_count);
    cursor->inner = destination->next;
    return true;
}

static bool pack_write(const struct sm *sm, struct sm_pack *cursor, struct sm_item *item)
{
    uint32_t at = sm_bits_next(sm, &sm->writes_used, cursor->index);
    if (at == SM_NONE) {
        next_stage(cursor);
        return false;
    }
    struct sm_write *write = sm_write_at(sm, at);
    struct row row = row_begin(item, SM_ITEM_WRITE);
    uint32_t destination = sm_destination_at(sm, write->destination)->index;
    sm_row32(&row, &at);
    sm_row64(&row, &write->id);
    sm_row32(&row, &write->half);
    sm_row32(&row, &write->rank);
    sm_row32(&row, &destination);
    sm_row32(&row, &write->pages);
    cursor->index = at + 1u;
    return true;
}

static bool pack_tombstone(const struct sm *sm, struct sm_pack *cursor, struct sm_item *item)
{
    const uint64_t position = sm->tombstone_first + cursor->index;
    if (position >= sm->tombstone_end) {
        next_stage(cursor);
        return false;
    }
    struct sm_tombstone *tombstone = sm_tombstone_at(sm, position);
    struct row row = row_begin(item, SM_ITEM_TOMBSTONE);
    uint32_t side = tombstone->side;
    sm_row64(&row, &tombstone->room);
    sm_row32(&row, &side);
    sm_row_tombstone(writable(sm), tombstone, &row);
    cursor->index++;
    return true;
}

/* Quarantined pages as runs of (rank, first, count). */
static bool pack_quarantine(const struct sm *sm, struct sm_pack *cursor, struct sm_item *item)
{
    const uint32_t quota = sm_pages_quota(sm);
    if (sm->counters.pages_quarantined == 0) {
        cursor->stage = STAGE_END;
        return false;
    }
    while (cursor->index < sm->policy.ranks) {
        while (cursor->inner < quota &&
               *sm_page_entry(sm, cursor->index, cursor->inner) != SM_PAGE_QUARANTINED) {
            cursor->inner++;
        }
        if (cursor->inner < quota) {
            struct row row = row_begin(item, SM_ITEM_QUARANTINE);
            uint32_t first = cursor->inner;
            while (cursor->inner < quota &&
                   *sm_page_entry(sm, cursor->index, cursor->inner) == SM_PAGE_QUARANTINED) {
                cursor->inner++;
            }
            uint32_t count = cursor->inner - first;
            sm_row32(&row, &cursor->index);
            sm_row32(&row, &first);
            sm_row32(&row, &count);
            return true;
        }
        cursor->index++;
        cursor->inner = 0;
    }
    cursor->stage = STAGE_END;
    return false;
}

bool sm_pack_next(const struct sm *sm, struct sm_pack *cursor, struct sm_item *out_item,
                  struct sm_run *scratch, uint32_t scratch_count)
{
    bool packed = false;
    while (!packed && cursor->stage != STAGE_END) {
        switch (cursor->stage) {
        case STAGE_NODE:
            packed = pack_node(sm, cursor, out_item);
            break;
        case STAGE_PEERS:
            packed = pack_peer(sm, cursor, out_item);
            break;
        case STAGE_ENGINES:
            packed = pack_engine(sm, cursor, out_item);
            break;
        case STAGE_WRITES:
            packed = pack_write(sm, cursor, out_item);
            break;
        case STAGE_TOMBSTONES:
            packed = pack_tombstone(sm, cursor, out_item);
            break;
        case STAGE_QUARANTINE:
            packed = pack_quarantine(sm, cursor, out_item);
            break;
        default:
            packed = pack_halves(sm, cursor, out_item, scratch, scratch_count);
            break;
        }
    }
    return packed;
}

/* ---- some rooms only
 * ------------------------------------------------------------------------------------ */

static bool kept_room(const struct sm_keep *keep, uint64_t room)
{
    for (uint32_t i = 0; i < keep->room_count; i++) {
        if (keep->rooms[i] == room) {
            return true;
        }
    }
    return false;
}

static bool kept_half(const struct sm_keep *keep, uint64_t half)
{
    for (uint32_t i = 0; i < keep->half_count; i++) {
        if (keep->halves[i] == half) {
            return true;
        }
    }
    return false;
}

bool sm_keep_item(struct sm_keep *keep, const struct sm_item *item)
{
    switch (item->kind) {
    case SM_ITEM_HALF: /* its place, its room */
        keep->keeping = kept_room(keep, item->numbers[1]) && keep->half_count < SM_KEEP_HALVES_MAX;
        if (keep->keeping) {
            keep->halves[keep->half_count++] = (uint32_t)item->numbers[0];
        }
        return keep->keeping;
    case SM_ITEM_RANK:
    case SM_ITEM_DESTINATION:
        return keep->keeping;
    case SM_ITEM_WRITE: /* its place, its id, its half */
        return kept_half(keep, item->numbers[2]);
    case SM_ITEM_TOMBSTONE: /* its room */
        return kept_room(keep, item->numbers[0]);
    default:
        return true;
    }
}
