/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal walked by hand: what the lines mean, that a place is the same from whichever side it is
 * reached, and what is said where a journal and the machine part ways.
 */
#include "stepper.h"

#include "journal/journal.h"
#include "scenario.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(lines, .timeout = 60);
TestSuite(walks, .timeout = 120);

/* ---- lines
 * --------------------------------------------------------------------------------------------- */

static struct steps_command parsed(const char *line)
{
    struct steps_command command;
    char error[512];
    cr_assert(steps_parse(line, &command, error, sizeof error), "%s: %s", line, error);
    return command;
}

Test(lines, mean_what_the_help_says)
{
    cr_assert_eq(parsed("").verb, STEPS_NOTHING);
    cr_assert_eq(parsed("  # next\n").verb, STEPS_NOTHING);
    cr_assert_eq(parsed("n").number, 1u);
    cr_assert_eq(parsed("previous 12\n").number, 12u);
    cr_assert_eq(parsed("goto last").anchor, STEPS_LAST);
    cr_assert_eq(parsed("g -3").anchor, STEPS_BACKWARD);
    cr_assert_eq(parsed("g +0x10").number, 16u);
    cr_assert_eq(parsed("run").condition.nothing, true);
    cr_assert_eq(parsed("run failed").condition.phase, SM_PHASE_FAILED);
    cr_assert_eq(parsed("run verdict").condition.transition, SM_TR_VERDICT);
    cr_assert_eq(parsed("run send_status").condition.effect, SM_FX_SEND_STATUS);
    cr_assert_eq(parsed("run tick").condition.input, SM_IN_TICK);
    cr_assert_eq(parsed("state room 7").room, 7u);
    cr_assert_eq(parsed("state 7").room, 7u);
    cr_assert_eq(parsed("diff 3 9 room=7").second, 9u);
    cr_assert_eq(parsed("diff 3 room 7").second, 0u);
    const struct steps_condition c =
        parsed("back room=7 side=decode rank 1 http=400 reason=\"too long = bad\" status")
            .condition;
    cr_assert_eq(c.room, 7u);
    cr_assert_eq(c.side, (uint32_t)SM_DECODE);
    cr_assert_eq(c.rank, 1u);
    cr_assert_eq(c.http, 400u);
    cr_assert_eq(c.input, (uint32_t)SM_IN_STATUS);
    cr_assert_str_eq(c.reason, "too long = bad");
}

