/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From `send last` at a prefill engine until the decode engine is told, through two whole nodes,
 * beside the least that could carry that: a round trip over ZMQ and a bare write of the same bytes.
 */
#include "bench.h"
#include "bench_raw.h"
#include "stateroom/stateroom.h"
#include "stateroom/stateroom_node.h"

#include <sched.h>
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

#define HANDOFFS 200u
#define PAGES 16u
#define MESSAGE_BYTES 200u

/* 64 KiB a page over all regions. */
static const struct stateroom_geometry geometry = {16, 8, 1, 256, 2, 1, 0, 0, 0};

struct desk {
    _Atomic uint32_t opened; /* rooms that decode has opened */
    _Atomic uint32_t told;
    _Atomic uint64_t told_ns[HANDOFFS + 1u];
    _Atomic int raw; /* 1 the target stands, 2 the writer, 3 over */
    struct raw_address raw_target;
    struct raw_address raw_writer;
};

struct side {
    struct stateroom_node *node;
    struct stateroom *engine;
    void *memory;
};

static const char *directory;
static struct desk *desk;

static void must(bool well, const char *text)
{
    if (!well) {
        bench_fail("handoff", text);
    }
}

static void sleep_us(uint32_t us)
{
    const struct timespec pause = {0, (long)us * 1000};
    (void)nanosleep(&pause, NULL);
}

static pid_t start_child(void (*process)(const char *), const char *argument)
{
    const pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        process(argument);
        _exit(0);
    }
    must(child > 0, "no process");
    return child;
}

/* ---- the baseline
 * -----------------------------------------------------------------------------------------------
 */

static void *open_socket(void *context, int type, const char *name, bool binds)
{
    char address[160];
    void *socket = zmq_socket(context, type);
    (void)snprintf(address, sizeof address, "ipc://%s/%s", directory, name);
    must(socket != NULL && (binds ? zmq_bind(socket, address) : zmq_connect(socket, address)) == 0,
         "no socket");
    return socket;
}

static void echo_process(const char *provider)
{
    char bytes[MESSAGE_BYTES];
    static _Alignas(4096) unsigned char pool[1u << 20];
    void *context = zmq_ctx_new();
    void *in = open_socket(context, ZMQ_PULL, "there", true);
    void *out = open_socket(context, ZMQ_PUSH, "back", false);
    struct raw *raw = raw_open(provider, pool, sizeof pool, &desk->raw_target);
    atomic_store(&desk->raw, 1);
    for (uint32_t i = 0; i < HANDOFFS; i++) {
        must(zmq_recv(in, bytes, sizeof bytes, 0) >= 0 &&
                 zmq_send(out, bytes, sizeof bytes, 0) >= 0,
             "no echo");
    }
    while (atomic_load(&desk->raw) < 2) {
        sleep_us(100);
    }
    raw_connect(raw, &desk->raw_writer);
    while (atomic_load(&desk->raw) < 3) {
        raw_look(raw);
    }
    raw_close(raw);
}

