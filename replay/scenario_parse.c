/* SPDX-License-Identifier: Apache-2.0 */
/* Text to statements and expectations. */
#include "scenario.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 64u
#define RUNS_MAX 4096u

struct word {
    char *text; /* unescaped */
    uint32_t column;
    uint32_t size; /* bytes of text: a quoted word may hold zeros */
    char *value;   /* after `=`, NULL without one */
    bool quoted;   /* as a whole */
};

struct parser {
    struct scenario *s;
    struct scenario_error *error;
    struct word words[WORDS_MAX];
    uint32_t count;
    uint32_t at; /* the word that is next */
    uint32_t line;
    uint32_t line_end; /* column behind the last word */
    char *line_text;
    bool body; /* a statement in time was seen: the head is over */
};

__attribute__((format(printf, 3, 4))) static bool wrong(struct parser *p, uint32_t column,
                                                        const char *format, ...)
{
    va_list arguments;
    p->error->line = p->line;
    p->error->column = column;
    va_start(arguments, format);
    (void)vsnprintf(p->error->text, sizeof p->error->text, format, arguments);
    va_end(arguments);
    return false;
}

static void *own(struct scenario *s, void *memory)
{
    if (s->owned_count == s->owned_capacity) {
        s->owned_capacity = s->owned_capacity == 0 ? 64u : s->owned_capacity * 2u;
        void **grown = realloc(s->owned, s->owned_capacity * sizeof(void *));
        if (grown == NULL) {
            abort();
        }
        s->owned = grown;
    }
    if (memory == NULL) {
        abort();
    }
    s->owned[s->owned_count++] = memory;
    return memory;
}

static char *own_text(struct scenario *s, const char *text)
{
    return own(s, strdup(text));
}

void scenario_free(struct scenario *s)
{
    for (uint32_t i = 0; i < s->owned_count; i++) {
        free(s->owned[i]);
    }
    free(s->owned);
    free(s->statements);
    free(s->expectations);
    memset(s, 0, sizeof *s);
}

/* ---- words
 * ---------------------------------------------------------------------------------------------- */

static bool hex_digit(char c, uint32_t *out)
{
    *out = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
           : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10u
           : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10u
                                  : 16u;
    return *out < 16u;
}

/* Inside quotes, from behind the first; *io stands behind the last one afterwards. */
static bool quoted(struct parser *p, const char *line, size_t size, size_t *io, char *out,
                   uint32_t *out_size)
{
    size_t at = *io;
    while (at < size && line[at] != '"') {
        char c = line[at++];
        if (c == '\\') {
            const char escape = at < size ? line[at++] : '\0';
            uint32_t high = 0;
            uint32_t low = 0;
            if (escape == 'n') {
                c = '\n';
            } else if (escape == '"' || escape == '\\') {
                c = escape;
            } else if (escape == 'x' && at + 1u < size && hex_digit(line[at], &high) &&
                       hex_digit(line[at + 1u], &low)) {
                c = (char)(high * 16u + low);
                at += 2u;
            } else {
                return wrong(p, (uint32_t)at, "expected \\\", \\\\, \\n or \\xHH here");
            }
        }
        out[(*out_size)++] = c;
    }
    if (at >= size) {
        return wrong(p, (uint32_t)*io, "the quotes that begin here do not end on this line");
    }
    *io = at + 1u;
    return true;
}

static bool one_word(struct parser *p, const char *line, size_t size, size_t *io)
{
    struct word *word = &p->words[p->count];
    char *out = own(p->s, calloc(1, size + 2u));
    memset(word, 0, sizeof *word);
    word->text = out;
    word->column = (uint32_t)*io + 1u;
    word->quoted = line[*io] == '"';
    while (*io < size && line[*io] != ' ' && line[*io] != '\t') {
        const char c = line[*io];
        (*io)++;
        if (c == '"') {
            if (!quoted(p, line, size, io, out, &word->size)) {
                return false;
            }
        } else if (c == '=' && word->value == NULL && !word->quoted && word->size > 0) {
            out[word->size++] = '\0';
            word->value = out + word->size;
        } else if ((unsigned char)c < 32u || c == 127) {
            return wrong(p, (uint32_t)*io, "a control character");
        } else {
            out[word->size++] = c;
        }
    }
    return true;
}

static bool split(struct parser *p, const char *line, size_t size)
{
    size_t at = 0;
    p->count = 0;
    p->at = 0;
    while (at < size) {
        if (line[at] == ' ' || line[at] == '\t' || line[at] == '\r') {
            at++;
            continue;
        }
        if (line[at] == '#') {
            break;
        }
        if (p->count == WORDS_MAX) {
            return wrong(p, (uint32_t)at + 1u, "more than %u words on a line", WORDS_MAX);
        }
        if (!one_word(p, line, size, &at)) {
            return false;
        }
        p->count++;
        p->line_end = (uint32_t)at + 1u;
    }
    return true;
}

static bool more(const struct parser *p)
{
    return p->at < p->count;
}

static uint32_t here(const struct parser *p)
{
    return more(p) ? p->words[p->at].column : p->line_end;
}

/* The next word, which must be there and have no `=`. */
static const char *take(struct parser *p, const char *expected)
{
    if (!more(p) || p->words[p->at].value != NULL) {
        (void)wrong(p, here(p), "expected %s here", expected);
        return NULL;
    }
    return p->words[p->at++].text;
}

