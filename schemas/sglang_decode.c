/* SPDX-License-Identifier: Apache-2.0 */
/* Frames to a message: one reader over the frames, which keeps the first fault that it meets. */
#include "schemas/sglang.h"

#include <limits.h>
#include <string.h>

const char *sglang_kind_name(enum sglang_kind kind)
{
    static const char *const names[] = {"nothing",
#define SGLANG_X(name, number, text) [number] = (text),
                                        SGLANG_KIND_LIST(SGLANG_X)
#undef SGLANG_X
    };
    return (unsigned)kind < SGLANG_KIND_COUNT ? names[kind] : names[0];
}

const char *sglang_fault_text(enum sglang_fault fault)
{
    static const char *const texts[] = {"",
#define SGLANG_X(name, number, text) [number] = (text),
                                        SGLANG_FAULT_LIST(SGLANG_X)
#undef SGLANG_X
    };
    return (unsigned)fault < SGLANG_FAULT_COUNT ? texts[fault] : texts[0];
}

static uint64_t little(const unsigned char *bytes, uint32_t width)
{
    uint64_t value = 0;
    for (uint32_t i = width; i > 0; i--) {
        value = value << 8 | bytes[i - 1u];
    }
    return value;
}

uint64_t sglang_list_at(const struct sglang_list *list, uint32_t i)
{
    return little(list->bytes + (size_t)i * list->width, list->width);
}

struct sglang_list sglang_lists_at(const struct sglang_lists *lists, uint32_t i)
{
    size_t at = 4u + 4u * (size_t)lists->count;
    for (uint32_t k = 0; k < i; k++) {
        at += (size_t)little(lists->bytes + 4u + 4u * (size_t)k, 4);
    }
    const uint32_t bytes = (uint32_t)little(lists->bytes + 4u + 4u * (size_t)i, 4);
    const struct sglang_list list = {lists->bytes + at, bytes / lists->width, lists->width};
    return list;
}

/* ---- reading frames
 * ------------------------------------------------------------------------------------- */

struct reader {
    const struct sglang_frame *frames;
    size_t count;
    uint32_t at; /* the frame that is next */
    struct sglang_error *error;
};

static void fault(struct reader *r, enum sglang_fault what)
{
    if (r->error->fault == SGLANG_FAULT_NONE) {
        r->error->fault = what;
        r->error->frame = r->at;
    }
}

static bool is(const struct sglang_frame *frame, const char *tag)
{
    return frame->size == strlen(tag) && memcmp(frame->bytes, tag, frame->size) == 0;
}

/* Decimal without sign, padding or blanks. */
static bool number_of(const struct sglang_frame *frame, uint64_t most, uint64_t *out)
{
    uint64_t value = 0;
    if (frame->size == 0 || frame->size > 20u || (frame->size > 1u && frame->bytes[0] == '0')) {
        return false;
    }
    for (size_t i = 0; i < frame->size; i++) {
        const uint64_t digit = (uint64_t)frame->bytes[i] - '0';
        if (digit > 9u || value > (UINT64_MAX - digit) / 10u) {
            return false;
        }
        value = value * 10u + digit;
    }
    *out = value;
    return value <= most;
}

static const struct sglang_frame *next(struct reader *r)
{
    return &r->frames[r->at];
}

static uint64_t take_number(struct reader *r, uint64_t most)
{
    uint64_t value = 0;
    if (!number_of(next(r), most, &value)) {
        fault(r, SGLANG_FAULT_NUMBER);
        value = 0;
    }
    r->at++;
    return value;
}

/* An empty frame stands for `absent`. */
static uint64_t take_optional(struct reader *r, uint64_t most, uint64_t absent)
{
    if (next(r)->size > 0) {
        return take_number(r, most);
    }
    r->at++;
    return absent;
}

static uint64_t take_room(struct reader *r)
{
    uint64_t room = 0;
    if (!number_of(next(r), SGLANG_ROOM_MAX, &room) || room == 0) {
        fault(r, SGLANG_FAULT_ROOM);
    }
    r->at++;
    return room;
}

/* -2, -1 or a place in the staging ring. */
static int64_t take_offset(struct reader *r)
{
    const struct sglang_frame *frame = next(r);
    if (is(frame, "-1") || is(frame, "-2")) {
        r->at++;
        return frame->bytes[1] == '1' ? -1 : -2;
    }
    return (int64_t)take_number(r, INT64_MAX);
}

