/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing and restoring: a restored machine has the same digest and answers the next inputs alike,
 * from every point of a run; items that make no sense are refused and crash nothing. And the table
 * has no empty cell.
 */
#include "pair.h"
#include "statemachine/sm_image.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const struct sm_bounds small = {64, 256, 128, 4096, 64, 256, 64, 8, 8192, 256};

static struct sm *restore_copy(const struct sm *sm, void **out_memory)
{
    static struct sm_run runs[4096];
    struct sm_pack cursor = {0, 0, 0};
    struct sm_item item;
    struct sm_violation violation;
    const size_t bytes = (sm_memory_bytes(&small) + 15u) / 16u * 16u;
    *out_memory = aligned_alloc(16, bytes);
    memset(*out_memory, 0, bytes);
    struct sm *copy = sm_init(*out_memory, &small);
    while (sm_pack_next(sm, &cursor, &item, runs, 4096)) {
        cr_assert(sm_restore_item(copy, &item), "item of kind %u is refused", item.kind);
    }
    cr_assert(sm_restore_done(copy, &violation), "%s: %s", sm_invariant_name(violation.invariant),
              violation.detail);
    return copy;
}

/* Both must give the same transitions and digest for the same input. */
static void same_answer(const struct sm *sm, struct sm *copy, size_t bytes,
                        const struct sm_input *input)
{
    struct sm_output *a = calloc(1, sizeof *a);
    struct sm_output *b = calloc(1, sizeof *b);
    void *memory = aligned_alloc(16, (bytes + 15u) / 16u * 16u);
    memcpy(memory, sm, bytes); /* a copy of the block is a machine */
    sm_step(memory, input, a);
    sm_step(copy, input, b);
    cr_assert_eq(a->transition_count, b->transition_count);
    cr_assert_eq(a->effect_count, b->effect_count);
    cr_assert_eq(a->digest, b->digest);
    free(memory);
    free(a);
    free(b);
}

static void check_both(const struct pair *pair)
{
    for (uint32_t node = 0; node < 2; node++) {
        void *memory = NULL;
        struct sm *copy = restore_copy(pair->sm[node], &memory);
        cr_assert_eq(sm_digest(copy), sm_digest(pair->sm[node]));
        struct sm_input tick = {.kind = SM_IN_TICK, .time_ns = pair->now_ns + 400000000000u};
        same_answer(pair->sm[node], copy, pair->bytes[node], &tick);
        struct sm_input down = {.kind = SM_IN_PEER_DOWN, .time_ns = tick.time_ns + 1u};
        down.u.peer.name = (struct sm_text){node == PAIR_P ? "D" : "P", 1};
        down.u.peer.link = 1;
        sm_step(copy, &down, pair->output);
        struct sm_violation violation;
        cr_assert(sm_check(copy, &violation), "%s", violation.detail);
        free(memory);
    }
}

static void act(struct pair *pair, uint32_t node, uint32_t kind, uint64_t room, uint32_t first,
                uint32_t count)
{
    struct sm_run run = {first, count};
    struct sm_input input = pair_command(kind, node == PAIR_P ? SM_PREFILL : SM_DECODE, 0, room);
    input.u.command.pages = (struct sm_runs){&run, count > 0 ? 1u : 0u};
    input.u.command.last = kind == SM_IN_SEND && count == 7u;
    input.u.command.cause.http = 499;
    input.u.command.cause.reason = (struct sm_text){"gone", 4};
    pair_step(pair, node, &input);
}

Test(sm_image, a_restored_machine_goes_on_alike_from_every_point)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    pair.hold_writes = true;
    check_both(&pair);
    act(&pair, PAIR_D, SM_IN_OPEN, 7, 0, 10);
    check_both(&pair);
    act(&pair, PAIR_P, SM_IN_OPEN, 7, 0, 0);
    act(&pair, PAIR_P, SM_IN_SEND, 7, 100, 3);
    check_both(&pair);
    act(&pair, PAIR_D, SM_IN_OPEN, 8, 40, 7);
    act(&pair, PAIR_P, SM_IN_OPEN, 9, 0, 0);
    act(&pair, PAIR_P, SM_IN_ABORT, 9, 0, 0);
    check_both(&pair);
    act(&pair, PAIR_D, SM_IN_ABORT, 7, 0, 0);
    check_both(&pair);
    pair_complete(&pair, 0);
    check_both(&pair);
    struct sm_input lost = {.kind = SM_IN_ENGINE_LOST};
    lost.u.engine.lost = SM_LOST_SILENT;
    pair_step(&pair, PAIR_P, &lost);
    check_both(&pair);
    pair_close(&pair);
}

Test(sm_image, items_that_make_no_sense_are_refused)
{
    const size_t bytes = (sm_memory_bytes(&small) + 15u) / 16u * 16u;
    uint64_t random = 99;
    for (uint32_t round = 0; round < 3000; round++) {
        void *memory = aligned_alloc(16, bytes);
        memset(memory, 0, bytes);
        struct sm *sm = sm_init(memory, &small);
        struct sm_item item;
        struct sm_run run = {UINT32_MAX, UINT32_MAX};
        memset(&item, 0, sizeof item);
        item.kind = round % 12u;
        item.number_count = round % 97u;
        item.text_count = round % 3u;
        item.runs_count = round % 3u;
        item.runs[0] = (struct sm_runs){&run, 1};
        item.runs[1] = (struct sm_runs){&run, 1};
        item.texts[0] = item.texts[1] = (struct sm_text){"x", 1};
        for (size_t i = 0; i < SM_ITEM_NUMBERS_MAX; i++) {
            random = random * UINT64_C(6364136223846793005) + 1u;
            item.numbers[i] = round % 2u == 0 ? random >> (random % 64u) : UINT64_MAX;
        }
        (void)sm_restore_item(sm, &item);
        item.kind = SM_ITEM_WRITE;
        (void)sm_restore_item(sm, &item);
        free(memory);
    }
}

