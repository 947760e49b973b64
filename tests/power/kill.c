/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 at a thousand points: two real nodes move rooms between two engines (this process is
 * both), and now and then one of them, or both, dies: under load, or before it is up again. After
 * each death its journal is verified and replayed, and everything that it had ever told its engine
 * is looked for in it: each command that it had accepted, each verdict with its status and reason.
 * Then it is started again, and the rooms must get their results, each once, with the right bytes.
 *
 *     kill_points [--kills N] [--seed S] [--keep DIRECTORY]
 *     kill_points --bursts N ...
 *
 * --bursts: nobody dies; now and then a journal's disk is full, or its calls fail, for a while.
 * When that is over rooms must succeed again without a restart, and the same must be found.
 *
 * --keep: the directory of configurations, logs and journals, which is left there.
 * Exit status: 0, or 1 with what was lost.
 */
#include "faulty.h"
#include "told.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 24u
#define PAGES 4u /* of a room; slot k's are 4k to 4k+3 on both sides */
#define PAUSE_MS 10u
#define LOOK_MS 100u /* as often as retention may need it */
#define PATIENCE_MS 60000u
#define LOAD_MS_MAX 60u

enum { P, D, NODES };

/* A room that is going on, on one side. */
struct part {
    uint64_t open_request;
    bool refused;
    bool resulted;
    bool pages_free;
};

enum plan { RUN, REJECT, ABORT };

struct slot {
    uint64_t room; /* 0: none */
    enum plan plan;
    uint64_t since_ms;
    bool cancelled;
    struct part parts[NODES];
};

struct node {
    const char *name;
    pid_t pid;
    bool back; /* its engine is attached */
    struct stateroom *engine;
    struct told told;
    struct faulty_switch *faulty; /* NULL: its calls cannot be made to fail */
    bool small;                   /* its journal has a file system of its own */
    char disk[128];
    char journal[160];
};

static struct {
    char directory[96];
    uint64_t random;
    struct node nodes[NODES];
    struct slot slots[SLOTS];
    uint64_t next_room;
    bool stop; /* no more rooms */
    uint64_t looked_ms;
    uint64_t acknowledged, results, succeeded, deaths, early, full, failing, failed;
} world;

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("kill: FAILED: ");
    (void)vprintf(format, arguments);
    va_end(arguments);
    printf(" (after %" PRIu64 " deaths and %" PRIu64 " bursts; logs and journals are in %s)\n",
           world.deaths, world.full + world.failing, world.directory);
    for (int i = 0; i < NODES; i++) {
        if (world.nodes[i].pid > 0) {
            (void)kill(world.nodes[i].pid, SIGKILL);
        }
        if (world.nodes[i].small) { /* nobody else sees it */
            char command[400];
            (void)snprintf(command, sizeof command, "cp -r '%s/journal' '%s/journal-%s'",
                           world.nodes[i].disk, world.directory, world.nodes[i].name);
            (void)!system(command);
        }
    }
    exit(1);
}

static uint64_t random_below(uint64_t bound)
{
    uint64_t x = (world.random += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) % bound;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* ---- processes
 * -----------------------------------------------------------------------------------------------
 */

static void program_path(const char *name, char *buffer, size_t size)
{
    char self[400];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1u);
    self[length > 0 ? (size_t)length : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    (void)snprintf(buffer, size, "%s/%s", self, name);
}

/* Small segments and few of them, so that rollover and retention are cut as well. */
static void write_config(const struct node *node, const struct node *other)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s.yaml", world.directory, node->name);
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        die("%s: %s", path, strerror(errno));
    }
    fprintf(file,
            "name: %s\nlisten: ipc://%s/%s.peer\nengines: %s/%s-engines/socket\n"
            "journal: {path: %s, mode: %s, snapshot_every: 700, segment_bytes: 1MiB, "
            "keep_bytes: %s}\n"
            "fabric: {provider: tcp}\nheartbeat_interval: 100ms\nheartbeat_bound: 2s\n"
            "recovery_grace: 300ms\nretry_first: 20ms\nunclaimed_deadline: 3s\n"
            "rooms_max: 1024\nrooms_per_peer_max: 1024\ntombstones_max: 4096\nwrites_max: 1024\n"
            "page_runs_max: 65536\npages_max: 4096\naux_slots_max: 64\n"
            "peers:\n  - {name: %s, address: \"ipc://%s/%s.peer\"}\n",
            node->name, world.directory, node->name, world.directory, node->name, node->journal,
            node == &world.nodes[D] ? "process" : "sync", node->small ? "40MiB" : "6MiB",
            other->name, world.directory, other->name);
    (void)fclose(file);
}

