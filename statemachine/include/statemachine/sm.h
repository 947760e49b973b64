/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of a node: one pure function from an input to transitions and effects.
 *
 * Layer: freestanding C17 and nothing else: no clock, no I/O, no allocation, no threads, no global
 * state, no floating point, no recursion, no function pointers. The build proves it
 * (tests/checks/check_purity.sh).
 *
 * Model:
 *
 *     sm_step(machine, input) -> transitions, effects
 *
 * Inputs are facts with the node's time. Transitions are what the journal keeps. Effects are
 * orders, to be carried out once the entry that holds the step is as durable as configured. Time is
 * the input's; "wake me at" is sm_deadline, to be answered with a tick.
 *
 *              open          prepares of all       first chunk             all written
 *     (absent) ----> allocated ----------> ready ----------> transferring ----------> succeeded --+
 *                        |                   |                     |                              |
 *                        +--- cause ---------+---------------------+--> failed (engine-owned) ----+
 *                                                                   \-> pre_queue_terminal -------+
 *                                                                                                 |
 *                     cleared <--- pages free, ranks released --- notified <--- counterparts told-+
 *
 * Ownership: struct sm is one flat block without pointers: a copy of its sm_memory_bytes is a valid
 * machine. The caller owns the block (aligned to 16) and the output.
 *
 * Threads: one owner; nothing here is safe to share.
 *
 * Limits: struct sm_bounds, fixed at sm_init; over a bound a request is refused (429 or 503) and
 * counted. One step's output is bounded by sm_output.h; what does not fit is done by the next
 * ticks.
 *
 * Failure: none. Bad input is an outcome in the output; a broken precondition is a bug and stops
 * the process (sm_assert.h).
 */
#ifndef STATEMACHINE_SM_H
#define STATEMACHINE_SM_H

#include "statemachine/sm_input.h"
#include "statemachine/sm_output.h"
#include "statemachine/sm_policy.h"
#include "statemachine/sm_types.h"

/* Counts up whenever the same inputs may give other transitions or digests. */
#define SM_MACHINE_VERSION 5u

/* No deadline: sm_deadline has nothing to wait for. */
#define SM_NEVER UINT64_MAX

struct sm;

/* Bytes of the block for these bounds; 0 when a bound is out of range. */
size_t sm_memory_bytes(const struct sm_bounds *bounds);

/*
 * Makes an empty machine in `memory` (sm_memory_bytes, 16-aligned, zeroed by the caller: fresh
 * pages of mmap do, and are not touched here beyond what is used). Returns the machine: the same
 * address.
 */
struct sm *sm_init(void *memory, const struct sm_bounds *bounds);

/*
 * The same in a block that has held anything else, as another machine: wipes the tables that must
 * be empty, a few bytes for each bound. For who makes thousands of machines.
 */
struct sm *sm_renew(void *memory, const struct sm_bounds *bounds);

/*
 * Takes one input. Total: each input in each state has a defined result; the least is one
 * transition `ignored` with a reason. The first input must be node_started. Asserts that time does
 * not go back.
 */
void sm_step(struct sm *sm, const struct sm_input *input, struct sm_output *out_output);

/* When the machine wants its next tick: nanoseconds on the inputs' clock, SM_NEVER for never. */
uint64_t sm_deadline(const struct sm *sm);

/* ---- queries --------------------------------------------------------------------------------- */

/* A half as a reader sees it: the newest life of (room, side), live or remembered. */
struct sm_half_view {
    uint64_t room;
    uint64_t generation;
    uint64_t deadline_ns; /* absolute; 0 when the half is terminal */
    uint64_t opened_ns;   /* time of the input that created it */
    uint32_t side;
    uint32_t phase; /* enum sm_phase; SM_PHASE_CLEARED for a tombstone */
    uint32_t outcome;
    bool owned_by_engine;
    bool remembered;       /* a tombstone: gone, but known */
    uint32_t destinations; /* prefill: known; decode: ranks that opened */
    uint32_t required;     /* prefill: how many it needs, 0 unknown; decode: ranks of the node */
    uint32_t writes_in_flight;
    struct sm_cause cause; /* of a failure; text borrowed until the next step */
};

/* The node's name, from its newest start; empty before the first. Borrowed until the next step. */
struct sm_text sm_node_name(const struct sm *sm);

/* The newest life; false when the room is neither live nor remembered on that side. */
bool sm_half_find(const struct sm *sm, uint64_t room, uint32_t side, struct sm_half_view *out_view);

/* Walks all halves that are not cleared: start with *cursor 0; false at the end. */
bool sm_half_next(const struct sm *sm, uint32_t *cursor, struct sm_half_view *out_view);

/* Whether any page of [first, first+count) of the rank's pool is held (live, draining,
 * quarantined). */
bool sm_pages_held(const struct sm *sm, uint32_t rank, uint32_t first, uint32_t count);
/* The same for metadata slots. */
bool sm_slots_held(const struct sm *sm, uint32_t rank, uint32_t first, uint32_t count);

/* The peer's name; empty for an index that names none. Borrowed from the machine. */
struct sm_text sm_peer_name(const struct sm *sm, uint32_t peer);

