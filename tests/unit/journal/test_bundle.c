/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bundles: what is written is read again, replays and becomes a journal again; each altered byte,
 * each cut and each block that is missing, repeated or swapped is found, and what is before it can
 * be saved.
 */
#include "bundle_private.h"
#include "little_endian.h"
#include "recording.h"

#include "journal/journal_bundle.h"
#include "journal/journal_verify.h"

#include <sys/stat.h>

#define NOW UINT64_C(1000000000000)

TestSuite(bundle, .init = make_directory, .fini = remove_directory, .timeout = 300);

static char bundle_path[96];
static char copy_path[96];

static void name_files(void)
{
    (void)snprintf(bundle_path, sizeof bundle_path, "%s/a.bundle", directory);
    (void)snprintf(copy_path, sizeof copy_path, "%s/copy", directory);
}

/* Some entries in three segments. */
static void record_three(struct recording *r, uint64_t commands)
{
    record_begin(r, JOURNAL_NO_SYNC, 0);
    for (uint64_t i = 0; i < commands; i++) {
        record_command(r, i, 0);
        if (i + 1u == commands / 3u || i + 1u == commands / 3u * 2u) {
            cr_assert_eq(journal_commit(r->journal), STATUS_OK);
            cr_assert_eq(journal_segment_begin(r->journal, NOW + i), STATUS_OK);
            record_snapshot(r);
            cr_assert_eq(journal_segment_end(r->journal), STATUS_OK);
        }
    }
    cr_assert_eq(journal_commit(r->journal), STATUS_OK);
}

static struct journal *open_path(const char *path, bool salvage)
{
    struct journal *journal = NULL;
    struct status_detail detail = {"", 0};
    const struct journal_options options = {.path = path, .read_only = true, .salvage = salvage};
    cr_assert_eq(journal_open(&options, &journal, &detail), STATUS_OK, "%s", detail.text);
    return journal;
}

/* Writes the journal's entries as a bundle. */
static void write_bundle(struct journal *journal)
{
    static const uint64_t rooms[2] = {5, 6};
    struct bundle_writer *writer = NULL;
    struct journal_sink sink;
    struct journal_copied copied;
    struct journal_identity identity;
    struct status_detail detail = {"", 0};
    const struct journal_copy_options options = {NULL, NULL, true};
    uint64_t bytes = 0;
    struct codec_bundle head = {.kind = CODEC_BUNDLE_RANGE,
                                .journal_format = JOURNAL_FORMAT_VERSION,
                                .node = {"P", 1},
                                .rooms = rooms,
                                .room_count = 2};
    cr_assert_eq(journal_identity(journal, &identity), STATUS_OK);
    head.node_id = identity.node_id;
    head.epoch = identity.epoch;
    head.first = identity.first;
    cr_assert_eq(journal_chain_at(journal, identity.first - 1u, head.chain), STATUS_OK);
    cr_assert_eq(bundle_create(bundle_path, &head, &writer, &detail), STATUS_OK, "%s", detail.text);
    cr_assert_eq(journal_sink_open(&sink, NULL, writer, &head, &detail), STATUS_OK);
    cr_assert_eq(
        journal_copy(journal, identity.first, identity.last, &sink, &options, &copied, &detail),
        STATUS_OK, "%s", detail.text);
    journal_sink_close(&sink);
    cr_assert_eq(bundle_finish(writer, &bytes, &detail), STATUS_OK, "%s", detail.text);
    cr_assert_eq(copied.entries, identity.last - identity.first + 1u);
}

static void expect_same(struct journal *a, struct journal *b)
{
    struct journal_identity x;
    struct journal_identity y;
    struct journal_record record;
    cr_assert_eq(journal_identity(a, &x), STATUS_OK);
    cr_assert_eq(journal_identity(b, &y), STATUS_OK);
    cr_assert_eq(memcmp(&x, &y, sizeof x), 0);
    for (uint64_t n = x.first; n <= x.last; n++) {
        cr_assert_eq(journal_read(a, n, &record), STATUS_OK);
        const struct journal_record one = record;
        unsigned char *payload = malloc(one.payload_size);
        memcpy(payload, one.payload, one.payload_size);
        cr_assert_eq(journal_read(b, n, &record), STATUS_OK);
        cr_assert_eq(record.number, one.number);
        cr_assert_eq(record.room, one.room);
        cr_assert_eq(record.payload_size, one.payload_size);
        cr_assert_eq(memcmp(record.payload, payload, one.payload_size), 0, "entry %llu",
                     (unsigned long long)n);
        free(payload);
    }
    uint64_t room = 0;
    uint64_t room_b = 0;
    uint64_t last = 0;
    uint64_t last_b = 0;
    enum status status = STATUS_OK;
    while ((status = journal_room_next(a, room, &room, &last)) == STATUS_OK) {
        cr_assert_eq(journal_room_next(b, room_b, &room_b, &last_b), STATUS_OK);
        cr_assert(room == room_b && last == last_b);
    }
    cr_assert_eq(status, STATUS_END);
    cr_assert_eq(journal_room_next(b, room_b, &room_b, &last_b), STATUS_END);
}

