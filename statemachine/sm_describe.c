/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line of text for everything: fields in a stable order, numbers in decimal. Texts of engines
 * and peers are printed with control characters replaced, so that a hostile reason stays text.
 */
#include "sm_state.h"

static void put_field(struct sm_writer *writer, const char *name, uint64_t number)
{
    sm_put(writer, " ");
    sm_put(writer, name);
    sm_put(writer, "=");
    sm_put_number(writer, number);
}

static void put_quoted(struct sm_writer *writer, const char *name, struct sm_text text)
{
    sm_put(writer, " ");
    sm_put(writer, name);
    sm_put(writer, "=\"");
    for (uint32_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.bytes[i];
        char shown[2] = {c < 32u || c == 127u ? '?' : (char)c, '\0'};
        if (c == '"' || c == '\\') {
            sm_put(writer, "\\");
        }
        sm_put(writer, shown);
    }
    sm_put(writer, "\"");
}

static void put_runs(struct sm_writer *writer, const char *name, const struct sm_runs *runs)
{
    sm_put(writer, " ");
    sm_put(writer, name);
    sm_put(writer, "=");
    for (uint32_t i = 0; i < runs->count && i < 8u; i++) {
        sm_put(writer, i == 0 ? "" : ",");
        sm_put_number(writer, runs->at[i].first);
        if (runs->at[i].count > 1u) {
            sm_put(writer, "-");
            sm_put_number(writer, (uint64_t)runs->at[i].first + runs->at[i].count - 1u);
        }
    }
    if (runs->count > 8u) {
        sm_put(writer, ",...");
    }
}

static void put_cause(struct sm_writer *writer, const struct sm_cause *cause)
{
    if (cause->http != 0) {
        put_field(writer, "http", cause->http);
    }
    if (cause->origin != SM_ORIGIN_NONE) {
        sm_put(writer, " origin=");
        sm_put(writer, sm_origin_name(cause->origin));
    }
    if (cause->reason.size > 0) {
        put_quoted(writer, "reason", cause->reason);
    }
}

static void put_message(struct sm_writer *writer, const struct sm_message *message)
{
    put_field(writer, "decode_rank", message->decode_rank);
    sm_put(writer, " life=");
    sm_put_hex(writer, message->life.node);
    sm_put(writer, ".");
    sm_put_number(writer, message->life.epoch);
    sm_put(writer, ".");
    sm_put_number(writer, message->life.generation);
    if (message->pages.count > 0) {
        put_runs(writer, "pages", &message->pages);
    }
    if (message->outcome != SM_OUTCOME_NONE) {
        sm_put(writer, " ");
        sm_put(writer, sm_outcome_name(message->outcome));
    }
    put_cause(writer, &message->cause);
    if (message->drained) {
        sm_put(writer, " drained");
    }
}

static void put_command(struct sm_writer *writer, const struct sm_input *input)
{
    const struct sm_in_command *command = &input->u.command;
    sm_put(writer, " ");
    sm_put(writer, sm_side_name(command->side));
    put_field(writer, "rank", command->rank);
    if (command->peer.size > 0) {
        put_quoted(writer, "peer", command->peer);
    }
    if (command->pages.count > 0) {
        put_runs(writer, "pages", &command->pages);
    }
    if (command->prefix_pages > 0) {
        put_field(writer, "prefix", command->prefix_pages);
    }
    if (command->deadline_ns > 0) {
        put_field(writer, "deadline_ms", command->deadline_ns / 1000000u);
    }
    if (command->last) {
        sm_put(writer, " last");
    }
    put_cause(writer, &command->cause);
}

size_t sm_describe_input(const struct sm_input *input, char *buffer, size_t size)
{
    struct sm_writer writer = {buffer, size, 0};
    sm_put(&writer, sm_input_name(input->kind));
    if (input->room != 0) {
        put_field(&writer, "room", input->room);
    }
    switch (input->kind) {
    case SM_IN_NODE_STARTED:
        put_quoted(&writer, "name", input->u.node_started.name);
        put_field(&writer, "epoch", input->u.node_started.epoch);
        put_field(&writer, "ranks", input->u.node_started.policy.ranks);
        break;
    case SM_IN_PEER_UP:
        put_quoted(&writer, "peer", input->u.peer_up.name);
        put_field(&writer, "epoch", input->u.peer_up.epoch);
        put_field(&writer, "link", input->u.peer_up.link);
        break;
    case SM_IN_PEER_DOWN:
    case SM_IN_PEER_FENCED:
        put_quoted(&writer, "peer", input->u.peer.name);
        put_field(&writer, "link", input->u.peer.link);
        break;
    case SM_IN_ENGINE_ATTACHED:
        put_field(&writer, "rank", input->u.engine.rank);
        put_field(&writer, "pages", input->u.engine.pages);
        break;
    case SM_IN_ENGINE_LOST:
        put_field(&writer, "rank", input->u.engine.rank);
        if (input->u.engine.lost != SM_LOST_UNSAID) {
            put_quoted(&writer, "why", sm_text_of(sm_lost_text(input->u.engine.lost)));
        }
        break;
    case SM_IN_WRITE_DONE:
        put_field(&writer, "write", input->u.write_done.write);
        if (input->u.write_done.code != 0) {
            put_quoted(&writer, "error", input->u.write_done.text);
        }
        break;
    case SM_IN_PEER_RECOVERED:
    case SM_IN_PREPARE:
    case SM_IN_PREPARED:
    case SM_IN_STATUS:
    case SM_IN_ACK:
    case SM_IN_PEER_ABORT:
    case SM_IN_DRAINED:
        put_quoted(&writer, "from", input->u.message.peer);
        if (input->kind != SM_IN_PEER_RECOVERED) {
            put_message(&writer, &input->u.message.message);
        }
        break;
    default:
        if (sm_input_is_command(input->kind)) {
            put_command(&writer, input);
        }
        break;
    }
    return writer.used;
}

