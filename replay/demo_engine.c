/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A synthetic engine: it keeps a KV pool of a real model's geometry, takes orders on stdin and says
 * on stdout what became of them. Prefill fills pages with a pattern that depends on room, position
 * and region; decode checks each byte of it.
 *
 *     orders   open ROOM PAGES PREFIX WHAT      WHAT: run, refuse, abort (decode: abort in
 * mid-transfer) cancel ROOM                     the router has lost the other side quit answers
 * ready | result ROOM succeeded|failed HTTP | pages ROOM GOOD BAD | free ROOM refusal ROOM HTTP |
 * lost | back | bye HELD
 */
#include "cli.h"

#include "stateroom/stateroom.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOMS_MAX 4096u
#define CHUNKS 3u

enum what { RUN, REFUSE, ABORT };

struct room {
    uint64_t room; /* 0: free record */
    uint32_t pages;
    uint32_t prefix;
    enum what what;
    uint32_t *list; /* page numbers */
    bool opened;
    bool told;
    bool done; /* pages are ours again */
    uint32_t sent_chunks;
    uint64_t started_ns;
    bool aborted;
};

struct engine {
    struct stateroom *handle;
    enum stateroom_side side;
    uint32_t pool_pages;
    uint32_t *free_pages;
    uint32_t free_count;
    struct room rooms[ROOMS_MAX];
    uint32_t live;
    bool quit;
    char line[256];
    size_t line_used;
};

/* ---- the pattern
 * -------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    return x * UINT64_C(0xd6e8feb86659fd93);
}

static uint64_t page_seed(uint64_t room, uint32_t position, uint32_t region)
{
    return mix(room * 1000003u + position) ^ mix((uint64_t)region + 77u);
}

static void fill_page(const struct engine *e, const struct room *room, uint32_t index)
{
    const uint64_t words = stateroom_page_bytes(e->handle) / 8u;
    for (uint32_t region = 0; region < stateroom_regions(e->handle); region++) {
        uint64_t *at = stateroom_page(e->handle, region, room->list[index]);
        const uint64_t seed = page_seed(room->room, room->prefix + index, region);
        for (uint64_t i = 0; i < words; i++) {
            at[i] = seed + i * UINT64_C(0x2545f4914f6cdd1d);
        }
    }
}

static bool page_is_right(const struct engine *e, const struct room *room, uint32_t index)
{
    const uint64_t words = stateroom_page_bytes(e->handle) / 8u;
    for (uint32_t region = 0; region < stateroom_regions(e->handle); region++) {
        const uint64_t *at = stateroom_page(e->handle, region, room->list[index]);
        const uint64_t seed = page_seed(room->room, room->prefix + index, region);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < words; i++) {
            wrong |= at[i] ^ (seed + i * UINT64_C(0x2545f4914f6cdd1d));
        }
        if (wrong != 0) {
            return false;
        }
    }
    return true;
}

/* ---- rooms
 * ---------------------------------------------------------------------------------------------- */

static struct room *find(struct engine *e, uint64_t room)
{
    for (uint32_t i = 0; i < ROOMS_MAX; i++) {
        if (e->rooms[i].room == room) {
            return &e->rooms[i];
        }
    }
    return NULL;
}

static void give_pages(struct engine *e, struct room *room)
{
    for (uint32_t i = 0; room->list != NULL && i < room->pages; i++) {
        e->free_pages[e->free_count++] = room->list[i];
    }
    free(room->list);
    room->list = NULL;
}

static void forget(struct engine *e, struct room *room)
{
    give_pages(e, room);
    memset(room, 0, sizeof *room);
    e->live--;
}

static uint32_t runs_of(const struct room *room, uint32_t from, uint32_t to,
                        struct stateroom_run *runs)
{
    uint32_t count = 0;
    for (uint32_t i = from; i < to; i++) {
        if (count > 0 && runs[count - 1u].first + runs[count - 1u].count == room->list[i]) {
            runs[count - 1u].count++;
        } else {
            runs[count++] = (struct stateroom_run){room->list[i], 1};
        }
    }
    return count;
}

static bool take_pages(struct engine *e, struct room *room)
{
    if (e->free_count < room->pages) {
        return false;
    }
    room->list = malloc((room->pages + 1u) * sizeof *room->list);
    for (uint32_t i = 0; i < room->pages; i++) {
        room->list[i] = e->free_pages[--e->free_count];
    }
    return true;
}

