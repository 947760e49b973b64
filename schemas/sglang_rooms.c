/* SPDX-License-Identifier: Apache-2.0 */
/* The table of rooms, peers, and the answers of one call. */
#include "sglang_rooms_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table
 * ------------------------------------------------------------------------------------------ */

static uint32_t chain_of(const struct sglang_rooms *rooms, uint64_t room)
{
    return (uint32_t)((room * UINT64_C(0x9e3779b97f4a7c15)) >> 40) & rooms->chain_mask;
}

struct record *rooms_find(struct sglang_rooms *rooms, bool decode, uint64_t room, uint32_t peer,
                          uint32_t rank)
{
    for (uint32_t at = rooms->chains[chain_of(rooms, room)]; at != NO_RECORD;
         at = rooms->records[at].next) {
        struct record *record = &rooms->records[at];
        if (record->room == room && record->peer == peer && record->rank == rank &&
            record->side_decode == decode) {
            return record;
        }
    }
    return NULL;
}

struct record *rooms_find_rank(struct sglang_rooms *rooms, uint64_t room, uint32_t rank)
{
    struct record *found = NULL;
    for (uint32_t at = rooms->chains[chain_of(rooms, room)]; at != NO_RECORD;
         at = rooms->records[at].next) {
        struct record *record = &rooms->records[at];
        const bool newer = found == NULL || (found->life.epoch == record->life.epoch
                                                 ? found->life.generation < record->life.generation
                                                 : found->life.epoch < record->life.epoch);
        if (record->room == room && record->rank == rank && record->side_decode && newer) {
            found = record;
        }
    }
    return found;
}

static void drop(struct sglang_rooms *rooms, uint32_t index)
{
    uint32_t *link = &rooms->chains[chain_of(rooms, rooms->records[index].room)];
    while (*link != index) {
        link = &rooms->records[*link].next;
    }
    *link = rooms->records[index].next;
    memset(&rooms->records[index], 0, sizeof rooms->records[index]);
    rooms->records[index].next = rooms->free_first;
    rooms->free_first = index;
}

/*
 * Forgets one room that needs no memory any more: it is over, or (old) of a connection before this
 * one. Of those the machine speaks again at once, if it does; the rest ended with their connection,
 * and nobody would ever say so.
 */
static void make_room(struct sglang_rooms *rooms, bool old)
{
    for (uint32_t i = 0; i < rooms->options.rooms_max && rooms->free_first == NO_RECORD; i++) {
        const uint32_t index = rooms->hand;
        const struct record *record = &rooms->records[index];
        rooms->hand = (rooms->hand + 1u) % rooms->options.rooms_max;
        if (record->used && (old ? record->old_link : record->finished)) {
            drop(rooms, index);
        }
    }
}

struct record *rooms_add(struct sglang_rooms *rooms, bool decode, uint64_t room, uint32_t peer,
                         uint32_t rank)
{
    if (rooms->free_first == NO_RECORD && rooms->record_count < rooms->options.rooms_max) {
        rooms->records[rooms->record_count].next = NO_RECORD;
        rooms->free_first = rooms->record_count++;
    }
    if (rooms->free_first == NO_RECORD) {
        make_room(rooms, false);
    }
    if (rooms->free_first == NO_RECORD) {
        make_room(rooms, true);
    }
    const uint32_t index = rooms->free_first;
    if (index == NO_RECORD) {
        return NULL;
    }
    struct record *record = &rooms->records[index];
    uint32_t *chain = &rooms->chains[chain_of(rooms, room)];
    rooms->free_first = record->next;
    memset(record, 0, sizeof *record);
    record->room = room;
    record->peer = peer;
    record->rank = rank;
    record->side_decode = decode;
    record->used = true;
    record->next = *chain;
    *chain = index;
    return record;
}

/* ---- answers
 * -------------------------------------------------------------------------------------------- */

struct sglang_message *rooms_send(struct sglang_rooms *rooms, const struct record *record,
                                  uint32_t peer_rank, uint32_t rank, enum sglang_kind kind)
{
    /* Two for each of 64 ranks are enough for every order and every arrival. */
    struct send *send =
        &rooms->sends[rooms->send_count < SENDS_MAX ? rooms->send_count++ : SENDS_MAX - 1u];
    memset(send, 0, sizeof *send);
    send->peer = record->peer;
    send->peer_rank = peer_rank;
    send->rank = rank;
    send->life = record->life;
    send->message.kind = kind;
    send->message.room = kind == SGLANG_REGISTRATION ? 0 : record->room;
    rooms->counters.sent++;
    return &send->message;
}

