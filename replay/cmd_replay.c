/* SPDX-License-Identifier: Apache-2.0 */
/* replay: the machine run again. */
#include "stepper.h"

#include "schemas/text.h"

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

static bool observe(void *context, uint64_t number, const struct codec_entry *entry,
                    const struct journal_machine *machine)
{
    struct watching *watching = context;
    if (watching->room != 0 && step_about(entry, watching->room)) {
        step_print(number, entry, machine, watching->json);
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

/* The step at which an invariant fell, and how to look around there. */
static void say_fallen(struct journal *journal, const struct journal_machine *machine,
                       const struct journal_replayed *r, const char *protection)
{
    struct journal_machine reading;
    struct journal_record record;
    struct codec_entry entry;
    struct status_detail detail;
    char clean[sizeof r->violation.detail];
    (void)text_clean(r->violation.detail, strlen(r->violation.detail), clean, sizeof clean);
    printf("invariant %s falls at entry %" PRIu64 ": room %" PRIu64 ", %s\n",
           sm_invariant_name(r->violation.invariant), r->last, r->violation.room, clean);
    if (journal_machine_open(&reading, &detail) != STATUS_OK) {
        return;
    }
    if (journal_read(journal, r->last, &record) == STATUS_OK &&
        codec_entry_unpack(record.payload, record.payload_size, &reading.arena, &entry) ==
            STATUS_OK) {
        step_print(r->last, &entry, machine, false);
    }
    journal_machine_close(&reading);
    journal_read_pause(journal);
    printf("walk there with --step --until %" PRIu64 "%s%s\n", r->last,
           protection != NULL ? " --disable " : " --check", protection != NULL ? protection : "");
}

static int say_result(struct journal *journal, const char *path, const struct cli_values *values,
                      enum status status, const struct journal_machine *machine,
                      const struct journal_replayed *r, const struct replay_summary *summary,
                      const struct status_detail *detail)
{
    const char *protection = values != NULL ? cli_text(values, "disable", NULL) : NULL;
    if (status == STATUS_JOURNAL_DIVERGED) {
        divergence_print(journal, machine, &r->divergence);
        return EXIT_DIFFERS;
    }
    if (status != STATUS_OK) {
        return cli_fail(cli_code(status), "%s", detail->text);
    }
    if (protection != NULL && r->started_at != 0) {
        printf("the journal begins with a snapshot, after entry %" PRIu64
               ": '%s' is off from the node's next start in it\n",
               r->started_at, protection);
    }
    if (r->violation.invariant != 0) {
        say_fallen(journal, machine, r, protection);
        return EXIT_DIFFERS;
    }
    if (r->skipped != 0) {
        printf("entries up to %" PRIu64 " were written by machine version %" PRIu32
               " and left out; replay them with the program that wrote them\n",
               r->started_at, r->skipped);
    }
    printf("%s: %s, %" PRIu64 " entries, %.0f entries/s\n", path,
           protection == NULL ? "identical" : "no invariant fell", r->entries, summary->rate);
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
        code = say_result(journal, path, values, status, &machine, &replayed, out, &detail);
    }
    journal_machine_close(&machine);
    journal_close(journal);
    return code;
}

static int walk(const char *path, const struct cli_values *values)
{
    struct stepper_options options = {.start = cli_number(values, "until", 0),
                                      .room = cli_number(values, "room", 0),
                                      .check = cli_given(values, "check"),
                                      .json = cli_given(values, "json")};
    int code = protection_named(cli_text(values, "disable", NULL), &options.protections_off);
    struct journal *journal = code == EXIT_WELL ? cli_open_journal(path, &code) : NULL;
    if (journal != NULL) {
        code = stepper_run(journal, &options, stdin);
        journal_close(journal);
    }
    return code;
}

int cmd_replay(const struct cli_values *values)
{
    struct replay_summary summary;
    int code = EXIT_WELL;
    const char *path = cli_journal_path(values, 0, &code);
    if (path == NULL) {
        return code;
    }
    return cli_given(values, "step") ? walk(path, values)
                                     : replay_journal(path, values, &summary, false);
}
