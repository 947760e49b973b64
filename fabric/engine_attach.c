/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that come and their pools. */
#include "engine_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- attaching
 * ------------------------------------------------------------------------------------------ */

/* "/stateroom-" and a name: nothing else on this host can be mapped by way of us. */
static bool shm_name_sound(const char *name)
{
    static const char prefix[] = "/stateroom-";
    return strncmp(name, prefix, sizeof prefix - 1u) == 0 && strlen(name) < 128u &&
           strchr(name + 1, '/') == NULL;
}

/*
 * A pool in the process that the node is embedded in. What the message names is compared with what
 * that process has registered itself: nothing from a socket is ever used as an address.
 */
static bool find_memory(const struct engine_links *links, const Stateroom__Engine__Attach *attach,
                        struct attachment *a, char *text, size_t text_size)
{
    const struct engine_memory *memory =
        links->options.memory == NULL ? NULL : &links->options.memory[attach->rank];
    if (memory == NULL || memory->at == NULL ||
        attach->address != (uint64_t)(uintptr_t)memory->at) {
        (void)snprintf(text, text_size,
                       "rank %u brings a pool by address, but the process of the node has "
                       "registered %s; a pool by address needs the node in the same process",
                       attach->rank, memory == NULL || memory->at == NULL ? "none" : "another");
        return false;
    }
    if (memory->bytes < a->layout.bytes) {
        (void)snprintf(text, text_size,
                       "the memory registered for rank %u has %llu bytes, its geometry and %u "
                       "pages need %llu",
                       attach->rank, (unsigned long long)memory->bytes, a->layout.pages,
                       (unsigned long long)a->layout.bytes);
        return false;
    }
    a->pool = memory->at;
    a->pool_bytes = memory->bytes;
    return true;
}

