/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people see: the diagram of a room in 80 columns, lists and JSON of whatever text, and the
 * command line's answers to right and wrong words.
 */
#include "cli.h"

#include "schemas/text.h"

#include <criterion/criterion.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(drawing, .timeout = 60);
TestSuite(command_line, .timeout = 60);

static struct history_event events[8];

static void event_set(uint32_t i, uint64_t us, int from, int to, const char *label)
{
    events[i].number = 10u + i;
    events[i].time_ns = 5000000u + us * 1000u;
    events[i].from = from;
    events[i].to = to;
    events[i].note = from == to;
    (void)snprintf(events[i].label, sizeof events[i].label, "%s", label);
}

static struct history refused_room(void)
{
    struct history history;
    memset(&history, 0, sizeof history);
    event_set(0, 0, HISTORY_ENGINE, HISTORY_NODE, "open");
    event_set(1, 0, HISTORY_NODE, HISTORY_NODE, "allocated");
    event_set(2, 150, HISTORY_PEER, HISTORY_NODE, "prepare, 64 pages");
    event_set(3, 2000, HISTORY_ENGINE, HISTORY_NODE, "reject 400 input is longer than the model's");
    event_set(4, 2000, HISTORY_NODE, HISTORY_NODE,
              "failed 400 \"input is longer than the context\"");
    event_set(5, 2500, HISTORY_NODE, HISTORY_PEER, "status failed 400");
    event_set(6, 3000000, HISTORY_PEER, HISTORY_NODE, "ack");
    history.events = events;
    history.count = 7;
    history.room = 7;
    (void)snprintf(history.node, sizeof history.node, "P");
    (void)snprintf(history.peer, sizeof history.peer, "D");
    return history;
}

static void draw(const struct history *history, bool unicode, char *text, size_t size)
{
    FILE *out = fmemopen(text, size, "w");
    history_diagram(out, history, unicode);
    (void)fclose(out);
}

/* Every line fits 80 columns, is sound UTF-8 and can be shown. */
static uint32_t check_lines(const char *text)
{
    uint32_t lines = 0;
    uint32_t columns = 0;
    const size_t size = strlen(text);
    for (size_t at = 0; at < size;) {
        if (text[at] == '\n') {
            cr_assert_leq(columns, 80u, "line %u", lines);
            lines++;
            columns = 0;
            at++;
            continue;
        }
        const size_t bytes = text_character(text + at, size - at);
        cr_assert_gt(bytes, 0u, "line %u", lines);
        cr_assert(text_printable(text + at, bytes), "line %u", lines);
        columns++;
        at += bytes;
    }
    return lines;
}

Test(drawing, a_refused_room_is_drawn_as_expected)
{
    static const char expected[] =
        "       time engine                        node P                            D\n"
        "     0.0 us  |------------ open ------------>|                               |\n"
        "             |                               * allocated                     |\n"
        "   150.0 us  |                               |<----- prepare, 64 pages ------|\n"
        "    2.00 ms  |-- reject 400 input is long~ ->|                               |\n"
        "             |                               * failed 400 \"input is longer tha~\n"
        "    2.50 ms  |                               |------ status failed 400 ----->|\n"
        "     3.00 s  |                               |<------------ ack -------------|\n";
    char text[8192] = "";
    const struct history history = refused_room();
    draw(&history, false, text, sizeof text);
    cr_assert_str_eq(text, expected);
    (void)check_lines(text);
}

