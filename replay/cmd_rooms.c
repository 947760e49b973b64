/* SPDX-License-Identifier: Apache-2.0 */
/* history and rooms. */
#include "cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- history
 * ------------------------------------------------------------------------------------------- */

static void history_json(const struct history *history)
{
    static const char *const lanes[] = {"engine", "node", "peer"};
    char room[32];
    (void)snprintf(room, sizeof room, "%" PRIu64, history->room);
    for (uint32_t i = 0; i < history->count; i++) {
        const struct history_event *e = &history->events[i];
        cli_print_json(json_pack("{s:s, s:I, s:I, s:I, s:s, s:s, s:s}", "room", room, "entry",
                                 (json_int_t)e->number, "time_ns", (json_int_t)e->time_ns,
                                 "wall_ns", (json_int_t)e->wall_ns, "from", lanes[e->from], "to",
                                 lanes[e->to], "what", e->label));
    }
}

static void history_headline(const struct history *history)
{
    char took[32];
    cli_duration(history->events[history->count - 1u].time_ns - history->events[0].time_ns, took,
                 sizeof took);
    printf("room %" PRIu64 " at node %s: ", history->room, history->node);
    if (history->outcome == SM_OUTCOME_SUCCEEDED) {
        printf("succeeded");
    } else if (history->outcome == SM_OUTCOME_FAILED) {
        printf("failed with %" PRIu32 "%s%s%s", history->http,
               history->reason[0] != '\0' ? " \"" : "", history->reason,
               history->reason[0] != '\0' ? "\"" : "");
    } else {
        printf("live");
    }
    printf(" (%s, generation %" PRIu64 "); %" PRIu32 " events in %s\n", sm_side_name(history->side),
           history->generation, history->count, took);
}

int cmd_history(const struct cli_values *values)
{
    struct history history;
    struct status_detail detail = {"", 0};
    char *end = NULL;
    int code = EXIT_WELL;
    const uint64_t room = strtoull(values->words[0], &end, 0);
    const char *path = cli_text(values, "journal", getenv("STATEROOM_JOURNAL_PATH"));
    if (room == 0 || *end != '\0') {
        return cli_fail(EXIT_WRONG_USAGE, "'%s' is not a room number", values->words[0]);
    }
    if (path == NULL) {
        return cli_fail(EXIT_WRONG_USAGE, "name the journal with -j DIR or STATEROOM_JOURNAL_PATH");
    }
    struct journal *journal = cli_open_journal(path, &code);
    if (journal == NULL) {
        return code;
    }
    const enum status status = history_read(journal, room, &history, &detail);
    if (status != STATUS_OK) {
        code = cli_fail(cli_code(status), "%s", detail.text);
    } else if (cli_given(values, "json")) {
        history_json(&history);
    } else {
        history_headline(&history);
        if (cli_given(values, "diagram") || cli_given(values, "ascii")) {
            history_diagram(stdout, &history, !cli_given(values, "ascii"));
        } else {
            history_list(stdout, &history);
        }
    }
    history_free(&history);
    journal_close(journal);
    return code;
}

/* ---- rooms
 * -----------------------------------------------------------------------------------------------
 */

struct row {
    uint64_t room;
    uint64_t entry;
    uint64_t took_ns;
    uint32_t outcome;
    uint32_t http;
    uint32_t side;
    char reason[200];
};

static bool wanted(const struct cli_values *values, const struct row *row)
{
    static const char *const words[] = {"live", "succeeded", "failed"};
    const char *outcome = cli_text(values, "outcome", NULL);
    const char *reason = cli_text(values, "reason", NULL);
    return (outcome == NULL || strcmp(outcome, words[row->outcome]) == 0) &&
           (!cli_given(values, "http") || row->http == cli_number(values, "http", 0)) &&
           (reason == NULL || strstr(row->reason, reason) != NULL);
}

