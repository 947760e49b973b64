/* SPDX-License-Identifier: Apache-2.0 */
/* One machine, driven into phases. */
#include "one_machine.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const struct sm_bounds small = {ONE_ROOMS_MAX, 32, 16, 256, 16, 16, 16, 4, 256, 16};
static const struct sm_run four = {0, 4};

struct one one;
static void *memory;

struct sm_text one_text(const char *zero_terminated)
{
    return (struct sm_text){zero_terminated, (uint32_t)strlen(zero_terminated)};
}

void one_feed(struct sm_input input)
{
    struct sm_violation violation;
    input.time_ns = one.now_ns;
    sm_step(one.sm, &input, one.out);
    cr_assert(sm_check_step(one.sm, one.out, &violation), "%s", violation.detail);
    cr_assert(sm_check(one.sm, &violation), "%s", violation.detail);
}

struct sm_input one_command(uint32_t kind, uint32_t side)
{
    struct sm_input input = {.kind = kind, .room = ONE_ROOM};
    input.u.command.request = kind;
    input.u.command.side = side;
    input.u.command.aux_slot = SM_AUX_NONE;
    input.u.command.peer = one_text("");
    input.u.command.cause.reason = one_text("");
    if (kind == SM_IN_OPEN && side == SM_DECODE) {
        input.u.command.pages = (struct sm_runs){&four, 1};
    } else if (kind == SM_IN_SEND) {
        input.u.command.pages = (struct sm_runs){&four, 1};
        input.u.command.last = true;
    } else if (kind == SM_IN_ABORT || kind == SM_IN_REJECT) {
        input.u.command.cause.http = 400;
        input.u.command.cause.typed = true;
        input.u.command.cause.origin = SM_ORIGIN_ENGINE;
        input.u.command.cause.reason = one_text("because");
    }
    return input;
}

