/* SPDX-License-Identifier: Apache-2.0 */
/* A room's entries, condensed to what a person asks. */
#include "why.h"

#include "schemas/text.h"

#include "journal/journal_recover.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void put_clean(char *buffer, size_t size, struct sm_text text)
{
    const size_t used = strlen(buffer);
    (void)text_clean(text.bytes, text.size, buffer + used, size - used);
}

static void set_clean(char *buffer, size_t size, struct sm_text text)
{
    buffer[0] = '\0';
    put_clean(buffer, size, text);
}

static void put(char *buffer, size_t size, const char *text)
{
    const size_t used = strlen(buffer);
    (void)snprintf(buffer + used, size - used, "%s", text);
}

static void stamp(struct why_when *when, uint64_t number, const struct codec_entry *entry)
{
    when->entry = number;
    when->time_ns = entry->input.time_ns;
}

static void stamp_first(struct why_when *when, uint64_t number, const struct codec_entry *entry)
{
    if (when->entry == 0) {
        stamp(when, number, entry);
    }
}

/* ---- who
 * ------------------------------------------------------------------------------------------------
 */

static void by_command(char *out, size_t size, const struct sm_input *input)
{
    const struct sm_in_command *c = &input->u.command;
    const char *did = "";
    if (input->kind == SM_IN_REJECT) {
        did = "refused it";
    } else if (input->kind == SM_IN_ABORT && c->cause.origin == SM_ORIGIN_CLIENT) {
        did = "aborted it because the client had left";
    } else if (input->kind == SM_IN_ABORT && c->cause.origin == SM_ORIGIN_OPERATOR) {
        did = "aborted it on an operator's behalf";
    } else if (input->kind == SM_IN_ABORT) {
        did = "aborted it";
    } else if (input->kind == SM_IN_RELEASE) {
        did = "let go of it before its end";
    } else {
        (void)snprintf(out, size, "this node, upon %s of rank %" PRIu32 " of its engine",
                       sm_input_name(input->kind), c->rank);
        return;
    }
    (void)snprintf(out, size, "its engine: rank %" PRIu32 " %s", c->rank, did);
}

static void by_message(char *out, size_t size, const struct sm_input *input)
{
    const struct sm_in_message *m = &input->u.message;
    const bool status = input->kind == SM_IN_STATUS;
    const char *before = "this node, upon a message of node ";
    const char *after = "";
    if (input->kind == SM_IN_PEER_ABORT) {
        before = "decode node ";
        after = ", which gave it up";
    } else if (input->kind == SM_IN_PREPARE) {
        before = "this node, when pages were announced by decode node ";
    } else if (status && m->message.outcome == SM_OUTCOME_FAILED) {
        before = "prefill node ";
        after = ", which said so";
    } else if (status) {
        before = "prefill node ";
        after = ", which said that all is written";
    }
    out[0] = '\0';
    put(out, size, before);
    put_clean(out, size, m->peer);
    put(out, size, after);
}

/* "this node: " and what it saw. */
static void by_node(char *out, size_t size, const struct sm_input *input)
{
    (void)snprintf(out, size,
                   input->kind == SM_IN_TICK ? "this node, by its clock" : "this node: ");
    const size_t used = strlen(out);
    switch (input->kind) {
    case SM_IN_TICK:
        break;
    case SM_IN_NODE_STARTED:
        (void)snprintf(out + used, size - used, "it had restarted (epoch %" PRIu64 ")",
                       input->u.node_started.epoch);
        break;
    case SM_IN_NODE_STOP:
        put(out, size, "it was told to stop");
        break;
    case SM_IN_JOURNAL_FAILED:
        put(out, size, "it could not write its journal");
        break;
    case SM_IN_PEER_UP:
        put(out, size, "a new connection came from node ");
        put_clean(out, size, input->u.peer_up.name);
        break;
    case SM_IN_PEER_DOWN:
    case SM_IN_PEER_FENCED:
        put(out, size, input->kind == SM_IN_PEER_DOWN ? "it lost node " : "it had fenced node ");
        put_clean(out, size, input->u.peer.name);
        break;
    case SM_IN_ENGINE_LOST:
        (void)snprintf(out + used, size - used, "it lost rank %" PRIu32 " of its engine",
                       input->u.engine.rank);
        break;
    case SM_IN_WRITE_DONE:
        put(out, size,
            input->u.write_done.code == 0 ? "the last write was delivered" : "a write failed");
        break;
    default:
        put(out, size, sm_input_name(input->kind));
        break;
    }
}