static bool is_next(const struct parser *p, const char *text)
{
    return more(p) && p->words[p->at].value == NULL && strcmp(p->words[p->at].text, text) == 0;
}

static bool finish(struct parser *p)
{
    return more(p) ? wrong(p, here(p), "'%s' is one word too many", p->words[p->at].text) : true;
}

/* ---- values
 * --------------------------------------------------------------------------------------------- */

static bool number(const char *text, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *out <= most;
}

static bool time_value(const char *text, uint64_t *out)
{
    const size_t size = strlen(text);
    if (strcmp(text, "0") == 0) {
        *out = 0;
        return true;
    }
    const bool unit = size > 1u && text[size - 1u] == 's' &&
                      (text[size - 2u] == 'u' || text[size - 2u] == 'm' ||
                       (text[size - 2u] >= '0' && text[size - 2u] <= '9'));
    /* A year: nobody waits longer, and sums stay in 64 bits. */
    return unit && duration_parse(text, out) && *out <= UINT64_C(31536000000000000);
}

static bool take_time(struct parser *p, uint64_t *out)
{
    const uint32_t column = here(p);
    const char *text = take(p, "a time (like 5ms, 2s, 0)");
    if (text == NULL) {
        return false;
    }
    return time_value(text, out)
               ? true
               : wrong(p, column, "'%s' is not a time: an integer with us, ms or s, or 0", text);
}

static struct word *option(struct parser *p)
{
    return more(p) && p->words[p->at].value != NULL ? &p->words[p->at++] : NULL;
}

static uint32_t value_column(const struct word *word)
{
    return word->column + (uint32_t)strlen(word->text) + 1u;
}

static bool number_value(struct parser *p, const struct word *word, uint64_t most, uint64_t *out)
{
    return number(word->value, most, out)
               ? true
               : wrong(p, value_column(word), "%s: '%s' is not a number from 0 to %" PRIu64,
                       word->text, word->value, most);
}

/* "0-63,70,72"; an empty text is no page. */
static bool page_set(struct parser *p, const char *text, uint32_t column, struct sm_run **out_runs,
                     uint32_t *out_count)
{
    struct sm_run *runs = own(p->s, calloc(RUNS_MAX, sizeof *runs));
    uint32_t count = 0;
    const char *at = text;
    while (*at != '\0') {
        char *end = NULL;
        const unsigned long first = at[0] >= '0' && at[0] <= '9' ? strtoul(at, &end, 10) : 0;
        unsigned long last = first;
        if (end != NULL && *end == '-' && end[1] >= '0' && end[1] <= '9') {
            last = strtoul(end + 1, &end, 10);
        }
        if (end == NULL || last < first || last > UINT32_MAX - 1u ||
            (*end != ',' && *end != '\0') || (*end == ',' && end[1] == '\0')) {
            return wrong(p, column + (uint32_t)(at - text), "expected pages like 0-63,70,72 here");
        }
        if (count == RUNS_MAX) {
            return wrong(p, column, "more than %u runs of pages", RUNS_MAX);
        }
        runs[count++] = (struct sm_run){(uint32_t)first, (uint32_t)(last - first + 1u)};
        at = *end == ',' ? end + 1 : end;
    }
    *out_runs = runs;
    *out_count = count;
    return true;
}

/* NAME or NAME.RANK within `text`, of `size` bytes. */
static bool place(struct parser *p, const char *text, size_t size, uint32_t column,
                  struct scenario_place *out)
{
    for (uint32_t i = 0; i < p->s->node_count; i++) {
        const char *name = p->s->nodes[i].name;
        const size_t length = strlen(name);
        uint64_t rank = 0;
        char digits[16];
        if (size < length || memcmp(text, name, length) != 0) {
            continue;
        }
        if (size == length) {
            *out = (struct scenario_place){i, SM_NONE};
            return true;
        }
        if (text[length] != '.' || size - length - 1u >= sizeof digits) {
            continue;
        }
        memcpy(digits, text + length + 1u, size - length - 1u);
        digits[size - length - 1u] = '\0';
        if (!number(digits, UINT32_MAX, &rank) || rank >= p->s->nodes[i].ranks) {
            return wrong(p, column, "%s has %u ranks: %s.0 to %s.%u", name, p->s->nodes[i].ranks,
                         name, name, p->s->nodes[i].ranks - 1u);
        }
        *out = (struct scenario_place){i, (uint32_t)rank};
        return true;
    }
    return wrong(p, column, "'%.*s' is no node of this scenario", (int)size, text);
}

static bool take_place(struct parser *p, struct scenario_place *out)
{
    const uint32_t column = here(p);
    const char *text = take(p, "a node or rank (like P or P.0)");
    return text != NULL && place(p, text, strlen(text), column, out);
}

/* A>B */
static bool take_way(struct parser *p, struct scenario_place *a, struct scenario_place *b)
{
    const uint32_t column = here(p);
    const char *text = take(p, "a direction (like P>D)");
    const char *arrow = text == NULL ? NULL : strchr(text, '>');
    if (text == NULL) {
        return false;
    }
    if (arrow == NULL) {
        return wrong(p, column, "'%s' is not a direction like P>D", text);
    }
    return place(p, text, (size_t)(arrow - text), column, a) &&
           place(p, arrow + 1, strlen(arrow + 1), column + (uint32_t)(arrow + 1 - text), b);
}

