/* SPDX-License-Identifier: Apache-2.0 */
/* why: a room's end in plain language. */
#include "why.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The paragraph; NULL: no memory. The caller frees it. */
static char *paragraph(const struct why *why, const struct why_life *life)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) {
        return NULL;
    }
    why_tell(out, why, life);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* Nanoseconds after the life began; null: it did not happen. */
static json_t *since(const struct why_life *life, const struct why_when *when)
{
    return when->entry == 0 ? json_null()
                            : json_integer((json_int_t)(when->time_ns - life->created.time_ns));
}

static json_t *ranks_json(const struct why_life *life)
{
    json_t *list = json_array();
    for (uint32_t r = 0; r < SM_RANKS_MAX; r++) {
        const struct why_rank *rank = &life->ranks[r];
        if (rank->opened.entry == 0 && rank->pages == 0) {
            continue;
        }
        (void)json_array_append_new(
            list,
            json_pack("{s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:b}", "rank", (int)r, "pages",
                      (json_int_t)rank->pages, "opened_ns", since(life, &rank->opened), "told_ns",
                      since(life, &rank->told), "delivered_ns", since(life, &rank->delivered),
                      "released_ns", since(life, &rank->released), "freed_ns",
                      since(life, &rank->freed), "quarantined", (int)rank->quarantined));
    }
    return list;
}

static json_t *destinations_json(const struct why_life *life)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < life->destination_count; i++) {
        const struct why_destination *d = &life->destinations[i];
        (void)json_array_append_new(
            list,
            json_pack("{s:o, s:i, s:I, s:o, s:i, s:o, s:o, s:b}", "node", cli_json_text(d->node),
                      "rank", (int)d->rank, "pages", (json_int_t)d->pages, "announced_ns",
                      since(life, &d->added), "notices", (int)d->notices, "noticed_ns",
                      since(life, &d->first_notice), "confirmed_ns", since(life, &d->acked), "gone",
                      (int)(d->gone.entry != 0)));
    }
    return list;
}

static void print_life_json(const struct why *why, const struct why_life *life, const char *text)
{
    char room[32];
    (void)snprintf(room, sizeof room, "%" PRIu64, why->room);
    json_t *o = json_pack("{s:s, s:o, s:o}", "room", room, "node", cli_json_text(why->node), "text",
                          cli_json_text(text));
    if (o != NULL && life != NULL) {
        json_object_set_new(o, "side", json_string(sm_side_name(life->side)));
        json_object_set_new(o, "generation", json_integer((json_int_t)life->generation));
        json_object_set_new(o, "phase", json_string(sm_phase_name(life->phase)));
        json_object_set_new(o, "outcome", json_string(sm_outcome_name(life->outcome)));
        json_object_set_new(o, "http", json_integer((json_int_t)life->http));
        json_object_set_new(o, "reason", cli_json_text(life->reason));
        json_object_set_new(
            o, "decided_by",
            cli_json_text(life->replaced.entry != 0 ? life->replacer : life->decider));
        json_object_set_new(o, "began_entry", json_integer((json_int_t)life->created.entry));
        json_object_set_new(o, "began_wall_ns", json_integer((json_int_t)life->opened_wall_ns));
        json_object_set_new(o, "verdict_entry", json_integer((json_int_t)life->verdict.entry));
        json_object_set_new(o, "verdict_ns", since(life, &life->verdict));
        json_object_set_new(o, "cleared_ns", since(life, &life->cleared));
        json_object_set_new(o, "writes", json_integer((json_int_t)life->writes));
        json_object_set_new(o, "writes_failed", json_integer((json_int_t)life->writes_failed));
        json_object_set_new(o, "in_flight_at_verdict",
                            json_integer((json_int_t)life->in_flight_at_verdict));
        json_object_set_new(o, "ranks", ranks_json(life));
        json_object_set_new(o, "destinations", destinations_json(life));
    }
    cli_print_json(o);
}

static int print_life(const struct why *why, const struct why_life *life, bool json)
{
    char *text = paragraph(why, life);
    if (text == NULL) {
        return cli_fail(EXIT_UNREACHABLE, "no memory");
    }
    if (json) {
        print_life_json(why, life, text);
    } else {
        cli_wrapped(stdout, text, 78, 0);
    }
    free(text);
    return EXIT_WELL;
}

/* Whether a newer life of the same side comes after it. */
static bool is_old(const struct why *why, uint32_t index)
{
    for (uint32_t i = index + 1u; i < why->life_count; i++) {
        if (why->lives[i].side == why->lives[index].side) {
            return true;
        }
    }
    return false;
}

static int print_all(const struct cli_values *values, const struct why *why)
{
    const bool all = cli_given(values, "all");
    const bool json = cli_given(values, "json");
    uint32_t left_out = 0;
    bool first = true;
    int code = EXIT_WELL;
    for (uint32_t i = 0; i < why->life_count && code == EXIT_WELL; i++) {
        if (!all && is_old(why, i)) {
            left_out++;
            continue;
        }
        printf("%s", first || json ? "" : "\n");
        first = false;
        code = print_life(why, &why->lives[i], json);
    }
    if (why->life_count == 0) {
        code = print_life(why, NULL, json);
    }
    if (left_out > 0 && !json) {
        printf("\nThe room's number was used before: %" PRIu32 " older %s not shown (--all).\n",
               left_out, left_out == 1u ? "life is" : "lives are");
    }
    return code;
}

int cmd_why(const struct cli_values *values)
{
    struct why why;
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
    const enum status status = why_read(journal, room, &why, &detail);
    code = status == STATUS_OK ? print_all(values, &why)
                               : cli_fail(cli_code(status), "%s", detail.text);
    why_free(&why);
    journal_close(journal);
    return code;
}
