/* SPDX-License-Identifier: Apache-2.0 */
/* Statements in time. */
#include "scenario_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- statements in time
 * ------------------------------------------------------------------------------ */

static struct scenario_statement *statement(struct parser *p, uint64_t time_ns,
                                            enum scenario_verb verb)
{
    struct scenario *s = p->s;
    if (s->statement_count == SCENARIO_STATEMENTS_MAX) {
        (void)parse_wrong(p, 1, "more than %u statements", SCENARIO_STATEMENTS_MAX);
        return NULL;
    }
    s->statements = array_grow(s->statements, &s->statement_capacity, s->statement_count,
                               sizeof *s->statements);
    struct scenario_statement *made = &s->statements[s->statement_count++];
    memset(made, 0, sizeof *made);
    made->line = p->line;
    made->time_ns = time_ns;
    made->verb = verb;
    made->aux = SM_AUX_NONE;
    made->count = 1;
    made->at.node = SM_NONE;
    made->other.node = SM_NONE;
    return made;
}

static bool command_option(struct parser *p, const struct word *word, struct scenario_statement *s)
{
    static const char *const origins[] = {"", "engine", "client", "operator"};
    uint64_t value = 0;
    bool well = true;
    if (strcmp(word->text, "room") == 0) {
        well = parse_number_value(p, word, UINT64_MAX, &s->room);
        s->ns = 1; /* named */
    } else if (strcmp(word->text, "pages") == 0) {
        well = parse_page_set(p, word->value, parse_value_column(word), &s->runs, &s->run_count);
    } else if (strcmp(word->text, "deadline") == 0) {
        well = parse_time_value(word->value, &s->deadline_ns)
                   ? true
                   : parse_wrong(p, parse_value_column(word), "'%s' is not a time", word->value);
    } else if (strcmp(word->text, "destinations") == 0) {
        well = parse_number_value(p, word, SM_DESTINATIONS_MAX, &value);
        s->destinations = (uint32_t)value;
    } else if (strcmp(word->text, "prefix") == 0) {
        well = parse_number_value(p, word, UINT32_MAX, &value);
        s->prefix = (uint32_t)value;
    } else if (strcmp(word->text, "aux") == 0) {
        well = parse_number_value(p, word, UINT32_MAX - 1u, &value);
        s->aux = (uint32_t)value;
    } else if (strcmp(word->text, "http") == 0) {
        well = parse_number_value(p, word, 999, &value);
        s->http = (uint32_t)value;
    } else if (strcmp(word->text, "from") == 0) {
        s->from = word->value;
    } else if (strcmp(word->text, "reason") == 0) {
        s->text = word->value;
    } else if (strcmp(word->text, "by") == 0) {
        well =
            parse_word_of(word->value, origins, 4, &s->origin) && s->origin > 0
                ? true
                : parse_wrong(p, parse_value_column(word), "by=engine, by=client or by=operator");
    } else {
        well = parse_wrong(p, word->column, "'%s=' is not known here", word->text);
    }
    return well;
}

static bool engine_verb(struct parser *p, uint64_t time_ns, const struct scenario_place *at,
                        uint32_t kind)
{
    struct scenario_statement *s = statement(p, time_ns, VERB_COMMAND);
    if (s == NULL) {
        return false;
    }
    s->at = *at;
    s->command = kind;
    const uint32_t side = p->s->nodes[at->node].side;
    if (side == SM_DECODE && (kind == SM_IN_ADMIT || kind == SM_IN_SEND)) {
        return parse_wrong(p, p->words[p->at - 1u].column, "a decode rank has no such verb");
    }
    while (parse_more(p)) {
        const struct word *word = parse_option(p);
        if (word != NULL) {
            if (!command_option(p, word, s)) {
                return false;
            }
        } else if (kind == SM_IN_SEND && parse_is_next(p, "last")) {
            s->flag = true;
            p->at++;
        } else {
            return parse_wrong(p, parse_here(p), "'%s' is not known here", p->words[p->at].text);
        }
    }
    if (s->ns == 0) {
        return parse_wrong(p, p->line_end, "expected room=NUMBER here");
    }
    if (kind == SM_IN_SEND && s->runs == NULL) {
        return parse_wrong(p, p->line_end, "expected pages=SET here");
    }
    return true;
}