static bool word_of(const char *text, const char *const *names, uint32_t count, uint32_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

/* ---- statements in time
 * ------------------------------------------------------------------------------ */

static struct scenario_statement *statement(struct parser *p, uint64_t time_ns,
                                            enum scenario_verb verb)
{
    struct scenario *s = p->s;
    if (s->statement_count == SCENARIO_STATEMENTS_MAX) {
        (void)wrong(p, 1, "more than %u statements", SCENARIO_STATEMENTS_MAX);
        return NULL;
    }
    struct scenario_statement *grown =
        realloc(s->statements, (s->statement_count + 1u) * sizeof *grown);
    if (grown == NULL) {
        abort();
    }
    s->statements = grown;
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
        well = number_value(p, word, UINT64_MAX, &s->room);
        s->ns = 1; /* named */
    } else if (strcmp(word->text, "pages") == 0) {
        well = page_set(p, word->value, value_column(word), &s->runs, &s->run_count);
    } else if (strcmp(word->text, "deadline") == 0) {
        well = time_value(word->value, &s->deadline_ns)
                   ? true
                   : wrong(p, value_column(word), "'%s' is not a time", word->value);
    } else if (strcmp(word->text, "destinations") == 0) {
        well = number_value(p, word, SM_DESTINATIONS_MAX, &value);
        s->destinations = (uint32_t)value;
    } else if (strcmp(word->text, "prefix") == 0) {
        well = number_value(p, word, UINT32_MAX, &value);
        s->prefix = (uint32_t)value;
    } else if (strcmp(word->text, "aux") == 0) {
        well = number_value(p, word, UINT32_MAX - 1u, &value);
        s->aux = (uint32_t)value;
    } else if (strcmp(word->text, "http") == 0) {
        well = number_value(p, word, 999, &value);
        s->http = (uint32_t)value;
    } else if (strcmp(word->text, "from") == 0) {
        s->from = word->value;
    } else if (strcmp(word->text, "reason") == 0) {
        s->text = word->value;
    } else if (strcmp(word->text, "by") == 0) {
        well = word_of(word->value, origins, 4, &s->origin) && s->origin > 0
                   ? true
                   : wrong(p, value_column(word), "by=engine, by=client or by=operator");
    } else {
        well = wrong(p, word->column, "'%s=' is not known here", word->text);
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
        return wrong(p, p->words[p->at - 1u].column, "a decode rank has no such verb");
    }
    while (more(p)) {
        const struct word *word = option(p);
        if (word != NULL) {
            if (!command_option(p, word, s)) {
                return false;
            }
        } else if (kind == SM_IN_SEND && is_next(p, "last")) {
            s->flag = true;
            p->at++;
        } else {
            return wrong(p, here(p), "'%s' is not known here", p->words[p->at].text);
        }
    }
    if (s->ns == 0) {
        return wrong(p, p->line_end, "expected room=NUMBER here");
    }
    if (kind == SM_IN_SEND && s->runs == NULL) {
        return wrong(p, p->line_end, "expected pages=SET here");
    }
    return true;
}

