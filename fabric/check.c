/* SPDX-License-Identifier: Apache-2.0 */
/* Notes about pages that are verified. */
#include "fabric/check.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#define MAGIC 0x314b4843u /* "CHK1" */
#define ANSWER_BYTES 24u
#define QUESTION_BYTES 52u
#define SPAN_BYTES 20u

static_assert(QUESTION_BYTES + CHECK_SPANS_MAX * SPAN_BYTES <= CHECK_NOTE_BYTES,
              "the largest question fits");

struct cursor {
    unsigned char *out;
    const unsigned char *in;
};

static void put(struct cursor *c, uint64_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++) {
        *c->out++ = (unsigned char)(value >> (8u * i));
    }
}

static uint64_t take(struct cursor *c, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        value |= (uint64_t)*c->in++ << (8u * i);
    }
    return value;
}

size_t check_write(const struct check_note *note, unsigned char *out_bytes)
{
    struct cursor c = {out_bytes, NULL};
    assert(note->span_count <= CHECK_SPANS_MAX);
    put(&c, MAGIC, 4);
    put(&c, note->kind, 4);
    put(&c, note->id, 8);
    if (note->kind == CHECK_ANSWER) {
        put(&c, note->verdict, 4);
        put(&c, note->at, 4);
        return ANSWER_BYTES;
    }
    put(&c, note->from_rank, 4);
    put(&c, note->to_rank, 4);
    put(&c, note->slot_from, 4);
    put(&c, note->slot_to, 4);
    put(&c, note->piece_bytes, 8);
    put(&c, note->slot_digest, 8);
    put(&c, note->span_count, 4);
    for (uint32_t i = 0; i < note->span_count; i++) {
        put(&c, note->spans[i].from, 4);
        put(&c, note->spans[i].to, 4);
        put(&c, note->spans[i].pages, 4);
        put(&c, note->digests[i], 8);
    }
    return (size_t)(c.out - out_bytes);
}

static bool read_question(struct cursor *c, size_t size, struct check_note *note)
{
    note->from_rank = (uint32_t)take(c, 4);
    note->to_rank = (uint32_t)take(c, 4);
    note->slot_from = (uint32_t)take(c, 4);
    note->slot_to = (uint32_t)take(c, 4);
    note->piece_bytes = take(c, 8);
    note->slot_digest = take(c, 8);
    const uint32_t count = (uint32_t)take(c, 4);
    if (count > CHECK_SPANS_MAX || size != QUESTION_BYTES + (size_t)count * SPAN_BYTES) {
        return false;
    }
    note->span_count = count;
    for (uint32_t i = 0; i < count; i++) {
        note->spans[i].from = (uint32_t)take(c, 4);
        note->spans[i].to = (uint32_t)take(c, 4);
        note->spans[i].pages = (uint32_t)take(c, 4);
        note->digests[i] = take(c, 8);
    }
    return true;
}

bool check_read(const unsigned char *bytes, size_t size, struct check_note *out_note)
{
    struct cursor c = {NULL, bytes};
    out_note->span_count = 0;
    if (size < ANSWER_BYTES || take(&c, 4) != MAGIC) {
        return false;
    }
    const uint64_t kind = take(&c, 4);
    out_note->kind = kind == CHECK_ANSWER ? CHECK_ANSWER : CHECK_QUESTION;
    out_note->id = take(&c, 8);
    if (kind == CHECK_QUESTION) {
        return size >= QUESTION_BYTES && read_question(&c, size, out_note);
    }
    const uint64_t verdict = take(&c, 4);
    out_note->verdict = verdict == CHECK_SAME      ? CHECK_SAME
                        : verdict == CHECK_DIFFERS ? CHECK_DIFFERS
                                                   : CHECK_CANNOT;
    out_note->at = (uint32_t)take(&c, 4);
    return kind == CHECK_ANSWER && size == ANSWER_BYTES && verdict == out_note->verdict;
}

uint64_t check_digest(const void *at, uint64_t bytes, uint64_t place)
{
    return XXH3_64bits_withSeed(at, (size_t)bytes, place);
}
