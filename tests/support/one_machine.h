/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One machine, node "self" with one engine rank, and a peer "other" that is only spoken of. It is
 * driven into a phase of either side by the inputs that lead there in life. Every step is followed
 * by all invariant checks; what falls is a failed assertion of Criterion.
 *
 * There is one such machine a program: one_open begins anew.
 */
#ifndef TESTS_SUPPORT_ONE_MACHINE_H
#define TESTS_SUPPORT_ONE_MACHINE_H

#include "statemachine/sm.h"

#define ONE_ROOM 7u
#define ONE_SECOND UINT64_C(1000000000)
#define ONE_ROOMS_MAX 8u

/* What the tests look at and change between steps. */
struct one {
    struct sm *sm;
    struct sm_output *out; /* of the last step */
    uint64_t now_ns;
    uint64_t last_write; /* posted by the last drive to transferring or beyond */
};
extern struct one one;

struct sm_text one_text(const char *zero_terminated);

/* A new machine before its start; then one that is started, attached and connected. */
void one_make(void);
void one_open(void);
/* The same with another policy. */
struct sm_policy one_policy(void);
void one_open_with(const struct sm_policy *policy);

/* One input at one.now_ns. */
void one_feed(struct sm_input input);
/* What rank 0's engine says about ONE_ROOM. */
struct sm_input one_command(uint32_t kind, uint32_t side);
/* What the other node says about life (its or our) generation 1 of ONE_ROOM. */
struct sm_input one_message(uint32_t kind, uint32_t side);
struct sm_input one_peer_up(uint32_t link);
struct sm_input one_write_done(uint64_t write);
/* Any of the kinds above. */
struct sm_input one_input(uint32_t kind, uint32_t side);

uint32_t one_phase(uint32_t side);
/* From one_open on. Prefill fails before it has sent, or with a write in flight. */
void one_drive(uint32_t side, uint32_t phase);
void one_drive_prefill_failed_writing(void);

/* The last step has said something, and what it said is counted against what was before it. */
void one_expect_result(const char *what, const struct sm_counters *before);

#endif
