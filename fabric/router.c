/* SPDX-License-Identifier: Apache-2.0 */
#include "router.h"

#include <stdbool.h>
#include <string.h>

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
