/* SPDX-License-Identifier: Apache-2.0 */
/* The lines that a walk understands. */
#include "stepper.h"

#include "schemas/text.h"

#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 24u

struct words {
    char text[WORDS_MAX][STEPS_TEXT_MAX];
    uint32_t count;
};

static bool wrong(char *error, size_t size, const char *what, const char *word)
{
    char clean[STEPS_TEXT_MAX];
    (void)text_clean(word, strlen(word), clean, sizeof clean);
    (void)snprintf(error, size, "'%s' %s", clean, what);
    (void)text_clean(error, strlen(error), error, size); /* it may have been cut in a character */
    return false;
}

/* Blanks and = part words; "..." keeps them together. */
static bool split(const char *line, struct words *words, char *error, size_t size)
{
    words->count = 0;
    for (const char *at = line; *at != '\0';) {
        if (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n' || *at == '=') {
            at++;
            continue;
        }
        const bool quoted = *at == '"';
        const char *from = at + quoted;
        const size_t bytes = strcspn(from, quoted ? "\"" : " \t\r\n=");
        if (quoted && from[bytes] == '\0') {
            return wrong(error, size, "has no closing quote", from);
        }
        if (words->count == WORDS_MAX || bytes >= STEPS_TEXT_MAX) {
            return wrong(error, size, "is too much for one line", "this");
        }
        memcpy(words->text[words->count], from, bytes);
        words->text[words->count++][bytes] = '\0';
        at = from + bytes + quoted;
    }
    return true;
}

/* The number that has a name; 0: none has. */
static uint32_t named(const char *word, uint32_t count, const char *(*name)(uint32_t))
{
    for (uint32_t i = 1; i < count; i++) {
        if (strcmp(name(i), word) == 0 && strcmp(word, "none") != 0) {
            return i;
        }
    }
    return 0;
}

enum key {
    KEY_ROOM,
    KEY_SIDE,
    KEY_RANK,
    KEY_PHASE,
    KEY_INPUT,
    KEY_TRANSITION,
    KEY_EFFECT,
    KEY_HTTP,
    KEY_REASON,
    KEY_COUNT
};
static const char *const keys[KEY_COUNT] = {"room",       "side",   "rank", "phase", "input",
                                            "transition", "effect", "http", "reason"};

static bool set_number(const char *value, uint64_t most, uint64_t *out, char *error, size_t size)
{
    if (!cli_parse_number(value, out) || *out > most) {
        return wrong(error, size, "is not a number that fits here", value);
    }
    return true;
}

static bool set_name(uint32_t number, const char *value, uint32_t *out, char *error, size_t size)
{
    *out = number;
    return number != 0 || wrong(error, size, "names nothing of that kind", value);
}

static bool set_key(struct steps_condition *c, enum key key, const char *value, char *error,
                    size_t size)
{
    uint64_t number = 0;
    switch ((int)key) {
    case KEY_ROOM:
        return set_number(value, UINT64_MAX, &c->room, error, size);
    case KEY_RANK:
        if (!set_number(value, SM_RANKS_MAX - 1u, &number, error, size)) {
            return false;
        }
        c->rank = (uint32_t)number;
        return true;
    case KEY_HTTP:
        if (!set_number(value, 999u, &number, error, size)) {
            return false;
        }
        c->http = (uint32_t)number;
        return true;
    case KEY_SIDE:
        return set_name(named(value, SM_SIDE_COUNT, sm_side_name), value, &c->side, error, size);
    case KEY_PHASE:
        return set_name(named(value, SM_PHASE_COUNT, sm_phase_name), value, &c->phase, error, size);
    case KEY_INPUT:
        return set_name(named(value, SM_IN_COUNT, sm_input_name), value, &c->input, error, size);
    case KEY_TRANSITION:
        return set_name(named(value, SM_TR_COUNT, sm_transition_name), value, &c->transition, error,
                        size);
    case KEY_EFFECT:
        return set_name(named(value, SM_FX_COUNT, sm_effect_name), value, &c->effect, error, size);
    case KEY_REASON:
    default:
        (void)snprintf(c->reason, sizeof c->reason, "%s", value);
        return true;
    }
}

