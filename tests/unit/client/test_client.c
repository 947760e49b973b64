/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libstateroom against the node's end of the engine link: engines are real processes, this one is
 * the node. Tries to break: attaching wrongly, a second engine, kill -9, another pool on the same
 * rank, junk, results that are said twice, a node that goes away, an engine that does not read.
 */
#include "fabric/engine.h"
#include "stateroom/stateroom.h"

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
#include <zmq.h>

struct shared {
    _Atomic uint32_t stage; /* what the engine has come to */
    _Atomic uint32_t go;    /* what the node lets it do next */
    _Atomic uint32_t release;
    _Atomic uint32_t open; /* a room to open, without reading first */
    _Atomic uint32_t deaf; /* it does not read */
    int error;
    uint32_t results;
    uint32_t disordered; /* results whose room is not the one after the last */
    uint32_t accepted;
    uint64_t last_room;
    uint32_t frees;
    uint32_t lost;
    uint32_t back;
    uint32_t refusals;
    uint32_t http;
    char text[320];
};

struct node {
    struct engine_links *links;
    uint32_t attached;
    uint32_t gone;
    uint32_t commands;
    struct engine_event last;
    struct engine_event attach; /* the last that was one: commands may follow in the same turn */
    const char *refuse_with;    /* attachments are refused with this; NULL: accepted */
    uint32_t lost;
    uint32_t kinds[SM_IN_COUNT]; /* commands of each kind */
};

static char directory[64];
static char path[100];
static struct shared *shared;
static void *context;

static void set_up(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/stateroom-client-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    (void)snprintf(path, sizeof path, "%s/engines", directory);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)shared, MAP_FAILED);
}

static void tear_down(void)
{
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    cr_assert_eq(system(command), 0);
}

TestSuite(client, .init = set_up, .fini = tear_down, .timeout = 240);

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* ---- the engine's process
 * ------------------------------------------------------------------------------------ */

static struct stateroom *engine_connect(uint32_t rank, uint32_t pages, uint32_t timeout_ms)
{
    const struct stateroom_pool_options pool = {
        {16, 2, 8, 64, 2, 1, 0, 0, 0}, 2, pages, 4, 64, NULL};
    const struct stateroom_options options = {path, rank, "test", &pool, timeout_ms};
    struct stateroom *handle = NULL;
    shared->error = stateroom_connect(&options, &handle, shared->text, sizeof shared->text);
    return handle;
}

static void engine_pump(struct stateroom *handle, uint32_t ms)
{
    struct stateroom_event event;
    if (stateroom_next(handle, &event, ms) != STATEROOM_OK) {
        return;
    }
    if (event.kind == STATEROOM_RESULT) {
        shared->results++;
        shared->disordered += event.room != shared->last_room + 1u ? 1u : 0u;
        shared->last_room = event.room;
    }
    shared->accepted += event.kind == STATEROOM_ACCEPTED ? 1u : 0u;
    shared->frees += event.kind == STATEROOM_PAGES_FREE ? 1u : 0u;
    shared->lost += event.kind == STATEROOM_NODE_LOST ? 1u : 0u;
    shared->back += event.kind == STATEROOM_NODE_BACK ? 1u : 0u;
    if (event.kind == STATEROOM_REFUSAL) {
        shared->refusals++;
        shared->http = event.http;
        (void)snprintf(shared->text, sizeof shared->text, "%s", event.reason);
    }
}

static void engine_open_room(struct stateroom *handle, uint64_t room)
{
    const struct stateroom_run run = {0, 4};
    const struct stateroom_open_options open = {
        .runs = &run, .run_count = 1, .aux_slot = STATEROOM_NO_SLOT};
    if (stateroom_open(handle, STATEROOM_DECODE, room, &open, NULL) != STATEROOM_OK) {
        _exit(2);
    }
}

/* What the node asks of it meanwhile. */
static void engine_obey(struct stateroom *handle)
{
    if (atomic_exchange(&shared->release, 0) != 0) {
        (void)stateroom_release(handle, STATEROOM_DECODE, 5, 3, NULL);
    }
    const uint32_t room = atomic_exchange(&shared->open, 0);
    if (room != 0) {
        engine_open_room(handle, room);
        atomic_fetch_add(&shared->stage, 1);
    }
    while (atomic_load(&shared->deaf) != 0) {
        (void)usleep(1000);
    }
}

