/* SPDX-License-Identifier: Apache-2.0 */
/* A prefill node towards decode ranks that speak SGLang: registrations, metadata, aborts; statuses
 * and acks. */
#include "sglang_rooms_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- orders
 * --------------------------------------------------------------------------------------------- */

/* The machine is answered for a peer that will not answer. */
static void acknowledge(struct sglang_rooms *rooms, uint32_t peer, uint64_t room,
                        const struct sm_life *life, uint32_t rank)
{
    struct record probe;
    memset(&probe, 0, sizeof probe);
    probe.peer = peer;
    probe.room = room;
    probe.life = *life;
    probe.rank = rank;
    (void)rooms_say(rooms, &probe, SM_IN_ACK);
}

static void send_status(struct sglang_rooms *rooms, const struct record *record, uint32_t source,
                        bool succeeded)
{
    struct sglang_message *message = rooms_send(rooms, record, record->rank, source, SGLANG_STATUS);
    message->u.status.succeeded = succeeded;
    message->u.status.rank = source;
}

static uint32_t first_of(uint64_t mask)
{
    for (uint32_t i = 0; i < SM_RANKS_MAX; i++) {
        if ((mask >> i & 1u) != 0) {
            return i;
        }
    }
    return 0;
}

/*
 * A verdict to one decode rank. Its cause has no place on this wire: a peer that has not shown that
 * it knows more frames would die of them.
 */
static void order_status(struct sglang_rooms *rooms, const struct sm_effect *effect)
{
    const struct sm_message *m = &effect->u.message;
    struct record *record = rooms_find(rooms, false, effect->room, effect->peer, m->decode_rank);
    if (record == NULL || !rooms_same_life(&record->life, &m->life) || record->old_link ||
        record->aborted != 0) {
        /* It has ended the room itself, or has lost the connection and with it the room. */
        acknowledge(rooms, effect->peer, effect->room, &m->life, m->decode_rank);
        return;
    }
    const bool succeeded = m->outcome == SM_OUTCOME_SUCCEEDED;
    if (succeeded && !record->concluded) {
        for (uint32_t source = 0; source < rooms->options.ranks; source++) {
            if ((m->sources >> source & 1u) != 0) {
                send_status(rooms, record, source, true);
            }
        }
    } else if (!succeeded) {
        /* Its abort will follow, and is no news to a machine that writes nothing there: least of
         * all when only this rank was refused, and the room goes on for others. */
        record->drained = record->drained || m->drained;
        send_status(rooms, record, first_of(m->sources), false);
        record->tries++;
    }
    record->concluded = true;
    if (succeeded || record->tries >= SGLANG_STATUS_TRIES) {
        record->finished = true;
        acknowledge(rooms, effect->peer, effect->room, &m->life, m->decode_rank);
    }
}

static void send_acks(struct sglang_rooms *rooms, struct record *record)
{
    for (uint32_t port = 0; port < rooms->options.ranks; port++) {
        if ((record->acked >> port & 1u) == 0) {
            continue;
        }
        struct sglang_message *message =
            rooms_send(rooms, record, record->rank, port, SGLANG_ABORT_ACK);
        message->u.ack.has_rank = true;
        message->u.ack.rank = port;
        message->u.ack.has_generation = record->has_token;
        message->u.ack.generation = record->token;
    }
    record->acked = 0;
}

void rooms_prefill_order(struct sglang_rooms *rooms, const struct sm_effect *effect)
{
    const struct sm_message *m = &effect->u.message;
    if (effect->kind == SM_FX_SEND_STATUS) {
        order_status(rooms, effect);
        return;
    }
    struct record *record = rooms_find(rooms, false, effect->room, effect->peer, m->decode_rank);
    if (record != NULL && rooms_same_life(&record->life, &m->life)) {
        record->drained = true;
        record->finished = record->aborted != 0;
        send_acks(rooms, record);
    }
}

/* ---- registration
 * --------------------------------------------------------------------------------------- */

static bool same_text(const char *bytes, uint32_t size, const struct sglang_text *text)
{
    return size == text->size && memcmp(bytes, text->bytes, size) == 0;
}

