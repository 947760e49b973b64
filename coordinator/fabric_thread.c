/* SPDX-License-Identifier: Apache-2.0 */
/* The data plane's owner: carries out writes and fences, and tells the machine what became of them.
 */
#include "node_private.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RESULTS_MAX 64u
/* Fences that the machine may have ordered and not heard of: two for each peer's connection. */
#define FENCES_MAX (2u * CONFIG_PEERS_MAX)

/* What became of a write or a fence, until the machine's queue has room for it. */
struct outcome {
    uint32_t kind; /* SM_IN_WRITE_DONE, SM_IN_PEER_FENCED */
    uint32_t peer; /* of a fence */
    uint32_t link;
    struct data_result result; /* of a write */
};

struct fabric_turn {
    struct node *node;
    /*
     * Outcomes in order, a ring of writes_max + FENCES_MAX: as many as the machine can wait for.
     * This thread never waits for the machine, which may wait for it to take effects.
     */
    struct outcome *outcomes;
    uint32_t outcomes_max;
    uint32_t outcome_first;
    uint32_t outcome_count;
    /* Connections whose peers must hear when a pool changes. */
    struct {
        bool used;
        uint32_t link;
    } open[CONFIG_PEERS_MAX];
};

static void answer(struct node *node, const struct fabric_answer *from)
{
    const struct timespec pause = {0, 200000};
    struct fabric_answer *to = ring_begin(&node->to_control_from_fabric, sizeof *to);
    while (to == NULL && !atomic_load(&node->quit)) {
        (void)nanosleep(&pause, NULL);
        to = ring_begin(&node->to_control_from_fabric, sizeof *to);
    }
    if (to != NULL) {
        *to = *from;
        ring_end(&node->to_control_from_fabric);
    }
}

/* ---- outcomes
 * ---------------------------------------------------------------------------------------------- */

static struct outcome *new_outcome(struct fabric_turn *turn, uint32_t kind)
{
    assert(turn->outcome_count < turn->outcomes_max);
    struct outcome *outcome =
        &turn->outcomes[(turn->outcome_first + turn->outcome_count++) % turn->outcomes_max];
    outcome->kind = kind;
    return outcome;
}

static bool send_outcome(struct node *node, const struct outcome *outcome)
{
    struct sm_input input;
    memset(&input, 0, sizeof input);
    input.kind = outcome->kind;
    if (outcome->kind == SM_IN_WRITE_DONE) {
        const char *text = outcome->result.text;
        input.room = outcome->result.room;
        input.u.write_done.write = outcome->result.id;
        input.u.write_done.code = outcome->result.code;
        input.u.write_done.text = (struct sm_text){text, (uint32_t)strlen(text)};
    } else {
        const char *name = node->config.peers[outcome->peer].name;
        input.u.peer.name = (struct sm_text){name, (uint32_t)strlen(name)};
        input.u.peer.link = outcome->link;
    }
    return input_send(&node->to_machine_from_fabric, &input);
}

/* As many as the machine's queue takes. */
static void send_outcomes(struct fabric_turn *turn)
{
    while (turn->outcome_count > 0 &&
           send_outcome(turn->node, &turn->outcomes[turn->outcome_first])) {
        turn->outcome_first = (turn->outcome_first + 1u) % turn->outcomes_max;
        turn->outcome_count--;
    }
}

static void write_failed(struct fabric_turn *turn, uint64_t id, uint64_t room, const char *text)
{
    struct data_result *result = &new_outcome(turn, SM_IN_WRITE_DONE)->result;
    memset(result, 0, sizeof *result);
    result->id = id;
    result->room = room;
    result->code = -EAGAIN;
    (void)snprintf(result->text, sizeof result->text, "%s", text);
}

static void take_results(struct fabric_turn *turn)
{
    struct data_result results[RESULTS_MAX];
    uint32_t count = RESULTS_MAX;
    while (count == RESULTS_MAX && turn->outcomes_max - turn->outcome_count >= RESULTS_MAX) {
        count = data_poll(turn->node->data, results, RESULTS_MAX);
        for (uint32_t i = 0; i < count; i++) {
            new_outcome(turn, SM_IN_WRITE_DONE)->result = results[i];
        }
    }
    send_outcomes(turn);
}

/* ---- orders of the control plane
 * ------------------------------------------------------------------------- */

