/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each reason code is one that happens: for every code by which an input is ignored or refused
 * there is a way to it here, and what the machine says there is that code, counted once. A code
 * that has no way is dead, and falls.
 */
#include "one_machine.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* A way ends with the input whose result is looked at; it does not feed it itself. */
typedef struct sm_input (*way_fn)(void);

struct way {
    uint32_t code;
    way_fn way;
};

static const struct sm_run two_runs[2] = {{0, 4}, {2, 4}};
static const struct sm_run far = {60, 8};

static void open_prefill_room(uint64_t room)
{
    struct sm_input open = one_command(SM_IN_OPEN, SM_PREFILL);
    open.room = room;
    open.u.command.request = room << 8 | SM_IN_OPEN;
    one_feed(open);
}

/* ---- ignored
 * -------------------------------------------------------------------------------------------- */

static struct sm_input unknown_room(void)
{
    one_open();
    return one_command(SM_IN_RELEASE, SM_DECODE);
}

static struct sm_input stale_generation(void)
{
    struct sm_input newer = one_message(SM_IN_PREPARE, SM_PREFILL);
    one_open();
    newer.u.message.message.life.generation = 2;
    one_feed(newer);
    return one_message(SM_IN_PREPARE, SM_PREFILL);
}

static struct sm_input already_terminal(void)
{
    one_drive(SM_DECODE, SM_PHASE_FAILED);
    return one_command(SM_IN_ABORT, SM_DECODE);
}

static struct sm_input duplicate(void)
{
    one_drive(SM_PREFILL, SM_PHASE_ALLOCATED);
    return one_command(SM_IN_OPEN, SM_PREFILL);
}

static struct sm_input unknown_destination(void)
{
    struct sm_input ack = one_message(SM_IN_ACK, SM_PREFILL);
    one_drive(SM_PREFILL, SM_PHASE_READY);
    ack.u.message.message.decode_rank = 5;
    return ack;
}

static struct sm_input unknown_peer(void)
{
    struct sm_input prepare = one_message(SM_IN_PREPARE, SM_PREFILL);
    one_open();
    prepare.u.message.peer = one_text("nobody");
    return prepare;
}

static struct sm_input unknown_write(void)
{
    one_drive(SM_PREFILL, SM_PHASE_TRANSFERRING);
    return one_write_done(one.last_write + 1u);
}

static struct sm_input unknown_rank(void)
{
    struct sm_input lost = {.kind = SM_IN_ENGINE_LOST};
    one_open();
    lost.u.engine.rank = 1;
    return lost;
}

static struct sm_input not_terminal(void)
{
    one_drive(SM_PREFILL, SM_PHASE_READY);
    return one_message(SM_IN_ACK, SM_PREFILL);
}

static struct sm_input stale_link(void)
{
    one_open();
    return one_peer_up(1);
}

static struct sm_input malformed(void)
{
    struct sm_input status = one_message(SM_IN_STATUS, SM_DECODE);
    one_drive(SM_DECODE, SM_PHASE_READY);
    status.u.message.message.outcome = SM_OUTCOME_NONE;
    return status;
}

static struct sm_input nothing_due(void)
{
    one_open();
    return (struct sm_input){.kind = SM_IN_TICK};
}

static struct sm_input not_started(void)
{
    one_make();
    return one_command(SM_IN_OPEN, SM_PREFILL);
}

static struct sm_input conflict(void)
{
    struct sm_input prepare = one_message(SM_IN_PREPARE, SM_PREFILL);
    one_drive(SM_PREFILL, SM_PHASE_READY);
    prepare.u.message.message.pages = (struct sm_runs){&far, 1};
    return prepare;
}

static struct sm_input tombstone(void)
{
    one_drive(SM_PREFILL, SM_PHASE_CLEARED);
    return one_command(SM_IN_RELEASE, SM_PREFILL);
}

