/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing silent: in each phase of each side each input has a defined result, which stands in the
 * journal: a transition, or `ignored` or `refused` with a reason that is counted. Machines are
 * driven into every phase by the inputs that lead there in life.
 */
#include "statemachine/sm.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 7u
#define SECOND UINT64_C(1000000000)

static const struct sm_bounds small = {8, 32, 16, 256, 16, 16, 16, 4, 256, 16};
static const struct sm_run four = {0, 4};

static struct sm_output *out;
static void *memory;
static size_t bytes;
static struct sm *sm;
static uint64_t now_ns;

static struct sm_text text(const char *zero_terminated)
{
    return (struct sm_text){zero_terminated, (uint32_t)strlen(zero_terminated)};
}

static void feed(struct sm_input input)
{
    struct sm_violation violation;
    input.time_ns = now_ns;
    sm_step(sm, &input, out);
    cr_assert(sm_check_step(sm, out, &violation), "%s", violation.detail);
    cr_assert(sm_check(sm, &violation), "%s", violation.detail);
}

static struct sm_input command(uint32_t kind, uint32_t side)
{
    struct sm_input input = {.kind = kind, .room = ROOM};
    input.u.command.request = kind;
    input.u.command.side = side;
    input.u.command.aux_slot = SM_AUX_NONE;
    input.u.command.peer = text("");
    input.u.command.cause.reason = text("");
    if (kind == SM_IN_OPEN && side == SM_DECODE) {
        input.u.command.pages = (struct sm_runs){&four, 1};
    } else if (kind == SM_IN_SEND) {
        input.u.command.pages = (struct sm_runs){&four, 1};
        input.u.command.last = true;
    } else if (kind == SM_IN_ABORT || kind == SM_IN_REJECT) {
        input.u.command.cause.http = 400;
        input.u.command.cause.typed = true;
        input.u.command.cause.origin = SM_ORIGIN_ENGINE;
        input.u.command.cause.reason = text("because");
    }
    return input;
}

/* What the other node says about life (its or our) generation 1. */
static struct sm_input message(uint32_t kind, uint32_t side)
{
    struct sm_input input = {.kind = kind, .room = ROOM};
    struct sm_message *m = &input.u.message.message;
    input.u.message.peer = text("other");
    input.u.message.epoch = 1;
    m->life = (struct sm_life){side == SM_PREFILL ? 2u : 1u, 1, 1};
    m->sources = 1;
    m->required[0] = 1;
    m->aux_slot = SM_AUX_NONE;
    m->decode_ranks = 1;
    m->deadline_left_ns = 100u * SECOND;
    m->geometry = (struct sm_geometry){16, 2, 8, 256, 2, 1, 0, 0, 0};
    m->cause.reason = text("");
    if (kind == SM_IN_PREPARE) {
        m->pages = (struct sm_runs){&four, 1};
    } else if (kind == SM_IN_STATUS) {
        m->outcome = SM_OUTCOME_SUCCEEDED;
        m->drained = true;
    } else if (kind == SM_IN_PEER_ABORT) {
        m->cause.http = 499;
        m->cause.typed = true;
    }
    return input;
}

static void open_machine(void)
{
    struct sm_input started = {.kind = SM_IN_NODE_STARTED};
    const struct sm_text peers[1] = {text("other")};
    out = out != NULL ? out : calloc(1, sizeof *out);
    bytes = sm_memory_bytes(&small);
    free(memory);
    memory = aligned_alloc(16, (bytes + 15u) / 16u * 16u);
    memset(memory, 0, bytes);
    sm = sm_init(memory, &small);
    now_ns = SECOND;
    started.u.node_started.node_id = 1;
    started.u.node_started.epoch = 1;
    started.u.node_started.name = text("self");
    started.u.node_started.peer_names = peers;
    started.u.node_started.peer_count = 1;
    sm_policy_default(&started.u.node_started.policy);
    started.u.node_started.policy.ranks = 1;
    feed(started);
    struct sm_input attach = {.kind = SM_IN_ENGINE_ATTACHED};
    attach.u.engine.pages = 64;
    attach.u.engine.aux_slots = 4;
    attach.u.engine.geometry = (struct sm_geometry){16, 2, 8, 256, 2, 1, 0, 0, 0};
    feed(attach);
    struct sm_input up = {.kind = SM_IN_PEER_UP};
    up.u.peer_up.name = text("other");
    up.u.peer_up.node_id = 2;
    up.u.peer_up.epoch = 1;
    up.u.peer_up.link = 1;
    up.u.peer_up.ranks = 1;
    feed(up);
}

