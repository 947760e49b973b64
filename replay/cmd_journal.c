/* SPDX-License-Identifier: Apache-2.0 */
/* verify, tail, stat. */
#include "carry.h"

#include "schemas/text.h"

#include "journal/journal_verify.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ARENA_BYTES ((size_t)64 << 20)

/* ---- verify
 * -------------------------------------------------------------------------------------------- */

int cmd_verify(const struct cli_values *values)
{
    struct journal_fault_report report;
    struct status_detail detail = {"", 0};
    int code = EXIT_WELL;
    const char *path = cli_journal_path(values, 0, &code);
    if (path == NULL) {
        return code;
    }
    const enum status status = journal_verify_in_child(path, &report, &detail);
    if (cli_given(values, "json")) {
        cli_print_json(json_pack("{s:o, s:b, s:I, s:I, s:I, s:o}", "journal", cli_json_text(path),
                                 "well", status == STATUS_OK, "entries", (json_int_t)report.entries,
                                 "faults", (json_int_t)report.faults, "first_fault",
                                 (json_int_t)report.first_fault, "text",
                                 cli_json_text(detail.text)));
        return cli_code(status);
    }
    if (status != STATUS_OK) {
        return cli_fail(cli_code(status), "%s%s", detail.text,
                        report.faults > 1u ? " (and there are more faults)" : "");
    }
    printf("%s: well, %" PRIu64 " entries\n", path, report.entries);
    return EXIT_WELL;
}

/* ---- tail
 * ------------------------------------------------------------------------------------------------
 */

struct reading {
    struct journal *journal;
    struct codec_arena arena;
    void *memory;
};

static bool reading_open(struct reading *reading, const struct cli_values *values, int *out_code)
{
    reading->journal = cli_command_journal(values, 0, out_code);
    reading->memory = malloc(ARENA_BYTES);
    if (reading->journal != NULL && reading->memory == NULL) {
        *out_code = cli_fail(EXIT_UNREACHABLE, "no memory");
    }
    codec_arena_init(&reading->arena, reading->memory, ARENA_BYTES);
    return reading->journal != NULL && reading->memory != NULL;
}

static void reading_close(struct reading *reading)
{
    journal_close(reading->journal);
    free(reading->memory);
}

static enum status read_entry(struct reading *reading, uint64_t number,
                              struct codec_entry *out_entry)
{
    struct journal_record record;
    TRY(journal_read(reading->journal, number, &record));
    codec_arena_reset(&reading->arena);
    return codec_entry_unpack(record.payload, record.payload_size, &reading->arena, out_entry);
}

static void print_entry(uint64_t number, const struct codec_entry *entry, bool json)
{
    char line[1024];
    char stamp[40];
    struct tm parts;
    const time_t seconds = (time_t)(entry->wall_ns / 1000000000u);
    (void)gmtime_r(&seconds, &parts);
    const size_t used = strftime(stamp, sizeof stamp, "%H:%M:%S", &parts);
    (void)snprintf(stamp + used, sizeof stamp - used, ".%06u",
                   (unsigned)(entry->wall_ns % 1000000000u / 1000u));
    (void)sm_describe_input(&entry->input, line, sizeof line);
    if (json) {
        json_t *transitions = json_array();
        char text[1024];
        for (uint32_t i = 0; i < entry->transition_count; i++) {
            (void)sm_describe_transition(&entry->transitions[i], text, sizeof text);
            json_array_append_new(transitions, cli_json_text(text));
        }
        cli_print_json(json_pack("{s:I, s:I, s:I, s:o, s:o}", "entry", (json_int_t)number, "origin",
                                 (json_int_t)entry->origin, "wall_ns", (json_int_t)entry->wall_ns,
                                 "input", cli_json_text(line), "transitions", transitions));
        return;
    }
    (void)text_clean(line, strlen(line), line, sizeof line);
    printf("%8" PRIu64 " %s %s\n", number, stamp, line);
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        (void)sm_describe_transition(&entry->transitions[i], line, sizeof line);
        (void)text_clean(line, strlen(line), line, sizeof line);
        printf("                           . %s\n", line);
    }
}

int cmd_tail(const struct cli_values *values)
{
    struct reading reading;
    struct journal_identity identity;
    struct codec_entry entry;
    int code = EXIT_WELL;
    const uint64_t lines = cli_number(values, "lines", 10);
    if (!reading_open(&reading, values, &code)) {
        reading_close(&reading);
        return code;
    }
    enum status status = journal_identity(reading.journal, &identity);
    uint64_t next = identity.last >= lines ? identity.last - lines + 1u : 1u;
    next = next < identity.first ? identity.first : next;
    while (status == STATUS_OK) {
        for (; next <= identity.last && status == STATUS_OK; next++) {
            status = read_entry(&reading, next, &entry);
            if (status == STATUS_OK) {
                print_entry(next, &entry, cli_given(values, "json"));
            }
        }
        journal_read_pause(reading.journal);
        if (!cli_given(values, "follow") || status != STATUS_OK) {
            break;
        }
        (void)fflush(stdout);
        const struct timespec pause = {0, 100000000};
        (void)nanosleep(&pause, NULL);
        status = journal_identity(reading.journal, &identity);
    }
    if (status != STATUS_OK) {
        code = cli_fail(cli_code(status), "%s", journal_detail(reading.journal)->text);
    }
    reading_close(&reading);
    return code;
}

