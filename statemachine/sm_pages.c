/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page lists, and the map of who holds which page. Pages that are written into have one holder;
 * pages that are only read (a prefill engine's prefix cache) may be read for several rooms at once,
 * but never while somebody writes into them.
 */
#include "sm_state.h"

uint32_t sm_pages_quota(const struct sm *sm)
{
    return sm->bounds.pages_max / (sm->policy.ranks == 0 ? 1u : sm->policy.ranks);
}

uint32_t sm_aux_quota(const struct sm *sm)
{
    return sm->bounds.aux_slots_max / (sm->policy.ranks == 0 ? 1u : sm->policy.ranks);
}

uint32_t *sm_page_entry(const struct sm *sm, uint32_t rank, uint32_t page)
{
    SM_ASSERT(rank < sm->policy.ranks && page < sm_pages_quota(sm));
    return (uint32_t *)sm_at(sm, sm->pages_at) + (size_t)rank * sm_pages_quota(sm) + page;
}

uint32_t *sm_aux_entry(const struct sm *sm, uint32_t rank, uint32_t slot)
{
    SM_ASSERT(rank < sm->policy.ranks && slot < sm_aux_quota(sm));
    return (uint32_t *)sm_at(sm, sm->aux_at) + (size_t)rank * sm_aux_quota(sm) + slot;
}

static bool list_append_run(struct sm *sm, struct sm_page_list *list, struct sm_run run)
{
    struct sm_block *tail = list->runs == 0 ? NULL : sm_block_at(sm, list->tail);
    if (tail != NULL) {
        struct sm_run *last = &tail->runs[tail->count - 1u];
        if (last->first + last->count == run.first) {
            last->count += run.count;
            list->pages += run.count;
            return true;
        }
    }
    if (tail == NULL || tail->count == SM_BLOCK_RUNS) {
        const uint32_t index = sm_pool_take(sm, &sm->blocks, sizeof(struct sm_block));
        if (index == SM_NONE) {
            return false;
        }
        sm_block_at(sm, index)->next = SM_NONE;
        if (tail == NULL) {
            list->head = index;
        } else {
            tail->next = index;
        }
        list->tail = index;
        tail = sm_block_at(sm, index);
    }
    tail->runs[tail->count] = run;
    tail->count++;
    list->runs++;
    list->pages += run.count;
    return true;
}

bool sm_list_append(struct sm *sm, struct sm_page_list *list, const struct sm_runs *runs)
{
    for (uint32_t i = 0; i < runs->count; i++) {
        if (!list_append_run(sm, list, runs->at[i])) {
            return false;
        }
    }
    return true;
}

void sm_list_clear(struct sm *sm, struct sm_page_list *list)
{
    uint32_t at = list->runs == 0 ? SM_NONE : list->head;
    while (at != SM_NONE) {
        const uint32_t next = sm_block_at(sm, at)->next;
        sm_pool_give(sm, &sm->blocks, sizeof(struct sm_block), at);
        at = next;
    }
    sm_zero(list, sizeof *list);
}

bool sm_list_equals(const struct sm *sm, const struct sm_page_list *list,
                    const struct sm_runs *runs)
{
    /* Page by page as runs: both are cut differently when neighbours were merged. */
    uint32_t block = list->runs == 0 ? SM_NONE : list->head;
    uint32_t index = 0;
    uint32_t skip = 0;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        uint32_t left = runs->at[i].count;
        uint32_t first = runs->at[i].first;
        pages += left;
        while (left > 0) {
            if (block == SM_NONE) {
                return false;
            }
            const struct sm_block *b = sm_block_at(sm, block);
            const struct sm_run *run = &b->runs[index];
            const uint32_t part = run->count - skip < left ? run->count - skip : left;
            if (run->first + skip != first) {
                return false;
            }
            first += part;
            left -= part;
            skip += part;
            if (skip == run->count) {
                skip = 0;
                index++;
                if (index == b->count) {
                    index = 0;
                    block = b->next;
                }
            }
        }
    }
    return pages == list->pages;
}