/* What the other node says about life (its or our) generation 1. */
struct sm_input one_message(uint32_t kind, uint32_t side)
{
    struct sm_input input = {.kind = kind, .room = ONE_ROOM};
    struct sm_message *m = &input.u.message.message;
    input.u.message.peer = one_text("other");
    input.u.message.epoch = 1;
    m->life = (struct sm_life){side == SM_PREFILL ? 2u : 1u, 1, 1};
    m->sources = 1;
    m->required[0] = 1;
    m->aux_slot = SM_AUX_NONE;
    m->decode_ranks = 1;
    m->deadline_left_ns = 100u * ONE_SECOND;
    m->geometry = (struct sm_geometry){16, 2, 8, 256, 2, 1, 0, 0, 0};
    m->cause.reason = one_text("");
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

void one_make(void)
{
    const size_t bytes = sm_memory_bytes(&small);
    one.out = one.out != NULL ? one.out : calloc(1, sizeof *one.out);
    free(memory);
    memory = aligned_alloc(16, (bytes + 15u) / 16u * 16u);
    cr_assert(one.out != NULL && memory != NULL);
    memset(memory, 0, bytes);
    one.sm = sm_init(memory, &small);
    one.now_ns = ONE_SECOND;
    one.last_write = 0;
}

struct sm_input one_peer_up(uint32_t link)
{
    struct sm_input up = {.kind = SM_IN_PEER_UP};
    up.u.peer_up.name = one_text("other");
    up.u.peer_up.node_id = 2;
    up.u.peer_up.epoch = 1;
    up.u.peer_up.link = link;
    up.u.peer_up.ranks = 1;
    return up;
}

struct sm_policy one_policy(void)
{
    struct sm_policy policy;
    sm_policy_default(&policy);
    policy.ranks = 1;
    return policy;
}

void one_open_with(const struct sm_policy *policy)
{
    struct sm_input started = {.kind = SM_IN_NODE_STARTED};
    const struct sm_text peers[1] = {one_text("other")};
    one_make();
    started.u.node_started.node_id = 1;
    started.u.node_started.epoch = 1;
    started.u.node_started.name = one_text("self");
    started.u.node_started.peer_names = peers;
    started.u.node_started.peer_count = 1;
    started.u.node_started.policy = *policy;
    one_feed(started);
    struct sm_input attach = {.kind = SM_IN_ENGINE_ATTACHED};
    attach.u.engine.pages = 64;
    attach.u.engine.aux_slots = 4;
    attach.u.engine.geometry = (struct sm_geometry){16, 2, 8, 256, 2, 1, 0, 0, 0};
    one_feed(attach);
    one_feed(one_peer_up(1));
}

void one_open(void)
{
    const struct sm_policy policy = one_policy();
    one_open_with(&policy);
}

static uint64_t posted_write(void)
{
    for (uint32_t i = 0; i < one.out->effect_count; i++) {
        if (one.out->effects[i].kind == SM_FX_WRITE) {
            return one.out->effects[i].u.write.id;
        }
    }
    return 0;
}

struct sm_input one_write_done(uint64_t id)
{
    struct sm_input done = {.kind = SM_IN_WRITE_DONE, .room = ONE_ROOM};
    done.u.write_done.write = id;
    done.u.write_done.text = one_text("");
    return done;
}

static void drive_prefill(uint32_t phase)
{
    if (phase == SM_PHASE_ABSENT) {
        return;
    }
    one_feed(one_command(SM_IN_OPEN, SM_PREFILL));
    if (phase == SM_PHASE_ALLOCATED) {
        return;
    }
    one_feed(one_message(SM_IN_PREPARE, SM_PREFILL));
    if (phase == SM_PHASE_PRE_QUEUE_TERMINAL) {
        one_feed(one_command(SM_IN_REJECT, SM_PREFILL));
    }
    if (phase == SM_PHASE_READY || phase == SM_PHASE_PRE_QUEUE_TERMINAL) {
        return;
    }
    one_feed(one_command(SM_IN_ADMIT, SM_PREFILL));
    if (phase == SM_PHASE_FAILED) {
        one_feed(one_command(SM_IN_ABORT, SM_PREFILL));
        return;
    }
    one_feed(one_command(SM_IN_SEND, SM_PREFILL));
    one.last_write = posted_write();
    if (phase == SM_PHASE_TRANSFERRING) {
        return;
    }
    one_feed(one_write_done(one.last_write));
    if (phase == SM_PHASE_SUCCEEDED) {
        return;
    }
    one_feed(one_message(SM_IN_ACK, SM_PREFILL));
    if (phase == SM_PHASE_CLEARED) {
        one_feed(one_command(SM_IN_DELIVERED, SM_PREFILL));
        one_feed(one_command(SM_IN_RELEASE, SM_PREFILL));
    }
}

static void drive_decode(uint32_t phase)
{
    if (phase == SM_PHASE_ABSENT) {
        return;
    }
    if (phase == SM_PHASE_PRE_QUEUE_TERMINAL) {
        /* An abort that overtakes its open: remembered, and the open joins what is over. */
        one_feed(one_command(SM_IN_ABORT, SM_DECODE));
        return;
    }
    one_feed(one_command(SM_IN_OPEN, SM_DECODE));
    if (phase == SM_PHASE_ALLOCATED) {
        return;
    }
    one_feed(one_message(SM_IN_PREPARED, SM_DECODE));
    if (phase == SM_PHASE_FAILED) {
        one_feed(one_command(SM_IN_ABORT, SM_DECODE)); /* prefill has not said that it drained */
    }
    if (phase == SM_PHASE_READY || phase == SM_PHASE_FAILED) {
        return;
    }
    one_feed(one_message(SM_IN_STATUS, SM_DECODE));
    if (phase == SM_PHASE_CLEARED) {
        one_feed(one_command(SM_IN_DELIVERED, SM_DECODE));
        one_feed(one_command(SM_IN_RELEASE, SM_DECODE));
    }
}

void one_drive(uint32_t side, uint32_t phase)
{
    one_open();
    if (side == SM_PREFILL) {
        drive_prefill(phase);
    } else {
        drive_decode(phase);
    }
    cr_assert_eq(one_phase(side), phase, "%s is in %s and not in %s", sm_side_name(side),
                 sm_phase_name(one_phase(side)), sm_phase_name(phase));
}

void one_drive_prefill_failed_writing(void)
{
    one_open();
    drive_prefill(SM_PHASE_TRANSFERRING);
    one_feed(one_command(SM_IN_ABORT, SM_PREFILL));
    cr_assert_eq(one_phase(SM_PREFILL), SM_PHASE_FAILED);
}

struct sm_input one_input(uint32_t kind, uint32_t side)
{
    if (sm_input_is_command(kind)) {
        return one_command(kind, side);
    }
    return kind == SM_IN_WRITE_DONE ? one_write_done(one.last_write) : one_message(kind, side);
}

uint32_t one_phase(uint32_t side)
{
    struct sm_half_view view;
    return sm_half_find(one.sm, ONE_ROOM, side, &view) ? view.phase : SM_PHASE_ABSENT;
}

/* Every step says something, and what it says is counted. */
void one_expect_result(const char *what, const struct sm_counters *before)
{
    struct sm_counters after;
    uint64_t ignored[SM_IGNORED_COUNT] = {0};
    uint64_t refused[SM_REFUSAL_COUNT] = {0};
    sm_counters(one.sm, &after);
    cr_assert_geq(one.out->transition_count, 1u, "%s: nothing stands in the journal", what);
    for (uint32_t i = 0; i < one.out->transition_count; i++) {
        const struct sm_transition *t = &one.out->transitions[i];
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
