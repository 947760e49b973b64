/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two data planes say to each other when pages are verified: the writer asks whether the bytes
 * of these spans are those that it has sent, the destination answers.
 *
 * Layer: pure: bytes in and out, and the digest.
 *
 * Rules: little-endian, fixed sizes. The digest of a span is the sum, modulo 2^64, of the XXH3 of
 * each piece that plan_next gives for it, seeded with the piece's place at the destination; so its
 * pieces may come in any order, and a piece in a wrong place does not count as the right one. Both
 * sides cut pieces at piece_bytes. It finds accidents; it is no signature.
 *
 * Limits: CHECK_SPANS_MAX spans a question, CHECK_NOTE_BYTES a note.
 *
 * Failure: reading is total; false for whatever is not exactly one note. What the numbers mean is
 * for the reader to check against its pools (plan_begin does).
 */
#ifndef FABRIC_CHECK_H
#define FABRIC_CHECK_H

#include "fabric/plan.h"

#include <stddef.h>

#define CHECK_SPANS_MAX 256u
#define CHECK_NOTE_BYTES (64u + CHECK_SPANS_MAX * 20u)

enum check_kind { CHECK_QUESTION = 1, CHECK_ANSWER };
enum check_verdict {
    CHECK_SAME = 1, /* all of them */
    CHECK_DIFFERS,  /* span number `at`; the count of spans: the metadata slot */
    CHECK_CANNOT    /* the destination has no such pool, or makes nothing of the question */
};

struct check_note {
    enum check_kind kind;
    uint64_t id; /* of the question; the answer repeats it */
    /* An answer: */
    enum check_verdict verdict;
    uint32_t at;
    /* A question: */
    uint32_t from_rank;
    uint32_t to_rank;
    uint32_t slot_from; /* SM_AUX_NONE: no metadata */
    uint32_t slot_to;
    uint64_t piece_bytes;
    uint64_t slot_digest;
    uint32_t span_count;
    struct plan_span spans[CHECK_SPANS_MAX];
    uint64_t digests[CHECK_SPANS_MAX];
};

/* Returns the number of bytes, at most CHECK_NOTE_BYTES. */
size_t check_write(const struct check_note *note, unsigned char *out_bytes);
bool check_read(const unsigned char *bytes, size_t size, struct check_note *out_note);

/* What a piece of `bytes` bytes at `at` adds to the digest of its span. */
uint64_t check_digest(const void *at, uint64_t bytes, uint64_t place);

#endif
