/* SPDX-License-Identifier: Apache-2.0 */
/* Texts: a bounded writer, UTF-8 that is cut at a character, and reasons kept once however often
 * used. */
#include "sm_state.h"

static void put_bytes(struct sm_writer *writer, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (writer->used + i + 1u < writer->size) {
            writer->bytes[writer->used + i] = bytes[i];
        }
    }
    writer->used += size;
    if (writer->size > 0) {
        writer->bytes[writer->used < writer->size ? writer->used : writer->size - 1u] = '\0';
    }
}

void sm_put(struct sm_writer *writer, const char *text)
{
    size_t size = 0;
    while (text[size] != '\0') {
        size++;
    }
    put_bytes(writer, text, size);
}

void sm_put_text(struct sm_writer *writer, struct sm_text text)
{
    put_bytes(writer, text.bytes, text.size);
}

void sm_put_number(struct sm_writer *writer, uint64_t number)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        at--;
        digits[at] = (char)('0' + number % 10u);
        number /= 10u;
    } while (number != 0);
    put_bytes(writer, digits + at, sizeof digits - at);
}

void sm_put_hex(struct sm_writer *writer, uint64_t number)
{
    char digits[16];
    for (size_t i = 0; i < sizeof digits; i++) {
        digits[i] = "0123456789abcdef"[number >> (60u - 4u * i) & 15u];
    }
    put_bytes(writer, digits, sizeof digits);
}

struct sm_text sm_writer_text(const struct sm_writer *writer)
{
    const size_t most = writer->size == 0 ? 0 : writer->size - 1u;
    struct sm_text text = {writer->bytes, (uint32_t)(writer->used < most ? writer->used : most)};
    return text;
}

struct sm_text sm_text_of(const char *zero_terminated)
{
    struct sm_text text = {zero_terminated, 0};
    while (zero_terminated[text.size] != '\0') {
        text.size++;
    }
    return text;
}

bool sm_text_same(struct sm_text a, struct sm_text b)
{
    return a.size == b.size && sm_same(a.bytes, b.bytes, a.size);
}

struct sm_text sm_text_cut(struct sm_text text, uint32_t most)
{
    if (text.size > most) {
        uint32_t size = most;
        /* Step back over the rest of a character that does not fit whole. */
        while (size > 0 && ((unsigned char)text.bytes[size] & 0xc0u) == 0x80u) {
            size--;
        }
        text.size = size;
    }
    return text;
}

/* ---- reasons -----------------------------------------------------------------------------------
 */

static uint64_t text_hash(struct sm_text text)
{
    uint64_t hash = text.size;
    for (uint32_t i = 0; i < text.size; i++) {
        hash = (hash ^ (unsigned char)text.bytes[i]) * UINT64_C(0x100000001b3);
    }
    return sm_mix(hash, text.size);
}

static uint32_t *reason_head(const struct sm *sm, uint64_t hash)
{
    uint32_t *heads = sm_at(sm, sm->reason_heads_at);
    return &heads[hash & (sm->reason_buckets - 1u)];
}

uint32_t sm_reason_keep(struct sm *sm, struct sm_text text)
{
    text = sm_text_cut(text, sm->policy.reason_bytes_max);
    if (text.size == 0) {
        return SM_NONE;
    }
    const uint64_t hash = text_hash(text);
    uint32_t *head = reason_head(sm, hash);
    for (uint32_t at = *head; at != 0; at = sm_reason_at(sm, at - 1u)->next) {
        struct sm_reason *reason = sm_reason_at(sm, at - 1u);
        if (reason->hash == hash && reason->size == text.size &&
            sm_same(reason->bytes, text.bytes, text.size)) {
            reason->refs++;
            return at - 1u;
        }
    }
    const uint32_t index = sm_pool_take(sm, &sm->reasons, sizeof(struct sm_reason));
    if (index == SM_NONE) {
        return SM_NONE;
    }
    struct sm_reason *reason = sm_reason_at(sm, index);
    reason->hash = hash;
    reason->refs = 1;
    reason->size = text.size;
    sm_copy(reason->bytes, text.bytes, text.size);
    reason->next = *head;
    *head = index + 1u;
    return index;
}

void sm_reason_drop(struct sm *sm, uint32_t index)
{
    if (index == SM_NONE) {
        return;
    }
    struct sm_reason *reason = sm_reason_at(sm, index);
    SM_ASSERT(reason->refs > 0);
    reason->refs--;
    if (reason->refs > 0) {
        return;
    }
    uint32_t *link = reason_head(sm, reason->hash);
    while (*link != index + 1u) {
        SM_ASSERT(*link != 0);
        link = &sm_reason_at(sm, *link - 1u)->next;
    }
    *link = reason->next;
    sm_pool_give(sm, &sm->reasons, sizeof(struct sm_reason), index);
}

struct sm_text sm_reason_text(const struct sm *sm, uint32_t index)
{
    struct sm_text text = {"", 0};
    if (index != SM_NONE) {
        const struct sm_reason *reason = sm_reason_at(sm, index);
        text.bytes = reason->bytes;
        text.size = reason->size;
    }
    return text;
}

void sm_cause_keep(struct sm *sm, struct sm_kept_cause *kept, const struct sm_cause *cause)
{
    kept->reason = sm_reason_keep(sm, cause->reason);
    kept->http = cause->http;
    kept->origin = cause->origin;
    kept->typed = cause->typed;
}

void sm_cause_drop(struct sm *sm, struct sm_kept_cause *kept)
{
    sm_reason_drop(sm, kept->reason);
    kept->reason = SM_NONE;
}

void sm_cause_copy(struct sm *sm, struct sm_kept_cause *to, const struct sm_kept_cause *from)
{
    *to = *from;
    if (to->reason != SM_NONE) {
        sm_reason_at(sm, to->reason)->refs++;
    }
}

struct sm_cause sm_cause_view(const struct sm *sm, const struct sm_kept_cause *kept)
{
    struct sm_cause cause;
    sm_zero(&cause, sizeof cause);
    cause.http = kept->http;
    cause.origin = kept->origin;
    cause.typed = kept->typed != 0;
    cause.reason = sm_reason_text(sm, kept->reason);
    return cause;
}
