/* SPDX-License-Identifier: Apache-2.0 */
/* Expectations. */
#include "scenario_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- expectations
 * ------------------------------------------------------------------------------------- */

static bool choices(struct parser *p, const struct word *word, struct scenario_claim *claim)
{
    const char *at = word->value;
    while (*at != '\0') {
        char *end = NULL;
        const unsigned long value = at[0] >= '0' && at[0] <= '9' ? strtoul(at, &end, 10) : 0;
        if (end == NULL || (*end != '|' && *end != '\0') || value > 999u ||
            claim->http_count == SCENARIO_CHOICES_MAX) {
            return parse_wrong(p, parse_value_column(word),
                               "http: expected a status, or some like 400|503");
        }
        claim->https[claim->http_count++] = (uint32_t)value;
        at = *end == '|' ? end + 1 : end;
    }
    return true;
}

static bool phase_set(struct parser *p, const struct word *word, struct scenario_claim *claim)
{
    const char *at = word->value;
    while (*at != '\0') {
        const size_t size = strcspn(at, "|");
        bool found = false;
        for (uint32_t phase = SM_PHASE_ALLOCATED; phase < SM_PHASE_COUNT; phase++) {
            const char *name = sm_phase_name(phase);
            if (strlen(name) == size && memcmp(name, at, size) == 0) {
                claim->phases |= 1u << phase;
                found = true;
            }
        }
        if (!found) {
            return parse_wrong(p, parse_value_column(word), "'%.*s' is no phase", (int)size, at);
        }
        at += size + (at[size] == '|' ? 1u : 0u);
    }
    return true;
}

static bool outcome_set(struct parser *p, const char *text, uint32_t column, uint32_t *out)
{
    const char *at = text;
    while (*at != '\0') {
        const size_t size = strcspn(at, "|");
        if (size == 9u && memcmp(at, "succeeded", 9) == 0) {
            *out |= 1u << SM_OUTCOME_SUCCEEDED;
        } else if (size == 6u && memcmp(at, "failed", 6) == 0) {
            *out |= 1u << SM_OUTCOME_FAILED;
        } else {
            return parse_wrong(p, column, "expected succeeded or failed here");
        }
        at += size + (at[size] == '|' ? 1u : 0u);
    }
    return true;
}

static bool claim_option(struct parser *p, const struct word *word, struct scenario_claim *claim)
{
    static const char *const owners[] = {"", "engine", "node"};
    uint64_t value = 0;
    if (strcmp(word->text, "room") == 0) {
        return parse_number_value(p, word, UINT64_MAX, &claim->room);
    }
    if (strcmp(word->text, "http") == 0) {
        return choices(p, word, claim);
    }
    if (strcmp(word->text, "reason") == 0) {
        claim->reason_part = word->value[0] == '~';
        claim->reason = word->value + (claim->reason_part ? 1 : 0);
        return true;
    }
    if (strcmp(word->text, "phase") == 0) {
        return phase_set(p, word, claim);
    }
    if (strcmp(word->text, "outcome") == 0) {
        return outcome_set(p, word->value, parse_value_column(word), &claim->outcomes);
    }
    if (strcmp(word->text, "owner") == 0) {
        return parse_word_of(word->value, owners, 3, &claim->owner) && claim->owner > 0
                   ? true
                   : parse_wrong(p, parse_value_column(word), "owner=engine or owner=node");
    }
    if (strcmp(word->text, "times") == 0 || strcmp(word->text, "gen") == 0) {
        if (!parse_number_value(p, word, UINT32_MAX, &value)) {
            return false;
        }
        if (word->text[0] == 't') {
            claim->has_times = true;
            claim->times = (uint32_t)value;
        } else {
            claim->gen = (uint32_t)value;
        }
        return true;
    }
    return parse_wrong(p, word->column, "'%s=' is not known here", word->text);
}

static bool claim_options(struct parser *p, struct scenario_claim *claim)
{
    for (const struct word *word = parse_option(p); word != NULL; word = parse_option(p)) {
        if (!claim_option(p, word, claim)) {
            return false;
        }
    }
    return true;
}

static bool room_claim(struct parser *p, struct scenario_claim *claim)
{
    const uint32_t column = parse_here(p);
    const char *room = parse_take(p, "a room number");
    if (room == NULL) {
        return false;
    }
    if (!parse_number(room, UINT64_MAX, &claim->room)) {
        return parse_wrong(p, column, "'%s' is not a room number", room);
    }
    if (!parse_is_next(p, "at")) {
        return parse_wrong(p, parse_here(p), "expected `at NODE` here");
    }
    p->at++;
    claim->kind = CLAIM_ROOM;
    if (!parse_take_place(p, &claim->at)) {
        return false;
    }
    if (parse_is_next(p, "absent")) {
        claim->kind = CLAIM_ABSENT;
        p->at++;
    }
    return claim_options(p, claim);
}

static bool told_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_TOLD;
    if (!parse_take_place(p, &claim->at) || !claim_options(p, claim)) {
        return false;
    }
    const uint32_t column = parse_here(p);
    const char *outcome = parse_take(p, "succeeded or failed");
    return outcome != NULL && outcome_set(p, outcome, column, &claim->outcomes) &&
           claim_options(p, claim);
}

static bool notice_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_NOTICE;
    if (!claim_options(p, claim) || !parse_take_way(p, &claim->from, &claim->at)) {
        return false;
    }
    const uint32_t column = parse_here(p);
    const char *outcome = parse_take(p, "succeeded or failed");
    return outcome != NULL && outcome_set(p, outcome, column, &claim->outcomes) &&
           claim_options(p, claim);
}