/* A word by itself: a phase, else a transition, else an input, else an effect. */
static bool set_bare(struct steps_condition *c, const char *word, char *error, size_t size)
{
    c->phase = named(word, SM_PHASE_COUNT, sm_phase_name);
    if (c->phase == 0) {
        c->transition = named(word, SM_TR_COUNT, sm_transition_name);
    }
    if (c->phase == 0 && c->transition == 0) {
        c->input = named(word, SM_IN_COUNT, sm_input_name);
    }
    if (c->phase == 0 && c->transition == 0 && c->input == 0) {
        c->effect = named(word, SM_FX_COUNT, sm_effect_name);
    }
    return c->phase != 0 || c->transition != 0 || c->input != 0 || c->effect != 0 ||
           wrong(error, size,
                 "is no condition: room, side, rank, phase, input, transition, effect, http or "
                 "reason with a value, or the name of a phase, transition, input or effect",
                 word);
}

static bool parse_condition(const struct words *words, uint32_t from, struct steps_condition *c,
                            char *error, size_t size)
{
    for (uint32_t i = from; i < words->count; i++) {
        uint32_t key = 0;
        while (key < KEY_COUNT && strcmp(keys[key], words->text[i]) != 0) {
            key++;
        }
        if (key == KEY_COUNT) {
            if (!set_bare(c, words->text[i], error, size)) {
                return false;
            }
            continue;
        }
        if (i + 1u == words->count) {
            return wrong(error, size, "needs a value", words->text[i]);
        }
        if (!set_key(c, (enum key)key, words->text[++i], error, size)) {
            return false;
        }
    }
    return true;
}

static bool parse_goto(const char *word, struct steps_command *out, char *error, size_t size)
{
    if (strcmp(word, "first") == 0) {
        out->anchor = STEPS_FIRST;
        return true;
    }
    if (strcmp(word, "last") == 0) {
        out->anchor = STEPS_LAST;
        return true;
    }
    const bool relative = word[0] == '+' || word[0] == '-';
    out->anchor = word[0] == '+' ? STEPS_FORWARD : word[0] == '-' ? STEPS_BACKWARD : STEPS_ABSOLUTE;
    return set_number(word + relative, UINT64_MAX, &out->number, error, size);
}

/* "room R" or "R" at place i; the end of the line: 0. */
static bool parse_room(const struct words *words, uint32_t i, uint64_t *out_room, char *error,
                       size_t size)
{
    if (i < words->count && strcmp(words->text[i], "room") == 0) {
        i++;
        if (i == words->count) {
            return wrong(error, size, "needs a number", "room");
        }
    }
    if (i == words->count) {
        return true;
    }
    return i + 1u < words->count ? wrong(error, size, "is one word too many", words->text[i + 1u])
                                 : set_number(words->text[i], UINT64_MAX, out_room, error, size);
}

static bool parse_diff(const struct words *words, struct steps_command *out, char *error,
                       size_t size)
{
    uint32_t i = 2;
    if (words->count < 2u) {
        return wrong(error, size, "needs an entry's number, or two", "diff");
    }
    if (!set_number(words->text[1], UINT64_MAX, &out->number, error, size)) {
        return false;
    }
    if (i < words->count && strcmp(words->text[i], "room") != 0 &&
        !set_number(words->text[i++], UINT64_MAX, &out->second, error, size)) {
        return false;
    }
    return parse_room(words, i, &out->room, error, size);
}

static const struct {
    const char *word;
    enum steps_verb verb;
} verbs[] = {{"next", STEPS_NEXT},     {"n", STEPS_NEXT},     {"previous", STEPS_PREVIOUS},
             {"prev", STEPS_PREVIOUS}, {"p", STEPS_PREVIOUS}, {"goto", STEPS_GOTO},
             {"g", STEPS_GOTO},        {"run", STEPS_RUN},    {"r", STEPS_RUN},
             {"back", STEPS_BACK},     {"b", STEPS_BACK},     {"show", STEPS_SHOW},
             {"state", STEPS_STATE},   {"s", STEPS_STATE},    {"diff", STEPS_DIFF},
             {"d", STEPS_DIFF},        {"room", STEPS_ROOM},  {"help", STEPS_HELP},
             {"h", STEPS_HELP},        {"?", STEPS_HELP},     {"quit", STEPS_QUIT},
             {"q", STEPS_QUIT},        {"exit", STEPS_QUIT}};

static bool parse_verb(const char *word, enum steps_verb *out, char *error, size_t size)
{
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(verbs[i].word, word) == 0) {
            *out = verbs[i].verb;
            return true;
        }
    }
    return wrong(error, size, "is not a command; help lists them", word);
}

