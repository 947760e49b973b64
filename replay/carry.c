/* SPDX-License-Identifier: Apache-2.0 */
/* Journals carried from one form into another. */
#include "carry.h"

#include "schemas/text.h"
#include "statemachine/sm_image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)96 << 20)
#define PATH_BYTES 4096u
#define STARTS_WITHIN 20000u

void carry_bytes_text(uint64_t bytes, char *out, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1u < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(out, size, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

/* ---- the head
 * ------------------------------------------------------------------------------------------ */

/* Keeps the packed entry when it is a start. */
static bool take_start(const struct journal_record *record, struct codec_arena *arena,
                       struct carry_head *out)
{
    struct codec_entry entry;
    codec_arena_reset(arena);
    if (record->room != 0 ||
        codec_entry_unpack(record->payload, record->payload_size, arena, &entry) != STATUS_OK ||
        entry.input.kind != SM_IN_NODE_STARTED) {
        return false;
    }
    out->started = malloc(record->payload_size);
    if (out->started == NULL) {
        return false;
    }
    memcpy(out->started, record->payload, record->payload_size);
    out->head.started =
        (struct sm_text){(const char *)out->started, (uint32_t)record->payload_size};
    const struct sm_text name = entry.input.u.node_started.name;
    (void)text_clean(name.bytes, name.size, out->node, sizeof out->node);
    out->head.machine_version = entry.machine_version;
    return true;
}

/* Name and version, from the newest snapshot before `first`. */
static void name_in_snapshot(struct journal *journal, uint64_t first, struct codec_arena *arena,
                             struct carry_head *out)
{
    struct codec_snapshot head;
    struct sm_item item;
    const unsigned char *bytes = NULL;
    size_t size = 0;
    uint64_t entry = 0;
    codec_arena_reset(arena);
    if (journal_snapshot_newest(journal, first - 1u, &entry) != STATUS_OK ||
        journal_snapshot_get(journal, entry, 0, &bytes, &size) != STATUS_OK ||
        codec_snapshot_unpack(bytes, size, arena, &head) != STATUS_OK ||
        journal_snapshot_get(journal, entry, 1, &bytes, &size) != STATUS_OK ||
        codec_item_unpack(bytes, size, arena, &item) != STATUS_OK || item.kind != SM_ITEM_NODE ||
        item.text_count == 0) {
        return;
    }
    out->head.machine_version = head.machine_version;
    (void)text_clean(item.texts[0].bytes, item.texts[0].size, out->node, sizeof out->node);
}

/*
 * The newest start at or before `first`, if it is near: a trimmed journal may have none, and no
 * index leads to it. What a reader must know of it is in the snapshot too.
 */
static void find_start(struct journal *journal, uint64_t first, uint64_t oldest,
                       struct carry_head *out)
{
    struct journal_record record;
    struct codec_arena arena;
    void *memory = malloc(ARENA_BYTES);
    codec_arena_init(&arena, memory, memory != NULL ? ARENA_BYTES : 0);
    oldest =
        first > STARTS_WITHIN && first - STARTS_WITHIN > oldest ? first - STARTS_WITHIN : oldest;
    for (uint64_t number = first; number >= oldest && number > 0 && out->started == NULL;
         number--) {
        if (journal_read(journal, number, &record) != STATUS_OK ||
            take_start(&record, &arena, out)) {
            break;
        }
    }
    if (out->started == NULL && memory != NULL) {
        name_in_snapshot(journal, first, &arena, out);
    }
    free(memory);
}

enum status carry_head_make(struct journal *journal, uint64_t first, struct carry_head *out,
                            struct status_detail *out_detail)
{
    struct journal_identity identity;
    memset(out, 0, sizeof *out);
    enum status status = journal_identity(journal, &identity);
    if (status == STATUS_OK && identity.last > 0 && first <= identity.last) {
        status = journal_chain_at(journal, first - 1u, out->head.chain);
    }
    if (status != STATUS_OK) {
        *out_detail = *journal_detail(journal);
        return status;
    }
    const struct codec_bundle *from = journal_bundle_head(journal);
    out->head.kind = from != NULL ? from->kind : CODEC_BUNDLE_RANGE;
    out->head.rooms = from != NULL ? from->rooms : NULL;
    out->head.room_count = from != NULL ? from->room_count : 0;
    out->head.node_id = identity.node_id;
    out->head.epoch = identity.epoch;
    out->head.first = first;
    out->head.journal_format = JOURNAL_FORMAT_VERSION;
    out->head.source_first = identity.first;
    out->head.source_last = identity.last;
    out->head.program = (struct sm_text){"stateroom 0.1.0", 15};
    find_start(journal, first, identity.first, out);
    if (out->started == NULL && from != NULL) {
        out->head.started = from->started;
        out->head.machine_version = from->machine_version;
        (void)text_clean(from->node.bytes, from->node.size, out->node, sizeof out->node);
    }
    out->head.node = (struct sm_text){out->node, (uint32_t)strlen(out->node)};
    return STATUS_OK;
}

void carry_head_free(struct carry_head *head)
{
    free(head->started);
    head->started = NULL;
}

/* ---- ranges
 * -------------------------------------------------------------------------------------------- */

enum status carry_machine_at(struct journal *journal, uint64_t entry,
                             struct journal_machine *out_machine, struct status_detail *out_detail)
{
    const struct journal_replay options = {.until = entry, .from_snapshot = true};
    struct journal_replayed replayed;
    TRY(journal_machine_open(out_machine, out_detail));
    const enum status status =
        journal_replay(journal, out_machine, &options, &replayed, out_detail);
    if (status != STATUS_OK) {
        journal_machine_close(out_machine);
    }
    return status;
}

struct putting {
    struct journal_sink *sink;
    uint64_t entry;
    enum status status;
};

static bool put_item(void *context, uint32_t index, const unsigned char *bytes, size_t size)
{
    struct putting *putting = context;
    putting->status = sink_snapshot_item(putting->sink, putting->entry, index, bytes, size);
    return putting->status == STATUS_OK;
}

static bool begins_segment(const struct journal *journal, uint64_t number)
{
    uint64_t first = 0;
    for (uint32_t i = 0; (first = journal_segment_first(journal, i)) != 0; i++) {
        if (first == number) {
            return true;
        }
    }
    return false;
}

static enum status put_snapshot(struct journal *journal, uint64_t entry, struct journal_sink *sink,
                                struct status_detail *out_detail)
{
    struct journal_machine machine;
    struct putting putting = {sink, entry, STATUS_OK};
    TRY(carry_machine_at(journal, entry, &machine, out_detail));
    putting.status = sink_segment(sink, 0);
    enum status status = putting.status;
    if (status == STATUS_OK) {
        status = journal_machine_pack(&machine, entry, put_item, &putting, out_detail);
    }
    journal_machine_close(&machine);
    if (putting.status != STATUS_OK) {
        *out_detail = *journal_sink_detail(sink);
        return putting.status;
    }
    return status;
}

static void show_progress(void *context, uint64_t number)
{
    if (number % 4096u == 0) {
        cli_progress_show(context, number);
    }
}

enum status carry_range(struct journal *journal, uint64_t from, uint64_t until,
                        struct journal_sink *sink, const struct journal_copy_options *options,
                        struct journal_copied *out_copied, struct status_detail *out_detail)
{
    struct cli_progress progress;
    const struct journal_copy_options usual = {show_progress, &progress, true};
    memset(out_copied, 0, sizeof *out_copied);
    if (!begins_segment(journal, from)) {
        TRY(put_snapshot(journal, from - 1u, sink, out_detail));
    }
    cli_progress_begin(&progress, "copying", until);
    const enum status status = journal_copy(
        journal, from, until, sink, options != NULL ? options : &usual, out_copied, out_detail);
    cli_progress_end(&progress);
    return status;
}

/* ---- into a directory
 * ---------------------------------------------------------------------------------- */

static enum status give_name(const char *part, const char *path, struct status_detail *out_detail)
{
    char parent[PATH_BYTES + 8u];
    if (rename(part, path) != 0) {
        return status_fail(STATUS_JOURNAL_IO, out_detail, errno,
                           "journal %s: it cannot be named: %s", path, strerror(errno));
    }
    (void)snprintf(parent, sizeof parent, "%s/..", path);
    const int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
    return STATUS_OK;
}

static enum status fill_directory(struct journal *journal, const char *part, uint64_t until,
                                  const struct journal_copy_options *options,
                                  struct journal_copied *out_copied,
                                  struct status_detail *out_detail)
{
    struct journal_identity identity;
    struct carry_head head;
    struct journal_sink sink;
    struct journal *to = NULL;
    const struct journal_options open_options = {.path = part, .mode = JOURNAL_PROCESS};
    enum status status = journal_identity(journal, &identity);
    if (status != STATUS_OK) {
        *out_detail = *journal_detail(journal);
        return status;
    }
    const uint64_t first = identity.first != 0 ? identity.first : 1u;
    TRY(carry_head_make(journal, first, &head, out_detail));
    status = journal_open(&open_options, &to, out_detail);
    if (status == STATUS_OK) {
        status = journal_sink_open(&sink, to, NULL, &head.head, out_detail);
    }
    if (status == STATUS_OK) {
        const uint64_t last = until != 0 && until < identity.last ? until : identity.last;
        status = carry_range(journal, first, last, &sink, options, out_copied, out_detail);
        journal_sink_close(&sink);
    }
    journal_close(to);
    carry_head_free(&head);
    return status;
}

/* What a journal is made of, and nothing else. */
static void remove_journal(const char *path)
{
    char file[PATH_BYTES + 512u];
    DIR *directory = opendir(path);
    for (const struct dirent *entry = directory != NULL ? readdir(directory) : NULL; entry != NULL;
         entry = readdir(directory)) {
        const char *end = strstr(entry->d_name, ".mdb");
        if ((end != NULL && (end[4] == '\0' || strcmp(end, ".mdb-lock") == 0)) ||
            strcmp(entry->d_name, "LOCK") == 0 || strcmp(entry->d_name, "RUNNING") == 0) {
            (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
            (void)unlink(file);
        }
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
    (void)rmdir(path);
}

enum status carry_into_directory(struct journal *journal, const char *path, uint64_t until,
                                 const struct journal_copy_options *options, bool keep_part,
                                 struct journal_copied *out_copied,
                                 struct status_detail *out_detail)
{
    char part[PATH_BYTES];
    struct stat info;
    memset(out_copied, 0, sizeof *out_copied);
    if (stat(path, &info) == 0) {
        return status_fail(STATUS_EXISTS, out_detail, 0,
                           "%s is there already; name another directory", path);
    }
    const int size = snprintf(part, sizeof part, "%s.part", path);
    if (size < 0 || (size_t)size >= sizeof part) {
        return status_fail(STATUS_INVALID, out_detail, 0, "the journal's path is too long");
    }
    if (stat(part, &info) == 0) {
        return status_fail(STATUS_EXISTS, out_detail, 0,
                           "%s is there already: remove it if no other command makes it", part);
    }
    const enum status status =
        fill_directory(journal, part, until, options, out_copied, out_detail);
    if (keep_part ? out_copied->entries > 0 : status == STATUS_OK) {
        struct status_detail naming = {"", 0};
        const enum status named = give_name(part, path, &naming);
        if (named != STATUS_OK) {
            *out_detail = naming;
            return named;
        }
        return status;
    }
    remove_journal(part);
    return status;
}

void carry_remove_part(const char *path)
{
    char part[PATH_BYTES];
    const int size = snprintf(part, sizeof part, "%s.part", path);
    if (size > 0 && (size_t)size < sizeof part) {
        remove_journal(part);
    }
}
