/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a room ended as it did: its entries condensed to who opened it, who decided, who was told
 * what and when, and what was still held and until when.
 *
 * Layer: journal, statemachine. Reads only.
 *
 * Ownership: struct why owns its lists; why_free gives them back, also after a failure. All texts
 * in it are clean (schemas/text.h).
 *
 * Limits: ranks and destinations as the machine bounds them; lives as many as the journal has.
 */
#ifndef REPLAY_WHY_H
#define REPLAY_WHY_H

#include "cli.h"

/* When something happened; entry 0: it did not. */
struct why_when {
    uint64_t entry;
    uint64_t time_ns;
};

struct why_rank {
    struct why_when opened;
    struct why_when told;
    struct why_when delivered;
    struct why_when released;
    struct why_when freed; /* also when its pages were quarantined */
    struct why_when first_abort;
    uint64_t pages;
    uint32_t aborts; /* sent for it */
    bool quarantined;
};

/* One decode rank of the other side, as a prefill half knows it. */
struct why_destination {
    char node[SM_NAME_BYTES_MAX + 1u];
    uint32_t rank;
    uint64_t pages;
    struct why_when added;
    struct why_when first_notice;
    struct why_when acked;
    struct why_when gone;
    struct why_when gave_up; /* it was its decision */
    uint32_t notices;
};

struct why_life {
    uint32_t side;
    uint32_t phase;
    uint32_t outcome;
    uint32_t http;
    uint64_t generation;
    uint64_t opened_wall_ns;
    uint64_t verdict_wall_ns;
    struct why_when created;
    struct why_when ready;
    struct why_when verdict;
    struct why_when replaced; /* a better cause took the first one's place */
    struct why_when cleared;
    struct why_when last_write; /* the last one that ended */
    struct why_when grace;
    char reason[4u * SM_REASON_BYTES_MAX];
    char first_reason[4u * SM_REASON_BYTES_MAX];
    uint32_t first_http;
    bool by_engine;   /* a command made it */
    char creator[96]; /* "rank 0 of its engine", "an announcement of node D" */
    char decider[160];
    char replacer[160];
    uint64_t writes;
    uint64_t writes_ended;
    uint64_t writes_failed;
    uint64_t written_pages;
    uint64_t in_flight_at_verdict;
    uint32_t destination_count;
    struct why_rank ranks[SM_RANKS_MAX];
    struct why_destination destinations[SM_DESTINATIONS_MAX];
};

struct why {
    uint64_t room;
    char node[SM_NAME_BYTES_MAX + 1u];
    struct why_life *lives;
    uint32_t life_count;
    uint32_t life_capacity;
    struct why_when first;
    uint64_t entries;
    uint64_t last_entry; /* the journal's, with its time */
    uint64_t last_time_ns;
    uint64_t ignored[SM_IGNORED_COUNT];
    uint64_t refused;
    struct why_when last_refused;
    char refusal[4u * SM_REASON_BYTES_MAX]; /* of the last refused command: "open, 409: ..." */
    /* What the machine itself says at the journal's end about lives without a verdict. */
    bool has_view[SM_SIDE_COUNT];
    struct sm_half_view views[SM_SIDE_COUNT];
};

/* STATUS_NOT_FOUND: the journal knows nothing of the room. */
enum status why_read(struct journal *journal, uint64_t room, struct why *out_why,
                     struct status_detail *out_detail);
void why_free(struct why *why);

/* The paragraph about one life, on one line; about a room that never lived with NULL. */
void why_tell(FILE *out, const struct why *why, const struct why_life *life);

#endif
