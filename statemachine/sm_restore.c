/* SPDX-License-Identifier: Apache-2.0 */
/* Restoring a packed state. Total: what makes no sense is refused, and the machine is thrown away.
 */
#include "sm_rows.h"

static struct row row_of(const struct sm_item *item)
{
    struct row row = {NULL, item, 0, true};
    return row;
}

static bool restore_node(struct sm *sm, const struct sm_item *item)
{
    struct row row = row_of(item);
    if (item->text_count != 1u || item->texts[0].size > SM_NAME_BYTES_MAX || sm->started) {
        return false;
    }
    sm_row_node(sm, &row);
    sm_copy(sm->name, item->texts[0].bytes, item->texts[0].size);
    sm->name_size = item->texts[0].size;
    /* A machine that never started has no ranks yet, and nothing else to restore. */
    return row.well && (sm->policy.ranks >= 1u || !sm->started) &&
           sm->policy.ranks <= SM_RANKS_MAX &&
           sm->policy.pages_per_room_max <= SM_OUTPUT_RUNS_MAX &&
           sm->policy.reason_bytes_max <= SM_REASON_BYTES_MAX;
}

static bool restore_peer(struct sm *sm, const struct sm_item *item)
{
    struct row row = row_of(item);
    const uint32_t before = sm->peer_count;
    const uint32_t index = item->text_count == 1u ? sm_peer_add(sm, item->texts[0]) : SM_NONE;
    if (index == SM_NONE || index != before) {
        return false;
    }
    struct sm_peer *peer = sm_peer_at(sm, index);
    sm_row_peer(peer, &row);
    sm->markers_owed += peer->marker_owed != 0 ? 1u : 0u;
    return row.well && peer->ranks <= SM_RANKS_MAX;
}

static bool restore_engine(struct sm *sm, const struct sm_item *item)
{
    struct row row = row_of(item);
    uint32_t rank = SM_NONE;
    sm_row32(&row, &rank);
    if (!row.well || rank >= SM_RANKS_MAX) {
        return false;
    }
    sm_row_engine(&sm->engines[rank], &row);
    return row.well && (rank >= sm->policy.ranks || sm->engines[rank].pages <= sm_pages_quota(sm));
}

static bool lives_sound(const struct sm *sm, const struct sm_half *half)
{
    for (uint32_t i = 0; i < half->life_count; i++) {
        if (half->lives[i].peer >= sm->peer_count) {
            return false;
        }
    }
    return half->phase >= SM_PHASE_ALLOCATED && half->phase < SM_PHASE_CLEARED &&
           half->outcome < SM_OUTCOME_COUNT;
}

static bool restore_half(struct sm *sm, const struct sm_item *item)
{
    struct row row = row_of(item);
    uint32_t index = SM_NONE;
    uint32_t side = 0;
    uint32_t flags = 0;
    uint64_t room = 0;
    uint64_t generation = 0;
    uint64_t wake = 0;
    sm_row32(&row, &index);
    sm_row64(&row, &room);
    sm_row64(&row, &generation);
    sm_row32(&row, &side);
    sm_row64(&row, &wake);
    sm_row32(&row, &flags);
    if (!row.well || index >= sm->bounds.halves_max || sm_bits_has(sm, &sm->halves_used, index) ||
        (side != SM_PREFILL && side != SM_DECODE) || room == 0) {
        return false;
    }
    struct sm_half *half = sm_half_at(sm, index);
    sm_zero(half, sizeof *half);
    half->room = room;
    half->generation = generation;
    half->side = (uint8_t)side;
    half->ranks = SM_NONE;
    half->destinations = SM_NONE;
    half->heap_at = SM_NONE;
    half->used = 1;
    sm_row_half(sm, half, &row);
    if (!row.well || !lives_sound(sm, half)) {
        return false;
    }
    for (uint32_t i = 0; i < half->life_count; i++) {
        sm_peer_at(sm, half->lives[i].peer)->rooms++;
    }
    sm_half_place(sm, index);
    sm_timer_set(sm, index, wake);
    if ((flags & 1u) != 0) {
        sm_bits_add(sm, &sm->work, index);
    }
    if ((flags & 2u) != 0) {
        sm_bits_add(sm, &sm->blocked, index);
    }
    sm->restoring_half = index;
    return true;
}

static bool restore_list(struct sm *sm, struct sm_page_list *list, const struct sm_item *item)
{
    uint32_t pages = 0;
    return item->runs_count == 1u && sm_runs_valid(&item->runs[0], UINT32_MAX, &pages) &&
           sm_list_append(sm, list, &item->runs[0]);
}

static bool restore_rank(struct sm *sm, const struct sm_item *item)
{
    struct row row = row_of(item);
    if (sm->restoring_half == SM_NONE || item->number_count == 0 ||
        item->numbers[0] >= SM_RANKS_MAX) {
        return false;
    }
    struct sm_half *half = sm_half_at(sm, sm->restoring_half);
    if (sm_half_rank(sm, half, (uint32_t)item->numbers[0]) != NULL) {
        return false;
    }
    struct sm_rank *rank = sm_half_rank_add(sm, half, (uint32_t)item->numbers[0]);
    if (rank == NULL) {
        return false;
    }
    sm_row_rank(sm, rank, &row);
    if (!row.well || !restore_list(sm, &rank->pages, item) ||
        (rank->peer != SM_NONE && rank->peer >= sm->peer_count) ||
        (half->side == SM_DECODE && rank->peer == SM_NONE) ||
        rank->posted_pages > rank->pages.pages) {
        return false;
    }
    if (rank->peer != SM_NONE) {
        sm_peer_at(sm, rank->peer)->rooms++;
    }
    rank->posted_at = sm_list_start(&rank->pages);
    (void)sm_list_read(sm, &rank->posted_at, rank->posted_pages, NULL, 0);
    return true;
}

