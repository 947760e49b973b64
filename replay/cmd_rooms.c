/* SPDX-License-Identifier: Apache-2.0 */
/* history and rooms. */
#include "cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* Without the year it fits a table. */
static void wall_text(uint64_t wall_ns, bool year, char *out, size_t size)
{
    struct tm parts;
    const time_t seconds = (time_t)(wall_ns / 1000000000u);
    (void)gmtime_r(&seconds, &parts);
    const size_t used = year ? strftime(out, size, "%Y-%m-%d %H:%M:%S", &parts)
                             : strftime(out, size, "%m-%d %H:%M:%S", &parts);
    out[used] = '\0';
}

static const char *const outcome_words[] = {"live", "succeeded", "failed"};

/* From open to verdict; of a live one until now. */
static uint64_t life_took(const struct history_life *life)
{
    if (life->decided_ns != 0) {
        return life->decided_ns - life->opened_ns;
    }
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    const uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return now > life->opened_wall_ns ? now - life->opened_wall_ns : 0;
}

static void print_life(const struct history *history, const struct history_life *life,
                       const char *outcome)
{
    char took[32];
    char opened[40];
    cli_duration(life_took(life), took, sizeof took);
    wall_text(life->opened_wall_ns, true, opened, sizeof opened);
    printf("room %" PRIu64 " at node %s, %s, generation %" PRIu64 ": %s", history->room,
           history->node, sm_side_name(life->side), life->generation, outcome);
    if (life->http != 0) {
        printf(" with %" PRIu32 "%s%s%s", life->http, life->reason[0] != '\0' ? " \"" : "",
               life->reason, life->reason[0] != '\0' ? "\"" : "");
    }
    printf("\n  opened %s UTC, ", opened);
    if (life->outcome == SM_OUTCOME_NONE && life->decided_ns == 0) {
        printf("since %s\n", took);
    } else if (life->cleared_ns != 0) {
        char cleared[32];
        cli_duration(life->cleared_ns - life->opened_ns, cleared, sizeof cleared);
        printf("decided after %s, cleared after %s\n", took, cleared);
    } else {
        printf("decided after %s, not cleared yet\n", took);
    }
}

static void history_headline(const struct history *history)
{
    for (uint32_t i = 0; i < history->life_count; i++) {
        print_life(history, &history->lives[i], outcome_words[history->lives[i].outcome]);
    }
    if (history->life_count == 0 && history->refused.entry != 0) {
        printf("room %" PRIu64
               " at node %s: never opened; the last command was refused with %" PRIu32 " \"%s\"\n",
               history->room, history->node, history->refused.http, history->refused.reason);
    } else if (history->life_count == 0) {
        printf("room %" PRIu64 " at node %s: never opened\n", history->room, history->node);
    }
}

int cmd_history(const struct cli_values *values)
{
    struct history history;
    struct status_detail detail = {"", 0};
    uint64_t room = 0;
    int code = EXIT_WELL;
    if (!cli_room_word(values->words[0], &room, &code)) {
        return code;
    }
    struct journal *journal = cli_command_journal(values, 1, &code);
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
    struct history_life life;
    uint64_t took_ns;
    const char *outcome;
};

struct rows {
    struct row *at;
    size_t count;
    size_t capacity;
    int room_width;
    uint64_t limit;  /* 0: all are wanted */
    bool slowest;    /* the longest of all; else the first are enough */
    uint64_t passed; /* that fit the filters */
};

/* So many are looked at before those that are not among the longest are dropped. */
#define ROWS_KEPT_MIN 1024u

static bool wanted(const struct cli_values *values, const struct row *row)
{
    const char *outcome = cli_text(values, "outcome", NULL);
    const char *reason = cli_text(values, "reason", NULL);
    return (outcome == NULL || strcmp(outcome, row->outcome) == 0) &&
           (!cli_given(values, "http") || row->life.http == cli_number(values, "http", 0)) &&
           (reason == NULL || strcasestr(row->life.reason, reason) != NULL);
}

static void print_header(const struct rows *rows)
{
    printf("%*s  %-7s  %-9s  %4s  %-14s  %9s  %s\n", rows->room_width, "room", "side", "outcome",
           "http", "opened (UTC)", "took", "reason");
}

static void print_row(const struct rows *rows, const struct row *row)
{
    const struct history_life *life = &row->life;
    char took[32];
    char opened[32];
    char http[16] = "";
    cli_duration(row->took_ns, took, sizeof took);
    wall_text(life->opened_wall_ns, false, opened, sizeof opened);
    if (life->http != 0) {
        (void)snprintf(http, sizeof http, "%" PRIu32, life->http);
    }
    printf("%*" PRIu64 "  %-7s  %-9s  %4s  %-14s  %9s  %s\n", rows->room_width, row->room,
           sm_side_name(life->side), row->outcome, http, opened, took, life->reason);
}

static void print_row_json(const struct row *row)
{
    const struct history_life *life = &row->life;
    char room[32];
    (void)snprintf(room, sizeof room, "%" PRIu64, row->room);
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:s, s:i, s:o, s:I, s:I, s:I}", "room", room, "side",
                  sm_side_name(life->side), "generation", (json_int_t)life->generation, "outcome",
                  row->outcome, "http", (int)life->http, "reason", cli_json_text(life->reason),
                  "entry", (json_int_t)life->entry, "opened_wall_ns",
                  (json_int_t)life->opened_wall_ns, "took_ns", (json_int_t)row->took_ns);
    if (object != NULL && life->cleared_ns != 0) {
        (void)json_object_set_new(object, "cleared_after_ns",
                                  json_integer((json_int_t)(life->cleared_ns - life->opened_ns)));
    }
    cli_print_json(object);
}

