/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing by the table, help from the table, and what all commands print with. */
#include "cli.h"

#include "schemas/text.h"

#include "coordinator/policy.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int cli_fail(int code, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "stateroom: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    return code;
}

int cli_code(enum status status)
{
    switch ((int)status) {
    case STATUS_OK:
        return EXIT_WELL;
    case STATUS_JOURNAL_DIVERGED:
        return EXIT_DIFFERS;
    case STATUS_NOT_FOUND:
        return EXIT_NOT_THERE;
    case STATUS_EXISTS:
        return EXIT_WRONG_USAGE;
    case STATUS_JOURNAL_DAMAGED:
        return EXIT_DAMAGED;
    case STATUS_JOURNAL_VERSION:
        return EXIT_OTHER_VERSION;
    default:
        return EXIT_UNREACHABLE;
    }
}

bool cli_colour(FILE *out)
{
    const char *no_colour = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return isatty(fileno(out)) && (no_colour == NULL || no_colour[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

void cli_print_json(json_t *take_object)
{
    char *line =
        take_object != NULL ? json_dumps(take_object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    printf("%s\n", line != NULL ? line : "{}");
    free(line);
    json_decref(take_object);
}

json_t *cli_json_text(const char *text)
{
    char clean[4096];
    (void)text_clean(text, strlen(text), clean, sizeof clean);
    return json_string(clean);
}

void cli_duration(uint64_t ns, char *buffer, size_t size)
{
    if (ns < 1000000u) {
        (void)snprintf(buffer, size, "%.1f us", (double)ns / 1e3);
    } else if (ns < UINT64_C(1000000000)) {
        (void)snprintf(buffer, size, "%.2f ms", (double)ns / 1e6);
    } else {
        (void)snprintf(buffer, size, "%.2f s", (double)ns / 1e9);
    }
}

uint64_t cli_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- progress
 * ------------------------------------------------------------------------------------------ */

void cli_progress_begin(struct cli_progress *progress, const char *what, uint64_t total)
{
    progress->what = what;
    progress->total = total;
    progress->started_ns = cli_now_ns();
    progress->shown_ns = 0;
}

void cli_progress_show(struct cli_progress *progress, uint64_t done)
{
    const uint64_t now = cli_now_ns();
    if (!isatty(STDERR_FILENO) || now - progress->started_ns < UINT64_C(1000000000) ||
        now - progress->shown_ns < 100000000u) {
        return;
    }
    progress->shown_ns = now;
    const double seconds = (double)(now - progress->started_ns) / 1e9;
    if (progress->total == 0) {
        fprintf(stderr, "\r%s: %" PRIu64 ", %.0f a second ", progress->what, done,
                (double)done / seconds);
        return;
    }
    fprintf(stderr, "\r%s: %" PRIu64 " of %" PRIu64 " (%.0f %%), %.0f a second ", progress->what,
            done, progress->total, 100.0 * (double)done / (double)progress->total,
            (double)done / seconds);
}

void cli_progress_end(struct cli_progress *progress)
{
    if (progress->shown_ns != 0) {
        fprintf(stderr, "\r\033[K");
    }
}

/* ---- values
 * -------------------------------------------------------------------------------------------- */

static int option_place(const struct cli_command *command, const char *name)
{
    for (uint32_t i = 0; i < CLI_OPTIONS_MAX && command->options[i].name != NULL; i++) {
        if (strcmp(command->options[i].name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

bool cli_given(const struct cli_values *values, const char *option)
{
    const int place = option_place(values->command, option);
    return place >= 0 && values->given[place];
}

const char *cli_text(const struct cli_values *values, const char *option, const char *preset)
{
    const int place = option_place(values->command, option);
    return place >= 0 && values->given[place] ? values->texts[place] : preset;
}

uint64_t cli_number(const struct cli_values *values, const char *option, uint64_t preset)
{
    const int place = option_place(values->command, option);
    return place >= 0 && values->given[place] ? values->numbers[place] : preset;
}

bool cli_parse_number(const char *text, uint64_t *out_number)
{
    char *end = NULL;
    errno = 0;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    *out_number = strtoull(text, &end, 0);
    return errno == 0 && *end == '\0';
}

bool cli_room_word(const char *word, uint64_t *out_room, int *out_code)
{
    if (cli_parse_number(word, out_room) && *out_room != 0) {
        return true;
    }
    *out_code = cli_fail(EXIT_WRONG_USAGE,
                         "'%s' is not a room number: 1 to 18446744073709551615, or 0x in front of "
                         "hexadecimal",
                         word);
    return false;
}

/* ---- journals
 * ---------------------------------------------------------------------------------------- */

const char *cli_journal_path(const struct cli_values *values, uint32_t word, int *out_code)
{
    const char *path = cli_text(values, "journal", NULL);
    path = path == NULL && word < values->word_count ? values->words[word] : path;
    path = path == NULL ? getenv("STATEROOM_JOURNAL_PATH") : path;
    if (path == NULL) {
        *out_code = cli_fail(EXIT_WRONG_USAGE,
                             "%s: name the journal's directory: as a word, with -j DIR, or in "
                             "STATEROOM_JOURNAL_PATH",
                             values->command->name);
    }
    return path;
}

/* LMDB would say it in its own words, and leave a lock file behind. */
static bool journal_there(const char *path, int *out_code)
{
    struct stat info;
    const bool there = stat(path, &info) == 0;
    const int code = there || errno == ENOENT ? EXIT_NOT_THERE : EXIT_UNREACHABLE;
    if (!there) {
        *out_code = cli_fail(code, "journal %s: %s", path, strerror(errno));
    } else {
        return true;
    }
    return false;
}

static void on_crash(int number)
{
    static const char text[] =
        "stateroom: reading the journal crashed: its pages are damaged; `stateroom verify` says "
        "where, and harms nothing\n";
    (void)number;
    if (write(STDERR_FILENO, text, sizeof text - 1u) < 0) {
        _exit(EXIT_UNREACHABLE);
    }
    _exit(EXIT_DAMAGED);
}

/* LMDB trusts its file: one that was cut off or overwritten kills who maps it. */
static void watch_crashes(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_crash;
    (void)sigaction(SIGBUS, &action, NULL);
    (void)sigaction(SIGSEGV, &action, NULL);
}

struct journal *cli_open_journal(const char *path, int *out_code)
{
    struct status_detail detail = {"", 0};
    struct journal *journal = NULL;
    const struct journal_options options = {.path = path, .read_only = true};
    if (!journal_there(path, out_code)) {
        return NULL;
    }
    watch_crashes();
    const enum status status = journal_open(&options, &journal, &detail);
    if (status != STATUS_OK) {
        *out_code = cli_fail(cli_code(status), "%s", detail.text);
        return NULL;
    }
    return journal;
}

struct journal *cli_command_journal(const struct cli_values *values, uint32_t word, int *out_code)
{
    const char *path = cli_journal_path(values, word, out_code);
    return path == NULL ? NULL : cli_open_journal(path, out_code);
}

/* ---- help
 * ------------------------------------------------------------------------------------------------
 */

static void print_option(FILE *out, const struct cli_option *option)
{
    char names[64];
    (void)snprintf(names, sizeof names, "%c%c%s--%s%s%s", option->letter != 0 ? '-' : ' ',
                   option->letter != 0 ? option->letter : ' ', option->letter != 0 ? ", " : "  ",
                   option->name, option->value != NULL ? " " : "",
                   option->value != NULL ? option->value : "");
    fprintf(out, "  %-26s %s\n", names, option->help);
}

static uint32_t characters(const char *text, size_t bytes)
{
    uint32_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        count += ((unsigned char)text[i] & 0xc0u) != 0x80u;
    }
    return count;
}

void cli_wrapped(FILE *out, const char *text, uint32_t columns, uint32_t indent)
{
    uint32_t column = 0;
    while (*text != '\0') {
        const size_t bytes = strcspn(text, " ");
        const uint32_t width = characters(text, bytes);
        if (column > 0 && column + 1u + width > columns) {
            fputc('\n', out);
            column = 0;
        }
        if (column > 0) {
            fputc(' ', out);
            column++;
        } else {
            fprintf(out, "%*s", (int)indent, "");
            column += indent;
        }
        fprintf(out, "%.*s", (int)bytes, text);
        column += width;
        text += bytes;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static const struct cli_option help_option = {"help", 'h', CLI_FLAG, NULL, "this text"};

static void command_help(FILE *out, const struct cli_command *command)
{
    fprintf(out, "stateroom %s - %s\n\nusage: stateroom %s [options]%s%s\n\n", command->name,
            command->summary, command->name, command->words[0] != '\0' ? " " : "", command->words);
    cli_wrapped(out, command->description, 78, 0);
    fprintf(out, "\noptions:\n");
    for (uint32_t i = 0; i < CLI_OPTIONS_MAX && command->options[i].name != NULL; i++) {
        print_option(out, &command->options[i]);
    }
    print_option(out, &help_option);
    fprintf(out, "\nexample:\n  %s\n", command->example);
}

static const char overall_summary[] = "replay, history and demo of Stateroom journals";
static const char exit_codes[] =
    "0 well; 1 different or failed; 2 usage; 3 cannot be reached; 4 not found; 5 journal damaged; "
    "6 other version; 130 interrupted";

static void overall_help(FILE *out)
{
    fprintf(out, "stateroom - %s\n\nusage: stateroom COMMAND [options]\n\ncommands:\n",
            overall_summary);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        fprintf(out, "  %-12s %s\n", c->name, c->summary);
    }
    fprintf(out,
            "\nstateroom COMMAND --help says more. A journal is a directory, of a running node "
            "too.\n\nexit status:\n");
    cli_wrapped(out, exit_codes, 78, 0);
}

static void man_line(FILE *out, const char *before, const char *text)
{
    fputs(before, out);
    text_roff(out, text);
    fputc('\n', out);
}

static void man_end(FILE *out)
{
    fputs(".SH EXIT STATUS\n", out);
    man_line(out, "", exit_codes);
    fputs(".SH SEE ALSO\n", out);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        fprintf(out, ".BR stateroom\\-%s (1),\n", c->name);
    }
    fputs(".BR stateroomd (8)\n", out);
}

static void man_option(FILE *out, const struct cli_option *option)
{
    fputs(".TP\n", out);
    if (option->letter != 0) {
        fprintf(out, ".BR \\-%c \", \" ", option->letter);
    } else {
        fputs(".B ", out);
    }
    text_roff(out, "--");
    text_roff(out, option->name);
    if (option->value != NULL) {
        fprintf(out, option->letter != 0 ? " \" %s\"" : " %s", option->value);
    }
    man_line(out, "\n", option->help);
}

static void man_overall(FILE *out)
{
    fputs(".TH STATEROOM 1 \"\" \"Stateroom 0.1.0\"\n.nh\n.ad l\n.SH NAME\nstateroom \\- ", out);
    man_line(out, "", overall_summary);
    fputs(".SH SYNOPSIS\n.B stateroom\n.I COMMAND\n[options]\n.SH COMMANDS\n", out);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        fprintf(out, ".TP\n.B %s\n", c->name);
        man_line(out, "", c->summary);
    }
    man_end(out);
}

void cli_man(FILE *out, const struct cli_command *command)
{
    if (command == NULL) {
        man_overall(out);
        return;
    }
    fprintf(
        out,
        ".TH STATEROOM\\-%s 1 \"\" \"Stateroom 0.1.0\"\n.nh\n.ad l\n.SH NAME\nstateroom\\-%s \\- ",
        command->name, command->name);
    man_line(out, "", command->summary);
    fprintf(out, ".SH SYNOPSIS\n.B stateroom %s\n[options]\n", command->name);
    if (command->words[0] != '\0') {
        man_line(out, ".I ", command->words);
    }
    man_line(out, ".SH DESCRIPTION\n", command->description);
    fputs(".SH OPTIONS\n", out);
    for (uint32_t i = 0; i < CLI_OPTIONS_MAX && command->options[i].name != NULL; i++) {
        man_option(out, &command->options[i]);
    }
    man_option(out, &help_option);
    man_line(out, ".SH EXAMPLE\n.nf\n", command->example);
    fputs(".fi\n", out);
    man_end(out);
}

static const struct cli_command *command_named(const char *name)
{
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0) {
            return c;
        }
    }
    return NULL;
}

static int no_such_command(const char *name)
{
    const char *names[32];
    size_t count = 0;
    for (const struct cli_command *c = cli_commands; c->name != NULL && count < 32u; c++) {
        names[count++] = c->name;
    }
    const char *near = nearest_name(name, names, count);
    return cli_fail(EXIT_WRONG_USAGE, "no command is named '%s'%s%s%s; see stateroom --help", name,
                    near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                    near != NULL ? "'" : "");
}

int cmd_help(const struct cli_values *values)
{
    const struct cli_command *command = NULL;
    if (values->word_count == 1u) {
        command = command_named(values->words[0]);
        if (command == NULL) {
            return no_such_command(values->words[0]);
        }
    }
    if (cli_given(values, "man")) {
        cli_man(stdout, command);
    } else if (command == NULL) {
        overall_help(stdout);
    } else {
        command_help(stdout, command);
    }
    return EXIT_WELL;
}

int cmd_completion(const struct cli_values *values)
{
    const bool zsh = strcmp(values->words[0], "zsh") == 0;
    if (!zsh && strcmp(values->words[0], "bash") != 0) {
        return cli_fail(EXIT_WRONG_USAGE, "completion is there for bash and zsh, not for '%s'",
                        values->words[0]);
    }
    if (zsh) {
        printf("autoload -U +X bashcompinit && bashcompinit\n");
    }
    printf("_stateroom() {\n  local cur=${COMP_WORDS[COMP_CWORD]} words=\"\"\n"
           "  if [ $COMP_CWORD -eq 1 ]; then words=\"");
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        printf("%s ", c->name);
    }
    printf("\"; else case ${COMP_WORDS[1]} in\n");
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        printf("    %s) words=\"--help", c->name);
        for (uint32_t i = 0; i < CLI_OPTIONS_MAX && c->options[i].name != NULL; i++) {
            printf(" --%s", c->options[i].name);
        }
        printf("\";;\n");
    }
    printf("  esac; fi\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\") $(compgen -d -- "
           "\"$cur\"))\n}\n"
           "complete -o filenames -F _stateroom stateroom\n");
    return EXIT_WELL;
}

/* ---- parsing
 * ------------------------------------------------------------------------------------------------
 */

struct parser {
    struct option longs[CLI_OPTIONS_MAX + 2u];
    char shorts[CLI_OPTIONS_MAX * 2u + 4u];
};

static void make_parser(const struct cli_command *command, struct parser *parser)
{
    size_t used = 0;
    uint32_t i = 0;
    memset(parser, 0, sizeof *parser);
    parser->shorts[used++] = ':';
    for (; i < CLI_OPTIONS_MAX && command->options[i].name != NULL; i++) {
        const struct cli_option *option = &command->options[i];
        parser->longs[i] = (struct option){
            option->name, option->type == CLI_FLAG ? no_argument : required_argument, NULL,
            1000 + (int)i};
        if (option->letter != 0) {
            parser->shorts[used++] = option->letter;
            if (option->type != CLI_FLAG) {
                parser->shorts[used++] = ':';
            }
        }
    }
    parser->longs[i] = (struct option){"help", no_argument, NULL, 'h'};
    parser->shorts[used] = 'h';
}

static int place_of(const struct cli_command *command, int code)
{
    if (code >= 1000) {
        return code - 1000;
    }
    for (uint32_t i = 0; i < CLI_OPTIONS_MAX && command->options[i].name != NULL; i++) {
        if (command->options[i].letter == code) {
            return (int)i;
        }
    }
    return -1;
}

static int take_option(const struct cli_command *command, int code, struct cli_values *values)
{
    const int place = place_of(command, code);
    if (place < 0) {
        return cli_fail(EXIT_WRONG_USAGE, "%s: see stateroom %s --help", command->name,
                        command->name);
    }
    const struct cli_option *option = &command->options[place];
    values->given[place] = true;
    values->texts[place] = optarg;
    if (option->type == CLI_NUMBER && !cli_parse_number(optarg, &values->numbers[place])) {
        return cli_fail(EXIT_WRONG_USAGE, "--%s: '%s' is not a number", option->name, optarg);
    }
    return EXIT_WELL;
}

static int run_command(const struct cli_command *command, int argc, char **argv)
{
    struct parser parser;
    struct cli_values values;
    int code = 0;
    make_parser(command, &parser);
    memset(&values, 0, sizeof values);
    values.command = command;
    opterr = 0;
    while ((code = getopt_long(argc, argv, parser.shorts, parser.longs, NULL)) != -1) {
        if (code == 'h') {
            command_help(stdout, command);
            return EXIT_WELL;
        }
        if (code == '?' || code == ':') {
            return cli_fail(EXIT_WRONG_USAGE, "%s: '%s' %s; see stateroom %s --help", command->name,
                            argv[optind - 1], code == ':' ? "needs a value" : "is not an option",
                            command->name);
        }
        const int result = take_option(command, code, &values);
        if (result != EXIT_WELL) {
            return result;
        }
    }
    for (; optind < argc && values.word_count < command->words_most; optind++) {
        values.words[values.word_count++] = argv[optind];
    }
    if (optind < argc) {
        return cli_fail(EXIT_WRONG_USAGE,
                        "%s: '%s' is one argument too many; see stateroom %s --help", command->name,
                        argv[optind], command->name);
    }
    if (values.word_count < command->words_least) {
        return cli_fail(EXIT_WRONG_USAGE, "%s: it needs %s; see stateroom %s --help", command->name,
                        command->words, command->name);
    }
    return command->run(&values);
}

static int run_words(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        overall_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? EXIT_WRONG_USAGE : EXIT_WELL;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("stateroom 0.1.0 (machine version %u, journal format %u)\n", SM_MACHINE_VERSION,
               JOURNAL_FORMAT_VERSION);
        return EXIT_WELL;
    }
    const struct cli_command *command = command_named(argv[1]);
    return command == NULL ? no_such_command(argv[1]) : run_command(command, argc - 1, argv + 1);
}

int cli_main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "demo-engine") == 0) {
        return demo_engine_main(argc - 1, argv + 1);
    }
    const int code = run_words(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return cli_fail(EXIT_DIFFERS, "the output could not be written: %s", strerror(errno));
    }
    return code;
}