/* False: the connection is not there any more, and the peer must begin a new one. */
static bool give_local(struct node *node, uint32_t peer, uint32_t link)
{
    struct status_detail detail;
    struct fabric_answer local;
    memset(&local, 0, sizeof local);
    local.peer = peer;
    local.link = link;
    local.well = data_link_local(node->data, peer, link, &local.endpoint, &detail) == STATUS_OK;
    local.kind = local.well ? ANSWER_LOCAL : ANSWER_LINK_GONE;
    if (!local.well) {
        log_event(LOG_ERROR_LEVEL, "fabric.link_failed", "peer=%s link=%u reason=\"%s\"",
                  node->config.peers[peer].name, link, detail.text);
    }
    answer(node, &local);
    return local.well;
}

static void open_link(struct fabric_turn *turn, const struct fabric_order *order)
{
    struct node *node = turn->node;
    struct status_detail detail;
    struct fabric_answer local;
    memset(&local, 0, sizeof local);
    local.kind = ANSWER_LOCAL;
    local.peer = order->peer;
    local.link = order->link;
    local.well =
        data_link_open(node->data, order->peer, order->link, &local.endpoint, &detail) == STATUS_OK;
    turn->open[order->peer].used = local.well;
    turn->open[order->peer].link = order->link;
    if (!local.well) {
        log_event(LOG_ERROR_LEVEL, "fabric.link_failed", "peer=%s link=%u reason=\"%s\"",
                  node->config.peers[order->peer].name, order->link, detail.text);
    }
    answer(node, &local);
}

static void connect_link(struct node *node, const struct fabric_order *order)
{
    struct fabric_answer connected;
    memset(&connected, 0, sizeof connected);
    const enum status status = data_link_connect(node->data, order->peer, order->link, order->ranks,
                                                 &order->endpoint, &connected.detail);
    if (status != STATUS_OK) {
        log_event(LOG_ERROR_LEVEL, "fabric.connect_failed", "peer=%s link=%u reason=\"%s\"",
                  node->config.peers[order->peer].name, order->link, connected.detail.text);
    }
    if (order->kind == ORDER_LINK_CONNECT) {
        connected.kind = ANSWER_CONNECTED;
        connected.peer = order->peer;
        connected.link = order->link;
        connected.well = status == STATUS_OK;
        answer(node, &connected);
    }
}

/* What peers may write into has changed. */
static void give_locals(struct fabric_turn *turn)
{
    for (uint32_t peer = 0; peer < turn->node->config.peer_count; peer++) {
        if (turn->open[peer].used) {
            turn->open[peer].used = give_local(turn->node, peer, turn->open[peer].link);
        }
    }
}

static void add_pool(struct fabric_turn *turn, const struct fabric_order *order)
{
    struct fabric_answer added;
    memset(&added, 0, sizeof added);
    added.kind = ANSWER_POOL_ADDED;
    added.rank = order->rank;
    added.well = data_pool_add(turn->node->data, order->rank, order->pool, &order->layout,
                               &added.detail) == STATUS_OK;
    if (!added.well) {
        log_event(LOG_ERROR_LEVEL, "fabric.pool_failed", "rank=%u reason=\"%s\"", order->rank,
                  added.detail.text);
    }
    give_locals(turn);
    answer(turn->node, &added);
}

/* Pools that have been let go, and connections that have broken since. */
static uint32_t take_news(struct fabric_turn *turn)
{
    struct node *node = turn->node;
    struct fabric_answer news;
    char why[DATA_TEXT_BYTES];
    uint32_t count = 0;
    memset(&news, 0, sizeof news);
    news.kind = ANSWER_LINK_GONE;
    while (data_broken(node->data, &news.peer, &news.link, why)) {
        log_event(LOG_ERROR_LEVEL, "fabric.link_broken", "peer=%s link=%u reason=\"%s\"",
                  node->config.peers[news.peer].name, news.link, why);
        turn->open[news.peer].used =
            turn->open[news.peer].used && turn->open[news.peer].link != news.link;
        answer(node, &news);
        count++;
    }
    news.kind = ANSWER_POOL_GONE;
    for (uint64_t gone = data_pools_gone(node->data); gone != 0; gone &= gone - 1u) {
        news.rank = (uint32_t)__builtin_ctzll(gone);
        log_event(LOG_DEBUG_LEVEL, "fabric.pool_gone", "rank=%u", news.rank);
        answer(node, &news);
        count++;
    }
    return count;
}

static void carry_out_order(struct fabric_turn *turn, const struct fabric_order *order)
{
    switch (order->kind) {
    case ORDER_LINK_OPEN:
        open_link(turn, order);
        break;
    case ORDER_LINK_CONNECT:
    case ORDER_LINK_REGIONS:
        connect_link(turn->node, order);
        break;
    case ORDER_POOL_RETIRE:
        data_pool_retire(turn->node->data, order->rank);
        give_locals(turn);
        break;
    default:
        add_pool(turn, order);
        break;
    }
}