static void preload(const struct node *node)
{
    char library[512];
    char path[256];
    program_path("libstateroom_faulty.so", library, sizeof library);
    (void)snprintf(path, sizeof path, "%s/%s.switch", world.directory, node->name);
    (void)setenv("LD_PRELOAD", library, 1);
    (void)setenv("STATEROOM_FAULTY_SWITCH", path, 1);
    (void)setenv("STATEROOM_FAULTY_JOURNAL", node->journal, 1);
}

static void start(struct node *node)
{
    char program[512];
    char config[256];
    char log[256];
    program_path("stateroomd", program, sizeof program);
    (void)snprintf(config, sizeof config, "%s/%s.yaml", world.directory, node->name);
    (void)snprintf(log, sizeof log, "%s/%s.log", world.directory, node->name);
    node->back = false;
    node->pid = fork();
    if (node->pid == 0) {
        const int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        (void)dup2(fd, STDERR_FILENO);
        (void)dup2(fd, STDOUT_FILENO);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (node->faulty != NULL) {
            preload(node);
        }
        (void)execl(program, program, "--config", config, (char *)NULL);
        _exit(127);
    }
    if (node->pid < 0) {
        die("fork: %s", strerror(errno));
    }
}

static void connect_engine(struct node *node)
{
    const struct stateroom_pool_options pool = {
        {16, 2, 8, 64, 2, 1, 0, 0, 0}, 1, SLOTS * PAGES, 0, 0, NULL};
    char path[256];
    char text[256] = "";
    (void)snprintf(path, sizeof path, "%s/%s-engines/socket", world.directory, node->name);
    const struct stateroom_options options = {path, 0, "kill", &pool, 20000};
    if (stateroom_connect(&options, &node->engine, text, sizeof text) != STATEROOM_OK) {
        die("no engine at %s: %s", node->name, text);
    }
    node->back = true;
}

/* ---- rooms
 * ----------------------------------------------------------------------------------------------------
 */

static enum stateroom_side side_of(int node)
{
    return node == P ? STATEROOM_PREFILL : STATEROOM_DECODE;
}

static uint64_t word(uint64_t room, uint32_t page, uint32_t region)
{
    return room * UINT64_C(0x9e3779b97f4a7c15) ^ ((uint64_t)page << 32 | region);
}

static void fill_pages(uint32_t slot, uint64_t room)
{
    struct stateroom *engine = world.nodes[P].engine;
    for (uint32_t page = 0; page < PAGES; page++) {
        for (uint32_t region = 0; region < stateroom_regions(engine); region++) {
            uint64_t *at = stateroom_page(engine, region, slot * PAGES + page);
            for (uint64_t i = 0; i < stateroom_page_bytes(engine) / 8u; i++) {
                at[i] = word(room, page, region) + i;
            }
        }
    }
}

static void check_pages(uint32_t slot, uint64_t room)
{
    struct stateroom *engine = world.nodes[D].engine;
    for (uint32_t page = 0; page < PAGES; page++) {
        for (uint32_t region = 0; region < stateroom_regions(engine); region++) {
            const uint64_t *at = stateroom_page(engine, region, slot * PAGES + page);
            for (uint64_t i = 0; i < stateroom_page_bytes(engine) / 8u; i++) {
                if (at[i] != word(room, page, region) + i) {
                    die("room %" PRIu64 " succeeded with wrong bytes", room);
                }
            }
        }
    }
}

