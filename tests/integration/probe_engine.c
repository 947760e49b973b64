/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine for the scripts in this folder: attaches to a node, waits until a file exists, and then
 * either takes part in one room or sends many opens.
 *
 *     probe_engine SOCKET FILE decode|prefill    room 7, four pages; ends with its result
 *     probe_engine SOCKET FILE flood N           N decode rooms; ends when each open has an answer
 *
 * Prints one line per event or, for a flood, the counts. Exit status: 0, or 1 when nothing attached
 * or an answer did not come.
 */
#include "stateroom/stateroom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOM 7u
#define FIRST_FLOODED 100u
#define PATIENCE 200 /* waits of 50 ms without an event until we give up */

struct counts {
    unsigned sent, accepted, refused, unavailable, results;
};

static const struct stateroom_run pages = {0, 4};

static enum stateroom_error open_room(struct stateroom *s, enum stateroom_side side, uint64_t room)
{
    const bool decode = side == STATEROOM_DECODE;
    const struct stateroom_open_options options = {
        decode ? "P" : NULL, decode ? &pages : NULL, decode, 0, STATEROOM_NO_SLOT, 0, 8000};
    return stateroom_open(s, side, room, &options, NULL);
}

static bool wait_for_file(struct stateroom *s, const char *path)
{
    struct stateroom_event event;
    while (access(path, F_OK) != 0) {
        if (stateroom_next(s, &event, 50) == STATEROOM_OK && event.kind == STATEROOM_NODE_LOST) {
            return false;
        }
    }
    return true;
}

static int take_part(struct stateroom *s, enum stateroom_side side)
{
    struct stateroom_event event;
    enum stateroom_error error = open_room(s, side, ROOM);
    if (side == STATEROOM_PREFILL && error == STATEROOM_OK) {
        error = stateroom_admit(s, ROOM, NULL);
        if (error == STATEROOM_OK) {
            error = stateroom_send(s, ROOM, &pages, 1, true, STATEROOM_NO_SLOT, NULL);
        }
    }
    for (int i = 0; i < PATIENCE && error == STATEROOM_OK; i++) {
        if (stateroom_next(s, &event, 50) != STATEROOM_OK) {
            continue;
        }
        if (event.kind == STATEROOM_RESULT) {
            printf("result %s http=%u reason=%s\n",
                   event.outcome == STATEROOM_SUCCEEDED ? "succeeded" : "failed", event.http,
                   event.reason);
            (void)stateroom_release(s, side, ROOM, event.generation, NULL);
            return 0;
        }
        if (event.kind == STATEROOM_REFUSAL) {
            printf("refused http=%u reason=%s\n", event.http, event.reason);
        }
    }
    printf("no result: %s\n", stateroom_error_text(s));
    return 1;
}

static void count(struct counts *counts, const struct stateroom_event *event)
{
    counts->accepted += event->kind == STATEROOM_ACCEPTED;
    counts->refused += event->kind == STATEROOM_REFUSAL;
    counts->unavailable += event->kind == STATEROOM_REFUSAL && event->http == 503;
    counts->results += event->kind == STATEROOM_RESULT;
}

static int flood(struct stateroom *s, unsigned rooms)
{
    struct counts counts = {0, 0, 0, 0, 0};
    struct stateroom_event event;
    for (int idle = 0; idle < PATIENCE;) {
        const bool more = counts.sent < rooms;
        if (!more && counts.accepted + counts.refused == counts.sent) {
            break;
        }
        if (more && open_room(s, STATEROOM_DECODE, FIRST_FLOODED + counts.sent) == STATEROOM_OK) {
            counts.sent++;
            idle = 0;
        }
        if (stateroom_next(s, &event, more ? 0 : 50) == STATEROOM_OK) {
            count(&counts, &event);
            idle = 0;
        } else {
            idle += !more;
        }
    }
    printf("sent=%u accepted=%u refused=%u with_503=%u results=%u\n", counts.sent, counts.accepted,
           counts.refused, counts.unavailable, counts.results);
    return counts.accepted + counts.refused == rooms ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct stateroom_pool_options pool = {{16, 2, 8, 64, 2, 1, 0, 0, 0}, 1, 64, 4, 64, NULL};
    struct stateroom *s = NULL;
    char text[256];
    if (argc < 4) {
        fprintf(stderr, "usage: probe_engine SOCKET FILE decode|prefill|flood [N]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct stateroom_options options = {argv[1], 0, "probe", &pool, 10000};
    if (stateroom_connect(&options, &s, text, sizeof text) != STATEROOM_OK) {
        printf("not attached: %s\n", text);
        return 1;
    }
    int result = 1;
    if (!wait_for_file(s, argv[2])) {
        printf("the node was lost: %s\n", stateroom_error_text(s));
    } else if (strcmp(argv[3], "flood") == 0) {
        result = flood(s, argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : 1000u);
    } else {
        result =
            take_part(s, strcmp(argv[3], "decode") == 0 ? STATEROOM_DECODE : STATEROOM_PREFILL);
    }
    stateroom_close(s);
    return result;
}
