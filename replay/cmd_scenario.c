/* SPDX-License-Identifier: Apache-2.0 */
/* scenario: runs files of the scenario language. */
#include "cli.h"
#include "scenario.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    uint32_t files;
    uint32_t runs;
    uint32_t failed;
    uint64_t steps;
    struct world *world; /* the cluster that runs have one after the other */
};

static char *read_file(const char *path, size_t *out_size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        (void)cli_fail(EXIT_WRONG_USAGE, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = malloc(SCENARIO_TEXT_MAX + 2u);
    errno = 0;
    *out_size = text == NULL ? 0 : fread(text, 1, SCENARIO_TEXT_MAX + 1u, file);
    if (text == NULL || ferror(file)) {
        (void)cli_fail(EXIT_WRONG_USAGE, "%s: %s", path, strerror(errno));
        free(text);
        text = NULL;
    }
    (void)fclose(file);
    return text;
}

static void print_result(const struct scenario *s, const struct scenario_run *run, bool passed,
                         const char *without)
{
    json_t *failures = json_array();
    for (uint32_t i = 0; i < run->failure_count; i++) {
        const struct scenario_failure *f = &run->failures[i];
        (void)json_array_append_new(failures, json_pack("{s:i, s:o, s:o}", "line", (int)f->line,
                                                        "expected", cli_json_text(f->expected),
                                                        "seen", cli_json_text(f->seen)));
    }
    json_t *object = json_pack(
        "{s:o, s:o, s:b, s:I, s:I, s:I, s:o}", "file", cli_json_text(s->file), "title",
        cli_json_text(s->title), "passed", passed, "seed", (json_int_t)run->seed, "steps",
        (json_int_t)run->steps, "ended_ns", (json_int_t)run->ended_ns, "failures", failures);
    if (without != NULL) {
        (void)json_object_set_new(object, "without", json_string(without));
    }
    cli_print_json(object);
}

static enum status run_once(const struct cli_values *values, const struct scenario *s,
                            struct scenario_run *run, struct tally *tally)
{
    struct status_detail detail = {"", 0};
    const bool json = cli_given(values, "json");
    run->draw = !json && run->draw;
    run->world = tally->world;
    const enum status status = scenario_execute(s, run, stdout, &detail);
    tally->world = run->world;
    if (status != STATUS_OK) {
        (void)cli_fail(EXIT_UNREACHABLE, "%s: %s", s->file, detail.text);
        return status;
    }
    tally->runs++;
    tally->steps += run->steps;
    return STATUS_OK;
}

/* As the file is, for each seed. */
static bool run_plain(const struct cli_values *values, const struct scenario *s,
                      struct tally *tally)
{
    const uint64_t runs = cli_number(values, "runs", 0);
    const uint64_t first = runs > 0 ? 1 : cli_number(values, "seed", 0);
    const uint64_t last = runs > 0 ? runs : first;
    struct scenario_run run;
    for (uint64_t seed = first; seed <= last; seed++) {
        memset(&run, 0, sizeof run);
        run.seed = seed;
        run.journal_dir = cli_text(values, "journal", NULL);
        run.draw = true;
        const char *name = cli_text(values, "disable", NULL);
        for (uint32_t i = 0; name != NULL && i < SM_PROTECT_COUNT; i++) {
            run.protections_off |= strcmp(name, sm_protection_name(i)) == 0 ? 1u << i : 0;
        }
        if (run_once(values, s, &run, tally) != STATUS_OK) {
            return false;
        }
        const bool passed = run.failure_count == 0;
        tally->failed += passed ? 0 : 1u;
        if (cli_given(values, "json")) {
            print_result(s, &run, passed, name);
        } else if (!passed) {
            printf("FAILED  %s: %s (seed %" PRIu64 ")\n\n", s->file, s->title, seed);
            return false;
        }
    }
    return true;
}

/* Must fall without each protection that it names. */
static bool run_bites(const struct cli_values *values, const struct scenario *s,
                      struct tally *tally)
{
    struct scenario_run run;
    bool well = true;
    for (uint32_t i = 0; i < SM_PROTECT_COUNT; i++) {
        if ((s->needs >> i & 1u) == 0) {
            continue;
        }
        memset(&run, 0, sizeof run);
        run.protections_off = 1u << i;
        if (run_once(values, s, &run, tally) != STATUS_OK) {
            return false;
        }
        const bool bites = run.failure_count > 0;
        tally->failed += bites ? 0 : 1u;
        well = well && bites;
        if (cli_given(values, "json")) {
            print_result(s, &run, bites, sm_protection_name(i));
        } else if (bites) {
            printf("bites   %s without %s: line %u: %s\n", s->file, sm_protection_name(i),
                   run.failures[0].line, run.failures[0].seen);
        } else {
            printf("FAILED  %s does not fall without %s\n", s->file, sm_protection_name(i));
        }
    }
    return well;
}

/* EXIT_WELL, EXIT_DIFFERS (something fell), EXIT_WRONG_USAGE (the file is wrong). */
static int run_file(const struct cli_values *values, const char *path, struct tally *tally)
{
    struct scenario scenario = {.file = NULL};
    struct scenario_error error;
    size_t size = 0;
    char *text = read_file(path, &size);
    int code = EXIT_WELL;
    if (text == NULL) {
        return EXIT_WRONG_USAGE;
    }
    tally->files++;
    if (!scenario_parse(path, text, size, &scenario, &error)) {
        fprintf(stderr, "%s:%u:%u: %s\n", path, error.line, error.column, error.text);
        code = EXIT_WRONG_USAGE;
    } else {
        bool well = run_plain(values, &scenario, tally);
        well = (!cli_given(values, "bite") || run_bites(values, &scenario, tally)) && well;
        code = well ? EXIT_WELL : EXIT_DIFFERS;
    }
    scenario_free(&scenario);
    free(text);
    return code;
}

static bool protection_known(const char *name)
{
    for (uint32_t i = 0; name != NULL && i < SM_PROTECT_COUNT; i++) {
        if (strcmp(name, sm_protection_name(i)) == 0) {
            return true;
        }
    }
    return name == NULL;
}

int cmd_scenario(const struct cli_values *values)
{
    struct tally tally = {0, 0, 0, 0, NULL};
    int worst = EXIT_WELL;
    const uint64_t started = cli_now_ns();
    const char *name = cli_text(values, "disable", NULL);
    if (!protection_known(name)) {
        return cli_fail(EXIT_WRONG_USAGE,
                        "no protection is named '%s': tombstones, drain, ownership, gather, "
                        "generations, retry, single_notice, journal_first, fence",
                        name);
    }
    for (uint32_t i = 0; i < values->word_count; i++) {
        const int code = run_file(values, values->words[i], &tally);
        worst = code > worst ? code : worst;
    }
    world_destroy(tally.world);
    if (!cli_given(values, "json")) {
        const double took = (double)(cli_now_ns() - started) / 1e9;
        printf("%u scenarios, %u runs, %u failed; %" PRIu64 " steps, %.2f s, %.0f steps/s\n",
               tally.files, tally.runs, tally.failed, tally.steps, took,
               (double)tally.steps / (took > 0 ? took : 1e-9));
    }
    return worst;
}
