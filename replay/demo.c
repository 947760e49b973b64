/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The demo: the router of a small cluster on this machine. It starts two nodes and two synthetic
 * engines, sends them the requests of a production trace, kills one engine (and a node, if asked),
 * and at the end checks that everything is accounted for.
 */
#include "demo.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static void pause_ms(long ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* ---- processes
 * ----------------------------------------------------------------------------------------- */

static int write_config(const struct demo *demo, const struct demo_node *node,
                        const struct demo_node *other)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.yaml", demo->dir, node->name);
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return cli_fail(EXIT_UNREACHABLE, "%s: %s", path, strerror(errno));
    }
    fprintf(
        file,
        "# A node of `stateroom demo`.\nname: %s\nranks: 1\nlisten: ipc://%s/%s.peer\n"
        "engines: %s/%s-engines/socket\njournal:\n  path: %s/journal-%s\n  snapshot_every: 5000\n"
        "fabric:\n  provider: %s\nheartbeat_interval: 200ms\nheartbeat_bound: 2s\n"
        "recovery_grace: 1s\npeers:\n  - {name: %s, address: \"ipc://%s/%s.peer\"}\n",
        node->name, demo->dir, node->name, demo->dir, node->name, demo->dir, node->name,
        demo->provider, other->name, demo->dir, other->name);
    return fclose(file) == 0 ? EXIT_WELL
                             : cli_fail(EXIT_UNREACHABLE, "%s: cannot be written", path);
}

/* stateroomd stands beside this program. */
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

/*
 * In a child: Ctrl-C is for the demo alone, which ends its processes in order; when the demo itself
 * is killed they must not live on.
 */
static void leave_terminal(void)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
}

static int start_node(struct demo *demo, struct demo_node *node)
{
    char program[512];
    char config[512];
    char log[512];
    program_path("stateroomd", program, sizeof program);
    (void)snprintf(config, sizeof config, "%s/%s.yaml", demo->dir, node->name);
    (void)snprintf(log, sizeof log, "%s/%s.log", demo->dir, node->name);
    node->pid = fork();
    if (node->pid == 0) {
        const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        (void)dup2(fd, STDERR_FILENO);
        (void)dup2(fd, STDOUT_FILENO);
        leave_terminal();
        (void)execl(program, program, "--config", config, (char *)NULL);
        _exit(127);
    }
    return node->pid > 0 ? EXIT_WELL : cli_fail(EXIT_UNREACHABLE, "fork: %s", strerror(errno));
}

/* An engine that was killed before its node knew it cannot take its pool with it. */
static void remove_pools(pid_t pid)
{
    char pattern[64];
    glob_t found;
    (void)snprintf(pattern, sizeof pattern, "/dev/shm/stateroom-%ld-*", (long)pid);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            (void)unlink(found.gl_pathv[i]);
        }
        globfree(&found);
    }
}

static int start_engine(struct demo *demo, struct demo_engine *engine)
{
    char program[512];
    char socket[512];
    char pages[32];
    int orders[2];
    int answers[2];
    program_path("stateroom", program, sizeof program);
    (void)snprintf(socket, sizeof socket, "%s/%s-engines/socket", demo->dir, engine->node->name);
    (void)snprintf(pages, sizeof pages, "%u", demo->pool_pages);
    if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) {
        return cli_fail(EXIT_UNREACHABLE, "pipe: %s", strerror(errno));
    }
    engine->pid = fork();
    if (engine->pid == 0) {
        (void)dup2(orders[0], STDIN_FILENO);
        (void)dup2(answers[1], STDOUT_FILENO);
        leave_terminal();
        (void)execl(program, program, "demo-engine", engine->side, socket, pages, (char *)NULL);
        _exit(127);
    }
    (void)close(orders[0]);
    (void)close(answers[1]);
    engine->orders = orders[1];
    engine->answers = answers[0];
    engine->ready = false;
    engine->line_used = 0;
    (void)fcntl(engine->answers, F_SETFL, O_NONBLOCK);
    return engine->pid > 0 ? EXIT_WELL : cli_fail(EXIT_UNREACHABLE, "fork: %s", strerror(errno));
}

static void end_process(pid_t *pid, int number, uint32_t timeout_ms)
{
    if (*pid <= 0) {
        return;
    }
    (void)kill(*pid, number);
    for (uint32_t waited = 0; waited < timeout_ms; waited += 20u) {
        int status = 0;
        if (waitpid(*pid, &status, WNOHANG) == *pid) {
            *pid = 0;
            return;
        }
        pause_ms(20);
    }
    (void)kill(*pid, SIGKILL);
    (void)waitpid(*pid, NULL, 0);
    *pid = 0;
}

