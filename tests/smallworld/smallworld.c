/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small worlds, seen whole: breadth-first search over the digests of all reachable states. A state
 * is kept as its digest and the action that led to it; to go on from one, its path is walked again,
 * which is short, since neighbours in the queue share most of it. States with the same future are
 * taken for one (smallworld.h says which, and why that is sound).
 *
 *     smallworld [--max-states N] [--long] [--world N] [--mutations] [--plain]
 *
 * Runs a list of worlds, prints states, transitions, depth and time of each, and fails at the first
 * promise that falls, with the shortest way to it. Some are searched again without any reduction
 * (--plain: all of them): every end must come out as before. Then each protection is switched off
 * in turn, and a violation must be found.
 */
#include "smallworld.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEPTH_MAX 200u
#define ENDS_MAX 4096u

struct node {
    uint32_t parent;
    uint32_t action;
};

struct search {
    const struct world_options *options;
    bool plain;    /* no two states are taken for one */
    uint64_t only; /* of the list of worlds, from 1; 0: all */
    struct node *nodes;
    uint64_t *seen; /* open addressing; 0 is empty */
    uint64_t seen_slots;
    uint32_t count;
    uint32_t capacity;
    uint64_t transitions;
    uint32_t depth;
    /* The path to the state that is looked at, with the world at each of its places. */
    struct world *worlds;
    uint32_t path[DEPTH_MAX];
    uint32_t path_length; /* worlds[0 .. path_length]; path[i] led to worlds[i + 1] */
    struct fault fault;
    uint32_t fault_node;
    uint32_t fault_action;
    /* What the ends of this world come to (world_told). */
    uint64_t ends[ENDS_MAX];
    uint32_t end_count;
};

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* False: it was there already. */
static bool remember(struct search *s, uint64_t digest)
{
    uint64_t slot = digest & (s->seen_slots - 1u);
    while (s->seen[slot] != 0) {
        if (s->seen[slot] == digest) {
            return false;
        }
        slot = (slot + 1u) & (s->seen_slots - 1u);
    }
    s->seen[slot] = digest;
    return true;
}

static uint32_t chain_of(const struct search *s, uint32_t node, uint32_t *out_chain)
{
    uint32_t length = 0;
    for (uint32_t at = node; at != 0; at = s->nodes[at].parent) {
        length++;
    }
    uint32_t i = length;
    for (uint32_t at = node; at != 0; at = s->nodes[at].parent) {
        out_chain[--i] = at;
    }
    return length;
}

/* Makes worlds[path_length] the world of this state. */
static void walk_to(struct search *s, uint32_t node)
{
    uint32_t chain[DEPTH_MAX];
    const uint32_t length = chain_of(s, node, chain);
    uint32_t common = 0;
    while (common < length && common < s->path_length && s->path[common] == chain[common]) {
        common++;
    }
    for (uint32_t i = common; i < length; i++) {
        struct fault none = {""};
        world_copy(&s->worlds[i + 1u], &s->worlds[i]);
        world_act(&s->worlds[i + 1u], s->nodes[chain[i]].action, &none);
        s->path[i] = chain[i];
    }
    s->path_length = length;
}

static bool add_state(struct search *s, uint32_t parent, uint32_t action, uint64_t digest)
{
    if (!remember(s, digest)) {
        return true;
    }
    if (s->count == s->capacity) {
        return false;
    }
    s->nodes[s->count++] = (struct node){parent, action};
    return true;
}

static uint64_t digest_of(struct search *s, const struct world *world)
{
    if (s->plain) {
        return world_digest(world);
    }
    world_copy(&s->worlds[DEPTH_MAX - 1u], world);
    return world_canonical(&s->worlds[DEPTH_MAX - 1u]);
}

static void note_end(struct search *s, const struct world *world)
{
    const uint64_t told = world_told(world);
    for (uint32_t i = 0; i < s->end_count; i++) {
        if (s->ends[i] == told) {
            return;
        }
    }
    if (s->end_count == ENDS_MAX) {
        (void)snprintf(s->fault.text, sizeof s->fault.text, "more than %u ends", ENDS_MAX);
        return;
    }
    s->ends[s->end_count++] = told;
}

