/* SPDX-License-Identifier: Apache-2.0 */
/* A room's history, out of the entries that are about it. */
#include "cli.h"

#include "schemas/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- events
 * ---------------------------------------------------------------------------------------------- */

static struct history_event *event_add(struct history *history, const struct codec_entry *entry,
                                       uint64_t number)
{
    if (history->count == history->capacity) {
        const uint32_t capacity = history->capacity == 0 ? 64u : history->capacity * 2u;
        struct history_event *grown = realloc(history->events, capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        history->events = grown;
        history->capacity = capacity;
    }
    struct history_event *event = &history->events[history->count++];
    memset(event, 0, sizeof *event);
    event->number = number;
    event->time_ns = entry->input.time_ns;
    event->wall_ns = entry->wall_ns;
    event->from = HISTORY_NODE;
    event->to = HISTORY_NODE;
    event->note = true;
    return event;
}

static void put_text(char *buffer, size_t size, struct sm_text text)
{
    const size_t used = strlen(buffer);
    (void)text_clean(text.bytes, text.size, buffer + used, size - used);
}

static void put_cause(char *buffer, size_t size, uint32_t http, struct sm_text reason)
{
    size_t used = strlen(buffer);
    if (http != 0) {
        (void)snprintf(buffer + used, size - used, " %" PRIu32, http);
    }
    if (reason.size > 0) {
        used = strlen(buffer);
        (void)snprintf(buffer + used, size - used, ": ");
        put_text(buffer, size, reason);
    }
}

static uint64_t pages_of(const struct sm_runs *runs)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        pages += runs->at[i].count;
    }
    return pages;
}

static void command_event(struct history_event *event, const struct sm_input *input)
{
    const struct sm_in_command *c = &input->u.command;
    event->from = HISTORY_ENGINE;
    event->note = false;
    (void)snprintf(event->label, sizeof event->label, "%s", sm_input_name(input->kind));
    const size_t used = strlen(event->label);
    if (input->kind == SM_IN_SEND || (input->kind == SM_IN_OPEN && c->side == SM_DECODE)) {
        (void)snprintf(event->label + used, sizeof event->label - used, " %" PRIu64 " pages%s",
                       pages_of(&c->pages), c->last ? " last" : "");
    } else if (input->kind == SM_IN_REJECT || input->kind == SM_IN_ABORT) {
        put_cause(event->label, sizeof event->label, c->cause.http, c->cause.reason);
    }
}

static void message_event(struct history *history, struct history_event *event,
                          const struct sm_input *input)
{
    const struct sm_message *m = &input->u.message.message;
    event->from = HISTORY_PEER;
    event->note = false;
    (void)snprintf(event->label, sizeof event->label, "%s", sm_input_name(input->kind));
    const size_t used = strlen(event->label);
    if (input->kind == SM_IN_PREPARE) {
        (void)snprintf(event->label + used, sizeof event->label - used, " %" PRIu64 " pages",
                       pages_of(&m->pages));
    } else if (input->kind == SM_IN_STATUS) {
        (void)snprintf(event->label + used, sizeof event->label - used, " %s",
                       sm_outcome_name(m->outcome));
        put_cause(event->label, sizeof event->label, m->cause.http, m->cause.reason);
    } else if (input->kind == SM_IN_PEER_ABORT) {
        put_cause(event->label, sizeof event->label, m->cause.http, m->cause.reason);
    }
    if (history->peer[0] == '\0') {
        put_text(history->peer, sizeof history->peer, input->u.message.peer);
    }
}

static bool input_event(struct history *history, const struct codec_entry *entry, uint64_t number)
{
    const struct sm_input *input = &entry->input;
    struct history_event *event = NULL;
    if (input->kind == SM_IN_TICK && entry->transition_count == 0) {
        return true;
    }
    event = event_add(history, entry, number);
    if (event == NULL) {
        return false;
    }
    if (sm_input_is_command(input->kind)) {
        command_event(event, input);
    } else if (input->kind >= SM_IN_PREPARE && input->kind <= SM_IN_DRAINED) {
        message_event(history, event, input);
    } else if (input->kind == SM_IN_WRITE_DONE) {
        event->from = HISTORY_PEER;
        event->note = false;
        (void)snprintf(event->label, sizeof event->label, "write %s",
                       input->u.write_done.code == 0 ? "delivered" : "FAILED: ");
        if (input->u.write_done.code != 0) {
            put_text(event->label, sizeof event->label, input->u.write_done.text);
        }
    } else {
        (void)sm_describe_input(input, event->label, sizeof event->label);
    }
    return true;
}

/* The life that a transition is about; one more when it is not known (its begin was trimmed away).
 */