static uint64_t replayed_digest(struct journal *journal, bool from_snapshot, uint64_t *out_entries)
{
    struct journal_machine machine;
    struct journal_replayed replayed;
    struct status_detail detail = {"", 0};
    const struct journal_replay options = {.from_snapshot = from_snapshot, .check = true};
    cr_assert_eq(journal_machine_open(&machine, &detail), STATUS_OK);
    cr_assert_eq(journal_replay(journal, &machine, &options, &replayed, &detail), STATUS_OK, "%s",
                 detail.text);
    *out_entries = replayed.entries;
    const uint64_t digest = sm_digest(machine.sm);
    journal_machine_close(&machine);
    return digest;
}

static void expect_well(const char *path, uint64_t entries)
{
    struct journal_fault_report report;
    struct status_detail detail = {"", 0};
    cr_assert_eq(journal_verify_in_child(path, &report, &detail), STATUS_OK, "%s", detail.text);
    cr_assert_eq(report.entries, entries);
}

/* A directory from whatever is open. */
static void into_directory(struct journal *from)
{
    struct journal *to = NULL;
    struct journal_sink sink;
    struct journal_copied copied;
    struct journal_identity identity;
    struct status_detail detail = {"", 0};
    const struct journal_options options = {.path = copy_path, .mode = JOURNAL_NO_SYNC};
    const struct journal_copy_options copy = {NULL, NULL, true};
    cr_assert_eq(journal_identity(from, &identity), STATUS_OK);
    cr_assert_eq(journal_open(&options, &to, &detail), STATUS_OK);
    cr_assert_eq(journal_sink_open(&sink, to, NULL, journal_bundle_head(from), &detail), STATUS_OK);
    cr_assert_eq(journal_copy(from, identity.first, identity.last, &sink, &copy, &copied, &detail),
                 STATUS_OK, "%s", detail.text);
    journal_sink_close(&sink);
    journal_close(to);
}

Test(bundle, what_was_written_is_read_replayed_and_made_a_journal_again)
{
    struct recording r = {0};
    uint64_t entries = 0;
    uint32_t removed = 0;
    name_files();
    record_three(&r, 300);
    const uint64_t last = r.next - 1u;
    const uint64_t digest = sm_digest(r.machine.sm);
    /* Whole, and without its oldest segment. */
    for (uint32_t round = 0; round < 2u; round++) {
        write_bundle(r.journal);
        expect_well(bundle_path, round == 0 ? last : last - 102u);
        struct journal *bundle = open_path(bundle_path, false);
        cr_assert_eq(journal_bundle_head(bundle)->room_count, 2u);
        cr_assert_eq(journal_bundle_head(bundle)->rooms[1], 6u);
        expect_same(r.journal, bundle);
        cr_assert_eq(replayed_digest(bundle, false, &entries), digest);
        cr_assert_eq(entries, round == 0 ? last : last - 102u);
        cr_assert_eq(replayed_digest(bundle, true, &entries), digest);
        cr_assert_eq(entries, last - 202u);
        into_directory(bundle);
        expect_well(copy_path, round == 0 ? last : last - 102u);
        struct journal *copy = open_path(copy_path, false);
        expect_same(bundle, copy);
        cr_assert_eq(journal_segment_count(copy), journal_segment_count(bundle));
        cr_assert_eq(replayed_digest(copy, false, &entries), digest);
        journal_close(copy);
        journal_close(bundle);
        char command[256];
        (void)snprintf(command, sizeof command, "rm -r '%s' '%s'", bundle_path, copy_path);
        cr_assert_eq(system(command), 0);
        cr_assert_eq(journal_trim_before(r.journal, 103, &removed), STATUS_OK);
        cr_assert_eq(removed, round == 0 ? 1u : 0u);
    }
    journal_close(r.journal);
}