/* Unicode changes the strokes and no column. */
Test(drawing, unicode_strokes_stand_in_the_same_columns)
{
    static const char *const strokes[][2] = {
        {"│", "|"}, {"─", "-"}, {"▶", ">"}, {"◀", "<"}, {"●", "*"}};
    char ascii[8192] = "";
    char text[16384] = "";
    char plain[16384] = "";
    const struct history history = refused_room();
    draw(&history, false, ascii, sizeof ascii);
    draw(&history, true, text, sizeof text);
    cr_assert_eq(check_lines(text), 8u);
    size_t used = 0;
    for (size_t at = 0; text[at] != '\0';) {
        size_t bytes = text_character(text + at, strlen(text + at));
        plain[used] = text[at];
        for (size_t i = 0; i < 5u && bytes > 1u; i++) {
            if (strncmp(text + at, strokes[i][0], bytes) == 0) {
                plain[used] = strokes[i][1][0];
            }
        }
        used++;
        at += bytes;
    }
    cr_assert_str_eq(plain, ascii);
}

/* Labels come out of history_read clean; however wide, they must not push a lane away. */
Test(drawing, long_and_wide_labels_stay_between_their_lanes)
{
    char text[16384] = "";
    struct history history = refused_room();
    char wide[160] = "";
    for (size_t i = 0; i + 4u < sizeof wide; i += 3u) {
        memcpy(wide + i, "\xe2\x82\xac", 4u);
    }
    event_set(1, 0, HISTORY_NODE, HISTORY_NODE, wide);
    event_set(3, 2000, HISTORY_ENGINE, HISTORY_NODE, wide);
    event_set(5, UINT64_C(90000000000), HISTORY_NODE, HISTORY_PEER, wide);
    (void)snprintf(history.peer, sizeof history.peer, "a-peer-with-a-long-name-indeed");
    draw(&history, true, text, sizeof text);
    cr_assert_eq(check_lines(text), 8u);
}

