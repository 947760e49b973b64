/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 at a thousand points: two real nodes move rooms between two engines (this process is
 * both), and now and then one of them, or both, dies: under load, or before it is up again. After
 * each death its journal is verified and replayed, and everything that it had ever told its engine
 * is looked for in it: each command that it had accepted, each verdict with its status and reason.
 * Then it is started again, and the rooms must get their results, each once, with the right bytes.
 *
 *     kill_points [--kills N] [--seed S] [--keep DIRECTORY]
 *
 * --keep: the directory of configurations, logs and journals, which is left there.
 * Exit status: 0, or 1 with what was lost.
 */
#include "journal/journal_recover.h"
#include "journal/journal_verify.h"
#include "stateroom/stateroom.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 24u
#define PAGES 4u /* of a room; slot k's are 4k to 4k+3 on both sides */
#define ROOMS_MAX (1u << 20)
#define PATIENCE_MS 60000u
#define LOAD_MS_MAX 60u

enum { P, D, NODES };

/* What became of a half: as its engine was told, and as its journal says. */
struct half {
    uint8_t commands[32]; /* accepted, by enum stateroom_command (a machine's input kind) */
    uint64_t generation;
    uint32_t reason; /* digest of the text */
    uint16_t http;
    uint8_t outcome; /* 0: none yet */
    bool told;
};

struct room {
    struct half said[NODES];
    struct half found[NODES];
};

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
    uint64_t checked; /* entries looked at for what was told */
    char journal[160];
};

static struct {
    char directory[96];
    uint64_t random;
    struct node nodes[NODES];
    struct slot slots[SLOTS];
    struct room *rooms;
    uint64_t next_room;
    bool stop; /* no more rooms */
    struct journal_machine machine;
    uint64_t acknowledged, results, entries, succeeded, deaths, early;
} world;

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("kill: FAILED: ");
    (void)vprintf(format, arguments);
    va_end(arguments);
    printf(" (after %" PRIu64 " deaths; logs and journals are in %s)\n", world.deaths,
           world.directory);
    for (int i = 0; i < NODES; i++) {
        if (world.nodes[i].pid > 0) {
            (void)kill(world.nodes[i].pid, SIGKILL);
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

static uint32_t digest(const char *text, size_t size)
{
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < size; i++) {
        sum = (sum ^ (unsigned char)text[i]) * 16777619u;
    }
    return sum;
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
            "keep_bytes: 6MiB}\n"
            "fabric: {provider: tcp}\nheartbeat_interval: 100ms\nheartbeat_bound: 2s\n"
            "recovery_grace: 300ms\nretry_first: 20ms\nunclaimed_deadline: 3s\n"
            "rooms_max: 1024\nrooms_per_peer_max: 1024\ntombstones_max: 4096\nwrites_max: 1024\n"
            "page_runs_max: 65536\npages_max: 4096\naux_slots_max: 64\n"
            "peers:\n  - {name: %s, address: \"ipc://%s/%s.peer\"}\n",
            node->name, world.directory, node->name, world.directory, node->name, node->journal,
            node == &world.nodes[D] ? "process" : "sync", other->name, world.directory,
            other->name);
    (void)fclose(file);
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
    if (room >= ROOMS_MAX) {
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
    struct half *half = &world.rooms[event->room].said[node];
    struct slot *slot = slot_of(event->room);
    if (half->told) {
        die("room %" PRIu64 " has a second result at %s", event->room, world.nodes[node].name);
    }
    half->told = true;
    half->outcome = (uint8_t)event->outcome;
    half->http = (uint16_t)event->http;
    half->reason = digest(event->reason, strlen(event->reason));
    half->generation = event->generation;
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
        world.rooms[event->room].said[node].commands[event->command]++;
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
        if (!world.stop) {
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
        fds[node] = (struct pollfd){stateroom_fd(world.nodes[node].engine), POLLIN, 0};
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        tend(i);
    }
    (void)poll(fds, NODES, 1);
}

/* ---- what a journal must hold
 * ----------------------------------------------------------------------------------- */

static void note_transition(int node, const struct sm_transition *t)
{
    if (t->room == 0 || t->room >= ROOMS_MAX) {
        return;
    }
    struct half *half = &world.rooms[t->room].found[node];
    if (t->kind == SM_TR_VERDICT) {
        half->outcome = (uint8_t)t->a;
        half->generation = t->generation;
    }
    if (t->kind == SM_TR_VERDICT || t->kind == SM_TR_CAUSE_REPLACED) {
        half->http = (uint16_t)t->b;
        half->reason = digest((const char *)t->text.bytes, t->text.size);
    }
    half->told = half->told || t->kind == SM_TR_TOLD;
}

static void note_entry(int node, struct journal *journal, uint64_t number)
{
    struct journal_record record;
    struct codec_entry entry;
    codec_arena_reset(&world.machine.arena);
    if (journal_read(journal, number, &record) != STATUS_OK ||
        codec_entry_unpack(record.payload, record.payload_size, &world.machine.arena, &entry) !=
            STATUS_OK) {
        die("%s: entry %" PRIu64 " cannot be read", world.nodes[node].name, number);
    }
    world.entries++;
    const uint64_t room = entry.input.room;
    if (room < ROOMS_MAX && sm_input_is_command(entry.input.kind)) {
        world.rooms[room].found[node].commands[entry.input.kind]++;
    }
    for (uint32_t i = 0; i < entry.transition_count; i++) {
        note_transition(node, &entry.transitions[i]);
    }
}

static void compare_half(int node, uint64_t room)
{
    const struct half *said = &world.rooms[room].said[node];
    const struct half *found = &world.rooms[room].found[node];
    for (int command = 0; command < 32; command++) {
        if (said->commands[command] > found->commands[command]) {
            die("%s: of room %" PRIu64 " %u commands of kind %d were accepted, the journal has %u",
                world.nodes[node].name, room, said->commands[command], command,
                found->commands[command]);
        }
    }
    if (said->told &&
        (!found->told || said->outcome != found->outcome || said->http != found->http ||
         said->reason != found->reason || said->generation != found->generation)) {
        die("%s: room %" PRIu64 " was told outcome %u, http %u, generation %" PRIu64
            "; its journal has %s%u, http %u, generation %" PRIu64 "%s",
            world.nodes[node].name, room, said->outcome, said->http, said->generation,
            found->told ? "" : "not told: ", found->outcome, found->http, found->generation,
            said->reason != found->reason ? ", another reason" : "");
    }
}

static void replay(int node, struct journal *journal)
{
    const struct journal_replay options = {.from_snapshot = true, .check = true};
    struct journal_replayed replayed;
    struct status_detail detail = {"", 0};
    journal_machine_renew(&world.machine);
    if (journal_replay(journal, &world.machine, &options, &replayed, &detail) != STATUS_OK) {
        die("%s: replay: %s", world.nodes[node].name, detail.text);
    }
    if (replayed.violation.invariant != 0) {
        die("%s: replay: an invariant does not hold: %s", world.nodes[node].name,
            replayed.violation.detail);
    }
}

/* Nobody writes it now. */
static void check_journal(int node)
{
    struct node *n = &world.nodes[node];
    const struct journal_options options = {.path = n->journal, .read_only = true};
    struct journal *journal = NULL;
    struct journal_identity identity;
    struct journal_fault_report report;
    struct status_detail detail = {"", 0};
    if (journal_open(&options, &journal, &detail) != STATUS_OK ||
        journal_verify(journal, &report, &detail) != STATUS_OK) {
        die("%s: %s", n->name, detail.text);
    }
    if (journal_identity(journal, &identity) != STATUS_OK || identity.last < n->checked ||
        identity.first > n->checked + 1u) {
        die("%s: the journal has entries %" PRIu64 " to %" PRIu64
            ", looked at were those to %" PRIu64,
            n->name, identity.first, identity.last, n->checked);
    }
    for (; n->checked < identity.last; n->checked++) {
        note_entry(node, journal, n->checked + 1u);
    }
    replay(node, journal);
    journal_close(journal);
    for (uint64_t room = 1; room <= world.next_room; room++) {
        compare_half(node, room);
    }
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
            check_journal(node);
            start(&world.nodes[node]);
        }
    }
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
        check_journal(node);
    }
}

