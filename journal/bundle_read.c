/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a bundle: its blocks are found once, by their heads, and unpacked when they are asked
 * for. */
#include "bundle_reader.h"
#include "journal_private.h"
#include "little_endian.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- opening
 * ------------------------------------------------------------------------------------------- */

enum status bundle_pread(const struct bundle *bundle, uint64_t at, unsigned char *out, size_t size)
{
    while (size > 0) {
        const ssize_t got = pread(bundle->fd, out, size, (off_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? STATUS_JOURNAL_IO : STATUS_JOURNAL_DAMAGED;
        }
        out += got;
        at += (uint64_t)got;
        size -= (size_t)got;
    }
    return STATUS_OK;
}

static enum status unpack_head(struct bundle *bundle, struct status_detail *out_detail)
{
    const enum status status =
        codec_bundle_unpack(bundle->head_bytes + BUNDLE_HEAD_BYTES, get32(bundle->head_bytes + 12),
                            &bundle->head_arena, &bundle->head);
    if (status != STATUS_OK) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "bundle %s: its head does not parse: %s", bundle->path,
                           status_text(status));
    }
    if (bundle->head.unknown != NULL) {
        return status_fail(STATUS_JOURNAL_VERSION, out_detail, 0,
                           "bundle %s: it needs the feature '%.64s', which this program does not "
                           "know; use the program version that wrote it, or a newer one",
                           bundle->path, bundle->head.unknown);
    }
    return bundle->head.journal_format == JOURNAL_FORMAT_VERSION
               ? STATUS_OK
               : status_fail(STATUS_JOURNAL_VERSION, out_detail, 0,
                             "bundle %s: its entries are of journal format %u, this program reads "
                             "format %u: use the program version that wrote it",
                             bundle->path, bundle->head.journal_format, JOURNAL_FORMAT_VERSION);
}

enum status bundle_read_head(struct bundle *bundle, struct status_detail *out_detail)
{
    unsigned char head[BUNDLE_HEAD_BYTES];
    if (bundle->size < sizeof head || bundle_pread(bundle, 0, head, sizeof head) != STATUS_OK ||
        memcmp(head, BUNDLE_MAGIC, 8) != 0) {
        return status_fail(STATUS_NOT_FOUND, out_detail, 0,
                           "%s is neither a journal's directory nor a bundle", bundle->path);
    }
    const uint32_t size = get32(head + 12);
    if (get32(head + 8) != BUNDLE_FORMAT) {
        return status_fail(STATUS_JOURNAL_VERSION, out_detail, 0,
                           "bundle %s: bundle format %u, this program reads format %u: use the "
                           "program version that wrote it",
                           bundle->path, get32(head + 8), BUNDLE_FORMAT);
    }
    if (size > BUNDLE_HEAD_PAYLOAD_MAX || BUNDLE_HEAD_BYTES + size > bundle->size) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "bundle %s: it is cut off in its head", bundle->path);
    }
    bundle->head_bytes = malloc(BUNDLE_HEAD_BYTES + (size_t)size);
    bundle->head_memory = malloc(HEAD_ARENA_BYTES);
    if (bundle->head_bytes == NULL || bundle->head_memory == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to read a bundle");
    }
    codec_arena_init(&bundle->head_arena, bundle->head_memory, HEAD_ARENA_BYTES);
    if (bundle_pread(bundle, 0, bundle->head_bytes, BUNDLE_HEAD_BYTES + (size_t)size) !=
            STATUS_OK ||
        get64(head + 16) != bundle_head_check(head, bundle->head_bytes + BUNDLE_HEAD_BYTES, size)) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "bundle %s: its head is altered: its check does not fit its bytes",
                           bundle->path);
    }
    bundle_chain_begin(bundle->head_bytes, BUNDLE_HEAD_BYTES + (size_t)size, bundle->chain);
    bundle->blocks_at = BUNDLE_HEAD_BYTES + (uint64_t)size;
    return unpack_head(bundle, out_detail);
}