static void by_whom(char *out, size_t size, const struct sm_input *input)
{
    if (sm_input_is_command(input->kind)) {
        by_command(out, size, input);
    } else if (sm_input_is_message(input->kind)) {
        by_message(out, size, input);
    } else {
        by_node(out, size, input);
    }
}

/* ---- lives
 * ---------------------------------------------------------------------------------------------- */

/* The life that a transition is about; one more when it is not known yet. NULL: no memory. */
static struct why_life *life_of(struct why *why, const struct sm_transition *t)
{
    for (uint32_t i = why->life_count; i > 0; i--) {
        struct why_life *life = &why->lives[i - 1u];
        if (life->side == t->side && life->generation == t->generation) {
            return life;
        }
    }
    if (why->life_count == why->life_capacity) {
        const uint32_t capacity = why->life_capacity == 0 ? 2u : why->life_capacity * 2u;
        struct why_life *grown = realloc(why->lives, capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        why->lives = grown;
        why->life_capacity = capacity;
    }
    struct why_life *life = &why->lives[why->life_count++];
    memset(life, 0, sizeof *life);
    life->side = t->side;
    life->generation = t->generation;
    return life;
}

static void note_created(struct why_life *life, uint64_t number, const struct codec_entry *entry)
{
    const struct sm_input *input = &entry->input;
    const bool aborted_before = life->verdict.entry != 0; /* and the open is only told so */
    stamp(&life->created, number, entry);
    life->opened_wall_ns = entry->wall_ns;
    if (aborted_before) {
        life->created = life->verdict;
        life->opened_wall_ns = life->verdict_wall_ns;
    }
    life->phase = SM_PHASE_ALLOCATED;
    if (sm_input_is_command(input->kind)) {
        life->by_engine = true;
        (void)snprintf(life->creator, sizeof life->creator, "rank %" PRIu32 " of its engine",
                       input->u.command.rank);
    } else if (input->kind == SM_IN_PREPARE) {
        (void)snprintf(life->creator, sizeof life->creator, "an announcement of decode node ");
        put_clean(life->creator, sizeof life->creator, input->u.message.peer);
    } else {
        (void)snprintf(life->creator, sizeof life->creator, "%s", sm_input_name(input->kind));
    }
}

static void note_verdict(struct why_life *life, uint64_t number, const struct codec_entry *entry,
                         const struct sm_transition *t)
{
    if (t->kind == SM_TR_VERDICT) {
        stamp(&life->verdict, number, entry);
        life->verdict_wall_ns = entry->wall_ns;
        life->outcome = (uint32_t)t->a;
        life->first_http = (uint32_t)t->b;
        set_clean(life->first_reason, sizeof life->first_reason, t->text);
        life->in_flight_at_verdict = life->writes - life->writes_ended;
        by_whom(life->decider, sizeof life->decider, &entry->input);
    } else {
        stamp(&life->replaced, number, entry);
        by_whom(life->replacer, sizeof life->replacer, &entry->input);
    }
    life->http = (uint32_t)t->b;
    set_clean(life->reason, sizeof life->reason, t->text);
}

static void note_destination(struct why_life *life, uint64_t number,
                             const struct codec_entry *entry, const struct sm_transition *t)
{
    if (t->index >= SM_DESTINATIONS_MAX) {
        return;
    }
    struct why_destination *d = &life->destinations[t->index];
    switch (t->kind) {
    case SM_TR_DESTINATION_ADDED:
        stamp_first(&d->added, number, entry);
        d->rank = t->rank;
        d->pages = t->a;
        if (entry->input.kind == SM_IN_PREPARE || entry->input.kind == SM_IN_PEER_ABORT) {
            set_clean(d->node, sizeof d->node, entry->input.u.message.peer);
        }
        if (t->index >= life->destination_count) {
            life->destination_count = t->index + 1u;
        }
        break;
    case SM_TR_NOTICE_SENT:
        stamp_first(&d->first_notice, number, entry);
        d->notices++;
        break;
    case SM_TR_NOTICE_ACKED:
        stamp_first(&d->acked, number, entry);
        break;
    case SM_TR_DESTINATION_GONE:
        stamp(&d->gone, number, entry);
        break;
    default:
        break;
    }
}

static void note_rank(struct why_life *life, uint64_t number, const struct codec_entry *entry,
                      const struct sm_transition *t)
{
    if (t->rank >= SM_RANKS_MAX) {
        return;
    }
    struct why_rank *rank = &life->ranks[t->rank];
    switch (t->kind) {
    case SM_TR_RANK_OPENED:
        stamp_first(&rank->opened, number, entry);
        rank->pages = t->a;
        break;
    case SM_TR_CHUNK_ACCEPTED:
        rank->pages = t->a;
        break;
    case SM_TR_ABORT_SENT:
        stamp_first(&rank->first_abort, number, entry);
        rank->aborts++;
        break;
    case SM_TR_TOLD:
        stamp_first(&rank->told, number, entry);
        break;
    case SM_TR_DELIVERED:
        stamp_first(&rank->delivered, number, entry);
        break;
    case SM_TR_RANK_RELEASED:
        stamp_first(&rank->released, number, entry);
        break;
    case SM_TR_PAGES_FREED:
    case SM_TR_QUARANTINED:
        stamp(&rank->freed, number, entry);
        rank->pages = t->a;
        rank->quarantined = t->kind == SM_TR_QUARANTINED;
        break;
    default:
        break;
    }
}

static void note_write(struct why_life *life, uint64_t number, const struct codec_entry *entry,
                       const struct sm_transition *t)
{
    if (t->kind == SM_TR_WRITE_POSTED) {
        life->writes++;
        life->written_pages += t->b;
    } else {
        life->writes_ended++;
        life->writes_failed += t->b == 0;
        stamp(&life->last_write, number, entry);
    }
}

static void note_transition(struct why_life *life, uint64_t number, const struct codec_entry *entry,
                            const struct sm_transition *t)
{
    switch (t->kind) {
    case SM_TR_HALF_CREATED:
        note_created(life, number, entry);
        break;
    case SM_TR_PHASE:
        life->phase = (uint32_t)t->b;
        if (t->b == SM_PHASE_READY) {
            stamp(&life->ready, number, entry);
        }
        break;
    case SM_TR_GRACE_STARTED:
        stamp(&life->grace, number, entry);
        break;
    case SM_TR_VERDICT:
    case SM_TR_CAUSE_REPLACED:
        note_verdict(life, number, entry, t);
        break;
    case SM_TR_CLEARED:
        stamp(&life->cleared, number, entry);
        break;
    case SM_TR_WRITE_POSTED:
    case SM_TR_WRITE_COMPLETED:
        note_write(life, number, entry, t);
        break;
    case SM_TR_DESTINATION_ADDED:
    case SM_TR_NOTICE_SENT:
    case SM_TR_NOTICE_ACKED:
    case SM_TR_DESTINATION_GONE:
        note_destination(life, number, entry, t);
        break;
    default:
        note_rank(life, number, entry, t);
        break;
    }
}

static bool of_a_life(const struct sm_transition *t)
{
    return t->kind >= SM_TR_HALF_CREATED && t->generation != 0 &&
           (t->side == SM_PREFILL || t->side == SM_DECODE) && t->kind != SM_TR_TOMBSTONE_ANSWERED &&
           t->kind != SM_TR_TOMBSTONE_EXPIRED && t->kind != SM_TR_REFUSED &&
           t->kind != SM_TR_IGNORED;
}

/* A destination that gives up itself needs no notice. */
static void note_given_up(struct why *why, uint64_t number, const struct codec_entry *entry)
{
    const struct sm_in_message *m = &entry->input.u.message;
    char node[SM_NAME_BYTES_MAX + 1u];
    if (entry->input.kind != SM_IN_PEER_ABORT || entry->input.room != why->room) {
        return;
    }
    set_clean(node, sizeof node, m->peer);
    for (uint32_t i = why->life_count; i > 0; i--) {
        struct why_life *life = &why->lives[i - 1u];
        for (uint32_t k = 0; k < life->destination_count && life->side == SM_PREFILL; k++) {
            struct why_destination *d = &life->destinations[k];
            if (d->rank == m->message.decode_rank && strcmp(d->node, node) == 0) {
                stamp_first(&d->gave_up, number, entry);
                return;
            }
        }
    }
}

static bool note_entry(void *context, uint64_t number, const struct codec_entry *entry)
{
    struct why *why = context;
    why->entries++;
    stamp_first(&why->first, number, entry);
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        const struct sm_transition *t = &entry->transitions[i];
        if (t->room != why->room) {
            continue;
        }
        if (t->kind == SM_TR_IGNORED && t->a < SM_IGNORED_COUNT) {
            why->ignored[t->a]++;
        } else if (t->kind == SM_TR_REFUSED) {
            why->refused++;
            stamp(&why->last_refused, number, entry);
            (void)snprintf(why->refusal, sizeof why->refusal, "%s with %" PRIu64 " (%s)",
                           sm_input_name(entry->input.kind), t->b, sm_refusal_name((uint32_t)t->a));
            if (t->text.size > 0) {
                put(why->refusal, sizeof why->refusal, ": ");
                put_clean(why->refusal, sizeof why->refusal, t->text);
            }
        } else if (of_a_life(t)) {
            struct why_life *life = life_of(why, t);
            if (life == NULL) {
                return false;
            }
            note_transition(life, number, entry, t);
        }
    }
    note_given_up(why, number, entry);
    return true;
}

