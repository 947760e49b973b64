/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing silent: in each phase of each side each input has a defined result, which stands in the
 * journal: a transition, or `ignored` or `refused` with a reason that is counted. Machines are
 * driven into every phase by the inputs that lead there in life.
 */
#include "one_machine.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* Phases that last between two inputs on that side. Decode succeeds and is notified in one step,
 * and is never transferring; what fails before its open is remembered and not kept. */
static bool lasts(uint32_t side, uint32_t phase)
{
    return side == SM_PREFILL || (phase != SM_PHASE_TRANSFERRING && phase != SM_PHASE_SUCCEEDED &&
                                  phase != SM_PHASE_PRE_QUEUE_TERMINAL);
}

static struct sm_input hostile_input(uint32_t kind, uint32_t side)
{
    struct sm_input input = one_input(kind, side);
    memset(&input.u, 0xff, sizeof input.u);
    if (sm_input_is_command(kind)) {
        input.u.command = (struct sm_in_command){.rank = 63, .side = 9, .deadline_ns = UINT64_MAX};
    } else if (sm_input_is_message(kind)) {
        memset(&input.u.message, 0, sizeof input.u.message);
        input.u.message.message.decode_rank = UINT32_MAX;
        input.u.message.peer = one_text("nobody");
    } else {
        input.u.write_done.text = one_text("");
    }
    return input;
}

/* writing: prefill's `failed` is entered with a write in flight. */
static void try_cell(uint32_t side, uint32_t phase, uint32_t kind, bool hostile, bool writing)
{
    struct sm_counters before;
    char what[128];
    if (writing) {
        one_drive_prefill_failed_writing();
    } else {
        one_drive(side, phase);
    }
    const struct sm_input input = hostile ? hostile_input(kind, side) : one_input(kind, side);
    sm_counters(one.sm, &before);
    (void)snprintf(what, sizeof what, "%s, %s%s, %s%s", sm_side_name(side), sm_phase_name(phase),
                   writing ? " with a write in flight" : "", sm_input_name(kind),
                   hostile ? ", hostile" : "");
    one_feed(input);
    one_expect_result(what, &before);
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
                try_cell(side, phase, kind, false, false);
                try_cell(side, phase, kind, true, false);
                cells++;
            }
        }
    }
    cr_assert_eq(cells, (9u + 6u) * (SM_IN_COUNT - SM_IN_OPEN));
}

/* What has failed under a write drains, and still has a result for everything. */
Test(table, a_half_that_failed_after_a_send_has_a_result_for_each_input, .timeout = 60)
{
    for (uint32_t kind = SM_IN_OPEN; kind < SM_IN_COUNT; kind++) {
        try_cell(SM_PREFILL, SM_PHASE_FAILED, kind, false, true);
        try_cell(SM_PREFILL, SM_PHASE_FAILED, kind, true, true);
    }
    one_drive_prefill_failed_writing();
    one_feed(one_message(SM_IN_ACK, SM_PREFILL));
    cr_assert(sm_pages_held(one.sm, 0, 0, 4), "pages that are being written are free");
    one_feed(one_write_done(one.last_write));
    cr_assert_not(sm_pages_held(one.sm, 0, 0, 4));
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
                one_open();
            }
            if (kind == SM_IN_NODE_STARTED) {
                input.u.node_started.name = one_text("");
            } else if (kind == SM_IN_PEER_RECOVERED) {
                input.u.message.peer = one_text("other");
            } else {
                input.u.peer.name = one_text("other");
            }
            sm_counters(one.sm, &before);
            one_feed(input);
            one_expect_result(sm_input_name(kind), &before);
        }
    }
}