/* Everything that can follow on one state; false: the search is over (a fault, or no room). */
static bool expand(struct search *s, uint32_t node)
{
    uint32_t actions[ACTIONS_MAX];
    walk_to(s, node);
    const struct world *here = &s->worlds[s->path_length];
    struct world *next = &s->worlds[s->path_length + 1u];
    const uint32_t count = world_actions(here, actions);
    s->depth = s->path_length > s->depth ? s->path_length : s->depth;
    s->fault_node = node;
    s->fault_action = 0;
    if (count == 0) {
        world_end(here, &s->fault);
        note_end(s, here);
        return s->fault.text[0] == '\0';
    }
    if (s->path_length + 2u >= DEPTH_MAX) {
        (void)snprintf(s->fault.text, sizeof s->fault.text, "it does not come to an end");
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        world_copy(next, here);
        world_act(next, actions[i], &s->fault);
        s->transitions++;
        if (s->fault.text[0] != '\0') {
            s->fault_action = actions[i];
            return false;
        }
        if (!add_state(s, node, actions[i], digest_of(s, next))) {
            return false;
        }
    }
    return true;
}

static void print_way(struct search *s)
{
    uint32_t chain[DEPTH_MAX];
    char line[256];
    const uint32_t length = chain_of(s, s->fault_node, chain);
    struct fault none = {""};
    struct world *world = &s->worlds[DEPTH_MAX - 1u];
    world_init(world, s->options, &none);
    for (uint32_t i = 0; i < length; i++) {
        world_describe(world, s->nodes[chain[i]].action, line, sizeof line);
        printf("    %2u  %s\n", i + 1u, line);
        world_act(world, s->nodes[chain[i]].action, &none);
    }
    if (s->fault_action != 0) {
        world_describe(world, s->fault_action, line, sizeof line);
        printf("    %2u  %s\n", length + 1u, line);
    }
    printf("        %s\n", s->fault.text);
}

/* The whole of one world. True: no promise fell (*out_whole: and every state was seen). */
static bool explore(struct search *s, const struct world_options *options, bool *out_whole)
{
    const double started = seconds();
    memset(s->seen, 0, s->seen_slots * sizeof *s->seen);
    s->options = options;
    s->count = 1;
    s->transitions = 0;
    s->depth = 0;
    s->path_length = 0;
    s->end_count = 0;
    memset(&s->fault, 0, sizeof s->fault);
    world_init(&s->worlds[0], options, &s->fault);
    (void)remember(s, digest_of(s, &s->worlds[0]));
    uint32_t at = 0;
    while (s->fault.text[0] == '\0' && at < s->count && expand(s, at)) {
        at++;
    }
    const double took = seconds() - started;
    *out_whole = at == s->count && s->fault.text[0] == '\0';
    printf("%9u states %10" PRIu64 " transitions, depth %3u, %4u ends, %6.1f s, %7.0f states/s%s\n",
           s->count, s->transitions, s->depth, s->end_count, took,
           (double)s->count / (took > 0 ? took : 1e-9),
           s->fault.text[0] != '\0' ? ": A PROMISE FELL"
           : *out_whole             ? ""
                                    : " (stopped: not whole)");
    return s->fault.text[0] == '\0';
}

enum when { NEAR, TWICE, FAR }; /* TWICE: also without reduction; FAR: only with --long */

struct world_row {
    const char *name;
    enum when when;
    struct world_options options;
};

/* rooms lives decode_ranks chunks | aborts crashes cuts losses fails slow | off fence journal |
 * ordered */