static bool pages_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_PAGES;
    if (!parse_take_place(p, &claim->at)) {
        return false;
    }
    const uint32_t column = parse_here(p);
    const char *set = parse_take(p, "pages");
    if (set == NULL || !parse_page_set(p, set, column, &claim->runs, &claim->run_count)) {
        return false;
    }
    const uint32_t state_column = parse_here(p);
    const char *state = parse_take(p, "free or held");
    if (state == NULL) {
        return false;
    }
    claim->held = strcmp(state, "held") == 0;
    return claim->held || strcmp(state, "free") == 0
               ? true
               : parse_wrong(p, state_column, "pages are free or held");
}

static bool data_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_DATA;
    if (!parse_take_place(p, &claim->at) || !claim_options(p, claim)) {
        return false;
    }
    const uint32_t column = parse_here(p);
    const char *state = parse_take(p, "intact, partial or foreign");
    if (state == NULL) {
        return false;
    }
    claim->data = strcmp(state, "intact") == 0    ? (uint32_t)WORLD_DATA_INTACT
                  : strcmp(state, "partial") == 0 ? (uint32_t)WORLD_DATA_PARTIAL
                  : strcmp(state, "foreign") == 0 ? (uint32_t)WORLD_DATA_FOREIGN
                                                  : 0;
    return claim->data != 0 ? true : parse_wrong(p, column, "data is intact, partial or foreign");
}

static bool refused_claim(struct parser *p, struct scenario_claim *claim)
{
    static const char *const verbs[] = {"open", "admit", "reject", "send", "abort", "release"};
    static const uint32_t kinds[] = {SM_IN_OPEN, SM_IN_ADMIT, SM_IN_REJECT,
                                     SM_IN_SEND, SM_IN_ABORT, SM_IN_RELEASE};
    uint32_t which = 0;
    claim->kind = CLAIM_REFUSED;
    if (!parse_take_place(p, &claim->at) || !claim_options(p, claim)) {
        return false;
    }
    const uint32_t column = parse_here(p);
    const char *verb = parse_take(p, "a verb (open, admit, reject, send, abort, release)");
    if (verb == NULL || !parse_word_of(verb, verbs, 6, &which)) {
        return verb == NULL ? false : parse_wrong(p, column, "'%s' is no verb of an engine", verb);
    }
    claim->command = kinds[which];
    return claim_options(p, claim);
}

static bool counter_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_COUNTER;
    if (!parse_take_place(p, &claim->at)) {
        return false;
    }
    const char *name = parse_take(p, "a counter");
    if (name == NULL) {
        return false;
    }
    claim->name = name;
    if (!parse_is_next(p, ">=")) {
        return parse_wrong(p, parse_here(p), "expected `>= N` here");
    }
    p->at++;
    const uint32_t column = parse_here(p);
    const char *least = parse_take(p, "a number");
    return least != NULL && (parse_number(least, UINT64_MAX, &claim->least)
                                 ? true
                                 : parse_wrong(p, column, "'%s' is not a number", least));
}

static bool claim_line(struct parser *p, struct scenario_claim *claim)
{
    claim->at.node = SM_NONE;
    claim->at.rank = SM_NONE;
    claim->from.node = SM_NONE;
    claim->from.rank = SM_NONE;
    const uint32_t column = parse_here(p);
    const char *kind =
        parse_take(p, "a claim (room, told, notice, write, pages, data, refused, counter, "
                      "alive, quiescent)");
    if (kind == NULL) {
        return false;
    }
    if (strcmp(kind, "room") == 0) {
        return room_claim(p, claim);
    }
    if (strcmp(kind, "told") == 0) {
        return told_claim(p, claim);
    }
    if (strcmp(kind, "notice") == 0) {
        return notice_claim(p, claim);
    }
    if (strcmp(kind, "write") == 0) {
        claim->kind = CLAIM_WRITE;
        return claim_options(p, claim) &&
               (!parse_more(p) || strchr(p->words[p->at].text, '>') == NULL ||
                parse_take_way(p, &claim->from, &claim->at)) &&
               claim_options(p, claim);
    }
    if (strcmp(kind, "pages") == 0) {
        return pages_claim(p, claim);
    }
    if (strcmp(kind, "data") == 0) {
        return data_claim(p, claim);
    }
    if (strcmp(kind, "refused") == 0) {
        return refused_claim(p, claim);
    }
    if (strcmp(kind, "counter") == 0) {
        return counter_claim(p, claim);
    }
    if (strcmp(kind, "alive") == 0) {
        claim->kind = CLAIM_ALIVE;
        return parse_take_place(p, &claim->at);
    }
    claim->kind = CLAIM_QUIESCENT;
    return strcmp(kind, "quiescent") == 0 ? true : parse_wrong(p, column, "'%s' is no claim", kind);
}

bool parse_expectation(struct parser *p, enum scenario_when when, uint64_t time_ns)
{
    struct scenario *s = p->s;
    if (s->expectation_count == SCENARIO_STATEMENTS_MAX) {
        return parse_wrong(p, 1, "more than %u expectations", SCENARIO_STATEMENTS_MAX);
    }
    s->expectations = array_grow(s->expectations, &s->expectation_capacity, s->expectation_count,
                                 sizeof *s->expectations);
    struct scenario_expectation *e = &s->expectations[s->expectation_count++];
    memset(e, 0, sizeof *e);
    e->line = p->line;
    e->when = when;
    e->time_ns = time_ns;
    e->words = chunks_text(&s->memory, p->line_text, p->line_size);
    if (!claim_line(p, &e->claim)) {
        return false;
    }
    if (when == WHEN_NEVER && parse_is_next(p, "before")) {
        p->at++;
        if (!parse_take_time(p, &e->time_ns)) {
            return false;
        }
    }
    return parse_finish(p);
}
