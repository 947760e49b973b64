/* SPDX-License-Identifier: Apache-2.0 */
/* A decode node towards a prefill that speaks SGLang: announce, abort; statuses and acks. */
#include "sglang_rooms_private.h"

#include "schemas/text.h"

#include <stdlib.h>
#include <string.h>

static struct sglang_origin own_origin(const struct sglang_rooms *rooms, uint32_t rank)
{
    return (struct sglang_origin){rooms_text(rooms->ip), rooms_text(rooms->sessions[rank]),
                                  (uint16_t)(rooms->options.port + rank)};
}

/* Before the first word to a rank of a connection: who we are, and what our pool looks like. */
static void registered(struct sglang_rooms *rooms, const struct record *record, uint32_t peer_rank)
{
    struct peer *peer = rooms->peers[record->peer];
    if ((peer->registered[record->rank] >> peer_rank & 1u) != 0) {
        return;
    }
    peer->registered[record->rank] |= UINT64_C(1) << peer_rank;
    struct sglang_message *message =
        rooms_send(rooms, record, peer_rank, record->rank, SGLANG_REGISTRATION);
    struct sglang_registration *g = &message->u.registration;
    g->frames = 19;
    g->origin = own_origin(rooms, record->rank);
    g->kv_pointers = (struct sglang_list){rooms->pointers, rooms->entries, 8};
    g->aux_pointers.width = 8;
    g->kv_layer_ids = (struct sglang_list){rooms->layer_ids, rooms->entries, 4};
    g->staging_layer_ids.width = 8;
    g->engine_rank = record->rank;
    g->tp_size = rooms->options.ranks;
    g->kv_item_bytes = rooms_item_bytes(&rooms->options.geometry, rooms->options.ranks);
    g->dcp_size = 1;
}

/* The room cannot go over this wire: its engine hears so as if prefill had refused it. */
static void refuse(struct sglang_rooms *rooms, const struct record *record, uint16_t http,
                   struct sm_text reason)
{
    struct sm_message *said = rooms_say(rooms, record, SM_IN_STATUS);
    rooms->counters.refused++;
    if (said != NULL) {
        said->outcome = SM_OUTCOME_FAILED;
        said->cause = (struct sm_cause){http, SM_ORIGIN_NODE, true, reason};
        said->drained = true;
    }
}

static void answer(struct sglang_rooms *rooms, const struct record *record, uint32_t kind)
{
    (void)rooms_say(rooms, record, kind);
}

/* ---- orders
 * --------------------------------------------------------------------------------------------- */

static uint32_t page_count(const struct sm_runs *runs)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        count += runs->at[i].count;
    }
    return count;
}

/* Packs page numbers as the wire has them; false: one is too large for it, or there is no memory.
 */
static bool pack_pages(struct sglang_rooms *rooms, const struct sm_runs *runs)
{
    const size_t bytes = (size_t)page_count(runs) * 4u;
    if (bytes > rooms->pages_capacity) {
        unsigned char *grown = realloc(rooms->pages, bytes);
        if (grown == NULL) {
            return false;
        }
        rooms->pages = grown;
        rooms->pages_capacity = bytes;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        if (runs->at[i].first > INT32_MAX || runs->at[i].count > INT32_MAX - runs->at[i].first) {
            return false;
        }
        for (uint32_t k = 0; k < runs->at[i].count; k++) {
            const uint32_t page = runs->at[i].first + k;
            for (uint32_t b = 0; b < 4u; b++) {
                rooms->pages[at++] = (unsigned char)(page >> (8u * b));
            }
        }
    }
    return true;
}