static void put_transition_values(struct sm_writer *writer, const struct sm_transition *t)
{
    switch (t->kind) {
    case SM_TR_PHASE:
        sm_put(writer, " ");
        sm_put(writer, sm_phase_name((uint32_t)t->a));
        sm_put(writer, " -> ");
        sm_put(writer, sm_phase_name((uint32_t)t->b));
        break;
    case SM_TR_VERDICT:
        sm_put(writer, " ");
        sm_put(writer, sm_outcome_name((uint32_t)t->a));
        if (t->b != 0) {
            put_field(writer, "http", t->b);
        }
        break;
    case SM_TR_IGNORED:
        sm_put(writer, " ");
        sm_put(writer, sm_ignored_name((uint32_t)t->a));
        break;
    case SM_TR_REFUSED:
        sm_put(writer, " ");
        sm_put(writer, sm_refusal_name((uint32_t)t->a));
        put_field(writer, "http", t->b);
        break;
    default:
        put_field(writer, "a", t->a);
        put_field(writer, "b", t->b);
        break;
    }
}

size_t sm_describe_transition(const struct sm_transition *transition, char *buffer, size_t size)
{
    struct sm_writer writer = {buffer, size, 0};
    sm_put(&writer, sm_transition_name(transition->kind));
    if (transition->room != 0) {
        put_field(&writer, "room", transition->room);
    }
    if (transition->side != SM_SIDE_NONE) {
        sm_put(&writer, " ");
        sm_put(&writer, sm_side_name(transition->side));
    }
    if (transition->generation != 0) {
        put_field(&writer, "gen", transition->generation);
    }
    if (transition->rank != SM_NONE) {
        put_field(&writer, "rank", transition->rank);
    }
    if (transition->index != SM_NONE) {
        put_field(&writer, "index", transition->index);
    }
    put_transition_values(&writer, transition);
    if (transition->text.size > 0) {
        put_quoted(&writer, "text", transition->text);
    }
    return writer.used;
}

size_t sm_describe_effect(const struct sm *sm, const struct sm_effect *effect, char *buffer,
                          size_t size)
{
    struct sm_writer writer = {buffer, size, 0};
    sm_put(&writer, sm_effect_name(effect->kind));
    if (effect->room != 0) {
        put_field(&writer, "room", effect->room);
    }
    if (effect->generation != 0) {
        put_field(&writer, "gen", effect->generation);
    }
    if (effect->peer != SM_NONE) {
        put_quoted(&writer, "peer", sm_peer_name(sm, effect->peer));
        put_field(&writer, "link", effect->link);
    }
    if (effect->rank != SM_NONE) {
        put_field(&writer, "rank", effect->rank);
    }
    switch (effect->kind) {
    case SM_FX_TELL:
        sm_put(&writer, " ");
        sm_put(&writer, sm_outcome_name(effect->u.tell.outcome));
        put_cause(&writer, &effect->u.tell.cause);
        break;
    case SM_FX_REPLY:
        put_field(&writer, "request", effect->u.reply.request);
        put_field(&writer, "http", effect->u.reply.http);
        break;
    case SM_FX_WRITE:
        put_field(&writer, "write", effect->u.write.id);
        put_field(&writer, "decode_rank", effect->u.write.decode_rank);
        put_runs(&writer, "from", &effect->u.write.from);
        put_runs(&writer, "to", &effect->u.write.to);
        break;
    case SM_FX_PAGES_FREE:
        put_runs(&writer, "pages", &effect->u.pages);
        break;
    default:
        if (effect->kind >= SM_FX_SEND_PREPARE && effect->kind <= SM_FX_SEND_DRAINED) {
            put_message(&writer, &effect->u.message);
        }
        break;
    }
    return writer.used;
}

size_t sm_describe_half(const struct sm *sm, uint64_t room, uint32_t side, char *buffer,
                        size_t size)
{
    struct sm_writer writer = {buffer, size, 0};
    struct sm_half_view view;
    if (!sm_half_find(sm, room, side, &view)) {
        sm_put(&writer, "absent");
        return writer.used;
    }
    put_field(&writer, "room", room);
    sm_put(&writer, " ");
    sm_put(&writer, sm_side_name(side));
    put_field(&writer, "gen", view.generation);
    sm_put(&writer, " ");
    sm_put(&writer, sm_phase_name(view.phase));
    put_field(&writer, "destinations", view.destinations);
    put_field(&writer, "required", view.required);
    put_field(&writer, "in_flight", view.writes_in_flight);
    if (view.outcome != SM_OUTCOME_NONE) {
        sm_put(&writer, " ");
        sm_put(&writer, sm_outcome_name(view.outcome));
        put_cause(&writer, &view.cause);
    }
    const uint32_t index = sm_half_newest(sm, room, side);
    if (index == SM_NONE || view.remembered) {
        return writer.used;
    }
    const struct sm_half *half = sm_half_at(sm, index);
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        sm_put(&writer, "\n ");
        put_field(&writer, "rank", rank->rank);
        put_field(&writer, "pages", rank->pages.pages);
        put_field(&writer, "posted", rank->posted_pages);
        put_field(&writer, "in_flight", rank->in_flight);
        put_field(&writer, "freed", rank->freed);
    }
    return writer.used;
}