/* 0xHEX as bytes, at most half as many as the text has characters. */
static bool hex_into(struct parser *p, const char *text, uint32_t column, unsigned char *out,
                     size_t *out_size)
{
    const size_t digits = strlen(text) < 2u ? 1u : strlen(text) - 2u;
    if (strncmp(text, "0x", 2) != 0 || digits % 2u != 0) {
        return parse_wrong(p, column, "expected 0x and an even number of hexadecimal digits");
    }
    *out_size = digits / 2u;
    for (size_t i = 0; i < digits; i++) {
        uint32_t nibble = 0;
        if (!parse_hex_digit(text[2u + i], &nibble)) {
            return parse_wrong(p, column + 2u + (uint32_t)i, "not a hexadecimal digit");
        }
        out[i / 2u] = (unsigned char)((uint32_t)out[i / 2u] << 4 | nibble);
    }
    return true;
}

static bool hex_bytes(struct parser *p, struct scenario_statement *s)
{
    const uint32_t column = parse_here(p);
    const char *text = parse_take(p, "0xHEX");
    if (text == NULL) {
        return false;
    }
    s->bytes = chunks_take_zeroed(&p->s->memory, strlen(text) + 1u);
    return hex_into(p, text, column, s->bytes, &s->size);
}

/* Whether anybody speaks to this node in frames: else nobody listens there. */
static bool has_port(const struct parser *p, uint32_t node)
{
    for (uint32_t i = 0; i < p->s->node_count; i++) {
        if (p->s->nodes[i].sglang && (i == node || p->s->nodes[i].side != p->s->nodes[node].side)) {
            return true;
        }
    }
    return false;
}

/* frames PART...: each is "text", which may hold any bytes, or 0xHEX. */
static bool frames_verb(struct parser *p, uint64_t time_ns, const struct scenario_place *at)
{
    struct scenario_statement *s = statement(p, time_ns, VERB_FRAMES);
    size_t most = 1;
    if (s == NULL) {
        return false;
    }
    s->at = *at;
    if (!has_port(p, at->node)) {
        return parse_wrong(
            p, p->words[p->at - 1u].column,
            "%s has no port for SGLang's frames: say wire=sglang at it, or at a node "
            "that it speaks with",
            p->s->nodes[at->node].name);
    }
    if (!parse_more(p)) {
        return parse_wrong(p, p->line_end, "expected \"text\" or 0xHEX here");
    }
    for (uint32_t i = p->at; i < p->count; i++) {
        most += p->words[i].size;
    }
    s->bytes = chunks_take_zeroed(&p->s->memory, most);
    s->runs = chunks_take_zeroed(&p->s->memory, (p->count - p->at) * sizeof *s->runs);
    for (; parse_more(p); p->at++) {
        const struct word *word = &p->words[p->at];
        size_t size = word->size;
        if (word->quoted) {
            memcpy(s->bytes + s->size, word->text, size);
        } else if (word->value != NULL) {
            return parse_wrong(p, word->column, "expected \"text\" or 0xHEX here");
        } else if (!hex_into(p, word->text, word->column, s->bytes + s->size, &size)) {
            return false;
        }
        s->runs[s->run_count++] = (struct sm_run){(uint32_t)s->size, (uint32_t)size};
        s->size += size;
    }
    return true;
}

