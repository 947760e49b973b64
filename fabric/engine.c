/* SPDX-License-Identifier: Apache-2.0 */
/* The engine link. */
#include "engine_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define ARENA_BYTES ((size_t)64 << 20)
#define CHECK_INTERVAL_NS UINT64_C(200000000)
/* ---- opening
 * ------------------------------------------------------------------------------------------- */

static enum status private_directory(const char *path, struct status_detail *out_detail)
{
    char directory[108];
    struct stat info;
    (void)snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash == NULL || slash == directory) {
        return status_fail(STATUS_FABRIC_BIND, out_detail, 0,
                           "engine link: %s: the socket needs a directory of its own (engines)",
                           path);
    }
    *slash = '\0';
    if (mkdir(directory, 0700) != 0 && errno != EEXIST) {
        return status_fail(STATUS_FABRIC_BIND, out_detail, errno, "engine link: %s: %s", directory,
                           strerror(errno));
    }
    if (stat(directory, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & 0077) != 0) {
        return status_fail(STATUS_FABRIC_BIND, out_detail, 0,
                           "engine link: directory %s must belong to this user and be closed to "
                           "others: whoever can enter it can use the node; chmod 700 it or name "
                           "another one (engines)",
                           directory);
    }
    return STATUS_OK;
}

static enum status bind_router(struct engine_links *links, void *context,
                               struct status_detail *out_detail)
{
    char address[128];
    const int zero = 0;
    const int outbox = ENGINE_OUTBOX_MAX;
    const int one = 1;
    const int64_t frame = ENGINE_FRAME_BYTES_MAX;
    links->router = zmq_socket(context, ZMQ_ROUTER);
    if (links->router == NULL) {
        return status_fail(STATUS_SYSTEM, out_detail, errno, "engine link: %s",
                           zmq_strerror(errno));
    }
    (void)zmq_setsockopt(links->router, ZMQ_LINGER, &zero, sizeof zero);
    (void)zmq_setsockopt(links->router, ZMQ_SNDHWM, &outbox, sizeof outbox);
    (void)zmq_setsockopt(links->router, ZMQ_RCVHWM, &outbox, sizeof outbox);
    (void)zmq_setsockopt(links->router, ZMQ_MAXMSGSIZE, &frame, sizeof frame);
    /* Say so when an engine is gone or does not read, instead of dropping in silence. */
    (void)zmq_setsockopt(links->router, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    (void)snprintf(address, sizeof address, "ipc://%s", links->path);
    const mode_t before = umask(0077);
    const enum status status =
        router_bind(links->router, address, "engine link", "engines", &links->lock, out_detail);
    (void)umask(before);
    return status;
}

enum status engine_open(const struct engine_options *options, void *zmq_context,
                        struct engine_links **out_links, struct status_detail *out_detail)
{
    struct engine_links *links = calloc(1, sizeof *links);
    if (links == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for the engine link");
    }
    links->options = *options;
    links->lock.fd = -1;
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        links->ranks[rank].pid_fd = -1;
    }
    enum status status = STATUS_OK;
    if (strlen(options->path) > 100u) {
        status =
            status_fail(STATUS_FABRIC_BIND, out_detail, 0,
                        "engine link: %s: a socket's path may have 100 bytes; shorten `engines`",
                        options->path);
    } else {
        (void)snprintf(links->path, sizeof links->path, "%s", options->path);
        status = private_directory(links->path, out_detail);
    }
    links->arena_memory = malloc(ARENA_BYTES);
    links->frame = malloc(ENGINE_FRAME_BYTES_MAX);
    if (status == STATUS_OK && (links->arena_memory == NULL || links->frame == NULL)) {
        status = status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for the engine link");
    }
    codec_arena_init(&links->arena, links->arena_memory, ARENA_BYTES);
    if (status == STATUS_OK) {
        status = bind_router(links, zmq_context, out_detail);
    }
    if (status != STATUS_OK) {
        engine_close(links);
        return status;
    }
    *out_links = links;
    return STATUS_OK;
}