/* ---- damage
 * ------------------------------------------------------------------------------------------------
 */

struct bytes {
    unsigned char *at;
    size_t size;
};

static struct bytes read_file(const char *path)
{
    struct bytes bytes = {NULL, 0};
    struct stat info;
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    cr_assert_eq(fstat(fileno(file), &info), 0);
    bytes.size = (size_t)info.st_size;
    bytes.at = malloc(bytes.size + 1u);
    cr_assert_eq(fread(bytes.at, 1, bytes.size, file), bytes.size);
    (void)fclose(file);
    return bytes;
}

static void write_file(const char *path, const unsigned char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    cr_assert_eq(fclose(file), 0);
}

/* A small one with several blocks of each kind, in memory. */
static struct bytes small_bundle(uint64_t *out_last, uint64_t *out_digest)
{
    struct recording r = {0};
    name_files();
    record_three(&r, 60);
    write_bundle(r.journal);
    *out_last = r.next - 1u;
    *out_digest = sm_digest(r.machine.sm);
    journal_close(r.journal);
    return read_file(bundle_path);
}

/* Where each block begins, and the end of the file. */
static uint32_t block_places(const struct bytes *bytes, size_t *out_places)
{
    uint32_t count = 0;
    size_t at = BUNDLE_HEAD_BYTES + get32(bytes->at + 12);
    while (at < bytes->size) {
        out_places[count++] = at;
        at += BLOCK_HEAD_BYTES + get32(bytes->at + at + 8);
    }
    out_places[count] = at;
    return count;
}

/* What can be read of it is the journal's own: it replays. Returns the last entry. */
static uint64_t saved_of(const char *path)
{
    struct journal *journal = NULL;
    struct status_detail detail = {"", 0};
    struct journal_identity identity;
    uint64_t entries = 0;
    const struct journal_options options = {.path = path, .read_only = true, .salvage = true};
    const enum status status = journal_open(&options, &journal, &detail);
    if (status != STATUS_OK) {
        return 0;
    }
    cr_assert_str_neq(journal_bundle_broken(journal), "", "damage was not seen");
    cr_assert_eq(journal_identity(journal, &identity), STATUS_OK);
    if (identity.last > 0) {
        (void)replayed_digest(journal, false, &entries);
    }
    journal_close(journal);
    return identity.last;
}

Test(bundle, each_cut_is_seen_and_what_is_before_it_is_saved)
{
    uint64_t last = 0;
    uint64_t digest = 0;
    const struct bytes whole = small_bundle(&last, &digest);
    uint64_t most = 0;
    for (size_t size = 0; size < whole.size; size += size + 120u < whole.size ? 23u : 1u) {
        struct journal_fault_report report;
        struct status_detail detail = {"", 0};
        write_file(bundle_path, whole.at, size);
        const enum status status = bundle_verify(bundle_path, &report, &detail);
        cr_assert(status == STATUS_JOURNAL_DAMAGED ||
                      (status == STATUS_NOT_FOUND && size < BUNDLE_HEAD_BYTES),
                  "a file cut to %zu bytes: %s", size, status_name(status));
        const uint64_t saved = saved_of(bundle_path);
        cr_assert_geq(saved, most, "less is saved of more");
        most = saved;
    }
    cr_assert_eq(most, last, "all entries are saved when only the end is missing");
}

/* Reading stops at the damage, wherever it is; what it gives before that replays. */
static void expect_damaged_or_same(uint64_t last)
{
    struct journal *journal = NULL;
    struct journal_machine machine;
    struct journal_replayed replayed;
    struct journal_identity identity;
    struct status_detail detail = {"", 0};
    const struct journal_options options = {
        .path = bundle_path, .read_only = true, .salvage = true};
    const struct journal_replay all = {.check = true};
    if (journal_open(&options, &journal, &detail) != STATUS_OK) {
        return;
    }
    cr_assert_eq(journal_machine_open(&machine, &detail), STATUS_OK);
    cr_assert_eq(journal_identity(journal, &identity), STATUS_OK);
    const enum status status = journal_replay(journal, &machine, &all, &replayed, &detail);
    /* A flip in a snapshot does no harm here: replay starts before it. */
    cr_assert(status == STATUS_JOURNAL_DAMAGED ||
                  (status == STATUS_OK && replayed.last == identity.last),
              "%s", detail.text);
    cr_assert_leq(replayed.last, last);
    journal_machine_close(&machine);
    journal_close(journal);
}

