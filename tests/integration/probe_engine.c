/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine for the scripts in this folder: attaches to a node, waits until a file exists, and then
 * either takes part in one room or sends many opens.
 *
 *     probe_engine SOCKET FILE decode|prefill     room 7, four pages; ends with its result
 *     probe_engine SOCKET FILE flood N [RANK]     N decode rooms; ends when each open has an answer
 *     probe_engine SOCKET FILE gush N [RANK]      as flood, but reads nothing until all is sent and
 * the file FILE.read exists
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

/* Reads nothing; says how many were sent. */
static unsigned gush(struct stateroom *s, unsigned rooms, const char *path)
{
    char read_on[256];
    unsigned sent = 0;
    (void)snprintf(read_on, sizeof read_on, "%s.read", path);
    for (int idle = 0; sent < rooms && idle < PATIENCE;) {
        if (open_room(s, STATEROOM_DECODE, FIRST_FLOODED + sent) == STATEROOM_OK) {
            sent++;
            idle = 0;
        } else {
            (void)usleep(50000);
            idle++;
        }
    }
    printf("gushed=%u\n", sent);
    while (access(read_on, F_OK) != 0) {
        (void)usleep(20000);
    }
    return sent;
}

static int flood(struct stateroom *s, unsigned rooms, unsigned already)
{
    struct counts counts = {already, 0, 0, 0, 0};
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

static int run(struct stateroom *s, int argc, char **argv)
{
    const unsigned rooms = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : 1000u;
    if (!wait_for_file(s, argv[2])) {
        printf("the node was lost: %s\n", stateroom_error_text(s));
        return 1;
    }
    if (strcmp(argv[3], "flood") == 0) {
        return flood(s, rooms, 0);
    }
    if (strcmp(argv[3], "gush") == 0) {
        return flood(s, rooms, gush(s, rooms, argv[2]));
    }
    return take_part(s, strcmp(argv[3], "decode") == 0 ? STATEROOM_DECODE : STATEROOM_PREFILL);
}

int main(int argc, char **argv)
{
    const struct stateroom_pool_options pool = {{16, 2, 8, 64, 2, 1, 0, 0, 0}, 1, 64, 4, 64, NULL};
    struct stateroom *s = NULL;
    char text[256];
    if (argc < 4) {
        fprintf(stderr, "usage: probe_engine SOCKET FILE decode|prefill|flood|gush [N] [RANK]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    const uint32_t rank = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0;
    const struct stateroom_options options = {argv[1], rank, "probe", &pool, 10000};
    if (stateroom_connect(&options, &s, text, sizeof text) != STATEROOM_OK) {
        printf("not attached: %s\n", text);
        return 1;
    }
    const int result = run(s, argc, argv);
    stateroom_close(s);
    return result;
}
