/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting, the pool, and the commands. */
#include "client_private.h"

#include "schemas/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define EXPORT __attribute__((visibility("default")))

uint64_t client_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

enum stateroom_error client_fail(struct stateroom *s, enum stateroom_error error,
                                 const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(s->error, sizeof s->error, format, arguments);
    va_end(arguments);
    return error;
}

EXPORT const char *stateroom_error_text(const struct stateroom *s)
{
    return s->error;
}

/* ---- the pool
 * ------------------------------------------------------------------------------------------ */

static enum status lay_out(const struct stateroom_pool_options *o, struct pool_layout *out_layout,
                           struct status_detail *out_detail)
{
    const struct sm_geometry geometry = {
        o->geometry.page_tokens, o->geometry.layers,      o->geometry.kv_heads,
        o->geometry.item_bytes,  o->geometry.planes,      o->geometry.dtype,
        o->geometry.layer_first, o->geometry.layer_count, o->geometry.stages};
    if (o->pages == 0) {
        return status_fail(STATUS_INVALID, out_detail, 0, "a pool needs at least one page");
    }
    return pool_layout_make(&geometry, o->ranks, o->pages, o->aux_slots, o->aux_bytes, out_layout,
                            out_detail);
}

EXPORT uint64_t stateroom_pool_bytes_needed(const struct stateroom_pool_options *options,
                                            char *text, size_t text_size)
{
    struct status_detail detail = {"", 0};
    struct pool_layout layout;
    if (lay_out(options, &layout, &detail) == STATUS_OK) {
        return layout.bytes;
    }
    if (text != NULL && text_size > 0) {
        (void)snprintf(text, text_size, "%s", detail.text);
    }
    return 0;
}

