/* SPDX-License-Identifier: Apache-2.0 */
/* What the node says, and what it means when it stops saying anything. */
#include "client_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define EXPORT __attribute__((visibility("default")))
#define PING_INTERVAL_NS UINT64_C(500000000)
#define SILENCE_NS UINT64_C(3000000000)

static void keep_reason(struct stateroom *s, const unsigned char *bytes, size_t size)
{
    size = size < sizeof s->reason ? size : sizeof s->reason - 1u;
    if (size > 0) {
        memcpy(s->reason, bytes, size);
    }
    s->reason[size] = '\0';
    /* A zero inside would end the text early, which is what a C string does. */
}

static struct stateroom_event blank_event(struct stateroom *s, enum stateroom_event_kind kind)
{
    struct stateroom_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.reason = s->reason;
    s->reason[0] = '\0';
    return event;
}

/* ---- results: each once
 * -------------------------------------------------------------------------------- */

static struct told *find_told(struct stateroom *s, uint64_t room, uint64_t generation,
                              uint32_t side)
{
    const uint64_t first = s->told_next > CLIENT_TOLD_MAX ? s->told_next - CLIENT_TOLD_MAX : 0;
    for (uint64_t at = s->told_next; at > first; at--) {
        struct told *told = &s->told[(at - 1u) % CLIENT_TOLD_MAX];
        if (told->room == room && told->generation == generation && told->side == side) {
            return told;
        }
        /* What is told twice was told just now, or before a restart: the recent ones are enough. */
        if (s->told_next - at > 4096u && !s->sweeping) {
            break;
        }
    }
    return NULL;
}

/*
 * The result of an open that the engine was told is refused: it happened before the node went, and
 * nobody waits for it. Its pages are the engine's since then. Said as often as the result is.
 */
static bool nobodys(struct stateroom *s, const Stateroom__Engine__Result *result)
{
    const struct pending *pending = &s->pending[result->request % CLIENT_PENDING_MAX];
    if (result->request == 0 || pending->state != PENDING_SWEPT ||
        pending->request != result->request || pending->room != result->room ||
        pending->side != result->side) {
        return false;
    }
    const uint64_t room = result->room;
    const uint64_t generation = result->generation;
    const uint32_t side = result->side;
    client_confirm(s, room, generation, side);
    client_release_unasked(s, room, generation, side);
    return true;
}

static bool on_result(struct stateroom *s, const Stateroom__Engine__Result *result,
                      struct stateroom_event *out)
{
    if (nobodys(s, result)) {
        return false;
    }
    struct told *known = find_told(s, result->room, result->generation, result->side);
    if (known != NULL) {
        const bool news = known->pages_out && result->pages_free;
        if (news) {
            known->pages_out = 0; /* told again, and now the pages are free too */
            *out = blank_event(s, STATEROOM_PAGES_FREE);
            out->room = known->room;
            out->generation = known->generation;
            out->side = (enum stateroom_side)known->side;
        }
        client_confirm(s, known->room, known->generation, known->side);
        return news;
    }
    struct told *told = &s->told[s->told_next % CLIENT_TOLD_MAX];
    s->told_next++;
    *told =
        (struct told){result->room, result->generation, (uint8_t)result->side, !result->pages_free};
    *out = blank_event(s, STATEROOM_RESULT);
    out->room = result->room;
    out->generation = result->generation;
    out->side = (enum stateroom_side)result->side;
    out->outcome = (enum stateroom_outcome)result->outcome;
    out->pages_free = result->pages_free != 0;
    if (result->cause != NULL) {
        out->http = result->cause->http;
        keep_reason(s, result->cause->reason.data, result->cause->reason.len);
    }
    /* Last: packing the confirmation takes the memory that the result was unpacked into. */
    client_confirm(s, told->room, told->generation, told->side);
    return true;
}

static bool on_pages_free(struct stateroom *s, const Stateroom__Engine__PagesFree *freed,
                          struct stateroom_event *out)
{
    struct told *told = find_told(s, freed->room, freed->generation, freed->side);
    if (told == NULL || !told->pages_out) {
        return false;
    }
    told->pages_out = 0;
    *out = blank_event(s, STATEROOM_PAGES_FREE);
    out->room = freed->room;
    out->generation = freed->generation;
    out->side = (enum stateroom_side)freed->side;
    return true;
}