Test(lines, wrong_ones_are_named)
{
    static const char *const rows[][2] = {
        {"nxt", "'nxt' is not a command"},
        {"next x", "'x' is not a number"},
        {"next 1 2", "'2' is one word too many"},
        {"goto", "needs an entry"},
        {"goto 99999999999999999999", "is not a number that fits"},
        {"run rom=7", "'rom' is no condition"},
        {"run room", "'room' needs a value"},
        {"run phase=over", "'over' names nothing of that kind"},
        {"run rank=64", "'64' is not a number that fits"},
        {"run reason=\"x", "has no closing quote"},
        {"back", "needs a condition"},
        {"diff", "needs an entry's number"},
        {"diff x", "'x' is not a number"},
        {"diff 1 x", "'x' is not a number"},
        {"diff 1 2 3 4", "too many"},
        {"quit now", "'now' is one word too many"},
        {"\x1b[2J", "'?[2J' is not a command"},
        {"=", "is not a command"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct steps_command command;
        char error[512] = "";
        cr_assert_not(steps_parse(rows[i][0], &command, error, sizeof error), "%s", rows[i][0]);
        cr_assert_not_null(strstr(error, rows[i][1]), "%s: %s", rows[i][0], error);
    }
}

/* ---- walks
 * --------------------------------------------------------------------------------------------- */

static char directory[64];

static const char incident[] = "scenario \"walked\"\n"
                               "node P prefill\n"
                               "node D decode\n"
                               "fabric P D 2s\n"
                               "at 0   D.0 open  room=7 pages=0-63\n"
                               "at 1ms P.0 open  room=7\n"
                               "at 2ms P.0 send  room=7 pages=0-63 last\n"
                               "at 1s  D.0 abort room=7 by=client\n"
                               "at 3s  D.0 open  room=8 pages=0-63\n"
                               "at 3s  P.0 open  room=8\n"
                               "at 3s  P.0 send  room=8 pages=0-63 last\n"
                               "end expect quiescent\n";

/* The journal of node D or P of the incident, opened to be read. */
static struct journal *incident_journal(const char *node)
{
    char path[160];
    int code = EXIT_WELL;
    if (directory[0] == '\0') {
        char file[96];
        char command[256];
        (void)snprintf(directory, sizeof directory, "/tmp/stateroom-test-XXXXXX");
        cr_assert_not_null(mkdtemp(directory));
        (void)snprintf(file, sizeof file, "%s/walked.scn", directory);
        (void)snprintf(command, sizeof command, "%s/j", directory);
        FILE *out = fopen(file, "w");
        cr_assert_not_null(out);
        (void)fputs(incident, out);
        (void)fclose(out);
        char words[3][16] = {"stateroom", "scenario", "--journal"};
        char *argv[] = {words[0], words[1], words[2], command, file, NULL};
        cr_assert_eq(cli_main(5, argv), EXIT_WELL);
    }
    (void)snprintf(path, sizeof path, "%s/j/walked/%s", directory, node);
    struct journal *journal = cli_open_journal(path, &code);
    cr_assert_not_null(journal, "%s", path);
    return journal;
}

static void clean_up(void)
{
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    cr_assert_eq(system(command), 0);
}

/* What a walk prints; NULL-terminated lines of it in *out_lines. */
static int walk_lines(struct journal *journal, const struct stepper_options *options,
                      const char *script, char *text, size_t size)
{
    FILE *file = tmpfile();
    FILE *in = fmemopen((void *)(uintptr_t)script, strlen(script), "r");
    cr_assert(file != NULL && in != NULL);
    (void)fflush(stdout);
    const int out = dup(STDOUT_FILENO);
    (void)dup2(fileno(file), STDOUT_FILENO);
    const int code = stepper_run(journal, options, in);
    (void)fflush(stdout);
    (void)dup2(out, STDOUT_FILENO);
    (void)close(out);
    rewind(file);
    text[fread(text, 1, size - 1u, file)] = '\0';
    (void)fclose(file);
    (void)fclose(in);
    return code;
}

static uint32_t count_of(const char *text, const char *part)
{
    uint32_t count = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) {
        count++;
    }
    return count;
}

/* Every place, with its step and its state, reached forwards, backwards and by leaps. */
Test(walks, a_place_is_the_same_from_either_side)
{
    static char forwards[1u << 20];
    static char backwards[1u << 20];
    struct journal *journal = incident_journal("P");
    const struct stepper_options options = {.json = true};
    struct journal_identity identity;
    char line[64];
    char script[8192] = "state\n";
    cr_assert_eq(journal_identity(journal, &identity), STATUS_OK);
    cr_assert_gt(identity.last, 15u);
    for (uint64_t n = 2; n <= identity.last; n++) {
        (void)strncat(script, "next\nstate\n", sizeof script - strlen(script) - 1u);
    }
    cr_assert_eq(walk_lines(journal, &options, script, forwards, sizeof forwards), EXIT_WELL);
    cr_assert_eq(count_of(forwards, "\n"), 2u * identity.last);
    script[0] = '\0';
    for (uint64_t n = identity.last; n >= 1; n--) {
        (void)snprintf(line, sizeof line, n % 3u == 0 ? "goto %u\nstate\n" : "g %u\ns\n",
                       (unsigned)n);
        (void)strncat(script, line, sizeof script - strlen(script) - 1u);
    }
    cr_assert_eq(walk_lines(journal, &options, script, backwards, sizeof backwards), EXIT_WELL);
    /* Its first line is the place where it begins. */
    char *at = strchr(backwards, '\n') + 1;
    for (uint64_t n = identity.last; n >= 1; n--) {
        char *end = strchr(strchr(at, '\n') + 1, '\n') + 1;
        const char kept = *end;
        *end = '\0';
        cr_assert_not_null(strstr(forwards, at), "entry %u: %s", (unsigned)n, at);
        *end = kept;
        at = end;
    }
    journal_close(journal);
    clean_up();
}