enum status bundle_open_file(const char *path, struct bundle **out_bundle,
                             struct status_detail *out_detail)
{
    struct bundle *bundle = calloc(1, sizeof *bundle);
    struct stat info;
    if (bundle == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to read a bundle");
    }
    (void)snprintf(bundle->path, sizeof bundle->path, "%s", path);
    bundle->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (bundle->fd < 0 || fstat(bundle->fd, &info) != 0) {
        const int error = errno;
        bundle_close(bundle);
        return status_fail(error == ENOENT ? STATUS_NOT_FOUND : STATUS_JOURNAL_IO, out_detail,
                           error, "%s cannot be opened: %s", path, strerror(error));
    }
    if (!S_ISREG(info.st_mode)) {
        bundle_close(bundle);
        return status_fail(STATUS_NOT_FOUND, out_detail, 0,
                           "%s is neither a journal's directory nor a bundle", path);
    }
    bundle->size = (uint64_t)info.st_size;
    *out_bundle = bundle;
    return STATUS_OK;
}

void bundle_close(struct bundle *bundle)
{
    if (bundle == NULL) {
        return;
    }
    if (bundle->fd >= 0) {
        (void)close(bundle->fd);
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        free(bundle->slots[i].raw);
        free(bundle->slots[i].offsets);
    }
    (void)ZSTD_freeDCtx(bundle->zstd);
    free(bundle->stored);
    free(bundle->blocks);
    free(bundle->segments);
    free(bundle->snapshots);
    free(bundle->own.at);
    free(bundle->also.at);
    free(bundle->head_bytes);
    free(bundle->head_memory);
    free(bundle);
}

/* ---- the row of blocks
 * -------------------------------------------------------------------------------------- */

/* One more in a list that doubles; NULL: no memory. */
void *bundle_grow(void *list, uint64_t count, size_t each)
{
    const bool full = count == 0 || (count >= 16u && (count & (count - 1u)) == 0);
    return full ? realloc(list, (size_t)(count < 16u ? 16u : 2u * count) * each) : list;
}

const char *bundle_block_wrong(const struct bundle *bundle, const unsigned char *bytes,
                               const struct block_head *head)
{
    uint64_t chain[2];
    if (get32(bytes) != BLOCK_MAGIC) {
        return "does not begin as a block";
    }
    block_chain_next(bundle->chain, bytes, chain);
    if (memcmp(chain, head->chain, sizeof chain) != 0) {
        return head->ordinal != bundle->ordinal
                   ? "is another one: a block was lost, repeated or swapped"
                   : "is altered, or does not follow the one before it";
    }
    if (head->ordinal != bundle->ordinal || head->packing > BLOCK_ZSTD ||
        head->stored > BLOCK_STORED_MAX || head->raw > BLOCK_RAW_MAX || head->count == 0) {
        return "has a head that makes no sense";
    }
    return NULL;
}

/* What the block is in the row of those before it; NULL: it fits. */
static const char *take_segment(struct bundle *bundle, const struct block_head *head, uint64_t at)
{
    struct bundle_segment *grown =
        bundle_grow(bundle->segments, bundle->segment_count, sizeof *grown);
    if (grown == NULL) {
        return "does not fit into memory";
    }
    bundle->segments = grown;
    if (head->number != bundle->next || head->count != 1u || head->raw != BLOCK_SEGMENT_BYTES) {
        return "begins a segment that does not follow the one before it";
    }
    grown[bundle->segment_count++] = (struct bundle_segment){head->number, at, bundle->block_count};
    return NULL;
}

static const char *take_snapshot(struct bundle *bundle, const struct block_head *head)
{
    struct bundle_snapshot *last =
        bundle->snapshot_count > 0 ? &bundle->snapshots[bundle->snapshot_count - 1u] : NULL;
    if (head->number != bundle->next - 1u || bundle->segment_count == 0) {
        return "is of a snapshot at another entry";
    }
    if (head->index != 0) {
        const bool follows = last != NULL && last->entry == head->number &&
                             last->first_block + last->blocks == bundle->block_count &&
                             last->items == head->index;
        if (!follows) {
            return "is of a snapshot without its beginning";
        }
        last->blocks++;
        last->items += head->count;
        return last->items < head->count ? "has a head that makes no sense" : NULL;
    }
    struct bundle_snapshot *grown =
        bundle_grow(bundle->snapshots, bundle->snapshot_count, sizeof *grown);
    if (grown == NULL) {
        return "does not fit into memory";
    }
    bundle->snapshots = grown;
    grown[bundle->snapshot_count++] =
        (struct bundle_snapshot){head->number, bundle->block_count, 1, head->count};
    return NULL;
}

