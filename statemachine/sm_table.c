/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transition table: side x phase x input -> what is done. sm_step dispatches room inputs by it,
 * the documents are made from it, and a test checks that no cell is missing.
 */
#include "sm_state.h"

/* X(NAME, "what the documents call it") */
#define ACTION_LIST(X)                                               \
    X(NONE, "")                                                      \
    X(OPEN, "open")                                                  \
    X(ADMIT, "admit")                                                \
    X(REJECT, "reject")                                              \
    X(SEND, "send")                                                  \
    X(ABORT, "abort")                                                \
    X(RELEASE, "release")                                            \
    X(DELIVERED, "delivered")                                        \
    X(PREPARE, "prepare")                                            \
    X(PREPARED, "prepared")                                          \
    X(STATUS, "status")                                              \
    X(ACK, "ack")                                                    \
    X(PEER_ABORT, "peer_abort")                                      \
    X(DRAINED, "drained")                                            \
    X(WRITE_DONE, "write_done")                                      \
    X(ADMITTED_ALREADY, "accept: a decode rank's open is its admit") \
    X(REFUSE_NOT_OPEN, "refuse: not_open")                           \
    X(REFUSE_ROOM_OVER, "refuse: room_over")                         \
    X(REFUSE_SIDE, "refuse: bad_request")                            \
    X(IGNORE_ROOM, "ignore: unknown_room")                           \
    X(IGNORE_TOMBSTONE, "ignore: tombstone")                         \
    X(NEVER, "never: it goes to the other side")

enum action {
#define SM_X(name, text) DO_##name,
    ACTION_LIST(SM_X)
#undef SM_X
        ACTION_COUNT
};

/* Shorthands for rows: absent, the three live phases, the four terminal ones, cleared. */
#define ROW(absent, live, over, cleared)                                            \
    {                                                                               \
        [SM_PHASE_ABSENT] = DO_##absent, [SM_PHASE_ALLOCATED] = DO_##live,          \
        [SM_PHASE_READY] = DO_##live, [SM_PHASE_TRANSFERRING] = DO_##live,          \
        [SM_PHASE_SUCCEEDED] = DO_##over, [SM_PHASE_FAILED] = DO_##over,            \
        [SM_PHASE_PRE_QUEUE_TERMINAL] = DO_##over, [SM_PHASE_NOTIFIED] = DO_##over, \
        [SM_PHASE_CLEARED] = DO_##cleared                                           \
    }
#define EVERY(action) ROW(action, action, action, action)

static const uint8_t table[SM_SIDE_COUNT][SM_IN_COUNT][SM_PHASE_COUNT] = {
    [SM_PREFILL] =
        {
            [SM_IN_OPEN] = EVERY(OPEN),
            [SM_IN_ADMIT] = ROW(REFUSE_NOT_OPEN, ADMIT, REFUSE_ROOM_OVER, REFUSE_ROOM_OVER),
            [SM_IN_REJECT] = EVERY(REJECT),
            [SM_IN_SEND] = ROW(REFUSE_NOT_OPEN, SEND, REFUSE_ROOM_OVER, REFUSE_ROOM_OVER),
            [SM_IN_ABORT] = EVERY(ABORT),
            [SM_IN_RELEASE] = EVERY(RELEASE),
            [SM_IN_DELIVERED] = EVERY(DELIVERED),
            [SM_IN_PREPARE] = EVERY(PREPARE),
            [SM_IN_PREPARED] = EVERY(NEVER),
            [SM_IN_STATUS] = EVERY(NEVER),
            [SM_IN_ACK] = ROW(IGNORE_ROOM, ACK, ACK, IGNORE_TOMBSTONE),
            [SM_IN_PEER_ABORT] = EVERY(PEER_ABORT),
            [SM_IN_DRAINED] = EVERY(NEVER),
            [SM_IN_WRITE_DONE] = EVERY(WRITE_DONE),
        },
    [SM_DECODE] =
        {
            [SM_IN_OPEN] = EVERY(OPEN),
            [SM_IN_ADMIT] =
                ROW(REFUSE_NOT_OPEN, ADMITTED_ALREADY, REFUSE_ROOM_OVER, REFUSE_ROOM_OVER),
            [SM_IN_REJECT] = ROW(REFUSE_NOT_OPEN, REJECT, REFUSE_ROOM_OVER, REFUSE_ROOM_OVER),
            [SM_IN_SEND] = EVERY(REFUSE_SIDE),
            [SM_IN_ABORT] = EVERY(ABORT),
            [SM_IN_RELEASE] = EVERY(RELEASE),
            [SM_IN_DELIVERED] = EVERY(DELIVERED),
            [SM_IN_PREPARE] = EVERY(NEVER),
            [SM_IN_PREPARED] = ROW(IGNORE_ROOM, PREPARED, PREPARED, IGNORE_TOMBSTONE),
            [SM_IN_STATUS] = EVERY(STATUS),
            [SM_IN_ACK] = EVERY(NEVER),
            [SM_IN_PEER_ABORT] = EVERY(NEVER),
            [SM_IN_DRAINED] = ROW(IGNORE_ROOM, DRAINED, DRAINED, IGNORE_TOMBSTONE),
            [SM_IN_WRITE_DONE] = EVERY(NEVER),
        },
};

