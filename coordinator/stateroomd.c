/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon: flags, signals, and a node. */
#include "coordinator/log.h"
#include "coordinator/node.h"
#include "schemas/text.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2
/* Beyond stop_grace: for the last notices and the last commit. */
#define STOP_MARGIN_MS 10000u

static volatile sig_atomic_t stop_signals;
static volatile sig_atomic_t summary_signals;
static volatile sig_atomic_t reload_signals;

static void on_signal(int number)
{
    if (number == SIGUSR1) {
        summary_signals++;
    } else if (number == SIGHUP) {
        reload_signals++;
    } else {
        stop_signals++;
    }
}

enum { OPTION_CHECK = 256, OPTION_PRINT, OPTION_EXAMPLE, OPTION_MAN, OPTION_VERSION };

struct row {
    const char *name;
    int code; /* a letter, or OPTION_* */
    const char *value;
    const char *help;
};

/* getopt's table, --help and the man page come from this one. */
static const struct row rows[] = {
    {"config", 'c', "FILE", "read this configuration (YAML)"},
    {"set", 's', "KEY=VALUE", "set one key; wins over file and environment; may repeat"},
    {"check-config", OPTION_CHECK, NULL, "say all that is wrong with the configuration, and end"},
    {"print-config", OPTION_PRINT, NULL,
     "print every key with its value and where it comes from (YAML), and end"},
    {"print-example", OPTION_EXAMPLE, NULL,
     "print a configuration file with every key as a comment, and end"},
    {"man", OPTION_MAN, NULL, "print this as a man page (roff), and end"},
    {"help", 'h', NULL, "this text"},
    {"version", OPTION_VERSION, NULL, "print the version, and end"},
};
#define ROWS (sizeof rows / sizeof rows[0])

static const char summary[] = "the Stateroom node: coordinates KV cache handoffs beside an engine";
static const char *const notes[] = {
    "A key may also come from the environment: journal.path is STATEROOM_JOURNAL_PATH.",
    "SIGTERM, SIGINT: stop gracefully; a second one ends at once. SIGUSR1: log a summary.",
    "SIGHUP: says in the log that the configuration is read at the start only.",
    "Exit status: 0 stopped, 1 failed, 2 usage or configuration.",
};

static void usage(FILE *out)
{
    struct config config;
    config_default(&config);
    fprintf(out, "stateroomd - %s\n\nusage: stateroomd --config FILE [--set KEY=VALUE]...\n\n",
            summary);
    for (size_t i = 0; i < ROWS; i++) {
        char names[48];
        (void)snprintf(names, sizeof names, "%s%c%s--%s %s", rows[i].code < 256 ? "-" : "  ",
                       rows[i].code < 256 ? rows[i].code : ' ', rows[i].code < 256 ? ", " : " ",
                       rows[i].name, rows[i].value != NULL ? rows[i].value : "");
        fprintf(out, "  %-24s %s\n", names, rows[i].help);
    }
    fputc('\n', out);
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++) {
        fprintf(out, "%s\n", notes[i]);
    }
    fprintf(out, "\nkeys, their defaults and meanings:\n");
    config_print(&config, out, CONFIG_PRINT_HELP);
}

static void man_key(void *context, const char *name, const char *value, enum config_origin origin,
                    const char *help)
{
    FILE *out = context;
    (void)origin;
    fputs(".TP\n.BR ", out);
    text_roff(out, name);
    fputs(" \" (", out);
    text_roff(out, value);
    fputs(")\"\n", out);
    text_roff(out, help);
    fputc('\n', out);
}

static void man_page(FILE *out)
{
    struct config config;
    config_default(&config);
    fputs(".TH STATEROOMD 8 \"\" \"Stateroom 0.1.0\"\n.nh\n.ad l\n.SH NAME\nstateroomd \\- ", out);
    text_roff(out, summary);
    fputs("\n.SH SYNOPSIS\n.B stateroomd\n\\-\\-config\n.I FILE\n[\\-\\-set\n.IR KEY = VALUE ]...\n"
          ".SH OPTIONS\n",
          out);
    for (size_t i = 0; i < ROWS; i++) {
        fputs(".TP\n.B ", out);
        if (rows[i].code < 256) {
            fprintf(out, "\\-%c, ", rows[i].code);
        }
        fputs("\\-\\-", out);
        text_roff(out, rows[i].name);
        fprintf(out, " %s\n", rows[i].value != NULL ? rows[i].value : "");
        text_roff(out, rows[i].help);
        fputc('\n', out);
    }
    fputs(".SH NOTES\n", out);
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++) {
        text_roff(out, notes[i]);
        fputs("\n.PP\n", out);
    }
    fputs(".SH CONFIGURATION\nKeys, their defaults and meanings.\n", out);
    config_each_key(&config, false, man_key, out);
    man_key(out, "peers", "-", CONFIG_DEFAULT, CONFIG_PEERS_HELP);
    fputs(".SH SEE ALSO\n.BR stateroom (1)\n", out);
}

static int fail(int code, const char *text)
{
    fprintf(stderr, "stateroomd: %s\n", text);
    return code;
}

static void set_flag(struct config *config, char *argument, struct config_faults *faults)
{
    struct status_detail detail;
    char *equals = strchr(argument, '=');
    if (equals == NULL) {
        (void)config_fault(faults, "--set %.200s: write KEY=VALUE", argument);
        return;
    }
    *equals = '\0';
    if (config_set(config, argument, equals + 1, CONFIG_FLAG, &detail) != STATUS_OK) {
        (void)config_fault(faults, "--set %.60s: %.240s", argument, detail.text);
    }
}