static bool hex_bytes(struct parser *p, struct scenario_statement *s)
{
    const uint32_t column = here(p);
    const char *text = take(p, "0xHEX");
    if (text == NULL) {
        return false;
    }
    const size_t digits = strlen(text) < 2u ? 1u : strlen(text) - 2u;
    if (strncmp(text, "0x", 2) != 0 || digits % 2u != 0) {
        return wrong(p, column, "expected 0x and an even number of hexadecimal digits");
    }
    s->size = digits / 2u;
    s->bytes = own(p->s, calloc(1, s->size + 1u));
    for (size_t i = 0; i < digits; i++) {
        uint32_t nibble = 0;
        if (!hex_digit(text[2u + i], &nibble)) {
            return wrong(p, column + 2u + (uint32_t)i, "not a hexadecimal digit");
        }
        s->bytes[i / 2u] = (unsigned char)(s->bytes[i / 2u] << 4 | nibble);
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
    *out_known = word_of(verb, names, 10, &which);
    if (!*out_known) {
        return true;
    }
    struct scenario_statement *s = statement(p, time_ns, verbs[which]);
    if (s == NULL) {
        return false;
    }
    s->at = *at;
    if (verbs[which] < VERB_LINK && verbs[which] >= VERB_CRASH && at->rank != SM_NONE) {
        return wrong(p, p->words[p->at - 2u].column, "'%s' is about a node, not a rank", verb);
    }
    const struct word *word = option(p);
    if (word != NULL && s->verb == VERB_CRASH && strcmp(word->text, "after") == 0 &&
        strcmp(word->value, "commit") == 0) {
        s->flag = true;
    } else if (word != NULL && s->verb == VERB_REUSE && strcmp(word->text, "pages") == 0) {
        if (!page_set(p, word->value, value_column(word), &s->runs, &s->run_count)) {
            return false;
        }
    } else if (word != NULL) {
        return wrong(p, word->column, "'%s=%s' is not known here", word->text, word->value);
    }
    if (s->verb == VERB_RESTART && is_next(p, "wipe")) {
        s->flag = true;
        p->at++;
    } else if (s->verb == VERB_BYTES && !hex_bytes(p, s)) {
        return false;
    } else if (s->verb == VERB_DISK) {
        const uint32_t column = here(p);
        const char *disk = take(p, "full, fail or ok");
        if (disk == NULL || !word_of(disk, disks, 3, &s->number)) {
            return disk == NULL ? false : wrong(p, column, "a disk is full, fail or ok");
        }
    } else if (s->verb == VERB_REUSE && s->runs == NULL) {
        return wrong(p, p->line_end, "expected pages=SET here");
    }
    return finish(p);
}

static bool subject_line(struct parser *p, uint64_t time_ns)
{
    static const char *const verbs[] = {"open", "admit", "reject", "send", "abort", "release"};
    static const uint32_t kinds[] = {SM_IN_OPEN, SM_IN_ADMIT, SM_IN_REJECT,
                                     SM_IN_SEND, SM_IN_ABORT, SM_IN_RELEASE};
    struct scenario_place at;
    uint32_t which = 0;
    bool known = false;
    if (!take_place(p, &at)) {
        return false;
    }
    const uint32_t column = here(p);
    const char *verb = take(p, "a verb (open, admit, reject, send, abort, release, crash, ...)");
    if (verb == NULL) {
        return false;
    }
    if (word_of(verb, verbs, 6, &which)) {
        return engine_verb(p, time_ns, &at, kinds[which]);
    }
    if (strcmp(verb, "frames") == 0) {
        return wrong(p, column, "frames: SGLang's frames are not spoken yet");
    }
    if (!node_verb(p, time_ns, &at, verb, &known)) {
        return false;
    }
    return known ? true : wrong(p, column, "'%s' is no verb", verb);
}

/* ---- network and fabric
 * ------------------------------------------------------------------------------- */

static bool link_line(struct parser *p, uint64_t time_ns)
{
    struct scenario_statement *s = statement(p, time_ns, VERB_LINK);
    if (s == NULL) {
        return false;
    }
    s->one_way = more(p) && strchr(p->words[p->at].text, '>') != NULL;
    if (s->one_way ? !take_way(p, &s->at, &s->other)
                   : !take_place(p, &s->at) || !take_place(p, &s->other)) {
        return false;
    }
    const uint32_t column = here(p);
    const char *state = take(p, "down or up");
    if (state == NULL) {
        return false;
    }
    s->flag = strcmp(state, "up") == 0;
    return s->flag || strcmp(state, "down") == 0 ? finish(p)
                                                 : wrong(p, column, "a link is down or up");
}

static bool latency_line(struct parser *p, uint64_t time_ns)
{
    struct scenario_statement *s = statement(p, time_ns, VERB_LATENCY);
    return s != NULL && take_place(p, &s->at) && take_place(p, &s->other) && take_time(p, &s->ns) &&
           finish(p);
}

static bool rule_line(struct parser *p, uint64_t time_ns, enum world_rule_kind kind)
{
    static const char *const messages[] = {"any", "hello", "prepare", "status",
                                           "ack", "abort", "drained", "heartbeat"};
    struct scenario_statement *s = statement(p, time_ns, VERB_RULE);
    uint64_t value = 0;
    if (s == NULL || !take_way(p, &s->at, &s->other)) {
        return false;
    }
    s->number = (uint32_t)kind;
    const uint32_t column = here(p);
    const char *message = take(p, "a kind of message (hello, prepare, status, ack, abort, drained, "
                                  "heartbeat, any)");
    if (message == NULL) {
        return false;
    }
    if (!word_of(message, messages, 8, &s->message)) {
        return wrong(p, column, "'%s' is no kind of message", message);
    }
    for (const struct word *word = option(p); word != NULL; word = option(p)) {
        if (strcmp(word->text, "room") == 0) {
            if (!number_value(p, word, UINT64_MAX, &s->room)) {
                return false;
            }
        } else if (strcmp(word->text, "count") == 0) {
            if (!number_value(p, word, UINT32_MAX, &value)) {
                return false;
            }
            s->count = (uint32_t)value;
        } else if (kind == WORLD_DELAY && strcmp(word->text, "by") == 0) {
            if (!time_value(word->value, &s->ns)) {
                return wrong(p, value_column(word), "'%s' is not a time", word->value);
            }
        } else {
            return wrong(p, word->column, "'%s=' is not known here", word->text);
        }
    }
    if (kind == WORLD_DELAY && s->ns == 0) {
        return wrong(p, p->line_end, "expected by=TIME here");
    }
    return finish(p);
}

static bool fabric_options(struct parser *p, struct scenario_statement *s)
{
    uint64_t value = 0;
    for (const struct word *word = option(p); word != NULL; word = option(p)) {
        if (strcmp(word->text, "room") == 0) {
            if (!number_value(p, word, UINT64_MAX, &s->room)) {
                return false;
            }
        } else if (s->verb == VERB_FABRIC_FAIL && strcmp(word->text, "count") == 0) {
            if (!number_value(p, word, UINT32_MAX, &value)) {
                return false;
            }
            s->count = (uint32_t)value;
        } else if (s->verb == VERB_FABRIC_FAIL && strcmp(word->text, "code") == 0) {
            s->text = word->value;
        } else if (s->verb == VERB_FABRIC_FAIL && strcmp(word->text, "at") == 0 &&
                   strcmp(word->value, "post") == 0) {
            s->flag = true;
        } else {
            return wrong(p, word->column, "'%s=%s' is not known here", word->text, word->value);
        }
    }
    return finish(p);
}

static bool fabric_line(struct parser *p, uint64_t time_ns)
{
    static const char *const words[] = {"hold", "resume", "fail"};
    static const enum scenario_verb verbs[] = {VERB_FABRIC_HOLD, VERB_FABRIC_RESUME,
                                               VERB_FABRIC_FAIL};
    struct scenario_statement *s = statement(p, time_ns, VERB_FABRIC_TIME);
    uint32_t which = 0;
    if (s == NULL || !take_place(p, &s->at) || !take_place(p, &s->other)) {
        return false;
    }
    s->text = own_text(p->s, "the fabric reports an error");
    if (more(p) && word_of(p->words[p->at].text, words, 3, &which)) {
        p->at++;
        s->verb = verbs[which];
        return fabric_options(p, s);
    }
    return take_time(p, &s->ns) && finish(p);
}

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
            return wrong(p, value_column(word), "http: expected a status, or some like 400|503");
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
            return wrong(p, value_column(word), "'%.*s' is no phase", (int)size, at);
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
            return wrong(p, column, "expected succeeded or failed here");
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
        return number_value(p, word, UINT64_MAX, &claim->room);
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
        return outcome_set(p, word->value, value_column(word), &claim->outcomes);
    }
    if (strcmp(word->text, "owner") == 0) {
        return word_of(word->value, owners, 3, &claim->owner) && claim->owner > 0
                   ? true
                   : wrong(p, value_column(word), "owner=engine or owner=node");
    }
    if (strcmp(word->text, "times") == 0 || strcmp(word->text, "gen") == 0) {
        if (!number_value(p, word, UINT32_MAX, &value)) {
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
    return wrong(p, word->column, "'%s=' is not known here", word->text);
}

static bool claim_options(struct parser *p, struct scenario_claim *claim)
{
    for (const struct word *word = option(p); word != NULL; word = option(p)) {
        if (!claim_option(p, word, claim)) {
            return false;
        }
    }
    return true;
}

static bool room_claim(struct parser *p, struct scenario_claim *claim)
{
    const uint32_t column = here(p);
    const char *room = take(p, "a room number");
    if (room == NULL) {
        return false;
    }
    if (!number(room, UINT64_MAX, &claim->room)) {
        return wrong(p, column, "'%s' is not a room number", room);
    }
    if (!is_next(p, "at")) {
        return wrong(p, here(p), "expected `at NODE` here");
    }
    p->at++;
    claim->kind = CLAIM_ROOM;
    if (!take_place(p, &claim->at)) {
        return false;
    }
    if (is_next(p, "absent")) {
        claim->kind = CLAIM_ABSENT;
        p->at++;
    }
    return claim_options(p, claim);
}

static bool told_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_TOLD;
    if (!take_place(p, &claim->at) || !claim_options(p, claim)) {
        return false;
    }
    const uint32_t column = here(p);
    const char *outcome = take(p, "succeeded or failed");
    return outcome != NULL && outcome_set(p, outcome, column, &claim->outcomes) &&
           claim_options(p, claim);
}