static void take_registration(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                              const struct sglang_registration *g)
{
    struct peer *peer = rooms->peers[arrival->peer];
    if (g->tp_size != peer->ranks) {
        rooms->counters.malformed++;
        return;
    }
    struct session *session = &peer->sessions[g->engine_rank];
    if (!same_text(session->text, session->text_size, &g->origin.session)) {
        memset(session, 0, sizeof *session); /* another process of that rank */
    }
    memcpy(session->text, g->origin.session.bytes, g->origin.session.size);
    memcpy(session->ip, g->origin.ip.bytes, g->origin.ip.size);
    session->text_size = g->origin.session.size;
    session->ip_size = g->origin.ip.size;
    session->port = g->origin.port;
    session->ports |= UINT64_C(1) << arrival->rank;
    session->entries = g->kv_pointers.count;
    session->item_bytes = g->kv_item_bytes;
}

/* The rank that a session is; SM_NONE: it has not registered at this port. */
static uint32_t rank_of_session(const struct peer *peer, const struct sglang_text *session,
                                uint32_t port)
{
    for (uint32_t rank = 0; rank < peer->ranks; rank++) {
        const struct session *s = &peer->sessions[rank];
        if ((s->ports >> port & 1u) != 0 && same_text(s->text, s->text_size, session)) {
            return rank;
        }
    }
    return SM_NONE;
}

static uint32_t rank_of_origin(const struct peer *peer, const struct sglang_origin *origin)
{
    for (uint32_t rank = 0; rank < peer->ranks; rank++) {
        const struct session *s = &peer->sessions[rank];
        if (s->ports != 0 && s->port == origin->port && same_text(s->ip, s->ip_size, &origin->ip)) {
            return rank;
        }
    }
    return SM_NONE;
}

/* ---- metadata
 * ------------------------------------------------------------------------------------------- */

static uint64_t content_of(const struct sglang_metadata *d)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < (size_t)d->pages.count * 4u; i++) {
        hash = (hash ^ d->pages.bytes[i]) * UINT64_C(0x100000001b3);
    }
    hash = (hash ^ (d->has_aux ? d->aux_slot + 1u : 0)) * UINT64_C(0x100000001b3);
    return (hash ^ d->prefix_tokens) * UINT64_C(0x100000001b3);
}

static void new_life(struct sglang_rooms *rooms, struct record *record, const struct peer *peer,
                     uint64_t now_ns)
{
    const uint64_t least = rooms->generation_last + 1u;
    rooms->generation_last = now_ns > least ? now_ns : least;
    record->life = (struct sm_life){peer->node_id, peer->epoch, rooms->generation_last};
    record->token_old = record->old_link    ? 0
                        : record->has_token ? record->token
                                            : record->token_old;
    record->published = 0;
    record->aborted = 0;
    record->acked = 0;
    record->tries = 0;
    record->has_token = false;
    record->token = 0;
    record->concluded = false;
    record->drained = false;
    record->old_link = false;
    record->finished = false;
}

/* The life that the peer's other ranks are in, if this one has not been in it. */
static void join(struct sglang_rooms *rooms, struct record *record, const struct peer *peer,
                 uint64_t now_ns)
{
    const struct record *newest = NULL;
    for (uint32_t rank = 0; rank < peer->ranks; rank++) {
        const struct record *other = rooms_find(rooms, false, record->room, record->peer, rank);
        if (other != NULL && other != record && !other->old_link && other->life.generation != 0 &&
            (newest == NULL || other->life.generation > newest->life.generation)) {
            newest = other;
        }
    }
    const bool mine_is_older =
        newest != NULL && (record->old_link || newest->life.generation > record->life.generation);
    new_life(rooms, record, peer, now_ns);
    if (mine_is_older) {
        record->life = newest->life;
    }
}

/* As our geometry, with what the registration shows to be different. */
static struct sm_geometry geometry_of(const struct sglang_rooms *rooms, const struct peer *peer,
                                      const struct session *session)
{
    struct sm_geometry geometry = rooms->options.geometry;
    const uint64_t own = rooms_item_bytes(&geometry, peer->ranks);
    const uint64_t entries = (uint64_t)geometry.layers * geometry.planes;
    if (session->entries != entries && entries <= ENTRIES_MAX) {
        geometry.layers = (uint32_t)(session->entries / geometry.planes);
    }
    if (session->item_bytes != own && geometry.item_bytes != 0) {
        const uint64_t per_byte = own / geometry.item_bytes;
        const uint64_t bytes = per_byte == 0 ? 0 : session->item_bytes / per_byte;
        geometry.item_bytes = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
    }
    return geometry;
}

