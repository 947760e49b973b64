/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a room over two machines: tries to break the verdict's way to both engines, the
 * drain, and what is remembered. Invariants are checked after every step.
 */
#include "pair.h"

#include <criterion/criterion.h>
#include <string.h>

#define MS UINT64_C(1000000)

static void open_decode(struct pair *pair, uint32_t rank, uint64_t room, uint32_t first,
                        uint32_t count)
{
    struct sm_run run = {first, count};
    struct sm_input input = pair_command(SM_IN_OPEN, SM_DECODE, rank, room);
    input.u.command.pages = (struct sm_runs){&run, count > 0 ? 1u : 0u};
    pair_step(pair, PAIR_D, &input);
}

static void prefill(struct pair *pair, uint32_t kind, uint32_t rank, uint64_t room)
{
    struct sm_input input = pair_command(kind, SM_PREFILL, rank, room);
    pair_step(pair, PAIR_P, &input);
}

static void send_pages(struct pair *pair, uint32_t rank, uint64_t room, uint32_t first,
                       uint32_t count, bool last)
{
    struct sm_run run = {first, count};
    struct sm_input input = pair_command(SM_IN_SEND, SM_PREFILL, rank, room);
    input.u.command.pages = (struct sm_runs){&run, count > 0 ? 1u : 0u};
    input.u.command.last = last;
    pair_step(pair, PAIR_P, &input);
}

static void abort_room(struct pair *pair, uint32_t node, uint64_t room, uint16_t http,
                       const char *reason)
{
    struct sm_input input =
        pair_command(SM_IN_ABORT, node == PAIR_P ? SM_PREFILL : SM_DECODE, 0, room);
    input.u.command.cause.http = http;
    input.u.command.cause.origin = SM_ORIGIN_CLIENT;
    input.u.command.cause.reason = (struct sm_text){reason, (uint32_t)strlen(reason)};
    pair_step(pair, node, &input);
}

static void assert_quiet(struct pair *pair)
{
    pair_pass(pair, 1000 * MS);
    cr_assert(sm_quiescent(pair->sm[PAIR_P]), "prefill keeps something");
    cr_assert(sm_quiescent(pair->sm[PAIR_D]), "decode keeps something");
}

Test(sm_handoff, a_prompt_in_two_chunks_succeeds_on_both_sides)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    open_decode(&pair, 0, 7, 0, 64);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    cr_assert_eq(pair_phase(&pair, PAIR_P, 7), SM_PHASE_READY);
    prefill(&pair, SM_IN_ADMIT, 0, 7);
    send_pages(&pair, 0, 7, 100, 32, false);
    cr_assert_eq(pair_phase(&pair, PAIR_P, 7), SM_PHASE_TRANSFERRING);
    cr_assert_eq(pair.told_count, 0u);
    send_pages(&pair, 0, 7, 500, 32, true);
    cr_assert_eq(pair_told_count(&pair, PAIR_P, 0, 7, SM_OUTCOME_SUCCEEDED), 1u);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_SUCCEEDED), 1u);
    cr_assert_eq(pair_phase(&pair, PAIR_P, 7), SM_PHASE_CLEARED);
    cr_assert_eq(pair_phase(&pair, PAIR_D, 7), SM_PHASE_CLEARED);
    assert_quiet(&pair);
    pair_close(&pair);
}

Test(sm_handoff, a_send_before_the_half_is_ready_is_kept)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    send_pages(&pair, 0, 7, 100, 64, true);
    cr_assert_eq(pair_phase(&pair, PAIR_P, 7), SM_PHASE_ALLOCATED);
    open_decode(&pair, 0, 7, 0, 64);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_SUCCEEDED), 1u);
    assert_quiet(&pair);
    pair_close(&pair);
}

Test(sm_handoff, a_refusal_before_the_queue_reaches_a_decode_that_comes_later)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    struct sm_input reject = pair_command(SM_IN_REJECT, SM_PREFILL, 0, 7);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    reject.u.command.cause.http = 400;
    reject.u.command.cause.reason = (struct sm_text){"too long", 8};
    pair_step(&pair, PAIR_P, &reject);
    cr_assert_eq(pair_phase(&pair, PAIR_P, 7), SM_PHASE_CLEARED);
    open_decode(&pair, 0, 7, 0, 64);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_FAILED), 1u);
    cr_assert_eq(pair.told[pair.told_count - 1u].http, 400u);
    cr_assert_str_eq(pair.told[pair.told_count - 1u].reason, "too long");
    cr_assert_not(sm_pages_held(pair.sm[PAIR_D], 0, 0, 64));
    assert_quiet(&pair);
    pair_close(&pair);
}

