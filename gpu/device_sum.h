/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of cells, word for word the same on every backend.
 *
 * Layer: pure arithmetic; compiled by the host compiler and by nvcc.
 *
 * Definition, all modulo 2^64 unless said: cell (r, t, h) in global numbers, its bytes as
 * little-endian 8-byte words m_0, m_1, ..., the last one padded with zeros.
 *
 *     lin     = k0 + r x REGION + t x TOKEN + h x HEAD
 *     c       = fold(lin, k1): the two halves of a 128-bit product, combined
 *     f(m, i) = (m_low + c_low + i x LOW) x (m_high + c_high + i x HIGH) + m    (sums mod 2^32)
 *     sum     = f(m_i, i) over all words of all cells
 *
 * Per word it is NH of UMAC plus the word itself; adding the word makes a change within one half
 * visible whatever the other half is.
 */
#ifndef GPU_DEVICE_SUM_H
#define GPU_DEVICE_SUM_H

#include <stdint.h>

#if defined(__CUDACC__)
#define DEVICE_INLINE static __device__ __forceinline__
#else
#define DEVICE_INLINE static inline
#endif

#define SUM_REGION 0xC2B2AE3D27D4EB4Full
#define SUM_TOKEN 0x9E3779B97F4A7C15ull
#define SUM_HEAD 0xD6E8FEB86659FD93ull
#define SUM_TURN 0xA0761D6478BD642Full
#define SUM_LOW 0x2545F491u /* odd, so that no two words of a cell share a position */
#define SUM_HIGH 0x9E3779B1u

DEVICE_INLINE uint64_t sum_product_high(uint64_t a, uint64_t b)
{
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#else
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)(((wide)a * b) >> 64);
#endif
}

DEVICE_INLINE uint64_t sum_lin(uint64_t k0, uint32_t region, uint32_t token, uint32_t head)
{
    return k0 + (uint64_t)region * SUM_REGION + (uint64_t)token * SUM_TOKEN +
           (uint64_t)head * SUM_HEAD;
}

DEVICE_INLINE uint64_t sum_fold(uint64_t lin, uint64_t k1)
{
    const uint64_t x = lin ^ k1;
    const uint64_t y = ((lin << 32) | (lin >> 32)) ^ SUM_TURN;
    return (x * y) ^ sum_product_high(x, y);
}

DEVICE_INLINE uint64_t sum_word(uint64_t word, uint64_t cell_key, uint32_t index)
{
    const uint32_t low = (uint32_t)word + (uint32_t)cell_key + index * SUM_LOW;
    const uint32_t high = (uint32_t)(word >> 32) + (uint32_t)(cell_key >> 32) + index * SUM_HIGH;
    return (uint64_t)low * high + word;
}

#endif
