/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "disk.h"

#include "journal/journal_recover.h"
#include "journal/journal_verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_BYTES_MAX 16384u
#define TRANSITIONS 8u

struct journal_record store_entry(uint64_t number)
{
    static unsigned char bytes[ENTRY_BYTES_MAX];
    static unsigned char scratch[1u << 18];
    static char text[400];
    static uint64_t also[TRANSITIONS];
    struct codec_arena arena;
    struct codec_entry entry;
    struct sm_transition transitions[TRANSITIONS];
    size_t size = 0;
    memset(&entry, 0, sizeof entry);
    memset(transitions, 0, sizeof transitions);
    memset(text, (int)('a' + number % 26u), sizeof text);
    entry.input.kind = SM_IN_OPEN;
    entry.input.room = 1u + number * 7919u % 23u;
    entry.input.time_ns = number;
    entry.transition_count = (uint32_t)(number * 31u % TRANSITIONS);
    for (uint32_t i = 0; i < entry.transition_count; i++) {
        transitions[i].kind = 1;
        transitions[i].room = i % 3u == 2u ? entry.input.room + i : entry.input.room;
        transitions[i].text = (struct sm_text){text, (uint32_t)(number * 17u % sizeof text)};
    }
    entry.transitions = transitions;
    codec_arena_init(&arena, scratch, sizeof scratch);
    if (codec_entry_pack(&entry, &arena, bytes, sizeof bytes, &size) != STATUS_OK) {
        abort();
    }
    const uint32_t others =
        journal_other_rooms(transitions, entry.transition_count, entry.input.room, also);
    return (struct journal_record){number, entry.input.room, 0, bytes, size, also, others};
}

#define SNAPSHOT_ITEMS 3u
#define ITEM_BYTES 2500u

/* Item 0 is a head, of a machine that nobody has: what follows it need not be a state. */
static size_t snapshot_item(uint64_t entry, uint32_t index, unsigned char *bytes)
{
    static unsigned char scratch[1u << 16];
    const struct codec_snapshot head = {.entry = entry, .machine_version = UINT32_MAX};
    struct codec_arena arena;
    size_t size = ITEM_BYTES;
    memset(bytes, 's', ITEM_BYTES);
    codec_arena_init(&arena, scratch, sizeof scratch);
    if (index == 0 && codec_snapshot_pack(&head, &arena, bytes, ITEM_BYTES, &size) != STATUS_OK) {
        abort();
    }
    return size;
}

enum status store_put_snapshot(struct journal *journal, uint64_t entry)
{
    unsigned char bytes[ITEM_BYTES];
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < SNAPSHOT_ITEMS && status == STATUS_OK; i++) {
        const size_t size = snapshot_item(entry, i, bytes);
        status = journal_snapshot_put(journal, entry, i, bytes, size);
    }
    return status;
}

void store_submit(struct journal_writer *writer, uint64_t number)
{
    const struct journal_record record = store_entry(number);
    unsigned char *slot = NULL;
    while (slot == NULL) {
        slot = writer_begin(writer, record.number, record.room, record.also, record.also_count,
                            record.payload_size);
    }
    memcpy(slot, record.payload, record.payload_size);
    writer_submit(writer);
}

void store_submit_snapshot(struct journal_writer *writer, uint64_t entry, uint64_t now_ns)
{
    unsigned char bytes[ITEM_BYTES];
    for (uint32_t i = 0; i < SNAPSHOT_ITEMS; i++) {
        const size_t size = snapshot_item(entry, i, bytes);
        while (!writer_snapshot_item(writer, entry, i, now_ns, bytes, size)) {
        }
    }
    while (!writer_snapshot_end(writer, entry)) {
    }
}

struct look {
    struct journal *journal;
    struct status_detail detail;
    char *text;
    size_t text_size;
};

static enum store_state bad(const struct look *look, enum store_state state, const char *what)
{
    (void)snprintf(look->text, look->text_size, "%s: %s", what, look->detail.text);
    return state;
}

