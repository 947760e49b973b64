/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs as the journal keeps them. */
#include "codec_private.h"

/* ---- node_started
 * ---------------------------------------------------------------------------------- */

enum status codec_bounds_fill(const struct sm_bounds *b, struct codec_arena *arena,
                              Stateroom__Journal__Bounds **out_wire)
{
    Stateroom__Journal__Bounds *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__Bounds, stateroom__journal__bounds__init, wire);
    wire->halves_max = b->halves_max;
    wire->ranks_max = b->ranks_max;
    wire->destinations_max = b->destinations_max;
    wire->runs_max = b->runs_max;
    wire->writes_max = b->writes_max;
    wire->tombstones_max = b->tombstones_max;
    wire->reasons_max = b->reasons_max;
    wire->peers_max = b->peers_max;
    wire->pages_max = b->pages_max;
    wire->aux_slots_max = b->aux_slots_max;
    *out_wire = wire;
    return STATUS_OK;
}

struct sm_bounds codec_bounds_read(const Stateroom__Journal__Bounds *wire)
{
    struct sm_bounds b;
    memset(&b, 0, sizeof b);
    if (wire != NULL) {
        b.halves_max = wire->halves_max;
        b.ranks_max = wire->ranks_max;
        b.destinations_max = wire->destinations_max;
        b.runs_max = wire->runs_max;
        b.writes_max = wire->writes_max;
        b.tombstones_max = wire->tombstones_max;
        b.reasons_max = wire->reasons_max;
        b.peers_max = wire->peers_max;
        b.pages_max = wire->pages_max;
        b.aux_slots_max = wire->aux_slots_max;
    }
    return b;
}

static enum status policy_fill(const struct sm_policy *p, struct codec_arena *arena,
                               Stateroom__Journal__Policy **out_wire)
{
    Stateroom__Journal__Policy *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__Policy, stateroom__journal__policy__init, wire);
    wire->room_deadline_ns = p->room_deadline_ns;
    wire->unclaimed_deadline_ns = p->unclaimed_deadline_ns;
    wire->retry_first_ns = p->retry_first_ns;
    wire->retry_max_ns = p->retry_max_ns;
    wire->cause_grace_ns = p->cause_grace_ns;
    wire->recovery_grace_ns = p->recovery_grace_ns;
    wire->drain_timeout_ns = p->drain_timeout_ns;
    wire->stop_grace_ns = p->stop_grace_ns;
    wire->tombstone_ttl_ns = p->tombstone_ttl_ns;
    wire->rooms_per_peer_max = p->rooms_per_peer_max;
    wire->destinations_per_room_max = p->destinations_per_room_max;
    wire->pages_per_room_max = p->pages_per_room_max;
    wire->reason_bytes_max = p->reason_bytes_max;
    wire->ranks = p->ranks;
    wire->protections_off = p->protections_off;
    for (size_t i = 0; i < SM_RANKS_MAX; i++) {
        if (p->sources_by_hand[i] != 0) {
            wire->n_sources_by_hand = i + 1u;
        }
    }
    wire->sources_by_hand = (uint64_t *)(uintptr_t)p->sources_by_hand;
    *out_wire = wire;
    return STATUS_OK;
}

static enum status policy_read(const Stateroom__Journal__Policy *wire, struct sm_policy *p)
{
    memset(p, 0, sizeof *p);
    if (wire == NULL || wire->n_sources_by_hand > SM_RANKS_MAX) {
        return STATUS_MALFORMED;
    }
    p->room_deadline_ns = wire->room_deadline_ns;
    p->unclaimed_deadline_ns = wire->unclaimed_deadline_ns;
    p->retry_first_ns = wire->retry_first_ns;
    p->retry_max_ns = wire->retry_max_ns;
    p->cause_grace_ns = wire->cause_grace_ns;
    p->recovery_grace_ns = wire->recovery_grace_ns;
    p->drain_timeout_ns = wire->drain_timeout_ns;
    p->stop_grace_ns = wire->stop_grace_ns;
    p->tombstone_ttl_ns = wire->tombstone_ttl_ns;
    p->rooms_per_peer_max = wire->rooms_per_peer_max;
    p->destinations_per_room_max = wire->destinations_per_room_max;
    p->pages_per_room_max = wire->pages_per_room_max;
    p->reason_bytes_max = wire->reason_bytes_max;
    p->ranks = wire->ranks;
    p->protections_off = wire->protections_off;
    for (size_t i = 0; i < wire->n_sources_by_hand; i++) {
        p->sources_by_hand[i] = wire->sources_by_hand[i];
    }
    return STATUS_OK;
}

