/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenario language, version 1 (docs/scenarios.md): parsed into statements and expectations,
 * and run on a simulated cluster (world.h).
 *
 * The parser is total: every text is a scenario or an error with line and column. Limits:
 * SCENARIO_STATEMENTS_MAX statements and as many expectations, 4 MiB of text.
 */
#ifndef REPLAY_SCENARIO_H
#define REPLAY_SCENARIO_H

#include "chunks.h"
#include "world.h"

#include <stdio.h>

#define SCENARIO_TEXT_MAX ((size_t)4 << 20)
#define SCENARIO_STATEMENTS_MAX 65536u
#define SCENARIO_CHOICES_MAX 8u
#define SCENARIO_FRAMES_MAX 62u /* parts of one raw message: what a line has words for */

struct scenario_place {
    uint32_t node; /* SM_NONE: none named */
    uint32_t rank; /* SM_NONE: all of its ranks */
};

enum scenario_verb {
    VERB_COMMAND = 1, /* an engine's: input */
    VERB_REUSE,
    VERB_MUTE,
    VERB_UNMUTE,
    VERB_CRASH,
    VERB_RESTART,
    VERB_STOP,
    VERB_FREEZE,
    VERB_THAW,
    VERB_DISK,
    VERB_BYTES,
    VERB_FRAMES, /* bytes: the parts behind each other; runs: where each begins, and its size */
    VERB_LINK,
    VERB_LATENCY,
    VERB_RULE,
    VERB_FABRIC_TIME,
    VERB_FABRIC_HOLD,
    VERB_FABRIC_RESUME,
    VERB_FABRIC_FAIL
};

struct scenario_statement {
    uint32_t line;
    uint64_t time_ns;
    enum scenario_verb verb;
    struct scenario_place at;    /* subject, or A */
    struct scenario_place other; /* B */
    bool one_way;                /* link: A>B */
    uint32_t command;            /* enum sm_input_kind */
    uint64_t room;
    struct sm_run *runs;
    uint32_t run_count;
    const char *from; /* open: the prefill node */
    uint32_t prefix;
    uint32_t aux;
    uint32_t destinations;
    uint64_t deadline_ns;
    bool flag; /* send: last; crash: after=commit; restart: wipe; link: up; fail: at=post */
    uint32_t http;
    uint32_t origin;
    const char *text; /* reason, code */
    unsigned char *bytes;
    size_t size;
    uint32_t number; /* disk, rule kind */
    uint32_t message;
    uint32_t count;
    uint64_t ns;
};

enum scenario_claim_kind {
    CLAIM_ROOM = 1,
    CLAIM_ABSENT,
    CLAIM_TOLD,
    CLAIM_NOTICE,
    CLAIM_WRITE,
    CLAIM_PAGES,
    CLAIM_DATA,
    CLAIM_REFUSED,
    CLAIM_COUNTER,
    CLAIM_ALIVE,
    CLAIM_QUIESCENT
};

struct scenario_claim {
    enum scenario_claim_kind kind;
    uint64_t room;
    struct scenario_place at;
    struct scenario_place from;
    uint32_t phases;   /* bit set; 0: any */
    uint32_t outcomes; /* bit set of enum sm_outcome; 0: any */
    uint32_t https[SCENARIO_CHOICES_MAX];
    uint32_t http_count;
    const char *reason; /* NULL: any */
    bool reason_part;
    uint32_t owner; /* 1 engine, 2 node, 0 any */
    bool has_times;
    uint32_t times;
    uint32_t gen;
    struct sm_run *runs;
    uint32_t run_count;
    bool held;
    uint32_t data; /* enum world_data */
    uint32_t command;
    const char *name; /* counter */
    uint64_t least;
};

enum scenario_when { WHEN_BY = 1, WHEN_AT, WHEN_END, WHEN_NEVER };

struct scenario_expectation {
    uint32_t line;
    enum scenario_when when;
    uint64_t time_ns; /* by, at; never: before, UINT64_MAX without one */
    struct scenario_claim claim;
    char *words; /* as written */
};

struct scenario {
    const char *file;
    const char *title;
    struct world_node_options nodes[WORLD_NODES_MAX];
    uint32_t node_count;
    uint32_t needs; /* bit set of enum sm_protection */
    struct scenario_statement *statements;
    uint32_t statement_count;
    struct scenario_expectation *expectations;
    uint32_t expectation_count;
    uint32_t statement_capacity;
    uint32_t expectation_capacity;
    uint64_t end_ns;      /* 0: when nothing is left to happen */
    struct chunks memory; /* of everything that strings and lists point to */
};

struct scenario_error {
    uint32_t line;
    uint32_t column;
    char text[256];
};

/*
 * *io_scenario is zeroed, or one that was parsed before: that is over then, and its memory used.
 * False: *out_error says where and what. scenario_free at the end, in either case.
 */
bool scenario_parse(const char *file, const char *text, size_t size, struct scenario *io_scenario,
                    struct scenario_error *out_error);
void scenario_free(struct scenario *scenario);

struct scenario_failure {
    uint32_t line; /* 0: an invariant */
    char expected[256];
    char seen[384];
    uint64_t room; /* that it is about; 0 none */
    uint32_t node;
};

#define SCENARIO_FAILURES_MAX 16u

struct scenario_run {
    uint64_t seed;
    uint32_t protections_off;
    const char *journal_dir; /* NULL: none is kept */
    bool draw;               /* failures with the room's history */
    /* NULL: a cluster is made, and left here for the next run; world_destroy at the end. */
    struct world *world;
    /* Results: */
    struct scenario_failure failures[SCENARIO_FAILURES_MAX];
    uint32_t failure_count;
    uint64_t steps;
    uint64_t ended_ns;
    uint64_t journal_digest; /* of the entries of all nodes */
};

/* STATUS_OK: it ran; failures say how it went. `out` gets diagrams of failures when run->draw. */
enum status scenario_execute(const struct scenario *scenario, struct scenario_run *run, FILE *out,
                             struct status_detail *out_detail);

#endif