Test(sm_table, no_cell_is_missing)
{
    for (uint32_t side = SM_PREFILL; side < SM_SIDE_COUNT; side++) {
        for (uint32_t phase = 0; phase < SM_PHASE_COUNT; phase++) {
            for (uint32_t kind = SM_IN_OPEN; kind < SM_IN_COUNT; kind++) {
                cr_assert_gt(strlen(sm_table_handler(side, phase, kind)), 0u, "%s, %s, %s",
                             sm_side_name(side), sm_phase_name(phase), sm_input_name(kind));
            }
        }
    }
}

/* Nonsense contents, of a shape that the parsers would let through. */
static void fill_nonsense(struct sm_input *input, uint64_t random, struct sm_run *run)
{
    if (input->kind >= SM_IN_OPEN && input->kind <= SM_IN_DELIVERED) {
        input->u.command.rank = (uint32_t)(random >> 11) % 3u;
        input->u.command.side = (uint32_t)(random >> 13) % 4u;
        input->u.command.request = random;
        input->u.command.peer = (struct sm_text){"", 0};
        input->u.command.pages = (struct sm_runs){run, (uint32_t)(random >> 15) % 2u};
        input->u.command.aux_slot = (uint32_t)(random >> 17) % 20u;
        input->u.command.last = (random >> 19 & 1u) != 0;
        input->u.command.cause.reason = (struct sm_text){"r", (uint32_t)(random >> 21) % 2u};
        input->u.command.cause.origin = (uint8_t)((random >> 23) % 4u);
    } else if (input->kind >= SM_IN_PREPARE && input->kind < SM_IN_WRITE_DONE) {
        struct sm_message *m = &input->u.message.message;
        input->u.message.peer = (struct sm_text){random % 3u == 0 ? "?" : "D", 1};
        m->life = (struct sm_life){100u + random % 3u, 1u, 1u + (random >> 9) % 4u};
        m->decode_rank = (uint32_t)(random >> 11) % 66u;
        m->sources = random >> 62;
        m->decode_ranks = (uint32_t)(random >> 13) % 66u;
        m->required[0] = 1;
        m->pages = (struct sm_runs){run, (uint32_t)(random >> 15) % 2u};
        m->outcome = (uint32_t)(random >> 17) % 3u;
        m->aux_slot = SM_AUX_NONE;
        m->deadline_left_ns = random >> 30;
        m->cause.reason = (struct sm_text){"", 0};
        m->drained = (random >> 19 & 1u) != 0;
    } else if (input->kind == SM_IN_PEER_UP) {
        input->u.peer_up = (struct sm_in_peer_up){{"D", 1}, 101, 1, (uint32_t)(random % 9u), 1};
    } else if (input->kind == SM_IN_PEER_DOWN || input->kind == SM_IN_PEER_FENCED) {
        input->u.peer.name = (struct sm_text){"D", 1};
        input->u.peer.link = (uint32_t)(random >> 11) % 9u;
    } else if (input->kind == SM_IN_ENGINE_ATTACHED || input->kind == SM_IN_ENGINE_LOST) {
        input->u.engine.rank = (uint32_t)(random >> 11) % 2u;
        input->u.engine.pages = 1024;
    } else if (input->kind == SM_IN_WRITE_DONE) {
        input->u.write_done.write = random >> 50;
        input->u.write_done.text = (struct sm_text){"", 0};
    }
}

Test(sm_step, every_input_in_every_state_of_a_short_run_is_defined)
{
    /* All kinds with nonsense contents, stepped into a machine with rooms in several phases. */
    struct pair pair;
    pair_open(&pair, 1, 1);
    pair.hold_writes = true;
    act(&pair, PAIR_D, SM_IN_OPEN, 7, 0, 10);
    act(&pair, PAIR_P, SM_IN_OPEN, 7, 0, 0);
    act(&pair, PAIR_P, SM_IN_SEND, 7, 100, 3);
    act(&pair, PAIR_P, SM_IN_OPEN, 8, 0, 0);
    act(&pair, PAIR_P, SM_IN_ABORT, 8, 0, 0);
    uint64_t random = 5;
    for (uint32_t round = 0; round < 20000; round++) {
        struct sm_input input;
        struct sm_run run = {(uint32_t)(random >> 40) % 2000u, (uint32_t)(random >> 20) % 40u};
        memset(&input, 0, sizeof input);
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        input.kind = SM_IN_TICK + round % 24u;
        input.kind = input.kind == SM_IN_NODE_STARTED ? (uint32_t)SM_IN_TICK : input.kind;
        input.room = (random >> 33) % 12u;
        fill_nonsense(&input, random, &run);
        pair.now_ns += random % 50000000u;
        input.time_ns = pair.now_ns;
        struct sm_violation violation;
        sm_step(pair.sm[PAIR_P], &input, pair.output);
        cr_assert(pair.output->transition_count + pair.output->effect_count > 0 ||
                      input.kind == SM_IN_TICK,
                  "nothing is recorded of %s", sm_input_name(input.kind));
        cr_assert(sm_check(pair.sm[PAIR_P], &violation), "round %u, %s: %s: %s", round,
                  sm_input_name(input.kind), sm_invariant_name(violation.invariant),
                  violation.detail);
        cr_assert(sm_check_step(pair.sm[PAIR_P], pair.output, &violation), "round %u, %s: %s: %s",
                  round, sm_input_name(input.kind), sm_invariant_name(violation.invariant),
                  violation.detail);
    }
    pair_close(&pair);
}
