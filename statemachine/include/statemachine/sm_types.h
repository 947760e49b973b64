/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nouns of the state machine: ids, phases, pages, causes, geometry.
 *
 * Layer: included by every folder; includes only the compiler's freestanding headers.
 *
 * Model: a room pairs the prefill half and the decode half of one request. A node holds halves;
 * each half has a generation that counts up every time the room's number is opened again there.
 * What the two sides agree on is the decode half's life: (decode node, its epoch, its generation).
 *
 * Ownership: every pointer in these structs is borrowed for the call that it is passed to.
 */
#ifndef STATEMACHINE_SM_TYPES_H
#define STATEMACHINE_SM_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ranks of one engine instance that one node serves; a set of ranks is one 64-bit mask. */
#define SM_RANKS_MAX 64u
/* Destinations of one prefill half (design: destinations_max); a set of them is one mask too. */
#define SM_DESTINATIONS_MAX 64u
/* Bytes of UTF-8 in a reason (design: reason_bytes_max); longer text is cut at a character. */
#define SM_REASON_BYTES_MAX 512u
/* Bytes of a node's name without its end mark. */
#define SM_NAME_BYTES_MAX 63u
/* No slot: a destination without a metadata ("aux") slot. */
#define SM_AUX_NONE UINT32_MAX
/* No peer, no rank, no index. */
#define SM_NONE UINT32_MAX

enum sm_side { SM_SIDE_NONE = 0, SM_PREFILL = 1, SM_DECODE = 2, SM_SIDE_COUNT };

/* A half never moves to a smaller phase. The numbers are written to journals: never renumber. */
enum sm_phase {
    SM_PHASE_ABSENT = 0,             /* neither live nor remembered */
    SM_PHASE_ALLOCATED = 1,          /* exists; counterparts are missing */
    SM_PHASE_READY = 2,              /* every required counterpart is known */
    SM_PHASE_TRANSFERRING = 3,       /* prefill: a chunk was accepted for writing */
    SM_PHASE_SUCCEEDED = 4,          /* verdict: success */
    SM_PHASE_FAILED = 5,             /* verdict: failure of a half that an engine queue owns */
    SM_PHASE_PRE_QUEUE_TERMINAL = 6, /* verdict: failure of a half that no engine queue owns */
    SM_PHASE_NOTIFIED = 7,           /* every counterpart has the verdict */
    SM_PHASE_CLEARED = 8,            /* gone; a tombstone stays */
    SM_PHASE_COUNT
};

enum sm_outcome {
    SM_OUTCOME_NONE = 0,
    SM_OUTCOME_SUCCEEDED = 1,
    SM_OUTCOME_FAILED = 2,
    SM_OUTCOME_COUNT
};

/* Who decided a failure. Written to journals. */
enum sm_origin {
    SM_ORIGIN_NONE = 0,
    SM_ORIGIN_ENGINE = 1,   /* the engine of this side aborted or refused */
    SM_ORIGIN_CLIENT = 2,   /* the client of the request left */
    SM_ORIGIN_OPERATOR = 3, /* a person or a router */
    SM_ORIGIN_PEER = 4,     /* the other side said so */
    SM_ORIGIN_FABRIC = 5,   /* a write failed */
    SM_ORIGIN_NODE = 6,     /* this node: deadline, bounds, peer lost, restart, stop, journal */
    SM_ORIGIN_COUNT
};

/* Pages first .. first+count-1 of one rank's pool; count >= 1. */
struct sm_run {
    uint32_t first;
    uint32_t count;
};

/* Runs in the order in which their pages stand in the prompt. */
struct sm_runs {
    const struct sm_run *at;
    uint32_t count;
};

/* UTF-8, not zero-terminated, at most SM_REASON_BYTES_MAX where it is a reason. */
struct sm_text {
    const char *bytes;
    uint32_t size;
};

/*
 * Why a half failed. http 0 means that the source gave no status; typed tells whether the cause may
 * replace an untyped one (see sm.h, one_verdict).
 */
struct sm_cause {
    uint16_t http;
    uint8_t origin; /* enum sm_origin */
    bool typed;
    struct sm_text reason;
};

/* The decode half's identity, echoed by everything that is about it. node 0 means none. */
struct sm_life {
    uint64_t node;
    uint64_t epoch;
    uint64_t generation;
};

/*
 * What a pool looks like, compared field by field before the first byte moves. All counts are of
 * the whole model, not of one rank, so that they are equal on both sides at different TP sizes.
 */
struct sm_geometry {
    uint32_t page_tokens; /* tokens in a page */
    uint32_t layers;
    uint32_t kv_heads;   /* KV heads of the model; 1 with planes 1 means MLA (replicated over TP) */
    uint32_t item_bytes; /* bytes of one head of one token in one plane: head size x element size */
    uint32_t planes;     /* 2: keys and values; 1: one latent plane */
    uint32_t dtype;      /* the engine's code for the element type; compared, never interpreted */
    /* Which part of the model this pool holds: need not be equal, the sources have to cover it. */
    uint32_t layer_first;
    uint32_t layer_count; /* 0: all from layer_first on */
    uint32_t stages;      /* pipeline stages of the engine, see sm_geometry.h; 0: one */
};

#endif
