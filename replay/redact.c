/* SPDX-License-Identifier: Apache-2.0 */
#include "redact.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES ((size_t)1 << 20)
#define NAMES_MAX 1024u

struct name {
    char bytes[SM_NAME_BYTES_MAX];
    uint32_t size;
};

struct redact {
    struct codec_arena texts;
    struct name names[NAMES_MAX]; /* by the number that stands for each */
    uint32_t name_count;
};

struct redact *redact_open(void)
{
    struct redact *redact = calloc(1, sizeof *redact);
    void *memory = malloc(TEXT_BYTES);
    if (redact == NULL || memory == NULL) {
        free(redact);
        free(memory);
        return NULL;
    }
    codec_arena_init(&redact->texts, memory, TEXT_BYTES);
    return redact;
}

void redact_close(struct redact *redact)
{
    if (redact != NULL) {
        free(redact->texts.memory);
        free(redact);
    }
}

/* ---- names
 * --------------------------------------------------------------------------------------------- */

static uint32_t number_of(struct redact *redact, struct sm_text name)
{
    for (uint32_t i = 0; i < redact->name_count; i++) {
        if (redact->names[i].size == name.size &&
            memcmp(redact->names[i].bytes, name.bytes, name.size) == 0) {
            return i;
        }
    }
    if (redact->name_count < NAMES_MAX) {
        struct name *fresh = &redact->names[redact->name_count];
        memcpy(fresh->bytes, name.bytes, name.size);
        fresh->size = name.size;
        redact->name_count++;
    }
    return redact->name_count - 1u;
}

/* "n", and the number in as many of the last characters as there are. */
static void write_name(uint32_t number, uint32_t size, char *out)
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    memset(out, 'n', size);
    for (uint32_t i = size; i > 0 && (number > 0 || i == size); i--) {
        out[i - 1u] = digits[number % 62u];
        number /= 62u;
    }
}

void redact_name(struct redact *redact, struct sm_text name, char *out)
{
    const uint32_t size = name.size < SM_NAME_BYTES_MAX ? name.size : SM_NAME_BYTES_MAX;
    const struct sm_text cut = {name.bytes, size};
    if (size > 0) {
        write_name(number_of(redact, cut), size, out);
    }
    out[size] = '\0';
}

/* ---- texts
 * --------------------------------------------------------------------------------------------- */

static bool take_name(struct redact *redact, struct sm_text *name)
{
    char *out = name->size > 0 ? codec_arena_take(&redact->texts, SM_NAME_BYTES_MAX + 1u) : NULL;
    if (name->size == 0) {
        return true;
    }
    if (out == NULL || name->size > SM_NAME_BYTES_MAX) {
        return false;
    }
    redact_name(redact, *name, out);
    name->bytes = out;
    return true;
}

static bool take_reason(struct redact *redact, struct sm_text *reason)
{
    char *out = reason->size > 0 ? codec_arena_take(&redact->texts, reason->size) : NULL;
    if (reason->size == 0) {
        return true;
    }
    if (out == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < reason->size; i++) {
        const unsigned char c = (unsigned char)reason->bytes[i];
        const bool letter = (c | 0x20u) >= 'a' && (c | 0x20u) <= 'z';
        out[i] = (char)(letter || c >= 0x80u ? 'x' : (c >= '0' && c <= '9' ? '9' : c));
    }
    reason->bytes = out;
    return true;
}

static bool take_start(struct redact *redact, struct sm_in_node_started *started)
{
    struct sm_text *names =
        codec_arena_take(&redact->texts, (started->peer_count + 1u) * sizeof *names);
    bool well = names != NULL && take_name(redact, &started->name);
    for (uint32_t i = 0; i < started->peer_count && well; i++) {
        names[i] = started->peer_names[i];
        well = take_name(redact, &names[i]);
    }
    started->peer_names = names;
    return well;
}

bool redact_entry(struct redact *redact, struct codec_entry *entry)
{
    struct sm_input *input = &entry->input;
    codec_arena_reset(&redact->texts);
    entry->program = (struct sm_text){"redacted", 8};
    if (sm_input_is_command(input->kind)) {
        return take_name(redact, &input->u.command.peer) &&
               take_reason(redact, &input->u.command.cause.reason);
    }
    if (sm_input_is_message(input->kind)) {
        return take_name(redact, &input->u.message.peer) &&
               take_reason(redact, &input->u.message.message.cause.reason);
    }
    switch (input->kind) {
    case SM_IN_NODE_STARTED:
        return take_start(redact, &input->u.node_started);
    case SM_IN_PEER_UP:
        return take_name(redact, &input->u.peer_up.name);
    case SM_IN_PEER_DOWN:
    case SM_IN_PEER_FENCED:
        return take_name(redact, &input->u.peer.name);
    case SM_IN_WRITE_DONE:
        return take_reason(redact, &input->u.write_done.text);
    default:
        return true;
    }
}

bool redact_item(struct redact *redact, struct sm_item *item)
{
    const bool names = item->kind == SM_ITEM_NODE || item->kind == SM_ITEM_PEER;
    bool well = true;
    codec_arena_reset(&redact->texts);
    for (uint32_t i = 0; i < item->text_count && well; i++) {
        well = names ? take_name(redact, &item->texts[i]) : take_reason(redact, &item->texts[i]);
    }
    return well;
}
