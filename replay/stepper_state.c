/* SPDX-License-Identifier: Apache-2.0 */
/* Steps, states and what differs between two, as text and as JSON. */
#include "stepper.h"

#include "schemas/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- a step
 * -----------------------------------------------------------------------------------------------
 */

bool step_about(const struct codec_entry *entry, uint64_t room)
{
    if (entry->input.room == room) {
        return true;
    }
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        if (entry->transitions[i].room == room) {
            return true;
        }
    }
    return false;
}

/* One transition or effect, as text or into the array of a JSON object. */
static void print_part(json_t *array, const char *mark, char *line)
{
    if (array != NULL) {
        (void)json_array_append_new(array, cli_json_text(line));
    } else {
        (void)text_clean(line, strlen(line), line, strlen(line) + 1u);
        printf("%s %s\n", mark, line);
    }
}

void step_print(uint64_t number, const struct codec_entry *entry,
                const struct journal_machine *machine, bool json)
{
    char line[1024];
    char mark[24];
    const struct sm_output *output = machine->output;
    json_t *transitions = json ? json_array() : NULL;
    json_t *effects = json ? json_array() : NULL;
    char input[1024];
    (void)sm_describe_input(&entry->input, input, sizeof input);
    if (!json) {
        (void)snprintf(mark, sizeof mark, "%8" PRIu64 " ", number);
        print_part(NULL, mark, input);
    }
    for (uint32_t i = 0; i < output->transition_count; i++) {
        (void)sm_describe_transition(&output->transitions[i], line, sizeof line);
        print_part(transitions, "          .", line);
    }
    for (uint32_t i = 0; i < output->effect_count; i++) {
        (void)sm_describe_effect(machine->sm, &output->effects[i], line, sizeof line);
        print_part(effects, "          >", line);
    }
    if (json) {
        cli_print_json(json_pack("{s:I, s:o, s:o, s:o}", "entry", (json_int_t)number, "input",
                                 cli_json_text(input), "transitions", transitions, "effects",
                                 effects));
    }
}

/* ---- a state
 * ---------------------------------------------------------------------------------------------- */

static struct state_field *field_new(struct state_fields *fields)
{
    if (fields->count == fields->capacity) {
        const size_t capacity = fields->capacity == 0 ? 128u : fields->capacity * 2u;
        struct state_field *grown = realloc(fields->at, capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        fields->at = grown;
        fields->capacity = capacity;
    }
    return &fields->at[fields->count++];
}

static bool field_text(struct state_fields *fields, const char *prefix, const char *name,
                       struct sm_text text)
{
    struct state_field *field = field_new(fields);
    if (field == NULL) {
        return false;
    }
    (void)snprintf(field->key, sizeof field->key, "%s%s", prefix, name);
    (void)text_clean(text.bytes, text.size, field->value, sizeof field->value);
    return true;
}

static bool field_word(struct state_fields *fields, const char *prefix, const char *name,
                       const char *word)
{
    const struct sm_text text = {word, (uint32_t)strlen(word)};
    return field_text(fields, prefix, name, text);
}

static bool field_number(struct state_fields *fields, const char *prefix, const char *name,
                         uint64_t number)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRIu64, number);
    return field_word(fields, prefix, name, text);
}

static bool field_time(struct state_fields *fields, const char *prefix, const char *name,
                       uint64_t ns)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%" PRIu64 ".%09u s", ns / 1000000000u,
                   (unsigned)(ns % 1000000000u));
    return field_word(fields, prefix, name, text);
}

/* What sm_describe_half has of the ranks: one line each, after the first. */
static bool rank_fields(const struct sm *sm, const struct sm_half_view *view, const char *prefix,
                        struct state_fields *out)
{
    char text[8192];
    bool well = true;
    (void)sm_describe_half(sm, view->room, view->side, text, sizeof text);
    for (char *line = strchr(text, '\n'); line != NULL && well;) {
        line += 1u + strspn(line + 1, " ");
        char *end = strchr(line, '\n');
        char name[24] = "";
        const size_t bytes = end != NULL ? (size_t)(end - line) : strlen(line);
        size_t key = bytes;
        for (size_t i = 0; i < bytes && key == bytes; i++) {
            key = line[i] == ' ' ? i : key;
        }
        (void)snprintf(name, sizeof name, "rank %.*s", (int)(key > 5u ? key - 5u : 0u), line + 5);
        const size_t rest = key < bytes ? key + 1u : bytes;
        well =
            field_text(out, prefix, name, (struct sm_text){line + rest, (uint32_t)(bytes - rest)});
        line = end;
    }
    return well;
}

