/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that freeze or die in the middle of a message. Real nodes over tcp, each engine a
 * process; what is frozen is a process by SIGSTOP, the half-sent message is one that a frozen
 * decode node had not taken. Tries to break: the pool of the decode engine's successor and pages
 * that came back after an abort, when the writer wakes; rooms with another decode node, and the
 * cause that is told, when one freezes and dies.
 */
#include "stateroom/stateroom.h"
#include "stateroom/stateroom_node.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 256u
#define FIRST_PAGES 2u /* of the chunk that makes the connection */
#define ROOM 7u
#define NEXT_ROOM 8u
#define POISON 0xeeu
#define STAMP 0x5au
#define WAIT_MS 30000u
#define DRAIN_MS 3000u

/* 64 MiB: more than sockets hold. */
static const struct stateroom_geometry geometry = {16, 4, 8, 256, 2, 1, 0, 0, 0};

/* Shared by all processes of a test: what they may do, and what they have seen. */
struct desk {
    _Atomic bool prefill_sends_rest;
    _Atomic bool prefill_serves_next;
    _Atomic bool decode_aborts;
    _Atomic bool decode_opens_next;
    _Atomic bool check; /* the poison is to be looked at for the last time */
    _Atomic bool sent_rest;
    _Atomic bool first_arrived;
    _Atomic bool told_failed;
    _Atomic bool pages_free_with_result;
    _Atomic bool poisoned; /* the pages belong to somebody else */
    _Atomic bool untouched;
    _Atomic bool touched;
    _Atomic bool next_succeeded;
    _Atomic uint32_t lost_http; /* of the room with the decode node that died */
    char lost_reason[256];
    _Atomic bool prefill_changes_a_byte;
    _Atomic bool byte_changed;
    _Atomic uint32_t decode_http; /* of the room whose byte changed */
    char decode_reason[512];
};

static char directory[64];
static const char *provider = "fabric.provider=tcp";
static struct desk *desk;

