/* SPDX-License-Identifier: Apache-2.0 */
/* What both links do with a ROUTER: bind it, and take the next message off it, whatever its shape.
 */
#ifndef FABRIC_ROUTER_H
#define FABRIC_ROUTER_H

#include "schemas/lock_file.h"
#include "schemas/status.h"

#include <stddef.h>
#include <zmq.h>

#define ROUTER_IDENTITY_BYTES_MAX 32u

struct router_identity {
    unsigned char bytes[ROUTER_IDENTITY_BYTES_MAX];
    size_t size;
};

enum router_got {
    ROUTER_EMPTY, /* nothing more now */
    ROUTER_ODD,   /* a message was taken that is not a sender and one frame */
    ROUTER_FRAME  /* *out_frame is the frame; the caller closes it */
};

/*
 * Binds. An ipc socket is held by a lock file beside it (PATH.lock), since ZMQ would take it away
 * from a node that runs. link and key are for the text of a failure ("engine link", "engines").
 */
enum status router_bind(void *router, const char *address, const char *link, const char *key,
                        struct lock_file *out_lock, struct status_detail *out_detail);
/* Closes, and removes an ipc socket that was ours. NULL: nothing. */
void router_close(void *router, const char *address, struct lock_file *lock);

/* Never blocks. */
enum router_got router_receive(void *router, struct router_identity *out_from,
                               zmq_msg_t *out_frame);

#endif
