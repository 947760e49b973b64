/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane's owner: every ZMQ socket, peers on one side, engines on the other. */
#include "node_private.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

/* How soon a backlog is looked at again: libzmq tells nobody that there is room. */
#define FLUSH_MS 5u

struct control_turn {
    struct node *node;
    /* What waits for the data plane before the machine may hear of it; inputs are held back
     * meanwhile. */
    uint32_t connecting;
    uint32_t pooling;
    bool backlogs; /* an engine has not taken all that it is told */
    struct peer_event up[CONFIG_PEERS_MAX];
    struct engine_event attached[SM_RANKS_MAX];
};

static struct sm_text text_of(const char *text)
{
    const struct sm_text result = {text, (uint32_t)strlen(text)};
    return result;
}

static void tell_machine(struct node *node, const struct sm_input *input)
{
    const struct timespec pause = {0, 200000};
    while (!input_send(&node->to_machine_from_control, input) && !atomic_load(&node->quit)) {
        (void)nanosleep(&pause, NULL); /* the machine is behind: engines and peers wait with us */
    }
}

static void order(struct node *node, const struct fabric_order *from)
{
    const struct timespec pause = {0, 200000};
    struct fabric_order *to = ring_begin(&node->to_fabric_from_control, sizeof *to);
    while (to == NULL && !atomic_load(&node->quit)) {
        (void)nanosleep(&pause, NULL);
        to = ring_begin(&node->to_fabric_from_control, sizeof *to);
    }
    if (to != NULL) {
        *to = *from;
        ring_end(&node->to_fabric_from_control);
        ring_wake(&node->to_fabric_from_machine); /* the descriptor that the data plane waits on */
    }
}

/* ---- peers
 * ------------------------------------------------------------------------------------------------
 */

static void peer_connected(struct control_turn *turn, const struct peer_event *event)
{
    struct fabric_order connect;
    memset(&connect, 0, sizeof connect);
    connect.kind = event->event == PEER_IS_CONNECTED ? ORDER_LINK_CONNECT : ORDER_LINK_REGIONS;
    connect.peer = event->peer;
    connect.link = event->link;
    connect.ranks = event->ranks;
    connect.endpoint = *event->endpoint;
    if (connect.kind == ORDER_LINK_CONNECT) {
        turn->up[event->peer] = *event;
        turn->connecting++;
    }
    order(turn->node, &connect);
}

static void peer_gone(struct control_turn *turn, const struct peer_event *event)
{
    struct sm_input input;
    memset(&input, 0, sizeof input);
    input.kind = SM_IN_PEER_DOWN;
    input.u.peer.name = text_of(event->name);
    input.u.peer.link = event->link;
    log_event(LOG_WARNING_LEVEL, "peer.down", "peer=%s link=%u reason=\"%s\"", event->name,
              event->link, event->why);
    tell_machine(turn->node, &input);
}

static void peer_double(const struct peer_event *event)
{
    log_event(LOG_ERROR_LEVEL, "peer.name_twice",
              "peer=%s node=%016" PRIx64 " other=%016" PRIx64 " reason=\"two nodes say that they "
              "are %s: the first is heard, the other is not; give each a `name` of its own\"",
              event->name, event->node_id, event->other_id, event->name);
}

static void peer_says(struct control_turn *turn, const struct peer_event *event)
{
    struct sm_input input;
    memset(&input, 0, sizeof input);
    input.kind = event->kind;
    input.room = event->room;
    input.u.message.peer = text_of(event->name);
    input.u.message.epoch = event->epoch;
    input.u.message.entry = event->entry;
    input.u.message.message = event->message;
    tell_machine(turn->node, &input);
}

static void on_peer_event(struct control_turn *turn, const struct peer_event *event)
{
    struct fabric_order open;
    switch (event->event) {
    case PEER_WANT_ENDPOINT:
        memset(&open, 0, sizeof open);
        open.kind = ORDER_LINK_OPEN;
        open.peer = event->peer;
        open.link = event->link;
        order(turn->node, &open);
        break;
    case PEER_IS_CONNECTED:
    case PEER_HAS_REGIONS:
        peer_connected(turn, event);
        break;
    case PEER_IS_GONE:
        peer_gone(turn, event);
        break;
    case PEER_IS_DOUBLE:
        peer_double(event);
        break;
    case PEER_SAYS:
        peer_says(turn, event);
        break;
    }
}

/* ---- engines
 * ------------------------------------------------------------------------------------------------
 */

static void engine_attached(struct control_turn *turn, const struct engine_event *event)
{
    struct sm_input input;
    memset(&input, 0, sizeof input);
    input.kind = SM_IN_ENGINE_ATTACHED;
    input.u.engine.rank = event->rank;
    if (event->pool != NULL) {
        input.u.engine.pages = event->layout->pages;
        input.u.engine.aux_slots = event->layout->aux_slots;
        input.u.engine.geometry = event->layout->geometry;
    }
    engine_accept(turn->node->engines, event->rank);
    log_event(LOG_INFO_LEVEL, "engine.attached", "rank=%u pid=%" PRIu64 " engine=\"%s\" pages=%u",
              event->rank, event->pid, event->engine, input.u.engine.pages);
    tell_machine(turn->node, &input);
}

