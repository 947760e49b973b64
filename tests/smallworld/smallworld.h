/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world small enough to be seen whole: one prefill node with one rank, one decode node with one
 * or two, one or two rooms (or two lives of one room number), one or two chunks, and what is
 * between them: two ordered channels, a fabric, engines that follow a script. One action is one
 * choice of the scheduler; everything else follows from it. A world and its machines are plain
 * bytes: to go back is to copy them back.
 *
 * What is checked after every action: all invariants of the machine that stepped; and of the whole:
 * no success before every byte is there, no page given back within a live writer's reach, no write
 * into pages that were given back, one result for each rank and life, the same for all ranks, one
 * kind of verdict for each destination, and in the end nobody waits and nothing is left.
 *
 * Messages about one destination of one room keep their order; those about different ones may
 * overtake each other, but none passes news of the connection or the marker of a recovery. That is
 * more than a connection does, so what holds here holds there (`ordered` is the connection itself).
 *
 * What is taken for one state (world_canonical), each because the future is the same:
 *
 *   sets      Results, verdicts, writes in flight, halves and tombstones stand in tables by whoever
 *             came first. Rules and machine ask for all or for a name, never for a place; the order
 *             in which one step speaks about several of them is the order of messages, see above.
 *   writes    The number of a write means nothing but which one it is: room, life, rank and page
 *             say that too. Whether the machine still knows it is kept.
 *   time      Machine and world only compare times and add to them: what counts is how long it is
 *             until each. When a room was opened is told to readers only. When what is remembered
 *             expires is left out where no world lives that long, which is checked at each tick.
 *   ranks     D.0 and D.1 do the same (where engines give up, they give different reasons: there
 *             it is not used), and rooms 1 and 2 do. A state is digested under each exchange of
 *             names, and the least digest is its own.
 *
 * The digests are the machine's own functions over a renamed copy: a field that is not renamed only
 * keeps states apart that could be one. smallworld.c searches some worlds with and without all this
 * and compares what they come to.
 */
#ifndef SMALLWORLD_SMALLWORLD_H
#define SMALLWORLD_SMALLWORLD_H

#include "statemachine/sm.h"

#include <stdbool.h>
#include <stdint.h>

#define ROOMS_MAX 2u
#define RANKS_MAX 2u
#define LIVES_MAX 2u
#define PARCELS_MAX 14u
#define WRITES_MAX 12u
#define RESULTS_MAX 16u
#define MACHINE_BYTES_MAX 18432u
#define ACTIONS_MAX 96u
#define AT_P 0u
#define AT_D 1u

/* What may happen in this world at all; budgets are how often. */
struct world_options {
    uint32_t rooms;
    uint32_t lives; /* 2: each room number is opened again once its first life is told */
    uint32_t decode_ranks;
    uint32_t chunks;
    uint32_t aborts;  /* engines give a room up, or prefill refuses it */
    uint32_t crashes; /* a node dies and comes back, between steps or between commit and sending */
    uint32_t cuts;    /* the connection is lost and made anew; writes go on meanwhile */
    uint32_t losses;  /* messages lost, doubled, or held back and delivered later */
    uint32_t fails;   /* writes that end with an error */
    uint32_t slow;    /* time passes although an engine has something to do */
    uint32_t protections_off;
    bool fence_works;   /* false: the world's part of the protection `fence` is off */
    bool journal_first; /* false: effects leave before their entry is durable */
    bool ordered;       /* all messages one way keep their order */
};

/* One message, or news of the connection, on its way. */
struct parcel {
    uint32_t kind; /* enum sm_input_kind */
    uint32_t link;
    uint64_t room;
    uint64_t epoch; /* the sender's */
    struct sm_message body;
    struct sm_run runs[4];
    char reason[96];
};

struct flying {
    uint64_t id;
    uint64_t room;
    struct sm_life life;
    uint32_t link;
    uint32_t decode_rank;
    uint32_t first; /* destination pages */
    uint32_t count;
    bool dead; /* its way is fenced or its memory gone: it can only fail */
    bool used;
};