static const struct way ignored_ways[] = {
    {SM_IGNORED_UNKNOWN_ROOM, unknown_room},
    {SM_IGNORED_STALE_GENERATION, stale_generation},
    {SM_IGNORED_ALREADY_TERMINAL, already_terminal},
    {SM_IGNORED_DUPLICATE, duplicate},
    {SM_IGNORED_UNKNOWN_DESTINATION, unknown_destination},
    {SM_IGNORED_UNKNOWN_PEER, unknown_peer},
    {SM_IGNORED_UNKNOWN_WRITE, unknown_write},
    {SM_IGNORED_UNKNOWN_RANK, unknown_rank},
    {SM_IGNORED_NOT_TERMINAL, not_terminal},
    {SM_IGNORED_STALE_LINK, stale_link},
    {SM_IGNORED_MALFORMED, malformed},
    {SM_IGNORED_NOTHING_DUE, nothing_due},
    {SM_IGNORED_NOT_STARTED, not_started},
    {SM_IGNORED_CONFLICT, conflict},
    {SM_IGNORED_TOMBSTONE, tombstone},
};

/* ---- refused
 * -------------------------------------------------------------------------------------------- */

static struct sm_input room_zero(void)
{
    struct sm_input open = one_command(SM_IN_OPEN, SM_PREFILL);
    one_open();
    open.room = 0;
    return open;
}

static struct sm_input bad_pages(void)
{
    struct sm_input open = one_command(SM_IN_OPEN, SM_DECODE);
    one_open();
    open.u.command.pages = (struct sm_runs){two_runs, 2};
    return open;
}

static struct sm_input bad_peer(void)
{
    struct sm_input open = one_command(SM_IN_OPEN, SM_DECODE);
    one_open();
    open.u.command.peer = one_text("nobody");
    return open;
}

static struct sm_input bad_request(void)
{
    one_drive(SM_DECODE, SM_PHASE_READY);
    return one_command(SM_IN_SEND, SM_DECODE);
}

static struct sm_input room_live(void)
{
    struct sm_input again = one_command(SM_IN_OPEN, SM_PREFILL);
    one_drive(SM_PREFILL, SM_PHASE_ALLOCATED);
    again.u.command.request = 99;
    return again;
}

static struct sm_input pages_held(void)
{
    struct sm_input open = one_command(SM_IN_OPEN, SM_DECODE);
    one_drive(SM_DECODE, SM_PHASE_ALLOCATED);
    open.room = ONE_ROOM + 1u;
    return open;
}

static struct sm_input room_over(void)
{
    one_drive(SM_PREFILL, SM_PHASE_CLEARED);
    return one_command(SM_IN_ADMIT, SM_PREFILL);
}

static struct sm_input not_open(void)
{
    one_open();
    return one_command(SM_IN_SEND, SM_PREFILL);
}

static struct sm_input peer_bound(void)
{
    struct sm_policy policy = one_policy();
    struct sm_input open = one_command(SM_IN_OPEN, SM_DECODE);
    const struct sm_runs none = {NULL, 0};
    policy.rooms_per_peer_max = 1;
    one_open_with(&policy);
    one_feed(open);
    open.room = ONE_ROOM + 1u;
    open.u.command.pages = none;
    return open;
}

static struct sm_input table_full(void)
{
    one_open();
    for (uint64_t room = 1; room <= ONE_ROOMS_MAX; room++) {
        open_prefill_room(100u + room);
    }
    return one_command(SM_IN_OPEN, SM_PREFILL);
}

static struct sm_input stopping(void)
{
    const struct sm_input stop = {.kind = SM_IN_NODE_STOP};
    one_drive(SM_PREFILL, SM_PHASE_READY); /* it has something to end first */
    one_feed(stop);
    struct sm_input open = one_command(SM_IN_OPEN, SM_DECODE);
    return open;
}

static struct sm_input journal(void)
{
    const struct sm_input failed = {.kind = SM_IN_JOURNAL_FAILED};
    one_open();
    one_feed(failed);
    return one_command(SM_IN_OPEN, SM_PREFILL);
}

static struct sm_input no_pool(void)
{
    const struct sm_input lost = {.kind = SM_IN_ENGINE_LOST};
    one_open();
    one_feed(lost);
    return one_command(SM_IN_OPEN, SM_PREFILL);
}