/* What SGLang's decode looks at in the answer of /route; false: refused. */
static bool route_fits(struct sglang_rooms *rooms, const struct record *record)
{
    const struct peer *peer = rooms->peers[record->peer];
    const struct sm_geometry *own = &rooms->options.geometry;
    if (peer->page_tokens != own->page_tokens) {
        refuse(rooms, record, 409,
               rooms_reason(rooms,
                            "geometry differs: page_tokens is %u at prefill node %s, %u here",
                            peer->page_tokens, peer->name, own->page_tokens));
        return false;
    }
    if (peer->dtype != own->dtype) {
        refuse(rooms, record, 409,
               rooms_reason(rooms, "geometry differs: dtype is %u at prefill node %s, %u here",
                            peer->dtype, peer->name, own->dtype));
        return false;
    }
    return true;
}

static void send_metadata(struct sglang_rooms *rooms, struct record *record,
                          const struct sm_message *m)
{
    const bool latent = rooms_latent(&rooms->options.geometry);
    const uint32_t pages = page_count(&m->pages);
    bool first = true;
    for (uint32_t source = 0; source < SM_RANKS_MAX; source++) {
        if ((m->sources >> source & 1u) == 0) {
            continue;
        }
        registered(rooms, record, source);
        struct sglang_message *message =
            rooms_send(rooms, record, source, record->rank, SGLANG_METADATA);
        struct sglang_metadata *d = &message->u.metadata;
        const bool dummy = latent && !first; /* its ranks hold the same bytes: one writes */
        d->frames = 10;
        d->origin = own_origin(rooms, record->rank);
        d->pages = (struct sglang_list){rooms->pages, dummy ? 0 : pages, 4};
        d->has_aux = !dummy && m->aux_slot != SM_AUX_NONE;
        d->aux_slot = d->has_aux ? m->aux_slot : 0;
        d->state_indices.width = 4;
        d->device_pages.width = 4;
        d->required = m->required[source] > 0 ? m->required[source] : 1u;
        d->has_prefix = true;
        d->prefix_tokens = (uint64_t)m->prefix_pages * rooms->options.geometry.page_tokens;
        first = false;
    }
    record->published = m->sources;
    record->targets = m->sources;
}

/* The record of this life; NULL: the life before has not drained, or no record is free. */
static struct record *record_of(struct sglang_rooms *rooms, const struct sm_effect *effect)
{
    const struct sm_message *m = &effect->u.message;
    struct record *record = rooms_find(rooms, true, effect->room, effect->peer, m->decode_rank);
    if (record != NULL && rooms_same_life(&record->life, &m->life)) {
        return record;
    }
    if (record != NULL && record->published != 0 && !record->finished && !record->waited) {
        /* On a new connection the machine aborts the old life at once, if that is not over: who has
         * waited for that once need not wait longer. */
        record->waited = record->old_link;
        rooms->counters.held++;
        return NULL;
    }
    const bool before = record != NULL && !record->old_link && (record->aborted | record->before);
    if (record == NULL) {
        record = rooms_add(rooms, true, effect->room, effect->peer, m->decode_rank);
    }
    if (record == NULL) {
        return NULL;
    }
    record->life = m->life;
    record->published = 0;
    record->targets = 0;
    record->aborted = 0;
    record->done = 0;
    record->acked = 0;
    record->old_link = false;
    record->waited = false;
    record->finished = false;
    record->before = before;
    return record;
}