static bool map_pool(const struct engine_links *links, const Stateroom__Engine__Attach *attach,
                     struct attachment *a, char *text, size_t text_size)
{
    struct stat info;
    if (attach->shm_name[0] == '\0') {
        return find_memory(links, attach, a, text, text_size);
    }
    if (!shm_name_sound(attach->shm_name)) {
        (void)snprintf(text, text_size, "the pool's name must begin with /stateroom-");
        return false;
    }
    const int fd = shm_open(attach->shm_name, O_RDWR, 0);
    if (fd < 0 || fstat(fd, &info) != 0) {
        (void)snprintf(text, text_size, "shared memory %s: %s", attach->shm_name, strerror(errno));
        if (fd >= 0) {
            (void)close(fd);
        }
        return false;
    }
    if ((uint64_t)info.st_size < a->layout.bytes) {
        (void)snprintf(text, text_size,
                       "shared memory %s has %lld bytes, its geometry and %u pages need %llu",
                       attach->shm_name, (long long)info.st_size, a->layout.pages,
                       (unsigned long long)a->layout.bytes);
        (void)close(fd);
        return false;
    }
    a->pool_bytes = a->layout.bytes;
    a->pool = mmap(NULL, (size_t)a->pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int error = errno;
    (void)close(fd);
    if (a->pool == MAP_FAILED) {
        a->pool = NULL;
        (void)snprintf(text, text_size, "shared memory %s: %s", attach->shm_name, strerror(error));
        return false;
    }
    a->mapped = true;
    (void)snprintf(a->shm_name, sizeof a->shm_name, "%s", attach->shm_name);
    return true;
}

bool engine_process_ended(const struct attachment *a)
{
    struct pollfd ended = {a->pid_fd, POLLIN, 0};
    return a->pid_fd >= 0 && poll(&ended, 1, 0) > 0;
}

static bool check_attach(struct engine_links *links, const Stateroom__Engine__Attach *attach,
                         char *text, size_t text_size, uint32_t *out_http)
{
    *out_http = 400;
    if (attach->protocol != 1u) {
        (void)snprintf(text, text_size, "engine protocol %u, the node speaks 1", attach->protocol);
        return false;
    }
    if (attach->rank >= links->options.ranks) {
        (void)snprintf(text, text_size, "rank %u: the node has %u ranks (ranks)", attach->rank,
                       links->options.ranks);
        return false;
    }
    if (attach->pid == (uint64_t)getpid() && links->options.memory == NULL) {
        (void)snprintf(text, text_size, "pid %llu is the node's own",
                       (unsigned long long)attach->pid);
        return false;
    }
    struct attachment *a = &links->ranks[attach->rank];
    if (a->attached && a->gone == 0 && engine_process_ended(a)) {
        a->gone = SM_LOST_ENDED;
    }
    if (a->attached && a->gone == 0 && a->pid != attach->pid) {
        (void)snprintf(text, text_size, "rank %u is attached already by process %llu", attach->rank,
                       (unsigned long long)a->pid);
        *out_http = 409;
        return false;
    }
    if ((a->attached && a->gone != 0) || (!a->attached && a->pool != NULL)) {
        (void)snprintf(text, text_size, "the pool of the engine before is still being let go");
        *out_http = 503; /* try again */
        return false;
    }
    return true;
}

void engine_accept(struct engine_links *links, uint32_t rank)
{
    Stateroom__Engine__ToEngine message;
    Stateroom__Engine__Attached attached;
    stateroom__engine__to_engine__init(&message);
    stateroom__engine__attached__init(&attached);
    attached.node_id = links->options.node_id;
    attached.epoch = links->options.epoch;
    attached.node_name = (char *)(uintptr_t)links->options.node_name;
    attached.ranks = links->options.ranks;
    attached.next_request = links->ranks[rank].next_request;
    message.body_case = STATEROOM__ENGINE__TO_ENGINE__BODY_ATTACHED;
    message.attached = &attached;
    links->ranks[rank].accepted = true;
    (void)engine_send_rank(links, rank, &message);
}

void engine_refuse(struct engine_links *links, uint32_t rank, uint32_t http, const char *reason)
{
    struct attachment *a = &links->ranks[rank];
    if (a->attached) {
        links->counters.refused_attaches++;
        engine_say_goodbye(links, a->identity, a->identity_size, http, reason);
        a->gone = SM_LOST_REFUSED;
    }
}

static int watch_process(uint64_t pid)
{
    return pid == (uint64_t)getpid() ? -1 : (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

/*
 * The same engine again (its node was away, or its connection): it must bring the memory that is
 * registered already, since writes may still run on it. The second mapping is dropped.
 */
static bool keep_pool(const struct attachment *a, struct attachment *fresh, char *text,
                      size_t text_size)
{
    const bool same =
        fresh->mapped == a->mapped && strcmp(fresh->shm_name, a->shm_name) == 0 &&
        (fresh->mapped || fresh->pool == a->pool) &&
        memcmp(&fresh->layout.geometry, &a->layout.geometry, sizeof a->layout.geometry) == 0 &&
        fresh->layout.pages == a->layout.pages && fresh->layout.aux_slots == a->layout.aux_slots &&
        fresh->layout.aux_stride == a->layout.aux_stride;
    if (fresh->mapped) {
        (void)munmap(fresh->pool, (size_t)fresh->pool_bytes);
    }
    if (!same) {
        (void)snprintf(
            text, text_size,
            "process %llu is attached with the pool %s of %llu bytes: it must close that "
            "before it attaches with another",
            (unsigned long long)a->pid, a->mapped ? a->shm_name : "in its own memory",
            (unsigned long long)a->layout.bytes);
        return false;
    }
    fresh->pool = a->pool;
    fresh->pool_bytes = a->pool_bytes;
    return true;
}

bool engine_on_attach(struct engine_links *links, const unsigned char *identity,
                      size_t identity_size, const Stateroom__Engine__Attach *attach,
                      uint64_t now_ns, struct engine_event *out_event)
{
    char text[256] = "";
    uint32_t http = 400;
    struct status_detail detail = {"", 0};
    struct attachment fresh;
    memset(&fresh, 0, sizeof fresh);
    bool well = check_attach(links, attach, text, sizeof text, &http);
    const struct sm_geometry geometry = codec_geometry_read(attach->geometry);
    if (well && attach->pages > 0) {
        well = pool_layout_make(&geometry, links->options.ranks, attach->pages, attach->aux_slots,
                                attach->aux_bytes, &fresh.layout, &detail) == STATUS_OK;
        (void)snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, detail.text);
        well = well && map_pool(links, attach, &fresh, text, sizeof text);
    }
    struct attachment *a = well ? &links->ranks[attach->rank] : NULL;
    const bool again = well && a->attached && a->identity_size == identity_size &&
                       memcmp(a->identity, identity, identity_size) == 0;
    if (well && a->pool != NULL) {
        well = keep_pool(a, &fresh, text, sizeof text);
        http = 409;
    }
    if (!well) {
        links->counters.refused_attaches++;
        engine_say_goodbye(links, identity, identity_size, http, text);
        return false;
    }
    if (again) {
        /* It asked twice before it got an answer. */
        if (a->accepted) {
            engine_accept(links, attach->rank);
        }
        return false;
    }
    if (a->pid_fd >= 0) {
        (void)close(a->pid_fd);
    }
    engine_forget_backlog(a);
    *a = fresh;
    a->next_request = attach->next_request;
    a->attached = true;
    memcpy(a->identity, identity, identity_size);
    a->identity_size = identity_size;
    a->pid = attach->pid;
    a->pid_fd = watch_process(attach->pid);
    a->last_heard_ns = now_ns;
    (void)snprintf(a->engine, sizeof a->engine, "%s", attach->engine);
    memset(out_event, 0, sizeof *out_event);
    out_event->event = ENGINE_HAS_ATTACHED;
    out_event->rank = attach->rank;
    out_event->pool = a->pool;
    out_event->layout = &a->layout;
    out_event->pid = a->pid;
    out_event->engine = a->engine;
    return true;
}

void engine_forget_pool(struct engine_links *links, uint32_t rank)
{
    struct attachment *a = &links->ranks[rank];
    if (a->mapped) {
        (void)munmap(a->pool, (size_t)a->pool_bytes);
        a->mapped = false;
    }
    if (!a->attached) {
        a->pool = NULL;
    }
}