Test(sm_handoff, pages_wait_for_the_write_in_flight_after_an_abort)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    pair.hold_writes = true;
    open_decode(&pair, 0, 7, 0, 64);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    send_pages(&pair, 0, 7, 100, 64, true);
    abort_room(&pair, PAIR_D, 7, 499, "client left");
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_FAILED), 1u);
    cr_assert_eq(pair_told_count(&pair, PAIR_P, 0, 7, SM_OUTCOME_FAILED), 1u);
    cr_assert(sm_pages_held(pair.sm[PAIR_D], 0, 0, 64));
    cr_assert(sm_pages_held(pair.sm[PAIR_P], 0, 100, 64));
    open_decode(&pair, 0, 8, 10, 4);
    cr_assert_eq(pair.last_http, 409u, "pages within a write's reach were given away");
    pair_pass(&pair, 5000 * MS);
    cr_assert(sm_pages_held(pair.sm[PAIR_D], 0, 0, 64));
    pair_complete(&pair, 0);
    cr_assert_not(sm_pages_held(pair.sm[PAIR_D], 0, 0, 64));
    cr_assert_not(sm_pages_held(pair.sm[PAIR_P], 0, 100, 64));
    cr_assert_eq(pair.freed_count, 2u);
    assert_quiet(&pair);
    pair_close(&pair);
}

Test(sm_handoff, a_write_that_never_ends_is_fenced_after_the_drain_timeout)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    pair.hold_writes = true;
    open_decode(&pair, 0, 7, 0, 64);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    send_pages(&pair, 0, 7, 100, 64, true);
    abort_room(&pair, PAIR_P, 7, 499, "client left");
    pair_pass(&pair, 29000 * MS);
    cr_assert(sm_pages_held(pair.sm[PAIR_D], 0, 0, 64));
    pair_pass(&pair, 2000 * MS);
    cr_assert_not(sm_pages_held(pair.sm[PAIR_D], 0, 0, 64));
    cr_assert_not(sm_pages_held(pair.sm[PAIR_P], 0, 100, 64));
    pair_close(&pair);
}

Test(sm_handoff, a_lost_verdict_is_sent_again)
{
    struct pair pair;
    pair_open(&pair, 1, 2);
    open_decode(&pair, 0, 7, 0, 64);
    open_decode(&pair, 1, 7, 0, 64);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    pair.lose_status = true;
    abort_room(&pair, PAIR_P, 7, 503, "no lane");
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_FAILED), 0u);
    pair_pass(&pair, 50 * MS);
    pair.lose_status = false;
    pair_pass(&pair, 100 * MS);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_FAILED), 1u);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 1, 7, SM_OUTCOME_FAILED), 1u);
    assert_quiet(&pair);
    pair_close(&pair);
}

Test(sm_handoff, every_rank_mapping_completes)
{
    static const uint32_t sizes[][2] = {{1, 1}, {2, 2}, {1, 4}, {4, 1}, {2, 8}, {8, 2}, {64, 64}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct pair pair;
        const uint32_t prefills = sizes[i][0] > 8u ? 8u : sizes[i][0];
        const uint32_t decodes = sizes[i][1] > 8u ? 8u : sizes[i][1];
        pair_open(&pair, prefills, decodes);
        for (uint32_t rank = 0; rank < decodes; rank++) {
            open_decode(&pair, rank, 7, 0, 8);
        }
        for (uint32_t rank = 0; rank < prefills; rank++) {
            prefill(&pair, SM_IN_OPEN, rank, 7);
        }
        for (uint32_t rank = 0; rank < prefills; rank++) {
            cr_assert_eq(pair.told_count, 0u);
            send_pages(&pair, rank, 7, 100, 8, true);
        }
        for (uint32_t rank = 0; rank < decodes; rank++) {
            cr_assert_eq(pair_told_count(&pair, PAIR_D, rank, 7, SM_OUTCOME_SUCCEEDED), 1u,
                         "%u to %u ranks: rank %u", prefills, decodes, rank);
        }
        assert_quiet(&pair);
        pair_close(&pair);
    }
}