static enum store_state compare(struct look *look)
{
    struct journal_identity identity;
    struct journal_record found;
    struct journal_fault_report report;
    if (journal_verify(look->journal, &report, &look->detail) != STATUS_OK) {
        return bad(look, STORE_BROKEN, "verify");
    }
    if (journal_identity(look->journal, &identity) != STATUS_OK) {
        return bad(look, STORE_BROKEN, "identity");
    }
    for (uint64_t n = identity.first; n != 0 && n <= identity.last; n++) {
        const struct journal_record expected = store_entry(n);
        if (journal_read(look->journal, n, &found) != STATUS_OK ||
            found.payload_size != expected.payload_size || found.room != expected.room ||
            memcmp(found.payload, expected.payload, found.payload_size) != 0) {
            look->detail = *journal_detail(look->journal);
            return bad(look, STORE_BROKEN, "an entry differs");
        }
    }
    return STORE_WELL;
}

static enum store_state read_it(struct look *look, const char *path,
                                const struct store_promise *promise)
{
    const struct journal_options options = {.path = path, .read_only = true};
    const enum status status = journal_open(&options, &look->journal, &look->detail);
    if (status != STATUS_OK) {
        return status == STATUS_NOT_FOUND && promise->acknowledged == 0
                   ? STORE_WELL
                   : bad(look, STORE_BROKEN, "to read");
    }
    const enum store_state state = compare(look);
    journal_close(look->journal);
    return state;
}

static enum store_state is_kept(struct look *look, const struct store_promise *promise)
{
    struct journal_identity identity;
    const bool told = journal_power_lost(look->journal);
    if (journal_identity(look->journal, &identity) != STATUS_OK) {
        return bad(look, STORE_BROKEN, "identity");
    }
    if (identity.last < promise->acknowledged ||
        identity.first > (promise->trimmed_to > 1u ? promise->trimmed_to : 1u) ||
        identity.epoch < promise->epoch) {
        (void)snprintf(look->text, look->text_size,
                       "entries %" PRIu64 " to %" PRIu64 " and epoch %" PRIu64
                       " are there, promised were %" PRIu64 " to %" PRIu64 " and %" PRIu64,
                       identity.first, identity.last, identity.epoch, promise->trimmed_to,
                       promise->acknowledged, promise->epoch);
        return STORE_LOST;
    }
    if (identity.last < promise->committed && !told) {
        (void)snprintf(look->text, look->text_size,
                       "entries %" PRIu64 " to %" PRIu64 " are gone, and nobody is told",
                       identity.last + 1u, promise->committed);
        return STORE_LOST;
    }
    return STORE_WELL;
}

/* What the next process does: opens it, and goes on. */
static enum store_state go_on(struct look *look)
{
    struct journal_identity identity;
    if (journal_identity(look->journal, &identity) != STATUS_OK) {
        return bad(look, STORE_BROKEN, "identity");
    }
    for (uint64_t n = identity.last + 1u; n <= identity.last + 4u; n++) {
        const struct journal_record record = store_entry(n);
        if (journal_append(look->journal, &record) != STATUS_OK ||
            (n % 2u == 0 && journal_commit(look->journal) != STATUS_OK)) {
            look->detail = *journal_detail(look->journal);
            return bad(look, STORE_BROKEN, "to go on");
        }
    }
    return journal_commit(look->journal) == STATUS_OK ? compare(look)
                                                      : bad(look, STORE_BROKEN, "to go on");
}

struct store_promise store_promised(uint32_t at)
{
    return (struct store_promise){disk_promised(DISK_ACKNOWLEDGED, at),
                                  disk_promised(DISK_TRIMMED_TO, at),
                                  disk_promised(DISK_COMMITTED, at), disk_promised(DISK_EPOCH, at)};
}

enum store_state store_look(const char *path, const struct store_promise *promise, char *out_text,
                            size_t text_size)
{
    struct look look = {.text = out_text, .text_size = text_size};
    const struct journal_options options = {.path = path, .mode = JOURNAL_SYNC};
    enum store_state state = read_it(&look, path, promise);
    if (state != STORE_WELL) {
        return state;
    }
    if (journal_open(&options, &look.journal, &look.detail) != STATUS_OK) {
        return bad(&look, STORE_BROKEN, "to write");
    }
    state = is_kept(&look, promise);
    state = state == STORE_WELL ? go_on(&look) : state;
    journal_close(look.journal);
    return state;
}