struct sm_page_cursor sm_list_start(const struct sm_page_list *list)
{
    struct sm_page_cursor cursor = {list->runs == 0 ? SM_NONE : list->head, 0, 0};
    return cursor;
}

uint32_t sm_list_read(const struct sm *sm, struct sm_page_cursor *cursor, uint32_t pages,
                      struct sm_run *out_runs, uint32_t max)
{
    uint32_t count = 0;
    while (pages > 0) {
        SM_ASSERT(cursor->block != SM_NONE);
        const struct sm_block *block = sm_block_at(sm, cursor->block);
        if (cursor->index == block->count) {
            /* Stood at the end of what the list had; it has grown since, or goes on in a new block.
             */
            SM_ASSERT(block->next != SM_NONE);
            cursor->block = block->next;
            cursor->index = 0;
            continue;
        }
        const struct sm_run *run = &block->runs[cursor->index];
        const uint32_t left = run->count - cursor->skip;
        const uint32_t part = left < pages ? left : pages;
        if (part > 0) {
            if (out_runs != NULL) {
                if (count == max) {
                    return SM_NONE;
                }
                out_runs[count].first = run->first + cursor->skip;
                out_runs[count].count = part;
                count++;
            }
            pages -= part;
            cursor->skip += part;
        }
        /* The last run may still grow: only a page that is really asked for moves past it. */
        if (cursor->skip == run->count && pages > 0) {
            cursor->skip = 0;
            cursor->index++;
        }
    }
    return count;
}

bool sm_runs_valid(const struct sm_runs *runs, uint32_t pages, uint32_t *out_pages)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        const struct sm_run *run = &runs->at[i];
        if (run->count == 0 || run->first >= pages || run->count > pages - run->first) {
            return false;
        }
        total += run->count;
        if (total > pages) {
            return false; /* more pages than the pool has: some page stands twice */
        }
    }
    *out_pages = (uint32_t)total;
    return true;
}

uint32_t sm_pages_blocked(const struct sm *sm, uint32_t rank, const struct sm_runs *runs,
                          bool exclusive)
{
    for (uint32_t i = 0; i < runs->count; i++) {
        for (uint32_t k = 0; k < runs->at[i].count; k++) {
            const uint32_t page = runs->at[i].first + k;
            const uint32_t entry = *sm_page_entry(sm, rank, page);
            const bool shared = (entry & SM_PAGE_SHARED) != 0;
            if (entry != SM_PAGE_FREE && (exclusive || !shared)) {
                return page;
            }
        }
    }
    return SM_NONE;
}

/* Frees what an unfinished hold has taken: the pages before number `taken` of the runs. */
static void hold_undo(struct sm *sm, uint32_t rank, const struct sm_runs *runs, uint32_t taken)
{
    for (uint32_t i = 0; i < runs->count && taken > 0; i++) {
        for (uint32_t k = 0; k < runs->at[i].count && taken > 0; k++) {
            *sm_page_entry(sm, rank, runs->at[i].first + k) = SM_PAGE_FREE;
            sm->pages_held--;
            taken--;
        }
    }
}

bool sm_pages_hold(struct sm *sm, uint32_t rank, const struct sm_runs *runs, uint32_t half)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        for (uint32_t k = 0; k < runs->at[i].count; k++) {
            uint32_t *entry = sm_page_entry(sm, rank, runs->at[i].first + k);
            if (*entry != SM_PAGE_FREE) {
                hold_undo(sm, rank, runs, taken);
                return false;
            }
            *entry = half + 1u;
            sm->pages_held++;
            taken++;
        }
    }
    return true;
}

void sm_pages_share(struct sm *sm, uint32_t rank, const struct sm_runs *runs)
{
    for (uint32_t i = 0; i < runs->count; i++) {
        for (uint32_t k = 0; k < runs->at[i].count; k++) {
            uint32_t *entry = sm_page_entry(sm, rank, runs->at[i].first + k);
            if (*entry == SM_PAGE_FREE) {
                sm->pages_held++;
                *entry = SM_PAGE_SHARED;
            }
            SM_ASSERT((*entry & SM_PAGE_SHARED) != 0);
            *entry += 1u;
        }
    }
}