/* What one engine rank has been told of one life. */
struct result {
    uint64_t room;
    uint64_t generation;
    uint64_t node_epoch; /* of the telling process */
    uint32_t side;
    uint32_t rank;
    uint32_t outcome;
    uint32_t http;
    bool free;
    bool released;
    bool used;
};

/* One engine rank's script for one room. */
struct script {
    uint8_t step;     /* next line */
    uint8_t life;     /* how often it has begun */
    bool opened;      /* the open was accepted: a result is owed */
    bool owned;       /* the engine's scheduler has it: only its release lets it go */
    bool over;        /* nothing more to do in this life */
    uint64_t told_at; /* generation of the result of this life; 0: not yet */
};

/* Verdicts that went out for one destination's life. */
struct verdict {
    uint64_t room;
    struct sm_life life;
    uint32_t rank;
    uint32_t outcomes; /* bit set of enum sm_outcome */
    bool used;
};

struct world_state {
    uint64_t now_ns;
    uint64_t epoch[2];
    uint32_t link;
    uint32_t count[2];
    struct parcel held;
    bool has_held;
    uint8_t held_to;
    struct flying writes[WRITES_MAX];
    struct script scripts[2][RANKS_MAX][ROOMS_MAX];
    struct result results[RESULTS_MAX];
    struct verdict verdicts[RESULTS_MAX];
    uint32_t written[ROOMS_MAX][LIVES_MAX][RANKS_MAX]; /* bit set of prompt pages that arrived */
    bool given_back[ROOMS_MAX][LIVES_MAX][RANKS_MAX];  /* decode's pages are somebody else's */
    uint8_t aborts, crashes, cuts, losses, fails, slow;
    struct parcel channel[2]
                         [PARCELS_MAX]; /* to P, to D; in the order of sending; the rest is zero */
};

struct world {
    const struct world_options *options;
    struct world_state s;
    unsigned char memory[2][MACHINE_BYTES_MAX] __attribute__((aligned(16)));
};

/* The kinds; an action is kind | a << 8 | b << 16 | c << 24, and CRASH_AFTER on top. */
enum action_kind {
    ACT_SCRIPT = 1, /* side, rank, room: the script's next line */
    ACT_RELEASE,    /* result */
    ACT_ABORT,      /* side, rank, room */
    ACT_REJECT,     /* -, -, room: instead of admitting */
    ACT_DELIVER,    /* to */
    ACT_LOSE,       /* to */
    ACT_DOUBLE,     /* to: delivered, and stays */
    ACT_HOLD,       /* to: out of the order */
    ACT_UNHOLD,
    ACT_COMPLETE, /* write */
    ACT_FAIL,     /* write */
    ACT_CUT,
    ACT_CRASH, /* node */
    ACT_TICK   /* time goes on to the next deadline */
};
#define CRASH_AFTER \
    0x80000000u /* the node dies once the entry is durable, before its effects leave */

struct fault {
    char text[256]; /* "": none */
};

void world_init(struct world *world, const struct world_options *options, struct fault *fault);
/* The actions that are possible now; 0: the world has come to its end. */
uint32_t world_actions(const struct world *world, uint32_t *out_actions);
/* Carries one out; fault->text says which promise fell. */
void world_act(struct world *world, uint32_t action, struct fault *fault);
/* What must hold when nothing is left to happen. */
void world_end(const struct world *world, struct fault *fault);
/* Of everything, as it is. */
uint64_t world_digest(const struct world *world);
/* The same for all worlds with the same future; a copy, which is destroyed. */
uint64_t world_canonical(struct world *scratch);
/* Who was told what, whatever its name: the outcome of a world that has come to its end. */
uint64_t world_told(const struct world *world);
/* `to` is zeroed, or has been a world. */
void world_copy(struct world *to, const struct world *from);
/* One line of text. */
void world_describe(const struct world *world, uint32_t action, char *out, size_t size);

#endif