static void open_room(struct engine *e, struct room *room)
{
    struct stateroom_open_options options;
    struct stateroom_run *runs = malloc((room->pages + 1u) * sizeof *runs);
    memset(&options, 0, sizeof options);
    options.aux_slot = STATEROOM_NO_SLOT;
    options.deadline_ms = 60000;
    if (e->side == STATEROOM_DECODE) {
        options.runs = runs;
        options.run_count = runs_of(room, 0, room->pages, runs);
        options.prefix_pages = room->prefix;
    }
    room->opened = stateroom_open(e->handle, e->side, room->room, &options, NULL) == STATEROOM_OK;
    room->started_ns = cli_now_ns();
    if (room->opened && room->what == REFUSE && e->side == STATEROOM_PREFILL) {
        (void)stateroom_reject(e->handle, e->side, room->room, 400,
                               "input is longer than the model's context", NULL);
    } else if (room->opened && e->side == STATEROOM_PREFILL) {
        (void)stateroom_admit(e->handle, room->room, NULL);
    }
    free(runs);
}

/* "Computes" the next chunk and sends it. */
static void send_chunk(struct engine *e, struct room *room)
{
    struct stateroom_run *runs = malloc((room->pages + 1u) * sizeof *runs);
    const uint32_t from = room->pages * room->sent_chunks / CHUNKS;
    room->sent_chunks++;
    const uint32_t to = room->pages * room->sent_chunks / CHUNKS;
    for (uint32_t i = from; i < to; i++) {
        fill_page(e, room, i);
    }
    (void)stateroom_send(e->handle, room->room, runs, runs_of(room, from, to, runs),
                         room->sent_chunks == CHUNKS, STATEROOM_NO_SLOT, NULL);
    free(runs);
}

/* Both engines admit in the router's order: else each could hold pages for rooms that the other
 * lacks. */
static bool is_next(const struct engine *e, const struct room *room)
{
    for (uint32_t i = 0; i < ROOMS_MAX; i++) {
        const struct room *other = &e->rooms[i];
        if (other->room != 0 && !other->opened && !other->told && other->room < room->room) {
            return false;
        }
    }
    return true;
}

/* One thing for one room; true when something was done. */
static bool advance(struct engine *e, struct room *room)
{
    if (!room->opened && !room->told) {
        if (!is_next(e, room) || (room->list == NULL && !take_pages(e, room))) {
            return false;
        }
        open_room(e, room);
        return true;
    }
    if (room->told || room->what == REFUSE) {
        return false;
    }
    if (e->side == STATEROOM_PREFILL && room->sent_chunks < CHUNKS) {
        send_chunk(e, room);
        return true;
    }
    if (e->side == STATEROOM_DECODE && room->what == ABORT && !room->aborted &&
        cli_now_ns() - room->started_ns > 3000000u) {
        room->aborted = true;
        (void)stateroom_abort(e->handle, e->side, room->room, STATEROOM_BY_CLIENT, 499,
                              "client closed the connection", NULL);
        return true;
    }
    return false;
}

/* ---- events
 * ---------------------------------------------------------------------------------------------- */

static void on_result(struct engine *e, struct room *room, const struct stateroom_event *event)
{
    room->told = true;
    printf("result %" PRIu64 " %s %u\n", event->room,
           event->outcome == STATEROOM_SUCCEEDED ? "succeeded" : "failed", event->http);
    if (event->outcome == STATEROOM_SUCCEEDED && e->side == STATEROOM_DECODE) {
        uint32_t good = 0;
        for (uint32_t i = 0; i < room->pages; i++) {
            good += page_is_right(e, room, i) ? 1u : 0u;
        }
        printf("pages %" PRIu64 " %u %u\n", event->room, good, room->pages - good);
    }
    (void)stateroom_release(e->handle, e->side, event->room, event->generation, NULL);
    if (event->pages_free) {
        printf("free %" PRIu64 "\n", event->room);
        forget(e, room);
    }
}

static void on_event(struct engine *e, const struct stateroom_event *event)
{
    struct room *room = event->room != 0 ? find(e, event->room) : NULL;
    switch (event->kind) {
    case STATEROOM_RESULT:
        if (room != NULL) {
            on_result(e, room, event);
        }
        break;
    case STATEROOM_PAGES_FREE:
        if (room != NULL && room->told) {
            printf("free %" PRIu64 "\n", event->room);
            forget(e, room);
        }
        break;
    case STATEROOM_REFUSAL:
        if (room != NULL && event->command == STATEROOM_DO_OPEN) {
            printf("refusal %" PRIu64 " %u\n", event->room, event->http);
            forget(e, room);
        }
        break;
    case STATEROOM_NODE_LOST:
        printf("lost\n");
        break;
    case STATEROOM_NODE_BACK:
        printf("back\n");
        break;
    case STATEROOM_ACCEPTED:
        break;
    }
}