/* ---- stat
 * --------------------------------------------------------------------------------------------------
 */

struct totals {
    uint64_t inputs[SM_IN_COUNT];
    uint64_t transitions[SM_TR_COUNT];
    uint64_t ignored[SM_IGNORED_COUNT];
    uint64_t refused[SM_REFUSAL_COUNT];
    uint64_t succeeded;
    uint64_t failed;
    uint64_t by_http[1000];
    uint64_t bytes;
    uint64_t first_wall_ns;
    uint64_t last_wall_ns;
};

static void count_entry(struct totals *totals, const struct codec_entry *entry)
{
    totals->first_wall_ns = totals->first_wall_ns == 0 ? entry->wall_ns : totals->first_wall_ns;
    totals->last_wall_ns = entry->wall_ns;
    if (entry->input.kind < SM_IN_COUNT) {
        totals->inputs[entry->input.kind]++;
    }
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        const struct sm_transition *t = &entry->transitions[i];
        if (t->kind < SM_TR_COUNT) {
            totals->transitions[t->kind]++;
        }
        if (t->kind == SM_TR_IGNORED && t->a < SM_IGNORED_COUNT) {
            totals->ignored[t->a]++;
        }
        if (t->kind == SM_TR_REFUSED && t->a < SM_REFUSAL_COUNT) {
            totals->refused[t->a]++;
        }
        if (t->kind == SM_TR_VERDICT && t->a == SM_OUTCOME_SUCCEEDED) {
            totals->succeeded++;
        } else if (t->kind == SM_TR_VERDICT && t->b < 1000u) {
            totals->failed++;
            totals->by_http[t->b]++;
        }
    }
}

static void print_reasons(const char *what, const uint64_t *counts, uint32_t count,
                          const char *(*name)(uint32_t))
{
    printf("%s, because\n", what);
    for (uint32_t i = 1; i < count; i++) {
        if (counts[i] > 0) {
            printf("  %10" PRIu64 "  %s\n", counts[i], name(i));
        }
    }
}

static void stamp_of(uint64_t wall_ns, char *out, size_t size)
{
    struct tm parts;
    const time_t seconds = (time_t)(wall_ns / 1000000000u);
    (void)gmtime_r(&seconds, &parts);
    (void)strftime(out, size, "%Y-%m-%d %H:%M:%S", &parts);
}

/* The files: a line in all, and one for each segment when there are several. */
static void print_files(struct journal *journal, const struct totals *totals)
{
    struct journal_segment segment;
    char text[2][32];
    uint64_t bytes = 0;
    uint32_t count = 0;
    const struct codec_bundle *bundle = journal_bundle_head(journal);
    for (; journal_segment_at(journal, count, &segment) == STATUS_OK; count++) {
        bytes += segment.bytes;
    }
    if (bundle != NULL) {
        char node[SM_NAME_BYTES_MAX + 1u];
        char program[128];
        (void)text_clean(bundle->node.bytes, bundle->node.size, node, sizeof node);
        (void)text_clean(bundle->program.bytes, bundle->program.size, program, sizeof program);
        printf("bundle     %s of node %s, entries %" PRIu64 " to %" PRIu64 " were there, by %s\n",
               bundle->kind == CODEC_BUNDLE_SLICE ? "a slice" : "a range", node,
               bundle->source_first, bundle->source_last, program);
    }
    if (totals->last_wall_ns != 0) {
        stamp_of(totals->first_wall_ns, text[0], sizeof text[0]);
        stamp_of(totals->last_wall_ns, text[1], sizeof text[1]);
        printf("time       %s to %s UTC\n", text[0], text[1]);
    }
    carry_bytes_text(bytes, text[0], sizeof text[0]);
    printf("files      %" PRIu32 " segment%s, %s\n", count, count == 1u ? "" : "s", text[0]);
    for (uint32_t i = 0; count > 1u && journal_segment_at(journal, i, &segment) == STATUS_OK; i++) {
        carry_bytes_text(segment.bytes, text[0], sizeof text[0]);
        printf("           from entry %" PRIu64 ", %s\n", segment.first, text[0]);
    }
}