static uint64_t posted_write(void)
{
    for (uint32_t i = 0; i < out->effect_count; i++) {
        if (out->effects[i].kind == SM_FX_WRITE) {
            return out->effects[i].u.write.id;
        }
    }
    return 0;
}

static struct sm_input write_done(uint64_t id)
{
    struct sm_input done = {.kind = SM_IN_WRITE_DONE, .room = ROOM};
    done.u.write_done.write = id;
    done.u.write_done.text = text("");
    return done;
}

static uint64_t last_write;

static void drive_prefill(uint32_t phase)
{
    if (phase == SM_PHASE_ABSENT) {
        return;
    }
    feed(command(SM_IN_OPEN, SM_PREFILL));
    if (phase == SM_PHASE_ALLOCATED) {
        return;
    }
    feed(message(SM_IN_PREPARE, SM_PREFILL));
    if (phase == SM_PHASE_PRE_QUEUE_TERMINAL) {
        feed(command(SM_IN_REJECT, SM_PREFILL));
    }
    if (phase == SM_PHASE_READY || phase == SM_PHASE_PRE_QUEUE_TERMINAL) {
        return;
    }
    feed(command(SM_IN_ADMIT, SM_PREFILL));
    if (phase == SM_PHASE_FAILED) {
        feed(command(SM_IN_ABORT, SM_PREFILL));
        return;
    }
    feed(command(SM_IN_SEND, SM_PREFILL));
    last_write = posted_write();
    if (phase == SM_PHASE_TRANSFERRING) {
        return;
    }
    feed(write_done(last_write));
    if (phase == SM_PHASE_SUCCEEDED) {
        return;
    }
    feed(message(SM_IN_ACK, SM_PREFILL));
    if (phase == SM_PHASE_CLEARED) {
        feed(command(SM_IN_DELIVERED, SM_PREFILL));
        feed(command(SM_IN_RELEASE, SM_PREFILL));
    }
}

static void drive_decode(uint32_t phase)
{
    if (phase == SM_PHASE_ABSENT) {
        return;
    }
    if (phase == SM_PHASE_PRE_QUEUE_TERMINAL) {
        /* An abort that overtakes its open: remembered, and the open joins what is over. */
        feed(command(SM_IN_ABORT, SM_DECODE));
        return;
    }
    feed(command(SM_IN_OPEN, SM_DECODE));
    if (phase == SM_PHASE_ALLOCATED) {
        return;
    }
    feed(message(SM_IN_PREPARED, SM_DECODE));
    if (phase == SM_PHASE_FAILED) {
        feed(command(SM_IN_ABORT, SM_DECODE)); /* prefill has not said that it drained */
    }
    if (phase == SM_PHASE_READY || phase == SM_PHASE_FAILED) {
        return;
    }
    feed(message(SM_IN_STATUS, SM_DECODE));
    if (phase == SM_PHASE_CLEARED) {
        feed(command(SM_IN_DELIVERED, SM_DECODE));
        feed(command(SM_IN_RELEASE, SM_DECODE));
    }
}

static struct sm_input input_of(uint32_t kind, uint32_t side)
{
    if (sm_input_is_command(kind)) {
        return command(kind, side);
    }
    if (kind == SM_IN_WRITE_DONE) {
        return write_done(last_write);
    }
    return message(kind, side);
}

/* Phases that last between two inputs on that side. Decode succeeds and is notified in one step,
 * and is never transferring; what fails before its open is remembered and not kept. */
static bool lasts(uint32_t side, uint32_t phase)
{
    return side == SM_PREFILL || (phase != SM_PHASE_TRANSFERRING && phase != SM_PHASE_SUCCEEDED &&
                                  phase != SM_PHASE_PRE_QUEUE_TERMINAL);
}

static uint32_t phase_now(uint32_t side)
{
    struct sm_half_view view;
    return sm_half_find(sm, ROOM, side, &view) ? view.phase : SM_PHASE_ABSENT;
}