static void close_engine(struct demo_engine *engine)
{
    if (engine->orders >= 0) {
        (void)close(engine->orders);
        (void)close(engine->answers);
    }
    engine->orders = -1;
    engine->answers = -1;
    engine->ready = false;
}

/* ---- what engines say
 * ------------------------------------------------------------------------------------ */

static void order(struct demo_engine *engine, const char *line)
{
    const size_t size = strlen(line);
    if (engine->orders >= 0 && write(engine->orders, line, size) != (ssize_t)size) {
        return; /* a dead engine: its end is noticed elsewhere */
    }
}

/* One leg is lost: the router tells the other one, instead of letting it wait for its deadline. */
static void cancel(struct demo_engine *other, uint64_t room)
{
    char line[64];
    (void)snprintf(line, sizeof line, "cancel %" PRIu64 "\n", room);
    order(other, line);
}

static struct demo_room *room_of(struct demo *demo, uint64_t room)
{
    return room >= 1u && room <= demo->room_count ? &demo->rooms[room - 1u] : NULL;
}

static void side_over(struct demo *demo, struct demo_room *room, bool prefill, uint32_t http)
{
    bool *over = prefill ? &room->prefill_over : &room->decode_over;
    if (*over) {
        return;
    }
    *over = true;
    if (prefill) {
        room->prefill_http = http;
    } else {
        room->decode_http = http;
    }
    if (room->prefill_over && room->decode_over) {
        demo->outstanding--;
        demo->done++;
    }
}

static void on_answer(struct demo *demo, struct demo_engine *engine, const char *line)
{
    const bool prefill = engine == &demo->prefill;
    uint64_t number = 0;
    char outcome[16] = "";
    unsigned http = 0;
    unsigned good = 0;
    unsigned bad = 0;
    if (strcmp(line, "ready") == 0) {
        engine->ready = true;
    } else if (sscanf(line, "result %" SCNu64 " %15s %u", &number, outcome, &http) == 3) {
        struct demo_room *room = room_of(demo, number);
        if (room != NULL) {
            side_over(demo, room, prefill, strcmp(outcome, "succeeded") == 0 ? 200u : http);
        }
    } else if (sscanf(line, "pages %" SCNu64 " %u %u", &number, &good, &bad) == 3) {
        demo->pages_good += good;
        demo->pages_bad += bad;
    } else if (sscanf(line, "refusal %" SCNu64 " %u", &number, &http) == 2) {
        struct demo_room *room = room_of(demo, number);
        if (room != NULL) {
            side_over(demo, room, prefill, http);
            cancel(prefill ? &demo->decode : &demo->prefill, number);
        }
    } else if (sscanf(line, "bye %u", &bad) == 1) {
        demo->pages_held_by_engines += bad;
        engine->said_bye = true;
    }
}

static void read_answers(struct demo *demo, struct demo_engine *engine)
{
    char buffer[4096];
    ssize_t size = 0;
    while (engine->answers >= 0 && (size = read(engine->answers, buffer, sizeof buffer)) > 0) {
        for (ssize_t i = 0; i < size; i++) {
            if (buffer[i] == '\n') {
                engine->line[engine->line_used] = '\0';
                on_answer(demo, engine, engine->line);
                engine->line_used = 0;
            } else if (engine->line_used + 1u < sizeof engine->line) {
                engine->line[engine->line_used++] = buffer[i];
            }
        }
    }
}

static void listen_for(struct demo *demo, int timeout_ms)
{
    struct pollfd fds[2] = {{demo->prefill.answers, POLLIN, 0}, {demo->decode.answers, POLLIN, 0}};
    (void)poll(fds, 2, timeout_ms);
    read_answers(demo, &demo->prefill);
    read_answers(demo, &demo->decode);
}

/* ---- the run
 * ------------------------------------------------------------------------------------------------
 */

static void submit(struct demo *demo, struct demo_room *room)
{
    static const char *const whats[] = {"run", "refuse", "abort"};
    char line[128];
    (void)snprintf(line, sizeof line, "open %" PRIu64 " %u %u %s\n", room->room, room->pages,
                   room->prefix, whats[room->what]);
    order(&demo->decode, line);
    order(&demo->prefill, line);
    room->submitted = true;
    demo->outstanding++;
}

static void show_progress(struct demo *demo, bool last)
{
    const uint64_t now = cli_now_ns();
    const bool terminal = isatty(STDERR_FILENO) != 0;
    if (!last && now - demo->shown_ns < (terminal ? 100000000u : UINT64_C(2000000000))) {
        return;
    }
    demo->shown_ns = now;
    fprintf(stderr, "%s%u of %u rooms over, %" PRIu64 " pages delivered and checked (%.1f GiB)%s",
            terminal ? "\r" : "", demo->done, demo->room_count, demo->pages_good,
            (double)demo->pages_good * 2.0 / 1024.0, terminal && !last ? "  " : "\n");
}