static bool notice_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_NOTICE;
    if (!claim_options(p, claim) || !take_way(p, &claim->from, &claim->at)) {
        return false;
    }
    const uint32_t column = here(p);
    const char *outcome = take(p, "succeeded or failed");
    return outcome != NULL && outcome_set(p, outcome, column, &claim->outcomes) &&
           claim_options(p, claim);
}

static bool pages_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_PAGES;
    if (!take_place(p, &claim->at)) {
        return false;
    }
    const uint32_t column = here(p);
    const char *set = take(p, "pages");
    if (set == NULL || !page_set(p, set, column, &claim->runs, &claim->run_count)) {
        return false;
    }
    const uint32_t state_column = here(p);
    const char *state = take(p, "free or held");
    if (state == NULL) {
        return false;
    }
    claim->held = strcmp(state, "held") == 0;
    return claim->held || strcmp(state, "free") == 0
               ? true
               : wrong(p, state_column, "pages are free or held");
}

static bool data_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_DATA;
    if (!take_place(p, &claim->at) || !claim_options(p, claim)) {
        return false;
    }
    const uint32_t column = here(p);
    const char *state = take(p, "intact, partial or foreign");
    if (state == NULL) {
        return false;
    }
    claim->data = strcmp(state, "intact") == 0    ? (uint32_t)WORLD_DATA_INTACT
                  : strcmp(state, "partial") == 0 ? (uint32_t)WORLD_DATA_PARTIAL
                  : strcmp(state, "foreign") == 0 ? (uint32_t)WORLD_DATA_FOREIGN
                                                  : 0;
    return claim->data != 0 ? true : wrong(p, column, "data is intact, partial or foreign");
}