struct sm_message *rooms_say(struct sglang_rooms *rooms, const struct record *record, uint32_t kind)
{
    const struct peer *peer = rooms->peers[record->peer];
    if (rooms->input_count == INPUTS_MAX) {
        return NULL;
    }
    struct sm_input *input = &rooms->inputs[rooms->input_count++];
    memset(input, 0, sizeof *input);
    input->kind = kind;
    input->room = record->room;
    input->u.message.peer = (struct sm_text){peer->name, (uint32_t)strlen(peer->name)};
    input->u.message.epoch = peer->epoch;
    input->u.message.message.life = record->life;
    input->u.message.message.decode_rank = record->rank;
    input->u.message.message.aux_slot = SM_AUX_NONE;
    input->u.message.message.cause.reason = (struct sm_text){"", 0};
    return &input->u.message.message;
}

struct sm_text rooms_reason(struct sglang_rooms *rooms, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(rooms->reason, sizeof rooms->reason, format, arguments);
    va_end(arguments);
    return (struct sm_text){rooms->reason, (uint32_t)strlen(rooms->reason)};
}

bool sglang_rooms_next_send(struct sglang_rooms *rooms, struct sglang_send *out)
{
    if (rooms->send_next == rooms->send_count) {
        return false;
    }
    const struct send *send = &rooms->sends[rooms->send_next++];
    *out =
        (struct sglang_send){send->peer, send->peer_rank, send->rank, send->life, &send->message};
    return true;
}

bool sglang_rooms_next_input(struct sglang_rooms *rooms, struct sm_input *out)
{
    if (rooms->input_next == rooms->input_count) {
        return false;
    }
    *out = rooms->inputs[rooms->input_next++];
    return true;
}

static void begin(struct sglang_rooms *rooms)
{
    rooms->send_count = 0;
    rooms->send_next = 0;
    rooms->input_count = 0;
    rooms->input_next = 0;
}

/* ---- small rules
 * ---------------------------------------------------------------------------------------- */

/* Prefill ranks that fill a decode rank; 0: the sizes do not divide. */
uint64_t rooms_sources(uint32_t rank, uint32_t decode_ranks, uint32_t prefill_ranks)
{
    if (decode_ranks == 0 || prefill_ranks == 0 || rank >= decode_ranks) {
        return 0;
    }
    if (decode_ranks >= prefill_ranks) {
        return decode_ranks % prefill_ranks == 0
                   ? UINT64_C(1) << (rank / (decode_ranks / prefill_ranks))
                   : 0;
    }
    const uint32_t each = prefill_ranks / decode_ranks;
    const uint64_t mask = each >= 64u ? UINT64_MAX : (UINT64_C(1) << each) - 1u;
    return prefill_ranks % decode_ranks == 0 ? mask << (rank * each) : 0;
}

bool rooms_same_life(const struct sm_life *a, const struct sm_life *b)
{
    return a->node == b->node && a->epoch == b->epoch && a->generation == b->generation;
}

bool rooms_latent(const struct sm_geometry *geometry)
{
    return geometry->kv_heads == 1u && geometry->planes == 1u;
}

struct sglang_text rooms_text(const char *text)
{
    return (struct sglang_text){text, (uint32_t)strlen(text)};
}

/* Bytes of one page in one entry at a rank of so many. */
uint64_t rooms_item_bytes(const struct sm_geometry *geometry, uint32_t ranks)
{
    const uint64_t heads = geometry->kv_heads > ranks ? geometry->kv_heads / ranks : 1u;
    return (uint64_t)geometry->page_tokens * geometry->item_bytes * heads;
}

/* ---- life and calls
 * ------------------------------------------------------------------------------------- */

static bool make_tables(struct sglang_rooms *rooms)
{
    const uint32_t max = rooms->options.rooms_max;
    uint32_t chains = 16;
    while (chains < max && chains < (1u << 24)) {
        chains *= 2u;
    }
    rooms->chain_mask = chains - 1u;
    rooms->free_first = NO_RECORD;
    rooms->records = malloc(max * sizeof *rooms->records); /* touched as they are needed */
    rooms->chains = malloc(chains * sizeof *rooms->chains);
    rooms->peers = calloc(rooms->options.peers_max, sizeof *rooms->peers);
    rooms->pointers = calloc(rooms->entries, 8);
    rooms->layer_ids = calloc(rooms->entries, 4);
    if (rooms->records == NULL || rooms->chains == NULL || rooms->peers == NULL ||
        rooms->pointers == NULL || rooms->layer_ids == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < chains; i++) {
        rooms->chains[i] = NO_RECORD;
    }
    const uint32_t layers = rooms->options.geometry.layers;
    for (uint32_t i = 0; i < rooms->entries; i++) {
        for (uint32_t k = 0; k < 4u; k++) {
            rooms->layer_ids[i * 4u + k] = (unsigned char)((i % layers) >> (8u * k));
        }
    }
    return true;
}