static enum stateroom_error make_shared(struct stateroom *s)
{
    uint64_t random = 0;
    (void)getrandom(&random, sizeof random, 0);
    (void)snprintf(s->shm_name, sizeof s->shm_name, "/stateroom-%ld-%u-%08lx", (long)getpid(),
                   s->rank, (unsigned long)(random & 0xffffffffu));
    const int fd = shm_open(s->shm_name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) {
        return client_fail(s, STATEROOM_SYSTEM, "shared memory %s: %s", s->shm_name,
                           strerror(errno));
    }
    /* Reserved now: a full /dev/shm is an error here and not a SIGBUS in the middle of a transfer.
     */
    const int error = posix_fallocate(fd, 0, (off_t)s->layout.bytes);
    if (error != 0) {
        (void)close(fd);
        (void)shm_unlink(s->shm_name);
        s->shm_name[0] = '\0';
        return client_fail(
            s, STATEROOM_SYSTEM,
            "shared memory of %llu bytes: %s; make the pool smaller or /dev/shm larger",
            (unsigned long long)s->layout.bytes, strerror(error));
    }
    void *pool = mmap(NULL, (size_t)s->layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (pool == MAP_FAILED) {
        return client_fail(s, STATEROOM_NO_MEMORY, "shared memory of %llu bytes: %s",
                           (unsigned long long)s->layout.bytes, strerror(errno));
    }
    s->pool = pool;
    s->has_pool = true;
    return STATEROOM_OK;
}

static enum stateroom_error make_pool(struct stateroom *s, const struct stateroom_pool_options *o)
{
    struct status_detail detail;
    if (lay_out(o, &s->layout, &detail) != STATUS_OK) {
        return client_fail(s, STATEROOM_INVALID, "%s", detail.text);
    }
    s->aux_bytes = o->aux_bytes;
    if (o->memory == NULL) {
        return make_shared(s);
    }
    s->pool = o->memory;
    s->has_pool = true;
    return STATEROOM_OK;
}

EXPORT void *stateroom_pool(const struct stateroom *s)
{
    return s->pool;
}

EXPORT uint64_t stateroom_pool_bytes(const struct stateroom *s)
{
    return s->has_pool ? s->layout.bytes : 0;
}

EXPORT uint32_t stateroom_regions(const struct stateroom *s)
{
    return s->has_pool ? s->layout.regions : 0;
}

EXPORT uint64_t stateroom_page_bytes(const struct stateroom *s)
{
    return s->has_pool ? s->layout.page_bytes : 0;
}

EXPORT void *stateroom_page(const struct stateroom *s, uint32_t region, uint32_t page)
{
    if (!s->has_pool || region >= s->layout.regions || page >= s->layout.pages) {
        return NULL;
    }
    return s->pool + region * s->layout.region_bytes + page * s->layout.page_bytes;
}

EXPORT void *stateroom_aux(const struct stateroom *s, uint32_t slot)
{
    if (!s->has_pool || slot >= s->layout.aux_slots) {
        return NULL;
    }
    return s->pool + s->layout.aux_offset + slot * s->layout.aux_stride;
}

/* ---- connecting
 * ------------------------------------------------------------------------------------------ */

enum stateroom_error client_open_socket(struct stateroom *s)
{
    char address[160];
    const int zero = 0;
    const int queue = 100000;
    const int interval = 50;
    const int interval_max = 500;
    const int64_t frame = CLIENT_FRAME_BYTES_MAX;
    if (s->dealer != NULL) {
        (void)zmq_close(s->dealer);
    }
    s->dealer = zmq_socket(s->context, ZMQ_DEALER);
    if (s->dealer == NULL) {
        return client_fail(s, STATEROOM_SYSTEM, "zmq: %s", zmq_strerror(errno));
    }
    (void)zmq_setsockopt(s->dealer, ZMQ_LINGER, &zero, sizeof zero);
    (void)zmq_setsockopt(s->dealer, ZMQ_SNDHWM, &queue, sizeof queue);
    (void)zmq_setsockopt(s->dealer, ZMQ_RCVHWM, &queue, sizeof queue);
    (void)zmq_setsockopt(s->dealer, ZMQ_RECONNECT_IVL, &interval, sizeof interval);
    (void)zmq_setsockopt(s->dealer, ZMQ_RECONNECT_IVL_MAX, &interval_max, sizeof interval_max);
    (void)zmq_setsockopt(s->dealer, ZMQ_MAXMSGSIZE, &frame, sizeof frame);
    (void)snprintf(address, sizeof address, "ipc://%s", s->path);
    if (zmq_connect(s->dealer, address) != 0) {
        return client_fail(s, STATEROOM_UNREACHABLE, "%s: %s", address, zmq_strerror(errno));
    }
    return STATEROOM_OK;
}

void client_attach(struct stateroom *s)
{
    Stateroom__Engine__ToNode message;
    Stateroom__Engine__Attach attach;
    codec_arena_reset(&s->arena);
    stateroom__engine__to_node__init(&message);
    stateroom__engine__attach__init(&attach);
    attach.protocol = 1;
    attach.rank = s->rank;
    attach.engine = s->engine;
    attach.pid = (uint64_t)getpid();
    attach.shm_name = s->shm_name;
    attach.next_request = s->next_request;
    if (s->has_pool) {
        attach.address = s->shm_name[0] == '\0' ? (uint64_t)(uintptr_t)s->pool : 0;
        attach.pages = s->layout.pages;
        attach.aux_slots = s->layout.aux_slots;
        attach.aux_bytes = s->aux_bytes;
        attach.bytes = s->layout.bytes;
        if (codec_geometry_fill(&s->layout.geometry, &s->arena, &attach.geometry) != STATUS_OK) {
            return;
        }
    }
    message.body_case = STATEROOM__ENGINE__TO_NODE__BODY_ATTACH;
    message.attach = &attach;
    s->next_attach_ns = client_now_ns() + 500000000u;
    (void)client_send(s, &message);
}

static enum stateroom_error prepare(struct stateroom *s, const struct stateroom_options *o)
{
    if (o->path == NULL || strlen(o->path) > 100u || o->rank >= SM_RANKS_MAX) {
        return client_fail(
            s, STATEROOM_INVALID,
            "the socket's path is missing or longer than 100 bytes, or the rank over 63");
    }
    (void)snprintf(s->path, sizeof s->path, "%s", o->path);
    (void)snprintf(s->engine, sizeof s->engine, "%s", o->engine == NULL ? "" : o->engine);
    s->rank = o->rank;
    s->next_request = 1;
    s->context = zmq_ctx_new();
    s->pending = calloc(CLIENT_PENDING_MAX, sizeof *s->pending);
    s->told = calloc(CLIENT_TOLD_MAX, sizeof *s->told);
    s->arena_memory = malloc(CLIENT_ARENA_BYTES);
    s->frame = malloc(CLIENT_FRAME_BYTES_MAX);
    if (s->context == NULL || s->pending == NULL || s->told == NULL || s->arena_memory == NULL ||
        s->frame == NULL) {
        return client_fail(s, STATEROOM_NO_MEMORY, "no memory for a connection");
    }
    codec_arena_init(&s->arena, s->arena_memory, CLIENT_ARENA_BYTES);
    return o->pool == NULL ? STATEROOM_OK : make_pool(s, o->pool);
}

static enum stateroom_error wait_attached(struct stateroom *s, uint32_t timeout_ms)
{
    const uint64_t until = client_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct stateroom_event event;
    bool received = false;
    s->error[0] = '\0';
    while (!s->attached) {
        if (client_now_ns() >= until) {
            return s->error[0] != '\0'
                       ? STATEROOM_REFUSED
                       : client_fail(
                             s, STATEROOM_UNREACHABLE,
                             "no node answers at %s; is stateroomd running, and is this the "
                             "path of its key `engines`?",
                             s->path);
        }
        if (client_now_ns() >= s->next_attach_ns) {
            client_attach(s);
        }
        zmq_pollitem_t item = {s->dealer, 0, ZMQ_POLLIN, 0};
        (void)zmq_poll(&item, 1, 50);
        do {
            (void)client_receive(s, &event, &received);
        } while (received && !s->attached && s->error[0] == '\0');
        if (s->error[0] != '\0' && strstr(s->error, "(503)") == NULL) {
            return STATEROOM_REFUSED;
        }
    }
    s->error[0] = '\0';
    return STATEROOM_OK;
}

EXPORT enum stateroom_error stateroom_connect(const struct stateroom_options *options,
                                              struct stateroom **out_handle, char *text,
                                              size_t text_size)
{
    *out_handle = NULL;
    struct stateroom *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return STATEROOM_NO_MEMORY;
    }
    enum stateroom_error error = prepare(s, options);
    if (error == STATEROOM_OK) {
        error = client_open_socket(s);
    }
    if (error == STATEROOM_OK) {
        error = wait_attached(s, options->timeout_ms == 0 ? 10000u : options->timeout_ms);
    }
    if (error != STATEROOM_OK) {
        if (text != NULL && text_size > 0) {
            (void)snprintf(text, text_size, "%s", s->error);
        }
        stateroom_close(s);
        return error;
    }
    *out_handle = s;
    return STATEROOM_OK;
}