static bool half_fields(const struct sm *sm, const struct sm_half_view *view,
                        struct state_fields *out)
{
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "room %" PRIu64 " %s ", view->room,
                   sm_side_name(view->side));
    bool well = field_word(out, prefix, "phase", sm_phase_name(view->phase)) &&
                field_number(out, prefix, "generation", view->generation) &&
                field_word(out, prefix, "outcome", sm_outcome_name(view->outcome));
    if (well && view->outcome == SM_OUTCOME_FAILED) {
        well = field_number(out, prefix, "http", view->cause.http) &&
               field_text(out, prefix, "reason", view->cause.reason) &&
               field_word(out, prefix, "origin", sm_origin_name(view->cause.origin));
    }
    if (!well || view->remembered) {
        return well;
    }
    return field_word(out, prefix, "owner", view->owned_by_engine ? "engine" : "node") &&
           field_number(out, prefix,
                        view->side == SM_PREFILL ? "destinations" : "ranks that opened",
                        view->destinations) &&
           field_number(out, prefix, "required", view->required) &&
           field_number(out, prefix, "writes in flight", view->writes_in_flight) &&
           field_time(out, prefix, "opened", view->opened_ns) &&
           field_time(out, prefix, "deadline", view->deadline_ns) &&
           rank_fields(sm, view, prefix, out);
}

static bool node_fields(const struct sm *sm, struct state_fields *out)
{
    struct sm_gauges g;
    struct sm_counters c;
    sm_gauges(sm, &g);
    sm_counters(sm, &c);
    bool well = field_text(out, "node ", "name", sm_node_name(sm)) &&
                field_number(out, "node ", "epoch", sm_epoch(sm)) &&
                field_time(out, "node ", "time", sm_now(sm)) &&
                field_word(out, "node ", "stopping", sm_stopping(sm) ? "yes" : "no") &&
                field_word(out, "node ", "journal failed", sm_journal_failed(sm) ? "yes" : "no") &&
                field_number(out, "node ", "peers", sm_peer_count(sm)) &&
                field_number(out, "node ", "halves", g.halves) &&
                field_number(out, "node ", "tombstones", g.tombstones) &&
                field_number(out, "node ", "destinations", g.destinations) &&
                field_number(out, "node ", "writes in flight", g.writes_in_flight) &&
                field_number(out, "node ", "pages held", g.pages_held) &&
                field_number(out, "node ", "unsent notices", g.unsent_notices) &&
                field_number(out, "node ", "rooms opened", c.rooms_opened) &&
                field_number(out, "node ", "rooms succeeded", c.rooms_succeeded) &&
                field_number(out, "node ", "rooms failed", c.rooms_failed) &&
                field_number(out, "node ", "notices sent", c.notices_sent) &&
                field_number(out, "node ", "notices repeated", c.notices_repeated) &&
                field_number(out, "node ", "writes posted", c.writes_posted) &&
                field_number(out, "node ", "writes failed", c.writes_failed) &&
                field_number(out, "node ", "peers fenced", c.peers_fenced) &&
                field_number(out, "node ", "pages quarantined", c.pages_quarantined);
    for (uint32_t i = 1; i < SM_IGNORED_COUNT && well; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "ignored %s", sm_ignored_name(i));
        well = c.ignored[i] == 0 || field_number(out, "node ", name, c.ignored[i]);
    }
    for (uint32_t i = 1; i < SM_REFUSAL_COUNT && well; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "refused %s", sm_refusal_name(i));
        well = c.refused[i] == 0 || field_number(out, "node ", name, c.refused[i]);
    }
    return well;
}