static struct sglang_text take_text(struct reader *r, bool may_be_empty)
{
    const struct sglang_frame *frame = next(r);
    const struct sglang_text text = {(const char *)frame->bytes, (uint32_t)frame->size};
    if (frame->size > SGLANG_TEXT_BYTES_MAX || (frame->size == 0 && !may_be_empty)) {
        fault(r, SGLANG_FAULT_TEXT);
    }
    for (size_t i = 0; i < frame->size; i++) {
        if (frame->bytes[i] <= ' ' || frame->bytes[i] > '~') {
            fault(r, SGLANG_FAULT_TEXT);
        }
    }
    r->at++;
    return text;
}

/* "host:port", as queues are chosen by the port. */
static struct sglang_text take_session(struct reader *r)
{
    const struct sglang_text text = take_text(r, false);
    uint32_t colon = text.size;
    while (colon > 0 && text.bytes[colon - 1u] != ':') {
        colon--;
    }
    const struct sglang_frame port = {(const unsigned char *)text.bytes + colon, text.size - colon};
    uint64_t value = 0;
    if (colon == 0 || !number_of(&port, 65535, &value)) {
        r->at--;
        fault(r, SGLANG_FAULT_TEXT);
        r->at++;
    }
    return text;
}

static uint16_t take_port(struct reader *r)
{
    uint64_t port = 0;
    if (!number_of(next(r), 65535, &port) || port == 0) {
        fault(r, SGLANG_FAULT_NUMBER);
    }
    r->at++;
    return (uint16_t)port;
}

static struct sglang_list take_list(struct reader *r, uint32_t width)
{
    const struct sglang_frame *frame = next(r);
    const struct sglang_list list = {frame->bytes, (uint32_t)(frame->size / width), width};
    if (frame->size % width != 0) {
        fault(r, SGLANG_FAULT_LIST);
    }
    r->at++;
    return list;
}

/* Page numbers: 32-bit with a sign, and none below zero. */
static struct sglang_list take_pages(struct reader *r)
{
    const struct sglang_list list = take_list(r, 4);
    for (uint32_t i = 0; i < list.count; i++) {
        if (sglang_list_at(&list, i) > INT32_MAX) {
            r->at--;
            fault(r, SGLANG_FAULT_LIST);
            r->at++;
            break;
        }
    }
    return list;
}

static struct sglang_lists take_lists(struct reader *r, uint32_t width)
{
    const struct sglang_frame *frame = next(r);
    struct sglang_lists lists = {frame->bytes, (uint32_t)frame->size, 0, width};
    r->at++;
    if (frame->size == 0) {
        return lists;
    }
    const uint64_t count = frame->size >= 4u ? little(frame->bytes, 4) : 0;
    uint64_t used = 4u + 4u * count;
    bool well = count > 0 && used <= frame->size;
    for (uint64_t i = 0; i < count && well; i++) {
        const uint64_t bytes = little(frame->bytes + 4u + 4u * i, 4);
        used += bytes;
        well = bytes % width == 0 && used <= frame->size;
    }
    if (!well || used != frame->size) {
        r->at--;
        fault(r, SGLANG_FAULT_LISTS);
        r->at++;
        return lists;
    }
    lists.count = (uint32_t)count;
    return lists;
}

/* Whether the number of frames is one of a kind's; a set of counts as bits. */
static bool counts(struct reader *r, enum sglang_kind kind, uint32_t allowed)
{
    r->error->kind = kind;
    if (r->count > SGLANG_FRAMES_MAX || (allowed >> r->count & 1u) == 0) {
        fault(r, SGLANG_FAULT_FRAME_COUNT);
        return false;
    }
    return true;
}

#define FORM(n) (1u << (n))

/* ---- what comes to prefill
 * ----------------------------------------------------------------------------- */

static void read_origin(struct reader *r, struct sglang_origin *out, bool session)
{
    out->ip = take_text(r, false);
    out->port = take_port(r);
    if (session) {
        out->session = take_session(r);
    }
}

static void read_staging(struct reader *r, struct sglang_registration *g)
{
    const struct sglang_frame *base = next(r);
    g->staging_base = base->size == 8u ? little(base->bytes, 8) : 0; /* another size means none */
    r->at++;
    g->staging_bytes = take_optional(r, UINT64_MAX, 0);
}