EXPORT void stateroom_close(struct stateroom *s)
{
    if (s == NULL) {
        return;
    }
    if (s->attached) {
        Stateroom__Engine__ToNode message;
        Stateroom__Engine__Detach detach;
        const int linger = 500;
        stateroom__engine__to_node__init(&message);
        stateroom__engine__detach__init(&detach);
        message.body_case = STATEROOM__ENGINE__TO_NODE__BODY_DETACH;
        message.detach = &detach;
        (void)zmq_setsockopt(s->dealer, ZMQ_LINGER, &linger, sizeof linger);
        (void)client_send(s, &message);
    }
    if (s->dealer != NULL) {
        (void)zmq_close(s->dealer);
    }
    if (s->context != NULL) {
        (void)zmq_ctx_term(s->context);
    }
    if (s->shm_name[0] != '\0') {
        if (s->pool != NULL) {
            (void)munmap(s->pool, (size_t)s->layout.bytes);
        }
        (void)shm_unlink(s->shm_name);
    }
    free(s->pending);
    free(s->told);
    free(s->arena_memory);
    free(s->frame);
    free(s);
}

EXPORT int stateroom_fd(const struct stateroom *s)
{
    int fd = -1;
    size_t size = sizeof fd;
    (void)zmq_getsockopt(s->dealer, ZMQ_FD, &fd, &size);
    return fd;
}