static enum status started_fill(const struct codec_entry *entry, struct codec_arena *arena,
                                Stateroom__Journal__NodeStarted **out_wire)
{
    const struct sm_in_node_started *in = &entry->input.u.node_started;
    Stateroom__Journal__NodeStarted *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__NodeStarted, stateroom__journal__node_started__init, wire);
    wire->node_id = in->node_id;
    wire->epoch = in->epoch;
    wire->name = codec_string(arena, in->name);
    wire->program = codec_string(arena, entry->program);
    wire->machine_version = entry->machine_version;
    wire->n_peers = in->peer_count;
    wire->peers = codec_arena_take(arena, (in->peer_count + 1u) * sizeof *wire->peers);
    if (wire->name == NULL || wire->program == NULL || wire->peers == NULL) {
        return STATUS_TOO_LARGE;
    }
    for (uint32_t i = 0; i < in->peer_count; i++) {
        wire->peers[i] = codec_string(arena, in->peer_names[i]);
        if (wire->peers[i] == NULL) {
            return STATUS_TOO_LARGE;
        }
    }
    TRY(policy_fill(&in->policy, arena, &wire->policy));
    TRY(codec_bounds_fill(&entry->bounds, arena, &wire->bounds));
    *out_wire = wire;
    return STATUS_OK;
}

static enum status started_read(const Stateroom__Journal__NodeStarted *wire,
                                struct codec_arena *arena, struct codec_entry *out)
{
    struct sm_in_node_started *in = &out->input.u.node_started;
    if (wire->n_peers > 4096u) {
        return STATUS_MALFORMED;
    }
    struct sm_text *names = codec_arena_take(arena, (wire->n_peers + 1u) * sizeof *names);
    if (names == NULL) {
        return STATUS_TOO_LARGE;
    }
    for (size_t i = 0; i < wire->n_peers; i++) {
        names[i] = codec_text_of_string(wire->peers[i]);
    }
    in->node_id = wire->node_id;
    in->epoch = wire->epoch;
    in->name = codec_text_of_string(wire->name);
    in->peer_names = names;
    in->peer_count = (uint32_t)wire->n_peers;
    out->bounds = codec_bounds_read(wire->bounds);
    out->machine_version = wire->machine_version;
    out->program = codec_text_of_string(wire->program);
    return policy_read(wire->policy, &in->policy);
}

/* ---- the other bodies
 * ---------------------------------------------------------------------------------- */

static enum status peer_up_fill(const struct sm_in_peer_up *in, struct codec_arena *arena,
                                Stateroom__Journal__PeerUp **out_wire)
{
    Stateroom__Journal__PeerUp *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__PeerUp, stateroom__journal__peer_up__init, wire);
    wire->name = codec_string(arena, in->name);
    wire->node_id = in->node_id;
    wire->epoch = in->epoch;
    wire->link = in->link;
    wire->ranks = in->ranks;
    *out_wire = wire;
    return wire->name == NULL ? STATUS_TOO_LARGE : STATUS_OK;
}

static enum status peer_fill(const struct sm_in_peer *in, struct codec_arena *arena,
                             Stateroom__Journal__PeerLink **out_wire)
{
    Stateroom__Journal__PeerLink *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__PeerLink, stateroom__journal__peer_link__init, wire);
    wire->name = codec_string(arena, in->name);
    wire->link = in->link;
    *out_wire = wire;
    return wire->name == NULL ? STATUS_TOO_LARGE : STATUS_OK;
}