void engine_close(struct engine_links *links)
{
    if (links == NULL) {
        return;
    }
    char address[128];
    (void)snprintf(address, sizeof address, "ipc://%s", links->path);
    router_close(links->router, address, &links->lock);
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        engine_forget_pool(links, rank);
        engine_forget_backlog(&links->ranks[rank]);
        if (links->ranks[rank].pid_fd >= 0) {
            (void)close(links->ranks[rank].pid_fd);
        }
    }
    free(links->arena_memory);
    free(links->frame);
    free(links);
}

void *engine_socket(const struct engine_links *links)
{
    return links->router;
}

void engine_counters(const struct engine_links *links, struct engine_counters *out_counters)
{
    *out_counters = links->counters;
}

/* ---- sending
 * ------------------------------------------------------------------------------------------- */

static enum status send_frame(struct engine_links *links, const unsigned char *identity,
                              size_t identity_size, const unsigned char *frame, size_t size)
{
    if (zmq_send(links->router, identity, identity_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(links->router, frame, size, ZMQ_DONTWAIT) < 0) {
        return errno == EAGAIN ? STATUS_AGAIN : STATUS_CLOSED;
    }
    links->counters.sent++;
    return STATUS_OK;
}

/* Into links->frame; 0: too large. */
static size_t pack(struct engine_links *links, const Stateroom__Engine__ToEngine *message)
{
    const size_t size = stateroom__engine__to_engine__get_packed_size(message);
    return size > ENGINE_FRAME_BYTES_MAX
               ? 0
               : stateroom__engine__to_engine__pack(message, links->frame);
}

enum status engine_send_to(struct engine_links *links, const unsigned char *identity,
                           size_t identity_size, const Stateroom__Engine__ToEngine *message)
{
    const size_t size = pack(links, message);
    const enum status status = size == 0
                                   ? STATUS_TOO_LARGE
                                   : send_frame(links, identity, identity_size, links->frame, size);
    links->counters.dropped_full += status != STATUS_OK ? 1u : 0u;
    return status;
}

void engine_forget_backlog(struct attachment *a)
{
    free(a->backlog.bytes);
    memset(&a->backlog, 0, sizeof a->backlog);
}

/* Room for `more` bytes at the end; false: over the bound, or no memory. */
static bool backlog_grow(struct backlog *backlog, size_t more)
{
    const size_t used = backlog->to - backlog->from;
    if (more > ENGINE_BACKLOG_BYTES_MAX - used) {
        return false;
    }
    if (backlog->from > 0 && backlog->capacity - backlog->to < more) {
        memmove(backlog->bytes, backlog->bytes + backlog->from, used);
        backlog->from = 0;
        backlog->to = used;
    }
    if (backlog->capacity - backlog->to >= more) {
        return true;
    }
    const size_t wanted = 2u * (used + more);
    unsigned char *bytes = realloc(backlog->bytes, wanted);
    if (bytes == NULL) {
        return false;
    }
    backlog->bytes = bytes;
    backlog->capacity = wanted;
    return true;
}

static enum status keep_frame(struct engine_links *links, struct attachment *a, size_t size)
{
    const uint32_t length = (uint32_t)size;
    if (!backlog_grow(&a->backlog, sizeof length + size)) {
        engine_forget_backlog(a);
        links->counters.dropped_full++;
        a->gone = SM_LOST_DEAF;
        return STATUS_AGAIN;
    }
    memcpy(a->backlog.bytes + a->backlog.to, &length, sizeof length);
    memcpy(a->backlog.bytes + a->backlog.to + sizeof length, links->frame, size);
    a->backlog.to += sizeof length + size;
    links->counters.kept++;
    return STATUS_OK;
}

/* True: its engine has not taken all of it. */
static bool flush_rank(struct engine_links *links, struct attachment *a)
{
    struct backlog *backlog = &a->backlog;
    while (backlog->from < backlog->to) {
        uint32_t length = 0;
        memcpy(&length, backlog->bytes + backlog->from, sizeof length);
        const enum status status =
            send_frame(links, a->identity, a->identity_size,
                       backlog->bytes + backlog->from + sizeof length, length);
        if (status == STATUS_AGAIN) {
            return true;
        }
        links->counters.dropped_full += status != STATUS_OK ? 1u : 0u;
        backlog->from += sizeof length + length;
    }
    engine_forget_backlog(a);
    return false;
}

bool engine_flush(struct engine_links *links)
{
    bool left = false;
    for (uint32_t rank = 0; rank < links->options.ranks; rank++) {
        struct attachment *a = &links->ranks[rank];
        left = (a->backlog.bytes != NULL && flush_rank(links, a)) || left;
    }
    return left;
}

enum status engine_send_rank(struct engine_links *links, uint32_t rank,
                             const Stateroom__Engine__ToEngine *message)
{
    struct attachment *a = &links->ranks[rank < SM_RANKS_MAX ? rank : 0u];
    if (rank >= SM_RANKS_MAX || !a->attached || a->gone != 0) {
        return STATUS_CLOSED;
    }
    const size_t size = pack(links, message);
    if (size == 0) {
        return STATUS_TOO_LARGE;
    }
    if (a->backlog.bytes != NULL) {
        return keep_frame(links, a, size); /* nothing overtakes what waits */
    }
    const enum status status = send_frame(links, a->identity, a->identity_size, links->frame, size);
    links->counters.dropped_full += status == STATUS_CLOSED ? 1u : 0u;
    return status == STATUS_AGAIN ? keep_frame(links, a, size) : status;
}

void engine_say_goodbye(struct engine_links *links, const unsigned char *identity,
                        size_t identity_size, uint32_t http, const char *reason)
{
    Stateroom__Engine__ToEngine message;
    Stateroom__Engine__Goodbye goodbye;
    stateroom__engine__to_engine__init(&message);
    stateroom__engine__goodbye__init(&goodbye);
    goodbye.http = http;
    goodbye.reason = (char *)(uintptr_t)reason;
    message.body_case = STATEROOM__ENGINE__TO_ENGINE__BODY_GOODBYE;
    message.goodbye = &goodbye;
    (void)engine_send_to(links, identity, identity_size, &message);
}

void engine_send_goodbye(struct engine_links *links, uint32_t http, const char *reason)
{
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        const struct attachment *a = &links->ranks[rank];
        if (a->attached) {
            engine_say_goodbye(links, a->identity, a->identity_size, http, reason);
        }
    }
}