/* kill -9 of the decode engine: what it had is lost; a new one takes its place. */
static int kill_decode_engine(struct demo *demo)
{
    uint32_t lost = 0;
    (void)kill(demo->decode.pid, SIGKILL);
    (void)waitpid(demo->decode.pid, NULL, 0);
    read_answers(demo, &demo->decode);
    close_engine(&demo->decode);
    for (uint32_t i = 0; i < demo->room_count; i++) {
        struct demo_room *room = &demo->rooms[i];
        if (room->submitted && !room->decode_over) {
            room->lost_with_engine = true;
            side_over(demo, room, false, 0);
            cancel(&demo->prefill, room->room);
            lost++;
        }
    }
    demo->killed_engine = true;
    demo->lost_rooms = lost;
    return start_engine(demo, &demo->decode);
}

static int kill_one_node(struct demo *demo)
{
    struct demo_node *node = demo->kill_node == 'P' ? &demo->p : &demo->d;
    (void)kill(node->pid, SIGKILL);
    (void)waitpid(node->pid, NULL, 0);
    demo->killed_node = true;
    return start_node(demo, node);
}

static int run_requests(struct demo *demo)
{
    uint32_t next = 0;
    const uint64_t started = cli_now_ns();
    int code = EXIT_WELL;
    while (demo->done < demo->room_count && code == EXIT_WELL) {
        if (interrupted) {
            return EXIT_INTERRUPTED;
        }
        if (cli_now_ns() - started > UINT64_C(300) * 1000000000u) {
            return cli_fail(EXIT_DIFFERS, "after 300 s %u rooms are not over; see %s/*.log",
                            demo->room_count - demo->done, demo->dir);
        }
        while (next < demo->room_count && demo->outstanding < 10u && demo->decode.ready) {
            submit(demo, &demo->rooms[next++]);
        }
        listen_for(demo, 20);
        show_progress(demo, false);
        if (!demo->killed_engine && demo->done >= demo->room_count / 2u &&
            demo->outstanding >= 3u) {
            code = kill_decode_engine(demo);
        }
        if (demo->kill_node != 0 && !demo->killed_node && demo->done >= demo->room_count / 4u &&
            demo->outstanding >= 3u && code == EXIT_WELL) {
            code = kill_one_node(demo);
        }
    }
    demo->took_ns = cli_now_ns() - started;
    show_progress(demo, true);
    return code;
}

/* Why a node did not come up: the last line of its log. */
static int node_failed(const struct demo *demo, const struct demo_node *node, const char *how)
{
    char path[128];
    char line[600];
    char last[600] = "its log is empty";
    (void)snprintf(path, sizeof path, "%s/%s.log", demo->dir, node->name);
    FILE *log = fopen(path, "r");
    while (log != NULL && fgets(line, (int)sizeof line, log) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        memcpy(last, line, sizeof last);
    }
    if (log != NULL) {
        (void)fclose(log);
    }
    return cli_fail(EXIT_UNREACHABLE, "node %s %s (%s): %s", node->name, how, path, last);
}

static bool has_ended(struct demo_node *node)
{
    int status = 0;
    if (waitpid(node->pid, &status, WNOHANG) == node->pid) {
        node->pid = 0;
    }
    return node->pid == 0;
}

static int wait_ready(struct demo *demo)
{
    const uint64_t until = cli_now_ns() + UINT64_C(40) * 1000000000u;
    while (!demo->prefill.ready || !demo->decode.ready) {
        listen_for(demo, 50);
        if (interrupted) {
            return EXIT_INTERRUPTED;
        }
        struct demo_node *nodes[] = {&demo->p, &demo->d};
        const struct demo_engine *engines[] = {&demo->prefill, &demo->decode};
        for (size_t i = 0; i < 2u; i++) {
            if (has_ended(nodes[i])) {
                return node_failed(demo, nodes[i], "has ended");
            }
            if (!engines[i]->ready && cli_now_ns() > until) {
                return node_failed(demo, nodes[i], "did not come up within 40 s");
            }
        }
    }
    return EXIT_WELL;
}

/* Engines finish what they have and say what they still hold; then the nodes stop gracefully. */
static void wind_down(struct demo *demo)
{
    const bool came_up = demo->prefill.ready && demo->decode.ready;
    const uint64_t until = cli_now_ns() + (came_up ? UINT64_C(30) * 1000000000u : 0);
    const uint32_t patience = !came_up ? 0u : interrupted ? 500u : 3000u;
    order(&demo->prefill, "quit\n");
    order(&demo->decode, "quit\n");
    while ((!demo->prefill.said_bye || !demo->decode.said_bye) && cli_now_ns() < until &&
           !interrupted) {
        listen_for(demo, 50);
    }
    const pid_t engines[] = {demo->prefill.pid, demo->decode.pid};
    end_process(&demo->prefill.pid, SIGCONT, patience);
    end_process(&demo->decode.pid, SIGCONT, patience);
    end_process(&demo->p.pid, SIGTERM, 20000);
    end_process(&demo->d.pid, SIGTERM, 20000);
    close_engine(&demo->prefill);
    close_engine(&demo->decode);
    for (size_t i = 0; i < 2u; i++) {
        if (engines[i] > 0) {
            remove_pools(engines[i]);
        }
    }
}

