/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node inside the engine's process: pools stay where the engine put them, and a room goes over
 * between two such processes byte for byte. Tries to break: memory that is not registered, too
 * small, of another process, twice; a node that is closed and started again under its engine, and
 * one that is started and closed over and over: an engine's process lives longer than its nodes.
 */
#include "stateroom/stateroom.h"
#include "stateroom/stateroom_node.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 16u
#define ROOM 77u
#define PROMPT_PAGES 4u
#define PREFILL_FIRST 2u
#define DECODE_FIRST 9u

struct embedded {
    struct stateroom_node *node;
    struct stateroom *engine;
    struct stateroom_pool_options pool;
    uint64_t bytes;
    char text[320];
};

static char directory[64];

static void set_up(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/stateroom-embedded-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
}

static void tear_down(void)
{
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    cr_assert_eq(system(command), 0);
}

TestSuite(embedded, .init = set_up, .fini = tear_down, .timeout = 240);

static void make_pool(struct embedded *e)
{
    memset(e, 0, sizeof *e);
    e->pool = (struct stateroom_pool_options){{16, 2, 8, 64, 2, 1, 0, 0, 0}, 1, PAGES, 4, 64, NULL};
    e->bytes = stateroom_pool_bytes_needed(&e->pool, e->text, sizeof e->text);
    e->pool.memory = e->bytes == 0 ? NULL : aligned_alloc(4096, (e->bytes + 4095u) / 4096u * 4096u);
}

static bool start_node(struct embedded *e, const char *name, const char *peer, uint64_t bytes)
{
    char file[128];
    const struct stateroom_node_memory memory = {0, e->pool.memory, bytes};
    const char *settings[] = {"fabric.provider=tcp", "log.level=error", "heartbeat_interval=100ms"};
    (void)snprintf(file, sizeof file, "%s/%s.yaml", directory, name);
    FILE *out = fopen(file, "w");
    if (out == NULL) {
        return false;
    }
    fprintf(
        out,
        "name: %s\nlisten: ipc://%s/%s.peer\nengines: %s/%s-engines/socket\n"
        "journal: {path: %s/%s-journal}\npeers:\n  - {name: %s, address: \"ipc://%s/%s.peer\"}\n",
        name, directory, name, directory, name, directory, name, peer, directory, peer);
    (void)fclose(out);
    const struct stateroom_node_options options = {file, settings, 3, &memory, bytes == 0 ? 0 : 1};
    return stateroom_node_start(&options, &e->node, e->text, sizeof e->text);
}

static enum stateroom_error attach(struct embedded *e, const char *name,
                                   const struct stateroom_pool_options *pool)
{
    char path[100];
    (void)snprintf(path, sizeof path, "%s/%s-engines/socket", directory, name);
    const struct stateroom_options options = {path, 0, "embedded", pool, 10000};
    return stateroom_connect(&options, &e->engine, e->text, sizeof e->text);
}

static unsigned char stamp(uint32_t region, uint32_t page, uint64_t at)
{
    return (unsigned char)(region * 131u + page * 31u + at * 7u + 1u);
}

static void wait_result(struct embedded *e, struct stateroom_event *event)
{
    do {
        memset(event, 0, sizeof *event);
    } while (stateroom_next(e->engine, event, 20000) == STATEROOM_OK &&
             event->kind != STATEROOM_RESULT);
}

/* The other process: a prefill engine with its node inside. Ends with 0 when its room succeeded. */
static void prefill_process(void)
{
    struct embedded e;
    struct stateroom_event event;
    const struct stateroom_run run = {PREFILL_FIRST, PROMPT_PAGES};
    const struct stateroom_open_options open = {.aux_slot = STATEROOM_NO_SLOT};
    make_pool(&e);
    if (!start_node(&e, "P", "D", e.bytes) || attach(&e, "P", &e.pool) != STATEROOM_OK) {
        fprintf(stderr, "prefill: %s\n", e.text);
        _exit(1);
    }
    for (uint32_t region = 0; region < stateroom_regions(e.engine); region++) {
        for (uint32_t page = 0; page < PROMPT_PAGES; page++) {
            unsigned char *at = stateroom_page(e.engine, region, PREFILL_FIRST + page);
            for (uint64_t i = 0; i < stateroom_page_bytes(e.engine); i++) {
                at[i] = stamp(region, page, i);
            }
        }
    }
    (void)stateroom_open(e.engine, STATEROOM_PREFILL, ROOM, &open, NULL);
    (void)stateroom_admit(e.engine, ROOM, NULL);
    (void)stateroom_send(e.engine, ROOM, &run, 1, true, STATEROOM_NO_SLOT, NULL);
    wait_result(&e, &event);
    const bool well = event.outcome == STATEROOM_SUCCEEDED;
    (void)stateroom_release(e.engine, STATEROOM_PREFILL, ROOM, event.generation, NULL);
    stateroom_close(e.engine);
    stateroom_node_close(e.node);
    free(e.pool.memory);
    _exit(well ? 0 : 2);
}

