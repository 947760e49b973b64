/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can happen: the facts that sm_step accepts, each stamped with the node's time.
 *
 * Layer: freestanding. Pointers in an input are borrowed for the one call of sm_step.
 *
 * Numbers of enums are written to journals: append only, never renumber.
 */
#ifndef STATEMACHINE_SM_INPUT_H
#define STATEMACHINE_SM_INPUT_H

#include "statemachine/sm_policy.h"
#include "statemachine/sm_types.h"

/*
 * X(NAME, number, "text", scope)   scope: N node, P peer, E engine rank, R room (goes through the
 * phase x input table)
 */
#define SM_INPUT_LIST(X)                         \
    X(NODE_STARTED, 1, "node_started", N)        \
    X(NODE_STOP, 2, "node_stop", N)              \
    X(TICK, 3, "tick", N)                        \
    X(JOURNAL_FAILED, 4, "journal_failed", N)    \
    X(JOURNAL_OK, 5, "journal_ok", N)            \
    X(PEER_UP, 6, "peer_up", P)                  \
    X(PEER_DOWN, 7, "peer_down", P)              \
    X(PEER_FENCED, 8, "peer_fenced", P)          \
    X(PEER_RECOVERED, 9, "peer_recovered", P)    \
    X(ENGINE_ATTACHED, 10, "engine_attached", E) \
    X(ENGINE_LOST, 11, "engine_lost", E)         \
    X(OPEN, 12, "open", R)                       \
    X(ADMIT, 13, "admit", R)                     \
    X(REJECT, 14, "reject", R)                   \
    X(SEND, 15, "send", R)                       \
    X(ABORT, 16, "abort", R)                     \
    X(RELEASE, 17, "release", R)                 \
    X(DELIVERED, 18, "delivered", R)             \
    X(PREPARE, 19, "prepare", R)                 \
    X(PREPARED, 20, "prepared", R)               \
    X(STATUS, 21, "status", R)                   \
    X(ACK, 22, "ack", R)                         \
    X(PEER_ABORT, 23, "peer_abort", R)           \
    X(DRAINED, 24, "drained", R)                 \
    X(WRITE_DONE, 25, "write_done", R)

enum sm_input_kind {
    SM_IN_NONE = 0,
#define SM_X(name, number, text, scope) SM_IN_##name = (number),
    SM_INPUT_LIST(SM_X)
#undef SM_X
        SM_IN_COUNT
};

/* Which member of the union a kind has: from outside both come as numbers and must agree. */
static inline bool sm_input_is_command(uint32_t kind)
{
    return kind >= SM_IN_OPEN && kind <= SM_IN_DELIVERED;
}

static inline bool sm_input_is_message(uint32_t kind)
{
    return kind == SM_IN_PEER_RECOVERED || (kind >= SM_IN_PREPARE && kind <= SM_IN_DRAINED);
}

/* node_started: first input of every process life, and nothing else may come before it. */
struct sm_in_node_started {
    uint64_t node_id; /* non-zero, stable as long as the journal is */
    uint64_t epoch;   /* greater than every epoch that this journal has seen */
    struct sm_text name;
    struct sm_policy policy;
    const struct sm_text *peer_names; /* peers of the configuration; more may come with peer_up */
    uint32_t peer_count;
};

/* peer_up: the handshake of the control plane is complete. link counts up on each one. */
struct sm_in_peer_up {
    struct sm_text name;
    uint64_t node_id;
    uint64_t epoch;
    uint32_t link;  /* names this connection in fence, peer_fenced and peer_down */
    uint32_t ranks; /* its TP size, 1..SM_RANKS_MAX */
};

/* peer_down, peer_fenced: of the connection `link` of that peer (0: it never came up). */
struct sm_in_peer {
    struct sm_text name;
    uint32_t link;
};

/* How an engine was lost: X(NAME, number, "text"). The numbers stand in journals. */
#define SM_LOST_LIST(X)                                            \
    X(UNSAID, 0, "")                                               \
    X(ENDED, 1, "its process has ended")                           \
    X(DETACHED, 2, "it has detached")                              \
    X(SILENT, 3, "it has been silent for too long")                \
    X(REFUSED, 4, "its pool was refused")                          \
    X(AWAITED, 5, "it has not come back since the node restarted") \
    X(DEAF, 6, "it does not read what it is told")

