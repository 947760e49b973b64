/* SPDX-License-Identifier: Apache-2.0 */
/* What both links do with a ROUTER: take the next message off it, whatever its shape. */
#ifndef FABRIC_ROUTER_H
#define FABRIC_ROUTER_H

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

/* Never blocks. */
enum router_got router_receive(void *router, struct router_identity *out_from,
                               zmq_msg_t *out_frame);

#endif