static int make_directory(struct demo *demo, const struct cli_values *values)
{
    const char *wanted = cli_text(values, "dir", ".");
    if (demo->temporary) {
        (void)snprintf(demo->dir, sizeof demo->dir, "/tmp/stateroom-demo-XXXXXX");
        return mkdtemp(demo->dir) != NULL
                   ? EXIT_WELL
                   : cli_fail(EXIT_UNREACHABLE, "%s: %s", demo->dir, strerror(errno));
    }
    if (strlen(wanted) >= sizeof demo->dir) {
        return cli_fail(EXIT_WRONG_USAGE,
                        "--dir: %zu bytes or less, since the paths of sockets have bounds",
                        sizeof demo->dir - 1u);
    }
    if (mkdir(wanted, 0755) != 0 && errno != EEXIST) {
        return cli_fail(EXIT_UNREACHABLE, "%s: %s", wanted, strerror(errno));
    }
    (void)snprintf(demo->dir, sizeof demo->dir, "%s", wanted);
    return EXIT_WELL;
}

static int prepare(struct demo *demo, const struct cli_values *values)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &action, NULL);
    demo->prefill =
        (struct demo_engine){.side = "prefill", .node = &demo->p, .orders = -1, .answers = -1};
    demo->decode =
        (struct demo_engine){.side = "decode", .node = &demo->d, .orders = -1, .answers = -1};
    demo->p.name = "P";
    demo->d.name = "D";
    demo->provider = cli_text(values, "provider", "tcp");
    demo->pool_pages = (uint32_t)cli_number(values, "pages", 224);
    demo->kill_node = cli_text(values, "kill-node", "")[0];
    demo->temporary = !cli_given(values, "dir");
    if (demo->pool_pages < 16u || demo->pool_pages > 1u << 20) {
        return cli_fail(EXIT_WRONG_USAGE, "--pages: 16 or more");
    }
    if (demo->kill_node != 0 && demo->kill_node != 'P' && demo->kill_node != 'D') {
        return cli_fail(EXIT_WRONG_USAGE, "--kill-node: P or D");
    }
    const int code = demo_read_trace(demo, values);
    return code == EXIT_WELL ? make_directory(demo, values) : code;
}

static int run(struct demo *demo)
{
    int code = write_config(demo, &demo->p, &demo->d);
    code = code == EXIT_WELL ? write_config(demo, &demo->d, &demo->p) : code;
    code = code == EXIT_WELL ? start_node(demo, &demo->p) : code;
    code = code == EXIT_WELL ? start_node(demo, &demo->d) : code;
    code = code == EXIT_WELL ? start_engine(demo, &demo->prefill) : code;
    code = code == EXIT_WELL ? start_engine(demo, &demo->decode) : code;
    code = code == EXIT_WELL ? wait_ready(demo) : code;
    if (code == EXIT_WELL) {
        fprintf(stderr,
                "two nodes and two engines are up (provider %s, %u pages of 2 MiB each side); %u "
                "rooms\n",
                demo->provider, demo->pool_pages, demo->room_count);
        code = run_requests(demo);
    }
    wind_down(demo);
    return code == EXIT_WELL ? demo_report(demo) : code;
}

int cmd_demo(const struct cli_values *values)
{
    static struct demo demo;
    char command[600];
    int code = prepare(&demo, values);
    if (code == EXIT_WELL) {
        code = run(&demo);
    }
    free(demo.rooms);
    if (code == EXIT_INTERRUPTED) {
        (void)cli_fail(code, "interrupted; all processes of the demo have ended");
    }
    if (demo.dir[0] != '\0' && demo.temporary && !cli_given(values, "keep") &&
        (code == EXIT_WELL || code == EXIT_INTERRUPTED)) {
        printf("\n%s is removed (--keep keeps journals and logs)\n", demo.dir);
        (void)snprintf(command, sizeof command, "rm -rf '%s'", demo.dir);
        if (system(command) != 0) {
            fprintf(stderr, "stateroom: %s could not be removed\n", demo.dir);
        }
    } else if (demo.dir[0] != '\0') {
        printf("\njournals and logs are in %s\n", demo.dir);
    }
    return code;
}