struct sm_counters {
    uint64_t steps;
    uint64_t transitions;
    uint64_t effects;
    uint64_t ignored[SM_IGNORED_COUNT];
    uint64_t refused[SM_REFUSAL_COUNT];
    uint64_t rooms_opened;
    uint64_t rooms_succeeded;
    uint64_t rooms_failed;
    uint64_t notices_sent;
    uint64_t notices_repeated;
    uint64_t writes_posted;
    uint64_t writes_failed;
    uint64_t peers_fenced;
    uint64_t pages_quarantined;
    uint64_t tombstones_dropped; /* pushed out by tombstones_max before their time */
};

struct sm_gauges {
    uint64_t halves;
    uint64_t tombstones;
    uint64_t destinations;
    uint64_t writes_in_flight;
    uint64_t pages_held;
    uint64_t runs_held;
    uint64_t reasons_held;
    uint64_t unsent_notices; /* verdicts that a reachable counterpart has not acknowledged */
};

void sm_counters(const struct sm *sm, struct sm_counters *out_counters);
void sm_gauges(const struct sm *sm, struct sm_gauges *out_gauges);

/* Nothing live, in flight, held or owed; only tombstones may age. */
bool sm_quiescent(const struct sm *sm);

uint64_t sm_now(const struct sm *sm);     /* time of the last input */
uint64_t sm_node_id(const struct sm *sm); /* 0 before node_started */
uint64_t sm_epoch(const struct sm *sm);
uint32_t sm_link_last(const struct sm *sm); /* greatest link that any peer_up has named */
uint32_t sm_peer_count(const struct sm *sm);
bool sm_stopping(const struct sm *sm);
bool sm_journal_failed(const struct sm *sm);

/* ---- proof ----------------------------------------------------------------------------------- */

/* The invariants of design.md section 3, in its order and by its names. */
#define SM_INVARIANT_LIST(X)                         \
    X(ONE_VERDICT, 1, "one_verdict")                 \
    X(TOLD_ONCE, 2, "told_once")                     \
    X(SAME_CAUSE, 3, "same_cause")                   \
    X(SUCCESS_IS_COMPLETE, 4, "success_is_complete") \
    X(DRAINED_BEFORE_FREE, 5, "drained_before_free") \
    X(ONE_OWNER_OF_A_PAGE, 6, "one_owner_of_a_page") \
    X(OWNER_CLEARS, 7, "owner_clears")               \
    X(NO_RESURRECTION, 8, "no_resurrection")         \
    X(NO_LOST_VERDICT, 9, "no_lost_verdict")         \
    X(DEADLINE, 10, "deadline")                      \
    X(BOUNDED, 11, "bounded")                        \
    X(JOURNAL_FIRST, 12, "journal_first")            \
    X(MONOTONE_TIME, 13, "monotone_time")

enum sm_invariant {
    SM_INVARIANT_NONE = 0,
#define SM_X(name, number, text) SM_INVARIANT_##name = (number),
    SM_INVARIANT_LIST(SM_X)
#undef SM_X
        SM_INVARIANT_COUNT
};

struct sm_violation {
    uint32_t invariant; /* enum sm_invariant; 0: none fell */
    uint32_t side;
    uint64_t room;
    uint64_t generation;
    char detail[160]; /* zero-terminated, what was seen */
};

/*
 * Checks every half and every table: O(size). True when all invariants hold; else the first that
 * fell. Invariant 12 is the gate's (journal.h) and cannot be seen from here.
 */
bool sm_check(const struct sm *sm, struct sm_violation *out_violation);

/*
 * The same as if no protection were off. sm_check leaves out what the race that a missing
 * protection allows breaks at once (drained_before_free without drain, no_lost_verdict without
 * retry), so that one can run on and see what comes of it; this one names the step at which it
 * begins.
 */
bool sm_check_strictly(const struct sm *sm, struct sm_violation *out_violation);

/*
 * The same for what one step touched, plus what only the step's own output shows (told_once,
 * one_verdict, success_is_complete, drained_before_free): call it right after sm_step. O(touched).
 */
bool sm_check_step(const struct sm *sm, const struct sm_output *output,
                   struct sm_violation *out_violation);

const char *sm_invariant_name(uint32_t invariant);

/* Digest of the whole state, field by field; equal states give equal digests on every machine. */
uint64_t sm_digest(const struct sm *sm);

/* Digest of the newest life of (room, side); 0 when there is none. */
uint64_t sm_half_digest(const struct sm *sm, uint64_t room, uint32_t side);

/*
 * One line of text without a line end, stable field order, zero-terminated, cut at `size`. Returns
 * the length that it would have had.
 */
size_t sm_describe_input(const struct sm_input *input, char *buffer, size_t size);
size_t sm_describe_transition(const struct sm_transition *transition, char *buffer, size_t size);
size_t sm_describe_effect(const struct sm *sm, const struct sm_effect *effect, char *buffer,
                          size_t size);
/* Several lines: everything known about the newest life of (room, side). */
size_t sm_describe_half(const struct sm *sm, uint64_t room, uint32_t side, char *buffer,
                        size_t size);

/* ---- the transition table as data --------------------------------------------------------------
 */

/*
 * The name of what the machine does with a room input in a phase, from the table that sm_step
 * itself dispatches by; never NULL for scope-R inputs. The state diagram of docs/ is made from it.
 */
const char *sm_table_handler(uint32_t side, uint32_t phase, uint32_t input_kind);
/* Whether a half of this side may go from one phase to the other; the machine asserts it. */
bool sm_phase_may_follow(uint32_t side, uint32_t from, uint32_t to);

#endif