Test(embedded, room_goes_over_between_two_embedded_nodes)
{
    struct embedded e;
    struct stateroom_event event;
    int status = 0;
    const struct stateroom_run run = {DECODE_FIRST, PROMPT_PAGES};
    const struct stateroom_open_options open = {
        .from = "P", .runs = &run, .run_count = 1, .aux_slot = STATEROOM_NO_SLOT};
    const pid_t child = fork();
    if (child == 0) {
        prefill_process();
    }
    make_pool(&e);
    memset(e.pool.memory, 0xee, e.bytes);
    cr_assert(start_node(&e, "D", "P", e.bytes), "%s", e.text);
    cr_assert_eq(attach(&e, "D", &e.pool), STATEROOM_OK, "%s", e.text);
    cr_assert_eq(stateroom_pool(e.engine), e.pool.memory, "the pool is not where it was put");
    cr_assert_eq(stateroom_open(e.engine, STATEROOM_DECODE, ROOM, &open, NULL), STATEROOM_OK);
    wait_result(&e, &event);
    cr_assert_eq(event.outcome, STATEROOM_SUCCEEDED, "%u %s", event.http, event.reason);
    for (uint32_t region = 0; region < stateroom_regions(e.engine); region++) {
        for (uint32_t page = 0; page < PAGES; page++) {
            const unsigned char *at = stateroom_page(e.engine, region, page);
            const bool ours = page >= DECODE_FIRST && page < DECODE_FIRST + PROMPT_PAGES;
            for (uint64_t i = 0; i < stateroom_page_bytes(e.engine); i++) {
                const unsigned char want = ours ? stamp(region, page - DECODE_FIRST, i) : 0xeeu;
                cr_assert_eq(at[i], want, "region %u, page %u, byte %llu", region, page,
                             (unsigned long long)i);
            }
        }
    }
    (void)stateroom_release(e.engine, STATEROOM_DECODE, ROOM, event.generation, NULL);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the prefill process failed");
    stateroom_close(e.engine);
    stateroom_node_stop(e.node);
    cr_assert(stateroom_node_wait(e.node, 20000), "the node does not end");
    stateroom_node_close(e.node);
    free(e.pool.memory);
}

/* What a socket says is never an address by itself. */
Test(embedded, memory_that_is_not_registered_is_refused)
{
    struct embedded e;
    make_pool(&e);
    struct stateroom_pool_options other = e.pool;
    other.memory = (char *)e.pool.memory + 64;
    cr_assert(start_node(&e, "D", "P", e.bytes), "%s", e.text);
    cr_assert_eq(attach(&e, "D", &other), STATEROOM_REFUSED);
    cr_assert_not_null(strstr(e.text, "registered another"), "%s", e.text);
    stateroom_node_close(e.node);
    cr_assert(start_node(&e, "D", "P", e.bytes - 64u), "%s", e.text);
    cr_assert_eq(attach(&e, "D", &e.pool), STATEROOM_REFUSED);
    cr_assert_not_null(strstr(e.text, "pages need"), "%s", e.text);
    stateroom_node_close(e.node);
    cr_assert(start_node(&e, "D", "P", 0), "%s", e.text);
    cr_assert_eq(attach(&e, "D", &e.pool), STATEROOM_REFUSED);
    cr_assert_not_null(strstr(e.text, "registered none"), "%s", e.text);
    stateroom_node_close(e.node);
    free(e.pool.memory);
}