static bool refused_claim(struct parser *p, struct scenario_claim *claim)
{
    static const char *const verbs[] = {"open", "admit", "reject", "send", "abort", "release"};
    static const uint32_t kinds[] = {SM_IN_OPEN, SM_IN_ADMIT, SM_IN_REJECT,
                                     SM_IN_SEND, SM_IN_ABORT, SM_IN_RELEASE};
    uint32_t which = 0;
    claim->kind = CLAIM_REFUSED;
    if (!take_place(p, &claim->at) || !claim_options(p, claim)) {
        return false;
    }
    const uint32_t column = here(p);
    const char *verb = take(p, "a verb (open, admit, reject, send, abort, release)");
    if (verb == NULL || !word_of(verb, verbs, 6, &which)) {
        return verb == NULL ? false : wrong(p, column, "'%s' is no verb of an engine", verb);
    }
    claim->command = kinds[which];
    return claim_options(p, claim);
}

static bool counter_claim(struct parser *p, struct scenario_claim *claim)
{
    claim->kind = CLAIM_COUNTER;
    if (!take_place(p, &claim->at)) {
        return false;
    }
    const char *name = take(p, "a counter");
    if (name == NULL) {
        return false;
    }
    claim->name = own_text(p->s, name);
    if (!is_next(p, ">=")) {
        return wrong(p, here(p), "expected `>= N` here");
    }
    p->at++;
    const uint32_t column = here(p);
    const char *least = take(p, "a number");
    return least != NULL && (number(least, UINT64_MAX, &claim->least)
                                 ? true
                                 : wrong(p, column, "'%s' is not a number", least));
}

static bool claim_line(struct parser *p, struct scenario_claim *claim)
{
    claim->at.node = SM_NONE;
    claim->at.rank = SM_NONE;
    claim->from.node = SM_NONE;
    claim->from.rank = SM_NONE;
    const uint32_t column = here(p);
    const char *kind = take(p, "a claim (room, told, notice, write, pages, data, refused, counter, "
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
               (!more(p) || strchr(p->words[p->at].text, '>') == NULL ||
                take_way(p, &claim->from, &claim->at)) &&
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
        return take_place(p, &claim->at);
    }
    claim->kind = CLAIM_QUIESCENT;
    return strcmp(kind, "quiescent") == 0 ? true : wrong(p, column, "'%s' is no claim", kind);
}

static bool expectation(struct parser *p, enum scenario_when when, uint64_t time_ns)
{
    struct scenario *s = p->s;
    if (s->expectation_count == SCENARIO_STATEMENTS_MAX) {
        return wrong(p, 1, "more than %u expectations", SCENARIO_STATEMENTS_MAX);
    }
    struct scenario_expectation *grown =
        realloc(s->expectations, (s->expectation_count + 1u) * sizeof *grown);
    if (grown == NULL) {
        abort();
    }
    s->expectations = grown;
    struct scenario_expectation *e = &s->expectations[s->expectation_count++];
    memset(e, 0, sizeof *e);
    e->line = p->line;
    e->when = when;
    e->time_ns = time_ns;
    e->words = own_text(s, p->line_text);
    if (!claim_line(p, &e->claim)) {
        return false;
    }
    if (when == WHEN_NEVER && is_next(p, "before")) {
        p->at++;
        if (!take_time(p, &e->time_ns)) {
            return false;
        }
    }
    return finish(p);
}

/* ---- the head
 * ------------------------------------------------------------------------------------------ */

static bool name_sound(const char *name)
{
    for (const char *c = name; *c != '\0'; c++) {
        const bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                            (*c >= '0' && *c <= '9') || *c == '_' || *c == '-';
        if (!letter) {
            return false;
        }
    }
    return name[0] != '\0' && strlen(name) <= SM_NAME_BYTES_MAX;
}

static bool node_line(struct parser *p)
{
    struct scenario *s = p->s;
    uint64_t value = 0;
    if (s->node_count == WORLD_NODES_MAX) {
        return wrong(p, 1, "more than %u nodes", WORLD_NODES_MAX);
    }
    struct world_node_options *node = &s->nodes[s->node_count];
    world_node_defaults(node);
    const uint32_t column = here(p);
    const char *name = take(p, "a name");
    if (name == NULL) {
        return false;
    }
    if (!name_sound(name)) {
        return wrong(p, column, "a name has letters, digits, _ and -");
    }
    (void)snprintf(node->name, sizeof node->name, "%s", name);
    const uint32_t side_column = here(p);
    const char *side = take(p, "prefill or decode");
    if (side == NULL) {
        return false;
    }
    node->side = strcmp(side, "prefill") == 0  ? (uint32_t)SM_PREFILL
                 : strcmp(side, "decode") == 0 ? (uint32_t)SM_DECODE
                                               : 0;
    if (node->side == 0) {
        return wrong(p, side_column, "a node is prefill or decode");
    }
    for (const struct word *word = option(p); word != NULL; word = option(p)) {
        if (strcmp(word->text, "ranks") == 0) {
            if (!number_value(p, word, WORLD_RANKS_MAX, &value) || value == 0) {
                return value == 0 ? wrong(p, value_column(word), "a node has a rank") : false;
            }
            node->ranks = (uint32_t)value;
        } else if (strcmp(word->text, "pool") == 0) {
            if (!number_value(p, word, WORLD_POOL_PAGES_MAX, &value) || value == 0) {
                return value == 0 ? wrong(p, value_column(word), "a pool has a page") : false;
            }
            node->pool_pages = (uint32_t)value;
        } else if (strcmp(word->text, "wire") == 0 && strcmp(word->value, "native") == 0) {
            continue;
        } else if (strcmp(word->text, "wire") == 0 && strcmp(word->value, "sglang") == 0) {
            return wrong(p, value_column(word), "wire=sglang is not spoken yet");
        } else {
            return wrong(p, word->column, "'%s=%s' is not known here", word->text, word->value);
        }
    }
    s->node_count++;
    return finish(p);
}