static uint32_t take_orders(struct fabric_turn *turn)
{
    uint32_t taken = 0;
    size_t size = 0;
    const struct fabric_order *order = ring_front(&turn->node->to_fabric_from_control, &size);
    while (order != NULL) {
        carry_out_order(turn, order);
        ring_pop(&turn->node->to_fabric_from_control);
        taken++;
        order = ring_front(&turn->node->to_fabric_from_control, &size);
    }
    return taken;
}

/* ---- effects of the machine
 * ----------------------------------------------------------------------------------- */

static void write_pages(struct fabric_turn *turn, const struct sm_effect *effect, uint32_t peer)
{
    struct node *node = turn->node;
    const struct data_write write = {
        effect->u.write.id,    effect->room,       peer,
        effect->link,          effect->rank,       effect->u.write.decode_rank,
        effect->u.write.from,  effect->u.write.to, effect->u.write.aux_from,
        effect->u.write.aux_to};
    if (peer == UINT32_MAX) {
        write_failed(turn, write.id, write.room, "the peer is not in the configuration any more");
        return;
    }
    /* Never wait here: other connections move on, and the order that ends this one comes later. */
    if (data_write(node->data, &write) == STATUS_AGAIN) {
        write_failed(turn, write.id, write.room, "no memory for another write");
    }
}

static void fence(struct fabric_turn *turn, const struct sm_effect *effect, uint32_t peer)
{
    struct node *node = turn->node;
    if (peer == UINT32_MAX) {
        return;
    }
    data_link_fence(node->data, peer, effect->link);
    if (turn->open[peer].link <= effect->link) {
        turn->open[peer].used = false;
    }
    take_results(turn); /* what it ended comes first */
    struct outcome *fenced = new_outcome(turn, SM_IN_PEER_FENCED);
    fenced->peer = peer;
    fenced->link = effect->link;
    log_event(LOG_WARNING_LEVEL, "fabric.fenced", "peer=%s link=%u", node->config.peers[peer].name,
              effect->link);
}

static uint32_t take_effects(struct fabric_turn *turn)
{
    struct node *node = turn->node;
    uint32_t taken = 0;
    size_t size = 0;
    const struct effect_message *message = ring_front(&node->to_fabric_from_machine, &size);
    while (message != NULL && taken < 64u && turn->outcome_count < turn->outcomes_max) {
        const struct sm_effect *effect = (const struct sm_effect *)(const void *)(message + 1);
        /* What the control plane has ordered before the machine heard of it comes first. */
        (void)take_orders(turn);
        if (message->quiet_rank != UINT32_MAX) {
            data_pool_quiet(node->data, message->quiet_rank);
        } else if (effect->kind == SM_FX_WRITE) {
            write_pages(turn, effect, message->peer);
        } else {
            fence(turn, effect, message->peer);
        }
        ring_pop(&node->to_fabric_from_machine);
        taken++;
        message = ring_front(&node->to_fabric_from_machine, &size);
    }
    return taken;
}

void *fabric_main(void *context)
{
    struct fabric_turn turn;
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    memset(&turn, 0, sizeof turn);
    turn.node = context;
    struct node *node = turn.node;
    turn.outcomes_max = node->config.settings.bounds.writes_max + FENCES_MAX + RESULTS_MAX;
    turn.outcomes = calloc(turn.outcomes_max, sizeof *turn.outcomes);
    if (turn.outcomes == NULL) {
        log_event(LOG_ERROR_LEVEL, "node.no_memory", "thread=fabric");
        atomic_store(&node->stopped, true);
        return NULL;
    }
    while (!atomic_load(&node->quit)) {
        uint32_t taken = take_orders(&turn);
        taken += take_effects(&turn);
        taken += take_news(&turn); /* before the machine hears what became of writes */
        take_results(&turn);
        if (taken == 0) {
            /* Both rings wake the same descriptor: see node.c. */
            const bool first = ring_may_sleep(&node->to_fabric_from_control);
            const bool second = ring_may_sleep(&node->to_fabric_from_machine);
            if (first && second) {
                data_wait(node->data, node->to_fabric_from_machine.wake_fd,
                          turn.outcome_count > 0 ? 1 : 20);
            }
            ring_woken(&node->to_fabric_from_control);
            ring_woken(&node->to_fabric_from_machine);
        }
    }
    free(turn.outcomes);
    return NULL;
}
