/* SPDX-License-Identifier: Apache-2.0 */
/* replay: the machine run again. */
#include "cli.h"

#include "schemas/text.h"

#include "journal/journal_recover.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct watching {
    struct cli_progress progress;
    uint64_t room;
    uint64_t shown;
    bool json;
};

static bool about(const struct codec_entry *entry, uint64_t room)
{
    if (entry->input.room == room) {
        return true;
    }
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        if (entry->transitions[i].room == room) {
            return true;
        }
    }
    return false;
}

/* One transition or effect, as text or into the array of a JSON object. */
static void print_part(json_t *array, const char *mark, char *line)
{
    if (array != NULL) {
        (void)json_array_append_new(array, cli_json_text(line));
    } else {
        (void)text_clean(line, strlen(line), line, strlen(line) + 1u);
        printf("%s %s\n", mark, line);
    }
}

static void print_step(uint64_t number, const struct codec_entry *entry,
                       const struct journal_machine *machine, bool json)
{
    char line[1024];
    char mark[24];
    const struct sm_output *output = machine->output;
    json_t *transitions = json ? json_array() : NULL;
    json_t *effects = json ? json_array() : NULL;
    char input[1024];
    (void)sm_describe_input(&entry->input, input, sizeof input);
    if (!json) {
        (void)snprintf(mark, sizeof mark, "%8" PRIu64 " ", number);
        print_part(NULL, mark, input);
    }
    for (uint32_t i = 0; i < output->transition_count; i++) {
        (void)sm_describe_transition(&output->transitions[i], line, sizeof line);
        print_part(transitions, "          .", line);
    }
    for (uint32_t i = 0; i < output->effect_count; i++) {
        (void)sm_describe_effect(machine->sm, &output->effects[i], line, sizeof line);
        print_part(effects, "          >", line);
    }
    if (json) {
        cli_print_json(json_pack("{s:I, s:o, s:o, s:o}", "entry", (json_int_t)number, "input",
                                 cli_json_text(input), "transitions", transitions, "effects",
                                 effects));
    }
}

static bool observe(void *context, uint64_t number, const struct codec_entry *entry,
                    const struct journal_machine *machine)
{
    struct watching *watching = context;
    if (watching->room != 0 && about(entry, watching->room)) {
        print_step(number, entry, machine, watching->json);
        watching->shown++;
    }
    if (number % 4096u == 0) {
        cli_progress_show(&watching->progress, number);
    }
    return true;
}

static int protection_named(const char *name, uint32_t *out_mask)
{
    *out_mask = 0;
    if (name == NULL) {
        return EXIT_WELL;
    }
    for (uint32_t i = 0; i < SM_PROTECT_COUNT; i++) {
        if (strcmp(sm_protection_name(i), name) == 0) {
            *out_mask = 1u << i;
            return EXIT_WELL;
        }
    }
    return cli_fail(
        EXIT_WRONG_USAGE,
        "no protection is named '%s': tombstones, drain, ownership, gather, generations, "
        "retry, single_notice, journal_first, fence",
        name);
}

static void print_difference(const struct journal_divergence *d)
{
    char recorded[sizeof d->recorded];
    char replayed[sizeof d->replayed];
    (void)text_clean(d->recorded, strlen(d->recorded), recorded, sizeof recorded);
    (void)text_clean(d->replayed, strlen(d->replayed), replayed, sizeof replayed);
    printf("differs at entry %" PRIu64 ": %s\n  recorded  %s\n  replayed  %s\n", d->number,
           d->field, recorded[0] != '\0' ? recorded : "(nothing)",
           replayed[0] != '\0' ? replayed : "(nothing)");
}

static void print_json(const char *path, enum status status, const struct journal_replayed *r,
                       const struct replay_summary *summary, const char *text)
{
    json_t *o =
        json_pack("{s:o, s:b, s:I, s:f, s:I, s:I, s:I}", "journal", cli_json_text(path),
                  "identical", status == STATUS_OK && r->violation.invariant == 0, "entries",
                  (json_int_t)r->entries, "entries_per_second", summary->rate, "rooms_left",
                  (json_int_t)summary->rooms_left, "pages_left", (json_int_t)summary->pages_left,
                  "notices_left", (json_int_t)summary->notices_left);
    if (r->skipped != 0) {
        json_object_set_new(o, "left_out_until", json_integer((json_int_t)r->started_at));
        json_object_set_new(o, "left_out_version", json_integer((json_int_t)r->skipped));
    }
    if (r->divergence.number != 0) {
        json_object_set_new(o, "entry", json_integer((json_int_t)r->divergence.number));
        json_object_set_new(o, "field", cli_json_text(r->divergence.field));
        json_object_set_new(o, "recorded", cli_json_text(r->divergence.recorded));
        json_object_set_new(o, "replayed", cli_json_text(r->divergence.replayed));
    }
    if (r->violation.invariant != 0) {
        json_object_set_new(o, "invariant", json_string(sm_invariant_name(r->violation.invariant)));
        json_object_set_new(o, "entry", json_integer((json_int_t)r->last));
    }
    if (status != STATUS_OK) {
        json_object_set_new(o, "error", cli_json_text(text));
    }
    cli_print_json(o);
}