Test(drawing, a_list_has_one_line_an_event)
{
    char text[8192] = "";
    const struct history history = refused_room();
    FILE *out = fmemopen(text, sizeof text, "w");
    history_list(out, &history);
    (void)fclose(out);
    uint32_t lines = 0;
    for (const char *c = text; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    cr_assert_eq(lines, history.count);
    cr_assert_not_null(strstr(text, "engine -> node    open\n"), "%s", text);
    cr_assert_not_null(strstr(text, "  node -> peer    status failed 400\n"), "%s", text);
}

Test(drawing, durations_are_short_and_right)
{
    static const struct {
        uint64_t ns;
        const char *text;
    } rows[] = {{0, "0.0 us"},        {999, "1.0 us"},        {1500, "1.5 us"},
                {1500000, "1.50 ms"}, {1500000000, "1.50 s"}, {UINT64_C(90000000000), "90.00 s"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[32];
        cli_duration(rows[i].ns, text, sizeof text);
        cr_assert_str_eq(text, rows[i].text);
    }
}

Test(drawing, json_takes_whatever_text)
{
    json_t *text = cli_json_text("a\xff\x1b[2Jb");
    cr_assert_not_null(text);
    cr_assert_str_eq(json_string_value(text), "a??[2Jb");
    json_decref(text);
}

/* ---- the command line
 * ------------------------------------------------------------------------------------- */

/* Runs the command line; what it prints goes to *out_text. */
static int command_line(char *out_text, size_t size, const char *const *words)
{
    char *argv[16];
    char copies[16][128];
    int argc = 0;
    for (; words[argc] != NULL; argc++) {
        (void)snprintf(copies[argc], sizeof copies[argc], "%s", words[argc]);
        argv[argc] = copies[argc];
    }
    argv[argc] = NULL;
    FILE *file = tmpfile();
    (void)fflush(stdout);
    (void)fflush(stderr);
    const int out = dup(STDOUT_FILENO);
    const int err = dup(STDERR_FILENO);
    (void)dup2(fileno(file), STDOUT_FILENO);
    (void)dup2(fileno(file), STDERR_FILENO);
    optind = 0;
    const int code = cli_main(argc, argv);
    (void)fflush(stdout);
    (void)fflush(stderr);
    (void)dup2(out, STDOUT_FILENO);
    (void)dup2(err, STDERR_FILENO);
    (void)close(out);
    (void)close(err);
    rewind(file);
    out_text[fread(out_text, 1, size - 1u, file)] = '\0';
    (void)fclose(file);
    return code;
}

Test(command_line, every_command_has_help_a_man_page_and_an_example_of_itself)
{
    static char text[65536];
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        const char *const help[] = {"stateroom", c->name, "--help", NULL};
        const char *const again[] = {"stateroom", "help", c->name, NULL};
        const char *const man[] = {"stateroom", "help", c->name, "--man", NULL};
        static char second[65536];
        cr_assert_eq(command_line(text, sizeof text, help), EXIT_WELL, "%s", c->name);
        cr_assert_eq(command_line(second, sizeof second, again), EXIT_WELL, "%s", c->name);
        cr_assert_str_eq(text, second);
        cr_assert_not_null(strstr(text, c->summary), "%s", c->name);
        cr_assert_not_null(strstr(c->example, c->name), "%s", c->name);
        for (uint32_t i = 0; i < CLI_OPTIONS_MAX && c->options[i].name != NULL; i++) {
            cr_assert_not_null(strstr(text, c->options[i].name), "%s", c->name);
        }
        cr_assert_eq(command_line(text, sizeof text, man), EXIT_WELL, "%s", c->name);
        cr_assert_eq(strncmp(text, ".TH STATEROOM", 13), 0, "%s", c->name);
    }
}

Test(command_line, wrong_words_are_answered_with_a_way_out)
{
    static const struct {
        const char *words[6];
        const char *says;
    } rows[] = {
        {{"stateroom", NULL}, "usage: stateroom COMMAND"},
        {{"stateroom", "histroy", NULL}, "did you mean 'history'; see"},
        {{"stateroom", "zzz", NULL}, "no command is named 'zzz'; see stateroom --help"},
        {{"stateroom", "history", NULL}, "it needs ROOM [JOURNAL]; see stateroom history --help"},
        {{"stateroom", "history", "1", "j", "2", NULL}, "'2' is one argument too many"},
        {{"stateroom", "rooms", "--http", "x", NULL}, "--http: 'x' is not a number"},
        {{"stateroom", "rooms", "--http", NULL}, "'--http' needs a value"},
        {{"stateroom", "rooms", "--htp", NULL}, "'--htp' is not an option"},
        {{"stateroom", "completion", "fish", NULL}, "bash and zsh, not for 'fish'"},
        {{"stateroom", "help", "nothing", NULL}, "no command is named 'nothing'"},
    };
    static char text[65536];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cr_assert_eq(command_line(text, sizeof text, rows[i].words), EXIT_WRONG_USAGE, "%zu", i);
        cr_assert_not_null(strstr(text, rows[i].says), "%zu: %s", i, text);
    }
}

Test(command_line, journals_that_cannot_be_read_have_codes_of_their_own)
{
    static char text[65536];
    const char *const missing[] = {"stateroom", "verify", "/does/not/exist", NULL};
    const char *const no_journal[] = {"stateroom", "stat", "/tmp", NULL};
    const int code = command_line(text, sizeof text, missing);
    cr_assert_neq(code, EXIT_WELL);
    cr_assert_neq(code, EXIT_WRONG_USAGE);
    cr_assert_not_null(strstr(text, "/does/not/exist"), "%s", text);
    cr_assert_neq(command_line(text, sizeof text, no_journal), EXIT_WELL);
    cr_assert_not_null(strstr(text, "/tmp"), "%s", text);
}

Test(command_line, completion_is_a_script_that_bash_takes)
{
    static char text[65536];
    char command[64] = "bash -n /tmp/stateroom-completion-XXXXXX";
    const char *const words[] = {"stateroom", "completion", "bash", NULL};
    cr_assert_eq(command_line(text, sizeof text, words), EXIT_WELL);
    const int fd = mkstemp(command + 8);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    const int code = system(command);
    (void)unlink(command + 8);
    cr_assert_eq(code, 0);
}