enum sm_lost {
#define SM_X(name, number, text) SM_LOST_##name = (number),
    SM_LOST_LIST(SM_X)
#undef SM_X
        SM_LOST_COUNT
};

/* engine_attached: a rank connected and registered its pool (pages 0: no pool yet). */
struct sm_in_engine {
    uint32_t rank;
    uint32_t pages;     /* pages of its pool; page numbers are 0..pages-1 */
    uint32_t aux_slots; /* metadata slots of its pool */
    struct sm_geometry geometry;
    uint32_t lost; /* engine_lost: enum sm_lost */
};

/* An engine's command. `request` comes back in the reply; 0 asks for none. */
struct sm_in_command {
    uint64_t request;
    uint32_t rank;
    uint32_t side;         /* enum sm_side: which half of the room on a node that can hold both */
    struct sm_text peer;   /* open, decode: the prefill node; empty: the only peer there is */
    struct sm_runs pages;  /* open, decode: pages to be filled; send: source pages of this chunk */
    uint32_t prefix_pages; /* open, decode: leading pages of the prompt that decode has already */
    uint32_t aux_slot;     /* open, decode: where metadata goes; send last: where it comes from */
    uint32_t destinations; /* open, prefill: required per rank; 0: learned from the first prepare */
    uint64_t deadline_ns;  /* open: from now on; 0: the policy's room_deadline */
    bool last;             /* send: ends the prompt */
    struct sm_cause cause; /* reject, abort; abort: origin says by whom, http 0 = the default */
    uint64_t generation;   /* delivered, release: of which life (0: the newest of the rank) */
};

/*
 * What nodes say to each other about one destination of one room. Used for inputs and effects
 * alike. Fields not named for a kind are zero.
 */
struct sm_message {
    struct sm_life life;  /* all kinds */
    uint32_t decode_rank; /* all kinds: the destination */
    uint64_t sources;     /* prepare: prefill ranks that must write; status: that did */
    /* prepare: destinations that each source rank must hear from, by rank (0 where not a source) */
    uint8_t required[SM_RANKS_MAX];
    struct sm_runs pages;        /* prepare: destination pages, in prompt order */
    uint32_t prefix_pages;       /* prepare */
    uint32_t aux_slot;           /* prepare: SM_AUX_NONE without one */
    uint32_t decode_ranks;       /* prepare: TP size of decode */
    uint64_t deadline_left_ns;   /* prepare: what is left of decode's deadline */
    struct sm_geometry geometry; /* prepare: of that rank's pool */
    uint32_t outcome;            /* status: enum sm_outcome */
    struct sm_cause cause;       /* status failed, abort */
    bool drained; /* status: no write to this destination is in flight or can still be posted */
};

/* A message from a peer; the sender is known by its connection, not by a field of the message. */
struct sm_in_message {
    struct sm_text peer; /* the sender's name */
    uint64_t epoch;      /* the sender's epoch */
    uint64_t entry;      /* the sender's journal entry that caused it (for merge), 0 unknown */
    struct sm_message message;
};

/* write_done: the fabric is through with one write, well or not. code 0: delivered. */
struct sm_in_write_done {
    uint64_t write;      /* the id that the write effect carried */
    int32_t code;        /* 0, or the provider's error number, negative */
    struct sm_text text; /* the provider's words for it */
};

struct sm_input {
    uint64_t time_ns; /* never less than the input before (monotone_time) */
    uint64_t room;    /* scope R; 0 is not a room */
    uint32_t kind;    /* enum sm_input_kind */
    union {
        struct sm_in_node_started node_started;
        struct sm_in_peer_up peer_up;
        struct sm_in_peer peer;
        struct sm_in_engine engine;
        struct sm_in_command command;
        struct sm_in_message message;
        struct sm_in_write_done write_done;
    } u;
};

/* "open", "peer_up", ...; "none" for a number that names no input. */
const char *sm_input_name(uint32_t kind);

/* "its process has ended", ...; "" for a number that names no way. */
const char *sm_lost_text(uint32_t lost);

#endif