static bool restore_destination(struct sm *sm, const struct sm_item *item)
{
    struct row row = row_of(item);
    if (sm->restoring_half == SM_NONE) {
        return false;
    }
    struct sm_half *half = sm_half_at(sm, sm->restoring_half);
    const uint32_t index = sm_pool_take(sm, &sm->destinations, sizeof(struct sm_destination));
    if (index == SM_NONE || half->side != SM_PREFILL) {
        return false;
    }
    struct sm_destination *destination = sm_destination_at(sm, index);
    sm_row_destination(destination, &row);
    destination->next = SM_NONE;
    if (!row.well || !restore_list(sm, &destination->pages, item) ||
        destination->life >= half->life_count || destination->index != half->destination_count) {
        return false;
    }
    uint32_t *link = &half->destinations;
    while (*link != SM_NONE) {
        link = &sm_destination_at(sm, *link)->next;
    }
    *link = index;
    half->destination_count++;
    return true;
}

static uint32_t destination_record(const struct sm *sm, const struct sm_half *half, uint32_t index)
{
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        if (sm_destination_at(sm, at)->index == index) {
            return at;
        }
    }
    return SM_NONE;
}

static bool restore_write(struct sm *sm, const struct sm_item *item)
{
    struct row row = row_of(item);
    struct sm_write write;
    uint32_t slot = SM_NONE;
    uint32_t destination = SM_NONE;
    sm_zero(&write, sizeof write);
    sm_row32(&row, &slot);
    sm_row64(&row, &write.id);
    sm_row32(&row, &write.half);
    sm_row32(&row, &write.rank);
    sm_row32(&row, &destination);
    sm_row32(&row, &write.pages);
    if (!row.well || slot >= sm->bounds.writes_max || sm_bits_has(sm, &sm->writes_used, slot) ||
        write.half >= sm->bounds.halves_max || !sm_bits_has(sm, &sm->halves_used, write.half)) {
        return false;
    }
    const struct sm_half *half = sm_half_at(sm, write.half);
    write.destination = destination_record(sm, half, destination);
    if (write.destination == SM_NONE || sm_half_rank(sm, half, write.rank) == NULL) {
        return false;
    }
    sm_bits_add(sm, &sm->writes_used, slot);
    *sm_write_at(sm, slot) = write;
    return true;
}

static bool restore_tombstone(struct sm *sm, const struct sm_item *item)
{
    struct row row = row_of(item);
    uint64_t room = 0;
    uint32_t side = 0;
    sm_row64(&row, &room);
    sm_row32(&row, &side);
    if (!row.well || room == 0 || (side != SM_PREFILL && side != SM_DECODE) ||
        sm->tombstone_end - sm->tombstone_first >= sm->bounds.tombstones_max) {
        return false;
    }
    struct sm_tombstone *tombstone = sm_tombstone_add(sm, room, side);
    sm_row_tombstone(sm, tombstone, &row);
    return row.well && tombstone->outcome < SM_OUTCOME_COUNT;
}

bool sm_restore_item(struct sm *sm, const struct sm_item *item)
{
    if (item->number_count > SM_ITEM_NUMBERS_MAX || item->text_count > SM_ITEM_TEXTS_MAX ||
        item->runs_count > SM_ITEM_RUNS_MAX) {
        return false;
    }
    switch (item->kind) {
    case SM_ITEM_NODE:
        return restore_node(sm, item);
    case SM_ITEM_PEER:
        return restore_peer(sm, item);
    case SM_ITEM_ENGINE:
        return restore_engine(sm, item);
    case SM_ITEM_HALF:
        return restore_half(sm, item);
    case SM_ITEM_RANK:
        return restore_rank(sm, item);
    case SM_ITEM_DESTINATION:
        return restore_destination(sm, item);
    case SM_ITEM_WRITE:
        return restore_write(sm, item);
    case SM_ITEM_TOMBSTONE:
        return restore_tombstone(sm, item);
    case SM_ITEM_QUARANTINE:
        /* Kept in the order of the items: the map is rebuilt before they are entered. */
        if (!sm->map_built) {
            sm_pages_rebuild(sm);
            sm->map_built = 1;
        }
        if (item->number_count != 3u || item->numbers[0] >= sm->policy.ranks ||
            item->numbers[1] >= sm_pages_quota(sm) ||
            item->numbers[2] > sm_pages_quota(sm) - item->numbers[1]) {
            return false;
        }
        for (uint64_t i = 0; i < item->numbers[2]; i++) {
            *sm_page_entry(sm, (uint32_t)item->numbers[0], (uint32_t)(item->numbers[1] + i)) =
                SM_PAGE_QUARANTINED;
            sm->pages_held++;
            sm->counters.pages_quarantined++;
        }
        return true;
    default:
        return false;
    }
}

bool sm_restore_done(struct sm *sm, struct sm_violation *out_violation)
{
    if (!sm->map_built) {
        sm_pages_rebuild(sm);
        sm->map_built = 1;
    }
    sm->restoring_half = SM_NONE;
    return sm_check(sm, out_violation);
}
