/* SPDX-License-Identifier: Apache-2.0 */
/* Lines to words, words to values. */
#include "scenario_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_wrong(struct parser *p, uint32_t column, const char *format, ...)
{
    va_list arguments;
    p->error->line = p->line;
    p->error->column = column;
    va_start(arguments, format);
    (void)vsnprintf(p->error->text, sizeof p->error->text, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- words
 * ---------------------------------------------------------------------------------------------- */

bool parse_hex_digit(char c, uint32_t *out)
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
            } else if (escape == 'x' && at + 1u < size && parse_hex_digit(line[at], &high) &&
                       parse_hex_digit(line[at + 1u], &low)) {
                c = (char)(high * 16u + low);
                at += 2u;
            } else {
                return parse_wrong(p, (uint32_t)at, "expected \\\", \\\\, \\n or \\xHH here");
            }
        }
        out[(*out_size)++] = c;
    }
    if (at >= size) {
        return parse_wrong(p, (uint32_t)*io, "the quotes that begin here do not end on this line");
    }
    *io = at + 1u;
    return true;
}

static bool one_word(struct parser *p, const char *line, size_t size, size_t *io)
{
    struct word *word = &p->words[p->count];
    char *out = chunks_take(&p->s->memory, size + 2u);
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
        } else if (c == '=' && word->value == NULL && !word->quoted && word->size > 0 &&
                   !(word->size == 1u && out[0] == '>')) {
            out[word->size++] = '\0';
            word->value = out + word->size;
        } else if ((unsigned char)c < 32u || c == 127) {
            return parse_wrong(p, (uint32_t)*io, "a control character");
        } else {
            out[word->size++] = c;
        }
    }
    out[word->size] = '\0';
    chunks_trim(&p->s->memory, out, word->size + 1u);
    return true;
}

bool parse_split(struct parser *p, const char *line, size_t size)
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
            return parse_wrong(p, (uint32_t)at + 1u, "more than %u words on a line", WORDS_MAX);
        }
        if (!one_word(p, line, size, &at)) {
            return false;
        }
        p->count++;
        p->line_end = (uint32_t)at + 1u;
    }
    return true;
}

bool parse_more(const struct parser *p)
{
    return p->at < p->count;
}

uint32_t parse_here(const struct parser *p)
{
    return parse_more(p) ? p->words[p->at].column : p->line_end;
}

/* The next word, which must be there and have no `=`. */
const char *parse_take(struct parser *p, const char *expected)
{
    if (!parse_more(p) || p->words[p->at].value != NULL) {
        (void)parse_wrong(p, parse_here(p), "expected %s here", expected);
        return NULL;
    }
    return p->words[p->at++].text;
}

bool parse_is_next(const struct parser *p, const char *text)
{
    return parse_more(p) && p->words[p->at].value == NULL &&
           strcmp(p->words[p->at].text, text) == 0;
}

bool parse_finish(struct parser *p)
{
    return parse_more(p)
               ? parse_wrong(p, parse_here(p), "'%s' is one word too many", p->words[p->at].text)
               : true;
}

/* ---- values
 * --------------------------------------------------------------------------------------------- */

bool parse_number(const char *text, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *out <= most;
}

bool parse_time_value(const char *text, uint64_t *out)
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

bool parse_take_time(struct parser *p, uint64_t *out)
{
    const uint32_t column = parse_here(p);
    const char *text = parse_take(p, "a time (like 5ms, 2s, 0)");
    if (text == NULL) {
        return false;
    }
    return parse_time_value(text, out)
               ? true
               : parse_wrong(p, column, "'%s' is not a time: an integer with us, ms or s, or 0",
                             text);
}

struct word *parse_option(struct parser *p)
{
    return parse_more(p) && p->words[p->at].value != NULL ? &p->words[p->at++] : NULL;
}

uint32_t parse_value_column(const struct word *word)
{
    return word->column + (uint32_t)strlen(word->text) + 1u;
}

bool parse_number_value(struct parser *p, const struct word *word, uint64_t most, uint64_t *out)
{
    return parse_number(word->value, most, out)
               ? true
               : parse_wrong(p, parse_value_column(word),
                             "%s: '%s' is not a number from 0 to %" PRIu64, word->text, word->value,
                             most);
}

/* "0-63,70,72"; an empty text is no page. */
bool parse_page_set(struct parser *p, const char *text, uint32_t column, struct sm_run **out_runs,
                    uint32_t *out_count)
{
    struct sm_run *runs = chunks_take(&p->s->memory, RUNS_MAX * sizeof *runs);
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
            return parse_wrong(p, column + (uint32_t)(at - text),
                               "expected pages like 0-63,70,72 here");
        }
        if (count == RUNS_MAX) {
            return parse_wrong(p, column, "more than %u runs of pages", RUNS_MAX);
        }
        runs[count++] = (struct sm_run){(uint32_t)first, (uint32_t)(last - first + 1u)};
        at = *end == ',' ? end + 1 : end;
    }
    chunks_trim(&p->s->memory, runs, count * sizeof *runs);
    *out_runs = runs;
    *out_count = count;
    return true;
}

/* NAME or NAME.RANK within `text`, of `size` bytes. */
bool parse_place(struct parser *p, const char *text, size_t size, uint32_t column,
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
        if (!parse_number(digits, UINT32_MAX, &rank) || rank >= p->s->nodes[i].ranks) {
            return parse_wrong(p, column, "%s has %u ranks: %s.0 to %s.%u", name,
                               p->s->nodes[i].ranks, name, name, p->s->nodes[i].ranks - 1u);
        }
        *out = (struct scenario_place){i, (uint32_t)rank};
        return true;
    }
    return parse_wrong(p, column, "'%.*s' is no node of this scenario", (int)size, text);
}

bool parse_take_place(struct parser *p, struct scenario_place *out)
{
    const uint32_t column = parse_here(p);
    const char *text = parse_take(p, "a node or rank (like P or P.0)");
    return text != NULL && parse_place(p, text, strlen(text), column, out);
}

/* A>B */
bool parse_take_way(struct parser *p, struct scenario_place *a, struct scenario_place *b)
{
    const uint32_t column = parse_here(p);
    const char *text = parse_take(p, "a direction (like P>D)");
    const char *arrow = text == NULL ? NULL : strchr(text, '>');
    if (text == NULL) {
        return false;
    }
    if (arrow == NULL) {
        return parse_wrong(p, column, "'%s' is not a direction like P>D", text);
    }
    return parse_place(p, text, (size_t)(arrow - text), column, a) &&
           parse_place(p, arrow + 1, strlen(arrow + 1), column + (uint32_t)(arrow + 1 - text), b);
}

bool parse_word_of(const char *text, const char *const *names, uint32_t count, uint32_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}
