/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stateroom command: one table of commands and options, from which parsing, help, man pages and
 * completion are made.
 */
#ifndef REPLAY_CLI_H
#define REPLAY_CLI_H

#include "journal/journal.h"
#include "schemas/codec.h"
#include "statemachine/sm.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes, in every man page. */
enum {
    EXIT_WELL = 0,
    EXIT_DIFFERS = 1,
    EXIT_WRONG_USAGE = 2,
    EXIT_UNREACHABLE = 3,
    EXIT_NOT_THERE = 4,
    EXIT_DAMAGED = 5,
    EXIT_OTHER_VERSION = 6,
    EXIT_INTERRUPTED = 130
};

#define CLI_OPTIONS_MAX 20u
#define CLI_WORDS_MAX 4096u

enum cli_type { CLI_FLAG, CLI_TEXT, CLI_NUMBER, CLI_PATH };

struct cli_option {
    const char *name; /* without -- ; NULL ends the list */
    char letter;      /* 0: none */
    enum cli_type type;
    const char *value; /* how the value is called in help */
    const char *help;
};

struct cli_values {
    const char *texts[CLI_OPTIONS_MAX]; /* by place in the command's list */
    uint64_t numbers[CLI_OPTIONS_MAX];
    bool given[CLI_OPTIONS_MAX];
    const char *words[CLI_WORDS_MAX];
    uint32_t word_count;
    const struct cli_command *command;
};

struct cli_command {
    const char *name;
    const char *words; /* "JOURNAL", "ROOM"; "" none */
    uint32_t words_least;
    uint32_t words_most;
    const char *summary;
    const char *description;
    const char *example;
    struct cli_option options[CLI_OPTIONS_MAX];
    int (*run)(const struct cli_values *values);
};

extern const struct cli_command cli_commands[];

bool cli_given(const struct cli_values *values, const char *option);
const char *cli_text(const struct cli_values *values, const char *option, const char *preset);
uint64_t cli_number(const struct cli_values *values, const char *option, uint64_t preset);

/* Decimal or 0x...; false: no number, or over 64 bits. */
bool cli_parse_number(const char *text, uint64_t *out_number);

int cli_main(int argc, char **argv);
/* Writes the man page (roff) of one command, or of the whole with NULL. */
void cli_man(FILE *out, const struct cli_command *command);

/* ---- output
 * ------------------------------------------------------------------------------------------ */

/* "stateroom: text" on stderr; returns `code`. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Exit code for a status of a journal. */
int cli_code(enum status status);
bool cli_colour(FILE *out);
/* One object a line, ASCII; NULL (out of memory) is printed as {}. Takes the object. */
void cli_print_json(json_t *take_object);
/* A JSON string of whatever text: what is not UTF-8 or not printable becomes '?'. */
json_t *cli_json_text(const char *text);
/* "1.234 ms", "5.0 s": short enough for a column. */
void cli_duration(uint64_t ns, char *buffer, size_t size);

/* A progress line on stderr, only when it is a terminal and after a second. */
struct cli_progress {
    uint64_t total;
    uint64_t started_ns;
    uint64_t shown_ns;
    const char *what;
};
void cli_progress_begin(struct cli_progress *progress, const char *what, uint64_t total);
void cli_progress_show(struct cli_progress *progress, uint64_t done);
void cli_progress_end(struct cli_progress *progress);
uint64_t cli_now_ns(void);

/* Opens a journal for reading; on failure says why and sets *out_code. */
struct journal *cli_open_journal(const char *path, int *out_code);
/* The journal that a command names: --journal, else its word number `word`, else the environment.
 */
const char *cli_journal_path(const struct cli_values *values, uint32_t word, int *out_code);
struct journal *cli_command_journal(const struct cli_values *values, uint32_t word, int *out_code);