/* ---- the end of the journal
 * --------------------------------------------------------------------------------- */

static bool any_live(const struct why *why)
{
    for (uint32_t i = 0; i < why->life_count; i++) {
        if (why->lives[i].verdict.entry == 0) {
            return true;
        }
    }
    return false;
}

/* What a life without an end waits for is in no entry: the machine is asked. */
static void read_end(struct journal *journal, struct why *why)
{
    struct journal_machine machine;
    struct journal_replayed replayed;
    struct status_detail detail;
    struct journal_identity identity;
    if (journal_machine_open(&machine, &detail) != STATUS_OK) {
        return;
    }
    const struct journal_replay options = {.from_snapshot = true, .no_compare = true};
    struct journal_record record;
    struct codec_entry entry;
    codec_arena_reset(&machine.arena);
    if (journal_identity(journal, &identity) == STATUS_OK &&
        journal_read(journal, identity.last, &record) == STATUS_OK &&
        codec_entry_unpack(record.payload, record.payload_size, &machine.arena, &entry) ==
            STATUS_OK) {
        why->last_entry = identity.last;
        why->last_time_ns = entry.input.time_ns;
    }
    if (any_live(why) &&
        journal_replay(journal, &machine, &options, &replayed, &detail) == STATUS_OK &&
        machine.sm != NULL) {
        for (uint32_t side = SM_PREFILL; side <= SM_DECODE; side++) {
            why->has_view[side] = sm_half_find(machine.sm, why->room, side, &why->views[side]);
            why->views[side].cause.reason = (struct sm_text){"", 0}; /* goes with the machine */
        }
    }
    journal_machine_close(&machine);
    journal_read_pause(journal);
}

enum status why_read(struct journal *journal, uint64_t room, struct why *out,
                     struct status_detail *out_detail)
{
    memset(out, 0, sizeof *out);
    out->room = room;
    TRY(room_walk(journal, room, note_entry, out, out_detail));
    room_node_name(journal, out->node, sizeof out->node);
    read_end(journal, out);
    return STATUS_OK;
}

void why_free(struct why *why)
{
    free(why->lives);
    memset(why, 0, sizeof *why);
}