const char *sm_table_handler(uint32_t side, uint32_t phase, uint32_t input_kind)
{
    static const char *const names[ACTION_COUNT] = {
#define SM_X(name, text) [DO_##name] = (text),
        ACTION_LIST(SM_X)
#undef SM_X
    };
    if (side == SM_SIDE_NONE || side >= SM_SIDE_COUNT || phase >= SM_PHASE_COUNT ||
        input_kind >= SM_IN_COUNT) {
        return "";
    }
    return names[table[side][input_kind][phase]];
}

/* ---- how phases follow each other
 * ------------------------------------------------------------------- */

#define TO(phase) (1u << SM_PHASE_##phase)
#define TO_FAILURE (TO(FAILED) | TO(PRE_QUEUE_TERMINAL))

/*
 * Every change of a phase is asserted against this, and the state diagram is made from it. From
 * allocated straight to succeeded: a rank joins the life of its side when that is over already; for
 * decode also when all sources are done before the last answer to a prepare has come.
 */
static const uint16_t follows[SM_SIDE_COUNT][SM_PHASE_COUNT] = {
    [SM_PREFILL] =
        {
            [SM_PHASE_ABSENT] = TO(ALLOCATED),
            [SM_PHASE_ALLOCATED] = TO(READY) | TO(SUCCEEDED) | TO_FAILURE,
            [SM_PHASE_READY] = TO(TRANSFERRING) | TO_FAILURE,
            [SM_PHASE_TRANSFERRING] = TO(SUCCEEDED) | TO_FAILURE,
            [SM_PHASE_SUCCEEDED] = TO(NOTIFIED),
            [SM_PHASE_FAILED] = TO(NOTIFIED),
            [SM_PHASE_PRE_QUEUE_TERMINAL] = TO(NOTIFIED),
            [SM_PHASE_NOTIFIED] = TO(CLEARED),
        },
    [SM_DECODE] =
        {
            [SM_PHASE_ABSENT] = TO(ALLOCATED),
            [SM_PHASE_ALLOCATED] = TO(READY) | TO(SUCCEEDED) | TO_FAILURE,
            [SM_PHASE_READY] = TO(SUCCEEDED) | TO_FAILURE,
            [SM_PHASE_SUCCEEDED] = TO(NOTIFIED),
            [SM_PHASE_FAILED] = TO(NOTIFIED),
            [SM_PHASE_PRE_QUEUE_TERMINAL] = TO(NOTIFIED),
            [SM_PHASE_NOTIFIED] = TO(CLEARED),
        },
};

bool sm_phase_may_follow(uint32_t side, uint32_t from, uint32_t to)
{
    return side != SM_SIDE_NONE && side < SM_SIDE_COUNT && from < SM_PHASE_COUNT &&
           to < SM_PHASE_COUNT && (follows[side][from] >> to & 1u) != 0;
}

/* ---- finding the half that an input is about
 * ------------------------------------------------------------ */

static uint32_t side_of(const struct sm_input *input)
{
    switch (input->kind) {
    case SM_IN_PREPARE:
    case SM_IN_ACK:
    case SM_IN_PEER_ABORT:
    case SM_IN_WRITE_DONE:
        return SM_PREFILL;
    case SM_IN_PREPARED:
    case SM_IN_STATUS:
    case SM_IN_DRAINED:
        return SM_DECODE;
    default:
        return input->u.command.side;
    }
}

/* The half that a release or delivery is about: the named life, else the newest with that rank. */
static uint32_t half_of_rank(const struct sm *sm, const struct sm_input *input, uint32_t side)
{
    const struct sm_in_command *command = &input->u.command;
    if (command->generation != 0) {
        return sm_half_exact(sm, input->room, side, command->generation);
    }
    uint32_t best = SM_NONE;
    for (uint32_t at = sm_half_chain(sm, input->room, side, SM_NONE); at != SM_NONE;
         at = sm_half_chain(sm, input->room, side, at)) {
        const struct sm_half *half = sm_half_at(sm, at);
        const bool in_it = (half->opened >> command->rank & 1u) != 0;
        if (in_it && (best == SM_NONE || half->generation > sm_half_at(sm, best)->generation)) {
            best = at;
        }
    }
    return best;
}

static uint32_t half_of_life(const struct sm *sm, const struct sm_input *input)
{
    const struct sm_life *life = &input->u.message.message.life;
    if (life->node != sm->node_id) {
        return SM_NONE;
    }
    if (!sm_protected(sm, SM_PROTECT_GENERATIONS)) {
        return sm_half_newest(sm, input->room, SM_DECODE);
    }
    const uint32_t half = sm_half_exact(sm, input->room, SM_DECODE, life->generation);
    return half != SM_NONE && sm_half_at(sm, half)->epoch == life->epoch ? half : SM_NONE;
}

