/* SPDX-License-Identifier: Apache-2.0 */
/* Room messages, engine commands and their parts: what the links and the journal have in common. */
#include "codec_private.h"

/* ---- parts
 * ---------------------------------------------------------------------------------------- */

enum status codec_runs_fill(const struct sm_runs *runs, struct codec_arena *arena,
                            Stateroom__Journal__Run ***out_wire)
{
    *out_wire = NULL;
    if (runs->count == 0) {
        return STATUS_OK;
    }
    Stateroom__Journal__Run **list = codec_arena_take(arena, runs->count * sizeof *list);
    Stateroom__Journal__Run *records = codec_arena_take(arena, runs->count * sizeof *records);
    if (list == NULL || records == NULL) {
        return STATUS_TOO_LARGE;
    }
    for (uint32_t i = 0; i < runs->count; i++) {
        stateroom__journal__run__init(&records[i]);
        records[i].first = runs->at[i].first;
        records[i].count = runs->at[i].count;
        list[i] = &records[i];
    }
    *out_wire = list;
    return STATUS_OK;
}

enum status codec_runs_read(Stateroom__Journal__Run **wire, size_t count, struct codec_arena *arena,
                            struct sm_runs *out_runs)
{
    out_runs->at = NULL;
    out_runs->count = 0;
    if (count == 0) {
        return STATUS_OK;
    }
    if (count > SM_OUTPUT_RUNS_MAX) {
        return STATUS_TOO_LARGE;
    }
    struct sm_run *runs = codec_arena_take(arena, count * sizeof *runs);
    if (runs == NULL) {
        return STATUS_TOO_LARGE;
    }
    for (size_t i = 0; i < count; i++) {
        runs[i].first = wire[i]->first;
        runs[i].count = wire[i]->count;
    }
    out_runs->at = runs;
    out_runs->count = (uint32_t)count;
    return STATUS_OK;
}

enum status codec_cause_fill(const struct sm_cause *cause, struct codec_arena *arena,
                             Stateroom__Journal__Cause **out_wire)
{
    *out_wire = NULL;
    if (cause->http == 0 && cause->origin == 0 && !cause->typed && cause->reason.size == 0) {
        return STATUS_OK;
    }
    CODEC_NEW(arena, Stateroom__Journal__Cause, stateroom__journal__cause__init, *out_wire);
    (*out_wire)->http = cause->http;
    (*out_wire)->origin = cause->origin;
    (*out_wire)->typed = cause->typed;
    (*out_wire)->reason = codec_bytes_of_text(cause->reason);
    return STATUS_OK;
}

struct sm_cause codec_cause_read(const Stateroom__Journal__Cause *wire)
{
    struct sm_cause cause = {0, SM_ORIGIN_NONE, false, {"", 0}};
    if (wire != NULL) {
        cause.http = wire->http > 999u ? 500u : (uint16_t)wire->http;
        cause.origin = wire->origin >= SM_ORIGIN_COUNT ? SM_ORIGIN_NONE : (uint8_t)wire->origin;
        cause.typed = wire->typed != 0;
        cause.reason = codec_text_of_bytes(wire->reason);
        /* A longer text is cut by the machine; what could never be one is not even looked at. */
        if (cause.reason.size > 8u * SM_REASON_BYTES_MAX) {
            cause.reason.size = 8u * SM_REASON_BYTES_MAX;
        }
    }
    return cause;
}

enum status codec_geometry_fill(const struct sm_geometry *geometry, struct codec_arena *arena,
                                Stateroom__Journal__Geometry **out_wire)
{
    CODEC_NEW(arena, Stateroom__Journal__Geometry, stateroom__journal__geometry__init, *out_wire);
    (*out_wire)->page_tokens = geometry->page_tokens;
    (*out_wire)->layers = geometry->layers;
    (*out_wire)->kv_heads = geometry->kv_heads;
    (*out_wire)->item_bytes = geometry->item_bytes;
    (*out_wire)->planes = geometry->planes;
    (*out_wire)->dtype = geometry->dtype;
    (*out_wire)->layer_first = geometry->layer_first;
    (*out_wire)->layer_count = geometry->layer_count;
    (*out_wire)->stages = geometry->stages;
    return STATUS_OK;
}

struct sm_geometry codec_geometry_read(const Stateroom__Journal__Geometry *wire)
{
    struct sm_geometry geometry = {0, 0, 0, 0, 0, 0, 0, 0, 0};
    if (wire != NULL) {
        geometry.page_tokens = wire->page_tokens;
        geometry.layers = wire->layers;
        geometry.kv_heads = wire->kv_heads;
        geometry.item_bytes = wire->item_bytes;
        geometry.planes = wire->planes;
        geometry.dtype = wire->dtype;
        geometry.layer_first = wire->layer_first;
        geometry.layer_count = wire->layer_count;
        geometry.stages = wire->stages;
    }
    return geometry;
}

/* Slots are numbered from 0 and may be missing; on the wire 0 is missing. */
static uint32_t slot_plus_1(uint32_t slot)
{
    return slot == SM_AUX_NONE ? 0u : slot + 1u;
}

static uint32_t slot_of(uint32_t plus_1)
{
    return plus_1 == 0 ? SM_AUX_NONE : plus_1 - 1u;
}

/* ---- room messages
 * ---------------------------------------------------------------------------------- */

