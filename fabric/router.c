/* SPDX-License-Identifier: Apache-2.0 */
#include "router.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The path of an ipc address; NULL for another transport or an abstract name. */
static const char *ipc_path(const char *address)
{
    const bool ipc = strncmp(address, "ipc://", 6) == 0;
    return ipc && address[6] != '@' && address[6] != '*' && address[6] != '\0' ? address + 6 : NULL;
}

enum status router_bind(void *router, const char *address, const char *link, const char *key,
                        struct lock_file *out_lock, struct status_detail *out_detail)
{
    char lock_path[512];
    const char *path = ipc_path(address);
    out_lock->fd = -1;
    if (path != NULL) {
        (void)snprintf(lock_path, sizeof lock_path, "%s.lock", path);
        const enum status status = lock_file_take(lock_path, out_lock);
        if (status == STATUS_AGAIN) {
            return status_fail(STATUS_FABRIC_BIND, out_detail, 0,
                               "%s: process %s has %s; stop that process or name another path (%s)",
                               link, out_lock->holder, path, key);
        }
        if (status != STATUS_OK) {
            return status_fail(STATUS_FABRIC_BIND, out_detail, out_lock->error,
                               "%s: cannot listen on %s: %s: %s; check `%s`", link, address,
                               lock_path, strerror(out_lock->error), key);
        }
    }
    if (zmq_bind(router, address) != 0) {
        const int error = errno;
        lock_file_give(out_lock);
        return status_fail(
            STATUS_FABRIC_BIND, out_detail, error, "%s: cannot listen on %s: %s; %s `%s`", link,
            address, zmq_strerror(error),
            error == EADDRINUSE ? "another process has it: stop that one or change" : "check", key);
    }
    return STATUS_OK;
}

void router_close(void *router, const char *address, struct lock_file *lock)
{
    const char *path = ipc_path(address);
    if (router != NULL) {
        (void)zmq_close(router);
    }
    if (path != NULL && lock->fd >= 0) {
        (void)unlink(path);
    }
    lock_file_give(lock);
}

enum router_got router_receive(void *router, struct router_identity *out_from, zmq_msg_t *out_frame)
{
    zmq_msg_t part;
    int more = 1;
    int parts = 0;
    bool well = true;
    while (more != 0) {
        size_t size = sizeof more;
        (void)zmq_msg_init(&part);
        if (zmq_msg_recv(&part, router, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&part);
            break;
        }
        parts++;
        if (parts == 1) {
            out_from->size = zmq_msg_size(&part);
            well = out_from->size <= sizeof out_from->bytes;
            memcpy(out_from->bytes, zmq_msg_data(&part), well ? out_from->size : 0);
        } else if (parts == 2) {
            (void)zmq_msg_init(out_frame);
            (void)zmq_msg_move(out_frame, &part);
        }
        (void)zmq_getsockopt(router, ZMQ_RCVMORE, &more, &size);
        (void)zmq_msg_close(&part);
    }
    if (parts == 0) {
        return ROUTER_EMPTY;
    }
    if (well && parts == 2 && more == 0) {
        return ROUTER_FRAME;
    }
    if (parts >= 2) {
        (void)zmq_msg_close(out_frame);
    }
    return ROUTER_ODD;
}