/* Attaches, opens room 7, and lives until it is told to end. */
static void engine_life(uint32_t rank)
{
    struct stateroom *handle = engine_connect(rank, 8, 10000);
    if (handle == NULL) {
        _exit(1);
    }
    memset(stateroom_pool(handle), 0x5a, stateroom_pool_bytes(handle));
    engine_open_room(handle, 7);
    atomic_store(&shared->stage, 1);
    while (atomic_load(&shared->go) == 0) {
        engine_pump(handle, 20);
        engine_obey(handle);
    }
    stateroom_close(handle);
    _exit(0);
}

/* A test that falls must not leave an engine behind: the runner would wait for it. */
static pid_t fork_engine(void)
{
    const pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return child;
}

static pid_t start_engine(uint32_t rank)
{
    const pid_t child = fork_engine();
    if (child == 0) {
        engine_life(rank);
    }
    return child;
}

/* ---- the node
 * ------------------------------------------------------------------------------------------------
 */

static void node_open(struct node *node, uint64_t epoch)
{
    const struct engine_options options = {path, "P", 70, epoch, 2, NULL};
    struct status_detail detail = {"", 0};
    memset(node, 0, sizeof *node);
    context = zmq_ctx_new();
    cr_assert_eq(engine_open(&options, context, &node->links, &detail), STATUS_OK, "%s",
                 detail.text);
}

static void node_close(struct node *node)
{
    engine_close(node->links);
    (void)zmq_ctx_term(context);
}

static void node_pump(struct node *node)
{
    struct engine_event event;
    while (engine_next(node->links, now_ns(), &event)) {
        if (event.event == ENGINE_HAS_ATTACHED) {
            node->attached++;
            node->attach = event;
            if (node->refuse_with != NULL) {
                engine_refuse(node->links, event.rank, 500, node->refuse_with);
            } else {
                engine_accept(node->links, event.rank);
            }
        } else if (event.event == ENGINE_COMMANDS) {
            node->commands++;
            node->kinds[event.kind]++;
            node->last = event;
        } else if (event.event == ENGINE_IS_GONE) {
            node->gone++;
            node->lost = event.lost;
            engine_forget_pool(node->links, event.rank);
        }
    }
    (void)usleep(1000);
}

/* Until *count reaches `least` or 15 s have passed. */
static void await(struct node *node, const uint32_t *count, uint32_t least, const char *what)
{
    const uint64_t until = now_ns() + UINT64_C(15000000000);
    while (*(const volatile uint32_t *)count < least && now_ns() < until) {
        node_pump(node);
    }
    cr_assert_geq(*count, least, "%s", what);
}

static void end_engine(struct node *node, pid_t child)
{
    int status = -1;
    atomic_store(&shared->go, 1);
    while (waitpid(child, &status, WNOHANG) == 0) {
        node_pump(node);
    }
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the engine ended with %d", status);
}

static struct sm_effect result_of(uint64_t room, uint64_t generation, uint64_t request)
{
    struct sm_effect tell;
    memset(&tell, 0, sizeof tell);
    tell.kind = SM_FX_TELL;
    tell.room = room;
    tell.generation = generation;
    tell.side = SM_DECODE;
    tell.u.tell.outcome = SM_OUTCOME_SUCCEEDED;
    tell.u.tell.pages_free = true;
    tell.u.tell.request = request;
    tell.u.tell.cause.reason = (struct sm_text){"", 0};
    return tell;
}

static void send_result(struct node *node, uint64_t generation, bool pages_free)
{
    struct sm_effect tell = result_of(7, generation, 0);
    tell.u.tell.pages_free = pages_free;
    cr_assert_eq(engine_send_result(node->links, &tell), STATUS_OK);
}

static void pass(struct node *node, uint32_t ms)
{
    const uint64_t until = now_ns() + (uint64_t)ms * 1000000u;
    while (now_ns() < until) {
        node_pump(node);
    }
}

