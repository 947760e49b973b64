/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two machines in one process, joined by perfect links: what one orders the other gets, in order,
 * at the same time. Every step is followed by all invariant checks. For unit tests of the machine;
 * whole incidents are scenario files.
 */
#ifndef TESTS_SUPPORT_PAIR_H
#define TESTS_SUPPORT_PAIR_H

#include "statemachine/sm.h"

#include <stdbool.h>
#include <stdint.h>

#define PAIR_P 0u
#define PAIR_D 1u
#define PAIR_TOLD_MAX 256u
#define PAIR_WRITES_MAX 64u

struct pair_told {
    uint32_t node;
    uint32_t rank;
    uint64_t room;
    uint64_t generation;
    uint32_t outcome;
    uint32_t http;
    char reason[256];
    bool pages_free;
};

struct pair_write {
    uint64_t id;
    uint64_t room;
    uint64_t pages;
};

/* Called after each step of either machine. */
typedef void (*pair_watch_fn)(void *context, uint32_t node, const struct sm_input *input,
                              const struct sm_output *output);

struct pair {
    pair_watch_fn watch; /* NULL: none */
    void *watch_context;
    struct sm *sm[2];
    void *memory[2];
    size_t bytes[2];
    struct sm_output *output;
    uint64_t now_ns;
    uint32_t ranks[2];
    uint32_t link;
    uint64_t requests;
    uint64_t steps;    /* of both machines */
    bool hold_writes;  /* writes are posted and do not complete */
    bool lose_status;  /* statuses from P to D get lost */
    bool unchecked;    /* benchmarks: no invariant checks, and what was told is forgotten */
    bool auto_release; /* engines release and confirm what they are told */
    struct pair_write writes[PAIR_WRITES_MAX];
    uint32_t write_count;
    struct pair_told told[PAIR_TOLD_MAX];
    uint32_t told_count;
    uint32_t freed_count;
    uint32_t last_refusal; /* of the last reply */
    uint32_t last_http;
};

void pair_open(struct pair *pair, uint32_t prefill_ranks, uint32_t decode_ranks);
/* The same, watched from the first step on. */
void pair_open_watched(struct pair *pair, uint32_t prefill_ranks, uint32_t decode_ranks,
                       pair_watch_fn watch, void *context);
/* A process life of a node, with its engines; joined to the other by pair_connect. */
void pair_start(struct pair *pair, uint32_t node, uint64_t epoch);
/* A new connection between both. */
void pair_connect(struct pair *pair);
/* Of both machines. */
struct sm_bounds pair_bounds(void);
void pair_close(struct pair *pair);
/* Steps one input (time is filled in) and carries out what follows, to the end. */
void pair_step(struct pair *pair, uint32_t node, struct sm_input *input);
/* An engine's command; pages as first, count. */
struct sm_input pair_command(uint32_t kind, uint32_t side, uint32_t rank, uint64_t room);
/* Lets time pass, with all ticks that the machines want. */
void pair_pass(struct pair *pair, uint64_t ns);
/* Completes the held writes. */
void pair_complete(struct pair *pair, int32_t code);
/* How often (node, rank) was told `outcome` for the room. */
uint32_t pair_told_count(const struct pair *pair, uint32_t node, uint32_t rank, uint64_t room,
                         uint32_t outcome);
uint32_t pair_phase(const struct pair *pair, uint32_t node, uint64_t room);

#endif