/* A command that cannot be given now is refused like one that the node never answered. */
static void begin(uint32_t index)
{
    struct slot *slot = &world.slots[index];
    const struct stateroom_run first = {index * PAGES, PAGES / 2u};
    const struct stateroom_run rest = {index * PAGES + PAGES / 2u, PAGES - PAGES / 2u};
    const struct stateroom_run all = {index * PAGES, PAGES};
    const struct stateroom_open_options decode = {"P", &all, 1, 0, STATEROOM_NO_SLOT, 0, 5000};
    const struct stateroom_open_options prefill = {NULL, NULL, 0, 0, STATEROOM_NO_SLOT, 0, 5000};
    const uint64_t room = ++world.next_room;
    const uint64_t lot = random_below(10);
    if (room >= TOLD_ROOMS_MAX) {
        die("too many rooms");
    }
    *slot = (struct slot){.room = room,
                          .plan = lot == 0   ? REJECT
                                  : lot == 1 ? ABORT
                                             : RUN,
                          .since_ms = now_ms()};
    struct stateroom *p = world.nodes[P].engine;
    struct stateroom *d = world.nodes[D].engine;
    fill_pages(index, room);
    slot->parts[D].refused = stateroom_open(d, STATEROOM_DECODE, room, &decode,
                                            &slot->parts[D].open_request) != STATEROOM_OK;
    slot->parts[P].refused = stateroom_open(p, STATEROOM_PREFILL, room, &prefill,
                                            &slot->parts[P].open_request) != STATEROOM_OK;
    if (slot->parts[P].refused) {
        return;
    }
    if (slot->plan == REJECT) {
        (void)stateroom_reject(p, STATEROOM_PREFILL, room, 400, "too long", NULL);
        return;
    }
    (void)stateroom_admit(p, room, NULL);
    (void)stateroom_send(p, room, &first, 1, false, STATEROOM_NO_SLOT, NULL);
    if (slot->plan == ABORT) {
        (void)stateroom_abort(d, STATEROOM_DECODE, room, STATEROOM_BY_CLIENT, 499, "client left",
                              NULL);
    }
    (void)stateroom_send(p, room, &rest, 1, true, STATEROOM_NO_SLOT, NULL);
}

static struct slot *slot_of(uint64_t room)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (world.slots[i].room == room) {
            return &world.slots[i];
        }
    }
    return NULL;
}

static void on_result(int node, const struct stateroom_event *event)
{
    struct slot *slot = slot_of(event->room);
    if (!told_result(&world.nodes[node].told, event)) {
        die("room %" PRIu64 " has a second result at %s", event->room, world.nodes[node].name);
    }
    world.results++;
    (void)stateroom_release(world.nodes[node].engine, event->side, event->room, event->generation,
                            NULL);
    if (event->outcome == STATEROOM_SUCCEEDED && node == D && slot != NULL) {
        check_pages((uint32_t)(slot - world.slots), event->room);
        world.succeeded++;
    }
    if (slot != NULL) {
        slot->parts[node].resulted = true;
        slot->parts[node].pages_free = slot->parts[node].pages_free || event->pages_free;
    }
}

static void on_event(int node, const struct stateroom_event *event)
{
    struct slot *slot = event->room != 0 ? slot_of(event->room) : NULL;
    switch (event->kind) {
    case STATEROOM_RESULT:
        on_result(node, event);
        break;
    case STATEROOM_PAGES_FREE:
        if (slot != NULL) {
            slot->parts[node].pages_free = true;
        }
        break;
    case STATEROOM_ACCEPTED:
        told_accepted(&world.nodes[node].told, event->room, event->command);
        world.acknowledged++;
        break;
    case STATEROOM_REFUSAL:
        if (slot != NULL && event->request == slot->parts[node].open_request) {
            slot->parts[node].refused = true;
        }
        break;
    case STATEROOM_NODE_LOST:
        world.nodes[node].back = false;
        break;
    case STATEROOM_NODE_BACK:
        world.nodes[node].back = true;
        break;
    }
}