static void locate(struct sm_call *call)
{
    const struct sm *sm = call->sm;
    const struct sm_input *input = call->input;
    call->tombstone = sm_tombstone_newest(sm, input->room, call->side);
    switch (input->kind) {
    case SM_IN_RELEASE:
    case SM_IN_DELIVERED:
        call->half = half_of_rank(sm, input, call->side);
        break;
    case SM_IN_PREPARED:
    case SM_IN_STATUS:
    case SM_IN_DRAINED:
        call->half = half_of_life(sm, input);
        break;
    case SM_IN_WRITE_DONE:
        call->half = sm_write_half(sm, input->u.write_done.write);
        break;
    default:
        call->half = sm_half_newest(sm, input->room, call->side);
        break;
    }
    call->phase = call->half != SM_NONE  ? sm_half_at(sm, call->half)->phase
                  : call->tombstone != 0 ? SM_PHASE_CLEARED
                                         : SM_PHASE_ABSENT;
}

/* ---- dispatch
 * --------------------------------------------------------------------------------------------- */

static void run_engine_action(const struct sm_call *call, enum action action)
{
    switch ((uint32_t)action) {
    case DO_OPEN:
        sm_do_open(call);
        break;
    case DO_ADMIT:
        sm_do_admit(call);
        break;
    case DO_REJECT:
        sm_do_reject(call);
        break;
    case DO_SEND:
        sm_do_send(call);
        break;
    case DO_ABORT:
        sm_do_abort(call);
        break;
    case DO_RELEASE:
        sm_do_release(call);
        break;
    case DO_DELIVERED:
        sm_do_delivered(call);
        break;
    case DO_ADMITTED_ALREADY:
        sm_accept(call->sm, call->out, call->input);
        sm_ignore(call->sm, call->out, call->input, SM_IGNORED_DUPLICATE);
        break;
    default:
        SM_UNREACHABLE();
    }
}

static void run_message_action(const struct sm_call *call, enum action action)
{
    switch ((uint32_t)action) {
    case DO_PREPARE:
        sm_do_prepare(call);
        break;
    case DO_PREPARED:
        sm_do_prepared(call);
        break;
    case DO_STATUS:
        sm_do_status(call);
        break;
    case DO_ACK:
        sm_do_ack(call);
        break;
    case DO_PEER_ABORT:
        sm_do_peer_abort(call);
        break;
    case DO_DRAINED:
        sm_do_drained(call);
        break;
    case DO_WRITE_DONE:
        sm_do_write_done(call);
        break;
    default:
        SM_UNREACHABLE();
    }
}

static void run(const struct sm_call *call, enum action action)
{
    struct sm *sm = call->sm;
    switch ((uint32_t)action) {
    case DO_REFUSE_NOT_OPEN:
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_NOT_OPEN,
                  sm_text_of("the rank has not opened the room"));
        break;
    case DO_REFUSE_ROOM_OVER:
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_ROOM_OVER, sm_text_of("the room is over"));
        break;
    case DO_REFUSE_SIDE:
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_BAD_REQUEST,
                  sm_text_of("a decode rank cannot send"));
        break;
    case DO_IGNORE_ROOM:
        sm_ignore(sm, call->out, call->input, SM_IGNORED_UNKNOWN_ROOM);
        break;
    case DO_IGNORE_TOMBSTONE:
        sm_ignore(sm, call->out, call->input, SM_IGNORED_TOMBSTONE);
        break;
    default:
        SM_ASSERT(action != DO_NONE && action != DO_NEVER); /* side_of says whose a message is */
        if (call->input->kind <= SM_IN_DELIVERED) {
            run_engine_action(call, action);
        } else {
            run_message_action(call, action);
        }
        break;
    }
}

static bool command_sound(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const struct sm_in_command *command = &input->u.command;
    if (command->rank >= sm->policy.ranks) {
        sm_refuse(sm, out, input, SM_REFUSAL_BAD_REQUEST,
                  sm_text_of("the node has no such engine rank"));
        return false;
    }
    if (command->side != SM_PREFILL && command->side != SM_DECODE) {
        sm_refuse(sm, out, input, SM_REFUSAL_BAD_REQUEST,
                  sm_text_of("the side is neither prefill nor decode"));
        return false;
    }
    return true;
}

void sm_dispatch(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    if (input->kind < SM_IN_OPEN || input->kind >= SM_IN_COUNT) {
        sm_ignore(sm, out, input, SM_IGNORED_MALFORMED);
        return;
    }
    if (input->kind <= SM_IN_DELIVERED && !command_sound(sm, input, out)) {
        return;
    }
    struct sm_call call = {sm, out, input, side_of(input), SM_NONE, 0, 0};
    locate(&call);
    run(&call, (enum action)table[call.side][input->kind][call.phase]);
}
