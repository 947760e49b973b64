/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The space-time diagram of one room at one node, in 80 columns: engine, node and peer are lanes,
 * time runs down, each arrow is something said, a dot is something decided.
 */
#include "cli.h"

#include "schemas/text.h"

#include <inttypes.h>
#include <string.h>

#define COLUMNS 80
#define LANE_FIRST 13 /* left of it stands the time */
#define LANE_STEP 32

struct canvas {
    char cells[COLUMNS + 1][8]; /* UTF-8, one character a cell */
};

static void clear(struct canvas *canvas, bool unicode)
{
    for (int i = 0; i <= COLUMNS; i++) {
        (void)snprintf(canvas->cells[i], sizeof canvas->cells[i], " ");
    }
    for (int lane = 0; lane < 3; lane++) {
        (void)snprintf(canvas->cells[LANE_FIRST + lane * LANE_STEP], sizeof canvas->cells[0], "%s",
                       unicode ? "│" : "|");
    }
}

static void put(struct canvas *canvas, int column, const char *character)
{
    if (column >= 0 && column < COLUMNS) {
        (void)snprintf(canvas->cells[column], sizeof canvas->cells[column], "%s", character);
    }
}

/* Labels are clean; a byte that is not UTF-8 would count as one character. */
static size_t character_bytes(const char *text)
{
    const size_t size = text_character(text, strlen(text));
    return size > 0 ? size : 1u;
}

static int text_columns(const char *text)
{
    int columns = 0;
    for (; *text != '\0'; text += character_bytes(text)) {
        columns++;
    }
    return columns;
}

static int put_label(struct canvas *canvas, int column, int room, const char *text)
{
    int used = 0;
    while (*text != '\0' && used < room) {
        char character[8] = "";
        const size_t size = character_bytes(text);
        memcpy(character, text, size);
        if (used == room - 1 && text[size] != '\0') {
            (void)snprintf(character, sizeof character, "~"); /* cut */
        }
        put(canvas, column + used, character);
        used++;
        text += size;
    }
    return used;
}

static void arrow(struct canvas *canvas, const struct history_event *event, bool unicode)
{
    const int from = LANE_FIRST + event->from * LANE_STEP;
    const int to = LANE_FIRST + event->to * LANE_STEP;
    const int left = from < to ? from : to;
    const int right = from < to ? to : from;
    for (int i = left + 1; i < right; i++) {
        put(canvas, i, unicode ? "─" : "-");
    }
    put(canvas, from < to ? right - 1 : left + 1,
        unicode ? (from < to ? "▶" : "◀") : (from < to ? ">" : "<"));
    const int room = right - left - 7;
    const int wanted = text_columns(event->label);
    const int width = wanted < room ? wanted : room;
    const int start = left + 1 + (right - left - 1 - width - 2) / 2;
    put(canvas, start, " ");
    const int used = put_label(canvas, start + 1, room, event->label);
    put(canvas, start + 1 + used, " ");
}

static void note(struct canvas *canvas, const struct history_event *event, bool unicode)
{
    const int column = LANE_FIRST + HISTORY_NODE * LANE_STEP;
    put(canvas, column, unicode ? "●" : "*");
    put(canvas, column + 1, " ");
    const int used = put_label(canvas, column + 2, COLUMNS - column - 3, event->label);
    put(canvas, column + 2 + used, " ");
}

static void print_line(FILE *out, const char *time, const struct canvas *canvas)
{
    int last = COLUMNS - 1;
    while (last > 0 && strcmp(canvas->cells[last], " ") == 0) {
        last--;
    }
    fprintf(out, "%*s ", LANE_FIRST - 2, time);
    for (int i = LANE_FIRST - 1; i <= last; i++) {
        fputs(canvas->cells[i], out);
    }
    fputc('\n', out);
}

static void header(FILE *out, const struct history *history, bool unicode)
{
    struct canvas canvas;
    char node[SM_NAME_BYTES_MAX + 16u];
    clear(&canvas, unicode);
    for (int lane = 0; lane < 3; lane++) {
        put(&canvas, LANE_FIRST + lane * LANE_STEP, " ");
    }
    (void)snprintf(node, sizeof node, "node %s", history->node);
    (void)put_label(&canvas, LANE_FIRST - 1, LANE_STEP - 2, "engine");
    (void)put_label(&canvas, LANE_FIRST + LANE_STEP - 3, LANE_STEP - 2, node);
    (void)put_label(&canvas, LANE_FIRST + 2 * LANE_STEP - 1, 4,
                    history->peer[0] != '\0' ? history->peer : "peer");
    print_line(out, "time", &canvas);
}

void history_diagram(FILE *out, const struct history *history, bool unicode)
{
    char time[32];
    header(out, history, unicode);
    uint64_t shown = UINT64_MAX;
    for (uint32_t i = 0; i < history->count; i++) {
        const struct history_event *event = &history->events[i];
        struct canvas canvas;
        clear(&canvas, unicode);
        if (event->note) {
            note(&canvas, event, unicode);
        } else {
            arrow(&canvas, event, unicode);
        }
        time[0] = '\0';
        if (event->time_ns != shown) {
            cli_duration(event->time_ns - history->events[0].time_ns, time, sizeof time);
            shown = event->time_ns;
        }
        print_line(out, time, &canvas);
    }
}

void history_list(FILE *out, const struct history *history)
{
    static const char *const lanes[] = {"engine", "node", "peer"};
    char time[32];
    for (uint32_t i = 0; i < history->count; i++) {
        const struct history_event *event = &history->events[i];
        cli_duration(event->time_ns - history->events[0].time_ns, time, sizeof time);
        if (event->note) {
            fprintf(out, "%8" PRIu64 " %11s   %-17s %s\n", event->number, time, "", event->label);
        } else {
            fprintf(out, "%8" PRIu64 " %11s   %6s -> %-7s %s\n", event->number, time,
                    lanes[event->from], lanes[event->to], event->label);
        }
    }
}