static const struct world_row rows[] = {
    {"one room, two ranks, two chunks; nothing goes wrong",
     TWICE,
     {1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0, true, true, false}},
    {"... an abort or a refusal", NEAR, {1, 1, 2, 2, 1, 0, 0, 0, 0, 0, 0, true, true, false}},
    {"... a message lost, doubled or late",
     TWICE,
     {1, 1, 2, 2, 0, 0, 0, 1, 0, 0, 0, true, true, false}},
    {"one rank: an abort, and a message lost, doubled or late",
     TWICE,
     {1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 0, true, true, false}},
    {"one rank, one chunk: a crash anywhere",
     TWICE,
     {1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, true, true, false}},
    {"one rank, one chunk: an abort and a crash anywhere",
     NEAR,
     {1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, true, true, false}},
    {"one rank, one chunk: a crash, and a message lost, doubled or late",
     TWICE,
     {1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, true, true, false}},
    {"one rank, one chunk: the connection is cut under writes; time passes",
     TWICE,
     {1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 0, true, true, false}},
    {"two ranks: a write fails, an abort",
     NEAR,
     {1, 1, 2, 1, 1, 0, 0, 0, 1, 0, 0, true, true, false}},
    {"one room number twice; an abort, a message lost, doubled or late",
     NEAR,
     {1, 2, 1, 1, 1, 0, 0, 1, 0, 0, 0, true, true, false}},
    {"two rooms, one rank; a message lost, doubled or late",
     TWICE,
     {2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, true, true, false}},
    {"two rooms, one rank; an abort", NEAR, {2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, true, true, false}},
    {"two rooms, two ranks, two chunks; nothing goes wrong",
     NEAR,
     {2, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0, true, true, false}},
    {"two ranks, two chunks; a crash", FAR, {1, 1, 2, 2, 0, 1, 0, 0, 0, 0, 0, true, true, false}},
    {"two ranks, two chunks; a crash and a message lost, doubled or late",
     FAR,
     {1, 1, 2, 2, 0, 1, 0, 1, 0, 0, 0, true, true, false}},
    {"two rooms, one rank, one chunk; a crash",
     FAR,
     {2, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, true, true, false}},
    {"two rooms, two ranks, two chunks; a message lost, doubled or late",
     FAR,
     {2, 1, 2, 2, 0, 0, 0, 1, 0, 0, 0, true, true, false}},
    {"two rooms, two ranks, two chunks; a crash and a message lost, doubled or late",
     FAR,
     {2, 1, 2, 2, 0, 1, 0, 1, 0, 0, 0, true, true, false}},
};

/* A world in which the race lies that a protection prevents. */
struct mutation {
    uint32_t protection;
    const char *falls; /* a part of what must be said to have fallen */
    struct world_options options;
};

static const struct mutation mutations[] = {
    {SM_PROTECT_TOMBSTONES,
     "nothing that happened stands for",
     {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, true, true, false}},
    {SM_PROTECT_DRAIN, "drained_before_free", {1, 1, 1, 2, 1, 0, 0, 0, 0, 0, 0, true, true, false}},
    {SM_PROTECT_OWNERSHIP, "owner_clears", {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, true, true, false}},
    {SM_PROTECT_GATHER, "same_cause", {1, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0, true, true, false}},
    {SM_PROTECT_GENERATIONS,
     "drained_before_free",
     {1, 2, 1, 1, 1, 0, 0, 1, 0, 0, 0, true, true, false}},
    {SM_PROTECT_RETRY,
     "nothing that happened stands for",
     {1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, true, true, false}},
    {SM_PROTECT_SINGLE_NOTICE, "told_once", {1, 1, 1, 2, 1, 0, 0, 0, 0, 0, 0, true, true, false}},
    {SM_PROTECT_JOURNAL_FIRST,
     "owner_clears",
     {1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, true, false, false}},
    {SM_PROTECT_FENCE,
     "drained_before_free",
     {1, 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, false, true, false}},
};

static bool has_end(const uint64_t *ends, uint32_t count, uint64_t end)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ends[i] == end) {
            return true;
        }
    }
    return false;
}

/*
 * The same world again, without taking states for one: it comes to the same ends; and with all
 * messages in order it comes to no other ones.
 */
static bool compare(struct search *s, const struct world_options *options)
{
    static uint64_t ends[ENDS_MAX];
    const uint32_t count = s->end_count;
    bool well = true;
    memcpy(ends, s->ends, count * sizeof ends[0]);
    for (uint32_t ordered = 0; ordered < 2u && well; ordered++) {
        struct world_options plainly = *options;
        bool whole = false;
        plainly.ordered = ordered != 0;
        s->plain = true;
        printf(ordered == 0 ? "  no two states taken for one\n  " : "  and messages in order\n  ");
        well = explore(s, &plainly, &whole) && whole && (ordered != 0 || s->end_count == count);
        for (uint32_t i = 0; i < s->end_count; i++) {
            well = well && has_end(ends, count, s->ends[i]);
        }
    }
    s->plain = false;
    if (!well) {
        printf("  other ends than with reduction: it is not sound\n");
    }
    return well;
}