static enum status engine_fill(const struct sm_in_engine *in, struct codec_arena *arena,
                               Stateroom__Journal__Engine **out_wire)
{
    Stateroom__Journal__Engine *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__Engine, stateroom__journal__engine__init, wire);
    wire->rank = in->rank;
    wire->pages = in->pages;
    wire->aux_slots = in->aux_slots;
    wire->lost = in->lost;
    *out_wire = wire;
    return codec_geometry_fill(&in->geometry, arena, &wire->geometry);
}

static enum status message_fill(const struct sm_in_message *in, struct codec_arena *arena,
                                Stateroom__Journal__PeerMessageInput **out_wire)
{
    Stateroom__Journal__PeerMessageInput *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__PeerMessageInput,
              stateroom__journal__peer_message_input__init, wire);
    wire->peer = codec_string(arena, in->peer);
    wire->epoch = in->epoch;
    wire->entry = in->entry;
    *out_wire = wire;
    return wire->peer == NULL ? STATUS_TOO_LARGE
                              : codec_message_fill(&in->message, arena, &wire->message);
}

static enum status done_fill(const struct sm_in_write_done *in, struct codec_arena *arena,
                             Stateroom__Journal__WriteDone **out_wire)
{
    CODEC_NEW(arena, Stateroom__Journal__WriteDone, stateroom__journal__write_done__init,
              *out_wire);
    (*out_wire)->write = in->write;
    (*out_wire)->code = in->code;
    (*out_wire)->text = codec_bytes_of_text(in->text);
    return STATUS_OK;
}

enum status codec_input_fill(const struct codec_entry *entry, struct codec_arena *arena,
                             Stateroom__Journal__Input **out_wire)
{
    const struct sm_input *input = &entry->input;
    Stateroom__Journal__Input *wire = NULL;
    CODEC_NEW(arena, Stateroom__Journal__Input, stateroom__journal__input__init, wire);
    wire->kind = input->kind;
    wire->room = input->room;
    *out_wire = wire;
    switch (input->kind) {
    case SM_IN_NODE_STARTED:
        wire->body_case = STATEROOM__JOURNAL__INPUT__BODY_NODE_STARTED;
        return started_fill(entry, arena, &wire->node_started);
    case SM_IN_NODE_STOP:
    case SM_IN_TICK:
    case SM_IN_JOURNAL_FAILED:
    case SM_IN_JOURNAL_OK:
        return STATUS_OK;
    case SM_IN_PEER_UP:
        wire->body_case = STATEROOM__JOURNAL__INPUT__BODY_PEER_UP;
        return peer_up_fill(&input->u.peer_up, arena, &wire->peer_up);
    case SM_IN_PEER_DOWN:
    case SM_IN_PEER_FENCED:
        wire->body_case = STATEROOM__JOURNAL__INPUT__BODY_PEER;
        return peer_fill(&input->u.peer, arena, &wire->peer);
    case SM_IN_ENGINE_ATTACHED:
    case SM_IN_ENGINE_LOST:
        wire->body_case = STATEROOM__JOURNAL__INPUT__BODY_ENGINE;
        return engine_fill(&input->u.engine, arena, &wire->engine);
    case SM_IN_WRITE_DONE:
        wire->body_case = STATEROOM__JOURNAL__INPUT__BODY_WRITE_DONE;
        return done_fill(&input->u.write_done, arena, &wire->write_done);
    default:
        if (sm_input_is_command(input->kind)) {
            wire->body_case = STATEROOM__JOURNAL__INPUT__BODY_COMMAND;
            return codec_command_fill(&input->u.command, arena, &wire->command);
        }
        if (input->kind < SM_IN_COUNT) {
            wire->body_case = STATEROOM__JOURNAL__INPUT__BODY_MESSAGE;
            return message_fill(&input->u.message, arena, &wire->message);
        }
        return STATUS_INVALID;
    }
}

