/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's configuration in two parts: bounds, fixed when its memory is laid out, and policy,
 * recorded in the journal's node_started entry and therefore replayed.
 *
 * Layer: freestanding. Defaults are design.md section 3; sm_bounds_default and sm_policy_default
 * fill them in.
 */
#ifndef STATEMACHINE_SM_POLICY_H
#define STATEMACHINE_SM_POLICY_H

#include "statemachine/sm_types.h"

/* Table sizes; all must be >= 1. Over a bound the answer is a refusal (429 or 503), counted. */
struct sm_bounds {
    uint32_t halves_max; /* halves not yet cleared (rooms_max), default 65,536 */
    uint32_t ranks_max;  /* rank records of all halves, default 8 x halves_max */
    uint32_t
        destinations_max;    /* destination records of all prefill halves, default 4 x halves_max */
    uint32_t runs_max;       /* page runs held by all halves, default 4,194,304 */
    uint32_t writes_max;     /* writes posted and not completed, default 65,536 */
    uint32_t tombstones_max; /* default 1,000,000; the oldest goes first */
    uint32_t reasons_max;    /* different reason texts held, default 16,384 */
    uint32_t peers_max;      /* default 256, at most 4096 */
    uint32_t pages_max;      /* pages of all pools of this node, default 4,194,304 */
    uint32_t aux_slots_max;  /* metadata slots of all pools of this node, default 65,536 */
};

/* Protections of scenario-language.md; a set bit in policy.protections_off switches one off. */
enum sm_protection {
    SM_PROTECT_TOMBSTONES = 0,
    SM_PROTECT_DRAIN = 1,
    SM_PROTECT_OWNERSHIP = 2,
    SM_PROTECT_GATHER = 3,
    SM_PROTECT_GENERATIONS = 4,
    SM_PROTECT_RETRY = 5,
    SM_PROTECT_SINGLE_NOTICE = 6,
    SM_PROTECT_JOURNAL_FIRST = 7, /* kept by the gate outside the machine; here for its name */
    SM_PROTECT_FENCE = 8,
    SM_PROTECT_COUNT
};

/* Times are nanoseconds. Every field is recorded with node_started. */
struct sm_policy {
    uint64_t room_deadline_ns;      /* 300 s: a half whose open names no deadline */
    uint64_t unclaimed_deadline_ns; /* 120 s: a prepare that no engine opened */
    uint64_t retry_first_ns;        /* 100 ms: first repeat of an unanswered message, doubling */
    uint64_t retry_max_ns;          /* 5 s: where the doubling stops */
    uint64_t cause_grace_ns;        /* 200 ms: an untyped cause waits this long for a typed one */
    uint64_t recovery_grace_ns;  /* 2 s: how long a restarted peer may take to name its verdicts */
    uint64_t drain_timeout_ns;   /* 30 s: then the peer is fenced */
    uint64_t stop_grace_ns;      /* 30 s: what is in transfer may end while the node stops */
    uint64_t tombstone_ttl_ns;   /* 10 min */
    uint32_t rooms_per_peer_max; /* 16,384: live halves that name one peer */
    uint32_t destinations_per_room_max; /* 64, at most SM_DESTINATIONS_MAX */
    uint32_t pages_per_room_max;        /* 262,144 per rank */
    uint32_t reason_bytes_max; /* 512, at most SM_REASON_BYTES_MAX: longer reasons are cut */
    uint32_t ranks;            /* engine ranks of this node (its TP size), 1..SM_RANKS_MAX */
    uint32_t protections_off;  /* bit set of enum sm_protection; 0 in every real node */
    /* Sources of each decode rank when stated by hand: a mask of prefill ranks; 0 = by TP size. */
    uint64_t sources_by_hand[SM_RANKS_MAX];
};

void sm_bounds_default(struct sm_bounds *out_bounds);
void sm_policy_default(struct sm_policy *out_policy);

/* "drain", "fence", ...; NULL for a number out of range. */
const char *sm_protection_name(uint32_t protection);

#endif