static struct history_life *life_of(struct history *history, const struct history_event *event,
                                    const struct sm_transition *t)
{
    for (uint32_t i = history->life_count; i > 0; i--) {
        struct history_life *life = &history->lives[i - 1u];
        if (life->side == t->side && life->generation == t->generation) {
            return life;
        }
    }
    if (history->life_count == history->life_capacity) {
        const uint32_t capacity = history->life_capacity == 0 ? 4u : history->life_capacity * 2u;
        struct history_life *grown = realloc(history->lives, capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        history->lives = grown;
        history->life_capacity = capacity;
    }
    struct history_life *life = &history->lives[history->life_count++];
    memset(life, 0, sizeof *life);
    life->side = t->side;
    life->generation = t->generation;
    life->opened_ns = event->time_ns;
    life->opened_wall_ns = event->wall_ns;
    life->entry = event->number;
    return life;
}

static void note_cause(struct history_life *life, const struct sm_transition *t)
{
    life->http = (uint32_t)t->b;
    life->reason[0] = '\0';
    put_text(life->reason, sizeof life->reason, t->text);
}

/* What a transition says about its life; false: no memory. */
static bool note_life(struct history *history, const struct history_event *event,
                      const struct sm_transition *t)
{
    if (t->kind == SM_TR_REFUSED) {
        history->refused.side = t->side;
        history->refused.opened_ns = event->time_ns;
        history->refused.opened_wall_ns = event->wall_ns;
        history->refused.decided_ns = event->time_ns;
        history->refused.entry = event->number;
        note_cause(&history->refused, t);
    }
    if (t->kind != SM_TR_HALF_CREATED && t->kind != SM_TR_VERDICT &&
        t->kind != SM_TR_CAUSE_REPLACED && t->kind != SM_TR_CLEARED) {
        return true;
    }
    struct history_life *life = life_of(history, event, t);
    if (life == NULL) {
        return false;
    }
    if (t->kind == SM_TR_VERDICT) {
        life->outcome = (uint32_t)t->a;
        life->decided_ns = event->time_ns;
    }
    if (t->kind == SM_TR_VERDICT || t->kind == SM_TR_CAUSE_REPLACED) {
        note_cause(life, t);
    } else if (t->kind == SM_TR_CLEARED) {
        life->cleared_ns = event->time_ns;
    }
    return true;
}

static const struct history_life *known_life(const struct history *history,
                                             const struct sm_transition *t)
{
    static const struct history_life none;
    for (uint32_t i = history->life_count; i > 0; i--) {
        const struct history_life *life = &history->lives[i - 1u];
        if (life->side == t->side && life->generation == t->generation) {
            return life;
        }
    }
    return &none;
}

/* What a transition shows; false: nothing. */
static bool transition_event(const struct history *history, struct history_event *e,
                             const struct sm_transition *t)
{
    const struct history_life *life = known_life(history, t);
    switch (t->kind) {
    case SM_TR_PHASE:
        (void)snprintf(e->label, sizeof e->label, "%s", sm_phase_name((uint32_t)t->b));
        return true;
    case SM_TR_VERDICT:
    case SM_TR_CAUSE_REPLACED:
        (void)snprintf(
            e->label, sizeof e->label, "%s %s",
            t->kind == SM_TR_VERDICT ? "VERDICT" : "better cause:", sm_outcome_name(life->outcome));
        put_cause(e->label, sizeof e->label, (uint32_t)t->b, t->text);
        return true;
    case SM_TR_NOTICE_SENT:
    case SM_TR_ABORT_SENT:
    case SM_TR_PREPARE_SENT:
        e->to = HISTORY_PEER;
        e->note = false;
        (void)snprintf(e->label, sizeof e->label, "%s%s",
                       t->kind == SM_TR_NOTICE_SENT  ? "status"
                       : t->kind == SM_TR_ABORT_SENT ? "abort"
                                                     : "prepare",
                       t->a > 1u ? " (again)" : "");
        return true;
    case SM_TR_WRITE_POSTED:
        e->to = HISTORY_PEER;
        e->note = false;
        (void)snprintf(e->label, sizeof e->label, "write %" PRIu64 " pages", t->b);
        return true;
    case SM_TR_TOLD:
        e->to = HISTORY_ENGINE;
        e->note = false;
        (void)snprintf(e->label, sizeof e->label, "result %s", sm_outcome_name(life->outcome));
        put_cause(e->label, sizeof e->label, life->http, (struct sm_text){"", 0});
        return true;
    case SM_TR_PAGES_FREED:
        (void)snprintf(e->label, sizeof e->label, "%" PRIu64 " pages free", t->a);
        return t->a > 0;
    case SM_TR_TOMBSTONE_ANSWERED:
        (void)snprintf(e->label, sizeof e->label, "answered as a tombstone");
        return true;
    case SM_TR_QUARANTINED:
    case SM_TR_DESTINATION_GONE:
    case SM_TR_GRACE_STARTED:
        (void)snprintf(e->label, sizeof e->label, "%s", sm_transition_name(t->kind));
        return true;
    case SM_TR_REFUSED:
        e->to = HISTORY_ENGINE;
        e->note = false;
        (void)snprintf(e->label, sizeof e->label, "refused");
        put_cause(e->label, sizeof e->label, (uint32_t)t->b, t->text);
        return true;
    case SM_TR_IGNORED:
        (void)snprintf(e->label, sizeof e->label, "ignored: %s", sm_ignored_name((uint32_t)t->a));
        return true;
    default:
        return false;
    }
}

static bool entry_events(void *context, uint64_t number, const struct codec_entry *entry)
{
    struct history *history = context;
    if (!input_event(history, entry, number)) {
        return false;
    }
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        if (entry->transitions[i].room != history->room) {
            continue;
        }
        struct history_event *event = event_add(history, entry, number);
        if (event == NULL) {
            return false;
        }
        if (!note_life(history, event, &entry->transitions[i])) {
            return false;
        }
        if (!transition_event(history, event, &entry->transitions[i])) {
            history->count--;
        }
    }
    return true;
}

enum status history_read(struct journal *journal, uint64_t room, struct history *out,
                         struct status_detail *out_detail)
{
    memset(out, 0, sizeof *out);
    out->room = room;
    const enum status status = room_walk(journal, room, entry_events, out, out_detail);
    if (status == STATUS_OK) {
        room_node_name(journal, out->node, sizeof out->node);
    }
    return status;
}

void history_free(struct history *history)
{
    free(history->events);
    free(history->lives);
    memset(history, 0, sizeof *history);
}

void history_tail(struct history *history, uint32_t most)
{
    if (history->count > most) {
        memmove(history->events, history->events + (history->count - most),
                most * sizeof *history->events);
        history->count = most;
    }
}
