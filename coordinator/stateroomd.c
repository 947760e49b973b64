/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon: flags, signals, and a node. */
#include "coordinator/log.h"
#include "coordinator/node.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2
/* Beyond stop_grace: for the last notices and the last commit. */
#define STOP_MARGIN_MS 10000u

static volatile sig_atomic_t stop_signals;
static volatile sig_atomic_t summary_signals;

static void on_signal(int number)
{
    if (number == SIGUSR1) {
        summary_signals++;
    } else {
        stop_signals++;
    }
}

static void usage(FILE *out)
{
    struct config config;
    config_default(&config);
    fprintf(
        out,
        "stateroomd - the Stateroom node: coordinates KV cache handoffs beside an engine\n\n"
        "usage: stateroomd --config FILE [--set KEY=VALUE]...\n\n"
        "  -c, --config FILE     read this configuration (YAML)\n"
        "  -s, --set KEY=VALUE   set one key; wins over file and environment\n"
        "      --check-config    read the configuration, say what is wrong with it, and end\n"
        "      --print-config    print every key with its value and where it comes from, and end\n"
        "  -h, --help            this text\n"
        "      --version         version\n\n"
        "A key may also come from the environment: journal.path is STATEROOM_JOURNAL_PATH.\n"
        "SIGTERM, SIGINT: stop gracefully; a second one ends at once. SIGUSR1: log a summary.\n"
        "Exit status: 0 stopped, 1 failed, 2 usage or configuration.\n\n"
        "keys, their defaults and meanings:\n");
    config_print(&config, out, true);
    fprintf(out, "  %-24s %-26s %s\n", "peers", "-",
            "list of {name, address}: the nodes that this one talks to");
}

static int fail(int code, const char *text)
{
    fprintf(stderr, "stateroomd: %s\n", text);
    return code;
}

static enum status set_flag(struct config *config, char *argument, struct status_detail *out_detail)
{
    char *equals = strchr(argument, '=');
    if (equals == NULL) {
        return status_fail(STATUS_CONFIG, out_detail, 0, "--set %s: write KEY=VALUE", argument);
    }
    *equals = '\0';
    return config_set(config, argument, equals + 1, CONFIG_FLAG, out_detail);
}

enum { OPTION_CHECK = 256, OPTION_PRINT, OPTION_VERSION };

struct flags {
    bool check;
    bool print;
    int exit_code; /* not negative: end with it */
};

static enum status read_flags(int argc, char **argv, struct config *config, struct flags *flags,
                              struct status_detail *out_detail)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"set", required_argument, NULL, 's'},
                                            {"check-config", no_argument, NULL, OPTION_CHECK},
                                            {"print-config", no_argument, NULL, OPTION_PRINT},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, OPTION_VERSION},
                                            {NULL, 0, NULL, 0}};
    char *sets[64];
    size_t set_count = 0;
    int option = 0;
    while ((option = getopt_long(argc, argv, "c:s:h", options, NULL)) != -1) {
        switch (option) {
        case 'c':
            TRY(config_read_file(config, optarg, out_detail));
            break;
        case 's':
            if (set_count < sizeof sets / sizeof sets[0]) {
                sets[set_count++] = optarg;
            }
            break;
        case OPTION_CHECK:
            flags->check = true;
            break;
        case OPTION_PRINT:
            flags->print = true;
            break;
        case OPTION_VERSION:
            printf("stateroomd 0.1.0\n");
            flags->exit_code = 0;
            return STATUS_OK;
        case 'h':
            usage(stdout);
            flags->exit_code = 0;
            return STATUS_OK;
        default:
            return status_fail(STATUS_CONFIG, out_detail, 0, "see stateroomd --help");
        }
    }
    if (optind < argc) {
        return status_fail(STATUS_CONFIG, out_detail, 0, "'%s' is not an option; see --help",
                           argv[optind]);
    }
    TRY(config_read_environment(config, out_detail));
    for (size_t i = 0; i < set_count; i++) {
        TRY(set_flag(config, sets[i], out_detail));
    }
    return config_check(config, out_detail);
}

static void watch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGUSR1, &action, NULL);
    action.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &action, NULL);
    /* A limit on file size is a full disk, not a reason to die. */
    (void)sigaction(SIGXFSZ, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
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
    }
    if (!ended) {
        uint64_t left_ms = config->settings.policy.stop_grace_ns / 1000000u +
                           config->settings.policy.retry_max_ns / 1000000u + STOP_MARGIN_MS;
        log_event(LOG_INFO_LEVEL, "node.stopping", "grace_ms=%llu", (unsigned long long)left_ms);
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
    struct status_detail detail = {"", 0};
    struct flags flags = {false, false, -1};
    config_default(&config);
    if (read_flags(argc, argv, &config, &flags, &detail) != STATUS_OK) {
        return fail(EXIT_USAGE, detail.text);
    }
    if (flags.exit_code >= 0) {
        return flags.exit_code;
    }
    if (flags.print) {
        config_print(&config, stdout, false);
        return 0;
    }
    if (flags.check) {
        printf("the configuration is well\n");
        return 0;
    }
    return run(&config);
}
