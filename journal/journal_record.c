/* SPDX-License-Identifier: Apache-2.0 */
/* The frame around an entry: damage is found before any parser runs. */
#include "journal_private.h"
#include "little_endian.h"

#include <string.h>
#include <xxhash.h>

void journal_head_write(const struct journal_head *head, unsigned char *bytes)
{
    put16(bytes, head->version);
    put16(bytes + 2, head->flags);
    put32(bytes + 4, head->payload_size);
    put64(bytes + 8, head->check);
    put64(bytes + 16, head->number);
    put64(bytes + 24, head->room);
    put64(bytes + 32, head->room_before);
    put64(bytes + 40, head->chain[0]);
    put64(bytes + 48, head->chain[1]);
}

void journal_head_read(const unsigned char *bytes, struct journal_head *out_head)
{
    out_head->version = (uint16_t)(bytes[0] | bytes[1] << 8);
    out_head->flags = (uint16_t)(bytes[2] | bytes[3] << 8);
    out_head->payload_size = get32(bytes + 4);
    out_head->check = get64(bytes + 8);
    out_head->number = get64(bytes + 16);
    out_head->room = get64(bytes + 24);
    out_head->room_before = get64(bytes + 32);
    out_head->chain[0] = get64(bytes + 40);
    out_head->chain[1] = get64(bytes + 48);
}

uint64_t journal_head_check(const unsigned char *head_bytes, const unsigned char *payload,
                            size_t payload_size)
{
    unsigned char head[JOURNAL_HEAD_BYTES];
    memcpy(head, head_bytes, sizeof head);
    memset(head + 8, 0, 8);
    /* The head's digest seeds the payload's: one value over both without joining them in memory. */
    return XXH3_64bits_withSeed(payload, payload_size, XXH3_64bits(head, sizeof head));
}

void journal_chain_next(const uint64_t before[2], const unsigned char *payload, size_t payload_size,
                        uint64_t out_chain[2])
{
    /* Over the payload's digest, not the payload: one can be blacked out and the chain still holds.
     */
    const XXH128_hash_t own = XXH3_128bits(payload, payload_size);
    unsigned char joined[32];
    put64(joined, before[0]);
    put64(joined + 8, before[1]);
    put64(joined + 16, own.low64);
    put64(joined + 24, own.high64);
    const XXH128_hash_t chain = XXH3_128bits(joined, sizeof joined);
    out_chain[0] = chain.low64;
    out_chain[1] = chain.high64;
}

enum status journal_frame_check(const unsigned char *bytes, size_t size, uint64_t number,
                                struct journal_head *out_head, const char **out_broken)
{
    *out_broken = NULL;
    if (size < JOURNAL_HEAD_BYTES) {
        *out_broken = "shorter than its head";
        return STATUS_JOURNAL_DAMAGED;
    }
    journal_head_read(bytes, out_head);
    if (out_head->version != JOURNAL_FORMAT_VERSION) {
        *out_broken = "of an unknown format version";
    } else if (out_head->payload_size != size - JOURNAL_HEAD_BYTES) {
        *out_broken = "of another length than its head says";
    } else if (out_head->number != number) {
        *out_broken = "in another entry's place";
    } else if (out_head->check !=
               journal_head_check(bytes, bytes + JOURNAL_HEAD_BYTES, out_head->payload_size)) {
        *out_broken = "altered: its check does not fit its bytes";
    } else if (out_head->room_before >= number) {
        *out_broken = "pointing forward";
    }
    return *out_broken == NULL ? STATUS_OK : STATUS_JOURNAL_DAMAGED;
}
