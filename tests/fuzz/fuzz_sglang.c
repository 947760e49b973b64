/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGLang's frames. Input: a byte that chooses the port, then for each frame its size in two bytes,
 * little-endian, and as many bytes as are there. What decodes must encode, and to the same again.
 */
#include "schemas/sglang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAMES 24u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t split(const uint8_t *data, size_t size, struct sglang_frame *out)
{
    size_t count = 0;
    size_t at = 1;
    while (at + 2u <= size && count < FRAMES) {
        size_t bytes = (size_t)data[at] | (size_t)data[at + 1u] << 8;
        at += 2u;
        bytes = bytes < size - at ? bytes : size - at;
        out[count++] = (struct sglang_frame){data + at, bytes};
        at += bytes;
    }
    return count;
}

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char one[1 << 20];
    static unsigned char two[1 << 20];
    struct sglang_frame in[FRAMES];
    struct sglang_frame made[2][SGLANG_FRAMES_MAX];
    size_t counts[2] = {0, 0};
    struct sglang_message message;
    struct sglang_error error;
    if (size == 0) {
        return 0;
    }
    const enum sglang_port port = (data[0] & 1u) != 0 ? SGLANG_AT_DECODE : SGLANG_AT_PREFILL;
    const size_t count = split(data, size, in);
    if (sglang_decode(port, in, count, &message, &error) != STATUS_OK) {
        must(error.fault != SGLANG_FAULT_NONE, "refused for no reason");
        return 0;
    }
    must(sglang_encode(&message, one, sizeof one, made[0], &counts[0], &error) == STATUS_OK,
         "what was decoded does not encode");
    must(sglang_decode(port, made[0], counts[0], &message, &error) == STATUS_OK &&
             sglang_encode(&message, two, sizeof two, made[1], &counts[1], &error) == STATUS_OK,
         "what was encoded does not come back");
    must(counts[0] == counts[1], "another number of frames");
    for (size_t i = 0; i < counts[0]; i++) {
        must(made[0][i].size == made[1][i].size &&
                 memcmp(made[0][i].bytes, made[1][i].bytes, made[0][i].size) == 0,
             "another frame");
    }
    return 0;
}