static void read_registration(struct reader *r, struct sglang_message *m)
{
    struct sglang_registration *g = &m->u.registration;
    if (!counts(r, SGLANG_REGISTRATION, FORM(14) | FORM(15) | FORM(19))) {
        return;
    }
    g->frames = (uint32_t)r->count;
    r->at = 1;
    read_origin(r, &g->origin, true);
    g->kv_pointers = take_list(r, 8);
    g->aux_pointers = take_list(r, 8);
    g->state_pointers = take_lists(r, 8);
    g->engine_rank = (uint32_t)take_number(r, UINT32_MAX);
    g->tp_size = (uint32_t)take_number(r, UINT32_MAX);
    if (g->engine_rank >= g->tp_size) {
        fault(r, SGLANG_FAULT_NUMBER);
    }
    g->kv_item_bytes = take_number(r, UINT64_MAX);
    g->state_item_bytes = take_lists(r, 4);
    g->state_dimensions = take_lists(r, 4);
    g->dcp_size = 1;
    if (r->count < 19u) {
        /* In mid-2026 the staging pair stood where layer ids stand now. */
        read_staging(r, g);
        if (r->count == 15u) {
            g->capability = take_text(r, false);
        }
        return;
    }
    g->kv_layer_ids = take_list(r, 4);
    g->state_layer_ids = take_lists(r, 4);
    read_staging(r, g);
    g->dcp_size = (uint32_t)take_optional(r, UINT32_MAX, 1);
    g->dcp_rank = (uint32_t)take_optional(r, UINT32_MAX, 0);
    g->staging_layer_ids = take_list(r, 8);
}

static void read_metadata(struct reader *r, struct sglang_message *m)
{
    struct sglang_metadata *d = &m->u.metadata;
    if (!counts(r, SGLANG_METADATA, FORM(8) | FORM(9) | FORM(10))) {
        return;
    }
    d->frames = (uint32_t)r->count;
    m->room = take_room(r);
    read_origin(r, &d->origin, true);
    d->pages = take_pages(r);
    d->has_aux = next(r)->size > 0;
    d->aux_slot = (uint32_t)take_optional(r, UINT32_MAX - 1u, 0);
    d->state_indices = take_lists(r, 4);
    d->required = (uint32_t)take_number(r, UINT32_MAX);
    if (d->required == 0) {
        fault(r, SGLANG_FAULT_NUMBER);
    }
    if (r->count >= 9u) {
        d->has_prefix = next(r)->size > 0;
        d->prefix_tokens = take_optional(r, INT64_MAX, 0);
    }
    if (r->count >= 10u) {
        d->device_pages = take_pages(r);
    }
}

static void read_abort(struct reader *r, struct sglang_message *m)
{
    struct sglang_abort *a = &m->u.abort;
    if (!counts(r, SGLANG_ABORT, FORM(2) | FORM(4) | FORM(5))) {
        return;
    }
    r->at = 1;
    m->room = take_room(r);
    a->has_origin = r->count >= 4u;
    if (a->has_origin) {
        read_origin(r, &a->origin, false);
    }
    if (r->count == 5u) {
        const struct sglang_frame *token = next(r);
        a->has_token = token->size > 0;
        a->token = (struct sglang_text){(const char *)token->bytes, (uint32_t)token->size};
        a->has_generation = number_of(token, UINT64_MAX, &a->generation);
        a->generation = a->has_generation ? a->generation : 0;
        if (token->size == 0 || token->size > SGLANG_TEXT_BYTES_MAX) {
            fault(r, SGLANG_FAULT_TEXT);
        }
    }
}

static void read_staging_rsp(struct reader *r, struct sglang_message *m)
{
    if (!counts(r, SGLANG_STAGING_RSP, FORM(7))) {
        return;
    }
    r->at = 1;
    m->room = take_room(r);
    m->u.chunk.chunk = take_number(r, UINT64_MAX);
    m->u.chunk.offset = take_offset(r);
    m->u.chunk.first = take_number(r, UINT64_MAX);
    m->u.chunk.count = take_number(r, UINT64_MAX);
    m->u.chunk.session = take_text(r, false);
    m->u.chunk.has_session = true;
}

static void read_watermark(struct reader *r, struct sglang_message *m)
{
    if (!counts(r, SGLANG_WATERMARK, FORM(3) | FORM(4))) {
        return;
    }
    r->at = 1;
    m->u.chunk.first = take_number(r, UINT64_MAX);
    m->u.chunk.count = take_number(r, UINT64_MAX);
    m->u.chunk.has_session = r->count == 4u;
    if (m->u.chunk.has_session) {
        m->u.chunk.session = take_text(r, true);
    }
}

/* ---- what comes to decode
 * ------------------------------------------------------------------------------ */

