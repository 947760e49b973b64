/* SPDX-License-Identifier: Apache-2.0 */
/* repair, compact, trim, snapshot: keeping a journal, while no node has it. */
#include "carry.h"

#include "coordinator/policy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_HOUR UINT64_C(3600000000000)

/* ---- repair
 * -------------------------------------------------------------------------------------------- */

/*
 * Shared with the child that reads: pages that are damaged may kill it, and then this says how far
 * it came.
 */
struct repairing {
    volatile uint64_t at; /* the entry that it is about to read; 0: it has not opened yet */
    volatile bool over;
    enum status status;
    struct status_detail detail;
    struct journal_copied copied;
    struct journal_identity identity;
    char broken[STATUS_DETAIL_BYTES];
};

static void note_at(void *context, uint64_t number)
{
    struct repairing *repairing = context;
    repairing->at = number;
}

static void repair_child(const char *from, const char *to, uint64_t until, uint64_t leave_from,
                         struct repairing *shared)
{
    struct journal *journal = NULL;
    const struct journal_options options = {
        .path = from, .read_only = true, .salvage = true, .leave_from = leave_from};
    const struct journal_copy_options copy = {note_at, shared, false};
    shared->status = journal_open(&options, &journal, &shared->detail);
    if (shared->status == STATUS_OK) {
        shared->status = journal_identity(journal, &shared->identity);
        shared->detail = *journal_detail(journal);
    }
    if (shared->status == STATUS_OK) {
        (void)snprintf(shared->broken, sizeof shared->broken, "%s", journal_bundle_broken(journal));
        shared->at = shared->identity.first;
        shared->status =
            carry_into_directory(journal, to, until, &copy, true, &shared->copied, &shared->detail);
    }
    journal_close(journal);
    shared->over = true;
}

/* false: the process could not be made. */
static bool run_child(const char *from, const char *to, uint64_t until, uint64_t leave_from,
                      struct repairing *shared)
{
    memset(shared, 0, sizeof *shared);
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        repair_child(from, to, until, leave_from, shared);
        _exit(0);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (child > 0 && !shared->over) {
        carry_remove_part(to);
    }
    return child > 0;
}

/*
 * Until a child comes to its end: what killed one is left out for the next. A newest segment that
 * cannot be opened is left out as a whole, an entry that cannot be read with all that follow.
 */
static bool salvage(const char *from, const char *to, struct repairing *shared,
                    uint64_t *out_left_from)
{
    uint64_t until = 0;
    uint64_t leave_from = 0;
    struct stat info;
    const bool file = stat(from, &info) == 0 && !S_ISDIR(info.st_mode);
    while (run_child(from, to, until, leave_from, shared)) {
        *out_left_from = until != 0 ? until + 1u : leave_from;
        const bool opened = shared->at != 0;
        if (shared->over && (opened || file || shared->status == STATUS_NOT_FOUND)) {
            return true;
        }
        if (opened) {
            until = shared->at - 1u;
            leave_from = shared->at;
            if (until == 0) {
                return true;
            }
            continue;
        }
        leave_from = journal_newest_named(from, leave_from);
        if (leave_from <= 1u || journal_newest_named(from, leave_from) == 0) {
            return true;
        }
    }
    return false;
}

/* What was in the way; "" nothing: the copy is whole. */
static const char *why_not_whole(const struct repairing *shared, uint64_t left_from)
{
    if (!shared->over || (left_from != 0 && shared->status == STATUS_OK)) {
        return "reading it crashed: its pages are damaged";
    }
    if (shared->status != STATUS_OK) {
        return shared->detail.text[0] != '\0' ? shared->detail.text : status_text(shared->status);
    }
    return shared->broken;
}