static void order_prepare(struct sglang_rooms *rooms, const struct sm_effect *effect)
{
    const struct sm_message *m = &effect->u.message;
    struct record probe;
    memset(&probe, 0, sizeof probe);
    probe.room = effect->room;
    probe.peer = effect->peer;
    probe.rank = m->decode_rank;
    probe.life = m->life;
    if (effect->room > SGLANG_ROOM_MAX) {
        refuse(rooms, &probe, 400,
               rooms_reason(rooms, "SGLang's wire has no room numbers from 2^63 on"));
        return;
    }
    if (m->pages.count == 0 && m->aux_slot == SM_AUX_NONE) {
        refuse(rooms, &probe, 400,
               rooms_reason(rooms, "a room without pages needs a metadata slot on SGLang's wire"));
        return;
    }
    if (!route_fits(rooms, &probe)) {
        return;
    }
    const uint64_t full_before = rooms->counters.held;
    struct record *record = record_of(rooms, effect);
    if (record == NULL) {
        if (rooms->counters.held == full_before) {
            refuse(rooms, &probe, 503,
                   rooms_reason(rooms, "the table of rooms with SGLang's peers is full"));
        }
        return;
    }
    if (record->published != 0 && !record->old_link) {
        answer(rooms, record, SM_IN_PREPARED); /* said again: the machine had not taken it */
        return;
    }
    if (!pack_pages(rooms, &m->pages)) {
        refuse(rooms, record, 400, rooms_reason(rooms, "SGLang's wire has no pages from 2^31 on"));
        record->finished = true;
        return;
    }
    record->old_link = false;
    send_metadata(rooms, record, m);
    answer(rooms, record, SM_IN_PREPARED);
}

static bool all_drained(const struct record *record)
{
    return (record->targets & ~(record->acked | record->done)) == 0;
}

static void order_abort(struct sglang_rooms *rooms, const struct sm_effect *effect)
{
    const struct sm_message *m = &effect->u.message;
    const uint64_t held = rooms->counters.held;
    struct record probe;
    memset(&probe, 0, sizeof probe);
    probe.room = effect->room;
    probe.peer = effect->peer;
    probe.rank = m->decode_rank;
    probe.life = m->life;
    if (m->life.epoch != rooms->options.epoch) {
        /* Of a process before this one: its memory went with it, and prefill has seen it go. An
         * ABORT would come from a new session, and there be taken for a new life's. */
        answer(rooms, &probe, SM_IN_DRAINED);
        return;
    }
    struct record *record = effect->room <= SGLANG_ROOM_MAX ? record_of(rooms, effect) : NULL;
    if (record == NULL) {
        if (rooms->counters.held == held) {
            answer(rooms, &probe, SM_IN_DRAINED); /* it was never announced */
        }
        return;
    }
    if (record->targets == 0) {
        /* Not announced yet: prefill's engine may wait for it all the same. */
        record->targets =
            rooms_sources(record->rank, rooms->options.ranks, rooms->peers[record->peer]->ranks);
    }
    if (all_drained(record)) {
        record->finished = true;
        answer(rooms, record, SM_IN_DRAINED);
        return;
    }
    for (uint32_t target = 0; target < SM_RANKS_MAX; target++) {
        if (((record->targets & ~(record->acked | record->done)) >> target & 1u) == 0) {
            continue;
        }
        if (record->aborted != 0) {
            /* Nobody has answered: perhaps it does not know whom to answer. */
            rooms->peers[record->peer]->registered[record->rank] &= ~(UINT64_C(1) << target);
        }
        registered(rooms, record, target);
        struct sglang_message *message =
            rooms_send(rooms, record, target, record->rank, SGLANG_ABORT);
        message->u.abort.has_origin = true;
        message->u.abort.origin = own_origin(rooms, record->rank);
        message->u.abort.has_token = true;
        message->u.abort.has_generation = true;
        message->u.abort.generation = m->life.generation;
    }
    record->published |= record->targets; /* the next life waits for the answer */
    record->old_link = false;
    record->waited = false;
    record->aborted = record->targets;
}

void rooms_decode_order(struct sglang_rooms *rooms, const struct sm_effect *effect)
{
    if (effect->u.message.decode_rank >= rooms->options.ranks) {
        return;
    }
    if (effect->kind == SM_FX_SEND_PREPARE) {
        order_prepare(rooms, effect);
    } else {
        order_abort(rooms, effect);
    }
}

/* ---- arrivals
 * ------------------------------------------------------------------------------------------- */

