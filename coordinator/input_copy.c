/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs on their way to the machine: copied with what they point to, so that the sender may go on.
 */
#include "node_private.h"

#include <string.h>

struct parts {
    struct sm_text *texts[2];
    struct sm_runs *runs;
};

static struct parts parts_of(struct sm_input *input)
{
    struct parts parts = {{NULL, NULL}, NULL};
    switch (input->kind) {
    case SM_IN_PEER_UP:
        parts.texts[0] = &input->u.peer_up.name;
        break;
    case SM_IN_PEER_DOWN:
    case SM_IN_PEER_FENCED:
        parts.texts[0] = &input->u.peer.name;
        break;
    case SM_IN_WRITE_DONE:
        parts.texts[0] = &input->u.write_done.text;
        break;
    case SM_IN_PEER_RECOVERED:
    case SM_IN_PREPARE:
    case SM_IN_PREPARED:
    case SM_IN_STATUS:
    case SM_IN_ACK:
    case SM_IN_PEER_ABORT:
    case SM_IN_DRAINED:
        parts.texts[0] = &input->u.message.peer;
        parts.texts[1] = &input->u.message.message.cause.reason;
        parts.runs = &input->u.message.message.pages;
        break;
    default:
        if (sm_input_is_command(input->kind)) {
            parts.texts[0] = &input->u.command.peer;
            parts.texts[1] = &input->u.command.cause.reason;
            parts.runs = &input->u.command.pages;
        }
        break;
    }
    return parts;
}

bool input_send(struct ring *ring, const struct sm_input *input)
{
    struct sm_input copy = *input;
    const struct parts need = parts_of(&copy);
    size_t size = sizeof copy;
    for (size_t i = 0; i < 2; i++) {
        size += need.texts[i] == NULL ? 0 : need.texts[i]->size;
    }
    size += need.runs == NULL ? 0 : need.runs->count * sizeof(struct sm_run);
    struct sm_input *sent = ring_begin(ring, size);
    if (sent == NULL) {
        return false;
    }
    *sent = copy;
    const struct parts parts = parts_of(sent);
    unsigned char *at = (unsigned char *)(sent + 1);
    /* Runs first: they want alignment, which the input's size has. */
    if (parts.runs != NULL && parts.runs->count > 0) {
        const size_t bytes = parts.runs->count * sizeof(struct sm_run);
        memcpy(at, parts.runs->at, bytes);
        parts.runs->at = (const struct sm_run *)(const void *)at;
        at += bytes;
    }
    for (size_t i = 0; i < 2; i++) {
        if (parts.texts[i] != NULL && parts.texts[i]->size > 0) {
            memcpy(at, parts.texts[i]->bytes, parts.texts[i]->size);
            parts.texts[i]->bytes = (const char *)at;
            at += parts.texts[i]->size;
        } else if (parts.texts[i] != NULL) {
            parts.texts[i]->bytes = "";
        }
    }
    ring_end(ring);
    return true;
}