Test(client, an_engine_attaches_commands_and_detaches)
{
    struct node node;
    const pid_t child = start_engine(1);
    node_open(&node, 1);
    await(&node, &node.attached, 1, "no engine attaches");
    const unsigned char *pool = node.attach.pool;
    const uint64_t bytes = node.attach.layout->bytes;
    cr_assert_eq(node.attach.rank, 1u);
    cr_assert_eq(node.attach.pid, (uint64_t)child);
    await(&node, &node.commands, 1, "no command comes");
    cr_assert_eq(pool[0], 0x5a);
    cr_assert_eq(pool[bytes - 1u], 0x5a, "the pool is not the engine's memory");
    cr_assert_eq(node.last.kind, (uint32_t)SM_IN_OPEN);
    cr_assert_eq(node.last.room, 7u);
    cr_assert_eq(node.last.command.pages.at[0].count, 4u);
    end_engine(&node, child);
    await(&node, &node.gone, 1, "a detach is not seen");
    cr_assert_eq(node.lost, (uint32_t)SM_LOST_DETACHED);
    node_close(&node);
}

/* The data plane may fail to register a pool: its engine must not wait, and may come again. */
Test(client, an_engine_whose_pool_is_refused_hears_why_and_may_come_again)
{
    struct node node;
    int status = 0;
    node_open(&node, 1);
    node.refuse_with = "pool of rank 0: cannot be registered: no space";
    const pid_t child = start_engine(0);
    await(&node, &node.gone, 1, "the refused engine is not let go");
    cr_assert_eq(node.lost, (uint32_t)SM_LOST_REFUSED);
    while (waitpid(child, &status, WNOHANG) == 0) {
        node_pump(&node);
    }
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1, "it believes that it is attached");
    cr_assert_eq(shared->error, STATEROOM_REFUSED);
    cr_assert_not_null(strstr(shared->text, "no space"), "%s", shared->text);
    node.refuse_with = NULL;
    const pid_t second = start_engine(0);
    await(&node, &node.commands, 1, "the rank cannot be used any more");
    end_engine(&node, second);
    node_close(&node);
}

Test(client, a_result_that_is_said_twice_is_heard_once)
{
    struct node node;
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    for (uint32_t i = 0; i < 5; i++) {
        send_result(&node, 1, false);
    }
    send_result(&node, 1, true);
    send_result(&node, 1, true);
    await(&node, &shared->frees, 1, "the pages' freedom is not heard");
    pass(&node, 200);
    cr_assert_eq(shared->results, 1u);
    cr_assert_eq(shared->frees, 1u);
    send_result(&node, 2, true); /* another life of the room */
    await(&node, &shared->results, 2, "the next life's result is not heard");
    end_engine(&node, child);
    node_close(&node);
}

Test(client, kill_9_is_noticed_and_the_rank_can_be_taken_again)
{
    struct node node;
    int status = 0;
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    cr_assert_eq(kill(child, SIGKILL), 0);
    (void)waitpid(child, &status, 0);
    await(&node, &node.gone, 1, "the engine's end is not noticed");
    cr_assert_eq(node.lost, (uint32_t)SM_LOST_ENDED);
    const pid_t second = start_engine(0);
    await(&node, &node.attached, 2, "the rank is not free");
    end_engine(&node, second);
    node_close(&node);
}

/* In a child: tries, and ends with what it got. */
static void try_to_attach(struct node *node, uint32_t rank, uint32_t pages)
{
    int status = 0;
    const pid_t child = fork_engine();
    if (child == 0) {
        _exit(engine_connect(rank, pages, 3000) == NULL ? 3 : 0);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        node_pump(node);
    }
    cr_assert_eq(WEXITSTATUS(status), 3, "it was let in");
}

Test(client, who_attaches_wrongly_is_told_why)
{
    struct node node;
    char pid[32];
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    try_to_attach(&node, 0, 8);
    (void)snprintf(pid, sizeof pid, "process %d", (int)child);
    cr_assert_not_null(strstr(shared->text, pid), "%s", shared->text);
    try_to_attach(&node, 5, 8);
    cr_assert_not_null(strstr(shared->text, "2 ranks"), "%s", shared->text);
    try_to_attach(&node, 1, 0);
    cr_assert_not_null(strstr(shared->text, "at least one page"), "%s", shared->text);
    end_engine(&node, child);
    node_close(&node);
}