/* Verbs of a node's process; *out_known false: it is none. */
static bool node_verb(struct parser *p, uint64_t time_ns, const struct scenario_place *at,
                      const char *verb, bool *out_known)
{
    static const char *const names[] = {"crash", "restart", "stop",  "freeze", "thaw",
                                        "disk",  "bytes",   "reuse", "mute",   "unmute"};
    static const enum scenario_verb verbs[] = {VERB_CRASH, VERB_RESTART, VERB_STOP,  VERB_FREEZE,
                                               VERB_THAW,  VERB_DISK,    VERB_BYTES, VERB_REUSE,
                                               VERB_MUTE,  VERB_UNMUTE};
    static const char *const disks[] = {"ok", "full", "fail"};
    uint32_t which = 0;
    *out_known = parse_word_of(verb, names, 10, &which);
    if (!*out_known) {
        return true;
    }
    struct scenario_statement *s = statement(p, time_ns, verbs[which]);
    if (s == NULL) {
        return false;
    }
    s->at = *at;
    if (verbs[which] < VERB_LINK && verbs[which] >= VERB_CRASH && at->rank != SM_NONE) {
        return parse_wrong(p, p->words[p->at - 2u].column, "'%s' is about a node, not a rank",
                           verb);
    }
    const struct word *word = parse_option(p);
    if (word != NULL && s->verb == VERB_CRASH && strcmp(word->text, "after") == 0 &&
        strcmp(word->value, "commit") == 0) {
        s->flag = true;
    } else if (word != NULL && s->verb == VERB_REUSE && strcmp(word->text, "pages") == 0) {
        if (!parse_page_set(p, word->value, parse_value_column(word), &s->runs, &s->run_count)) {
            return false;
        }
    } else if (word != NULL) {
        return parse_wrong(p, word->column, "'%s=%s' is not known here", word->text, word->value);
    }
    if (s->verb == VERB_RESTART && parse_is_next(p, "wipe")) {
        s->flag = true;
        p->at++;
    } else if (s->verb == VERB_BYTES && !hex_bytes(p, s)) {
        return false;
    } else if (s->verb == VERB_DISK) {
        const uint32_t column = parse_here(p);
        const char *disk = parse_take(p, "full, fail or ok");
        if (disk == NULL || !parse_word_of(disk, disks, 3, &s->number)) {
            return disk == NULL ? false : parse_wrong(p, column, "a disk is full, fail or ok");
        }
    } else if (s->verb == VERB_REUSE && s->runs == NULL) {
        return parse_wrong(p, p->line_end, "expected pages=SET here");
    }
    return parse_finish(p);
}

bool parse_subject(struct parser *p, uint64_t time_ns)
{
    static const char *const verbs[] = {"open", "admit", "reject", "send", "abort", "release"};
    static const uint32_t kinds[] = {SM_IN_OPEN, SM_IN_ADMIT, SM_IN_REJECT,
                                     SM_IN_SEND, SM_IN_ABORT, SM_IN_RELEASE};
    struct scenario_place at;
    uint32_t which = 0;
    bool known = false;
    if (!parse_take_place(p, &at)) {
        return false;
    }
    const uint32_t column = parse_here(p);
    const char *verb =
        parse_take(p, "a verb (open, admit, reject, send, abort, release, crash, ...)");
    if (verb == NULL) {
        return false;
    }
    if (parse_word_of(verb, verbs, 6, &which)) {
        return engine_verb(p, time_ns, &at, kinds[which]);
    }
    if (strcmp(verb, "frames") == 0) {
        return frames_verb(p, time_ns, &at);
    }
    if (!node_verb(p, time_ns, &at, verb, &known)) {
        return false;
    }
    return known ? true : parse_wrong(p, column, "'%s' is no verb", verb);
}

/* ---- network and fabric
 * ------------------------------------------------------------------------------- */

bool parse_link(struct parser *p, uint64_t time_ns)
{
    struct scenario_statement *s = statement(p, time_ns, VERB_LINK);
    if (s == NULL) {
        return false;
    }
    s->one_way = parse_more(p) && strchr(p->words[p->at].text, '>') != NULL;
    if (s->one_way ? !parse_take_way(p, &s->at, &s->other)
                   : !parse_take_place(p, &s->at) || !parse_take_place(p, &s->other)) {
        return false;
    }
    const uint32_t column = parse_here(p);
    const char *state = parse_take(p, "down or up");
    if (state == NULL) {
        return false;
    }
    s->flag = strcmp(state, "up") == 0;
    return s->flag || strcmp(state, "down") == 0 ? parse_finish(p)
                                                 : parse_wrong(p, column, "a link is down or up");
}