static bool is_over(const struct part *part)
{
    return part->refused || (part->resulted && part->pages_free);
}

static void tend(uint32_t index)
{
    struct slot *slot = &world.slots[index];
    if (slot->room == 0) {
        /* Rooms that are refused at once must not make a flood. */
        if (!world.stop && now_ms() - slot->since_ms >= PAUSE_MS) {
            begin(index);
        }
        return;
    }
    if (is_over(&slot->parts[P]) && is_over(&slot->parts[D])) {
        slot->room = 0;
        return;
    }
    for (int node = 0; node < NODES; node++) {
        /* The other side has no such room: the router tells this one. */
        if (slot->parts[node].refused && !slot->parts[1 - node].refused &&
            !slot->parts[1 - node].resulted && !slot->cancelled && world.nodes[1 - node].back) {
            slot->cancelled = true;
            (void)stateroom_abort(world.nodes[1 - node].engine, side_of(1 - node), slot->room,
                                  STATEROOM_BY_OPERATOR, 502, "the other side is gone", NULL);
        }
    }
    if (now_ms() - slot->since_ms > PATIENCE_MS) {
        die("room %" PRIu64 " is not over after %u s (prefill%s%s%s, decode%s%s%s)", slot->room,
            PATIENCE_MS / 1000u, slot->parts[P].refused ? " refused" : "",
            slot->parts[P].resulted ? " resulted" : "", slot->parts[P].pages_free ? " free" : "",
            slot->parts[D].refused ? " refused" : "", slot->parts[D].resulted ? " resulted" : "",
            slot->parts[D].pages_free ? " free" : "");
    }
}

static void look(struct node *node, bool all)
{
    if (!(all ? told_check(&node->told) : told_look(&node->told))) {
        die("%s: %s", node->name, node->told.text);
    }
}

/* Takes what has come and goes on with the rooms; waits up to 1 ms when nothing has. */
static void turn(void)
{
    struct stateroom_event event;
    struct pollfd fds[NODES];
    for (int node = 0; node < NODES; node++) {
        for (int i = 0;
             i < 256 && stateroom_next(world.nodes[node].engine, &event, 0) == STATEROOM_OK; i++) {
            on_event(node, &event);
        }
        if (waitpid(world.nodes[node].pid, NULL, WNOHANG) != 0) {
            world.nodes[node].pid = 0;
            die("node %s has ended by itself", world.nodes[node].name);
        }
        fds[node] = (struct pollfd){stateroom_fd(world.nodes[node].engine), POLLIN, 0};
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        tend(i);
    }
    if (now_ms() - world.looked_ms >= LOOK_MS) {
        world.looked_ms = now_ms();
        for (int node = 0; node < NODES; node++) {
            look(&world.nodes[node], false);
        }
    }
    (void)poll(fds, NODES, 1);
}

/* ---- deaths
 * ---------------------------------------------------------------------------------------------------
 */

static void wait_for_both(void)
{
    const uint64_t since = now_ms();
    while (!world.nodes[P].back || !world.nodes[D].back) {
        turn();
        if (now_ms() - since > PATIENCE_MS) {
            die("node %s does not come back", world.nodes[P].back ? "D" : "P");
        }
    }
}

static void death(void)
{
    const uint64_t lot = random_below(8);
    const bool dies[NODES] = {lot < 4u, lot == 0 || lot >= 4u}; /* one of eight: both */
    const bool early = random_below(8) == 0;                    /* while it starts */
    if (early) {
        world.early++;
    } else {
        wait_for_both();
    }
    const uint64_t until = now_ms() + random_below(LOAD_MS_MAX);
    while (now_ms() < until) {
        turn();
    }
    for (int node = 0; node < NODES; node++) {
        if (dies[node]) {
            (void)kill(world.nodes[node].pid, SIGKILL);
        }
    }
    for (int node = 0; node < NODES; node++) {
        if (dies[node]) {
            int status = 0;
            if (waitpid(world.nodes[node].pid, &status, 0) < 0 || !WIFSIGNALED(status)) {
                world.nodes[node].pid = 0;
                die("node %s had ended by itself (status %d)", world.nodes[node].name, status);
            }
            world.deaths++;
            look(&world.nodes[node], true);
            start(&world.nodes[node]);
        }
    }
}