static int say_repaired(const struct cli_values *values, const char *from, const char *to,
                        const struct repairing *shared, uint64_t left_from)
{
    const char *why = why_not_whole(shared, left_from);
    const bool whole = why[0] == '\0';
    if (shared->copied.entries == 0 && whole) {
        return cli_fail(EXIT_NOT_THERE, "%s has no entry; nothing was made", from);
    }
    if (shared->copied.entries == 0) {
        const bool said = shared->over && shared->status != STATUS_OK;
        return cli_fail(said ? cli_code(shared->status) : EXIT_DAMAGED,
                        "nothing can be saved of %s: %s", from, why);
    }
    if (cli_given(values, "json")) {
        cli_print_json(json_pack("{s:o, s:b, s:I, s:I, s:o}", "journal", cli_json_text(to), "whole",
                                 whole, "entries", (json_int_t)shared->copied.entries, "last",
                                 (json_int_t)shared->copied.last, "damage", cli_json_text(why)));
        return EXIT_WELL;
    }
    printf("%s: %" PRIu64 " entries, up to %" PRIu64 "\n", to, shared->copied.entries,
           shared->copied.last);
    printf(whole ? "nothing is damaged, nothing was left out%s\n"
                 : "what comes after is left out: %s\n",
           why);
    return EXIT_WELL;
}

int cmd_repair(const struct cli_values *values)
{
    int code = EXIT_WELL;
    uint64_t left_from = 0;
    struct stat info;
    const char *to = cli_text(values, "output", NULL);
    const char *from = cli_journal_path(values, 0, &code);
    if (from == NULL) {
        return code;
    }
    if (to == NULL) {
        return cli_fail(EXIT_WRONG_USAGE,
                        "repair: name the directory of the journal to be made with -o DIR; the "
                        "damaged one is not touched");
    }
    if (stat(to, &info) == 0) {
        return cli_fail(EXIT_WRONG_USAGE, "%s is there already; name another directory", to);
    }
    struct repairing *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        return cli_fail(EXIT_UNREACHABLE, "no memory");
    }
    code = salvage(from, to, shared, &left_from)
               ? say_repaired(values, from, to, shared, left_from)
               : cli_fail(EXIT_UNREACHABLE, "no process can be made to read the journal in: %s",
                          strerror(errno));
    (void)munmap(shared, sizeof *shared);
    return code;
}

/* ---- with the journal open for writing
 * ------------------------------------------------------------------------- */

static struct journal *open_to_write(const struct cli_values *values, const char **out_path,
                                     int *out_code)
{
    struct status_detail detail = {"", 0};
    struct journal *journal = NULL;
    *out_path = cli_journal_path(values, 0, out_code);
    if (*out_path == NULL) {
        return NULL;
    }
    /* Opening to write would make one. */
    struct journal *there = cli_open_journal(*out_path, out_code);
    if (there == NULL) {
        return NULL;
    }
    const bool bundle = journal_bundle_head(there) != NULL;
    journal_close(there);
    if (bundle) {
        *out_code = cli_fail(EXIT_WRONG_USAGE,
                             "%s is a bundle, which nothing changes; make a journal of it with "
                             "`stateroom import`",
                             *out_path);
        return NULL;
    }
    const struct journal_options options = {.path = *out_path, .mode = JOURNAL_SYNC};
    const enum status status = journal_open(&options, &journal, &detail);
    if (status != STATUS_OK) {
        *out_code = cli_fail(cli_code(status), "%s", detail.text);
        return NULL;
    }
    return journal;
}

static int say_bytes(const struct cli_values *values, const char *path, uint64_t before,
                     uint64_t after)
{
    char texts[2][32];
    if (cli_given(values, "json")) {
        cli_print_json(json_pack("{s:o, s:I, s:I}", "journal", cli_json_text(path), "before",
                                 (json_int_t)before, "after", (json_int_t)after));
        return EXIT_WELL;
    }
    carry_bytes_text(before, texts[0], sizeof texts[0]);
    carry_bytes_text(after, texts[1], sizeof texts[1]);
    printf("%s: %s before, %s now\n", path, texts[0], texts[1]);
    return EXIT_WELL;
}

int cmd_compact(const struct cli_values *values)
{
    const char *path = NULL;
    int code = EXIT_WELL;
    uint64_t before = 0;
    uint64_t after = 0;
    struct journal *journal = open_to_write(values, &path, &code);
    if (journal == NULL) {
        return code;
    }
    const enum status status = journal_compact(journal, &before, &after);
    code = status == STATUS_OK ? say_bytes(values, path, before, after)
                               : cli_fail(cli_code(status), "%s", journal_detail(journal)->text);
    journal_close(journal);
    return code;
}