Test(embedded, wrong_options_are_refused_with_a_text)
{
    struct stateroom_node *node = NULL;
    char text[320] = "";
    _Alignas(64) static char memory[256];
    const char *settings[] = {"name=D", "fabric.provider=tcp"};
    const char *wrong[] = {"name=D", "no_such_key=1"};
    const struct stateroom_node_memory crooked = {0, memory + 1, 128};
    const struct stateroom_node_memory foreign = {63, memory, 128};
    const struct stateroom_node_memory twice[] = {{0, memory, 128}, {0, memory, 128}};
    const struct stateroom_node_options bad[] = {{NULL, wrong, 2, NULL, 0},
                                                 {"/does/not/exist.yaml", NULL, 0, NULL, 0},
                                                 {NULL, settings, 2, &crooked, 1},
                                                 {NULL, settings, 2, &foreign, 1},
                                                 {NULL, settings, 2, twice, 2}};
    const char *says[] = {"no_such_key", "/does/not/exist.yaml", "aligned", "rank", "already"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert(!stateroom_node_start(&bad[i], &node, text, sizeof text));
        cr_assert_null(node);
        cr_assert_not_null(strstr(text, says[i]), "%zu: %s", i, text);
    }
    struct stateroom_pool_options pool = {{16, 2, 8, 64, 2, 1, 0, 0, 0}, 1, 0, 4, 64, NULL};
    cr_assert_eq(stateroom_pool_bytes_needed(&pool, text, sizeof text), 0);
    cr_assert_not_null(strstr(text, "at least one page"), "%s", text);
}

Test(embedded, engine_survives_a_restart_of_its_embedded_node)
{
    struct embedded e;
    struct stateroom_event event;
    bool lost = false;
    bool back = false;
    make_pool(&e);
    cr_assert(start_node(&e, "D", "P", e.bytes), "%s", e.text);
    cr_assert_eq(attach(&e, "D", &e.pool), STATEROOM_OK, "%s", e.text);
    stateroom_node_close(e.node);
    cr_assert(start_node(&e, "D", "P", e.bytes), "%s", e.text);
    for (int i = 0; i < 400 && !back; i++) {
        if (stateroom_next(e.engine, &event, 50) == STATEROOM_OK) {
            lost = lost || event.kind == STATEROOM_NODE_LOST;
            back = back || event.kind == STATEROOM_NODE_BACK;
        }
    }
    cr_assert(lost && back, "lost %d, back %d: %s", lost, back, stateroom_error_text(e.engine));
    stateroom_close(e.engine);
    stateroom_node_close(e.node);
    free(e.pool.memory);
}

static size_t entries_of(const char *path)
{
    size_t count = 0;
    DIR *directory_of = opendir(path);
    cr_assert_not_null(directory_of);
    while (readdir(directory_of) != NULL) {
        count++;
    }
    (void)closedir(directory_of);
    return count;
}

static size_t maps(void)
{
    size_t lines = 0;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        lines++;
    }
    (void)fclose(file);
    return lines;
}

static void live_once(struct embedded *e)
{
    cr_assert(start_node(e, "D", "P", e->bytes), "%s", e->text);
    cr_assert_eq(attach(e, "D", &e->pool), STATEROOM_OK, "%s", e->text);
    stateroom_close(e->engine);
    stateroom_node_close(e->node);
}

/* What the libraries under it keep for good they keep after the first few. */
Test(embedded, nothing_is_left_of_a_node_that_is_closed)
{
    enum { WARM = 4, LIVES = 12, SPARE_MAPS = 8 };
    struct embedded e;
    make_pool(&e);
    for (int i = 0; i < WARM; i++) {
        live_once(&e);
    }
    const size_t files = entries_of("/proc/self/fd");
    const size_t threads = entries_of("/proc/self/task");
    const size_t mapped = maps();
    for (int i = 0; i < LIVES; i++) {
        live_once(&e);
    }
    cr_assert_eq(entries_of("/proc/self/fd"), files, "files stay open");
    cr_assert_eq(entries_of("/proc/self/task"), threads, "threads go on");
    cr_assert_leq(maps(), mapped + SPARE_MAPS, "memory stays mapped");
    free(e.pool.memory);
}