static void take_failed(struct sglang_rooms *rooms, const struct record *record,
                        const struct sglang_status *status)
{
    struct sm_message *said = rooms_say(rooms, record, SM_IN_STATUS);
    if (said == NULL) {
        return;
    }
    said->outcome = SM_OUTCOME_FAILED;
    said->sources = UINT64_C(1) << (status->rank & 63u);
    said->cause.origin = SM_ORIGIN_PEER;
    said->cause.http = status->has_http ? status->http : 0;
    said->cause.typed = status->has_http || (status->has_reason && status->reason.size > 0);
    if (status->has_reason && status->reason.size > 0) {
        const size_t size = text_clean(status->reason.bytes, status->reason.size, rooms->reason,
                                       sizeof rooms->reason);
        said->cause.reason = (struct sm_text){rooms->reason, (uint32_t)size};
    } else {
        said->cause.reason =
            rooms_reason(rooms, "prefill node %s has failed the room and sent no cause",
                         rooms->peers[record->peer]->name);
    }
}

static void take_succeeded(struct sglang_rooms *rooms, struct record *record, uint32_t rank)
{
    const uint64_t bit = UINT64_C(1) << rank;
    if ((record->targets & bit) == 0 || (record->done & bit) != 0) {
        rooms->counters.stale++; /* not asked, or said before: ranks are counted once */
        return;
    }
    record->done |= rooms_latent(&rooms->options.geometry) ? record->targets : bit;
    struct sm_message *said = rooms_say(rooms, record, SM_IN_STATUS);
    if (said != NULL) {
        said->outcome = SM_OUTCOME_SUCCEEDED;
        said->sources = record->done;
    }
    if (all_drained(record)) {
        record->finished = true;
        if (record->aborted != 0) {
            answer(rooms, record, SM_IN_DRAINED);
        }
    }
}

/* What a peer says is about its own room of that number: the rank may have opened a newer one with
 * another peer while this one drains. A stranger's word is about the newest. */
static struct record *record_for(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                                 uint64_t room)
{
    return arrival->peer == SM_NONE ? rooms_find_rank(rooms, room, arrival->rank)
                                    : rooms_find(rooms, true, room, arrival->peer, arrival->rank);
}

static void take_status(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                        const struct sglang_message *message)
{
    const struct sglang_status *status = &message->u.status;
    struct record *record = record_for(rooms, arrival, message->room);
    if (record == NULL || record->published == 0 ||
        status->rank >= rooms->peers[record->peer]->ranks) {
        rooms->counters.stale++;
    } else if (!status->succeeded) {
        take_failed(rooms, record, status);
    } else if (arrival->peer == SM_NONE) {
        rooms->counters.stranger++;
    } else {
        take_succeeded(rooms, record, status->rank);
    }
}

static void take_ack(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                     const struct sglang_message *message)
{
    const struct sglang_ack *ack = &message->u.ack;
    if (arrival->peer == SM_NONE) {
        rooms->counters.stranger++; /* pages would be reused on its word */
        return;
    }
    struct record *record = record_for(rooms, arrival, message->room);
    if (record == NULL || !ack->has_rank || ack->rank >= SM_RANKS_MAX ||
        (record->aborted >> ack->rank & 1u) == 0 ||
        (ack->has_generation ? ack->generation != record->life.generation : record->before)) {
        rooms->counters.stale++; /* of another abort, or of none: it proves nothing */
        return;
    }
    record->acked |= UINT64_C(1) << ack->rank;
    if (all_drained(record) && !record->finished) {
        record->finished = true;
        answer(rooms, record, SM_IN_DRAINED);
    }
}

void rooms_decode_take(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                       const struct sglang_message *message)
{
    if (message->kind == SGLANG_STATUS) {
        take_status(rooms, arrival, message);
    } else if (message->kind == SGLANG_ABORT_ACK) {
        take_ack(rooms, arrival, message);
    } else {
        rooms->counters.unused++; /* numbers in it are never used as such */
    }
}