static void remove_directory(void)
{
    char command[160];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", world.directory);
    if (system(command) != 0) {
        fprintf(stderr, "kill: %s is left\n", world.directory);
    }
}

int main(int argc, char **argv)
{
    uint64_t kills = 30;
    uint64_t seed = 1;
    const char *keep = NULL;
    struct status_detail detail = {"", 0};
    const uint64_t started = now_ms();
    for (int i = 1; i + 1 < argc; i += 2) {
        kills = strcmp(argv[i], "--kills") == 0 ? strtoull(argv[i + 1], NULL, 10) : kills;
        seed = strcmp(argv[i], "--seed") == 0 ? strtoull(argv[i + 1], NULL, 10) : seed;
        keep = strcmp(argv[i], "--keep") == 0 ? argv[i + 1] : keep;
    }
    world.random = seed;
    world.rooms = calloc(ROOMS_MAX, sizeof *world.rooms);
    (void)snprintf(world.directory, sizeof world.directory, "%s",
                   keep != NULL ? keep : "/tmp/stateroom-kill-XXXXXX");
    if (world.rooms == NULL ||
        (keep == NULL ? mkdtemp(world.directory) == NULL : mkdir(world.directory, 0700) != 0) ||
        journal_machine_open(&world.machine, &detail) != STATUS_OK) {
        fprintf(stderr, "kill: %s: %s\n", world.directory, strerror(errno));
        return 2;
    }
    world.nodes[P].name = "P";
    world.nodes[D].name = "D";
    for (int node = 0; node < NODES; node++) {
        struct node *n = &world.nodes[node];
        (void)snprintf(n->journal, sizeof n->journal, "%s/journal-%s", world.directory, n->name);
        write_config(n, &world.nodes[1 - node]);
        start(n);
    }
    connect_engine(&world.nodes[P]);
    connect_engine(&world.nodes[D]);
    while (world.deaths < kills) {
        death();
    }
    finish();
    printf("kill: seed %" PRIu64 ": %" PRIu64 " deaths (%" PRIu64 " attempts before all was up), "
           "%" PRIu64 " rooms, %" PRIu64 " of them succeeded; %" PRIu64
           " accepted commands and %" PRIu64 " results were all found in %" PRIu64
           " entries; %.1f s: passed\n",
           seed, world.deaths, world.early, world.next_room, world.succeeded, world.acknowledged,
           world.results, world.entries, (double)(now_ms() - started) / 1000.0);
    journal_machine_close(&world.machine);
    free(world.rooms);
    if (keep == NULL) {
        remove_directory();
    }
    return 0;
}