static bool room_known(const struct state_fields *fields, uint64_t room)
{
    for (size_t i = 0; i < fields->room_count; i++) {
        if (fields->rooms[i] == room) {
            return true;
        }
    }
    return false;
}

/* Both halves that the machine has of a room, live or remembered. */
static bool room_fields(const struct sm *sm, uint64_t room, struct state_fields *out)
{
    struct sm_half_view view;
    if (room_known(out, room)) {
        return true;
    }
    for (uint32_t side = SM_PREFILL; side <= SM_DECODE; side++) {
        if (sm_half_find(sm, room, side, &view) && !half_fields(sm, &view, out)) {
            return false;
        }
    }
    out->rooms[out->room_count++] = room;
    return true;
}

bool state_read(const struct sm *sm, uint64_t room, const struct state_fields *also,
                struct state_fields *out)
{
    struct sm_half_view view;
    uint32_t cursor = 0;
    memset(out, 0, sizeof *out);
    const size_t more = also != NULL ? also->room_count : 0;
    out->rooms = calloc(STATE_HALVES_MAX + more + 1u, sizeof *out->rooms);
    if (out->rooms == NULL) {
        return false;
    }
    if (room != 0) {
        return room_fields(sm, room, out);
    }
    bool well = node_fields(sm, out);
    for (size_t i = 0; i < more && well; i++) {
        well = room_fields(sm, also->rooms[i], out);
    }
    while (well && sm_half_next(sm, &cursor, &view)) {
        if (out->room_count - more >= STATE_HALVES_MAX) {
            out->cut = true;
            break;
        }
        well = room_fields(sm, view.room, out);
    }
    return well;
}

void state_free(struct state_fields *fields)
{
    free(fields->at);
    free(fields->rooms);
    memset(fields, 0, sizeof *fields);
}

void state_print(const struct state_fields *fields, bool json)
{
    json_t *object = json ? json_object() : NULL;
    for (size_t i = 0; i < fields->count; i++) {
        const struct state_field *f = &fields->at[i];
        if (json) {
            json_object_set_new(object, f->key, cli_json_text(f->value));
        } else {
            printf("  %-34s %s\n", f->key, f->value);
        }
    }
    if (json) {
        cli_print_json(object);
    } else if (fields->count == 0) {
        printf("  neither live nor remembered\n");
    } else if (fields->cut) {
        printf("  and more rooms: name one\n");
    }
}

static const struct state_field *field_named(const struct state_fields *fields, const char *key)
{
    for (size_t i = 0; i < fields->count; i++) {
        if (strcmp(fields->at[i].key, key) == 0) {
            return &fields->at[i];
        }
    }
    return NULL;
}

static void print_change(const char *key, const char *before, const char *after, bool json)
{
    if (json) {
        cli_print_json(json_pack("{s:o, s:o, s:o}", "field", cli_json_text(key), "before",
                                 before != NULL ? cli_json_text(before) : json_null(), "after",
                                 after != NULL ? cli_json_text(after) : json_null()));
    } else {
        printf("  %-34s %s -> %s\n", key, before != NULL ? before : "(none)",
               after != NULL ? after : "(none)");
    }
}

size_t state_diff(const struct state_fields *before, const struct state_fields *after, bool json)
{
    size_t count = 0;
    for (size_t i = 0; i < before->count; i++) {
        const struct state_field *old = &before->at[i];
        /* Two states of one machine have most fields at the same place. */
        const struct state_field *new = i < after->count &&strcmp(after->at[i].key, old->key) == 0
                                            ? &after->at[i]
                                            : field_named(after, old->key);
        if (new == NULL || strcmp(new->value, old->value) != 0) {
            print_change(old->key, old->value, new != NULL ? new->value : NULL, json);
            count++;
        }
    }
    for (size_t i = 0; i < after->count; i++) {
        const struct state_field *new = &after->at[i];
        if (field_named(before, new->key) == NULL) {
            print_change(new->key, NULL, new->value, json);
            count++;
        }
    }
    return count;
}
