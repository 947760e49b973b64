/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay --step: a journal walked by hand, forwards and backwards.
 *
 * Layer: journal, statemachine. Reads only. The parser is pure: any line is a command or an error.
 *
 * Model: at entry N means that entries up to N have been run and N's step can be seen. Backwards is
 * forwards again from the snapshot before, so each position is the machine's own, not a guess.
 *
 * Ownership: the caller's FILEs; a stepper owns its machine for the call.
 *
 * Limits: a line of STEPS_LINE_MAX bytes; a diff of everything looks at STATE_HALVES_MAX halves.
 */
#ifndef REPLAY_STEPPER_H
#define REPLAY_STEPPER_H

#include "cli.h"

#include "journal/journal_recover.h"

#define STEPS_LINE_MAX 1024u
#define STEPS_TEXT_MAX 256u
#define STATE_HALVES_MAX 2000u

/* ---- commands
 * ---------------------------------------------------------------------------------------- */

enum steps_verb {
    STEPS_NOTHING, /* an empty line, a comment */
    STEPS_NEXT,
    STEPS_PREVIOUS,
    STEPS_GOTO,
    STEPS_RUN,
    STEPS_BACK,
    STEPS_SHOW,
    STEPS_STATE,
    STEPS_DIFF,
    STEPS_ROOM,
    STEPS_HELP,
    STEPS_QUIT
};

/* What an entry must have, all of it; 0 or empty: does not matter. */
struct steps_condition {
    uint64_t room;
    uint32_t side;
    uint32_t rank; /* SM_NONE: any */
    uint32_t phase;
    uint32_t input;
    uint32_t transition;
    uint32_t effect;
    uint32_t http;
    char reason[STEPS_TEXT_MAX]; /* a part of it */
    bool nothing;                /* no condition was given: no entry fits, the end does */
};

enum steps_anchor { STEPS_ABSOLUTE, STEPS_FORWARD, STEPS_BACKWARD, STEPS_FIRST, STEPS_LAST };

struct steps_command {
    enum steps_verb verb;
    uint64_t number; /* next, previous: how often; goto: by the anchor; diff: from */
    uint64_t second; /* diff: to; 0: here */
    enum steps_anchor anchor;
    uint64_t room; /* state, diff, room: 0 all */
    struct steps_condition condition;
};

/* False: not a command; error says what is wrong with it, clean. */
bool steps_parse(const char *line, struct steps_command *out_command, char *error, size_t size);

/* Whether the step just taken fits. */
bool steps_fits(const struct steps_condition *condition, const struct codec_entry *entry,
                const struct sm_output *output);

/* ---- what a step and a state look like
 * --------------------------------------------------------------------- */

/* The entry's input, what the machine did and what it ordered. */
void step_print(uint64_t number, const struct codec_entry *entry,
                const struct journal_machine *machine, bool json);
bool step_about(const struct codec_entry *entry, uint64_t room);

struct state_field {
    char key[96];
    char value[256];
};

struct state_fields {
    struct state_field *at;
    size_t count;
    size_t capacity;
    uint64_t *rooms; /* those whose halves are in it */
    size_t room_count;
    bool cut; /* there are more halves than STATE_HALVES_MAX */
};

/*
 * The machine's state as names and values: of one room, or of all with 0; with `also`, the rooms of
 * that state too, although they are only remembered by now. False: no memory.
 */
bool state_read(const struct sm *sm, uint64_t room, const struct state_fields *also,
                struct state_fields *out_fields);
void state_free(struct state_fields *fields);
void state_print(const struct state_fields *fields, bool json);
/* What differs, one line a field; returns how many do. */
size_t state_diff(const struct state_fields *before, const struct state_fields *after, bool json);

/* Where a replay left the journal's way: both sides of the step, field by field. */
void divergence_print(struct journal *journal, const struct journal_machine *machine,
                      const struct journal_divergence *divergence);

/* ---- the walk
 * ---------------------------------------------------------------------------------------- */

struct stepper_options {
    uint64_t start; /* 0: the first entry */
    uint64_t room;  /* next and previous go to entries about it; 0: to every entry */
    uint32_t protections_off;
    bool check;
    bool json;
};

/* Commands from `in` until quit or its end; an exit code. Wrong lines of a script end it. */
int stepper_run(struct journal *journal, const struct stepper_options *options, FILE *in);

#endif