enum status sglang_rooms_create(const struct sglang_rooms_options *options,
                                struct sglang_rooms **out_rooms, struct status_detail *out_detail)
{
    const uint64_t entries = (uint64_t)options->geometry.layers * options->geometry.planes;
    if (options->ranks == 0 || options->ranks > SM_RANKS_MAX || options->rooms_max == 0 ||
        options->peers_max == 0 || entries == 0 || options->port == 0 ||
        options->port > 65535u - SM_RANKS_MAX || strlen(options->ip) > SGLANG_TEXT_BYTES_MAX - 6u) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "SGLang's wire needs ranks, rooms, peers, a geometry, an address and "
                           "ports for all ranks");
    }
    struct sglang_rooms *rooms = calloc(1, sizeof *rooms);
    if (rooms == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for SGLang's rooms");
    }
    rooms->options = *options;
    rooms->options.ip = rooms->ip;
    (void)snprintf(rooms->ip, sizeof rooms->ip, "%s", options->ip);
    rooms->entries = entries > ENTRIES_MAX ? ENTRIES_MAX : (uint32_t)entries;
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        (void)snprintf(rooms->sessions[rank], sizeof rooms->sessions[rank], "%s:%u", rooms->ip,
                       options->port + rank);
    }
    if (!make_tables(rooms)) {
        sglang_rooms_destroy(rooms);
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for SGLang's rooms");
    }
    *out_rooms = rooms;
    return STATUS_OK;
}

void sglang_rooms_destroy(struct sglang_rooms *rooms)
{
    if (rooms == NULL) {
        return;
    }
    for (uint32_t i = 0; rooms->peers != NULL && i < rooms->options.peers_max; i++) {
        free(rooms->peers[i]);
    }
    free(rooms->peers);
    free(rooms->records);
    free(rooms->chains);
    free(rooms->runs);
    free(rooms->pages);
    free(rooms->pointers);
    free(rooms->layer_ids);
    free(rooms);
}

void sglang_rooms_peer_up(struct sglang_rooms *rooms, const struct sglang_rooms_peer *up)
{
    if (up->peer >= rooms->options.peers_max || up->ranks == 0 || up->ranks > SM_RANKS_MAX) {
        return;
    }
    struct peer *peer = rooms->peers[up->peer];
    if (peer == NULL) {
        peer = calloc(1, sizeof *peer);
        if (peer == NULL) {
            return; /* its messages are a stranger's */
        }
        rooms->peers[up->peer] = peer;
    }
    memset(peer, 0, sizeof *peer);
    peer->known = true;
    (void)snprintf(peer->name, sizeof peer->name, "%s", up->name);
    peer->node_id = up->node_id;
    peer->epoch = up->epoch;
    peer->ranks = up->ranks;
    peer->page_tokens = up->page_tokens;
    peer->dtype = up->dtype;
    for (uint32_t i = 0; i < rooms->record_count; i++) {
        if (rooms->records[i].used && rooms->records[i].peer == up->peer) {
            rooms->records[i].old_link = true;
            rooms->records[i].before = false; /* what was on the old connection cannot come here */
        }
    }
}

void sglang_rooms_order(struct sglang_rooms *rooms, const struct sm_effect *effect, uint64_t now_ns)
{
    (void)now_ns;
    begin(rooms);
    if (effect->peer >= rooms->options.peers_max || rooms->peers[effect->peer] == NULL ||
        effect->u.message.decode_rank >= SM_RANKS_MAX) {
        return;
    }
    switch (effect->kind) {
    case SM_FX_SEND_PREPARE:
    case SM_FX_SEND_ABORT:
        rooms_decode_order(rooms, effect);
        break;
    case SM_FX_SEND_STATUS:
    case SM_FX_SEND_DRAINED:
        rooms_prefill_order(rooms, effect);
        break;
    default:
        break; /* prepared, ack, recovered: this wire has no word for them */
    }
}

void sglang_rooms_take(struct sglang_rooms *rooms, const struct sglang_arrival *given,
                       const struct sglang_frame *frames, size_t count, uint64_t now_ns)
{
    struct sglang_arrival arrival = *given;
    struct sglang_message message;
    struct sglang_error error;
    begin(rooms);
    rooms->counters.received++;
    if (arrival.peer >= rooms->options.peers_max || rooms->peers[arrival.peer] == NULL) {
        arrival.peer = SM_NONE;
    }
    const bool decode = arrival.side == SM_DECODE;
    const enum status status = sglang_decode(decode ? SGLANG_AT_DECODE : SGLANG_AT_PREFILL, frames,
                                             count, &message, &error);
    if (status != STATUS_OK) {
        *(status == STATUS_UNSUPPORTED ? &rooms->counters.unknown : &rooms->counters.malformed) +=
            1u;
    } else if (arrival.rank >= rooms->options.ranks) {
        rooms->counters.stale++;
    } else if (decode) {
        rooms_decode_take(rooms, &arrival, &message);
    } else {
        rooms_prefill_take(rooms, &arrival, &message, now_ns);
    }
}

void sglang_rooms_counters(const struct sglang_rooms *rooms, struct sglang_rooms_counters *out)
{
    *out = rooms->counters;
}