static bool parse_rest(const struct words *words, struct steps_command *out, char *error,
                       size_t size)
{
    switch ((int)out->verb) {
    case STEPS_NEXT:
    case STEPS_PREVIOUS:
        out->number = 1;
        if (words->count > 2u) {
            return wrong(error, size, "is one word too many", words->text[2]);
        }
        return words->count < 2u ||
               set_number(words->text[1], UINT64_MAX, &out->number, error, size);
    case STEPS_GOTO:
        if (words->count != 2u) {
            return wrong(error, size, "needs an entry: N, +N, -N, first or last", "goto");
        }
        return parse_goto(words->text[1], out, error, size);
    case STEPS_BACK:
        if (words->count == 1u) {
            return wrong(error, size, "needs a condition", words->text[0]);
        }
        return parse_condition(words, 1, &out->condition, error, size);
    case STEPS_RUN:
        out->condition.nothing = words->count == 1u;
        return parse_condition(words, 1, &out->condition, error, size);
    case STEPS_STATE:
    case STEPS_ROOM:
        return parse_room(words, 1, &out->room, error, size);
    case STEPS_DIFF:
        return parse_diff(words, out, error, size);
    default:
        return words->count == 1u || wrong(error, size, "is one word too many", words->text[1]);
    }
}

bool steps_parse(const char *line, struct steps_command *out, char *error, size_t size)
{
    struct words words;
    memset(out, 0, sizeof *out);
    out->condition.rank = SM_NONE;
    error[0] = '\0';
    const char *begin = line + strspn(line, " \t\r\n");
    if (*begin == '\0' || *begin == '#') {
        return true;
    }
    return split(begin, &words, error, size) &&
           (words.count > 0 || wrong(error, size, "is not a command; help lists them", "=")) &&
           parse_verb(words.text[0], &out->verb, error, size) &&
           parse_rest(&words, out, error, size);
}

/* ---- fitting
 * ----------------------------------------------------------------------------------------------
 */

static bool holds(struct sm_text text, const char *part)
{
    const size_t bytes = strlen(part);
    for (size_t at = 0; bytes <= text.size && at <= text.size - bytes; at++) {
        if (memcmp(text.bytes + at, part, bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* Which of the wanted things one transition has: a bit for each of phase, transition, http, reason.
 */
enum { HAS_PHASE = 1, HAS_TRANSITION = 2, HAS_HTTP = 4, HAS_REASON = 8, HAS_PLACE = 16 };

static uint32_t wanted_of(const struct steps_condition *c)
{
    return (c->phase != 0 ? HAS_PHASE : 0) | (c->transition != 0 ? HAS_TRANSITION : 0) |
           (c->http != 0 ? HAS_HTTP : 0) | (c->reason[0] != '\0' ? HAS_REASON : 0) |
           (c->side != 0 || c->rank != SM_NONE ? HAS_PLACE : 0);
}

static uint32_t found_in(const struct steps_condition *c, const struct sm_transition *t)
{
    const bool with_http =
        t->kind == SM_TR_VERDICT || t->kind == SM_TR_CAUSE_REPLACED || t->kind == SM_TR_REFUSED;
    if ((c->room != 0 && t->room != c->room) || (c->side != 0 && t->side != c->side) ||
        (c->rank != SM_NONE && t->rank != c->rank && t->rank != SM_NONE)) {
        return 0;
    }
    return (t->kind == SM_TR_PHASE && t->b == c->phase ? HAS_PHASE : 0) |
           (t->kind == c->transition ? HAS_TRANSITION : 0) |
           (with_http && t->b == c->http ? HAS_HTTP : 0) |
           (holds(t->text, c->reason) ? HAS_REASON : 0) |
           (c->rank == SM_NONE || t->rank == c->rank ? HAS_PLACE : 0);
}

static bool ordered(const struct steps_condition *c, const struct sm_output *output)
{
    for (uint32_t i = 0; i < output->effect_count; i++) {
        const struct sm_effect *e = &output->effects[i];
        if (e->kind == c->effect && (c->room == 0 || e->room == c->room) &&
            (c->side == 0 || e->side == c->side) && (c->rank == SM_NONE || e->rank == c->rank)) {
            return true;
        }
    }
    return false;
}

bool steps_fits(const struct steps_condition *c, const struct codec_entry *entry,
                const struct sm_output *output)
{
    const uint32_t wanted = wanted_of(c);
    uint32_t found = 0;
    bool about = c->room == 0 || entry->input.room == c->room;
    if (c->nothing || (c->input != 0 && entry->input.kind != c->input)) {
        return false;
    }
    for (uint32_t i = 0; i < output->transition_count; i++) {
        about = about || output->transitions[i].room == c->room;
        found |= found_in(c, &output->transitions[i]);
    }
    return about && (found & wanted) == wanted && (c->effect == 0 || ordered(c, output));
}