enum status engine_send_reply(struct engine_links *links, uint32_t rank, uint64_t request,
                              uint32_t refusal, uint32_t http, struct sm_text reason)
{
    Stateroom__Engine__ToEngine message;
    Stateroom__Engine__Reply reply;
    stateroom__engine__to_engine__init(&message);
    stateroom__engine__reply__init(&reply);
    reply.request = request;
    reply.refusal = refusal;
    reply.http = http;
    reply.reason.data = (uint8_t *)(uintptr_t)reason.bytes;
    reply.reason.len = reason.size;
    message.body_case = STATEROOM__ENGINE__TO_ENGINE__BODY_REPLY;
    message.reply = &reply;
    return engine_send_rank(links, rank, &message);
}

enum status engine_send_result(struct engine_links *links, const struct sm_effect *tell)
{
    Stateroom__Engine__ToEngine message;
    Stateroom__Engine__Result result;
    codec_arena_reset(&links->arena);
    stateroom__engine__to_engine__init(&message);
    stateroom__engine__result__init(&result);
    result.room = tell->room;
    result.generation = tell->generation;
    result.side = tell->side;
    result.outcome = tell->u.tell.outcome;
    result.pages_free = tell->u.tell.pages_free;
    result.request = tell->u.tell.request;
    TRY(codec_cause_fill(&tell->u.tell.cause, &links->arena, &result.cause));
    message.body_case = STATEROOM__ENGINE__TO_ENGINE__BODY_RESULT;
    message.result = &result;
    return engine_send_rank(links, tell->rank, &message);
}

