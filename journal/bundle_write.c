/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a bundle, block by block. */
#include "bundle_private.h"
#include "journal_private.h"
#include "little_endian.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#define ZSTD_LEVEL 6

struct bundle_writer {
    int fd;
    bool standard; /* output */
    char path[4096];
    char part[4104];
    unsigned char *raw;
    size_t raw_used;
    unsigned char *stored;
    size_t stored_size;
    ZSTD_CCtx *zstd;
    struct block_head block; /* open; kind 0: none */
    uint64_t ordinal;
    uint64_t chain[2]; /* of blocks */
    uint64_t next;     /* number of the next entry */
    uint64_t entry_chain[2];
    uint64_t entries;
    uint64_t bytes;
    struct status_detail detail;
};

/* ---- bytes around a block
 * -------------------------------------------------------------------------------------- */

void block_head_write(const struct block_head *head, unsigned char *bytes)
{
    put32(bytes, BLOCK_MAGIC);
    put16(bytes + 4, head->kind);
    put16(bytes + 6, head->packing);
    put32(bytes + 8, head->stored);
    put32(bytes + 12, head->raw);
    put64(bytes + 16, head->ordinal);
    put64(bytes + 24, head->number);
    put32(bytes + 32, head->index);
    put32(bytes + 36, head->count);
    put64(bytes + 40, head->check);
    put64(bytes + 48, head->chain[0]);
    put64(bytes + 56, head->chain[1]);
}

void block_head_read(const unsigned char *bytes, struct block_head *out)
{
    out->kind = get16(bytes + 4);
    out->packing = get16(bytes + 6);
    out->stored = get32(bytes + 8);
    out->raw = get32(bytes + 12);
    out->ordinal = get64(bytes + 16);
    out->number = get64(bytes + 24);
    out->index = get32(bytes + 32);
    out->count = get32(bytes + 36);
    out->check = get64(bytes + 40);
    out->chain[0] = get64(bytes + 48);
    out->chain[1] = get64(bytes + 56);
}

uint64_t block_check(const unsigned char *head_bytes, const unsigned char *stored, size_t size)
{
    /* Without check and chain, which come after it. */
    return XXH3_64bits_withSeed(stored, size, XXH3_64bits(head_bytes, 40));
}

void block_chain_next(const uint64_t before[2], const unsigned char *head_bytes,
                      uint64_t out_chain[2])
{
    unsigned char joined[16 + BLOCK_CHECKED_BYTES];
    put64(joined, before[0]);
    put64(joined + 8, before[1]);
    memcpy(joined + 16, head_bytes, BLOCK_CHECKED_BYTES);
    const XXH128_hash_t chain = XXH3_128bits(joined, sizeof joined);
    out_chain[0] = chain.low64;
    out_chain[1] = chain.high64;
}

void bundle_chain_begin(const unsigned char *head_and_payload, size_t size, uint64_t out_chain[2])
{
    const XXH128_hash_t chain = XXH3_128bits(head_and_payload, size);
    out_chain[0] = chain.low64;
    out_chain[1] = chain.high64;
}

uint64_t bundle_head_check(const unsigned char *head, const unsigned char *payload, size_t size)
{
    return XXH3_64bits_withSeed(payload, size, XXH3_64bits(head, 16));
}

/* ---- writing
 * ------------------------------------------------------------------------------------------------
 */

const struct status_detail *bundle_detail(const struct bundle_writer *writer)
{
    return &writer->detail;
}

void bundle_chain(const struct bundle_writer *writer, uint64_t out_chain[2])
{
    memcpy(out_chain, writer->entry_chain, sizeof writer->entry_chain);
}

static enum status io_failed(struct bundle_writer *writer, const char *what)
{
    const bool full = errno == ENOSPC || errno == EDQUOT;
    return status_fail(full ? STATUS_JOURNAL_FULL : STATUS_JOURNAL_IO, &writer->detail, errno,
                       "bundle %s: %s: %s", writer->path, what, strerror(errno));
}

static enum status put_bytes(struct bundle_writer *writer, const unsigned char *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t written = write(writer->fd, bytes, size);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return io_failed(writer, "it cannot be written");
        }
        bytes += written;
        size -= (size_t)written;
        writer->bytes += (uint64_t)written;
    }
    return STATUS_OK;
}