enum stateroom_error client_send(struct stateroom *s, const Stateroom__Engine__ToNode *message)
{
    const size_t size = stateroom__engine__to_node__get_packed_size(message);
    if (size > CLIENT_FRAME_BYTES_MAX) {
        return client_fail(s, STATEROOM_INVALID,
                           "a command of %zu bytes: the page list is too long", size);
    }
    (void)stateroom__engine__to_node__pack(message, s->frame);
    if (zmq_send(s->dealer, s->frame, size, ZMQ_DONTWAIT) < 0) {
        return client_fail(s, STATEROOM_FULL, "the node does not take commands: %s",
                           zmq_strerror(errno));
    }
    return STATEROOM_OK;
}

/* ---- commands
 * -------------------------------------------------------------------------------------------- */

static enum stateroom_error send_command(struct stateroom *s, uint32_t kind, uint64_t room,
                                         const struct sm_in_command *in)
{
    Stateroom__Engine__ToNode message;
    Stateroom__Engine__EngineCommand wire;
    codec_arena_reset(&s->arena);
    stateroom__engine__to_node__init(&message);
    stateroom__engine__engine_command__init(&wire);
    wire.kind = kind;
    wire.room = room;
    if (codec_command_fill(in, &s->arena, &wire.command) != STATUS_OK) {
        return client_fail(s, STATEROOM_INVALID, "the command is too large");
    }
    message.body_case = STATEROOM__ENGINE__TO_NODE__BODY_COMMAND;
    message.command = &wire;
    return client_send(s, &message);
}

static enum stateroom_error command(struct stateroom *s, uint32_t kind, uint64_t room,
                                    struct sm_in_command *in, uint64_t *out_request)
{
    struct pending *slot = &s->pending[s->next_request % CLIENT_PENDING_MAX];
    if (slot->state == PENDING_WAITS) {
        return client_fail(s, STATEROOM_FULL, "%u commands have no answer yet", CLIENT_PENDING_MAX);
    }
    in->request = s->next_request;
    in->rank = s->rank;
    const enum stateroom_error error = send_command(s, kind, room, in);
    if (error != STATEROOM_OK) {
        return error;
    }
    *slot = (struct pending){PENDING_WAITS, s->next_request, room, in->generation, kind, in->side};
    s->pending_count++;
    if (out_request != NULL) {
        *out_request = s->next_request;
    }
    s->next_request++;
    return STATEROOM_OK;
}

static struct sm_text text_of(const char *text)
{
    const struct sm_text result = {text == NULL ? "" : text,
                                   text == NULL ? 0 : (uint32_t)strlen(text)};
    return result;
}

static struct sm_in_command blank(uint32_t side)
{
    struct sm_in_command in;
    memset(&in, 0, sizeof in);
    in.side = side;
    in.aux_slot = SM_AUX_NONE;
    in.peer = text_of(NULL);
    in.cause.reason = text_of(NULL);
    return in;
}

/* struct stateroom_run is laid out as struct sm_run; asserted here. */
_Static_assert(sizeof(struct stateroom_run) == sizeof(struct sm_run), "runs are alike");

static struct sm_runs runs_of(const struct stateroom_run *runs, uint32_t count)
{
    const struct sm_runs result = {(const struct sm_run *)(const void *)runs, count};
    return result;
}

EXPORT enum stateroom_error stateroom_open(struct stateroom *s, enum stateroom_side side,
                                           uint64_t room, const struct stateroom_open_options *o,
                                           uint64_t *out_request)
{
    struct sm_in_command in = blank(side);
    if (o != NULL) {
        in.peer = text_of(o->from);
        in.pages = runs_of(o->runs, o->run_count);
        in.prefix_pages = o->prefix_pages;
        in.aux_slot = o->aux_slot;
        in.destinations = o->destinations;
        in.deadline_ns = o->deadline_ms * 1000000u;
    }
    return command(s, SM_IN_OPEN, room, &in, out_request);
}

