/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the scenario parser: a line's words, and what its files do for each other. */
#ifndef REPLAY_SCENARIO_PRIVATE_H
#define REPLAY_SCENARIO_PRIVATE_H

#include "scenario.h"

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
    uint32_t line_end;     /* column behind the last word */
    const char *line_text; /* not zero-terminated */
    size_t line_size;
    bool body; /* a statement in time was seen: the head is over */
};

bool parse_wrong(struct parser *p, uint32_t column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool parse_split(struct parser *p, const char *line, size_t size);
bool parse_more(const struct parser *p);
uint32_t parse_here(const struct parser *p);
/* The next word, which must be there and have no `=`; NULL: it has been said what was expected. */
const char *parse_take(struct parser *p, const char *expected);
bool parse_is_next(const struct parser *p, const char *text);
bool parse_finish(struct parser *p);
bool parse_hex_digit(char c, uint32_t *out);
bool parse_number(const char *text, uint64_t most, uint64_t *out);
bool parse_time_value(const char *text, uint64_t *out);
bool parse_take_time(struct parser *p, uint64_t *out);
struct word *parse_option(struct parser *p);
uint32_t parse_value_column(const struct word *word);
bool parse_number_value(struct parser *p, const struct word *word, uint64_t most, uint64_t *out);
bool parse_page_set(struct parser *p, const char *text, uint32_t column, struct sm_run **out_runs,
                    uint32_t *out_count);
bool parse_place(struct parser *p, const char *text, size_t size, uint32_t column,
                 struct scenario_place *out);
bool parse_take_place(struct parser *p, struct scenario_place *out);
bool parse_take_way(struct parser *p, struct scenario_place *a, struct scenario_place *b);
bool parse_word_of(const char *text, const char *const *names, uint32_t count, uint32_t *out);

/* One line each, from behind what says which it is. */
bool parse_subject(struct parser *p, uint64_t time_ns);
bool parse_link(struct parser *p, uint64_t time_ns);
bool parse_latency(struct parser *p, uint64_t time_ns);
bool parse_rule(struct parser *p, uint64_t time_ns, enum world_rule_kind kind);
bool parse_fabric(struct parser *p, uint64_t time_ns);
bool parse_expectation(struct parser *p, enum scenario_when when, uint64_t time_ns);

#endif