static void summarise(const struct journal_machine *machine, const struct journal_replayed *r,
                      uint64_t took_ns, struct replay_summary *out)
{
    struct sm_gauges gauges;
    memset(out, 0, sizeof *out);
    out->entries = r->entries;
    out->rate = took_ns == 0 ? 0.0 : (double)r->entries * 1e9 / (double)took_ns;
    if (machine->sm != NULL) {
        sm_gauges(machine->sm, &gauges);
        out->rooms_left = gauges.halves;
        out->pages_left = gauges.pages_held;
        out->notices_left = gauges.unsent_notices;
    }
}

static int say_result(const char *path, bool compared, enum status status,
                      const struct journal_replayed *r, const struct replay_summary *summary,
                      const struct status_detail *detail)
{
    if (status == STATUS_JOURNAL_DIVERGED) {
        print_difference(&r->divergence);
        return EXIT_DIFFERS;
    }
    if (status != STATUS_OK) {
        return cli_fail(cli_code(status), "%s", detail->text);
    }
    if (r->violation.invariant != 0) {
        printf("invariant %s falls at entry %" PRIu64 ": room %" PRIu64 ", %s\n",
               sm_invariant_name(r->violation.invariant), r->last, r->violation.room,
               r->violation.detail);
        return EXIT_DIFFERS;
    }
    if (r->skipped != 0) {
        printf("entries up to %" PRIu64 " were written by machine version %" PRIu32
               " and left out; replay them with the program that wrote them\n",
               r->started_at, r->skipped);
    }
    printf("%s: %s, %" PRIu64 " entries, %.0f entries/s\n", path,
           compared ? "identical" : "no invariant fell", r->entries, summary->rate);
    return EXIT_WELL;
}

int replay_journal(const char *path, const struct cli_values *values, struct replay_summary *out,
                   bool quiet)
{
    struct journal_replay options;
    struct journal_replayed replayed;
    struct journal_machine machine;
    struct status_detail detail = {"", 0};
    struct watching watching;
    struct journal_identity identity;
    int code = EXIT_WELL;
    memset(&options, 0, sizeof options);
    memset(&watching, 0, sizeof watching);
    memset(out, 0, sizeof *out);
    if (values != NULL) {
        code = protection_named(cli_text(values, "disable", NULL), &options.protections_off);
        options.until = cli_number(values, "until", 0);
        options.check = cli_given(values, "check") || options.protections_off != 0;
        options.no_compare = options.protections_off != 0;
        watching.room = cli_number(values, "room", 0);
        watching.json = cli_given(values, "json");
    }
    struct journal *journal = code == EXIT_WELL ? cli_open_journal(path, &code) : NULL;
    if (journal == NULL) {
        return code;
    }
    options.observer = observe;
    options.context = &watching;
    (void)journal_identity(journal, &identity);
    cli_progress_begin(&watching.progress, "replay", identity.last);
    const uint64_t started = cli_now_ns();
    enum status status = journal_machine_open(&machine, &detail);
    if (status == STATUS_OK) {
        status = journal_replay(journal, &machine, &options, &replayed, &detail);
    }
    cli_progress_end(&watching.progress);
    summarise(&machine, &replayed, cli_now_ns() - started, out);
    if (watching.json) {
        print_json(path, status, &replayed, out, detail.text);
        code = status == STATUS_OK && replayed.violation.invariant == 0
                   ? EXIT_WELL
                   : (status == STATUS_OK ? EXIT_DIFFERS : cli_code(status));
    } else if (!quiet || status != STATUS_OK) {
        if (watching.room != 0 && watching.shown == 0) {
            printf("no step is about room %" PRIu64 "\n", watching.room);
        }
        if (options.until > identity.last) {
            printf("the journal ends at entry %" PRIu64 ", before %" PRIu64 "\n", identity.last,
                   options.until);
        }
        code = say_result(path, !options.no_compare, status, &replayed, out, &detail);
    }
    journal_machine_close(&machine);
    journal_close(journal);
    return code;
}

int cmd_replay(const struct cli_values *values)
{
    struct replay_summary summary;
    int code = EXIT_WELL;
    const char *path = cli_journal_path(values, 0, &code);
    return path == NULL ? code : replay_journal(path, values, &summary, false);
}