EXPORT enum stateroom_error stateroom_admit(struct stateroom *s, uint64_t room,
                                            uint64_t *out_request)
{
    struct sm_in_command in = blank(SM_PREFILL);
    return command(s, SM_IN_ADMIT, room, &in, out_request);
}

/* A status that a client can be answered a failure with, and a reason that can be shown. */
static bool cause_sound(struct stateroom *s, uint16_t http, const char *reason, char *out_text,
                        size_t size)
{
    if (http != 0 && (http < 400u || http > 599u)) {
        (void)client_fail(s, STATEROOM_INVALID,
                          "status %u says no failure: give 400 to 599, or 0 for the default", http);
        return false;
    }
    (void)text_clean(reason == NULL ? "" : reason, reason == NULL ? 0 : strlen(reason), out_text,
                     size);
    return true;
}

EXPORT enum stateroom_error stateroom_reject(struct stateroom *s, enum stateroom_side side,
                                             uint64_t room, uint16_t http, const char *reason,
                                             uint64_t *out_request)
{
    struct sm_in_command in = blank(side);
    char text[SM_REASON_BYTES_MAX + 1u];
    if (!cause_sound(s, http, reason, text, sizeof text)) {
        return STATEROOM_INVALID;
    }
    in.cause.http = http;
    in.cause.reason = text_of(text);
    in.cause.origin = SM_ORIGIN_ENGINE;
    in.cause.typed = true;
    return command(s, SM_IN_REJECT, room, &in, out_request);
}

EXPORT enum stateroom_error stateroom_send(struct stateroom *s, uint64_t room,
                                           const struct stateroom_run *runs, uint32_t run_count,
                                           bool last, uint32_t aux_slot, uint64_t *out_request)
{
    struct sm_in_command in = blank(SM_PREFILL);
    in.pages = runs_of(runs, run_count);
    in.last = last;
    in.aux_slot = aux_slot;
    return command(s, SM_IN_SEND, room, &in, out_request);
}

EXPORT enum stateroom_error stateroom_abort(struct stateroom *s, enum stateroom_side side,
                                            uint64_t room, enum stateroom_by by, uint16_t http,
                                            const char *reason, uint64_t *out_request)
{
    struct sm_in_command in = blank(side);
    char text[SM_REASON_BYTES_MAX + 1u];
    if (!cause_sound(s, http, reason, text, sizeof text)) {
        return STATEROOM_INVALID;
    }
    in.cause.http = http;
    in.cause.origin = (uint8_t)by;
    in.cause.reason = text_of(text);
    return command(s, SM_IN_ABORT, room, &in, out_request);
}

EXPORT enum stateroom_error stateroom_release(struct stateroom *s, enum stateroom_side side,
                                              uint64_t room, uint64_t generation,
                                              uint64_t *out_request)
{
    struct sm_in_command in = blank(side);
    in.generation = generation;
    return command(s, SM_IN_RELEASE, room, &in, out_request);
}

bool client_release_again(struct stateroom *s, const struct pending *pending)
{
    struct sm_in_command in = blank(pending->side);
    in.generation = pending->generation;
    in.request = pending->request;
    in.rank = s->rank;
    return send_command(s, SM_IN_RELEASE, pending->room, &in) == STATEROOM_OK;
}

/* Request 0: not answered. */
static void say_unasked(struct stateroom *s, uint32_t kind, uint64_t room, uint64_t generation,
                        uint32_t side)
{
    struct sm_in_command in = blank(side);
    in.generation = generation;
    in.rank = s->rank;
    (void)send_command(s, kind, room, &in);
}

void client_confirm(struct stateroom *s, uint64_t room, uint64_t generation, uint32_t side)
{
    say_unasked(s, SM_IN_DELIVERED, room, generation, side);
}

void client_release_unasked(struct stateroom *s, uint64_t room, uint64_t generation, uint32_t side)
{
    say_unasked(s, SM_IN_RELEASE, room, generation, side);
}