static uint64_t bytes_of(struct journal *journal)
{
    struct journal_segment segment;
    uint64_t bytes = 0;
    for (uint32_t i = 0; journal_segment_at(journal, i, &segment) == STATUS_OK; i++) {
        bytes += segment.bytes;
    }
    return bytes;
}

static enum status trim_as_told(const struct cli_values *values, struct journal *journal,
                                const struct journal_retention *retention, uint32_t *out_removed)
{
    struct timespec now;
    uint32_t removed = 0;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    *out_removed = 0;
    if (cli_given(values, "before")) {
        TRY(journal_trim_before(journal, cli_number(values, "before", 0), out_removed));
    }
    TRY(journal_trim(journal, retention, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
                     &removed));
    *out_removed += removed;
    return STATUS_OK;
}

int cmd_trim(const struct cli_values *values)
{
    const char *path = NULL;
    int code = EXIT_WELL;
    uint32_t removed = 0;
    struct journal_retention retention = {0, 0};
    const char *bytes = cli_text(values, "keep-bytes", "0");
    const uint64_t hours = cli_number(values, "keep-hours", 0);
    if (!cli_given(values, "keep-bytes") && hours == 0 && !cli_given(values, "before")) {
        return cli_fail(EXIT_WRONG_USAGE,
                        "trim: say what goes: --keep-bytes SIZE, --keep-hours N or --before SEQ");
    }
    if (!size_parse(bytes, &retention.keep_bytes) || hours > UINT64_MAX / NS_PER_HOUR) {
        return cli_fail(EXIT_WRONG_USAGE, "--keep-bytes is a size as 80GiB, --keep-hours a number");
    }
    retention.keep_ns = hours * NS_PER_HOUR;
    struct journal *journal = open_to_write(values, &path, &code);
    if (journal == NULL) {
        return code;
    }
    const uint64_t before = bytes_of(journal);
    const enum status status = trim_as_told(values, journal, &retention, &removed);
    if (status != STATUS_OK) {
        code = cli_fail(cli_code(status), "%s", journal_detail(journal)->text);
    } else {
        if (!cli_given(values, "json")) {
            printf("%" PRIu32 " of %" PRIu32
                   " segments removed, the journal begins at entry %" PRIu64 "\n",
                   removed, removed + journal_segment_count(journal),
                   journal_segment_first(journal, 0));
        }
        code = say_bytes(values, path, before, bytes_of(journal));
    }
    journal_close(journal);
    return code;
}

/* The machine at the journal's end becomes a snapshot there, or the beginning of a segment. */
static enum status snapshot_at_end(struct journal *journal, bool segment,
                                   struct journal_replayed *out_replayed,
                                   struct status_detail *out_detail)
{
    struct journal_machine machine;
    struct timespec now;
    const struct journal_replay options = {.from_snapshot = true};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    TRY(journal_machine_open(&machine, out_detail));
    enum status status = journal_replay(journal, &machine, &options, out_replayed, out_detail);
    if (status == STATUS_OK && machine.sm == NULL) {
        status = status_fail(STATUS_NOT_FOUND, out_detail, 0, "the journal has no entry");
    }
    if (status == STATUS_OK && segment) {
        status = journal_machine_begin_segment(
            journal, &machine, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
            out_detail);
    } else if (status == STATUS_OK) {
        status = journal_machine_snapshot(journal, &machine, out_detail);
    }
    journal_machine_close(&machine);
    return status;
}

int cmd_snapshot(const struct cli_values *values)
{
    const char *path = NULL;
    int code = EXIT_WELL;
    struct journal_replayed replayed;
    struct status_detail detail = {"", 0};
    struct journal *journal = open_to_write(values, &path, &code);
    if (journal == NULL) {
        return code;
    }
    const bool segment = cli_given(values, "segment");
    const enum status status = snapshot_at_end(journal, segment, &replayed, &detail);
    journal_close(journal);
    if (status != STATUS_OK) {
        return cli_fail(cli_code(status), "%s", detail.text);
    }
    if (cli_given(values, "json")) {
        cli_print_json(json_pack("{s:o, s:I, s:b}", "journal", cli_json_text(path), "entry",
                                 (json_int_t)replayed.last, "segment", segment));
    } else {
        printf("%s: a snapshot at entry %" PRIu64 "%s\n", path, replayed.last,
               segment ? ", with which a segment begins" : "");
    }
    return EXIT_WELL;
}