/* Writes the open block; what does not get smaller is stored as it is. */
static enum status end_block(struct bundle_writer *writer)
{
    unsigned char bytes[BLOCK_HEAD_BYTES];
    struct block_head *head = &writer->block;
    const unsigned char *stored = writer->raw;
    size_t size = writer->raw_used;
    if (head->kind == 0) {
        return STATUS_OK;
    }
    const size_t packed = ZSTD_compressCCtx(writer->zstd, writer->stored, writer->stored_size,
                                            writer->raw, writer->raw_used, ZSTD_LEVEL);
    head->packing = BLOCK_PLAIN;
    if (!ZSTD_isError(packed) && packed < size) {
        head->packing = BLOCK_ZSTD;
        stored = writer->stored;
        size = packed;
    }
    head->stored = (uint32_t)size;
    head->raw = (uint32_t)writer->raw_used;
    head->ordinal = writer->ordinal++;
    block_head_write(head, bytes);
    head->check = block_check(bytes, stored, size);
    block_head_write(head, bytes);
    block_chain_next(writer->chain, bytes, head->chain);
    memcpy(writer->chain, head->chain, sizeof writer->chain);
    block_head_write(head, bytes);
    memset(head, 0, sizeof *head);
    writer->raw_used = 0;
    TRY(put_bytes(writer, bytes, sizeof bytes));
    return put_bytes(writer, stored, size);
}

/* Room for `size` more bytes in a block of this kind. */
static enum status into_block(struct bundle_writer *writer, uint16_t kind, uint64_t number,
                              uint32_t index, size_t size)
{
    struct block_head *head = &writer->block;
    if (size > BLOCK_RAW_MAX) {
        return status_fail(STATUS_TOO_LARGE, &writer->detail, 0,
                           "bundle %s: %zu bytes are over the bound of a block", writer->path,
                           size);
    }
    if (head->kind != kind || writer->raw_used + size > BLOCK_RAW_AIM) {
        TRY(end_block(writer));
    }
    if (head->kind == 0) {
        head->kind = kind;
        head->number = number;
        head->index = index;
    }
    head->count++;
    return STATUS_OK;
}

static void add(struct bundle_writer *writer, const void *bytes, size_t size)
{
    memcpy(writer->raw + writer->raw_used, bytes, size);
    writer->raw_used += size;
}

static enum status put_head(struct bundle_writer *writer, const struct codec_bundle *head)
{
    struct codec_arena scratch;
    size_t size = 0;
    unsigned char *bytes = writer->raw;
    void *memory = malloc(BUNDLE_HEAD_PAYLOAD_MAX);
    if (memory == NULL) {
        return status_fail(STATUS_NO_MEMORY, &writer->detail, 0, "no memory for a bundle");
    }
    codec_arena_init(&scratch, memory, BUNDLE_HEAD_PAYLOAD_MAX);
    const enum status status = codec_bundle_pack(head, &scratch, bytes + BUNDLE_HEAD_BYTES,
                                                 BUNDLE_HEAD_PAYLOAD_MAX, &size);
    free(memory);
    if (status != STATUS_OK) {
        return status_fail(status, &writer->detail, 0, "bundle %s: its head: %s", writer->path,
                           status_text(status));
    }
    memcpy(bytes, BUNDLE_MAGIC, 8);
    put32(bytes + 8, BUNDLE_FORMAT);
    put32(bytes + 12, (uint32_t)size);
    put64(bytes + 16, bundle_head_check(bytes, bytes + BUNDLE_HEAD_BYTES, size));
    bundle_chain_begin(bytes, BUNDLE_HEAD_BYTES + size, writer->chain);
    writer->next = head->first;
    memcpy(writer->entry_chain, head->chain, sizeof writer->entry_chain);
    return put_bytes(writer, bytes, BUNDLE_HEAD_BYTES + size);
}

static enum status open_file(struct bundle_writer *writer, const char *path)
{
    const int path_size = snprintf(writer->path, sizeof writer->path, "%s", path);
    if (path_size < 1 || (size_t)path_size >= sizeof writer->path) {
        return status_fail(STATUS_INVALID, &writer->detail, 0,
                           "the bundle's name is empty or too long");
    }
    if (strcmp(path, "-") == 0) {
        writer->standard = true;
        writer->fd = STDOUT_FILENO;
        return STATUS_OK;
    }
    if (access(path, F_OK) == 0) {
        return status_fail(STATUS_EXISTS, &writer->detail, 0,
                           "%s is there already; name another file, or remove it", path);
    }
    (void)snprintf(writer->part, sizeof writer->part, "%s.part", path);
    writer->fd = open(writer->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    return writer->fd >= 0 ? STATUS_OK : io_failed(writer, "it cannot be made");
}

static void free_writer(struct bundle_writer *writer)
{
    if (writer->fd >= 0 && !writer->standard) {
        (void)close(writer->fd);
    }
    (void)ZSTD_freeCCtx(writer->zstd);
    free(writer->raw);
    free(writer->stored);
    free(writer);
}

void bundle_abandon(struct bundle_writer *writer)
{
    if (writer != NULL) {
        if (writer->fd >= 0 && !writer->standard) {
            (void)unlink(writer->part);
        }
        free_writer(writer);
    }
}

enum status bundle_create(const char *path, const struct codec_bundle *head,
                          struct bundle_writer **out_writer, struct status_detail *out_detail)
{
    struct bundle_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a bundle");
    }
    writer->fd = -1;
    writer->stored_size = ZSTD_compressBound(BLOCK_RAW_MAX);
    writer->raw = malloc(BLOCK_RAW_MAX);
    writer->stored = malloc(writer->stored_size);
    writer->zstd = ZSTD_createCCtx();
    enum status status =
        writer->raw == NULL || writer->stored == NULL || writer->zstd == NULL
            ? status_fail(STATUS_NO_MEMORY, &writer->detail, 0, "no memory for a bundle")
            : open_file(writer, path);
    status = status == STATUS_OK ? put_head(writer, head) : status;
    if (status != STATUS_OK) {
        *out_detail = writer->detail;
        bundle_abandon(writer);
        return status;
    }
    *out_writer = writer;
    return STATUS_OK;
}