Test(client, without_a_node_the_error_names_the_path)
{
    cr_assert_null(engine_connect(0, 8, 200));
    cr_assert_eq(shared->error, STATEROOM_UNREACHABLE);
    cr_assert_not_null(strstr(shared->text, path), "%s", shared->text);
}

Test(client, when_the_node_goes_open_commands_are_refused_and_the_engine_comes_back)
{
    struct node node;
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    atomic_store(&shared->release, 1);
    await(&node, &node.commands, 2, "no release comes");
    node_close(&node);
    node_open(&node, 2);
    await(&node, &shared->back, 1, "the engine does not come back");
    await(&node, &node.commands, 1, "the release is not given again");
    cr_assert_eq(node.last.kind, (uint32_t)SM_IN_RELEASE);
    cr_assert_eq(node.last.room, 5u);
    cr_assert_eq(node.last.command.generation, 3u);
    await(&node, &shared->refusals, 1, "the open is not refused");
    pass(&node, 100);
    cr_assert_eq(shared->lost, 1u);
    cr_assert_eq(shared->refusals, 1u, "the open had no answer and was not refused");
    cr_assert_eq(shared->http, 503u);
    cr_assert_eq(*(const unsigned char *)node.attach.pool, 0x5a, "the pool was lost");
    end_engine(&node, child);
    node_close(&node);
}

/* What the new node has received happened: it must not be told refused, whatever else is. */
Test(client, a_command_that_the_new_node_has_is_not_refused)
{
    struct node node;
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    node_close(&node);
    const uint64_t until = now_ns() + UINT64_C(15000000000);
    while (*(volatile uint32_t *)&shared->lost == 0 && now_ns() < until) {
        (void)usleep(1000);
    }
    cr_assert_eq(shared->lost, 1u);
    node_open(&node, 2);
    (void)usleep(1200000); /* more than one attach of the engine lies in the node's socket */
    atomic_store(&shared->open, 8);
    (void)usleep(1200000);
    await(&node, &node.attached, 1, "the engine does not come back");
    await(&node, &node.kinds[SM_IN_OPEN], 1, "the open does not come");
    cr_assert_eq(node.last.room, 8u);
    cr_assert_eq(
        engine_send_reply(node.links, 0, node.last.command.request, 0, 0, (struct sm_text){"", 0}),
        STATUS_OK);
    await(&node, &shared->accepted, 1, "the answer to the received open is not heard");
    pass(&node, 100);
    cr_assert_eq(shared->refusals, 1u, "only the old node's open was lost");
    end_engine(&node, child);
    node_close(&node);
}

/* The open happened, though its engine was told that the node restarted: its room must go. */
Test(client, the_result_of_an_open_that_was_refused_is_let_go_in_silence)
{
    struct node node;
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    const uint64_t request = node.last.command.request;
    node_close(&node);
    node_open(&node, 2);
    await(&node, &shared->refusals, 1, "the open is not refused");
    const struct sm_effect tell = result_of(7, 4, request);
    for (uint32_t i = 1; i <= 2; i++) {
        cr_assert_eq(engine_send_result(node.links, &tell), STATUS_OK);
        await(&node, &node.kinds[SM_IN_DELIVERED], i, "the result is not confirmed");
        await(&node, &node.kinds[SM_IN_RELEASE], i, "the room is not let go");
        cr_assert_eq(node.last.room, 7u);
        cr_assert_eq(node.last.command.generation, 4u);
    }
    cr_assert_eq(shared->results, 0u, "one request was given two ends");
    const struct sm_effect other = result_of(7, 5, request + 1u);
    cr_assert_eq(engine_send_result(node.links, &other), STATUS_OK);
    await(&node, &shared->results, 1, "the room's next life is swallowed");
    end_engine(&node, child);
    node_close(&node);
}

