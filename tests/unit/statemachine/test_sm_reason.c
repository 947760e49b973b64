/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people read when a room has failed: the other side is told it too, so each text must say at
 * which node, which rank, and why.
 */
#include "pair.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define ROOM UINT64_C(7)

static void step(struct pair *pair, uint32_t node, uint32_t kind)
{
    struct sm_input input = {.kind = kind};
    pair_step(pair, node, &input);
}

static void open_room(struct pair *pair, uint32_t node)
{
    const uint32_t side = node == PAIR_P ? SM_PREFILL : SM_DECODE;
    struct sm_input input = pair_command(SM_IN_OPEN, side, 0, ROOM);
    struct sm_run run = {0, 64};
    input.u.command.pages = (struct sm_runs){&run, node == PAIR_D ? 1u : 0u};
    pair_step(pair, node, &input);
}

static void send_pages(struct pair *pair, uint32_t count)
{
    struct sm_run run = {100, count};
    struct sm_input input = pair_command(SM_IN_SEND, SM_PREFILL, 0, ROOM);
    input.u.command.pages = (struct sm_runs){&run, 1};
    input.u.command.last = true;
    pair_step(pair, PAIR_P, &input);
}

static void lose_engine(struct pair *pair, uint32_t node, uint32_t lost)
{
    struct sm_input input = {.kind = SM_IN_ENGINE_LOST};
    input.u.engine.lost = lost;
    pair_step(pair, node, &input);
}

static void attach(struct pair *pair, uint32_t node, const struct sm_geometry *geometry)
{
    struct sm_input input = {.kind = SM_IN_ENGINE_ATTACHED};
    input.u.engine.pages = 1024;
    input.u.engine.aux_slots = 16;
    input.u.engine.geometry = *geometry;
    pair_step(pair, node, &input);
}

/* The first failure that a node's engine was told of. */
static const char *told(const struct pair *pair, uint32_t node, uint32_t http)
{
    for (uint32_t i = 0; i < pair->told_count; i++) {
        const struct pair_told *t = &pair->told[i];
        if (t->node == node && t->outcome == SM_OUTCOME_FAILED) {
            cr_assert_eq(t->http, http, "%u: %s", t->http, t->reason);
            return t->reason;
        }
    }
    cr_assert_fail("node %u was told no failure", node);
    return NULL;
}

static void both_told(struct pair *pair, uint32_t http, const char *text)
{
    cr_assert_str_eq(told(pair, PAIR_D, http), text);
    cr_assert_str_eq(told(pair, PAIR_P, http), text);
    pair_close(pair);
}

static void open_both(struct pair *pair)
{
    pair_open(pair, 1, 1);
    open_room(pair, PAIR_D);
    open_room(pair, PAIR_P);
}

Test(reason, a_write_that_failed_names_both_nodes)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    pair.hold_writes = true;
    open_room(&pair, PAIR_D);
    open_room(&pair, PAIR_P);
    send_pages(&pair, 64);
    pair_complete(&pair, -107);
    both_told(&pair, 500, "a write of node P to rank 0 of node D failed: injected");
}

Test(reason, a_wrong_number_of_pages_says_who_has_how_many)
{
    struct pair pair;
    open_both(&pair);
    send_pages(&pair, 63);
    both_told(
        &pair, 500,
        "rank 0 of prefill node P sent 63 pages in all, rank 0 of decode node D published 64");
}

Test(reason, a_geometry_says_only_what_differs)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    attach(&pair, PAIR_D, &(struct sm_geometry){16, 3, 8, 256, 2, 1, 0, 0, 0});
    open_room(&pair, PAIR_D);
    open_room(&pair, PAIR_P);
    both_told(&pair, 409, "geometry differs: layers is 2 at prefill node P, 3 at decode node D");
    pair_open(&pair, 1, 1);
    attach(&pair, PAIR_P, &(struct sm_geometry){16, 2, 8, 256, 2, 1, 1, 1, 0});
    open_room(&pair, PAIR_D);
    open_room(&pair, PAIR_P);
    both_told(&pair, 409,
              "geometry differs: rank 0 of decode node D holds layers 0 to 1 and heads 0 to 7; "
              "its sources at prefill node P do not cover them: rank 0 layers 1 to 1, heads 0 to "
              "7;");
    pair_open(&pair, 1, 1);
    attach(&pair, PAIR_D, &(struct sm_geometry){16, 2, 8, 256, 1, 7, 0, 0, 0});
    open_room(&pair, PAIR_D);
    open_room(&pair, PAIR_P);
    both_told(&pair, 409,
              "geometry differs: planes is 2 at prefill node P, 1 at decode node D; dtype is 1 at "
              "prefill node P, 7 at decode node D");
}