bool parse_latency(struct parser *p, uint64_t time_ns)
{
    struct scenario_statement *s = statement(p, time_ns, VERB_LATENCY);
    return s != NULL && parse_take_place(p, &s->at) && parse_take_place(p, &s->other) &&
           parse_take_time(p, &s->ns) && parse_finish(p);
}

bool parse_rule(struct parser *p, uint64_t time_ns, enum world_rule_kind kind)
{
    static const char *const messages[] = {"any", "hello", "prepare", "status",
                                           "ack", "abort", "drained", "heartbeat"};
    struct scenario_statement *s = statement(p, time_ns, VERB_RULE);
    uint64_t value = 0;
    if (s == NULL || !parse_take_way(p, &s->at, &s->other)) {
        return false;
    }
    s->number = (uint32_t)kind;
    const uint32_t column = parse_here(p);
    const char *message =
        parse_take(p, "a kind of message (hello, prepare, status, ack, abort, drained, "
                      "heartbeat, any)");
    if (message == NULL) {
        return false;
    }
    if (!parse_word_of(message, messages, 8, &s->message)) {
        return parse_wrong(p, column, "'%s' is no kind of message", message);
    }
    for (const struct word *word = parse_option(p); word != NULL; word = parse_option(p)) {
        if (strcmp(word->text, "room") == 0) {
            if (!parse_number_value(p, word, UINT64_MAX, &s->room)) {
                return false;
            }
        } else if (strcmp(word->text, "count") == 0) {
            if (!parse_number_value(p, word, UINT32_MAX, &value)) {
                return false;
            }
            s->count = (uint32_t)value;
        } else if (kind == WORLD_DELAY && strcmp(word->text, "by") == 0) {
            if (!parse_time_value(word->value, &s->ns)) {
                return parse_wrong(p, parse_value_column(word), "'%s' is not a time", word->value);
            }
        } else {
            return parse_wrong(p, word->column, "'%s=' is not known here", word->text);
        }
    }
    if (kind == WORLD_DELAY && s->ns == 0) {
        return parse_wrong(p, p->line_end, "expected by=TIME here");
    }
    return parse_finish(p);
}

static bool fabric_options(struct parser *p, struct scenario_statement *s)
{
    uint64_t value = 0;
    for (const struct word *word = parse_option(p); word != NULL; word = parse_option(p)) {
        if (strcmp(word->text, "room") == 0) {
            if (!parse_number_value(p, word, UINT64_MAX, &s->room)) {
                return false;
            }
        } else if (s->verb == VERB_FABRIC_FAIL && strcmp(word->text, "count") == 0) {
            if (!parse_number_value(p, word, UINT32_MAX, &value)) {
                return false;
            }
            s->count = (uint32_t)value;
        } else if (s->verb == VERB_FABRIC_FAIL && strcmp(word->text, "code") == 0) {
            s->text = word->value;
        } else if (s->verb == VERB_FABRIC_FAIL && strcmp(word->text, "at") == 0 &&
                   strcmp(word->value, "post") == 0) {
            s->flag = true;
        } else {
            return parse_wrong(p, word->column, "'%s=%s' is not known here", word->text,
                               word->value);
        }
    }
    return parse_finish(p);
}

bool parse_fabric(struct parser *p, uint64_t time_ns)
{
    static const char *const words[] = {"hold", "resume", "fail"};
    static const enum scenario_verb verbs[] = {VERB_FABRIC_HOLD, VERB_FABRIC_RESUME,
                                               VERB_FABRIC_FAIL};
    struct scenario_statement *s = statement(p, time_ns, VERB_FABRIC_TIME);
    uint32_t which = 0;
    if (s == NULL || !parse_take_place(p, &s->at) || !parse_take_place(p, &s->other)) {
        return false;
    }
    s->text = "the fabric reports an error";
    if (parse_more(p) && parse_word_of(p->words[p->at].text, words, 3, &which)) {
        p->at++;
        s->verb = verbs[which];
        return fabric_options(p, s);
    }
    return parse_take_time(p, &s->ns) && parse_finish(p);
}