const char *bundle_take_block(struct bundle *bundle, const struct block_head *head, uint64_t at)
{
    switch (head->kind) {
    case BLOCK_SEGMENT:
        return take_segment(bundle, head, at);
    case BLOCK_SNAPSHOT:
        return take_snapshot(bundle, head);
    case BLOCK_ENTRIES:
        if (head->number != bundle->next || bundle->segment_count == 0 ||
            head->count > head->raw / JOURNAL_HEAD_BYTES ||
            bundle->next + head->count < bundle->next) {
            return "holds other entries than belong there";
        }
        bundle->next += head->count;
        return NULL;
    case BLOCK_END:
        bundle->ended = true;
        return head->number != bundle->next - 1u || head->raw != BLOCK_END_BYTES
                   ? "ends the bundle at another entry"
                   : NULL;
    default:
        return "is of a kind that this program does not know";
    }
}

static enum status broken(struct bundle *bundle, uint64_t at, const char *what,
                          struct status_detail *out_detail)
{
    (void)snprintf(bundle->broken, sizeof bundle->broken,
                   "block %" PRIu64 " at byte %" PRIu64 " (after entry %" PRIu64 ") %s",
                   bundle->ordinal, at, bundle->next - 1u, what);
    return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                       "bundle %s: %s; `stateroom repair` saves what is before it", bundle->path,
                       bundle->broken);
}

static enum status add_block(struct bundle *bundle, const unsigned char *bytes, uint64_t at,
                             struct status_detail *out_detail)
{
    struct block_head head;
    block_head_read(bytes, &head);
    const char *wrong = bundle_block_wrong(bundle, bytes, &head);
    if (wrong == NULL && at + BLOCK_HEAD_BYTES + head.stored > bundle->size) {
        wrong = "is cut off";
    }
    struct bundle_block *grown = bundle_grow(bundle->blocks, bundle->block_count, sizeof *grown);
    if (grown == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to read a bundle");
    }
    bundle->blocks = grown;
    wrong = wrong == NULL ? bundle_take_block(bundle, &head, at) : wrong;
    if (wrong != NULL) {
        return broken(bundle, at, wrong, out_detail);
    }
    memcpy(bundle->chain, head.chain, sizeof bundle->chain);
    bundle->blocks[bundle->block_count++] = (struct bundle_block){at, head.number, head.kind};
    bundle->ordinal++;
    return STATUS_OK;
}

static enum status find_blocks(struct bundle *bundle, struct status_detail *out_detail)
{
    unsigned char bytes[BLOCK_HEAD_BYTES];
    uint64_t at = bundle->blocks_at;
    bundle->next = bundle->head.first;
    while (!bundle->ended) {
        if (at + sizeof bytes > bundle->size) {
            return broken(bundle, at, "is missing: the file is cut off", out_detail);
        }
        const enum status status = bundle_pread(bundle, at, bytes, sizeof bytes);
        if (status != STATUS_OK) {
            return broken(bundle, at, "cannot be read", out_detail);
        }
        TRY(add_block(bundle, bytes, at, out_detail));
        at += sizeof bytes + get32(bytes + 8);
    }
    return at == bundle->size
               ? STATUS_OK
               : broken(bundle, at, "stands after the end of the bundle", out_detail);
}

/* ---- unpacking
 * ---------------------------------------------------------------------------------------- */

bool bundle_read_stored(struct bundle *bundle, uint64_t at, const unsigned char *head_bytes,
                        const struct block_head *head, const char **out_wrong)
{
    *out_wrong = NULL;
    if (head->stored > bundle->stored_size || bundle->stored == NULL) {
        unsigned char *grown = realloc(bundle->stored, (size_t)head->stored + 1u);
        if (grown == NULL) {
            return false;
        }
        bundle->stored = grown;
        bundle->stored_size = head->stored;
    }
    if (bundle_pread(bundle, at + BLOCK_HEAD_BYTES, bundle->stored, head->stored) != STATUS_OK) {
        *out_wrong = "cannot be read";
    } else if (head->check != block_check(head_bytes, bundle->stored, head->stored)) {
        *out_wrong = "is altered: its check does not fit its bytes";
    }
    return true;
}