static const struct way refused_ways[] = {
    {SM_REFUSAL_ROOM_ZERO, room_zero},   {SM_REFUSAL_BAD_PAGES, bad_pages},
    {SM_REFUSAL_BAD_PEER, bad_peer},     {SM_REFUSAL_BAD_REQUEST, bad_request},
    {SM_REFUSAL_ROOM_LIVE, room_live},   {SM_REFUSAL_PAGES_HELD, pages_held},
    {SM_REFUSAL_ROOM_OVER, room_over},   {SM_REFUSAL_NOT_OPEN, not_open},
    {SM_REFUSAL_PEER_BOUND, peer_bound}, {SM_REFUSAL_TABLE_FULL, table_full},
    {SM_REFUSAL_STOPPING, stopping},     {SM_REFUSAL_JOURNAL, journal},
    {SM_REFUSAL_NO_POOL, no_pool},
};

/* ---- all of them
 * ---------------------------------------------------------------------------------------- */

/* The way of a code; a code without one falls. */
static way_fn way_to(const struct way *ways, size_t count, uint32_t code, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (ways[i].code == code) {
            return ways[i].way;
        }
    }
    cr_assert_fail("nothing reaches %s (%u): find a way to it, or remove it", name, code);
    return NULL;
}

/* How often the last step has said `kind` with this code. */
static uint32_t said(uint32_t kind, uint32_t code)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < one.out->transition_count; i++) {
        count += one.out->transitions[i].kind == kind && one.out->transitions[i].a == code;
    }
    return count;
}

static void take(way_fn way, const char *name, struct sm_counters *before)
{
    const struct sm_input input = way();
    sm_counters(one.sm, before);
    one_feed(input);
    one_expect_result(name, before);
}

Test(codes, each_reason_for_ignoring_an_input_is_reached_and_counted, .timeout = 60)
{
    for (uint32_t code = 1; code < SM_IGNORED_COUNT; code++) {
        const char *name = sm_ignored_name(code);
        struct sm_counters before;
        struct sm_counters after;
        if (strcmp(name, "none") == 0) {
            continue; /* a number that is not given again */
        }
        take(way_to(ignored_ways, sizeof ignored_ways / sizeof ignored_ways[0], code, name), name,
             &before);
        sm_counters(one.sm, &after);
        cr_assert_eq(said(SM_TR_IGNORED, code), 1u, "%s is not what it says", name);
        cr_assert_eq(after.ignored[code], before.ignored[code] + 1u, "%s", name);
    }
}

Test(codes, each_reason_for_refusing_a_command_is_reached_and_counted, .timeout = 60)
{
    for (uint32_t code = 1; code < SM_REFUSAL_COUNT; code++) {
        const char *name = sm_refusal_name(code);
        struct sm_counters before;
        struct sm_counters after;
        if (strcmp(name, "none") == 0) {
            continue;
        }
        take(way_to(refused_ways, sizeof refused_ways / sizeof refused_ways[0], code, name), name,
             &before);
        sm_counters(one.sm, &after);
        cr_assert_eq(said(SM_TR_REFUSED, code), 1u, "%s is not what it says", name);
        cr_assert_eq(after.refused[code], before.refused[code] + 1u, "%s", name);
        const struct sm_effect *reply = &one.out->effects[0];
        cr_assert_eq(one.out->effect_count, 1u, "%s", name);
        cr_assert_eq(reply->kind, SM_FX_REPLY, "%s", name);
        cr_assert_eq(reply->u.reply.refusal, code, "%s", name);
        cr_assert(reply->u.reply.http >= 400u && reply->u.reply.http < 600u, "%s", name);
        cr_assert_gt(reply->u.reply.reason.size, 0u, "%s tells its engine nothing", name);
    }
}

Test(codes, numbers_that_are_not_given_have_no_name)
{
    cr_assert_str_eq(sm_ignored_name(0), "none");
    cr_assert_str_eq(sm_ignored_name(SM_IGNORED_COUNT), "none");
    cr_assert_str_eq(sm_refusal_name(0), "none");
    cr_assert_str_eq(sm_refusal_name(SM_REFUSAL_COUNT), "none");
    cr_assert_str_eq(sm_ignored_name(11), "none"); /* wrong_side: a message's kind says the side */
    cr_assert_str_eq(sm_refusal_name(7), "none");  /* geometry: a verdict, never a refusal */
}
