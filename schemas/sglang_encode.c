/* SPDX-License-Identifier: Apache-2.0 */
/* A message to frames, through one writer that stops at the end of the buffer. */
#include "schemas/sglang.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct writer {
    unsigned char *buffer;
    size_t size;
    size_t used;
    struct sglang_frame *frames;
    size_t count;
    bool full;
};

static void put(struct writer *w, const void *bytes, size_t size)
{
    if (w->full || size > w->size - w->used || w->count == SGLANG_FRAMES_MAX) {
        w->full = true;
        return;
    }
    w->frames[w->count++] = (struct sglang_frame){w->buffer + w->used, size};
    if (size > 0) {
        memcpy(w->buffer + w->used, bytes, size);
    }
    w->used += size;
}

static void put_tag(struct writer *w, const char *tag)
{
    put(w, tag, strlen(tag));
}

static void put_number(struct writer *w, uint64_t number)
{
    char text[24];
    put(w, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, number));
}

static void put_text(struct writer *w, const struct sglang_text *text)
{
    put(w, text->bytes, text->size);
}

static void put_list(struct writer *w, const struct sglang_list *list)
{
    put(w, list->bytes, (size_t)list->count * list->width);
}

static void put_lists(struct writer *w, const struct sglang_lists *lists)
{
    put(w, lists->bytes, lists->size);
}

static void put_origin(struct writer *w, const struct sglang_origin *origin, bool session)
{
    put_text(w, &origin->ip);
    put_number(w, origin->port);
    if (session) {
        put_text(w, &origin->session);
    }
}

static void put_staging(struct writer *w, const struct sglang_registration *g)
{
    unsigned char base[8];
    for (uint32_t i = 0; i < 8u; i++) {
        base[i] = (unsigned char)(g->staging_base >> (8u * i));
    }
    put(w, base, sizeof base);
    put_number(w, g->staging_bytes);
}

static void put_registration(struct writer *w, const struct sglang_registration *g)
{
    put_tag(w, "None");
    put_origin(w, &g->origin, true);
    put_list(w, &g->kv_pointers);
    put_list(w, &g->aux_pointers);
    put_lists(w, &g->state_pointers);
    put_number(w, g->engine_rank);
    put_number(w, g->tp_size);
    put_number(w, g->kv_item_bytes);
    put_lists(w, &g->state_item_bytes);
    put_lists(w, &g->state_dimensions);
    if (g->frames < 19u) {
        put_staging(w, g);
        if (g->frames == 15u) {
            put_text(w, &g->capability);
        }
        return;
    }
    put_list(w, &g->kv_layer_ids);
    put_lists(w, &g->state_layer_ids);
    put_staging(w, g);
    put_number(w, g->dcp_size);
    put_number(w, g->dcp_rank);
    put_list(w, &g->staging_layer_ids);
}

static void put_metadata(struct writer *w, const struct sglang_message *m)
{
    const struct sglang_metadata *d = &m->u.metadata;
    put_number(w, m->room);
    put_origin(w, &d->origin, true);
    put_list(w, &d->pages);
    if (d->has_aux) {
        put_number(w, d->aux_slot);
    } else {
        put(w, "", 0);
    }
    put_lists(w, &d->state_indices);
    put_number(w, d->required);
    if (d->frames >= 9u && d->has_prefix) {
        put_number(w, d->prefix_tokens);
    } else if (d->frames >= 9u) {
        put(w, "", 0);
    }
    if (d->frames >= 10u) {
        put_list(w, &d->device_pages);
    }
}

static void put_abort(struct writer *w, const struct sglang_message *m)
{
    const struct sglang_abort *a = &m->u.abort;
    put_tag(w, "ABORT");
    put_number(w, m->room);
    if (a->has_origin) {
        put_origin(w, &a->origin, false);
    }
    if (a->has_generation) {
        put_number(w, a->generation);
    } else if (a->has_token) {
        put_text(w, &a->token);
    }
}

static void put_status(struct writer *w, const struct sglang_message *m)
{
    const struct sglang_status *s = &m->u.status;
    if (s->dialect != SGLANG_MOONCAKE) {
        put_tag(w, s->dialect == SGLANG_NIXL ? "KV_STATUS" : "MoriMsgGuard");
    }
    put_number(w, m->room);
    put_number(w, s->succeeded ? 4u : 0u);
    put_number(w, s->rank);
    if (s->has_reason || s->has_http || s->dialect != SGLANG_MOONCAKE) {
        put_text(w, &s->reason);
    }
    if (s->has_http) {
        put_number(w, s->http);
    }
    if (s->has_generation) {
        put_number(w, s->generation);
    }
}