/* More than both sockets' queues hold (100,000 + 20,000) waits at the node, in its order. */
Test(client, a_slow_reader_gets_everything_in_order)
{
    enum { RESULTS = 250000 };
    struct node node;
    struct engine_counters counters;
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    atomic_store(&shared->deaf, 1);
    for (uint64_t room = 1; room <= RESULTS; room++) {
        const struct sm_effect tell = result_of(room, 1, 0);
        cr_assert_eq(engine_send_result(node.links, &tell), STATUS_OK);
    }
    engine_counters(node.links, &counters);
    cr_assert_gt(counters.kept, 0u, "the test does not fill the queues");
    cr_assert(engine_flush(node.links), "an engine that does not read took everything");
    atomic_store(&shared->deaf, 0);
    const uint64_t until = now_ns() + UINT64_C(40000000000);
    while (*(volatile uint32_t *)&shared->results < RESULTS && now_ns() < until) {
        (void)engine_flush(node.links);
        node_pump(&node);
    }
    cr_assert_eq(shared->results, (uint32_t)RESULTS);
    cr_assert_eq(shared->disordered, 0u);
    cr_assert_not(engine_flush(node.links));
    end_engine(&node, child);
    node_close(&node);
}

Test(client, who_never_reads_is_lost_and_others_are_served)
{
    struct node node;
    int status = 0;
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    atomic_store(&shared->deaf, 1);
    enum status told = STATUS_OK;
    uint64_t room = 0;
    while (told == STATUS_OK && room < 10000000u) {
        const struct sm_effect tell = result_of(++room, 1, 0);
        told = engine_send_result(node.links, &tell);
    }
    cr_assert_eq(told, STATUS_AGAIN, "the node keeps without a bound");
    const struct sm_effect tell = result_of(++room, 1, 0);
    cr_assert_eq(engine_send_result(node.links, &tell), STATUS_CLOSED);
    await(&node, &node.gone, 1, "the engine is not given up");
    cr_assert_eq(node.lost, (uint32_t)SM_LOST_DEAF);
    cr_assert_eq(kill(child, SIGKILL), 0);
    (void)waitpid(child, &status, 0);
    atomic_store(&shared->deaf, 0);
    const pid_t other = start_engine(1);
    await(&node, &node.attached, 2, "nobody else is served");
    end_engine(&node, other);
    node_close(&node);
}

Test(client, junk_on_the_socket_harms_only_itself)
{
    struct node node;
    char address[128];
    const int linger = 0;
    uint64_t random = 3;
    struct engine_counters counters;
    const pid_t child = start_engine(0);
    node_open(&node, 1);
    await(&node, &node.commands, 1, "no command comes");
    void *socket = zmq_socket(context, ZMQ_DEALER);
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    (void)snprintf(address, sizeof address, "ipc://%s", path);
    cr_assert_eq(zmq_connect(socket, address), 0);
    for (uint32_t i = 0; i < 1000; i++) {
        unsigned char junk[40];
        for (size_t k = 0; k < sizeof junk; k++) {
            random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            junk[k] = (unsigned char)(random >> 40);
        }
        cr_assert_geq(zmq_send(socket, junk, i % sizeof junk, 0), 0);
    }
    pass(&node, 300);
    engine_counters(node.links, &counters);
    cr_assert_geq(counters.dropped_malformed, 900u);
    cr_assert_eq(node.gone, 0u);
    cr_assert_eq(node.commands, 1u);
    (void)zmq_close(socket);
    send_result(&node, 1, true);
    await(&node, &shared->results, 1, "the engine is not reached any more");
    end_engine(&node, child);
    node_close(&node);
}

/* Writes may still run on the first pool: the node must neither mix them nor let go of it. */
Test(client, one_process_cannot_bring_a_second_pool_for_a_rank)
{
    struct node node;
    int status = 0;
    node_open(&node, 1);
    const pid_t child = fork_engine();
    if (child == 0) {
        struct stateroom *first = engine_connect(0, 8, 5000);
        const bool second = engine_connect(0, 64, 3000) != NULL;
        stateroom_close(first);
        _exit(first == NULL ? 4 : second ? 5 : 0);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        node_pump(&node);
    }
    cr_assert_eq(WEXITSTATUS(status), 0);
    cr_assert_not_null(strstr(shared->text, "before it attaches with another"), "%s", shared->text);
    await(&node, &node.gone, 1, "the first is not let go");
    cr_assert_eq(node.attached, 1u);
    node_close(&node);
}