struct flags {
    bool check;
    bool print;
    int exit_code; /* not negative: end with it */
};

/* All but --set, whose values win over file and environment wherever they stand. */
static void read_option(int option, struct config *config, struct flags *flags,
                        struct config_faults *faults)
{
    switch (option) {
    case 'c':
        (void)config_read_file(config, optarg, faults);
        break;
    case 's':
        break;
    case OPTION_CHECK:
        flags->check = true;
        break;
    case OPTION_PRINT:
        flags->print = true;
        break;
    case OPTION_EXAMPLE:
        config_default(config);
        config_print(config, stdout, CONFIG_PRINT_EXAMPLE);
        flags->exit_code = 0;
        break;
    case OPTION_MAN:
        man_page(stdout);
        flags->exit_code = 0;
        break;
    case OPTION_VERSION:
        printf("stateroomd 0.1.0\n");
        flags->exit_code = 0;
        break;
    case 'h':
        usage(stdout);
        flags->exit_code = 0;
        break;
    default: /* getopt has said what is wrong */
        (void)fail(EXIT_USAGE, "see stateroomd --help");
        flags->exit_code = EXIT_USAGE;
        break;
    }
}

static void read_flags(int argc, char **argv, struct config *config, struct flags *flags,
                       struct config_faults *faults)
{
    struct option options[ROWS + 1u];
    int option = 0;
    memset(options, 0, sizeof options);
    for (size_t i = 0; i < ROWS; i++) {
        options[i].name = rows[i].name;
        options[i].has_arg = rows[i].value != NULL ? required_argument : no_argument;
        options[i].val = rows[i].code;
    }
    while (flags->exit_code < 0 &&
           (option = getopt_long(argc, argv, "c:s:h", options, NULL)) != -1) {
        read_option(option, config, flags, faults);
    }
    if (flags->exit_code >= 0) {
        return;
    }
    (void)config_read_environment(config, faults);
    optind = 1;
    while ((option = getopt_long(argc, argv, "c:s:h", options, NULL)) != -1) {
        if (option == 's') {
            set_flag(config, optarg, faults);
        }
    }
    for (; optind < argc; optind++) {
        (void)config_fault(faults, "'%.200s' is not an option; see --help", argv[optind]);
    }
    (void)config_check(config, faults);
}

static void watch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGUSR1, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
    action.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &action, NULL);
    /* A limit on file size is a full disk, not a reason to die. */
    (void)sigaction(SIGXFSZ, &action, NULL);
}

static int run(const struct config *config)
{
    struct status_detail detail = {"", 0};
    struct node *node = NULL;
    watch_signals();
    log_setup(config->name, config->log_format, config->log_level);
    const enum status status = node_start(config, NULL, &node, &detail);
    if (status != STATUS_OK) {
        return fail(1, detail.text[0] != '\0' ? detail.text : status_text(status));
    }
    bool ended = false;
    while (!ended && stop_signals == 0) {
        ended = node_wait(node, 200);
        if (summary_signals > 0) {
            summary_signals = 0;
            node_log_summary(node);
        }
        if (reload_signals > 0) {
            reload_signals = 0;
            log_event(LOG_WARNING_LEVEL, "node.no_reload",
                      "SIGHUP changes nothing: the configuration is read at the start; restart the "
                      "node, its rooms' verdicts survive that");
        }
    }
    if (!ended) {
        const uint64_t grace_ms = config->settings.policy.stop_grace_ns / 1000000u;
        const uint64_t retry_ms = config->settings.policy.retry_max_ns / 1000000u;
        uint64_t left_ms = grace_ms + retry_ms + STOP_MARGIN_MS;
        log_event(LOG_INFO_LEVEL, "node.stopping",
                  "stop_grace_ms=%" PRIu64 " retry_max_ms=%" PRIu64 " margin_ms=%u "
                  "longest_ms=%" PRIu64,
                  grace_ms, retry_ms, STOP_MARGIN_MS, left_ms);
        node_stop(node);
        while (!ended && stop_signals < 2 && left_ms > 0) {
            ended = node_wait(node, 100);
            left_ms = left_ms > 100u ? left_ms - 100u : 0;
        }
    }
    log_event(LOG_INFO_LEVEL, "node.stopped", "gracefully=%s", ended ? "yes" : "no");
    node_destroy(node);
    return ended && stop_signals > 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    static struct config config;
    static struct config_faults faults;
    struct flags flags = {false, false, -1};
    config_default(&config);
    read_flags(argc, argv, &config, &flags, &faults);
    if (flags.exit_code >= 0) {
        return flags.exit_code;
    }
    for (uint32_t i = 0; i < faults.count; i++) {
        (void)fail(EXIT_USAGE, faults.at[i].text);
    }
    if (faults.more > 0) {
        fprintf(stderr, "stateroomd: and %u more\n", faults.more);
    }
    if (faults.count > 0) {
        return EXIT_USAGE;
    }
    if (flags.print) {
        config_print(&config, stdout, CONFIG_PRINT_VALUES);
        return 0;
    }
    if (flags.check) {
        printf("the configuration is well\n");
        return 0;
    }
    return run(&config);
}