static int by_duration(const void *a, const void *b)
{
    const struct row *x = a;
    const struct row *y = b;
    return x->took_ns > y->took_ns ? -1 : x->took_ns < y->took_ns;
}

/* Of the slowest only those that can be shown are kept: a journal may have millions. */
static void drop_fast(struct rows *rows)
{
    if (rows->slowest && rows->limit != 0 && rows->count >= ROWS_KEPT_MIN &&
        rows->count >= 2u * rows->limit) {
        qsort(rows->at, rows->count, sizeof *rows->at, by_duration);
        rows->count = (size_t)rows->limit;
    }
}

/* STATUS_END: more need not be looked at. */
static enum status add_row(const struct cli_values *values, struct rows *rows, uint64_t room,
                           const struct history_life *life, const char *outcome)
{
    const struct row row = {room, *life, life_took(life), outcome};
    char text[32];
    if (!wanted(values, &row)) {
        return STATUS_OK;
    }
    rows->passed++;
    if (!rows->slowest && rows->limit != 0 && rows->passed > rows->limit) {
        return STATUS_END;
    }
    drop_fast(rows);
    if (rows->count == rows->capacity) {
        const size_t capacity = rows->capacity == 0 ? 256u : rows->capacity * 2u;
        struct row *grown = realloc(rows->at, capacity * sizeof *grown);
        if (grown == NULL) {
            return STATUS_NO_MEMORY;
        }
        rows->at = grown;
        rows->capacity = capacity;
    }
    rows->at[rows->count++] = row;
    const int width = snprintf(text, sizeof text, "%" PRIu64, room);
    rows->room_width = width > rows->room_width ? width : rows->room_width;
    return STATUS_OK;
}

/* One row a life; a room that was only ever refused has one; one that was only ignored has none. */
static enum status read_rows(struct journal *journal, const struct cli_values *values,
                             struct rows *rows, struct status_detail *detail)
{
    struct cli_progress progress;
    uint64_t room = 0;
    uint64_t last = 0;
    uint64_t seen = 0;
    enum status status = STATUS_OK;
    cli_progress_begin(&progress, "rooms", 0);
    while (status == STATUS_OK &&
           (status = journal_room_next(journal, room, &room, &last)) == STATUS_OK) {
        struct history history;
        status = history_read(journal, room, &history, detail);
        for (uint32_t i = 0; status == STATUS_OK && i < history.life_count; i++) {
            const struct history_life *life = &history.lives[i];
            status = add_row(values, rows, room, life, outcome_words[life->outcome]);
        }
        if (status == STATUS_OK && history.life_count == 0 && history.refused.entry != 0) {
            status = add_row(values, rows, room, &history.refused, "refused");
        }
        history_free(&history);
        if (++seen % 1024u == 0) {
            cli_progress_show(&progress, seen);
        }
    }
    cli_progress_end(&progress);
    return status == STATUS_END ? STATUS_OK : status;
}

static void print_rows(const struct cli_values *values, const struct rows *rows)
{
    const bool json = cli_given(values, "json");
    if (rows->count == 0 && !json) {
        printf("no room is like that\n");
        return;
    }
    if (rows->slowest && rows->count > 1u) {
        qsort(rows->at, rows->count, sizeof *rows->at, by_duration);
    }
    if (!json) {
        print_header(rows);
    }
    for (size_t i = 0; i < rows->count && (rows->limit == 0 || i < rows->limit); i++) {
        if (json) {
            print_row_json(&rows->at[i]);
        } else {
            print_row(rows, &rows->at[i]);
        }
    }
    if (rows->limit != 0 && rows->passed > rows->limit && !json) {
        (void)fflush(stdout); /* so that it comes last in a pipe too */
        fprintf(stderr, "there are more (--limit 0 shows all)\n");
    }
}

int cmd_rooms(const struct cli_values *values)
{
    struct status_detail detail = {"the rooms cannot be read", 0};
    struct rows rows = {.room_width = 4};
    int code = EXIT_WELL;
    const char *outcome = cli_text(values, "outcome", NULL);
    if (outcome != NULL && strcmp(outcome, "live") != 0 && strcmp(outcome, "succeeded") != 0 &&
        strcmp(outcome, "failed") != 0 && strcmp(outcome, "refused") != 0) {
        return cli_fail(EXIT_WRONG_USAGE,
                        "--outcome: '%s' is not succeeded, failed, live or refused", outcome);
    }
    struct journal *journal = cli_command_journal(values, 0, &code);
    if (journal == NULL) {
        return code;
    }
    rows.limit = cli_number(values, "limit", 50);
    rows.slowest = cli_given(values, "slowest");
    const enum status status = read_rows(journal, values, &rows, &detail);
    if (status != STATUS_OK) {
        code = cli_fail(cli_code(status), "%s", detail.text);
    } else {
        print_rows(values, &rows);
    }
    free(rows.at);
    journal_close(journal);
    return code;
}