static void set_up(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/stateroom-frozen-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    desk = mmap(NULL, sizeof *desk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(desk, MAP_FAILED);
}

static void tear_down(void)
{
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    cr_assert_eq(system(command), 0);
}

TestSuite(frozen, .init = set_up, .fini = tear_down, .timeout = 180);

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static void sleep_ms(uint32_t ms)
{
    const struct timespec pause = {ms / 1000u, (long)(ms % 1000u) * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* In a child: what cannot go on ends it, and the test misses what it should have done. */
static void must(bool well, const char *what, const char *text)
{
    if (!well) {
        fprintf(stderr, "%s: %s\n", what, text);
        _exit(1);
    }
}

static void expect(const _Atomic bool *flag, const char *what)
{
    const uint64_t until = now_ms() + WAIT_MS;
    while (!atomic_load(flag)) {
        cr_assert_lt(now_ms(), until, "in vain: %s", what);
        sleep_ms(5);
    }
}

/* ---- the processes
 * ---------------------------------------------------------------------------------------- */

/* `peers`: one letter each. */
static struct stateroom_node *start_node(const char *name, const char *peers, void *memory,
                                         uint64_t bytes)
{
    char file[128];
    char text[320];
    struct stateroom_node *node = NULL;
    const struct stateroom_node_memory pool = {0, memory, bytes};
    /* The silence of the frozen must not be what ends their rooms. */
    const char *settings[] = {provider,
                              "log.level=error",
                              "heartbeat_interval=100ms",
                              "heartbeat_bound=120s",
                              "drain_timeout=3s",
                              *name == 'V' ? "verify_pages=true" : "verify_pages=false"};
    (void)snprintf(file, sizeof file, "%s/%s.yaml", directory, name);
    FILE *out = fopen(file, "w");
    must(out != NULL, name, "no configuration");
    fprintf(out,
            "name: %s\nlisten: ipc://%s/%s.peer\nengines: %s/%s-engines/socket\n"
            "journal: {path: %s/%s-journal}\npeers:\n",
            name, directory, name, directory, name, directory, name);
    for (; *peers != '\0'; peers++) {
        fprintf(out, "  - {name: %c, address: \"ipc://%s/%c.peer\"}\n", *peers, directory, *peers);
    }
    (void)fclose(out);
    const struct stateroom_node_options options = {file, settings, 6, &pool,
                                                   memory == NULL ? 0 : 1};
    must(stateroom_node_start(&options, &node, text, sizeof text), name, text);
    return node;
}

static struct stateroom *attach(const char *name, void *memory)
{
    char path[100];
    char text[256];
    struct stateroom *engine = NULL;
    const struct stateroom_pool_options pool = {geometry, 1, PAGES, 4, 64, memory};
    (void)snprintf(path, sizeof path, "%s/%s-engines/socket", directory, name);
    const struct stateroom_options options = {path, 0, "frozen", &pool, WAIT_MS};
    must(stateroom_connect(&options, &engine, text, sizeof text) == STATEROOM_OK, name, text);
    return engine;
}

/* Until the flag is up, or the room has its result: true, and *out_event is that. */
static bool drive(struct stateroom *engine, const _Atomic bool *flag, uint64_t room,
                  struct stateroom_event *out_event)
{
    while (flag == NULL || !atomic_load(flag)) {
        if (stateroom_next(engine, out_event, 10) != STATEROOM_OK) {
            continue;
        }
        if (out_event->kind == STATEROOM_REFUSAL) {
            must(false, "refused", out_event->reason);
        }
        if (room != 0 && out_event->kind == STATEROOM_RESULT && out_event->room == room) {
            return true;
        }
    }
    return false;
}

static void prefill_open(struct stateroom *engine, uint64_t room)
{
    const struct stateroom_open_options open = {.aux_slot = STATEROOM_NO_SLOT};
    must(stateroom_open(engine, STATEROOM_PREFILL, room, &open, NULL) == STATEROOM_OK &&
             stateroom_admit(engine, room, NULL) == STATEROOM_OK,
         "prefill", "the room is not opened");
}

static void send_pages(struct stateroom *engine, uint64_t room, uint32_t first, uint32_t count)
{
    const struct stateroom_run run = {first, count};
    const bool last = first + count == PAGES;
    must(stateroom_send(engine, room, &run, 1, last, STATEROOM_NO_SLOT, NULL) == STATEROOM_OK,
         "prefill", "not sent");
}

/* A node and its engine in one process; ROOM's first pages are sent, and the rest when it is said.
 */
static struct stateroom *prefill_begin(const char *peers)
{
    struct stateroom_event event;
    const struct stateroom_pool_options pool = {geometry, 1, PAGES, 4, 64, NULL};
    const uint64_t bytes = stateroom_pool_bytes_needed(&pool, NULL, 0);
    void *memory = aligned_alloc(4096, (bytes + 4095u) / 4096u * 4096u);
    must(memory != NULL, "prefill", "no memory");
    memset(memory, STAMP, bytes);
    (void)start_node("P", peers, memory, bytes);
    struct stateroom *engine = attach("P", memory);
    prefill_open(engine, ROOM);
    send_pages(engine, ROOM, 0, FIRST_PAGES);
    (void)drive(engine, &desk->prefill_sends_rest, 0, &event);
    send_pages(engine, ROOM, FIRST_PAGES, PAGES - FIRST_PAGES);
    atomic_store(&desk->sent_rest, true);
    return engine;
}

static void prefill_process(void)
{
    struct stateroom_event event;
    struct stateroom *engine = prefill_begin("D");
    (void)drive(engine, &desk->prefill_serves_next, 0, &event);
    (void)stateroom_release(engine, STATEROOM_PREFILL, ROOM, 0, NULL);
    prefill_open(engine, NEXT_ROOM);
    send_pages(engine, NEXT_ROOM, 0, PAGES);
    (void)drive(engine, NULL, 0, &event);
}

/* Serves another decode node while the first one is frozen, and is told what became of the first
 * room. */
static void prefill_for_two_process(void)
{
    struct stateroom_event event;
    struct stateroom *engine = prefill_begin("DE");
    (void)drive(engine, &desk->prefill_serves_next, 0, &event);
    prefill_open(engine, NEXT_ROOM);
    send_pages(engine, NEXT_ROOM, 0, PAGES);
    (void)drive(engine, NULL, ROOM, &event);
    (void)snprintf(desk->lost_reason, sizeof desk->lost_reason, "%s", event.reason);
    atomic_store(&desk->lost_http, event.http);
    (void)drive(engine, NULL, 0, &event);
}

static void decode_node_process(void)
{
    (void)start_node("D", "P", NULL, 0);
    for (;;) {
        sleep_ms(1000);
    }
}

static void second_node_process(void)
{
    (void)start_node("E", "P", NULL, 0);
    for (;;) {
        sleep_ms(1000);
    }
}

static bool all_bytes(const struct stateroom *engine, unsigned char value)
{
    const unsigned char *at = stateroom_page(engine, 0, 0);
    const uint64_t bytes = stateroom_page_bytes(engine) * PAGES * stateroom_regions(engine);
    return at[0] == value && memcmp(at, at + 1, bytes - 1u) == 0;
}

/* The pages are somebody else's from here on; until `check`, and then once more. */
static void guard(struct stateroom *engine)
{
    struct stateroom_event event;
    memset(stateroom_page(engine, 0, 0), POISON,
           stateroom_page_bytes(engine) * PAGES * stateroom_regions(engine));
    atomic_store(&desk->poisoned, true);
    (void)drive(engine, &desk->check, 0, &event);
    atomic_store(all_bytes(engine, POISON) ? &desk->untouched : &desk->touched, true);
}

static void decode_open(struct stateroom *engine, uint64_t room)
{
    const struct stateroom_run all = {0, PAGES};
    const struct stateroom_open_options open = {
        .from = "P", .runs = &all, .run_count = 1, .aux_slot = STATEROOM_NO_SLOT};
    must(stateroom_open(engine, STATEROOM_DECODE, room, &open, NULL) == STATEROOM_OK, "decode",
         "the room is not opened");
}

/* The engine writes into pages that are on their way. */
static void prefill_that_changes_process(void)
{
    struct stateroom_event event;
    struct stateroom *engine = prefill_begin("V");
    (void)drive(engine, &desk->prefill_changes_a_byte, 0, &event);
    *(unsigned char *)stateroom_page(engine, 0, FIRST_PAGES) ^= 1u;
    atomic_store(&desk->byte_changed, true);
    (void)drive(engine, NULL, ROOM, &event);
    (void)snprintf(desk->lost_reason, sizeof desk->lost_reason, "%s", event.reason);
    atomic_store(&desk->lost_http, event.http);
    (void)drive(engine, NULL, 0, &event);
}

static void verifying_node_process(void)
{
    (void)start_node("V", "P", NULL, 0);
    for (;;) {
        sleep_ms(1000);
    }
}

static void verifying_engine_process(void)
{
    struct stateroom_event event;
    struct stateroom *engine = attach("V", NULL);
    const volatile unsigned char *page = stateroom_page(engine, 0, 0);
    decode_open(engine, ROOM);
    while (*page != STAMP) {
        (void)stateroom_next(engine, &event, 5);
    }
    atomic_store(&desk->first_arrived, true);
    (void)drive(engine, NULL, ROOM, &event);
    (void)snprintf(desk->decode_reason, sizeof desk->decode_reason, "%s", event.reason);
    atomic_store(&desk->decode_http, event.outcome == STATEROOM_FAILED ? event.http : 200u);
    (void)drive(engine, NULL, 0, &event);
}

static void decode_next_room(struct stateroom *engine)
{
    struct stateroom_event event;
    (void)drive(engine, &desk->decode_opens_next, 0, &event);
    decode_open(engine, NEXT_ROOM);
    (void)drive(engine, NULL, NEXT_ROOM, &event);
    must(event.outcome == STATEROOM_SUCCEEDED, "the next room", event.reason);
    atomic_store(&desk->next_succeeded, all_bytes(engine, STAMP));
    (void)drive(engine, NULL, 0, &event);
}

/* Opens the room, sees its first page arrive, and aborts it when it is told to. */
static void decode_engine_process(void)
{
    struct stateroom_event event;
    struct stateroom *engine = attach("D", NULL);
    const volatile unsigned char *page = stateroom_page(engine, 0, 0);
    decode_open(engine, ROOM);
    while (*page != STAMP) {
        (void)stateroom_next(engine, &event, 5);
    }
    atomic_store(&desk->first_arrived, true);
    (void)drive(engine, &desk->decode_aborts, 0, &event);
    (void)stateroom_abort(engine, STATEROOM_DECODE, ROOM, STATEROOM_BY_CLIENT, 499, "gone", NULL);
    (void)drive(engine, NULL, ROOM, &event);
    atomic_store(&desk->pages_free_with_result, event.pages_free);
    atomic_store(&desk->told_failed, event.outcome == STATEROOM_FAILED && event.http == 499);
    while (stateroom_next(engine, &event, 100) != STATEROOM_OK ||
           event.kind != STATEROOM_PAGES_FREE) {
    }
    guard(engine);
    (void)stateroom_release(engine, STATEROOM_DECODE, ROOM, 0, NULL);
    decode_next_room(engine);
}

static void second_engine_process(void)
{
    decode_next_room(attach("E", NULL));
}

static void next_engine_process(void)
{
    struct stateroom *engine = attach("D", NULL);
    guard(engine);
    decode_next_room(engine);
}

static pid_t start(void (*process)(void))
{
    const pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        process();
        _exit(0);
    }
    cr_assert_gt(child, 0);
    return child;
}

static void end(pid_t child)
{
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
}

/* ---- the tests
 * --------------------------------------------------------------------------------------------- */

struct world {
    pid_t prefill;
    pid_t node;
    pid_t engine;
};

/* A room half over: the decode node is frozen, and the sockets are full. */
static void begin_and_freeze_decode(struct world *w, void (*prefill)(void))
{
    w->node = start(decode_node_process);
    w->prefill = start(prefill);
    w->engine = start(decode_engine_process);
    expect(&desk->first_arrived, "the first chunk");
    (void)kill(w->node, SIGSTOP);
    atomic_store(&desk->prefill_sends_rest, true);
    expect(&desk->sent_rest, "the second chunk");
    sleep_ms(700);
}

/*
 * Then the prefill process is frozen, and the decode node takes what there is: the last message has
 * begun and does not end.
 */
static void freeze_in_mid_message(struct world *w)
{
    begin_and_freeze_decode(w, prefill_process);
    (void)kill(w->prefill, SIGSTOP);
    (void)kill(w->node, SIGCONT);
    sleep_ms(700);
}

/* The frozen process wakes, and finds nothing that it can write into; then all goes on. */
static void wake_and_check(struct world *w)
{
    (void)kill(w->prefill, SIGCONT);
    sleep_ms(1500);
    atomic_store(&desk->check, true);
    const uint64_t until = now_ms() + WAIT_MS;
    while (!atomic_load(&desk->untouched)) {
        cr_assert_not(atomic_load(&desk->touched), "the frozen process wrote after it woke");
        cr_assert_lt(now_ms(), until, "in vain: the check");
        sleep_ms(5);
    }
    atomic_store(&desk->prefill_serves_next, true);
    atomic_store(&desk->decode_opens_next, true);
    expect(&desk->next_succeeded, "another room over a new connection");
    end(w->engine);
    end(w->prefill);
    end(w->node);
}

/*
 * The decode engine dies meanwhile. Its successor's pool would lie at the same address in the node:
 * it waits until the connection is fenced.
 */
Test(frozen, a_writer_that_wakes_does_not_reach_the_next_engines_pool)
{
    struct world w;
    freeze_in_mid_message(&w);
    const uint64_t died = now_ms();
    end(w.engine);
    w.engine = start(next_engine_process);
    while (now_ms() < died + DRAIN_MS / 2u) {
        cr_assert_not(atomic_load(&desk->poisoned) && now_ms() < died + DRAIN_MS,
                      "the next engine has its pool while the frozen process could still write");
        sleep_ms(5);
    }
    expect(&desk->poisoned, "the next engine");
    wake_and_check(&w);
}

/* The decode engine aborts meanwhile: its pages come back after the fence, and not before. */
Test(frozen, pages_of_an_aborted_room_come_back_out_of_reach)
{
    struct world w;
    freeze_in_mid_message(&w);
    const uint64_t aborted = now_ms();
    atomic_store(&desk->decode_aborts, true);
    expect(&desk->told_failed, "the abort's result");
    cr_assert_not(atomic_load(&desk->pages_free_with_result), "pages are free while written into");
    while (now_ms() < aborted + DRAIN_MS / 2u) {
        cr_assert_not(atomic_load(&desk->poisoned) && now_ms() < aborted + DRAIN_MS,
                      "pages came back before the fence");
        sleep_ms(5);
    }
    expect(&desk->poisoned, "the pages");
    wake_and_check(&w);
}

/*
 * A decode node freezes, and dies. Frozen it holds up nobody else; dead it ends its own room, as a
 * node that was lost and not as an error of the fabric.
 */
Test(frozen, a_decode_node_that_freezes_and_dies_ends_its_own_rooms)
{
    struct world w;
    const pid_t second = start(second_node_process);
    begin_and_freeze_decode(&w, prefill_for_two_process);
    atomic_store(&desk->prefill_serves_next, true);
    const pid_t engine = start(second_engine_process);
    atomic_store(&desk->decode_opens_next, true);
    expect(&desk->next_succeeded, "a room with another node beside a frozen one");
    cr_assert_eq(atomic_load(&desk->lost_http), 0u, "the frozen node's room has ended by itself");
    end(w.node);
    const uint64_t until = now_ms() + WAIT_MS;
    while (atomic_load(&desk->lost_http) == 0) {
        cr_assert_lt(now_ms(), until, "in vain: the end of the dead node's room");
        sleep_ms(5);
    }
    cr_assert_eq(atomic_load(&desk->lost_http), 503u, "%s", desk->lost_reason);
    cr_assert_not_null(strstr(desk->lost_reason, "decode node D was lost"), "%s",
                       desk->lost_reason);
    end(engine);
    end(second);
    end(w.engine);
    end(w.prefill);
}

/*
 * verify_pages, wanted by the decode node alone: a byte that changes after it was posted ends the
 * room on both sides with what is wrong, and decode is never told that it has its pages. (Over shm,
 * where a frozen decode node has taken nothing.)
 */
Test(frozen, a_byte_that_changes_under_a_verified_write_fails_the_room)
{
    provider = "fabric.provider=shm";
    const pid_t node = start(verifying_node_process);
    const pid_t prefill = start(prefill_that_changes_process);
    const pid_t engine = start(verifying_engine_process);
    expect(&desk->first_arrived, "the first chunk");
    (void)kill(node, SIGSTOP);
    atomic_store(&desk->prefill_sends_rest, true);
    expect(&desk->sent_rest, "the second chunk");
    sleep_ms(700);
    atomic_store(&desk->prefill_changes_a_byte, true);
    expect(&desk->byte_changed, "the change");
    (void)kill(node, SIGCONT);
    const uint64_t until = now_ms() + WAIT_MS;
    while (atomic_load(&desk->decode_http) == 0 || atomic_load(&desk->lost_http) == 0) {
        cr_assert_lt(now_ms(), until, "in vain: the room's end");
        sleep_ms(5);
    }
    cr_assert_eq(atomic_load(&desk->decode_http), 500u, "%s", desk->decode_reason);
    cr_assert_eq(atomic_load(&desk->lost_http), 500u, "%s", desk->lost_reason);
    cr_assert_not_null(
        strstr(desk->decode_reason, "verify_pages: pages 2 to 255 at the destination"), "%s",
        desk->decode_reason);
    cr_assert_str_eq(desk->decode_reason, desk->lost_reason);
    end(engine);
    end(prefill);
    end(node);
}