Test(walks, run_and_back_find_what_fits)
{
    static char text[1u << 18];
    struct journal *journal = incident_journal("P");
    const struct stepper_options options = {0};
    const int code =
        walk_lines(journal, &options,
                   "run room=7 http=499\ndiff 7 room=7\nrun room=7 cleared\nstate 7\n"
                   "back room=7 transition=half_created\nrun room=8 effect=tell\nrun\nstate 9\n",
                   text, sizeof text);
    cr_assert_eq(code, EXIT_WELL, "%s", text);
    const char *const parts[] = {
        "peer_abort room=7",
        "verdict room=7 prefill gen=1 failed http=499",
        "room 7 prefill phase               transferring -> notified",
        "room 7 prefill outcome             none -> failed",
        "phase room=7 prefill gen=1 notified -> cleared",
        "room 7 prefill phase               cleared",
        "half_created room=7",
        "tell room=8",
        "neither live nor remembered",
    };
    const char *at = text;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        at = strstr(at, parts[i]);
        cr_assert_not_null(at, "%s is missing, or in another order:\n%s", parts[i], text);
    }
    journal_close(journal);
    clean_up();
}

Test(walks, what_is_not_there_has_a_status_and_the_place_stays)
{
    static char text[1u << 18];
    struct journal *journal = incident_journal("P");
    const struct stepper_options options = {.json = true};
    cr_assert_eq(walk_lines(journal, &options, "run http=418\nshow\n", text, sizeof text),
                 EXIT_NOT_THERE);
    cr_assert_eq(count_of(text, "\"entry\":1,"), 2u, "%s", text);
    cr_assert_eq(walk_lines(journal, &options, "goto 999999\n", text, sizeof text), EXIT_NOT_THERE);
    cr_assert_eq(walk_lines(journal, &options, "prev\n", text, sizeof text), EXIT_NOT_THERE);
    cr_assert_eq(walk_lines(journal, &options, "jump\nshow\n", text, sizeof text),
                 EXIT_WRONG_USAGE);
    cr_assert_eq(count_of(text, "\n"), 1u, "a script goes on after a wrong line: %s", text);
    journal_close(journal);
    clean_up();
}

/* Without the drain, pages are given back under the write that is still to come. */
Test(walks, a_protection_that_is_off_shows_where_the_invariant_falls)
{
    static char text[1u << 18];
    struct journal *journal = incident_journal("P");
    const struct stepper_options off = {.protections_off = 1u << SM_PROTECT_DRAIN};
    const struct stepper_options on = {.check = true};
    cr_assert_eq(walk_lines(journal, &on, "run\n", text, sizeof text), EXIT_WELL, "%s", text);
    cr_assert_eq(
        walk_lines(journal, &off, "run\nshow\nback room=7 verdict\nrun\n", text, sizeof text),
        EXIT_DIFFERS, "%s", text);
    cr_assert_eq(count_of(text, "invariant drained_before_free falls here, at entry"), 1u, "%s",
                 text);
    journal_close(journal);
    clean_up();
}

/* ---- a journal that says what the machine would not do
 * ---------------------------------------------------------------------- */