enum status engine_send_pages_free(struct engine_links *links, const struct sm_effect *pages_free)
{
    Stateroom__Engine__ToEngine message;
    Stateroom__Engine__PagesFree freed;
    codec_arena_reset(&links->arena);
    stateroom__engine__to_engine__init(&message);
    stateroom__engine__pages_free__init(&freed);
    freed.room = pages_free->room;
    freed.generation = pages_free->generation;
    freed.side = pages_free->side;
    TRY(codec_runs_fill(&pages_free->u.pages, &links->arena, &freed.pages));
    freed.n_pages = pages_free->u.pages.count;
    message.body_case = STATEROOM__ENGINE__TO_ENGINE__BODY_PAGES_FREE;
    message.pages_free = &freed;
    return engine_send_rank(links, pages_free->rank, &message);
}

/* ---- receiving
 * ------------------------------------------------------------------------------------------ */

static Stateroom__Engine__ToNode *parse(const unsigned char *bytes, size_t size,
                                        struct codec_arena *arena)
{
    const struct codec_allocator allocator = codec_arena_allocator(arena);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    return stateroom__engine__to_node__unpack(&functions, size, bytes);
}

bool engine_frame_parses(const unsigned char *bytes, size_t size, struct codec_arena *arena)
{
    struct sm_in_command command;
    codec_arena_reset(arena);
    const Stateroom__Engine__ToNode *message = parse(bytes, size, arena);
    if (message == NULL || message->body_case == STATEROOM__ENGINE__TO_NODE__BODY__NOT_SET) {
        return false;
    }
    return message->body_case != STATEROOM__ENGINE__TO_NODE__BODY_COMMAND ||
           codec_command_read(message->command->command, arena, &command) == STATUS_OK;
}

static struct attachment *by_identity(struct engine_links *links, const unsigned char *identity,
                                      size_t size)
{
    for (uint32_t rank = 0; rank < links->options.ranks; rank++) {
        struct attachment *a = &links->ranks[rank];
        if (a->attached && a->identity_size == size && memcmp(a->identity, identity, size) == 0) {
            return a;
        }
    }
    return NULL;
}

static bool on_command(struct engine_links *links, const struct attachment *a,
                       const Stateroom__Engine__EngineCommand *wire, struct engine_event *out_event)
{
    memset(out_event, 0, sizeof *out_event);
    if (!sm_input_is_command(wire->kind) ||
        codec_command_read(wire->command, &links->arena, &out_event->command) != STATUS_OK) {
        links->counters.dropped_malformed++;
        return false;
    }
    out_event->event = ENGINE_COMMANDS;
    out_event->rank = (uint32_t)(a - links->ranks);
    out_event->kind = wire->kind;
    out_event->room = wire->room;
    out_event->command.rank = out_event->rank; /* an engine speaks for itself only */
    return true;
}