/* ---- bursts
 * --------------------------------------------------------------------------------------------------
 */

/* Bursts need a disk that is full at once, and a library before the node's libc. */
static void make_disks(void)
{
    char library[512];
    program_path("libstateroom_faulty.so", library, sizeof library);
    const bool can_mount =
        unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    for (int i = 0; i < NODES; i++) {
        struct node *node = &world.nodes[i];
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s.switch", world.directory, node->name);
        node->small = can_mount && mkdir(node->disk, 0700) == 0 &&
                      mount("none", node->disk, "tmpfs", 0, "size=80m") == 0;
        if (node->small) {
            (void)snprintf(node->journal, sizeof node->journal, "%s/journal", node->disk);
        }
        const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        void *map = access(library, R_OK) == 0 && ftruncate(fd, 4096) == 0
                        ? mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                        : MAP_FAILED;
        node->faulty = map == MAP_FAILED ? NULL : map;
        (void)close(fd);
    }
    if (!world.nodes[P].small) {
        printf("kill: no disk is made full: this user may not mount one\n");
    }
}

static void fill_disk(const struct node *node, const char *filler)
{
    static const char page[65536] = {1};
    const int fd = open(filler, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    off_t size = 0;
    for (ssize_t done = 1; fd >= 0 && done > 0; size += done > 0 ? done : 0) {
        done = write(fd, page, sizeof page);
    }
    /* Some pages are left, so that it is not always the first write that fails. */
    const off_t left = (off_t)random_below(12) * 4096;
    if (fd < 0 || ftruncate(fd, size > left ? size - left : 0) != 0 || close(fd) != 0) {
        die("%s: %s", node->disk, strerror(errno));
    }
}

static void burst(void)
{
    static const uint32_t errors[] = {EIO, ENOSPC};
    static const uint32_t rates[] = {1, 2, 3, 7, 20};
    const int index = (int)random_below(NODES);
    struct node *node = &world.nodes[index];
    const bool full = node->small && (node->faulty == NULL || random_below(2) == 0);
    char filler[160];
    (void)snprintf(filler, sizeof filler, "%s/filler", node->disk);
    wait_for_both();
    if (full) {
        world.full++;
        fill_disk(node, filler);
    } else if (node->faulty != NULL) {
        world.failing++;
        atomic_store(&node->faulty->error, errors[random_below(2)]);
        atomic_store(&node->faulty->one_in, rates[random_below(5)]);
    }
    const uint64_t until = now_ms() + random_below(random_below(3) == 0 ? 2500 : 100);
    while (now_ms() < until) {
        turn();
    }
    if (node->faulty != NULL) {
        atomic_store(&node->faulty->one_in, 0);
        world.failed += atomic_exchange(&node->faulty->failed, 0);
    }
    (void)unlink(filler);
    const uint64_t since = now_ms();
    const uint64_t before = world.succeeded;
    while (world.succeeded < before + 8u * SLOTS) {
        turn();
        if (now_ms() - since > PATIENCE_MS) {
            die("no room succeeds after the disk of %s is well again", node->name);
        }
    }
    look(node, true);
}

static void finish(void)
{
    const uint64_t since = now_ms();
    bool going_on = true;
    wait_for_both();
    world.stop = true;
    while (going_on) {
        turn();
        going_on = false;
        for (uint32_t i = 0; i < SLOTS; i++) {
            going_on = going_on || world.slots[i].room != 0;
        }
        if (now_ms() - since > 2u * PATIENCE_MS) {
            die("rooms are left");
        }
    }
    for (int node = 0; node < NODES; node++) {
        stateroom_close(world.nodes[node].engine);
        (void)kill(world.nodes[node].pid, SIGTERM);
    }
    for (int node = 0; node < NODES; node++) {
        int status = 0;
        (void)waitpid(world.nodes[node].pid, &status, 0);
        world.nodes[node].pid = 0;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            die("node %s ended with status %d after SIGTERM", world.nodes[node].name, status);
        }
        look(&world.nodes[node], true);
    }
}