Test(reason, a_lost_engine_says_where_and_how)
{
    static const struct {
        uint32_t lost;
        const char *text;
    } ways[] = {
        {SM_LOST_ENDED, " is gone: its process has ended"},
        {SM_LOST_DETACHED, " is gone: it has detached"},
        {SM_LOST_SILENT, " is gone: it has been silent for too long"},
        {SM_LOST_DEAF, " is gone: it does not read what it is told"},
        {SM_LOST_UNSAID, " is gone"},
        {SM_LOST_COUNT, " is gone"},
        {UINT32_MAX, " is gone"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct pair pair;
        char text[128];
        open_both(&pair);
        lose_engine(&pair, PAIR_P, ways[i].lost);
        (void)snprintf(text, sizeof text, "the engine of rank 0 at prefill node P%s", ways[i].text);
        cr_assert_str_eq(told(&pair, PAIR_D, 500), text);
        pair_close(&pair);
        open_both(&pair);
        lose_engine(&pair, PAIR_D, ways[i].lost);
        (void)snprintf(text, sizeof text, "the engine of rank 0 at decode node D%s", ways[i].text);
        cr_assert_str_eq(told(&pair, PAIR_P, 500), text);
        pair_close(&pair);
    }
}

Test(reason, an_engine_that_does_not_come_back_after_a_restart_is_another_matter)
{
    const struct sm_geometry geometry = {16, 2, 8, 256, 2, 1, 0, 0, 0};
    struct pair pair;
    struct sm_input start = {.kind = SM_IN_NODE_STARTED};
    pair_open(&pair, 1, 1);
    start.u.node_started.node_id = 100u + PAIR_P;
    start.u.node_started.epoch = 2;
    start.u.node_started.name = (struct sm_text){"P", 1};
    sm_policy_default(&start.u.node_started.policy);
    pair_step(&pair, PAIR_P, &start);
    char line[256] = "";
    for (uint32_t i = 0; i < 400 && strstr(line, "engine_lost") == NULL; i++) {
        pair.now_ns += SECOND;
        struct sm_input tick = {.kind = SM_IN_TICK, .time_ns = pair.now_ns};
        sm_step(pair.sm[PAIR_P], &tick, pair.output);
        for (uint32_t k = 0; k < pair.output->transition_count; k++) {
            (void)sm_describe_transition(&pair.output->transitions[k], line, sizeof line);
        }
    }
    cr_assert_not_null(strstr(line, "it has not come back since the node restarted"), "%s", line);
    attach(&pair, PAIR_P, &geometry); /* a life of its own: the old one's end is not its cause */
    pair_connect(&pair);
    open_room(&pair, PAIR_D);
    open_room(&pair, PAIR_P);
    lose_engine(&pair, PAIR_P, SM_LOST_ENDED);
    cr_assert_str_eq(told(&pair, PAIR_D, 500),
                     "the engine of rank 0 at prefill node P is gone: its process has ended");
    pair_close(&pair);
}

Test(reason, a_deadline_says_at_which_node_what_was_missing)
{
    struct pair pair;
    pair_open(&pair, 1, 1);
    open_room(&pair, PAIR_D);
    pair_pass(&pair, 130 * SECOND);
    cr_assert_str_eq(told(&pair, PAIR_D, 504),
                     "no engine of prefill node P opened the room before its deadline");
    pair_close(&pair);
    pair_open(&pair, 1, 1);
    open_room(&pair, PAIR_P);
    pair_pass(&pair, 310 * SECOND);
    cr_assert_str_eq(told(&pair, PAIR_P, 504),
                     "the room's other side did not come to prefill node P before the deadline");
    pair_close(&pair);
    open_both(&pair);
    pair_pass(&pair, 310 * SECOND);
    const char *text = told(&pair, PAIR_D, 504);
    cr_assert_not_null(strstr(text, "the room was not complete at "), "%s", text);
    cr_assert_str_eq(told(&pair, PAIR_P, 504), text);
    pair_close(&pair);
}

Test(reason, what_ends_all_rooms_of_a_node_names_the_node)
{
    struct pair pair;
    open_both(&pair);
    step(&pair, PAIR_P, SM_IN_NODE_STOP);
    both_told(&pair, 503, "prefill node P is stopping");
    open_both(&pair);
    step(&pair, PAIR_D, SM_IN_JOURNAL_FAILED);
    both_told(&pair, 503, "the coordinator cannot write its journal: decode node D");
    open_both(&pair);
    pair_start(&pair, PAIR_P, 2);
    pair_connect(&pair);
    cr_assert_str_eq(told(&pair, PAIR_D, 503), "the coordinator restarted: prefill node P");
    pair_close(&pair);
}

Test(reason, names_as_long_as_can_be_do_not_break_the_text)
{
    char name[SM_NAME_BYTES_MAX + 1u];
    char cut[SM_REASON_BYTES_MAX + 1u];
    struct pair pair;
    struct sm_input start = {.kind = SM_IN_NODE_STARTED};
    /* Two bytes a character, so that the cut may fall into one. */
    for (uint32_t i = 0; i + 1u < SM_NAME_BYTES_MAX; i += 2u) {
        memcpy(name + i, "\xc3\xa9", 2);
    }
    pair_open(&pair, 1, 1);
    start.u.node_started.node_id = 100u + PAIR_P;
    start.u.node_started.epoch = 2;
    start.u.node_started.name = (struct sm_text){name, SM_NAME_BYTES_MAX - 1u};
    sm_policy_default(&start.u.node_started.policy);
    pair_step(&pair, PAIR_P, &start);
    attach(&pair, PAIR_P, &(struct sm_geometry){17, 3, 9, 257, 1, 7, 0, 0, 0});
    pair_connect(&pair);
    open_room(&pair, PAIR_D);
    open_room(&pair, PAIR_P);
    struct sm_half_view view;
    cr_assert(sm_half_find(pair.sm[PAIR_P], ROOM, SM_PREFILL, &view));
    cr_assert_leq(view.cause.reason.size, SM_REASON_BYTES_MAX);
    cr_assert_geq(view.cause.reason.size, SM_REASON_BYTES_MAX - 1u);
    memcpy(cut, view.cause.reason.bytes, view.cause.reason.size);
    cut[view.cause.reason.size] = '\0';
    cr_assert_not_null(strstr(cut, "page_tokens is 17 at prefill node \xc3\xa9"), "%s", cut);
    uint32_t at = 0;
    while (at < view.cause.reason.size) {
        at += ((unsigned char)cut[at] & 0x80u) != 0 ? 2u : 1u;
    }
    cr_assert_eq(at, view.cause.reason.size, "a character is cut in two");
    pair_close(&pair);
}