/* Pages as runs; false: no memory. */
static bool take_runs(struct sglang_rooms *rooms, const struct sglang_list *pages,
                      struct sm_runs *out)
{
    if (pages->count > rooms->runs_capacity) {
        struct sm_run *grown = realloc(rooms->runs, pages->count * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        rooms->runs = grown;
        rooms->runs_capacity = pages->count;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < pages->count; i++) {
        const uint32_t page = (uint32_t)sglang_list_at(pages, i);
        if (count > 0 && rooms->runs[count - 1u].first + rooms->runs[count - 1u].count == page) {
            rooms->runs[count - 1u].count++;
        } else {
            rooms->runs[count++] = (struct sm_run){page, 1};
        }
    }
    *out = (struct sm_runs){rooms->runs, count};
    return true;
}

static void say_prepare(struct sglang_rooms *rooms, const struct record *record, uint32_t port,
                        const struct sglang_metadata *d)
{
    const struct peer *peer = rooms->peers[record->peer];
    struct sm_runs runs;
    if (!take_runs(rooms, &d->pages, &runs)) {
        rooms->counters.refused++;
        return;
    }
    struct sm_message *m = rooms_say(rooms, record, SM_IN_PREPARE);
    if (m == NULL) {
        return;
    }
    const bool latent = rooms_latent(&rooms->options.geometry);
    m->sources = latent ? UINT64_C(1) << port
                        : rooms_sources(record->rank, peer->ranks, rooms->options.ranks);
    for (uint32_t rank = 0; rank < peer->ranks; rank++) {
        uint64_t others = rooms_sources(rank, peer->ranks, rooms->options.ranks);
        others = latent ? others & (~others + 1u) : others; /* the first one writes */
        for (uint32_t source = 0; source < rooms->options.ranks; source++) {
            m->required[source] = (uint8_t)(m->required[source] + (others >> source & 1u));
        }
    }
    for (uint32_t source = 0; source < rooms->options.ranks; source++) {
        if ((m->sources >> source & 1u) != 0) {
            m->required[source] = (uint8_t)d->required;
        }
    }
    m->pages = runs;
    m->prefix_pages = (uint32_t)(d->prefix_tokens / rooms->options.geometry.page_tokens);
    m->aux_slot = d->has_aux ? d->aux_slot : SM_AUX_NONE;
    m->decode_ranks = peer->ranks;
    m->deadline_left_ns = UINT64_MAX; /* this wire has none: our bound for the unclaimed holds */
    m->geometry = geometry_of(rooms, peer, &peer->sessions[record->rank]);
}

/* The table is full: decode hears it at once instead of waiting for its deadline. */
static void refuse_metadata(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                            uint64_t room, uint32_t rank)
{
    struct record probe;
    memset(&probe, 0, sizeof probe);
    probe.room = room;
    probe.peer = arrival->peer;
    probe.rank = rank;
    rooms->counters.refused++;
    send_status(rooms, &probe, arrival->rank, false);
}

static void take_metadata(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                          const struct sglang_message *message, uint64_t now_ns)
{
    const struct sglang_metadata *d = &message->u.metadata;
    const struct peer *peer = rooms->peers[arrival->peer];
    const uint32_t rank = rank_of_session(peer, &d->origin.session, arrival->rank);
    const uint64_t port = UINT64_C(1) << arrival->rank;
    if (rank == SM_NONE || (rooms_sources(rank, peer->ranks, rooms->options.ranks) & port) == 0) {
        rooms->counters.stale++; /* not registered here, or not ours to write */
        return;
    }
    if (d->pages.count == 0 && !d->has_aux) {
        return; /* a dummy: this rank writes nothing, and its room needs no word of it */
    }
    struct record *record = rooms_find(rooms, false, message->room, arrival->peer, rank);
    const uint64_t content = content_of(d);
    if (record == NULL) {
        record = rooms_add(rooms, false, message->room, arrival->peer, rank);
        if (record == NULL) {
            refuse_metadata(rooms, arrival, message->room, rank);
            return;
        }
        join(rooms, record, peer, now_ns);
    } else if (record->old_link || ((record->published | record->aborted) & port) != 0) {
        const bool again = !record->old_link && record->content == content && !record->concluded &&
                           record->aborted == 0;
        if (!again) {
            join(rooms, record, peer, now_ns);
        }
    }
    const bool part = record->published != 0 && (record->published & port) == 0;
    record->published |= port;
    if (part && record->content == content) {
        return; /* the same to another of its sources */
    }
    record->content = content;
    say_prepare(rooms, record, arrival->rank, d);
}

/* ---- abort
 * ---------------------------------------------------------------------------------------------- */

static void say_abort(struct sglang_rooms *rooms, const struct record *record, const char *who)
{
    struct sm_message *m = rooms_say(rooms, record, SM_IN_PEER_ABORT);
    if (m != NULL) {
        m->cause.origin = SM_ORIGIN_PEER;
        m->cause.reason = rooms_reason(rooms, "%s has aborted the room and sent no cause", who);
    }
}

/* Without a return address: whoever it was, the room is over; nobody is owed an answer. */
static void take_bare_abort(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                            uint64_t room)
{
    bool any = false;
    for (uint32_t p = 0; p < rooms->options.peers_max; p++) {
        const struct peer *peer = rooms->peers[p];
        for (uint32_t rank = 0; peer != NULL && rank < peer->ranks; rank++) {
            const struct record *record = rooms_find(rooms, false, room, p, rank);
            if (record != NULL && record->published != 0 && !record->concluded &&
                record->aborted == 0) {
                say_abort(rooms, record, "a sender without an address");
                any = true;
                break; /* one rank's word ends the half for all */
            }
        }
    }
    if (any || rooms->input_count == INPUTS_MAX) {
        return;
    }
    /* No decode has spoken of it yet: the rank's own engine may have. */
    struct sm_input *input = &rooms->inputs[rooms->input_count++];
    memset(input, 0, sizeof *input);
    input->kind = SM_IN_ABORT;
    input->room = room;
    input->u.command.rank = arrival->rank;
    input->u.command.side = SM_PREFILL;
    input->u.command.aux_slot = SM_AUX_NONE;
    input->u.command.peer = (struct sm_text){"", 0};
    input->u.command.cause.origin = SM_ORIGIN_PEER;
    input->u.command.cause.reason = (struct sm_text){"", 0};
}

/* Whose return address it is; peer SM_NONE: nobody's that has registered. */
static uint32_t find_sender(const struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                            const struct sglang_abort *a, uint32_t *out_rank)
{
    for (uint32_t p = 0; p < rooms->options.peers_max; p++) {
        if (rooms->peers[p] == NULL || (arrival->peer != SM_NONE && arrival->peer != p)) {
            continue;
        }
        *out_rank = rank_of_origin(rooms->peers[p], &a->origin);
        if (*out_rank != SM_NONE) {
            return p;
        }
    }
    return SM_NONE;
}

/* Of a life that is over here: it came late. Its sender is answered and the room left alone. */
static bool is_late(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                    const struct record *record, const struct sglang_abort *a)
{
    if (record->old_link || !a->has_generation || a->generation > record->token_old) {
        return false;
    }
    struct sglang_message *message =
        rooms_send(rooms, record, record->rank, arrival->rank, SGLANG_ABORT_ACK);
    message->u.ack = (struct sglang_ack){true, true, arrival->rank, a->generation};
    rooms->counters.stale++;
    return true;
}

static void take_abort(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                       const struct sglang_message *message, uint64_t now_ns)
{
    const struct sglang_abort *a = &message->u.abort;
    uint32_t rank = SM_NONE;
    const uint32_t p = a->has_origin ? find_sender(rooms, arrival, a, &rank) : SM_NONE;
    if (p == SM_NONE) {
        take_bare_abort(rooms, arrival, message->room);
        return;
    }
    const struct peer *peer = rooms->peers[p];
    const uint64_t port = UINT64_C(1) << arrival->rank;
    struct record *record = rooms_find(rooms, false, message->room, p, rank);
    if (record == NULL) {
        record = rooms_add(rooms, false, message->room, p, rank);
        if (record == NULL) {
            rooms->counters.refused++;
            return;
        }
        join(rooms, record, peer, now_ns);
    }
    if (is_late(rooms, arrival, record, a)) {
        return;
    }
    const bool first = record->aborted == 0;
    record->aborted |= port;
    record->acked |= port;
    record->has_token = a->has_generation;
    record->token = a->generation;
    if (first && record->concluded) {
        acknowledge(rooms, p, message->room, &record->life, rank); /* it has heard, or ended */
    }
    if (record->drained) {
        record->finished = true;
        send_acks(rooms, record);
    } else {
        say_abort(rooms, record, peer->name);
    }
}

void rooms_prefill_take(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                        const struct sglang_message *message, uint64_t now_ns)
{
    if (message->kind == SGLANG_ABORT) {
        take_abort(rooms, arrival, message, now_ns);
    } else if (message->kind != SGLANG_REGISTRATION && message->kind != SGLANG_METADATA) {
        rooms->counters.unused++;
    } else if (arrival->peer == SM_NONE) {
        rooms->counters.stranger++;
    } else if (message->kind == SGLANG_REGISTRATION) {
        take_registration(rooms, arrival, &message->u.registration);
    } else {
        take_metadata(rooms, arrival, message, now_ns);
    }
}
