/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the peer link: any bytes are a message or are dropped, within the arena. */
#include "fabric/peer.h"

#include <stdlib.h>

#define ARENA_BYTES ((size_t)4 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void *memory;
    struct codec_arena arena;
    memory = memory != NULL ? memory : malloc(ARENA_BYTES);
    codec_arena_init(&arena, memory, ARENA_BYTES);
    (void)peer_frame_parses(data, size, &arena);
    return 0;
}