Test(bundle, each_flipped_bit_is_found)
{
    uint64_t last = 0;
    uint64_t digest = 0;
    const struct bytes whole = small_bundle(&last, &digest);
    for (size_t at = 0; at < whole.size; at++) {
        struct journal_fault_report report;
        struct status_detail detail = {"", 0};
        whole.at[at] ^= (unsigned char)(1u << at % 8u);
        write_file(bundle_path, whole.at, whole.size);
        const enum status status = bundle_verify(bundle_path, &report, &detail);
        cr_assert_neq(status, STATUS_OK, "a bit of byte %zu", at);
        cr_assert_gt(strlen(detail.text), 0u);
        if (at % 16u == 0) {
            expect_damaged_or_same(last);
        }
        whole.at[at] ^= (unsigned char)(1u << at % 8u);
    }
    write_file(bundle_path, whole.at, whole.size);
    expect_well(bundle_path, last);
}

/* The blocks in another order: `order` holds places in the row, `count` of them. */
static void rearrange(const struct bytes *whole, const size_t *places, const uint32_t *order,
                      uint32_t count)
{
    FILE *file = fopen(bundle_path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(whole->at, 1, places[0], file), places[0]);
    for (uint32_t i = 0; i < count; i++) {
        const size_t size = places[order[i] + 1u] - places[order[i]];
        cr_assert_eq(fwrite(whole->at + places[order[i]], 1, size, file), size);
    }
    cr_assert_eq(fclose(file), 0);
}

static void expect_fault_in(uint64_t first, uint64_t last, const char *text)
{
    struct journal_fault_report report;
    struct status_detail detail = {"", 0};
    cr_assert_eq(bundle_verify(bundle_path, &report, &detail), STATUS_JOURNAL_DAMAGED);
    cr_assert(report.first_fault >= first && report.first_fault <= last, "at %llu: %s",
              (unsigned long long)report.first_fault, detail.text);
    cr_assert_not_null(strstr(detail.text, text), "%s", detail.text);
    (void)saved_of(bundle_path);
}

Test(bundle, a_block_that_is_missing_repeated_or_swapped_is_found)
{
    uint64_t last = 0;
    uint64_t digest = 0;
    size_t places[64];
    uint32_t order[64];
    const struct bytes whole = small_bundle(&last, &digest);
    const uint32_t count = block_places(&whole, places);
    for (uint32_t which = 0; which + 1u < count; which++) {
        const uint64_t number = get64(whole.at + places[which] + 24);
        uint32_t n = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (i != which) {
                order[n++] = i;
            }
        }
        rearrange(&whole, places, order, n);
        expect_fault_in(number, number + 1u, "lost, repeated or swapped");
        n = 0;
        for (uint32_t i = 0; i < count; i++) {
            order[n++] = i;
            if (i == which) {
                order[n++] = i;
            }
        }
        rearrange(&whole, places, order, n);
        expect_fault_in(number, number + 22u, "lost, repeated or swapped");
        for (uint32_t i = 0; i < count; i++) {
            order[i] = i == which ? which + 1u : (i == which + 1u ? which : i);
        }
        rearrange(&whole, places, order, count);
        expect_fault_in(number, number + 1u, "lost, repeated or swapped");
    }
}

Test(bundle, an_unknown_feature_is_refused_by_name)
{
    static const unsigned char required[] = {0x5a, 7, 'f', 'u', 't', 'u', 'r', 'e', 's'};
    uint64_t last = 0;
    uint64_t digest = 0;
    struct journal *journal = NULL;
    struct status_detail detail = {"", 0};
    const struct bytes whole = small_bundle(&last, &digest);
    const uint32_t size = get32(whole.at + 12);
    unsigned char *bytes = malloc(whole.size + sizeof required);
    memcpy(bytes, whole.at, BUNDLE_HEAD_BYTES + size);
    memcpy(bytes + BUNDLE_HEAD_BYTES + size, required, sizeof required);
    put32(bytes + 12, size + (uint32_t)sizeof required);
    put64(bytes + 16, bundle_head_check(bytes, bytes + BUNDLE_HEAD_BYTES, size + sizeof required));
    write_file(bundle_path, bytes, BUNDLE_HEAD_BYTES + size + sizeof required);
    const struct journal_options options = {.path = bundle_path, .read_only = true};
    cr_assert_eq(journal_open(&options, &journal, &detail), STATUS_JOURNAL_VERSION);
    cr_assert_not_null(strstr(detail.text, "'futures'"), "%s", detail.text);
    free(bytes);
}