static bool on_frame(struct engine_links *links, const unsigned char *identity,
                     size_t identity_size, const Stateroom__Engine__ToNode *message,
                     uint64_t now_ns, struct engine_event *out_event)
{
    if (message->body_case == STATEROOM__ENGINE__TO_NODE__BODY_ATTACH) {
        return engine_on_attach(links, identity, identity_size, message->attach, now_ns, out_event);
    }
    struct attachment *a = by_identity(links, identity, identity_size);
    if (a == NULL) {
        engine_say_goodbye(links, identity, identity_size, 409, "not attached: attach first");
        return false;
    }
    a->last_heard_ns = now_ns;
    if (a->gone != 0) {
        return false; /* its loss is told next; what it still says is of no life */
    }
    if (message->body_case == STATEROOM__ENGINE__TO_NODE__BODY_COMMAND) {
        return on_command(links, a, message->command, out_event);
    }
    if (message->body_case == STATEROOM__ENGINE__TO_NODE__BODY_DETACH) {
        a->gone = SM_LOST_DETACHED;
    } else if (message->body_case == STATEROOM__ENGINE__TO_NODE__BODY_PING) {
        Stateroom__Engine__ToEngine answer;
        Stateroom__Engine__Pong pong;
        stateroom__engine__to_engine__init(&answer);
        stateroom__engine__pong__init(&pong);
        answer.body_case = STATEROOM__ENGINE__TO_ENGINE__BODY_PONG;
        answer.pong = &pong;
        (void)engine_send_rank(links, (uint32_t)(a - links->ranks), &answer);
    }
    return false;
}

static bool receive_one(struct engine_links *links, uint64_t now_ns, struct engine_event *out_event,
                        bool *out_given)
{
    struct router_identity from;
    zmq_msg_t frame;
    *out_given = false;
    codec_arena_reset(&links->arena);
    const enum router_got got = router_receive(links->router, &from, &frame);
    if (got == ROUTER_EMPTY) {
        return false;
    }
    links->counters.received++;
    const Stateroom__Engine__ToNode *message = NULL;
    if (got == ROUTER_FRAME) {
        message = parse(zmq_msg_data(&frame), zmq_msg_size(&frame), &links->arena);
        (void)zmq_msg_close(&frame);
    }
    if (message == NULL) {
        links->counters.dropped_malformed++;
        return true;
    }
    *out_given = on_frame(links, from.bytes, from.size, message, now_ns, out_event);
    return true;
}

static void check_processes(struct engine_links *links, uint64_t now_ns)
{
    links->next_check_ns = now_ns + CHECK_INTERVAL_NS;
    for (uint32_t rank = 0; rank < links->options.ranks; rank++) {
        struct attachment *a = &links->ranks[rank];
        if (!a->attached || a->gone != 0) {
            continue;
        }
        if (engine_process_ended(a)) {
            a->gone = SM_LOST_ENDED;
        } else if (now_ns - a->last_heard_ns > ENGINE_SILENCE_NS && a->pid_fd < 0 &&
                   a->pid != (uint64_t)getpid()) {
            a->gone = SM_LOST_SILENT;
        }
    }
}

static bool give_gone(struct engine_links *links, struct engine_event *out_event)
{
    for (uint32_t rank = 0; rank < links->options.ranks; rank++) {
        struct attachment *a = &links->ranks[rank];
        if (a->attached && a->gone != 0) {
            memset(out_event, 0, sizeof *out_event);
            out_event->event = ENGINE_IS_GONE;
            out_event->rank = rank;
            out_event->lost = a->gone;
            out_event->pid = a->pid;
            a->attached = false;
            a->gone = 0;
            engine_forget_backlog(a);
            if (a->shm_name[0] != '\0') {
                /* A killed engine cannot take its shared memory with it. */
                (void)shm_unlink(a->shm_name);
                a->shm_name[0] = '\0';
            }
            if (a->pid_fd >= 0) {
                (void)close(a->pid_fd);
                a->pid_fd = -1;
            }
            return true;
        }
    }
    return false;
}

bool engine_next(struct engine_links *links, uint64_t now_ns, struct engine_event *out_event)
{
    bool given = false;
    if (give_gone(links, out_event)) {
        return true;
    }
    while (receive_one(links, now_ns, out_event, &given)) {
        if (given) {
            return true;
        }
    }
    if (now_ns >= links->next_check_ns) {
        check_processes(links, now_ns);
    }
    return give_gone(links, out_event);
}

uint64_t engine_deadline(const struct engine_links *links)
{
    return links->next_check_ns;
}