/* Before memory is taken for it: whether the stored bytes can be as long as the head says. */
static bool size_fits(const struct bundle *bundle, const struct block_head *head)
{
    return head->packing == BLOCK_PLAIN
               ? head->stored == head->raw
               : ZSTD_getFrameContentSize(bundle->stored, head->stored) == head->raw;
}

static bool unpack(struct bundle *bundle, const struct block_head *head, unsigned char *out_raw)
{
    if (head->packing == BLOCK_PLAIN) {
        memcpy(out_raw, bundle->stored, head->raw);
        return true;
    }
    bundle->zstd = bundle->zstd == NULL ? ZSTD_createDCtx() : bundle->zstd;
    return bundle->zstd != NULL && ZSTD_decompressDCtx(bundle->zstd, out_raw, head->raw,
                                                       bundle->stored, head->stored) == head->raw;
}

/* Where each frame or item of a block begins; false: it is not made of `count` of them. */
static bool find_parts(const struct bundle_slot *slot)
{
    const bool entries = slot->head.kind == BLOCK_ENTRIES;
    const uint32_t before = entries ? JOURNAL_HEAD_BYTES : 4u;
    uint32_t at = 0;
    for (uint32_t i = 0; i < slot->head.count; i++) {
        slot->offsets[i] = at;
        if (slot->head.raw - at < before) {
            return false;
        }
        const uint32_t size = get32(slot->raw + at + (entries ? 4u : 0u));
        if (size > slot->head.raw - at - before) {
            return false;
        }
        at += before + size;
    }
    slot->offsets[slot->head.count] = at;
    return at == slot->head.raw;
}

enum status bundle_load_into(struct bundle *bundle, uint64_t at, const unsigned char *head_bytes,
                             struct bundle_slot *slot, const char **out_wrong)
{
    const struct block_head *head = &slot->head;
    *out_wrong = NULL;
    if (head->count > head->raw) {
        *out_wrong = "has a head that makes no sense";
    } else if (!bundle_read_stored(bundle, at, head_bytes, head, out_wrong)) {
        return STATUS_NO_MEMORY;
    } else if (*out_wrong == NULL && !size_fits(bundle, head)) {
        *out_wrong = "has another length than its head says";
    }
    if (*out_wrong != NULL) {
        return STATUS_JOURNAL_DAMAGED;
    }
    slot->raw = malloc((size_t)head->raw + 1u);
    slot->offsets = malloc(((size_t)head->count + 1u) * sizeof *slot->offsets);
    if (slot->raw == NULL || slot->offsets == NULL) {
        return STATUS_NO_MEMORY;
    }
    if (!unpack(bundle, head, slot->raw)) {
        *out_wrong = "cannot be unpacked";
    } else if ((head->kind == BLOCK_ENTRIES || head->kind == BLOCK_SNAPSHOT) && !find_parts(slot)) {
        *out_wrong = "is not made of as many parts as its head says";
    }
    return *out_wrong == NULL ? STATUS_OK : STATUS_JOURNAL_DAMAGED;
}

void bundle_empty_slot(struct bundle_slot *slot)
{
    free(slot->raw);
    free(slot->offsets);
    memset(slot, 0, sizeof *slot);
}