static int by_time(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median_us(uint64_t *ns)
{
    qsort(ns, HANDOFFS, sizeof *ns, by_time);
    return (double)ns[HANDOFFS / 2u] / 1e3;
}

static double bare_round_trip(void)
{
    uint64_t ns[HANDOFFS];
    char bytes[MESSAGE_BYTES] = {0};
    void *context = zmq_ctx_new();
    void *in = open_socket(context, ZMQ_PULL, "back", true);
    void *out = open_socket(context, ZMQ_PUSH, "there", false);
    for (uint32_t i = 0; i < HANDOFFS; i++) {
        const uint64_t start = bench_now_ns();
        must(zmq_send(out, bytes, sizeof bytes, 0) >= 0 &&
                 zmq_recv(in, bytes, sizeof bytes, 0) >= 0,
             "no echo");
        ns[i] = bench_now_ns() - start;
        sleep_us(2000); /* both have fallen asleep, as in a node */
    }
    (void)zmq_close(in);
    (void)zmq_close(out);
    (void)zmq_ctx_term(context);
    return median_us(ns);
}

static double bare_write(const char *provider)
{
    uint64_t ns[HANDOFFS];
    static _Alignas(4096) unsigned char pool[1u << 20];
    const struct plan_piece piece = {0, 0, 64u << 10, 0};
    struct raw *raw = raw_open(provider, pool, sizeof pool, &desk->raw_writer);
    raw_connect(raw, &desk->raw_target);
    atomic_store(&desk->raw, 2);
    raw_write(raw, &piece, 1, 1, piece.bytes, 1);
    for (uint32_t i = 0; i < HANDOFFS; i++) {
        const uint64_t start = bench_now_ns();
        raw_write(raw, &piece, 1, 1, piece.bytes, 1);
        ns[i] = bench_now_ns() - start;
    }
    atomic_store(&desk->raw, 3);
    raw_close(raw);
    return median_us(ns);
}

/* ---- two nodes
 * --------------------------------------------------------------------------------------------- */

static char provider_setting[64];
static char mode_setting[64];

static void start_side(struct side *side, const char *name, const char *peer)
{
    char file[192];
    char text[320];
    const struct stateroom_pool_options pool = {geometry, 1, PAGES, 4, 64, NULL};
    const uint64_t bytes = stateroom_pool_bytes_needed(&pool, text, sizeof text);
    side->memory = aligned_alloc(4096, (bytes + 4095u) / 4096u * 4096u);
    must(side->memory != NULL, "no memory");
    memset(side->memory, 0, bytes);
    (void)snprintf(file, sizeof file, "%s/%s.yaml", directory, name);
    FILE *out = fopen(file, "w");
    must(out != NULL, "no file");
    fprintf(out,
            "name: %s\nlisten: ipc://%s/%s.peer\nengines: %s/%s-engines/socket\n"
            "journal: {path: %s/%s-journal}\n"
            "peers:\n  - {name: %s, address: \"ipc://%s/%s.peer\"}\n",
            name, directory, name, directory, name, directory, name, peer, directory, peer);
    (void)fclose(out);
    const char *settings[] = {provider_setting, mode_setting, "log.level=error"};
    const struct stateroom_node_memory memory = {0, side->memory, bytes};
    const struct stateroom_node_options node = {file, settings, 3, &memory, 1};
    must(stateroom_node_start(&node, &side->node, text, sizeof text), text);
    struct stateroom_pool_options mine = pool;
    mine.memory = side->memory;
    (void)snprintf(file, sizeof file, "%s/%s-engines/socket", directory, name);
    const struct stateroom_options engine = {file, 0, "bench", &mine, 20000};
    must(stateroom_connect(&engine, &side->engine, text, sizeof text) == STATEROOM_OK, text);
}

static void stop_side(struct side *side)
{
    stateroom_close(side->engine);
    stateroom_node_stop(side->node);
    (void)stateroom_node_wait(side->node, 10000);
    stateroom_node_close(side->node);
    free(side->memory);
}

static void wait_result(struct stateroom *engine, uint64_t room, enum stateroom_side side)
{
    struct stateroom_event event;
    do {
        must(stateroom_next(engine, &event, 20000) == STATEROOM_OK, "no result in 20 s");
        must(event.kind != STATEROOM_REFUSAL, event.reason);
    } while (event.kind != STATEROOM_RESULT || event.room != room);
    if (side == STATEROOM_DECODE) {
        atomic_store(&desk->told_ns[room], bench_now_ns());
        atomic_store(&desk->told, (uint32_t)room);
    }
    must(event.outcome == STATEROOM_SUCCEEDED, event.reason);
    (void)stateroom_release(engine, side, room, event.generation, NULL);
}

static void decode_process(const char *unused)
{
    struct side side;
    const struct stateroom_run run = {3, 1};
    const struct stateroom_open_options open = {
        .from = "P", .runs = &run, .run_count = 1, .aux_slot = STATEROOM_NO_SLOT};
    (void)unused;
    start_side(&side, "D", "P");
    for (uint32_t room = 1; room <= HANDOFFS; room++) {
        (void)stateroom_open(side.engine, STATEROOM_DECODE, room, &open, NULL);
        atomic_store(&desk->opened, room);
        wait_result(side.engine, room, STATEROOM_DECODE);
    }
    stop_side(&side);
}

static double through_nodes(void)
{
    uint64_t ns[HANDOFFS];
    struct side side;
    const struct stateroom_run run = {5, 1};
    const struct stateroom_open_options open = {.aux_slot = STATEROOM_NO_SLOT};
    struct stateroom_event event;
    memset(desk, 0, sizeof *desk);
    const pid_t child = start_child(decode_process, "");
    start_side(&side, "P", "D");
    for (uint32_t room = 1; room <= HANDOFFS; room++) {
        (void)stateroom_open(side.engine, STATEROOM_PREFILL, room, &open, NULL);
        (void)stateroom_admit(side.engine, room, NULL);
        while (atomic_load(&desk->opened) < room) {
            (void)stateroom_next(side.engine, &event, 1);
        }
        sleep_us(room == 1 ? 900000 : 20000); /* it is ready by now */
        const uint64_t start = bench_now_ns();
        (void)stateroom_send(side.engine, room, &run, 1, true, STATEROOM_NO_SLOT, NULL);
        wait_result(side.engine, room, STATEROOM_PREFILL);
        while (atomic_load(&desk->told) < room) {
            sleep_us(50);
        }
        ns[room - 1u] = atomic_load(&desk->told_ns[room]) - start;
    }
    (void)waitpid(child, NULL, 0);
    stop_side(&side);
    return median_us(ns);
}

static void clear_directory(const char *path)
{
    char command[256];
    (void)snprintf(command, sizeof command, "rm -rf '%s'/*", path);
    if (system(command) != 0) {
        bench_fail(path, "cannot be emptied");
    }
}

void bench_handoff(const char *provider, const char *where)
{
    static const char *const modes[] = {"process", "sync"};
    char path[128];
    (void)snprintf(path, sizeof path, "%s/bench-handoff-XXXXXX", where);
    must(mkdtemp(path) != NULL, "no directory can be made");
    directory = path;
    desk = mmap(NULL, sizeof *desk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(desk != MAP_FAILED, "no memory");
    const pid_t echo =
        start_child(echo_process, strcmp(provider, "tcp") == 0 ? "tcp;ofi_rxm" : provider);
    while (atomic_load(&desk->raw) < 1) {
        sleep_us(100);
    }
    const double trip = bare_round_trip();
    const double write = bare_write(strcmp(provider, "tcp") == 0 ? "tcp;ofi_rxm" : provider);
    (void)waitpid(echo, NULL, 0);
    (void)snprintf(provider_setting, sizeof provider_setting, "fabric.provider=%s", provider);
    for (uint32_t i = 0; i < 2; i++) {
        (void)snprintf(mode_setting, sizeof mode_setting, "journal.mode=%s", modes[i]);
        const double told = through_nodes();
        printf("handoff  %s 64 KiB, journal %-7s %6.0f us from the last send until decode is told, "
               "%.1f of a ZMQ round trip (%.0f us) and a bare write (%.0f us)\n",
               provider, modes[i], told, told / (trip + write), trip, write);
        clear_directory(path);
    }
    (void)rmdir(path);
    (void)munmap(desk, sizeof *desk);
}
