/* SPDX-License-Identifier: Apache-2.0 */
/* What the demo reads before, and what it proves after. */
#include "demo.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_TOKENS 512u
#define PAGE_TOKENS 16u
#define LINE_BYTES (64u << 10)

/* ---- the trace
 * ----------------------------------------------------------------------------------------- */

static FILE *open_trace(const char *given)
{
    char self[400];
    char path[600];
    static const char *const places[] = {"/../../tests/data/conversation_trace.jsonl",
                                         "/../share/stateroom/conversation_trace.jsonl",
                                         "/../tests/data/conversation_trace.jsonl"};
    if (given != NULL) {
        return fopen(given, "re");
    }
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1u);
    self[length > 0 ? (size_t)length : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        (void)snprintf(path, sizeof path, "%s%s", self, places[i]);
        FILE *file = fopen(path, "re");
        if (file != NULL) {
            return file;
        }
    }
    return fopen(STATEROOM_TRACE_PATH, "re");
}

/* Blocks that decode has seen: a bit for each id of the trace. */
struct seen {
    unsigned char *bits;
    size_t size;
};

static bool seen_before(const struct seen *seen, json_int_t id)
{
    return id >= 0 && (size_t)id / 8u < seen->size && (seen->bits[id / 8] >> (id % 8) & 1) != 0;
}