/* Copies the journal of P with one transition told otherwise. */
static void copy_altered(struct journal *from, const char *path, uint64_t which)
{
    const struct journal_options options = {.path = path, .mode = JOURNAL_NO_SYNC};
    static unsigned char bytes[1u << 16];
    static unsigned char memory[1u << 20];
    static unsigned char scratch_memory[1u << 20];
    struct codec_arena arena;
    struct codec_arena scratch;
    struct journal *to = NULL;
    struct status_detail detail;
    struct journal_identity identity;
    codec_arena_init(&arena, memory, sizeof memory);
    codec_arena_init(&scratch, scratch_memory, sizeof scratch_memory);
    cr_assert_eq(journal_open(&options, &to, &detail), STATUS_OK);
    cr_assert_eq(journal_identity(from, &identity), STATUS_OK);
    for (uint64_t n = 1; n <= identity.last; n++) {
        struct journal_record record;
        struct codec_entry entry;
        struct sm_transition altered[8];
        cr_assert_eq(journal_read(from, n, &record), STATUS_OK);
        codec_arena_reset(&arena);
        cr_assert_eq(codec_entry_unpack(record.payload, record.payload_size, &arena, &entry),
                     STATUS_OK);
        if (n == which) {
            cr_assert(entry.transition_count >= 2u && entry.transition_count <= 8u);
            memcpy(altered, entry.transitions, entry.transition_count * sizeof altered[0]);
            cr_assert_eq(altered[0].kind, (uint32_t)SM_TR_VERDICT);
            altered[0].b = 400;
            altered[0].text = (struct sm_text){"something\x1b else", 15};
            entry.transitions = altered;
            entry.transition_count--;
        }
        size_t size = 0;
        cr_assert_eq(codec_entry_pack(&entry, &scratch, bytes, sizeof bytes, &size), STATUS_OK);
        const struct journal_record copy = {
            .number = n, .room = record.room, .payload = bytes, .payload_size = size};
        cr_assert_eq(journal_append(to, &copy), STATUS_OK);
    }
    cr_assert_eq(journal_commit(to), STATUS_OK);
    journal_close(to);
}

static uint64_t entry_of(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    cr_assert_not_null(at, "%s", text);
    while (at > text && at[-1] != '\n') {
        at--;
    }
    return strtoull(at, NULL, 10);
}

Test(walks, a_difference_is_shown_with_both_sides_field_by_field)
{
    static char text[1u << 18];
    char path[128];
    int code = EXIT_WELL;
    const struct stepper_options options = {0};
    struct journal *journal = incident_journal("P");
    cr_assert_eq(walk_lines(journal, &options, "run input=peer_abort\n", text, sizeof text),
                 EXIT_WELL);
    const uint64_t which = entry_of(text, "peer_abort room=7");
    (void)snprintf(path, sizeof path, "%s/altered", directory);
    copy_altered(journal, path, which);
    journal_close(journal);
    struct journal *altered = cli_open_journal(path, &code);
    cr_assert_not_null(altered);
    cr_assert_eq(walk_lines(altered, &options, "run\nnext\n", text, sizeof text), EXIT_DIFFERS);
    char headline[64];
    (void)snprintf(headline, sizeof headline, "differs at entry %u: transition 1 of",
                   (unsigned)which);
    const char *const parts[] = {headline,
                                 "  input peer_abort room=7",
                                 "- recorded verdict room=7 prefill gen=1 failed http=400",
                                 "+ replayed verdict room=7 prefill gen=1 failed http=499",
                                 "+ replayed ",
                                 "what differs first, transition 1:",
                                 "field       recorded                      replayed",
                                 "http        400                           499",
                                 "text        something? else",
                                 "replayed state"};
    const char *at = text;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        at = strstr(at, parts[i]);
        cr_assert_not_null(at, "%s is missing, or in another order:\n%s", parts[i], text);
    }
    cr_assert_eq(count_of(text, "differs at entry"), 1u, "%s", text);
    cr_assert_null(strchr(text, '\x1b'));
    journal_close(altered);
    clean_up();
}