static void on_engine_event(struct control_turn *turn, const struct engine_event *event)
{
    struct sm_input input;
    struct fabric_order change;
    memset(&input, 0, sizeof input);
    memset(&change, 0, sizeof change);
    change.rank = event->rank;
    switch (event->event) {
    case ENGINE_HAS_ATTACHED:
        if (event->pool == NULL) {
            engine_attached(turn, event);
            break;
        }
        change.kind = ORDER_POOL_ADD;
        change.pool = event->pool;
        change.layout = *event->layout;
        turn->attached[event->rank] = *event;
        turn->pooling++;
        order(turn->node, &change);
        break;
    case ENGINE_IS_GONE:
        log_event(LOG_WARNING_LEVEL, "engine.lost", "rank=%u pid=%" PRIu64 " reason=\"%s\"",
                  event->rank, event->pid, sm_lost_text(event->lost));
        input.kind = SM_IN_ENGINE_LOST;
        input.u.engine.lost = event->lost;
        input.u.engine.rank = event->rank;
        tell_machine(turn->node, &input);
        change.kind = ORDER_POOL_RETIRE;
        order(turn->node, &change);
        break;
    case ENGINE_COMMANDS:
        input.kind = event->kind;
        input.room = event->room;
        input.u.command = event->command;
        tell_machine(turn->node, &input);
        break;
    }
}

/* ---- answers of the data plane
 * ---------------------------------------------------------------------------------- */

static void peer_up(struct control_turn *turn, const struct fabric_answer *answer)
{
    const struct peer_event *event = &turn->up[answer->peer];
    struct sm_input input;
    turn->connecting--;
    if (event->link != answer->link) {
        return;
    }
    if (!answer->well) {
        /* Nothing could be written over it: a new connection is tried, and the log says why. */
        peer_drop(turn->node->peers, answer->peer, answer->link, "the data plane cannot reach it");
        return;
    }
    memset(&input, 0, sizeof input);
    input.kind = SM_IN_PEER_UP;
    input.u.peer_up.name = text_of(event->name);
    input.u.peer_up.node_id = event->node_id;
    input.u.peer_up.epoch = event->epoch;
    input.u.peer_up.link = event->link;
    input.u.peer_up.ranks = event->ranks;
    log_event(LOG_INFO_LEVEL, "peer.up", "peer=%s link=%u epoch=%" PRIu64 " ranks=%u", event->name,
              event->link, event->epoch, event->ranks);
    tell_machine(turn->node, &input);
}

static void on_answer(struct control_turn *turn, const struct fabric_answer *answer)
{
    struct node *node = turn->node;
    switch (answer->kind) {
    case ANSWER_LOCAL:
        if (answer->well) {
            peer_set_local(node->peers, answer->peer, answer->link, &answer->endpoint,
                           monotonic_ns());
        }
        break;
    case ANSWER_LINK_GONE:
        peer_drop(node->peers, answer->peer, answer->link, "its data connection broke");
        break;
    case ANSWER_CONNECTED:
        peer_up(turn, answer);
        break;
    case ANSWER_POOL_ADDED:
        turn->pooling--;
        if (answer->well) {
            engine_attached(turn, &turn->attached[answer->rank]);
        } else {
            engine_refuse(node->engines, answer->rank, 500, answer->detail.text);
        }
        break;
    default:
        engine_forget_pool(node->engines, answer->rank);
        break;
    }
}

static uint32_t take_answers(struct control_turn *turn)
{
    uint32_t taken = 0;
    size_t size = 0;
    const struct fabric_answer *answer = ring_front(&turn->node->to_control_from_fabric, &size);
    while (answer != NULL) {
        on_answer(turn, answer);
        ring_pop(&turn->node->to_control_from_fabric);
        taken++;
        answer = ring_front(&turn->node->to_control_from_fabric, &size);
    }
    return taken;
}

/* ---- effects of the machine
 * ------------------------------------------------------------------------------------- */

static uint32_t receiver_kind(uint32_t effect_kind)
{
    switch (effect_kind) {
    case SM_FX_SEND_PREPARE:
        return SM_IN_PREPARE;
    case SM_FX_SEND_PREPARED:
        return SM_IN_PREPARED;
    case SM_FX_SEND_STATUS:
        return SM_IN_STATUS;
    case SM_FX_SEND_ACK:
        return SM_IN_ACK;
    case SM_FX_SEND_ABORT:
        return SM_IN_PEER_ABORT;
    case SM_FX_SEND_DRAINED:
        return SM_IN_DRAINED;
    default:
        return SM_IN_PEER_RECOVERED;
    }
}