static void remove_directory(void)
{
    char command[160];
    for (int i = 0; i < NODES; i++) {
        (void)umount(world.nodes[i].disk);
    }
    (void)snprintf(command, sizeof command, "rm -rf '%s'", world.directory);
    if (system(command) != 0) {
        fprintf(stderr, "kill: %s is left\n", world.directory);
    }
}

static bool make_world(const char *keep, bool bursts)
{
    (void)snprintf(world.directory, sizeof world.directory, "%s",
                   keep != NULL ? keep : "/tmp/stateroom-kill-XXXXXX");
    const bool made =
        keep == NULL ? mkdtemp(world.directory) != NULL : mkdir(world.directory, 0700) == 0;
    if (!made) {
        fprintf(stderr, "kill: %s: %s\n", world.directory, strerror(errno));
        return false;
    }
    world.nodes[P].name = "P";
    world.nodes[D].name = "D";
    for (int i = 0; i < NODES; i++) {
        struct node *node = &world.nodes[i];
        (void)snprintf(node->journal, sizeof node->journal, "%s/journal-%s", world.directory,
                       node->name);
        (void)snprintf(node->disk, sizeof node->disk, "%s/disk-%s", world.directory, node->name);
    }
    if (bursts) {
        make_disks();
    }
    for (int i = 0; i < NODES; i++) {
        if (!told_open(&world.nodes[i].told, world.nodes[i].journal)) {
            die("no memory");
        }
        write_config(&world.nodes[i], &world.nodes[1 - i]);
        start(&world.nodes[i]);
    }
    connect_engine(&world.nodes[P]);
    connect_engine(&world.nodes[D]);
    world.looked_ms = now_ms();
    return true;
}

int main(int argc, char **argv)
{
    uint64_t kills = 30;
    uint64_t bursts = 0;
    const char *keep = NULL;
    const uint64_t started = now_ms();
    world.random = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        kills = strcmp(argv[i], "--kills") == 0 ? strtoull(value, NULL, 10) : kills;
        bursts = strcmp(argv[i], "--bursts") == 0 ? strtoull(value, NULL, 10) : bursts;
        world.random = strcmp(argv[i], "--seed") == 0 ? strtoull(value, NULL, 10) : world.random;
        keep = strcmp(argv[i], "--keep") == 0 ? value : keep;
    }
    if (!make_world(keep, bursts > 0)) {
        return 2;
    }
    if (bursts > 0 && !world.nodes[P].small && world.nodes[P].faulty == NULL) {
        die("nothing can be made to fail here");
    }
    while (bursts > 0 ? world.full + world.failing < bursts : world.deaths < kills) {
        if (bursts > 0) {
            burst();
        } else {
            death();
        }
    }
    finish();
    printf("kill: %" PRIu64 " deaths (%" PRIu64 " attempts before all was up), %" PRIu64
           " times a full disk, %" PRIu64 " times failing calls (%" PRIu64 ")\n",
           world.deaths, world.early, world.full, world.failing, world.failed);
    printf("kill: %" PRIu64 " rooms, %" PRIu64 " of them succeeded; %" PRIu64
           " accepted commands and %" PRIu64 " results were all found in %" PRIu64
           " entries; %.1f s: passed\n",
           world.next_room, world.succeeded, world.acknowledged, world.results,
           world.nodes[P].told.entries + world.nodes[D].told.entries,
           (double)(now_ms() - started) / 1000.0);
    told_close(&world.nodes[P].told);
    told_close(&world.nodes[D].told);
    if (keep == NULL) {
        remove_directory();
    }
    return 0;
}
