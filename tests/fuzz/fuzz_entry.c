/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of a journal: any bytes parse or do not; what parses packs again and can be described. */
#include "schemas/codec.h"
#include "statemachine/sm.h"

#include <assert.h>
#include <stdlib.h>

#define ARENA_BYTES ((size_t)4 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void *memory[2];
    static unsigned char packed[1u << 20];
    struct codec_arena arena;
    struct codec_arena scratch;
    struct codec_entry entry;
    char text[512];
    size_t packed_size = 0;
    for (size_t i = 0; i < 2; i++) {
        memory[i] = memory[i] != NULL ? memory[i] : malloc(ARENA_BYTES);
    }
    codec_arena_init(&arena, memory[0], ARENA_BYTES);
    codec_arena_init(&scratch, memory[1], ARENA_BYTES);
    if (codec_entry_unpack(data, size, &arena, &entry) != STATUS_OK) {
        return 0;
    }
    (void)sm_describe_input(&entry.input, text, sizeof text);
    for (uint32_t i = 0; i < entry.transition_count; i++) {
        (void)sm_describe_transition(&entry.transitions[i], text, sizeof text);
    }
    (void)codec_entry_pack(&entry, &scratch, packed, sizeof packed, &packed_size);
    assert(packed_size <= sizeof packed);
    return 0;
}