/* Words in lines of at most `columns` characters, each after `indent` blanks. */
void cli_wrapped(FILE *out, const char *text, uint32_t columns, uint32_t indent);
/* A room's number out of a word; says what is wrong with it and sets *out_code. */
bool cli_room_word(const char *word, uint64_t *out_room, int *out_code);

/* ---- the entries about a room
 * ------------------------------------------------------------------------ */

/* What it is given lives until it returns; false: no memory. */
typedef bool (*room_entry_fn)(void *context, uint64_t number, const struct codec_entry *entry);

/* Each entry about the room, the oldest first. STATUS_NOT_FOUND: there is none. */
enum status room_walk(struct journal *journal, uint64_t room, room_entry_fn each, void *context,
                      struct status_detail *out_detail);
/* The name of the node that wrote the journal, clean; "node" where it cannot be told. */
void room_node_name(struct journal *journal, char *out, size_t size);

/* ---- a room's history
 * ------------------------------------------------------------------------------------ */

struct history_event {
    uint64_t number; /* entry */
    uint64_t time_ns;
    uint64_t wall_ns;
    int from; /* lanes: HISTORY_* */
    int to;
    bool note; /* stands at the node, no arrow */
    char label[160];
};

enum { HISTORY_ENGINE = 0, HISTORY_NODE = 1, HISTORY_PEER = 2 };

/* One life of a room on one side of this node. */
struct history_life {
    uint64_t generation;
    uint64_t opened_ns; /* machine time, as all times here but the next */
    uint64_t opened_wall_ns;
    uint64_t decided_ns; /* 0: live */
    uint64_t cleared_ns; /* 0: not yet */
    uint64_t entry;      /* that it began with */
    uint32_t side;
    uint32_t outcome;
    uint32_t http;
    char reason[600];
};

struct history {
    struct history_event *events;
    uint32_t count;
    uint32_t capacity;
    uint64_t room;
    char node[SM_NAME_BYTES_MAX + 1u];
    char peer[SM_NAME_BYTES_MAX + 1u];
    struct history_life *lives; /* in the order in which they began */
    uint32_t life_count;
    uint32_t life_capacity;
    /* The last command that was refused, when there is no life at all. */
    struct history_life refused;
};

/* Everything that the journal knows about a room. STATUS_NOT_FOUND: nothing. */
enum status history_read(struct journal *journal, uint64_t room, struct history *out_history,
                         struct status_detail *out_detail);
void history_free(struct history *history);
/* Forgets all but the last `most` events. */
void history_tail(struct history *history, uint32_t most);
/* The space-time diagram in 80 columns. */
void history_diagram(FILE *out, const struct history *history, bool unicode);
/* One line an event. */
void history_list(FILE *out, const struct history *history);

/* Replays a journal and says how it went: shared by `replay` and `demo`. */
struct replay_summary {
    uint64_t entries;
    double rate;
    uint64_t rooms_left;
    uint64_t pages_left;
    uint64_t notices_left;
};
int replay_journal(const char *path, const struct cli_values *values, struct replay_summary *out,
                   bool quiet);

int cmd_replay(const struct cli_values *values);
int cmd_history(const struct cli_values *values);
int cmd_why(const struct cli_values *values);
int cmd_rooms(const struct cli_values *values);
int cmd_verify(const struct cli_values *values);
int cmd_tail(const struct cli_values *values);
int cmd_stat(const struct cli_values *values);
int cmd_export(const struct cli_values *values);
int cmd_slice(const struct cli_values *values);
int cmd_import(const struct cli_values *values);
int cmd_repair(const struct cli_values *values);
int cmd_compact(const struct cli_values *values);
int cmd_trim(const struct cli_values *values);
int cmd_snapshot(const struct cli_values *values);
int cmd_demo(const struct cli_values *values);
int cmd_scenario(const struct cli_values *values);
int cmd_help(const struct cli_values *values);
int cmd_completion(const struct cli_values *values);
/* A synthetic engine of the demo; reads orders from stdin. */
int demo_engine_main(int argc, char **argv);

#endif
