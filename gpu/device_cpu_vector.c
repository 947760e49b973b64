/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums and copies of cells that lie in one page, in two widths chosen at run time. Their sums are
 * equal: each is device_sum.h's, and additions may be in any order. There is no wider one: pools
 * are larger than caches, and from there 256 bits read as fast as memory gives (docs/device.md).
 */
#include "device_cpu.h"

#include <string.h>

/* Bytes `at`.. of a cell, word by word. */
static inline uint64_t words_do(unsigned char *to, const unsigned char *from, uint32_t at,
                                uint32_t bytes, uint64_t key)
{
    uint64_t sum = 0;
    for (; at < bytes; at += 8u) {
        const uint32_t some = bytes - at < 8u ? bytes - at : 8u;
        uint64_t word = 0;
        memcpy(&word, from + at, some);
        if (to != NULL) {
            memcpy(to + at, &word, some);
        }
        sum += sum_word(word, key, at / 8u);
    }
    return sum;
}

static uint64_t sum_scalar(const struct cpu_cells *c)
{
    uint64_t sum = 0;
    for (uint32_t t = 0; t < c->tokens; t++) {
        for (uint32_t h = 0; h < c->heads; h++) {
            const uint64_t lin = c->lin + t * c->lin_token + h * SUM_HEAD;
            sum += words_do(c->to == NULL ? NULL : c->to + t * c->to_token + h * c->to_head,
                            c->from + t * c->from_token + h * c->from_head, 0, c->cell_bytes,
                            sum_fold(lin, c->k1));
        }
    }
    return sum;
}

static void stream_scalar(unsigned char *to, const unsigned char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

const struct cpu_vector cpu_vector_scalar = {"cpu-scalar", sum_scalar, stream_scalar};

#if defined(__x86_64__)

#include <immintrin.h>

#define INLINE_WITH(features) static inline __attribute__((always_inline, target(features)))
/* Both halves of the position of word `i`. */
#define POSITION(i) ((long long)(((uint64_t)((i)*SUM_HIGH) << 32) | ((i)*SUM_LOW)))

#define AVX2 "avx2"

enum store { STORE_NONE, STORE_PLAIN, STORE_STREAM };

/* Bytes at the start of `to` until it is aligned; at most `bytes`. */
static size_t to_alignment(const unsigned char *to, size_t bytes, size_t alignment)
{
    const size_t head = (alignment - (uintptr_t)to % alignment) % alignment;
    return head < bytes ? head : bytes;
}

/* ---- AVX2
 * ------------------------------------------------------------------------------------------ */

struct sum_avx2 {
    __m256i products;
    __m256i words;
    uint64_t rest;
};

INLINE_WITH(AVX2)
void cell_avx2(struct sum_avx2 *sum, unsigned char *to, const unsigned char *from, uint32_t bytes,
               uint64_t key, enum store store)
{
    const __m256i step = _mm256_set1_epi64x(POSITION(4u));
    __m256i k =
        _mm256_add_epi32(_mm256_set1_epi64x((long long)key),
                         _mm256_set_epi64x(POSITION(3u), POSITION(2u), POSITION(1u), POSITION(0u)));
    uint32_t at = 0;
    for (; at + 32u <= bytes; at += 32u) {
        const __m256i m = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        if (store == STORE_PLAIN) {
            _mm256_storeu_si256((__m256i *)(void *)(to + at), m);
        } else if (store == STORE_STREAM) {
            _mm256_stream_si256((__m256i *)(void *)(to + at), m);
        }
        const __m256i t = _mm256_add_epi32(m, k);
        k = _mm256_add_epi32(k, step);
        sum->products =
            _mm256_add_epi64(sum->products, _mm256_mul_epu32(t, _mm256_srli_epi64(t, 32)));
        sum->words = _mm256_add_epi64(sum->words, m);
    }
    if (at < bytes) {
        sum->rest += words_do(store == STORE_NONE ? NULL : to, from, at, bytes, key);
    }
}

INLINE_WITH(AVX2) uint64_t total_avx2(__m256i v)
{
    const __m128i x = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return (uint64_t)_mm_cvtsi128_si64(x) + (uint64_t)_mm_extract_epi64(x, 1);
}

INLINE_WITH(AVX2) uint64_t cells_avx2(const struct cpu_cells *c, enum store store)
{
    struct sum_avx2 sum = {_mm256_setzero_si256(), _mm256_setzero_si256(), 0};
    for (uint32_t t = 0; t < c->tokens; t++) {
        const unsigned char *from = c->from + t * c->from_token;
        unsigned char *to = store == STORE_NONE ? NULL : c->to + t * c->to_token;
        uint64_t lin = c->lin + t * c->lin_token;
        for (uint32_t h = 0; h < c->heads; h++) {
            cell_avx2(&sum, to, from, c->cell_bytes, sum_fold(lin, c->k1), store);
            from += c->from_head;
            to = store == STORE_NONE ? NULL : to + c->to_head;
            lin += SUM_HEAD;
        }
    }
    return total_avx2(_mm256_add_epi64(sum.products, sum.words)) + sum.rest;
}

/* Whether each vector of each cell is stored to an aligned place. */
static bool cells_aligned(const struct cpu_cells *c, uint64_t alignment)
{
    return c->stream &&
           ((uintptr_t)c->to | c->to_token | c->to_head | c->cell_bytes) % alignment == 0;
}

__attribute__((target(AVX2))) static uint64_t sum_avx2(const struct cpu_cells *c)
{
    return c->to == NULL           ? cells_avx2(c, STORE_NONE)
           : cells_aligned(c, 32u) ? cells_avx2(c, STORE_STREAM)
                                   : cells_avx2(c, STORE_PLAIN);
}

__attribute__((target(AVX2))) static void stream_avx2(unsigned char *to, const unsigned char *from,
                                                      size_t bytes)
{
    size_t at = to_alignment(to, bytes, 32u);
    memcpy(to, from, at);
    for (; at + 128u <= bytes; at += 128u) {
        const __m256i *in = (const __m256i *)(const void *)(from + at);
        __m256i *out = (__m256i *)(void *)(to + at);
        const __m256i a = _mm256_loadu_si256(in);
        const __m256i b = _mm256_loadu_si256(in + 1);
        const __m256i c = _mm256_loadu_si256(in + 2);
        const __m256i d = _mm256_loadu_si256(in + 3);
        _mm256_stream_si256(out, a);
        _mm256_stream_si256(out + 1, b);
        _mm256_stream_si256(out + 2, c);
        _mm256_stream_si256(out + 3, d);
    }
    memcpy(to + at, from + at, bytes - at);
}

const struct cpu_vector cpu_vector_avx2 = {"cpu-avx2", sum_avx2, stream_avx2};

bool cpu_vector_fits(const struct cpu_vector *vector)
{
    return vector == &cpu_vector_scalar || __builtin_cpu_supports("avx2");
}

#else

const struct cpu_vector cpu_vector_avx2 = {"cpu-avx2", sum_scalar, stream_scalar};

bool cpu_vector_fits(const struct cpu_vector *vector)
{
    return vector == &cpu_vector_scalar;
}

#endif