/* *out_parts: worlds that were not seen whole. */
static bool run_worlds(struct search *s, bool far, uint32_t *out_parts)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool whole = false;
        if (s->only != 0 ? i + 1u != s->only : rows[i].when == FAR && !far) {
            continue;
        }
        printf("%s\n  ", rows[i].name);
        if (!explore(s, &rows[i].options, &whole)) {
            print_way(s);
            return false;
        }
        *out_parts += whole ? 0 : 1u;
        if (!whole && rows[i].when != FAR) {
            printf("  this world must be seen whole: give it more --max-states\n");
            return false;
        }
        if (rows[i].when == TWICE && !s->plain && !compare(s, &rows[i].options)) {
            return false;
        }
    }
    return true;
}

static bool fell_as_expected(const struct search *s, const struct mutation *mutation)
{
    if (strstr(s->fault.text, mutation->falls) != NULL) {
        return true;
    }
    printf("  expected another promise to fall: %s\n", mutation->falls);
    return false;
}

static bool run_mutations(struct search *s)
{
    bool well = true;
    for (size_t i = 0; i < sizeof mutations / sizeof mutations[0]; i++) {
        struct world_options options = mutations[i].options;
        bool whole = false;
        options.protections_off = 1u << mutations[i].protection;
        printf("without %s\n  ", sm_protection_name(mutations[i].protection));
        if (explore(s, &options, &whole)) {
            printf("  NOT NOTICED: no promise fell\n");
            well = false;
        } else {
            print_way(s);
            well = fell_as_expected(s, &mutations[i]) && well;
        }
        /* What is missed with reduction is missed without, and the other way round. */
        printf("  no two states taken for one\n  ");
        s->plain = true;
        well = !explore(s, &options, &whole) && fell_as_expected(s, &mutations[i]) && well;
        s->plain = false;
    }
    return well;
}

int main(int argc, char **argv)
{
    static struct search search;
    uint64_t states = 2000000;
    bool far = false;
    bool only_mutations = false;
    uint32_t parts = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--long") == 0) {
            far = true;
        } else if (strcmp(argv[i], "--world") == 0 && i + 1 < argc) {
            search.only = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--plain") == 0) {
            search.plain = true;
        } else if (strcmp(argv[i], "--mutations") == 0) {
            only_mutations = true;
        } else if (strcmp(argv[i], "--max-states") == 0 && i + 1 < argc) {
            states = strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr, "usage: smallworld [--max-states N] [--long] [--world N] [--mutations] "
                            "[--plain]\n");
            return 2;
        }
    }
    search.capacity = (uint32_t)(states < 1000u        ? 1000u
                                 : states > UINT32_MAX ? UINT32_MAX
                                                       : states);
    search.seen_slots = 1;
    while (search.seen_slots < 2u * (uint64_t)search.capacity) {
        search.seen_slots *= 2u;
    }
    search.nodes = calloc(search.capacity, sizeof *search.nodes);
    search.seen = calloc(search.seen_slots, sizeof *search.seen);
    search.worlds = calloc(DEPTH_MAX, sizeof *search.worlds);
    if (search.nodes == NULL || search.seen == NULL || search.worlds == NULL) {
        fprintf(stderr, "no memory for %u states\n", search.capacity);
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    const bool well = (only_mutations || run_worlds(&search, far, &parts)) &&
                      (search.only != 0 || run_mutations(&search));
    if (well && parts > 0) {
        printf("%u worlds were seen in part only: more --max-states would go on\n", parts);
    }
    printf(well ? "every promise held, and each protection was missed\n" : "FAILED\n");
    free(search.nodes);
    free(search.seen);
    free(search.worlds);
    return well ? 0 : 1;
}