/* ---- orders
 * ---------------------------------------------------------------------------------------------- */

static void on_order(struct engine *e, const char *line)
{
    uint64_t number = 0;
    unsigned pages = 0;
    unsigned prefix = 0;
    char what[16] = "";
    if (strcmp(line, "quit") == 0) {
        e->quit = true;
        return;
    }
    if (sscanf(line, "cancel %" SCNu64, &number) == 1) {
        struct room *lost = number != 0 ? find(e, number) : NULL;
        if (lost != NULL && lost->opened && !lost->told) {
            (void)stateroom_abort(e->handle, e->side, number, STATEROOM_BY_OPERATOR, 502,
                                  "the other side is gone", NULL);
        } else if (lost != NULL && !lost->opened) {
            printf("refusal %" PRIu64 " 502\n", number);
            forget(e, lost);
        }
        return;
    }
    if (sscanf(line, "open %" SCNu64 " %u %u %15s", &number, &pages, &prefix, what) != 4) {
        return;
    }
    struct room *room = find(e, 0);
    if (room == NULL || pages > e->pool_pages) {
        return;
    }
    room->room = number;
    room->pages = pages;
    room->prefix = prefix;
    room->what = strcmp(what, "refuse") == 0 ? REFUSE : strcmp(what, "abort") == 0 ? ABORT : RUN;
    e->live++;
}

static void read_orders(struct engine *e)
{
    for (;;) {
        char c = 0;
        const ssize_t size = read(STDIN_FILENO, &c, 1);
        if (size == 0) {
            e->quit = true; /* the parent is gone */
            return;
        }
        if (size < 0) {
            return;
        }
        if (c == '\n') {
            e->line[e->line_used] = '\0';
            on_order(e, e->line);
            e->line_used = 0;
        } else if (e->line_used + 1u < sizeof e->line) {
            e->line[e->line_used++] = c;
        }
    }
}

static void work(struct engine *e)
{
    struct stateroom_event event;
    while (!e->quit || e->live > 0) {
        read_orders(e);
        bool busy = false;
        for (uint32_t i = 0; i < ROOMS_MAX && e->live > 0; i++) {
            if (e->rooms[i].room != 0) {
                busy = advance(e, &e->rooms[i]) || busy;
                while (stateroom_next(e->handle, &event, 0) == STATEROOM_OK) {
                    on_event(e, &event);
                }
            }
        }
        if (stateroom_next(e->handle, &event, busy ? 0 : 2) == STATEROOM_OK) {
            on_event(e, &event);
        }
        (void)fflush(stdout);
        if (e->quit && getppid() == 1) {
            return;
        }
    }
}

int demo_engine_main(int argc, char **argv)
{
    static struct engine engine;
    char text[320] = "";
    if (argc != 4) {
        return EXIT_WRONG_USAGE;
    }
    engine.side = strcmp(argv[1], "prefill") == 0 ? STATEROOM_PREFILL : STATEROOM_DECODE;
    engine.pool_pages = (uint32_t)strtoul(argv[3], NULL, 10);
    /* 32 layers, 8 KV heads of 128 bf16 numbers, 16 tokens a page: 2 MiB a page over all layers. */
    const struct stateroom_pool_options pool = {
        {16, 32, 8, 256, 2, 1, 0, 0, 0}, 1, engine.pool_pages, 16, 4096, NULL};
    const struct stateroom_options options = {argv[2], 0, "synthetic engine of stateroom demo",
                                              &pool, 30000};
    const enum stateroom_error error =
        stateroom_connect(&options, &engine.handle, text, sizeof text);
    if (error != STATEROOM_OK) {
        return cli_fail(EXIT_UNREACHABLE, "demo engine: %s", text);
    }
    engine.free_pages = malloc(engine.pool_pages * sizeof *engine.free_pages);
    for (uint32_t i = 0; i < engine.pool_pages; i++) {
        engine.free_pages[engine.free_count++] = engine.pool_pages - 1u - i;
    }
    (void)fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    printf("ready\n");
    (void)fflush(stdout);
    work(&engine);
    printf("bye %u\n", engine.pool_pages - engine.free_count);
    (void)fflush(stdout);
    stateroom_close(engine.handle);
    free(engine.free_pages);
    return EXIT_WELL;
}