static void see(struct seen *seen, json_int_t id)
{
    if (id >= 0 && (size_t)id / 8u < seen->size) {
        seen->bits[id / 8] |= (unsigned char)(1u << (id % 8));
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Sizes of one request in pages of a pool that is `scale` times smaller than the real one. */
static void size_room(struct demo_room *room, const json_t *request, struct seen *seen,
                      uint32_t pool_pages)
{
    const json_t *ids = json_object_get(request, "hash_ids");
    const uint64_t tokens = (uint64_t)json_integer_value(json_object_get(request, "input_length"));
    const uint32_t scale = 12;
    size_t known = 0;
    while (known < json_array_size(ids) &&
           seen_before(seen, json_integer_value(json_array_get(ids, known)))) {
        known++;
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        see(seen, json_integer_value(json_array_get(ids, i)));
    }
    uint64_t pages = (tokens / PAGE_TOKENS + scale) / scale;
    const uint64_t most = pool_pages / 3u;
    pages = pages > most ? most : pages;
    uint64_t prefix = known * (BLOCK_TOKENS / PAGE_TOKENS) / scale;
    prefix = prefix > pages ? pages : prefix;
    room->prefix = (uint32_t)prefix;
    room->pages = (uint32_t)(pages - prefix);
}

int demo_read_trace(struct demo *demo, const struct cli_values *values)
{
    const uint64_t wanted = cli_number(values, "requests", 120);
    if (wanted == 0 || wanted > 100000u) {
        return cli_fail(EXIT_WRONG_USAGE, "--requests: 1 to 100000");
    }
    uint64_t random = cli_number(values, "seed", 1);
    struct seen seen = {calloc(1, 1u << 20), 1u << 20};
    char *line = malloc(LINE_BYTES);
    FILE *file = open_trace(cli_text(values, "trace", NULL));
    if (file == NULL || line == NULL || seen.bits == NULL) {
        const int cause = errno;
        free(line);
        free(seen.bits);
        if (file != NULL) {
            (void)fclose(file);
        }
        return cli_fail(EXIT_UNREACHABLE,
                        "the trace cannot be read (%s); name it with --trace FILE",
                        strerror(cause));
    }
    demo->rooms = calloc(wanted, sizeof *demo->rooms);
    while (demo->room_count < wanted && fgets(line, (int)LINE_BYTES, file) != NULL) {
        json_t *request = json_loads(line, 0, NULL);
        if (request == NULL) {
            continue; /* not a request */
        }
        struct demo_room *room = &demo->rooms[demo->room_count++];
        room->room = demo->room_count;
        size_room(room, request, &seen, demo->pool_pages);
        json_decref(request);
        const uint64_t dice = next_random(&random) % 100u;
        room->what = dice < 10u ? DEMO_REFUSE : dice < 20u ? DEMO_ABORT : DEMO_RUN;
    }
    (void)fclose(file);
    free(line);
    free(seen.bits);
    return demo->room_count > 0 ? EXIT_WELL
                                : cli_fail(EXIT_UNREACHABLE, "the trace has no request");
}

/* ---- the report
 * ------------------------------------------------------------------------------------------ */

static void count_outcomes(const struct demo *demo)
{
    static const struct {
        uint32_t http;
        const char *text;
    } rows[] = {{200, "succeeded"},
                {400, "refused before the queue"},
                {499, "aborted by the client"},
                {500, "engine lost"},
                {502, "cancelled by the router: the other side is gone"},
                {503, "peer lost, restarted or not available"},
                {504, "deadline"}};
    uint32_t rest_p = demo->room_count;
    uint32_t rest_d = demo->room_count - demo->lost_rooms;
    printf("\n%-52s %8s %8s\n", "how the rooms ended", "prefill", "decode");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t p = 0;
        uint32_t d = 0;
        for (uint32_t r = 0; r < demo->room_count; r++) {
            p += demo->rooms[r].prefill_http == rows[i].http;
            d += demo->rooms[r].decode_http == rows[i].http && !demo->rooms[r].lost_with_engine;
        }
        rest_p -= p;
        rest_d -= d;
        if (p > 0 || d > 0) {
            printf("  %3u %-46s %8u %8u\n", rows[i].http, rows[i].text, p, d);
        }
    }
    if (demo->lost_rooms > 0) {
        printf("      %-46s %8s %8u\n", "in the decode engine when it was killed", "",
               demo->lost_rooms);
    }
    if (rest_p > 0 || rest_d > 0) {
        printf("      %-46s %8u %8u\n", "otherwise", rest_p, rest_d);
    }
}

static uint64_t room_with(const struct demo *demo, enum demo_what what, uint32_t http)
{
    for (uint32_t i = 0; i < demo->room_count; i++) {
        const struct demo_room *room = &demo->rooms[i];
        if (room->what == what && room->decode_http == http && !room->lost_with_engine &&
            room->pages > 0) {
            return room->room;
        }
    }
    return 0;
}

static void draw(const struct demo *demo, const char *node, uint64_t room, const char *what)
{
    char path[512];
    int code = EXIT_WELL;
    struct history history;
    struct status_detail detail;
    (void)snprintf(path, sizeof path, "%s/journal-%s", demo->dir, node);
    struct journal *journal = room == 0 ? NULL : cli_open_journal(path, &code);
    if (journal == NULL) {
        return;
    }
    if (history_read(journal, room, &history, &detail) == STATUS_OK) {
        printf("\nroom %" PRIu64 ", %s, as node %s saw it:\n\n", room, what, node);
        history_diagram(stdout, &history, true);
    }
    history_free(&history);
    journal_close(journal);
}

static bool claim(bool holds)
{
    printf("  %s  ", holds ? "yes" : "NO ");
    return holds;
}

int demo_report(struct demo *demo)
{
    char path[512];
    static const char *const names[] = {"P", "D"};
    bool well = true;
    uint32_t succeeded = 0;
    count_outcomes(demo);
    for (uint32_t i = 0; i < demo->room_count; i++) {
        succeeded += demo->rooms[i].decode_http == 200u;
    }
    draw(demo, "P", room_with(demo, DEMO_REFUSE, 400), "refused with 400");
    draw(demo, "D", room_with(demo, DEMO_ABORT, 499), "aborted by its client in mid-transfer");
    printf("\n");
    for (size_t i = 0; i < 2; i++) {
        struct replay_summary summary;
        (void)snprintf(path, sizeof path, "%s/journal-%s", demo->dir, names[i]);
        printf("stateroom replay ");
        well = replay_journal(path, NULL, &summary, false) == EXIT_WELL && well;
        demo->pages_held_by_engines +=
            summary.pages_left + summary.rooms_left + summary.notices_left;
    }
    printf("\n");
    well = claim(demo->done == demo->room_count) && well;
    printf("all %u rooms are over (%u succeeded)\n", demo->room_count, succeeded);
    well = claim(demo->pages_bad == 0 && demo->pages_good > 0) && well;
    printf("%" PRIu64 " delivered pages are byte-identical, %" PRIu64 " are not\n",
           demo->pages_good, demo->pages_bad);
    well = claim(demo->pages_held_by_engines == 0) && well;
    printf("no page, room or notice is left over in engines and journals (%" PRIu64 ")\n",
           demo->pages_held_by_engines);
    printf("  %.1f s, %.2f GiB/s delivered and checked\n", (double)demo->took_ns / 1e9,
           (double)demo->pages_good * 2.0 / 1024.0 / ((double)demo->took_ns / 1e9));
    return well ? EXIT_WELL : EXIT_DIFFERS;
}