static bool on_reply(struct stateroom *s, const Stateroom__Engine__Reply *reply,
                     struct stateroom_event *out)
{
    struct pending *pending = &s->pending[reply->request % CLIENT_PENDING_MAX];
    if (pending->state != PENDING_WAITS || pending->request != reply->request) {
        return false;
    }
    *out = blank_event(s, reply->refusal == 0 ? STATEROOM_ACCEPTED : STATEROOM_REFUSAL);
    out->request = pending->request;
    out->room = pending->room;
    out->command = (enum stateroom_command)pending->command;
    out->http = reply->http;
    keep_reason(s, reply->reason.data, reply->reason.len);
    pending->state = PENDING_FREE;
    s->pending_count--;
    return true;
}

/* ---- the node comes and goes
 * ------------------------------------------------------------------------------ */

static void on_attached(struct stateroom *s, const Stateroom__Engine__Attached *attached)
{
    const bool first = s->epoch == 0;
    const bool other = !first && (s->epoch != attached->epoch || s->node_id != attached->node_id);
    s->other_node = s->other_node || (!first && s->node_id != attached->node_id);
    /* Also the same process may have let this engine go, and forgotten what it said. */
    const bool anew = !first && (other || attached->next_request > s->sweep_below);
    s->attached = true;
    s->error[0] = '\0';
    s->node_id = attached->node_id;
    s->epoch = attached->epoch;
    if (other || s->lost_told) {
        s->back_due = true;
        s->lost_told = false;
    }
    s->sweep_below = attached->next_request;
    s->sweep_pages = s->sweep_pages || other;
    if (anew) {
        s->sweeping = true;
        s->sweep_pending = 0;
        s->sweep_told = s->told_next > CLIENT_TOLD_MAX ? s->told_next - CLIENT_TOLD_MAX : 0;
    }
}

/*
 * Another process answers now. What was said before it was attached to and had no answer was lost
 * with the old one; a release is given once more, since nothing but it lets the room go and it may
 * be given twice. And pages that the old one still held are free: nothing can reach them any more,
 * since its fabric died with it.
 */
static bool sweep_one(struct stateroom *s, struct pending *pending, struct stateroom_event *out)
{
    if (pending->state != PENDING_WAITS || pending->request >= s->sweep_below ||
        (pending->command == STATEROOM_DO_RELEASE && client_release_again(s, pending))) {
        return false;
    }
    *out = blank_event(s, STATEROOM_REFUSAL);
    out->request = pending->request;
    out->room = pending->room;
    out->command = (enum stateroom_command)pending->command;
    out->http = 503;
    (void)snprintf(s->reason, sizeof s->reason, "the node restarted");
    const bool opens =
        pending->command == STATEROOM_DO_OPEN || pending->command == STATEROOM_DO_REJECT;
    pending->state = opens ? PENDING_SWEPT : PENDING_FREE;
    s->pending_count--;
    return true;
}

bool client_sweep(struct stateroom *s, struct stateroom_event *out)
{
    if (s->back_due) {
        s->back_due = false;
        *out = blank_event(s, STATEROOM_NODE_BACK);
        out->epoch = s->epoch;
        return true;
    }
    if (!s->sweeping) {
        return false;
    }
    for (; s->sweep_pending < CLIENT_PENDING_MAX && s->pending_count > 0; s->sweep_pending++) {
        if (sweep_one(s, &s->pending[s->sweep_pending], out)) {
            return true;
        }
    }
    for (; s->sweep_pages && s->sweep_told < s->told_next; s->sweep_told++) {
        struct told *told = &s->told[s->sweep_told % CLIENT_TOLD_MAX];
        if (told->room != 0 && told->pages_out) {
            told->pages_out = 0;
            *out = blank_event(s, STATEROOM_PAGES_FREE);
            out->room = told->room;
            out->generation = told->generation;
            out->side = (enum stateroom_side)told->side;
            return true;
        }
    }
    s->sweeping = false;
    s->sweep_pages = false;
    if (s->other_node) {
        s->other_node = false;
        memset(s->told, 0, CLIENT_TOLD_MAX * sizeof *s->told);
        s->told_next = 0;
    }
    return false;
}

static bool lose_node(struct stateroom *s, const char *why, struct stateroom_event *out)
{
    const bool was = s->attached;
    s->attached = false;
    s->next_attach_ns = 0;
    if (!was || s->lost_told) {
        return false;
    }
    s->lost_told = true;
    *out = blank_event(s, STATEROOM_NODE_LOST);
    (void)snprintf(s->reason, sizeof s->reason, "%s", why);
    return true;
}