enum status bundle_load(struct bundle *bundle, uint64_t block, struct bundle_slot **out_slot,
                        struct status_detail *out_detail)
{
    unsigned char bytes[BLOCK_HEAD_BYTES];
    struct bundle_slot *slot = &bundle->slots[0];
    const char *wrong = "cannot be read";
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (bundle->slots[i].raw != NULL && bundle->slots[i].block == block) {
            bundle->slots[i].used = ++bundle->tick;
            *out_slot = &bundle->slots[i];
            return STATUS_OK;
        }
        slot = bundle->slots[i].used < slot->used ? &bundle->slots[i] : slot;
    }
    bundle_empty_slot(slot);
    const uint64_t at = bundle->blocks[block].at;
    enum status status = bundle_pread(bundle, at, bytes, sizeof bytes);
    if (status == STATUS_OK) {
        block_head_read(bytes, &slot->head);
        /* The file may have changed since its blocks were found. */
        if (slot->head.kind != bundle->blocks[block].kind ||
            slot->head.number != bundle->blocks[block].number ||
            slot->head.stored > BLOCK_STORED_MAX || slot->head.raw > BLOCK_RAW_MAX) {
            status = STATUS_JOURNAL_DAMAGED;
            wrong = "has changed under its reader";
        } else {
            status = bundle_load_into(bundle, at, bytes, slot, &wrong);
        }
    }
    if (status != STATUS_OK) {
        bundle_empty_slot(slot);
        return status_fail(status, out_detail, 0,
                           "bundle %s: block %" PRIu64 " at byte %" PRIu64 " %s", bundle->path,
                           block, at, wrong != NULL ? wrong : status_text(status));
    }
    slot->block = block;
    slot->used = ++bundle->tick;
    *out_slot = slot;
    return STATUS_OK;
}

/* ---- entries, snapshots, segments
 * ---------------------------------------------------------------------------- */

/* The last block of entries that begins at or before the entry; block_count: none. */
static uint64_t block_of(const struct bundle *bundle, uint64_t number)
{
    uint64_t low = 0;
    uint64_t high = bundle->block_count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2u;
        if (bundle->blocks[middle].number <= number) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    while (low > 0 && bundle->blocks[low - 1u].kind != BLOCK_ENTRIES) {
        low--;
    }
    return low == 0 ? bundle->block_count : low - 1u;
}

enum status bundle_read(struct bundle *bundle, uint64_t number, struct journal_record *out,
                        uint64_t out_chain[2], struct status_detail *out_detail)
{
    struct bundle_slot *slot = NULL;
    struct journal_head head;
    const char *wrong = NULL;
    if (number < bundle->head.first || number >= bundle->next) {
        return status_fail(STATUS_NOT_FOUND, out_detail, 0,
                           "bundle %s: entry %" PRIu64 " is not in it", bundle->path, number);
    }
    TRY(bundle_load(bundle, block_of(bundle, number), &slot, out_detail));
    const uint64_t index = number - slot->head.number;
    if (index >= slot->head.count) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "bundle %s: entry %" PRIu64 " is missing", bundle->path, number);
    }
    const unsigned char *bytes = slot->raw + slot->offsets[index];
    if (journal_frame_check(bytes, slot->offsets[index + 1u] - slot->offsets[index], number, &head,
                            &wrong) != STATUS_OK) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "bundle %s: entry %" PRIu64 " is %s", bundle->path, number, wrong);
    }
    out->number = number;
    out->room = head.room;
    out->room_before = head.room_before >= bundle->head.first ? head.room_before : 0;
    out->payload = bytes + JOURNAL_HEAD_BYTES;
    out->payload_size = head.payload_size;
    memcpy(out_chain, head.chain, sizeof head.chain);
    return STATUS_OK;
}

enum status bundle_snapshot_newest(const struct bundle *bundle, uint64_t entry, uint64_t *out_entry)
{
    for (uint64_t i = bundle->snapshot_count; i > 0; i--) {
        if (bundle->snapshots[i - 1u].entry <= entry) {
            *out_entry = bundle->snapshots[i - 1u].entry;
            return STATUS_OK;
        }
    }
    return STATUS_NOT_FOUND;
}

enum status bundle_snapshot_get(struct bundle *bundle, uint64_t entry, uint32_t index,
                                const unsigned char **out_bytes, size_t *out_size,
                                struct status_detail *out_detail)
{
    struct bundle_slot *slot = NULL;
    const struct bundle_snapshot *found = NULL;
    for (uint64_t i = bundle->snapshot_count; i > 0 && found == NULL; i--) {
        found = bundle->snapshots[i - 1u].entry == entry ? &bundle->snapshots[i - 1u] : NULL;
    }
    if (found == NULL || index >= found->items) {
        return STATUS_END;
    }
    uint64_t block = found->first_block;
    /* Items are asked for in a row: go on from the block that the last one was in. */
    if (bundle->item_block >= block && bundle->item_block < block + found->blocks &&
        bundle->item_first <= index) {
        block = bundle->item_block;
    }
    for (; block < found->first_block + found->blocks; block++) {
        TRY(bundle_load(bundle, block, &slot, out_detail));
        if (index >= slot->head.index && index - slot->head.index < slot->head.count) {
            const uint32_t part = index - slot->head.index;
            bundle->item_block = block;
            bundle->item_first = slot->head.index;
            *out_bytes = slot->raw + slot->offsets[part] + 4u;
            *out_size = slot->offsets[part + 1u] - slot->offsets[part] - 4u;
            return STATUS_OK;
        }
    }
    return STATUS_END;
}