static void print_totals(struct journal *journal, const struct totals *totals,
                         const struct journal_identity *identity)
{
    printf("entries    %" PRIu64 " to %" PRIu64 ", %.1f bytes each\nstarts     %" PRIu64
           "\nverdicts   %" PRIu64 " succeeded, %" PRIu64 " failed\n",
           identity->first, identity->last,
           identity->last == 0
               ? 0.0
               : (double)totals->bytes / (double)(identity->last - identity->first + 1u),
           identity->epoch, totals->succeeded, totals->failed);
    for (uint32_t http = 0; http < 1000u; http++) {
        if (totals->by_http[http] > 0) {
            printf("           %" PRIu64 " with %" PRIu32 "\n", totals->by_http[http], http);
        }
    }
    print_files(journal, totals);
    printf("inputs\n");
    for (uint32_t i = 1; i < SM_IN_COUNT; i++) {
        if (totals->inputs[i] > 0) {
            printf("  %10" PRIu64 "  %s\n", totals->inputs[i], sm_input_name(i));
        }
    }
    print_reasons("ignored", totals->ignored, SM_IGNORED_COUNT, sm_ignored_name);
    print_reasons("refused", totals->refused, SM_REFUSAL_COUNT, sm_refusal_name);
}

/* By name, also those that never happened: a number without a name is not given. */
static json_t *reasons(const uint64_t *counts, uint32_t count, const char *(*name)(uint32_t))
{
    json_t *object = json_object();
    for (uint32_t i = 1; i < count; i++) {
        if (strcmp(name(i), "none") != 0) {
            json_object_set_new(object, name(i), json_integer((json_int_t)counts[i]));
        }
    }
    return object;
}

static json_t *segments_json(struct journal *journal)
{
    json_t *segments = json_array();
    struct journal_segment segment;
    for (uint32_t i = 0; journal_segment_at(journal, i, &segment) == STATUS_OK; i++) {
        json_array_append_new(
            segments, json_pack("{s:I, s:I, s:I, s:I}", "first", (json_int_t)segment.first, "last",
                                (json_int_t)segment.last, "bytes", (json_int_t)segment.bytes,
                                "began_ns", (json_int_t)segment.began_ns));
    }
    return segments;
}

static void print_totals_json(struct journal *journal, const struct totals *totals,
                              const struct journal_identity *identity)
{
    json_t *inputs = json_object();
    json_t *https = json_object();
    char name[16];
    for (uint32_t i = 1; i < SM_IN_COUNT; i++) {
        json_object_set_new(inputs, sm_input_name(i), json_integer((json_int_t)totals->inputs[i]));
    }
    for (uint32_t i = 0; i < 1000u; i++) {
        if (totals->by_http[i] > 0) {
            (void)snprintf(name, sizeof name, "%" PRIu32, i);
            json_object_set_new(https, name, json_integer((json_int_t)totals->by_http[i]));
        }
    }
    cli_print_json(json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "first",
                             (json_int_t)identity->first, "last", (json_int_t)identity->last,
                             "starts", (json_int_t)identity->epoch, "succeeded",
                             (json_int_t)totals->succeeded, "failed", (json_int_t)totals->failed,
                             "failed_by_http", https, "inputs", inputs, "ignored",
                             reasons(totals->ignored, SM_IGNORED_COUNT, sm_ignored_name), "refused",
                             reasons(totals->refused, SM_REFUSAL_COUNT, sm_refusal_name),
                             "segments", segments_json(journal)));
}

int cmd_stat(const struct cli_values *values)
{
    struct reading reading;
    struct journal_identity identity;
    struct codec_entry entry;
    static struct totals totals;
    struct cli_progress progress;
    int code = EXIT_WELL;
    if (!reading_open(&reading, values, &code)) {
        reading_close(&reading);
        return code;
    }
    memset(&totals, 0, sizeof totals);
    enum status status = journal_identity(reading.journal, &identity);
    cli_progress_begin(&progress, "reading", identity.last);
    for (uint64_t n = identity.first; n != 0 && n <= identity.last && status == STATUS_OK; n++) {
        struct journal_record record;
        status = journal_read(reading.journal, n, &record);
        totals.bytes += status == STATUS_OK ? record.payload_size : 0;
        status = status == STATUS_OK ? read_entry(&reading, n, &entry) : status;
        if (status == STATUS_OK) {
            count_entry(&totals, &entry);
        }
        if (n % 4096u == 0) {
            cli_progress_show(&progress, n);
        }
    }
    cli_progress_end(&progress);
    if (status != STATUS_OK) {
        code = cli_fail(cli_code(status), "%s", journal_detail(reading.journal)->text);
    } else if (cli_given(values, "json")) {
        print_totals_json(reading.journal, &totals, &identity);
    } else {
        print_totals(reading.journal, &totals, &identity);
    }
    reading_close(&reading);
    return code;
}
