/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the demo. */
#ifndef REPLAY_DEMO_H
#define REPLAY_DEMO_H

#include "cli.h"

#include <sys/types.h>

enum demo_what { DEMO_RUN = 0, DEMO_REFUSE = 1, DEMO_ABORT = 2 };

struct demo_room {
    uint64_t room;
    uint32_t pages;
    uint32_t prefix;
    enum demo_what what;
    bool submitted;
    bool prefill_over;
    bool decode_over;
    bool lost_with_engine;
    uint32_t prefill_http; /* 200: succeeded */
    uint32_t decode_http;
};

struct demo_node {
    const char *name;
    pid_t pid;
};

struct demo_engine {
    const char *side;
    struct demo_node *node;
    pid_t pid;
    int orders;
    int answers;
    bool ready;
    bool said_bye;
    char line[256];
    size_t line_used;
};

struct demo {
    char dir[64]; /* short: socket paths stand under it */
    bool temporary;
    const char *provider;
    uint32_t pool_pages;
    char kill_node;
    struct demo_node p;
    struct demo_node d;
    struct demo_engine prefill;
    struct demo_engine decode;
    struct demo_room *rooms;
    uint32_t room_count;
    uint32_t outstanding;
    uint32_t done;
    uint32_t lost_rooms;
    bool killed_engine;
    bool killed_node;
    uint64_t pages_good;
    uint64_t pages_bad;
    uint64_t pages_held_by_engines;
    uint64_t shown_ns;
    uint64_t took_ns;
};

/* Requests of the trace, scaled to the pool, some of them refused or aborted. */
int demo_read_trace(struct demo *demo, const struct cli_values *values);
/* Counts, histories of a refused and an aborted room, replay of both journals; 0 only if all is
 * well. */
int demo_report(struct demo *demo);

#endif