/* ---- reading
 * -----------------------------------------------------------------------------------------------
 */

static enum status message_read(const Stateroom__Journal__PeerMessageInput *wire,
                                struct codec_arena *arena, struct sm_in_message *out)
{
    out->peer = codec_text_of_string(wire->peer);
    out->epoch = wire->epoch;
    out->entry = wire->entry;
    return codec_message_read(wire->message, arena, &out->message);
}

static enum status peer_read(const Stateroom__Journal__Input *wire, struct sm_input *input)
{
    if (input->kind == SM_IN_PEER_UP) {
        if (wire->body_case != STATEROOM__JOURNAL__INPUT__BODY_PEER_UP) {
            return STATUS_MALFORMED;
        }
        input->u.peer_up.name = codec_text_of_string(wire->peer_up->name);
        input->u.peer_up.node_id = wire->peer_up->node_id;
        input->u.peer_up.epoch = wire->peer_up->epoch;
        input->u.peer_up.link = wire->peer_up->link;
        input->u.peer_up.ranks = wire->peer_up->ranks;
        return STATUS_OK;
    }
    if (wire->body_case != STATEROOM__JOURNAL__INPUT__BODY_PEER) {
        return STATUS_MALFORMED;
    }
    input->u.peer.name = codec_text_of_string(wire->peer->name);
    input->u.peer.link = wire->peer->link;
    return STATUS_OK;
}

static enum status engine_read(const Stateroom__Journal__Input *wire, struct sm_input *input)
{
    if (wire->body_case != STATEROOM__JOURNAL__INPUT__BODY_ENGINE) {
        return STATUS_MALFORMED;
    }
    input->u.engine.rank = wire->engine->rank;
    input->u.engine.pages = wire->engine->pages;
    input->u.engine.aux_slots = wire->engine->aux_slots;
    input->u.engine.geometry = codec_geometry_read(wire->engine->geometry);
    input->u.engine.lost = wire->engine->lost;
    return STATUS_OK;
}

static enum status done_read(const Stateroom__Journal__Input *wire, struct sm_input *input)
{
    if (wire->body_case != STATEROOM__JOURNAL__INPUT__BODY_WRITE_DONE) {
        return STATUS_MALFORMED;
    }
    input->u.write_done.write = wire->write_done->write;
    input->u.write_done.code = wire->write_done->code;
    input->u.write_done.text = codec_text_of_bytes(wire->write_done->text);
    return STATUS_OK;
}

enum status codec_input_read(const Stateroom__Journal__Input *wire, struct codec_arena *arena,
                             struct codec_entry *out)
{
    struct sm_input *input = &out->input;
    input->kind = wire->kind;
    input->room = wire->room;
    switch (wire->kind) {
    case SM_IN_NODE_STARTED:
        return wire->body_case == STATEROOM__JOURNAL__INPUT__BODY_NODE_STARTED
                   ? started_read(wire->node_started, arena, out)
                   : STATUS_MALFORMED;
    case SM_IN_NODE_STOP:
    case SM_IN_TICK:
    case SM_IN_JOURNAL_FAILED:
    case SM_IN_JOURNAL_OK:
        return STATUS_OK;
    case SM_IN_PEER_UP:
    case SM_IN_PEER_DOWN:
    case SM_IN_PEER_FENCED:
        return peer_read(wire, input);
    case SM_IN_ENGINE_ATTACHED:
    case SM_IN_ENGINE_LOST:
        return engine_read(wire, input);
    case SM_IN_WRITE_DONE:
        return done_read(wire, input);
    default:
        if (sm_input_is_command(wire->kind) &&
            wire->body_case == STATEROOM__JOURNAL__INPUT__BODY_COMMAND) {
            return codec_command_read(wire->command, arena, &input->u.command);
        }
        if (sm_input_is_message(wire->kind) &&
            wire->body_case == STATEROOM__JOURNAL__INPUT__BODY_MESSAGE) {
            return message_read(wire->message, arena, &input->u.message);
        }
        return STATUS_MALFORMED;
    }
}