static void carry_out(struct node *node, const struct effect_message *message)
{
    const struct sm_effect *effect = (const struct sm_effect *)(const void *)(message + 1);
    switch (effect->kind) {
    case SM_FX_TELL:
        (void)engine_send_result(node->engines,
                                 effect); /* what is lost is told again after attach */
        break;
    case SM_FX_REPLY:
        (void)engine_send_reply(node->engines, effect->rank, effect->u.reply.request,
                                effect->u.reply.refusal, effect->u.reply.http,
                                effect->u.reply.reason);
        break;
    case SM_FX_PAGES_FREE:
        (void)engine_send_pages_free(node->engines, effect);
        break;
    case SM_FX_FENCE:
        peer_drop(node->peers, message->peer, effect->link, "it was fenced");
        break;
    default:
        /* Closed or full: the machine repeats what is not answered. */
        (void)peer_send(node->peers, message->peer, effect->link, receiver_kind(effect->kind),
                        effect->room, message->entry, &effect->u.message);
        break;
    }
}

static uint32_t take_effects(struct control_turn *turn)
{
    struct node *node = turn->node;
    uint32_t taken = 0;
    size_t size = 0;
    const struct effect_message *message = ring_front(&node->to_control_from_machine, &size);
    while (message != NULL && taken < 512u) {
        /* A connection that the data plane had lost before says nothing more. */
        (void)take_answers(turn);
        carry_out(node, message);
        ring_pop(&node->to_control_from_machine);
        taken++;
        message = ring_front(&node->to_control_from_machine, &size);
    }
    return taken;
}

/* ---- the loop
 * ------------------------------------------------------------------------------------------------------
 */

/*
 * What sockets bring waits in them while the machine is behind, so that its queue always has room
 * for what the data plane answers: this thread must not wait for the machine, which may wait for
 * this thread to take its effects.
 */
static bool machine_has_room(const struct node *node)
{
    return ring_used(&node->to_machine_from_control) < node->to_machine_from_control.capacity / 2u;
}

static uint32_t take_events(struct control_turn *turn)
{
    struct node *node = turn->node;
    struct peer_event peer_event;
    struct engine_event engine_event;
    uint32_t taken = 0;
    while (taken < 256u && turn->connecting == 0 && machine_has_room(node) &&
           peer_next(node->peers, monotonic_ns(), &peer_event)) {
        on_peer_event(turn, &peer_event);
        taken++;
    }
    while (taken < 512u && turn->pooling == 0 && machine_has_room(node) &&
           engine_next(node->engines, monotonic_ns(), &engine_event)) {
        on_engine_event(turn, &engine_event);
        taken++;
    }
    return taken;
}

static void wait_for_work(struct control_turn *turn)
{
    struct node *node = turn->node;
    zmq_pollitem_t items[4] = {{NULL, node->to_control_from_machine.wake_fd, ZMQ_POLLIN, 0},
                               {NULL, node->to_control_from_fabric.wake_fd, ZMQ_POLLIN, 0},
                               {peer_socket(node->peers), 0, ZMQ_POLLIN, 0},
                               {engine_socket(node->engines), 0, ZMQ_POLLIN, 0}};
    const uint64_t now = monotonic_ns();
    uint64_t deadline = peer_deadline(node->peers);
    deadline =
        engine_deadline(node->engines) < deadline ? engine_deadline(node->engines) : deadline;
    uint64_t wait_ms = deadline <= now ? 0 : (deadline - now) / 1000000u + 1u;
    wait_ms = wait_ms > 200u ? 200u : wait_ms;
    wait_ms = turn->backlogs && wait_ms > FLUSH_MS ? FLUSH_MS : wait_ms;
    /* While something is held back its socket would be readable all the time. */
    const bool held = turn->connecting > 0 || turn->pooling > 0 || !machine_has_room(node);
    const int count = held ? 2 : 4;
    wait_ms = count == 2 && wait_ms == 0 ? 1 : wait_ms;
    const bool first = ring_may_sleep(&node->to_control_from_machine);
    const bool second = ring_may_sleep(&node->to_control_from_fabric);
    if (first && second) {
        (void)zmq_poll(items, count, (long)wait_ms);
    }
    ring_woken(&node->to_control_from_machine);
    ring_woken(&node->to_control_from_fabric);
}

void *control_main(void *context)
{
    struct control_turn *turn = calloc(1, sizeof *turn);
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    if (turn == NULL) {
        log_event(LOG_ERROR_LEVEL, "node.no_memory", "thread=control");
        atomic_store(&((struct node *)context)->stopped, true);
        return NULL;
    }
    turn->node = context;
    while (!atomic_load(&turn->node->quit)) {
        uint32_t taken = take_answers(turn);
        taken += take_effects(turn);
        taken += take_events(turn);
        turn->backlogs = engine_flush(turn->node->engines);
        if (taken == 0) {
            wait_for_work(turn);
        }
    }
    (void)take_effects(turn); /* what the machine said last */
    engine_send_goodbye(turn->node->engines, 503, "the node is stopping");
    free(turn);
    return NULL;
}