uint32_t bundle_segment_count(const struct bundle *bundle)
{
    return (uint32_t)bundle->segment_count;
}

uint64_t bundle_segment_first(const struct bundle *bundle, uint32_t index)
{
    return index < bundle->segment_count ? bundle->segments[index].first : 0;
}

enum status bundle_segment_at(struct bundle *bundle, uint32_t index, struct journal_segment *out,
                              struct status_detail *out_detail)
{
    struct bundle_slot *slot = NULL;
    if (index >= bundle->segment_count) {
        return STATUS_NOT_FOUND;
    }
    const struct bundle_segment *segment = &bundle->segments[index];
    const bool newest = index + 1u == bundle->segment_count;
    TRY(bundle_load(bundle, segment->block, &slot, out_detail));
    out->first = segment->first;
    out->last = (newest ? bundle->next : segment[1].first) - 1u;
    out->bytes = (newest ? bundle->size : segment[1].at) - segment->at;
    out->began_ns = get64(slot->raw);
    out->newest = newest;
    return STATUS_OK;
}

/* ---- the handle
 * ---------------------------------------------------------------------------------------- */

/* The end must name the last entry and its chain. Without an end the last entry says its own. */
static enum status check_end(struct bundle *bundle, struct status_detail *out_detail)
{
    struct bundle_slot *slot = NULL;
    struct journal_record record;
    memcpy(bundle->last_chain, bundle->head.chain, sizeof bundle->last_chain);
    if (bundle->next > bundle->head.first) {
        const enum status status =
            bundle_read(bundle, bundle->next - 1u, &record, bundle->last_chain, out_detail);
        TRY(status);
    }
    if (!bundle->ended) {
        return STATUS_OK;
    }
    TRY(bundle_load(bundle, bundle->block_count - 1u, &slot, out_detail));
    const bool same = get64(slot->raw) == bundle->next - bundle->head.first &&
                      get64(slot->raw + 8) == bundle->next - 1u &&
                      get64(slot->raw + 16) == bundle->last_chain[0] &&
                      get64(slot->raw + 24) == bundle->last_chain[1];
    return same ? STATUS_OK
                : status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                              "bundle %s: its end names another last entry than it holds",
                              bundle->path);
}

enum status bundle_open(const char *path, bool salvage, struct bundle **out_bundle,
                        struct status_detail *out_detail)
{
    struct bundle *bundle = NULL;
    TRY(bundle_open_file(path, &bundle, out_detail));
    enum status status = bundle_read_head(bundle, out_detail);
    if (status == STATUS_OK) {
        status = find_blocks(bundle, out_detail);
        status = status == STATUS_OK ? check_end(bundle, out_detail) : status;
        if (status == STATUS_JOURNAL_DAMAGED && salvage) {
            if (bundle->broken[0] == '\0') {
                (void)snprintf(bundle->broken, sizeof bundle->broken, "%s", out_detail->text);
            }
            status = STATUS_OK;
        }
    }
    if (status != STATUS_OK) {
        bundle_close(bundle);
        return status;
    }
    *out_bundle = bundle;
    return STATUS_OK;
}

const struct codec_bundle *bundle_head(const struct bundle *bundle)
{
    return &bundle->head;
}

const char *bundle_broken(const struct bundle *bundle)
{
    return bundle->broken;
}

void bundle_identity(const struct bundle *bundle, struct journal_identity *out)
{
    out->node_id = bundle->head.node_id;
    out->epoch = bundle->head.epoch;
    out->last = bundle->next - 1u;
    out->first = bundle->next > bundle->head.first ? bundle->head.first : 0;
    memcpy(out->chain, bundle->last_chain, sizeof out->chain);
}
