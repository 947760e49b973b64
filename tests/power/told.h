/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node has told its engine, and whether it stands in its journal: each command that it
 * accepted, each verdict with its status and reason.
 */
#ifndef TESTS_POWER_TOLD_H
#define TESTS_POWER_TOLD_H

#include "journal/journal_recover.h"
#include "stateroom/stateroom.h"

#define TOLD_ROOMS_MAX (1u << 20)
#define TOLD_COMMANDS 32u

struct told_half;

struct told {
    const char *journal;     /* its directory */
    struct told_half *said;  /* by room: as the engine was told */
    struct told_half *found; /* by room: as the journal says */
    uint64_t rooms;          /* greatest room that was told of */
    uint64_t looked;         /* entries looked at */
    uint64_t entries;
    struct journal_machine machine;
    char text[700]; /* what is wrong */
};

bool told_open(struct told *told, const char *journal);
void told_close(struct told *told);
void told_accepted(struct told *told, uint64_t room, enum stateroom_command command);
/* False: it has one already. */
bool told_result(struct told *told, const struct stateroom_event *event);

/* Takes in the journal's new entries; must come before retention takes them. False: see `text`. */
bool told_look(struct told *told);
/* Also verifies and replays the journal, and looks for all that was told; the node may live. */
bool told_check(struct told *told);

#endif