static bool on_goodbye(struct stateroom *s, const Stateroom__Engine__Goodbye *goodbye,
                       struct stateroom_event *out)
{
    (void)client_fail(s, STATEROOM_REFUSED, "the node refuses (%u): %s", goodbye->http,
                      goodbye->reason);
    return lose_node(s, goodbye->reason, out);
}

/* ---- receiving
 * --------------------------------------------------------------------------------------------- */

bool client_receive(struct stateroom *s, struct stateroom_event *out_event, bool *out_received)
{
    zmq_msg_t part;
    *out_received = false;
    (void)zmq_msg_init(&part);
    if (zmq_msg_recv(&part, s->dealer, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&part);
        return false;
    }
    *out_received = true;
    codec_arena_reset(&s->arena);
    const struct codec_allocator allocator = codec_arena_allocator(&s->arena);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    const Stateroom__Engine__ToEngine *message =
        stateroom__engine__to_engine__unpack(&functions, zmq_msg_size(&part), zmq_msg_data(&part));
    (void)zmq_msg_close(&part);
    if (message == NULL) {
        return false;
    }
    s->last_heard_ns = client_now_ns();
    switch (message->body_case) {
    case STATEROOM__ENGINE__TO_ENGINE__BODY_ATTACHED:
        on_attached(s, message->attached);
        return false;
    case STATEROOM__ENGINE__TO_ENGINE__BODY_RESULT:
        return on_result(s, message->result, out_event);
    case STATEROOM__ENGINE__TO_ENGINE__BODY_PAGES_FREE:
        return on_pages_free(s, message->pages_free, out_event);
    case STATEROOM__ENGINE__TO_ENGINE__BODY_REPLY:
        return on_reply(s, message->reply, out_event);
    case STATEROOM__ENGINE__TO_ENGINE__BODY_GOODBYE:
        return on_goodbye(s, message->goodbye, out_event);
    case STATEROOM__ENGINE__TO_ENGINE__BODY_PONG:
    case STATEROOM__ENGINE__TO_ENGINE__BODY__NOT_SET:
    case _STATEROOM__ENGINE__TO_ENGINE__BODY__CASE_IS_INT_SIZE:
        return false;
    }
    return false;
}

/* Pings, attaches again, and notices silence. */
static bool keep_alive(struct stateroom *s, struct stateroom_event *out_event)
{
    const uint64_t now = client_now_ns();
    if (!s->attached) {
        if (now >= s->next_attach_ns) {
            client_attach(s);
        }
        return false;
    }
    if (now - s->last_heard_ns > SILENCE_NS) {
        return lose_node(s, "the node does not answer", out_event);
    }
    if (now >= s->next_ping_ns) {
        Stateroom__Engine__ToNode message;
        Stateroom__Engine__Ping ping;
        stateroom__engine__to_node__init(&message);
        stateroom__engine__ping__init(&ping);
        message.body_case = STATEROOM__ENGINE__TO_NODE__BODY_PING;
        message.ping = &ping;
        s->next_ping_ns = now + PING_INTERVAL_NS;
        (void)client_send(s, &message);
    }
    return false;
}

EXPORT enum stateroom_error stateroom_next(struct stateroom *s, struct stateroom_event *out_event,
                                           uint32_t timeout_ms)
{
    const uint64_t until = client_now_ns() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        bool received = true;
        if (client_sweep(s, out_event)) {
            return STATEROOM_OK;
        }
        while (received) {
            if (client_receive(s, out_event, &received) || client_sweep(s, out_event)) {
                return STATEROOM_OK;
            }
        }
        if (keep_alive(s, out_event)) {
            return STATEROOM_OK;
        }
        const uint64_t now = client_now_ns();
        if (timeout_ms != UINT32_MAX && now >= until) {
            return STATEROOM_TIMEOUT;
        }
        const uint64_t left_ms =
            timeout_ms == UINT32_MAX ? 100u : (until - now + 999999u) / 1000000u;
        zmq_pollitem_t item = {s->dealer, 0, ZMQ_POLLIN, 0};
        (void)zmq_poll(&item, 1, (long)(left_ms < 100u ? left_ms : 100u));
    }
}