bool sm_list_hold(struct sm *sm, const struct sm_half *half, uint32_t index,
                  const struct sm_rank *rank)
{
    const struct sm_page_list *list = &rank->pages;
    if (rank->rank >= sm->policy.ranks) {
        return false;
    }
    uint32_t at = list->runs == 0 ? SM_NONE : list->head;
    for (; at != SM_NONE; at = sm_block_at(sm, at)->next) {
        const struct sm_block *block = sm_block_at(sm, at);
        const struct sm_runs runs = {block->runs, block->count};
        uint32_t pages = 0;
        if (!sm_runs_valid(&runs, sm_pages_quota(sm), &pages)) {
            return false;
        }
        if (half->side == SM_PREFILL) {
            sm_pages_share(sm, rank->rank, &runs);
        } else if (!sm_pages_hold(sm, rank->rank, &runs, index)) {
            return false;
        }
    }
    if (half->side == SM_DECODE && rank->aux_slot != SM_AUX_NONE &&
        rank->aux_slot < sm_aux_quota(sm)) {
        *sm_aux_entry(sm, rank->rank, rank->aux_slot) = index + 1u;
    }
    return true;
}

/* The map says what the lists say; for a restored machine, and when the number of ranks changed. */
void sm_pages_rebuild(struct sm *sm)
{
    sm_zero(sm_at(sm, sm->pages_at), (size_t)sm->bounds.pages_max * sizeof(uint32_t));
    sm_zero(sm_at(sm, sm->aux_at), (size_t)sm->bounds.aux_slots_max * sizeof(uint32_t));
    sm->pages_held = 0;
    for (uint32_t at = sm_bits_next(sm, &sm->halves_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->halves_used, at + 1u)) {
        struct sm_half *half = sm_half_at(sm, at);
        for (uint32_t r = half->ranks; r != SM_NONE; r = sm_rank_at(sm, r)->next) {
            struct sm_rank *rank = sm_rank_at(sm, r);
            if (!rank->freed && !sm_list_hold(sm, half, at, rank)) {
                rank->freed = 1; /* its pages lie outside of what the rank has now */
            }
        }
    }
}

static void drop_page(struct sm *sm, uint32_t *entry, bool exclusive)
{
    SM_ASSERT(*entry != SM_PAGE_FREE && *entry != SM_PAGE_QUARANTINED);
    if (exclusive || *entry == (SM_PAGE_SHARED | 1u)) {
        *entry = SM_PAGE_FREE;
        sm->pages_held--;
    } else {
        *entry -= 1u;
    }
}

void sm_pages_drop(struct sm *sm, uint32_t rank, const struct sm_page_list *list, bool exclusive)
{
    uint32_t at = list->runs == 0 ? SM_NONE : list->head;
    for (; at != SM_NONE; at = sm_block_at(sm, at)->next) {
        const struct sm_block *block = sm_block_at(sm, at);
        for (uint32_t i = 0; i < block->count; i++) {
            for (uint32_t k = 0; k < block->runs[i].count; k++) {
                drop_page(sm, sm_page_entry(sm, rank, block->runs[i].first + k), exclusive);
            }
        }
    }
}

void sm_pages_quarantine(struct sm *sm, uint32_t rank, const struct sm_page_list *list)
{
    uint32_t at = list->runs == 0 ? SM_NONE : list->head;
    for (; at != SM_NONE; at = sm_block_at(sm, at)->next) {
        const struct sm_block *block = sm_block_at(sm, at);
        for (uint32_t i = 0; i < block->count; i++) {
            for (uint32_t k = 0; k < block->runs[i].count; k++) {
                *sm_page_entry(sm, rank, block->runs[i].first + k) = SM_PAGE_QUARANTINED;
                sm->counters.pages_quarantined++;
            }
        }
    }
}