/* Every step says something, and what it says is counted. */
static void expect_result(const char *what, const struct sm_counters *before)
{
    struct sm_counters after;
    uint64_t ignored[SM_IGNORED_COUNT] = {0};
    uint64_t refused[SM_REFUSAL_COUNT] = {0};
    sm_counters(sm, &after);
    cr_assert_geq(out->transition_count, 1u, "%s: nothing stands in the journal", what);
    for (uint32_t i = 0; i < out->transition_count; i++) {
        const struct sm_transition *t = &out->transitions[i];
        cr_assert(t->kind > 0 && t->kind < SM_TR_COUNT, "%s", what);
        if (t->kind == SM_TR_IGNORED) {
            cr_assert(t->a > 0 && t->a < SM_IGNORED_COUNT, "%s: no reason", what);
            ignored[t->a]++;
        } else if (t->kind == SM_TR_REFUSED) {
            cr_assert(t->a > 0 && t->a < SM_REFUSAL_COUNT, "%s: no reason", what);
            refused[t->a]++;
        }
    }
    for (uint32_t i = 0; i < SM_IGNORED_COUNT; i++) {
        cr_assert_eq(after.ignored[i] - before->ignored[i], ignored[i], "%s: %s", what,
                     sm_ignored_name(i));
    }
    for (uint32_t i = 0; i < SM_REFUSAL_COUNT; i++) {
        cr_assert_eq(after.refused[i] - before->refused[i], refused[i], "%s: %s", what,
                     sm_refusal_name(i));
    }
}

static void try_cell(uint32_t side, uint32_t phase, uint32_t kind, bool hostile)
{
    struct sm_counters before;
    char what[128];
    last_write = 0;
    open_machine();
    if (side == SM_PREFILL) {
        drive_prefill(phase);
    } else {
        drive_decode(phase);
    }
    cr_assert_eq(phase_now(side), phase, "%s is in %s and not in %s", sm_side_name(side),
                 sm_phase_name(phase_now(side)), sm_phase_name(phase));
    struct sm_input input = input_of(kind, side);
    if (hostile) {
        memset(&input.u, 0xff, sizeof input.u);
        if (sm_input_is_command(kind)) {
            input.u.command =
                (struct sm_in_command){.rank = 63, .side = 9, .deadline_ns = UINT64_MAX};
        } else if (sm_input_is_message(kind)) {
            memset(&input.u.message, 0, sizeof input.u.message);
            input.u.message.message.decode_rank = UINT32_MAX;
            input.u.message.peer = text("nobody");
        } else {
            input.u.write_done.text = text("");
        }
    }
    sm_counters(sm, &before);
    (void)snprintf(what, sizeof what, "%s, %s, %s%s", sm_side_name(side), sm_phase_name(phase),
                   sm_input_name(kind), hostile ? ", hostile" : "");
    feed(input);
    expect_result(what, &before);
}

Test(table, each_cell_has_a_name)
{
    for (uint32_t side = SM_PREFILL; side < SM_SIDE_COUNT; side++) {
        for (uint32_t phase = 0; phase < SM_PHASE_COUNT; phase++) {
            for (uint32_t kind = SM_IN_OPEN; kind < SM_IN_COUNT; kind++) {
                cr_assert_neq(sm_table_handler(side, phase, kind)[0], '\0', "%s, %s, %s",
                              sm_side_name(side), sm_phase_name(phase), sm_input_name(kind));
            }
        }
    }
    cr_assert_str_eq(sm_table_handler(SM_SIDE_COUNT, 0, SM_IN_OPEN), "");
    cr_assert_str_eq(sm_table_handler(SM_PREFILL, SM_PHASE_COUNT, SM_IN_OPEN), "");
    cr_assert_str_eq(sm_table_handler(SM_PREFILL, 0, SM_IN_COUNT), "");
}

Test(table, each_cell_has_a_result_that_is_written_down, .timeout = 60)
{
    uint32_t cells = 0;
    for (uint32_t side = SM_PREFILL; side < SM_SIDE_COUNT; side++) {
        for (uint32_t phase = 0; phase < SM_PHASE_COUNT; phase++) {
            for (uint32_t kind = SM_IN_OPEN; lasts(side, phase) && kind < SM_IN_COUNT; kind++) {
                try_cell(side, phase, kind, false);
                try_cell(side, phase, kind, true);
                cells++;
            }
        }
    }
    cr_assert_eq(cells, (9u + 6u) * (SM_IN_COUNT - SM_IN_OPEN));
}

/* The other inputs belong to no phase; twice, wrong, and unknown ones included. */
Test(table, inputs_about_the_node_say_something_too)
{
    for (uint32_t kind = 0; kind <= SM_IN_COUNT; kind++) {
        if (kind >= SM_IN_OPEN && kind < SM_IN_COUNT) {
            continue;
        }
        for (uint32_t times = 0; times < 2; times++) {
            struct sm_counters before;
            struct sm_input input = {.kind = kind};
            if (times == 0) {
                open_machine();
            }
            if (kind == SM_IN_NODE_STARTED) {
                input.u.node_started.name = text("");
            } else if (kind == SM_IN_PEER_RECOVERED) {
                input.u.message.peer = text("other");
            } else {
                input.u.peer.name = text("other");
            }
            sm_counters(sm, &before);
            feed(input);
            expect_result(sm_input_name(kind), &before);
        }
    }
}
