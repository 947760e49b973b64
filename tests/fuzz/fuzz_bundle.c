/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bundles: any file is read or refused. Each input is tried as it is, and again with its checks,
 * chains and places made to fit, so that what is behind them is reached. What verification finds
 * well must be readable to its end.
 */
#include "bundle_private.h"
#include "journal_private.h"
#include "little_endian.h"

#include "journal/journal_bundle.h"
#include "journal/journal_recover.h"
#include "journal/journal_verify.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE_MAX_HERE 65536u
#define ENTRIES_READ 256u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- checks that fit
 * ----------------------------------------------------------------------------------- */

static void mend_frames(unsigned char *bytes, size_t size, uint64_t number, uint64_t chain[2])
{
    size_t at = 0;
    while (size - at >= JOURNAL_HEAD_BYTES) {
        struct journal_head head;
        unsigned char *payload = bytes + at + JOURNAL_HEAD_BYTES;
        journal_head_read(bytes + at, &head);
        if (head.payload_size > size - at - JOURNAL_HEAD_BYTES) {
            return;
        }
        head.number = number++;
        journal_chain_next(chain, payload, head.payload_size, head.chain);
        memcpy(chain, head.chain, sizeof head.chain);
        head.check = 0;
        journal_head_write(&head, bytes + at);
        head.check = journal_head_check(bytes + at, payload, head.payload_size);
        journal_head_write(&head, bytes + at);
        at += JOURNAL_HEAD_BYTES + head.payload_size;
    }
}

static void mend(unsigned char *bytes, size_t size)
{
    uint64_t chain[2];
    uint64_t entry_chain[2] = {0, 0};
    uint64_t ordinal = 0;
    if (size < BUNDLE_HEAD_BYTES || get32(bytes + 12) > size - BUNDLE_HEAD_BYTES) {
        return;
    }
    size_t at = BUNDLE_HEAD_BYTES + get32(bytes + 12);
    put64(bytes + 16, bundle_head_check(bytes, bytes + BUNDLE_HEAD_BYTES, at - BUNDLE_HEAD_BYTES));
    bundle_chain_begin(bytes, at, chain);
    while (size - at >= BLOCK_HEAD_BYTES) {
        struct block_head head;
        block_head_read(bytes + at, &head);
        unsigned char *stored = bytes + at + BLOCK_HEAD_BYTES;
        if (head.stored > size - at - BLOCK_HEAD_BYTES) {
            return;
        }
        head.ordinal = ordinal++;
        if (head.kind == BLOCK_ENTRIES && head.packing == BLOCK_PLAIN) {
            mend_frames(stored, head.stored, head.number, entry_chain);
        }
        if (head.kind == BLOCK_END && head.stored == BLOCK_END_BYTES) {
            put64(stored + 16, entry_chain[0]);
            put64(stored + 24, entry_chain[1]);
        }
        block_head_write(&head, bytes + at);
        head.check = block_check(bytes + at, stored, head.stored);
        block_head_write(&head, bytes + at);
        block_chain_next(chain, bytes + at, head.chain);
        memcpy(chain, head.chain, sizeof chain);
        block_head_write(&head, bytes + at);
        at += BLOCK_HEAD_BYTES + head.stored;
    }
}

/* ---- everything that a reader may ask
 * -------------------------------------------------------------------- */

static bool read_all(struct journal *journal)
{
    struct journal_identity identity;
    struct journal_record record;
    struct journal_segment segment;
    const unsigned char *bytes = NULL;
    size_t size = 0;
    uint64_t room = 0;
    uint64_t number = 0;
    bool well = true;
    (void)journal_identity(journal, &identity);
    for (uint64_t i = 0; identity.first != 0 && i < ENTRIES_READ; i++) {
        const uint64_t n = identity.first + i;
        if (n > identity.last || n < identity.first) {
            break;
        }
        well = journal_read(journal, n, &record) == STATUS_OK && well;
    }
    for (uint32_t i = 0; journal_segment_at(journal, i, &segment) == STATUS_OK; i++) {
        assert(segment.first == journal_segment_first(journal, i));
    }
    while (journal_room_next(journal, room, &room, &number) == STATUS_OK) {
        uint64_t also = 0;
        (void)journal_room_also(journal, room, 1, &also);
        if (journal_read(journal, number, &record) == STATUS_OK) {
            (void)journal_room_before(journal, &record, &number);
        }
    }
    number = UINT64_MAX;
    while (journal_snapshot_newest(journal, number, &number) == STATUS_OK) {
        for (uint32_t i = 0; journal_snapshot_get(journal, number, i, &bytes, &size) == STATUS_OK;
             i++) {
        }
        if (number-- == 0) {
            break;
        }
    }
    return well;
}

static void run_again(struct journal *journal)
{
    struct journal_machine machine;
    struct journal_replayed replayed;
    struct status_detail detail;
    const struct journal_replay options = {.until = ENTRIES_READ};
    if (journal_machine_open(&machine, &detail) == STATUS_OK) {
        (void)journal_replay(journal, &machine, &options, &replayed, &detail);
        journal_machine_close(&machine);
    }
}

static void try(const unsigned char *bytes, size_t size, bool run)
{
    struct journal_fault_report report;
    struct status_detail detail;
    char path[64];
    const int fd = memfd_create("bundle", MFD_CLOEXEC);
    assert(fd >= 0);
    assert(write(fd, bytes, size) == (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const bool verified = bundle_verify(path, &report, &detail) == STATUS_OK;
    for (uint32_t salvage = 0; salvage < 2u; salvage++) {
        struct journal *journal = NULL;
        const struct journal_options options = {
            .path = path, .read_only = true, .salvage = salvage != 0};
        const enum status status = journal_open(&options, &journal, &detail);
        assert(!verified || status == STATUS_OK);
        if (status == STATUS_OK) {
            const bool well = read_all(journal);
            assert(!verified || well);
            if (run && salvage != 0) {
                run_again(journal);
            }
            journal_close(journal);
        }
    }
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > SIZE_MAX_HERE) {
        return 0;
    }
    unsigned char *bytes = malloc(size + 1u);
    assert(bytes != NULL);
    memcpy(bytes, data, size);
    try(bytes, size, false);
    mend(bytes, size);
    try(bytes, size, true);
    free(bytes);
    return 0;
}