Test(sm_handoff, fewer_pages_than_published_is_a_failure)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    open_decode(&pair, 0, 7, 0, 64);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    send_pages(&pair, 0, 7, 100, 63, true);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_FAILED), 1u);
    cr_assert_eq(pair.told[0].http, 500u);
    assert_quiet(&pair);
    pair_close(&pair);
}

Test(sm_handoff, a_full_prefix_hit_completes_without_a_write)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    pair.hold_writes = true;
    open_decode(&pair, 0, 7, 0, 0);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    send_pages(&pair, 0, 7, 0, 0, true);
    cr_assert_eq(pair.write_count, 0u);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_SUCCEEDED), 1u);
    assert_quiet(&pair);
    pair_close(&pair);
}

Test(sm_handoff, a_room_number_lives_again_while_its_old_write_drains)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    pair.hold_writes = true;
    open_decode(&pair, 0, 7, 0, 64);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    send_pages(&pair, 0, 7, 0, 64, true);
    abort_room(&pair, PAIR_P, 7, 503, "retracted");
    const struct pair_write old = pair.writes[0];
    pair.write_count = 0;
    pair.hold_writes = false;
    open_decode(&pair, 0, 7, 64, 64);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    send_pages(&pair, 0, 7, 64, 64, true);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_SUCCEEDED), 1u);
    cr_assert(sm_pages_held(pair.sm[PAIR_D], 0, 0, 64));
    pair.writes[0] = old;
    pair.write_count = 1;
    pair_complete(&pair, 0);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_FAILED), 1u);
    assert_quiet(&pair);
    pair_close(&pair);
}

/* Prefill's engine has opened the room and would wait for decode until its deadline. */
Test(sm_handoff, an_abort_before_prefill_is_reached_is_told_when_it_is)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    pair_start(&pair, PAIR_D, 2);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    open_decode(&pair, 0, 7, 0, 16);
    abort_room(&pair, PAIR_D, 7, 499, "client closed the connection");
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_FAILED), 1u);
    cr_assert_eq(pair.freed_count + pair.told[0].pages_free, 1u, "nobody has heard of the pages");
    cr_assert_eq(pair_told_count(&pair, PAIR_P, 0, 7, SM_OUTCOME_FAILED), 0u);
    pair_connect(&pair);
    cr_assert_eq(pair_told_count(&pair, PAIR_P, 0, 7, SM_OUTCOME_FAILED), 1u);
    cr_assert_eq(pair.told[1].http, 499u);
    cr_assert_str_eq(pair.told[1].reason, "client closed the connection");
    assert_quiet(&pair);
    pair_close(&pair);
}

static void lose_prefill(struct pair *pair)
{
    struct sm_input down = {.kind = SM_IN_PEER_DOWN};
    down.u.peer.name = (struct sm_text){"P", 1};
    down.u.peer.link = pair->link;
    pair_step(pair, PAIR_D, &down);
}

Test(sm_handoff, a_room_that_failed_while_prefill_was_down_is_told_when_it_is_back)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    lose_prefill(&pair);
    open_decode(&pair, 0, 7, 0, 16);
    cr_assert_eq(pair_told_count(&pair, PAIR_D, 0, 7, SM_OUTCOME_FAILED), 1u);
    prefill(&pair, SM_IN_OPEN, 0, 7);
    pair_pass(&pair, 1000 * MS);
    cr_assert_eq(pair_told_count(&pair, PAIR_P, 0, 7, SM_OUTCOME_FAILED), 0u);
    pair_connect(&pair);
    cr_assert_eq(pair_told_count(&pair, PAIR_P, 0, 7, SM_OUTCOME_FAILED), 1u);
    cr_assert_eq(pair.told[1].http, 503u);
    assert_quiet(&pair);
    pair_close(&pair);
}

Test(sm_handoff, a_prefill_that_never_comes_back_is_owed_nothing_after_the_deadline)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    lose_prefill(&pair);
    open_decode(&pair, 0, 7, 0, 16);
    cr_assert(!sm_quiescent(pair.sm[PAIR_D]));
    pair_pass(&pair, 301000 * MS);
    cr_assert(sm_quiescent(pair.sm[PAIR_D]), "kept for a peer that does not come back");
    pair_close(&pair);
}