static size_t required_size(const struct sm_message *message)
{
    size_t size = SM_RANKS_MAX;
    while (size > 0 && message->required[size - 1u] == 0) {
        size--;
    }
    return size;
}

enum status codec_message_fill(const struct sm_message *message, struct codec_arena *arena,
                               Stateroom__Journal__RoomMessage **out_wire)
{
    Stateroom__Journal__RoomMessage *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__RoomMessage, stateroom__journal__room_message__init, wire);
    if (message->life.node != 0 || message->life.epoch != 0 || message->life.generation != 0) {
        CODEC_NEW(arena, Stateroom__Journal__Life, stateroom__journal__life__init, wire->life);
        wire->life->node = message->life.node;
        wire->life->epoch = message->life.epoch;
        wire->life->generation = message->life.generation;
    }
    wire->decode_rank = message->decode_rank;
    wire->sources = message->sources;
    wire->required.len = required_size(message);
    wire->required.data = (uint8_t *)(uintptr_t)message->required;
    TRY(codec_runs_fill(&message->pages, arena, &wire->pages));
    wire->n_pages = message->pages.count;
    wire->prefix_pages = message->prefix_pages;
    wire->aux_slot_plus_1 = slot_plus_1(message->aux_slot);
    wire->decode_ranks = message->decode_ranks;
    wire->deadline_left_ns = message->deadline_left_ns;
    if (message->geometry.page_tokens != 0) {
        TRY(codec_geometry_fill(&message->geometry, arena, &wire->geometry));
    }
    wire->outcome = message->outcome;
    TRY(codec_cause_fill(&message->cause, arena, &wire->cause));
    wire->drained = message->drained;
    *out_wire = wire;
    return STATUS_OK;
}

enum status codec_message_read(const Stateroom__Journal__RoomMessage *wire,
                               struct codec_arena *arena, struct sm_message *out)
{
    memset(out, 0, sizeof *out);
    out->cause.reason.bytes = "";
    out->aux_slot = SM_AUX_NONE;
    if (wire == NULL) {
        return STATUS_OK;
    }
    if (wire->required.len > SM_RANKS_MAX || wire->outcome >= SM_OUTCOME_COUNT ||
        wire->decode_rank >= SM_RANKS_MAX) {
        return STATUS_MALFORMED;
    }
    if (wire->life != NULL) {
        out->life.node = wire->life->node;
        out->life.epoch = wire->life->epoch;
        out->life.generation = wire->life->generation;
    }
    out->decode_rank = wire->decode_rank;
    out->sources = wire->sources;
    if (wire->required.len > 0) {
        memcpy(out->required, wire->required.data, wire->required.len);
    }
    TRY(codec_runs_read(wire->pages, wire->n_pages, arena, &out->pages));
    out->prefix_pages = wire->prefix_pages;
    out->aux_slot = slot_of(wire->aux_slot_plus_1);
    out->decode_ranks = wire->decode_ranks;
    out->deadline_left_ns = wire->deadline_left_ns;
    out->geometry = codec_geometry_read(wire->geometry);
    out->outcome = wire->outcome;
    out->cause = codec_cause_read(wire->cause);
    out->drained = wire->drained != 0;
    return STATUS_OK;
}

/* ---- commands
 * ----------------------------------------------------------------------------------------- */

enum status codec_command_fill(const struct sm_in_command *command, struct codec_arena *arena,
                               Stateroom__Journal__Command **out_wire)
{
    Stateroom__Journal__Command *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__Command, stateroom__journal__command__init, wire);
    wire->request = command->request;
    wire->rank = command->rank;
    wire->side = command->side;
    wire->peer = codec_string(arena, command->peer);
    if (wire->peer == NULL) {
        return STATUS_TOO_LARGE;
    }
    TRY(codec_runs_fill(&command->pages, arena, &wire->pages));
    wire->n_pages = command->pages.count;
    wire->prefix_pages = command->prefix_pages;
    wire->aux_slot_plus_1 = slot_plus_1(command->aux_slot);
    wire->destinations = command->destinations;
    wire->deadline_ns = command->deadline_ns;
    wire->last = command->last;
    TRY(codec_cause_fill(&command->cause, arena, &wire->cause));
    wire->generation = command->generation;
    *out_wire = wire;
    return STATUS_OK;
}

enum status codec_command_read(const Stateroom__Journal__Command *wire, struct codec_arena *arena,
                               struct sm_in_command *out)
{
    memset(out, 0, sizeof *out);
    out->peer.bytes = "";
    out->cause.reason.bytes = "";
    out->aux_slot = SM_AUX_NONE;
    if (wire == NULL) {
        return STATUS_MALFORMED;
    }
    out->request = wire->request;
    out->rank = wire->rank;
    out->side = wire->side;
    out->peer = codec_text_of_string(wire->peer);
    if (out->peer.size > SM_NAME_BYTES_MAX) {
        return STATUS_MALFORMED;
    }
    TRY(codec_runs_read(wire->pages, wire->n_pages, arena, &out->pages));
    out->prefix_pages = wire->prefix_pages;
    out->aux_slot = slot_of(wire->aux_slot_plus_1);
    out->destinations = wire->destinations;
    out->deadline_ns = wire->deadline_ns;
    out->last = wire->last != 0;
    out->cause = codec_cause_read(wire->cause);
    out->generation = wire->generation;
    return STATUS_OK;
}