static void read_status(struct reader *r, struct sglang_message *m, uint32_t allowed,
                        uint32_t before)
{
    struct sglang_status *s = &m->u.status;
    uint64_t value = 0;
    if (!counts(r, SGLANG_STATUS, allowed)) {
        return;
    }
    r->at = before;
    m->room = take_room(r);
    if (!number_of(next(r), 4, &value) || (value != 0 && value != 4u)) {
        fault(r, SGLANG_FAULT_NUMBER);
    }
    r->at++;
    s->succeeded = value == 4u;
    s->rank = (uint32_t)take_number(r, UINT32_MAX);
    s->has_reason = r->count > before + 3u;
    if (s->has_reason) {
        const struct sglang_frame *reason = next(r);
        s->reason = (struct sglang_text){(const char *)reason->bytes, (uint32_t)reason->size};
        if (reason->size > SGLANG_REASON_BYTES_MAX) {
            fault(r, SGLANG_FAULT_SIZE);
        }
        r->at++;
    }
}

static void read_mooncake_status(struct reader *r, struct sglang_message *m)
{
    read_status(r, m, FORM(3) | FORM(4) | FORM(5), 0);
    if (r->count == 5u && r->error->fault == SGLANG_FAULT_NONE) {
        m->u.status.has_http = next(r)->size > 0;
        m->u.status.http = (uint16_t)take_optional(r, 999, 0);
    }
}

static void read_nixl_status(struct reader *r, struct sglang_message *m)
{
    m->u.status.dialect = SGLANG_NIXL;
    read_status(r, m, FORM(5), 1);
}

static void read_mori_status(struct reader *r, struct sglang_message *m)
{
    m->u.status.dialect = SGLANG_MORI;
    read_status(r, m, FORM(5) | FORM(6), 1);
    if (r->count == 6u && r->error->fault == SGLANG_FAULT_NONE) {
        m->u.status.has_generation = true;
        m->u.status.generation = take_number(r, UINT64_MAX);
    }
}

static void read_ack(struct reader *r, struct sglang_message *m)
{
    struct sglang_ack *a = &m->u.ack;
    if (!counts(r, SGLANG_ABORT_ACK, FORM(2) | FORM(3) | FORM(4))) {
        return;
    }
    r->at = 1;
    m->room = take_room(r);
    a->has_rank = r->count >= 3u;
    a->has_generation = r->count == 4u;
    if (a->has_rank) {
        a->rank = (uint32_t)take_number(r, UINT32_MAX);
    }
    if (a->has_generation) {
        a->generation = take_number(r, UINT64_MAX);
    }
}

static void read_aux_data(struct reader *r, struct sglang_message *m)
{
    if (!counts(r, SGLANG_AUX_DATA, FORM(6))) {
        return;
    }
    r->at = 1;
    m->room = take_room(r);
    m->u.chunk.chunk = take_number(r, UINT64_MAX);
    m->u.chunk.first = take_number(r, UINT64_MAX);
    const struct sglang_frame *length = next(r);
    const struct sglang_frame *data = &r->frames[5];
    uint64_t bytes = 0;
    for (size_t i = 0; i < length->size && i < 4u; i++) {
        bytes = bytes << 8 | length->bytes[i]; /* the one number that is big-endian */
    }
    if (length->size != 4u || bytes != data->size) {
        fault(r, SGLANG_FAULT_LENGTH);
    }
    m->u.chunk.count = data->size;
    m->u.chunk.data = (struct sglang_list){data->bytes, (uint32_t)data->size, 1};
}

static void read_chunk_ready(struct reader *r, struct sglang_message *m)
{
    if (!counts(r, SGLANG_CHUNK_READY, FORM(6) | FORM(7))) {
        return;
    }
    r->at = 1;
    m->room = take_room(r);
    m->u.chunk.chunk = take_number(r, UINT64_MAX);
    m->u.chunk.first = take_number(r, UINT64_MAX);
    m->u.chunk.count = take_number(r, UINT64_MAX);
    m->u.chunk.session = take_text(r, false);
    m->u.chunk.has_session = true;
    m->u.chunk.has_rank = r->count == 7u;
    if (m->u.chunk.has_rank) {
        m->u.chunk.rank = (uint32_t)take_number(r, UINT32_MAX);
    }
}