static bool set_geometry(struct world_node_options *node, const char *key, const char *value)
{
    static const char *const names[] = {"page_tokens", "layers", "kv_heads",
                                        "item_bytes",  "planes", "dtype"};
    uint32_t *const fields[] = {&node->geometry.page_tokens, &node->geometry.layers,
                                &node->geometry.kv_heads,    &node->geometry.item_bytes,
                                &node->geometry.planes,      &node->geometry.dtype};
    uint32_t which = 0;
    uint64_t number_of = 0;
    if (!word_of(key, names, 6, &which)) {
        return false;
    }
    if (!number(value, UINT32_MAX, &number_of)) {
        /* An element type may be a name: it is compared, never interpreted. */
        for (const char *c = value; *c != '\0'; c++) {
            number_of = (number_of * 131u + (unsigned char)*c) & 0x7fffffffu;
        }
    }
    *fields[which] = (uint32_t)number_of;
    return which == 5u || number_of > 0;
}

static bool set_one(struct parser *p, struct world_node_options *node, const char *key,
                    const char *value, uint32_t column)
{
    struct status_detail detail;
    if (strcmp(key, "auto_release") == 0) {
        node->auto_release = strcmp(value, "on") == 0;
        return node->auto_release || strcmp(value, "off") == 0
                   ? true
                   : wrong(p, column, "auto_release is on or off");
    }
    if (strncmp(key, "geometry.", 9) == 0) {
        return set_geometry(node, key + 9, value)
                   ? true
                   : wrong(p, column,
                           "geometry has page_tokens, layers, kv_heads, item_bytes, "
                           "planes and dtype, and positive numbers");
    }
    return policy_set(&node->settings, key, value, &detail) == STATUS_OK
               ? true
               : wrong(p, column, "%.200s", detail.text);
}

static bool set_line(struct parser *p)
{
    struct scenario_place at = {SM_NONE, SM_NONE};
    const uint32_t column = here(p);
    for (uint32_t i = 0; i < p->s->node_count && p->count == 4u; i++) {
        if (strcmp(p->words[p->at].text, p->s->nodes[i].name) == 0) {
            at.node = i;
        }
    }
    if (p->count == 4u && !take_place(p, &at)) {
        return false;
    }
    const uint32_t key_column = here(p);
    const char *key = take(p, "a key");
    const char *value = key == NULL ? NULL : take(p, "a value");
    if (value == NULL) {
        return false;
    }
    (void)column;
    if (p->s->node_count == 0) {
        return wrong(p, 1, "set stands behind the nodes that it is for");
    }
    for (uint32_t i = 0; i < p->s->node_count; i++) {
        if ((at.node == SM_NONE || at.node == i) &&
            !set_one(p, &p->s->nodes[i], key, value, key_column)) {
            return false;
        }
    }
    return finish(p);
}

static bool map_line(struct parser *p)
{
    struct scenario_place to;
    if (!take_place(p, &to)) {
        return false;
    }
    const uint32_t column = here(p);
    const char *sources = take(p, "prefill ranks (like P.0,P.1)");
    if (sources == NULL) {
        return false;
    }
    if (p->s->nodes[to.node].side != SM_DECODE || to.rank == SM_NONE) {
        return wrong(p, p->words[1].column, "map names a decode rank and its prefill ranks");
    }
    uint64_t mask = 0;
    for (const char *at = sources; *at != '\0';) {
        struct scenario_place from;
        const size_t size = strcspn(at, ",");
        if (!place(p, at, size, column + (uint32_t)(at - sources), &from)) {
            return false;
        }
        if (from.rank == SM_NONE || p->s->nodes[from.node].side != SM_PREFILL) {
            return wrong(p, column, "map names a decode rank and its prefill ranks");
        }
        mask |= UINT64_C(1) << from.rank;
        at += size + (at[size] == ',' ? 1u : 0u);
    }
    p->s->nodes[to.node].sources_by_hand[to.rank] = mask;
    return finish(p);
}

static bool needs_line(struct parser *p)
{
    while (more(p)) {
        const uint32_t column = here(p);
        const char *text = take(p, "a protection");
        bool found = false;
        if (text == NULL) {
            return false;
        }
        for (uint32_t i = 0; i < SM_PROTECT_COUNT; i++) {
            const size_t size = strlen(text);
            const size_t bare = size > 0 && text[size - 1u] == ',' ? size - 1u : size;
            const char *name = sm_protection_name(i);
            if (strlen(name) == bare && memcmp(name, text, bare) == 0) {
                p->s->needs |= 1u << i;
                found = true;
            }
        }
        if (!found) {
            return wrong(p, column,
                         "'%s' is no protection: tombstones, drain, ownership, gather, "
                         "generations, retry, single_notice, journal_first, fence",
                         text);
        }
    }
    return true;
}