static void put_ack(struct writer *w, const struct sglang_message *m)
{
    put_tag(w, "ABORT_ACK");
    put_number(w, m->room);
    if (m->u.ack.has_rank) {
        put_number(w, m->u.ack.rank);
    }
    if (m->u.ack.has_generation) {
        put_number(w, m->u.ack.generation);
    }
}

static void put_offset(struct writer *w, int64_t offset)
{
    if (offset < 0) {
        put_tag(w, offset == -1 ? "-1" : "-2");
    } else {
        put_number(w, (uint64_t)offset);
    }
}

static void put_staging_rsp(struct writer *w, const struct sglang_message *m)
{
    const struct sglang_chunk *c = &m->u.chunk;
    put_tag(w, "STAGING_RSP");
    put_number(w, m->room);
    put_number(w, c->chunk);
    put_offset(w, c->offset);
    put_number(w, c->first);
    put_number(w, c->count);
    put_text(w, &c->session);
}

static void put_watermark(struct writer *w, const struct sglang_chunk *c)
{
    put_tag(w, "WATERMARK");
    put_number(w, c->first);
    put_number(w, c->count);
    if (c->has_session) {
        put_text(w, &c->session);
    }
}

static void put_aux_data(struct writer *w, const struct sglang_message *m)
{
    const struct sglang_list *data = &m->u.chunk.data;
    const unsigned char length[4] = {(unsigned char)(data->count >> 24),
                                     (unsigned char)(data->count >> 16),
                                     (unsigned char)(data->count >> 8), (unsigned char)data->count};
    put_tag(w, "AUX_DATA");
    put_number(w, m->room);
    put_number(w, m->u.chunk.chunk);
    put_number(w, m->u.chunk.first);
    put(w, length, sizeof length);
    put(w, data->bytes, data->count);
}

static void put_chunk(struct writer *w, const struct sglang_message *m)
{
    const struct sglang_chunk *c = &m->u.chunk;
    put_tag(w, m->kind == SGLANG_CHUNK_READY ? "CHUNK_READY" : "STAGING_REQ");
    put_number(w, m->room);
    put_number(w, c->chunk);
    if (m->kind == SGLANG_CHUNK_READY) {
        put_number(w, c->first);
    }
    put_number(w, c->count);
    put_text(w, &c->session);
    if (c->has_rank) {
        put_number(w, c->rank);
    }
}

static void put_message(struct writer *w, const struct sglang_message *m)
{
    switch (m->kind) {
    case SGLANG_REGISTRATION:
        put_registration(w, &m->u.registration);
        break;
    case SGLANG_METADATA:
        put_metadata(w, m);
        break;
    case SGLANG_ABORT:
        put_abort(w, m);
        break;
    case SGLANG_STAGING_RSP:
        put_staging_rsp(w, m);
        break;
    case SGLANG_WATERMARK:
        put_watermark(w, &m->u.chunk);
        break;
    case SGLANG_STATUS:
        put_status(w, m);
        break;
    case SGLANG_ABORT_ACK:
        put_ack(w, m);
        break;
    case SGLANG_AUX_DATA:
        put_aux_data(w, m);
        break;
    case SGLANG_CHUNK_READY:
    case SGLANG_STAGING_REQ:
        put_chunk(w, m);
        break;
    case SGLANG_NOTHING:
    case SGLANG_KIND_COUNT:
        break;
    }
}

enum status sglang_encode(const struct sglang_message *message, unsigned char *buffer, size_t size,
                          struct sglang_frame *out_frames, size_t *out_count,
                          struct sglang_error *out_error)
{
    struct writer w = {buffer, size, 0, out_frames, 0, false};
    struct sglang_message again;
    const bool to_decode = message->kind >= SGLANG_STATUS;
    memset(out_error, 0, sizeof *out_error);
    out_error->kind = message->kind;
    put_message(&w, message);
    if (w.full) {
        out_error->fault = SGLANG_FAULT_SPACE;
        return STATUS_TOO_LARGE;
    }
    *out_count = w.count;
    /* What a reader would refuse is never sent: the peer's loop could die of it. */
    return sglang_decode(to_decode ? SGLANG_AT_DECODE : SGLANG_AT_PREFILL, out_frames, w.count,
                         &again, out_error);
}