static void read_staging_req(struct reader *r, struct sglang_message *m)
{
    if (!counts(r, SGLANG_STAGING_REQ, FORM(5) | FORM(6))) {
        return;
    }
    r->at = 1;
    m->room = take_room(r);
    m->u.chunk.chunk = take_number(r, UINT64_MAX);
    m->u.chunk.count = take_number(r, UINT64_MAX);
    m->u.chunk.session = take_text(r, false);
    m->u.chunk.has_session = true;
    m->u.chunk.has_rank = r->count == 6u;
    if (m->u.chunk.has_rank) {
        m->u.chunk.rank = (uint32_t)take_number(r, UINT32_MAX);
    }
}

/* ---- which it is
 * ---------------------------------------------------------------------------------------- */

struct form {
    enum sglang_port port;
    const char *tag;
    enum sglang_kind kind;
    void (*read)(struct reader *r, struct sglang_message *m);
};

static const struct form forms[] = {
    {SGLANG_AT_PREFILL, "None", SGLANG_REGISTRATION, read_registration},
    {SGLANG_AT_PREFILL, "ABORT", SGLANG_ABORT, read_abort},
    {SGLANG_AT_PREFILL, "STAGING_RSP", SGLANG_STAGING_RSP, read_staging_rsp},
    {SGLANG_AT_PREFILL, "WATERMARK", SGLANG_WATERMARK, read_watermark},
    {SGLANG_AT_DECODE, "ABORT_ACK", SGLANG_ABORT_ACK, read_ack},
    {SGLANG_AT_DECODE, "KV_STATUS", SGLANG_STATUS, read_nixl_status},
    {SGLANG_AT_DECODE, "MoriMsgGuard", SGLANG_STATUS, read_mori_status},
    {SGLANG_AT_DECODE, "AUX_DATA", SGLANG_AUX_DATA, read_aux_data},
    {SGLANG_AT_DECODE, "CHUNK_READY", SGLANG_CHUNK_READY, read_chunk_ready},
    {SGLANG_AT_DECODE, "STAGING_REQ", SGLANG_STAGING_REQ, read_staging_req}};

/* Digits first: a room's message. Whether they are a room is for its reader to say. */
static bool begins_with_number(const struct sglang_frame *frame)
{
    for (size_t i = 0; i < frame->size; i++) {
        if (frame->bytes[i] < '0' || frame->bytes[i] > '9') {
            return false;
        }
    }
    return frame->size > 0;
}

static void read_any(struct reader *r, enum sglang_port port, struct sglang_message *m)
{
    const struct sglang_frame *first = &r->frames[0];
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (forms[i].port == port && is(first, forms[i].tag)) {
            m->kind = forms[i].kind;
            forms[i].read(r, m);
            return;
        }
    }
    if (begins_with_number(first)) {
        m->kind = port == SGLANG_AT_PREFILL ? SGLANG_METADATA : SGLANG_STATUS;
        (port == SGLANG_AT_PREFILL ? read_metadata : read_mooncake_status)(r, m);
        return;
    }
    const bool other = is(first, "NixlMsgGuard") || is(first, "MoriMsgGuard");
    fault(r, other ? SGLANG_FAULT_DIALECT : SGLANG_FAULT_UNKNOWN_TAG);
}

enum status sglang_decode(enum sglang_port port, const struct sglang_frame *frames, size_t count,
                          struct sglang_message *out_message, struct sglang_error *out_error)
{
    struct reader r = {frames, count, 0, out_error};
    size_t bytes = 0;
    memset(out_message, 0, sizeof *out_message);
    memset(out_error, 0, sizeof *out_error);
    for (size_t i = 0; i < count && bytes <= SGLANG_MESSAGE_BYTES_MAX; i++) {
        bytes = frames[i].size > SGLANG_MESSAGE_BYTES_MAX ? frames[i].size : bytes + frames[i].size;
    }
    if (bytes > SGLANG_MESSAGE_BYTES_MAX) {
        fault(&r, SGLANG_FAULT_SIZE);
        return STATUS_TOO_LARGE;
    }
    if (count == 0) {
        fault(&r, SGLANG_FAULT_FRAME_COUNT);
        return STATUS_MALFORMED;
    }
    read_any(&r, port, out_message);
    if (out_error->fault == SGLANG_FAULT_NONE) {
        return STATUS_OK;
    }
    if (out_error->fault == SGLANG_FAULT_UNKNOWN_TAG || out_error->fault == SGLANG_FAULT_DIALECT) {
        return STATUS_UNSUPPORTED;
    }
    return out_error->fault == SGLANG_FAULT_SIZE ? STATUS_TOO_LARGE : STATUS_MALFORMED;
}