enum status bundle_segment(struct bundle_writer *writer, uint64_t began_ns)
{
    unsigned char bytes[BLOCK_SEGMENT_BYTES];
    put64(bytes, began_ns);
    TRY(end_block(writer));
    TRY(into_block(writer, BLOCK_SEGMENT, writer->next, 0, sizeof bytes));
    add(writer, bytes, sizeof bytes);
    return end_block(writer);
}

enum status bundle_snapshot_item(struct bundle_writer *writer, uint64_t entry, uint32_t index,
                                 const unsigned char *bytes, size_t size)
{
    unsigned char length[4];
    if (index == 0) {
        TRY(end_block(writer));
    }
    put32(length, (uint32_t)size);
    TRY(into_block(writer, BLOCK_SNAPSHOT, entry, index, sizeof length + size));
    add(writer, length, sizeof length);
    add(writer, bytes, size);
    return STATUS_OK;
}

enum status bundle_entry(struct bundle_writer *writer, const struct journal_record *record)
{
    unsigned char bytes[JOURNAL_HEAD_BYTES];
    struct journal_head head = {JOURNAL_FORMAT_VERSION,
                                0,
                                (uint32_t)record->payload_size,
                                0,
                                record->number,
                                record->room,
                                record->room_before,
                                {0, 0}};
    if (record->number != writer->next) {
        return status_fail(STATUS_INVALID, &writer->detail, 0,
                           "bundle %s: entry %" PRIu64 " cannot stand where %" PRIu64 " belongs",
                           writer->path, record->number, writer->next);
    }
    TRY(into_block(writer, BLOCK_ENTRIES, record->number, 0,
                   JOURNAL_HEAD_BYTES + record->payload_size));
    journal_chain_next(writer->entry_chain, record->payload, record->payload_size, head.chain);
    journal_head_write(&head, bytes);
    head.check = journal_head_check(bytes, record->payload, record->payload_size);
    journal_head_write(&head, bytes);
    add(writer, bytes, sizeof bytes);
    add(writer, record->payload, record->payload_size);
    memcpy(writer->entry_chain, head.chain, sizeof writer->entry_chain);
    writer->next++;
    writer->entries++;
    return STATUS_OK;
}

enum status bundle_settle(struct bundle_writer *writer)
{
    return end_block(writer);
}

static enum status put_end(struct bundle_writer *writer)
{
    unsigned char bytes[BLOCK_END_BYTES];
    TRY(end_block(writer));
    put64(bytes, writer->entries);
    put64(bytes + 8, writer->next - 1u);
    put64(bytes + 16, writer->entry_chain[0]);
    put64(bytes + 24, writer->entry_chain[1]);
    TRY(into_block(writer, BLOCK_END, writer->next - 1u, 0, sizeof bytes));
    add(writer, bytes, sizeof bytes);
    return end_block(writer);
}

static enum status sync_and_name(struct bundle_writer *writer)
{
    if (writer->standard) {
        return STATUS_OK;
    }
    if (fsync(writer->fd) != 0) {
        return io_failed(writer, "it cannot be flushed");
    }
    /* link, not rename: what has come by that name meanwhile is not overwritten. */
    if (link(writer->part, writer->path) != 0) {
        return io_failed(writer, "it cannot be named");
    }
    (void)unlink(writer->part);
    return STATUS_OK;
}

enum status bundle_finish(struct bundle_writer *writer, uint64_t *out_bytes,
                          struct status_detail *out_detail)
{
    enum status status = put_end(writer);
    status = status == STATUS_OK ? sync_and_name(writer) : status;
    if (status != STATUS_OK) {
        *out_detail = writer->detail;
        bundle_abandon(writer);
        return status;
    }
    *out_bytes = writer->bytes;
    free_writer(writer);
    return STATUS_OK;
}
