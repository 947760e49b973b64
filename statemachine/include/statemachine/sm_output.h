/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one step did: transitions (the journal's events) and effects (orders to the world outside).
 *
 * Layer: freestanding.
 *
 * Ownership: the caller owns struct sm_output (2.7 MiB: never on a stack) and passes it to sm_step,
 * which resets it. Runs and texts in it point into the machine, the output or the input and are
 * borrowed until the next call of sm_step: whoever queues an effect copies it.
 *
 * Limits: one step yields at most SM_TRANSITIONS_MAX and SM_EFFECTS_MAX. Work that touches many
 * halves (a lost peer, a restart, a stop) is spread over ticks: sm_deadline says "now" until it is
 * done.
 */
#ifndef STATEMACHINE_SM_OUTPUT_H
#define STATEMACHINE_SM_OUTPUT_H

#include "statemachine/sm_input.h"
#include "statemachine/sm_types.h"

#define SM_TRANSITIONS_MAX 2048u
#define SM_EFFECTS_MAX 2048u
/* Runs that one step's effects may point to; also the most that one rank of a room can hold. */
#define SM_OUTPUT_RUNS_MAX 262144u
#define SM_OUTPUT_TEXT_BYTES 65536u

/* X(NAME, number, "text"): the journal's events. Append only. Meaning of a and b beside each. */
#define SM_TRANSITION_LIST(X)                                                                      \
    X(NODE_STARTED, 1, "node_started")        /* a epoch */                                        \
    X(NODE_STOPPING, 2, "node_stopping")      /* */                                                \
    X(NODE_STOPPED, 3, "node_stopped")        /* */                                                \
    X(JOURNAL_FAILED, 4, "journal_failed")    /* */                                                \
    X(JOURNAL_OK, 5, "journal_ok")            /* */                                                \
    X(PEER_UP, 6, "peer_up")                  /* index peer, a epoch, b link */                    \
    X(PEER_DOWN, 7, "peer_down")              /* index peer, b link */                             \
    X(PEER_FENCING, 8, "peer_fencing")        /* index peer, b link */                             \
    X(PEER_FENCED, 9, "peer_fenced")          /* index peer, b link */                             \
    X(PEER_RECOVERED, 10, "peer_recovered")   /* index peer */                                     \
    X(ENGINE_ATTACHED, 11, "engine_attached") /* rank, a pages */                                  \
    X(ENGINE_LOST, 12, "engine_lost")         /* rank; text how */                                 \
    X(HALF_CREATED, 13, "half_created")       /* index peer or SM_NONE */                          \
    X(RANK_OPENED, 14, "rank_opened")         /* rank, a pages */                                  \
    X(RANK_ADMITTED, 15, "rank_admitted")     /* rank */                                           \
    X(RANK_RELEASED, 16, "rank_released")     /* rank */                                           \
    X(DESTINATION_ADDED, 17,                                                                       \
      "destination_added")                      /* index destination, rank decode rank, a pages */ \
    X(DESTINATION_GONE, 18, "destination_gone") /* index destination: unreachable, nothing owed */ \
    X(PREPARED, 19, "prepared")                 /* rank: prefill has this rank's destination */    \
    X(PHASE, 20, "phase")                       /* a from, b to (enum sm_phase) */                 \
    X(CHUNK_ACCEPTED, 21, "chunk_accepted")     /* rank, a pages so far, b last */                 \
    X(WRITE_POSTED, 22, "write_posted") /* rank source, index destination, a write, b pages */     \
    X(WRITE_COMPLETED, 23, "write_completed") /* rank source, index destination, a write, b ok */  \
    X(SOURCES_DONE, 24, "sources_done")       /* rank decode rank, a mask of source ranks */       \
    X(VERDICT, 25, "verdict")                 /* a outcome, b http; text reason */                 \
    X(CAUSE_REPLACED, 26, "cause_replaced")   /* b http; text reason */                            \
    X(NOTICE_SENT, 27, "notice_sent")         /* index destination, a try number */                \
    X(NOTICE_ACKED, 28, "notice_acked")       /* index destination */                              \
    X(ABORT_SENT, 29, "abort_sent")           /* rank decode rank, a try number */                 \
    X(DRAINED, 30, "drained")         /* rank: its pages are out of every writer's reach */        \
    X(TOLD, 31, "told")               /* rank: its engine's result left */                         \
    X(DELIVERED, 32, "delivered")     /* rank: its engine has the result */                        \
    X(PAGES_FREED, 33, "pages_freed") /* rank, a pages */                                          \
    X(QUARANTINED, 34, "quarantined") /* rank, a pages that nobody may use again */                \
    X(CLEARED, 35, "cleared")         /* */                                                        \
    X(TOMBSTONE_ANSWERED, 36, "tombstone_answered") /* a life's generation */                      \
    X(TOMBSTONE_EXPIRED, 37, "tombstone_expired")   /* a generation */                             \
    X(REFUSED, 38, "refused")             /* rank or index, a enum sm_refusal, b http; text */     \
    X(IGNORED, 39, "ignored")             /* a enum sm_ignored */                                  \
    X(GRACE_STARTED, 40, "grace_started") /* a until, ns; waiting for a better cause */            \
    X(PREPARE_SENT, 41, "prepare_sent")   /* rank: its pages are announced, a try number */

enum sm_transition_kind {
    SM_TR_NONE = 0,
#define SM_X(name, number, text) SM_TR_##name = (number),
    SM_TRANSITION_LIST(SM_X)
#undef SM_X
        SM_TR_COUNT
};

/* Why an input changed nothing. Each has a counter, and a way to it in test_sm_codes. Numbers that
 * are missing are not given again. */
#define SM_IGNORED_LIST(X)                           \
    X(UNKNOWN_ROOM, 1, "unknown_room")               \
    X(STALE_GENERATION, 2, "stale_generation")       \
    X(ALREADY_TERMINAL, 3, "already_terminal")       \
    X(DUPLICATE, 4, "duplicate")                     \
    X(UNKNOWN_DESTINATION, 5, "unknown_destination") \
    X(UNKNOWN_PEER, 6, "unknown_peer")               \
    X(UNKNOWN_WRITE, 7, "unknown_write")             \
    X(UNKNOWN_RANK, 8, "unknown_rank")               \
    X(NOT_TERMINAL, 9, "not_terminal")               \
    X(STALE_LINK, 10, "stale_link")                  \
    X(MALFORMED, 12, "malformed")                    \
    X(NOTHING_DUE, 13, "nothing_due")                \
    X(NOT_STARTED, 14, "not_started")                \
    X(CONFLICT, 15, "conflict")                      \
    X(TOMBSTONE, 16, "tombstone")

enum sm_ignored {
    SM_IGNORED_NONE = 0,
#define SM_X(name, number, text) SM_IGNORED_##name = (number),
    SM_IGNORED_LIST(SM_X)
#undef SM_X
        SM_IGNORED_COUNT
};

/* Why a request was refused; each has a default status, a counter and a way to it in a test. */
#define SM_REFUSAL_LIST(X)                \
    X(ROOM_ZERO, 1, "room_zero", 400)     \
    X(BAD_PAGES, 2, "bad_pages", 400)     \
    X(BAD_PEER, 3, "bad_peer", 400)       \
    X(BAD_REQUEST, 4, "bad_request", 400) \
    X(ROOM_LIVE, 5, "room_live", 409)     \
    X(PAGES_HELD, 6, "pages_held", 409)   \
    X(ROOM_OVER, 8, "room_over", 409)     \
    X(NOT_OPEN, 9, "not_open", 409)       \
    X(PEER_BOUND, 10, "peer_bound", 429)  \
    X(TABLE_FULL, 11, "table_full", 503)  \
    X(STOPPING, 12, "stopping", 503)      \
    X(JOURNAL, 13, "journal", 503)        \
    X(NO_POOL, 14, "no_pool", 400)

enum sm_refusal {
    SM_REFUSAL_NONE = 0,
#define SM_X(name, number, text, http) SM_REFUSAL_##name = (number),
    SM_REFUSAL_LIST(SM_X)
#undef SM_X
        SM_REFUSAL_COUNT
};

struct sm_transition {
    uint64_t room;       /* 0: not about a room */
    uint64_t generation; /* of the half */
    uint64_t a;
    uint64_t b;
    uint32_t kind;  /* enum sm_transition_kind */
    uint32_t side;  /* enum sm_side */
    uint32_t rank;  /* engine rank, SM_NONE where there is none */
    uint32_t index; /* destination or peer, SM_NONE where there is none */
    struct sm_text text;
};

/* X(NAME, number, "text") */
#define SM_EFFECT_LIST(X)                  \
    X(SEND_PREPARE, 1, "send_prepare")     \
    X(SEND_PREPARED, 2, "send_prepared")   \
    X(SEND_STATUS, 3, "send_status")       \
    X(SEND_ACK, 4, "send_ack")             \
    X(SEND_ABORT, 5, "send_abort")         \
    X(SEND_DRAINED, 6, "send_drained")     \
    X(SEND_RECOVERED, 7, "send_recovered") \
    X(WRITE, 8, "write")                   \
    X(TELL, 9, "tell")                     \
    X(REPLY, 10, "reply")                  \
    X(PAGES_FREE, 11, "pages_free")        \
    X(FENCE, 12, "fence")                  \
    X(STOPPED, 13, "stopped")

enum sm_effect_kind {
    SM_FX_NONE = 0,
#define SM_X(name, number, text) SM_FX_##name = (number),
    SM_EFFECT_LIST(SM_X)
#undef SM_X
        SM_FX_COUNT
};

/*
 * One order. Every effect is safe to carry out twice: it names what it is about (room, generation,
 * life, write id, link), never a position in a stream.
 */
struct sm_effect {
    uint32_t kind; /* enum sm_effect_kind */
    uint32_t peer; /* send_*, write, fence: index for sm_peer_name; else SM_NONE */
    uint32_t
        link; /* send_*, write, fence: the connection it is meant for; drop it on another one */
    uint32_t rank;        /* write: source rank; tell, reply, pages_free: the engine rank */
    uint32_t side;        /* enum sm_side of the half that caused it */
    bool without_journal; /* may leave although its entry is not durable: the journal's own 503 */
    uint64_t room;
    uint64_t generation; /* of this node's half */
    union {
        struct sm_message message; /* send_* */
        struct {
            uint64_t id;          /* comes back in write_done */
            uint32_t decode_rank; /* the destination rank at the peer */
            uint32_t decode_ranks;
            uint64_t first_page; /* position of the first page in the destination's page list */
            struct sm_runs from; /* this rank's pages */
            struct sm_runs to;   /* the destination's pages, as many as in from */
            uint32_t aux_from;   /* with the last chunk: metadata slots, else SM_AUX_NONE */
            uint32_t aux_to;
            struct sm_life life;
        } write;
        struct {
            uint32_t outcome; /* enum sm_outcome */
            struct sm_cause cause;
            bool pages_free;  /* the pages are the engine's again; else a pages_free follows */
            uint64_t request; /* the command that opened the rank; 0: it gave no number */
        } tell;
        struct {
            uint64_t request;
            uint32_t refusal; /* enum sm_refusal; 0: accepted */
            uint32_t http;
            struct sm_text reason;
        } reply;
        struct sm_runs pages; /* pages_free */
    } u;
};

struct sm_output {
    uint32_t transition_count;
    uint32_t effect_count;
    uint64_t digest; /* of every half (and the node) that the step touched, after it */
    struct sm_transition transitions[SM_TRANSITIONS_MAX];
    struct sm_effect effects[SM_EFFECTS_MAX];
    uint32_t text_used; /* private: texts that the step itself composed */
    uint32_t runs_used; /* private: runs that effects point to */
    char text[SM_OUTPUT_TEXT_BYTES];
    struct sm_run runs[SM_OUTPUT_RUNS_MAX];
};

const char *sm_transition_name(uint32_t kind);
const char *sm_effect_name(uint32_t kind);
const char *sm_ignored_name(uint32_t reason);
const char *sm_refusal_name(uint32_t refusal);
const char *sm_phase_name(uint32_t phase);
const char *sm_side_name(uint32_t side);
const char *sm_outcome_name(uint32_t outcome);
const char *sm_origin_name(uint32_t origin);

#endif