/* ---- lines
 * ---------------------------------------------------------------------------------------------- */

static bool at_line(struct parser *p)
{
    uint64_t time_ns = 0;
    p->body = true;
    if (!take_time(p, &time_ns)) {
        return false;
    }
    if (is_next(p, "expect")) {
        p->at++;
        return expectation(p, WHEN_AT, time_ns);
    }
    if (is_next(p, "link")) {
        p->at++;
        return link_line(p, time_ns);
    }
    if (is_next(p, "latency")) {
        p->at++;
        return latency_line(p, time_ns);
    }
    if (is_next(p, "fabric")) {
        p->at++;
        return fabric_line(p, time_ns);
    }
    if (is_next(p, "drop") || is_next(p, "dup") || is_next(p, "delay")) {
        const char *kind = p->words[p->at++].text;
        return rule_line(p, time_ns,
                         strcmp(kind, "drop") == 0  ? WORLD_DROP
                         : strcmp(kind, "dup") == 0 ? WORLD_DOUBLE
                                                    : WORLD_DELAY);
    }
    return subject_line(p, time_ns);
}

static bool end_line(struct parser *p)
{
    if (is_next(p, "at")) {
        p->at++;
        return take_time(p, &p->s->end_ns) && finish(p);
    }
    if (!is_next(p, "expect")) {
        return wrong(p, here(p), "expected `end expect CLAIM` or `end at TIME`");
    }
    p->at++;
    return expectation(p, WHEN_END, UINT64_MAX);
}

static bool by_line(struct parser *p)
{
    uint64_t time_ns = 0;
    if (!take_time(p, &time_ns)) {
        return false;
    }
    if (!is_next(p, "expect")) {
        return wrong(p, here(p), "expected `expect` here");
    }
    p->at++;
    return expectation(p, WHEN_BY, time_ns);
}

static bool line(struct parser *p)
{
    const char *first = p->words[0].text;
    p->at = 1;
    if (p->s->title == NULL) {
        if (strcmp(first, "scenario") != 0) {
            return wrong(p, 1, "a scenario begins with: scenario \"title\"");
        }
        const char *title = take(p, "a title in quotes");
        if (title == NULL) {
            return false;
        }
        p->s->title = own_text(p->s, title);
        return finish(p);
    }
    if (strcmp(first, "ref") == 0) {
        return true;
    }
    if (strcmp(first, "node") == 0) {
        return node_line(p);
    }
    if (strcmp(first, "set") == 0) {
        return set_line(p);
    }
    if (strcmp(first, "map") == 0) {
        return map_line(p);
    }
    if (strcmp(first, "needs") == 0) {
        return needs_line(p);
    }
    if (strcmp(first, "latency") == 0) {
        return latency_line(p, 0);
    }
    if (strcmp(first, "fabric") == 0) {
        return fabric_line(p, 0);
    }
    if (strcmp(first, "at") == 0) {
        return at_line(p);
    }
    if (strcmp(first, "by") == 0) {
        return by_line(p);
    }
    if (strcmp(first, "end") == 0) {
        return end_line(p);
    }
    if (strcmp(first, "never") == 0) {
        return expectation(p, WHEN_NEVER, UINT64_MAX);
    }
    return wrong(p, 1,
                 "'%s' begins no line: scenario, ref, node, set, latency, fabric, map, needs, at, "
                 "by, end, never",
                 first);
}

static bool check_whole(struct parser *p)
{
    if (p->s->title == NULL) {
        return wrong(p, 1, "a scenario begins with: scenario \"title\"");
    }
    if (p->s->node_count == 0) {
        return wrong(p, 1, "a scenario has nodes: node NAME prefill|decode");
    }
    for (uint32_t i = 0; i < p->s->node_count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            const struct world_node_options *a = &p->s->nodes[i];
            const struct world_node_options *b = &p->s->nodes[j];
            if (strcmp(a->name, b->name) == 0) {
                return wrong(p, 1, "two nodes are named %s", a->name);
            }
            if (a->side != b->side && a->ranks % b->ranks != 0 && b->ranks % a->ranks != 0) {
                return wrong(p, 1, "%s has %u ranks and %s %u: one must divide the other", a->name,
                             a->ranks, b->name, b->ranks);
            }
        }
    }
    return true;
}

bool scenario_parse(const char *file, const char *text, size_t size, struct scenario *out,
                    struct scenario_error *out_error)
{
    struct parser *p = calloc(1, sizeof *p);
    bool well = true;
    memset(out, 0, sizeof *out);
    memset(out_error, 0, sizeof *out_error);
    if (p == NULL) {
        abort();
    }
    out->file = file;
    p->s = out;
    p->error = out_error;
    p->line_end = 1;
    if (size > SCENARIO_TEXT_MAX || memchr(text, 0, size) != NULL) {
        p->line = 1;
        well = wrong(p, 1, size > SCENARIO_TEXT_MAX ? "larger than 4 MiB" : "a zero byte");
    }
    for (size_t at = 0; at < size && well;) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t length = end != NULL ? (size_t)(end - text) - at : size - at;
        p->line++;
        p->line_text = own(out, strndup(text + at, length));
        well = split(p, text + at, length) && (p->count == 0 || line(p));
        at += length + 1u;
    }
    well = well && check_whole(p);
    free(p);
    return well;
}