static void print_row(const struct cli_values *values, const struct row *row)
{
    static const char *const words[] = {"live", "succeeded", "failed"};
    char took[32];
    char room[32];
    cli_duration(row->took_ns, took, sizeof took);
    (void)snprintf(room, sizeof room, "%" PRIu64, row->room);
    if (cli_given(values, "json")) {
        cli_print_json(json_pack("{s:s, s:s, s:s, s:i, s:s, s:I, s:I}", "room", room, "side",
                                 sm_side_name(row->side), "outcome", words[row->outcome], "http",
                                 (int)row->http, "reason", row->reason, "took_ns",
                                 (json_int_t)row->took_ns, "entry", (json_int_t)row->entry));
        return;
    }
    char http[16] = "";
    if (row->http != 0) {
        (void)snprintf(http, sizeof http, "%" PRIu32, row->http);
    }
    printf("%20s  %-9s %4s %11s  %s\n", room, words[row->outcome], http, took, row->reason);
}

static int by_duration(const void *a, const void *b)
{
    const struct row *x = a;
    const struct row *y = b;
    return x->took_ns > y->took_ns ? -1 : x->took_ns < y->took_ns;
}

static enum status read_rows(struct journal *journal, const struct cli_values *values,
                             struct row **out_rows, size_t *out_count, struct status_detail *detail)
{
    size_t capacity = 0;
    uint64_t room = 0;
    uint64_t last = 0;
    enum status status = STATUS_OK;
    *out_rows = NULL;
    *out_count = 0;
    while ((status = journal_room_next(journal, room, &room, &last)) == STATUS_OK) {
        struct history history;
        TRY(history_read(journal, room, &history, detail));
        struct row row = {room, last, 0, history.outcome, history.http, history.side, ""};
        row.took_ns = history.events[history.count - 1u].time_ns - history.events[0].time_ns;
        (void)snprintf(row.reason, sizeof row.reason, "%.199s", history.reason);
        history_free(&history);
        if (!wanted(values, &row)) {
            continue;
        }
        if (*out_count == capacity) {
            capacity = capacity == 0 ? 256u : capacity * 2u;
            struct row *grown = realloc(*out_rows, capacity * sizeof *grown);
            if (grown == NULL) {
                return STATUS_NO_MEMORY;
            }
            *out_rows = grown;
        }
        (*out_rows)[(*out_count)++] = row;
    }
    return status == STATUS_END ? STATUS_OK : status;
}

int cmd_rooms(const struct cli_values *values)
{
    struct status_detail detail = {"the rooms cannot be read", 0};
    struct row *rows = NULL;
    size_t count = 0;
    int code = EXIT_WELL;
    const char *path = cli_text(values, "journal", getenv("STATEROOM_JOURNAL_PATH"));
    const char *outcome = cli_text(values, "outcome", NULL);
    if (path == NULL) {
        return cli_fail(EXIT_WRONG_USAGE, "name the journal with -j DIR or STATEROOM_JOURNAL_PATH");
    }
    if (outcome != NULL && strcmp(outcome, "live") != 0 && strcmp(outcome, "succeeded") != 0 &&
        strcmp(outcome, "failed") != 0) {
        return cli_fail(EXIT_WRONG_USAGE, "--outcome: '%s' is not succeeded, failed or live",
                        outcome);
    }
    struct journal *journal = cli_open_journal(path, &code);
    if (journal == NULL) {
        return code;
    }
    const enum status status = read_rows(journal, values, &rows, &count, &detail);
    if (status != STATUS_OK) {
        code = cli_fail(cli_code(status), "%s", detail.text);
    } else {
        const uint64_t limit = cli_number(values, "limit", 50);
        if (cli_given(values, "slowest") && count > 1u) {
            qsort(rows, count, sizeof *rows, by_duration);
        }
        if (!cli_given(values, "json")) {
            printf("%20s  %-9s %4s %11s  %s\n", "room", "outcome", "http", "took", "reason");
        }
        for (size_t i = 0; i < count && (limit == 0 || i < limit); i++) {
            print_row(values, &rows[i]);
        }
        if (limit != 0 && count > limit && !cli_given(values, "json")) {
            fprintf(stderr, "%zu more (--limit 0 shows all)\n", count - (size_t)limit);
        }
    }
    free(rows);
    journal_close(journal);
    return code;
}
