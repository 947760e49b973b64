/* SPDX-License-Identifier: Apache-2.0 */
/* One life of a room as a paragraph of plain language. */
#include "why.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

static void wall(FILE *out, uint64_t wall_ns)
{
    char text[40];
    struct tm parts;
    const time_t seconds = (time_t)(wall_ns / 1000000000u);
    (void)gmtime_r(&seconds, &parts);
    text[strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts)] = '\0';
    fprintf(out, "%s.%06u UTC", text, (unsigned)(wall_ns % 1000000000u / 1000u));
}

/* "2.30 ms later", "at once". */
static void later(FILE *out, uint64_t from_ns, uint64_t to_ns)
{
    char text[32];
    if (to_ns <= from_ns) {
        fprintf(out, "at once");
    } else {
        cli_duration(to_ns - from_ns, text, sizeof text);
        fprintf(out, "%s later", text);
    }
}

/* "after 2.30 ms", "at once". */
static void after(FILE *out, uint64_t from_ns, uint64_t to_ns)
{
    char text[32];
    if (to_ns <= from_ns) {
        fprintf(out, "at once");
    } else {
        cli_duration(to_ns - from_ns, text, sizeof text);
        fprintf(out, "after %s", text);
    }
}

static void count_of(FILE *out, uint64_t count, const char *what)
{
    fprintf(out, "%" PRIu64 " %s%s", count, what, count == 1u ? "" : "s");
}

/* "rank 0", "ranks 0-3 and 6". */
static void rank_set(FILE *out, const char *word, uint64_t mask)
{
    const bool many = (mask & (mask - 1u)) != 0;
    uint32_t at = 0;
    bool first = true;
    fprintf(out, "%s%s ", word, many ? "s" : "");
    while (at < 64u && mask >> at != 0) {
        if ((mask >> at & 1u) == 0) {
            at++;
            continue;
        }
        uint32_t end = at;
        while (end < 63u && (mask >> (end + 1u) & 1u) != 0) {
            end++;
        }
        const bool last = end == 63u || mask >> (end + 1u) == 0;
        fprintf(out, "%s%" PRIu32, first ? "" : last && end <= at + 1u ? " and " : ", ", at);
        if (end == at + 1u) {
            fprintf(out, "%s%" PRIu32, last ? " and " : ", ", end);
        } else if (end > at) {
            fprintf(out, "-%" PRIu32, end);
        }
        first = false;
        at = end + 1u;
    }
}

/* ---- how it began
 * ------------------------------------------------------------------------------------- */

static uint64_t opened_mask(const struct why_life *life)
{
    uint64_t mask = 0;
    for (uint32_t r = 0; r < SM_RANKS_MAX; r++) {
        mask |= life->ranks[r].opened.entry != 0 ? UINT64_C(1) << r : 0;
    }
    return mask;
}

/* Ranks of `todo` that opened in the same entry, with as many pages, as the first of them. */
static uint64_t opened_alike(const struct why_life *life, uint64_t todo)
{
    uint64_t mask = 0;
    const struct why_rank *first = NULL;
    for (uint32_t r = 0; r < SM_RANKS_MAX; r++) {
        const struct why_rank *rank = &life->ranks[r];
        if ((todo >> r & 1u) == 0) {
            continue;
        }
        first = first == NULL ? rank : first;
        if (rank->opened.time_ns == first->opened.time_ns && rank->pages == first->pages) {
            mask |= UINT64_C(1) << r;
        }
    }
    return mask;
}

static const struct why_rank *first_of(const struct why_life *life, uint64_t mask)
{
    uint32_t r = 0;
    while ((mask >> r & 1u) == 0) {
        r++;
    }
    return &life->ranks[r];
}

static void pages_of_opener(FILE *out, const struct why_life *life, uint64_t alike)
{
    const struct why_rank *rank = first_of(life, alike);
    if (rank->pages > 0 || life->side == SM_DECODE) {
        fprintf(out, life->side == SM_DECODE ? " for " : ", and sent ");
        count_of(out, rank->pages, "page");
        fprintf(out, "%s", (alike & (alike - 1u)) != 0 ? " each" : "");
    }
}

static void tell_openers(FILE *out, const struct why_life *life, uint64_t todo)
{
    for (bool first = true; todo != 0; first = false) {
        const uint64_t alike = opened_alike(life, todo);
        todo &= ~alike;
        fprintf(out, "%s", first ? " " : todo == 0 ? " and " : ", ");
        rank_set(out, first ? "Rank" : "rank", alike);
        fprintf(out, " opened it ");
        later(out, life->created.time_ns, first_of(life, alike)->opened.time_ns);
        pages_of_opener(out, life, alike);
        fprintf(out, "%s", todo == 0 ? "." : "");
    }
}

static void tell_begin(FILE *out, const struct why *why, const struct why_life *life)
{
    uint64_t openers = opened_mask(life);
    fprintf(out, "Room %" PRIu64 ", the %s half at node %s, generation %" PRIu64 ", ", why->room,
            sm_side_name(life->side), why->node, life->generation);
    if (life->created.entry == 0) {
        fprintf(out, "began before what the journal still has.");
        return;
    }
    fprintf(out, "began at ");
    wall(out, life->opened_wall_ns);
    fprintf(out, " (entry %" PRIu64 ")", life->created.entry);
    const uint64_t alike = openers != 0 ? opened_alike(life, openers) : 0;
    if (alike != 0 && first_of(life, alike)->opened.entry == life->created.entry) {
        fprintf(out, ", when ");
        rank_set(out, "rank", alike);
        fprintf(out, " of its engine opened it");
        pages_of_opener(out, life, alike);
        openers &= ~alike;
    } else {
        fprintf(out, " with %s%s", life->by_engine ? "a command of " : "", life->creator);
        fprintf(out, openers == 0 ? "; its engine never opened it" : "");
    }
    fprintf(out, ".");
    tell_openers(out, life, openers);
}

static void destination_name(FILE *out, const struct why_destination *d)
{
    fprintf(out, "%s.%" PRIu32, d->node[0] != '\0' ? d->node : "?", d->rank);
}

static void tell_destinations(FILE *out, const struct why_life *life)
{
    uint64_t latest = 0;
    if (life->side != SM_PREFILL) {
        return;
    }
    if (life->destination_count == 0) {
        fprintf(out, " No destination ever announced itself.");
        return;
    }
    fprintf(out, " ");
    for (uint32_t i = 0; i < life->destination_count; i++) {
        const struct why_destination *d = &life->destinations[i];
        latest = d->added.time_ns > latest ? d->added.time_ns : latest;
        if (i < 4u) {
            fprintf(out, "%s", i == 0 ? "" : i + 1u == life->destination_count ? " and " : ", ");
            destination_name(out, d);
            fprintf(out, " (");
            count_of(out, d->pages, "page");
            fprintf(out, ")");
        }
    }
    if (life->destination_count > 4u) {
        fprintf(out, " and %" PRIu32 " more", life->destination_count - 4u);
    }
    fprintf(out, life->destination_count == 1u ? " announced itself "
                                               : " announced themselves, the last ");
    later(out, life->created.time_ns, latest);
    fprintf(out, ".");
}

static void tell_writes(FILE *out, const struct why_life *life)
{
    if (life->writes == 0) {
        return;
    }
    fprintf(out, " ");
    count_of(out, life->writes, "write");
    fprintf(out, " with ");
    count_of(out, life->written_pages, "page");
    fprintf(out, life->writes == 1u ? " was posted" : " were posted");
    if (life->writes_failed > 0) {
        fprintf(out, "; %" PRIu64 " failed", life->writes_failed);
    }
    if (life->writes_ended < life->writes) {
        fprintf(out, "; %" PRIu64 " never ended in this journal",
                life->writes - life->writes_ended);
    }
    fprintf(out, ".");
}

/* ---- the verdict, and who was told
 * --------------------------------------------------------------------- */

static void cause(FILE *out, uint32_t http, const char *reason)
{
    fprintf(out, " with %" PRIu32, http);
    if (reason[0] != '\0') {
        fprintf(out, ", \"%s\"", reason);
    } else {
        fprintf(out, " and no reason");
    }
}

static void tell_verdict(FILE *out, const struct why_life *life)
{
    fprintf(out, " It %s ", life->outcome == SM_OUTCOME_SUCCEEDED ? "succeeded" : "failed");
    after(out, life->created.time_ns, life->verdict.time_ns);
    fprintf(out, " (entry %" PRIu64 ")", life->verdict.entry);
    if (life->outcome == SM_OUTCOME_FAILED) {
        cause(out, life->first_http, life->first_reason);
    }
    fprintf(out, "; that was decided by %s.", life->decider);
    if (life->replaced.entry != 0) {
        fprintf(out, " A better cause took its place ");
        later(out, life->verdict.time_ns, life->replaced.time_ns);
        fprintf(out, " (entry %" PRIu64 "), before anybody was told:", life->replaced.entry);
        fprintf(out, " it failed");
        cause(out, life->http, life->reason);
        fprintf(out, ", by %s.", life->replacer);
    } else if (life->grace.entry != 0) {
        fprintf(out, " It waited for a better cause, and none came.");
    }
}

enum fate { FATE_TOLD, FATE_UNCONFIRMED, FATE_LET_GO, FATE_NOT_TOLD };

static enum fate fate_of(const struct why_rank *rank)
{
    if (rank->told.entry != 0) {
        return rank->delivered.entry != 0 || rank->released.entry != 0 ? FATE_TOLD
                                                                       : FATE_UNCONFIRMED;
    }
    return rank->released.entry != 0 ? FATE_LET_GO : FATE_NOT_TOLD;
}

static void tell_ranks(FILE *out, const struct why_life *life)
{
    uint64_t todo = opened_mask(life);
    for (bool first = true; todo != 0; first = false) {
        const struct why_rank *one = first_of(life, todo);
        const enum fate fate = fate_of(one);
        uint64_t alike = 0;
        for (uint32_t r = 0; r < SM_RANKS_MAX; r++) {
            if ((todo >> r & 1u) != 0 && fate_of(&life->ranks[r]) == fate &&
                life->ranks[r].told.time_ns == one->told.time_ns) {
                alike |= UINT64_C(1) << r;
            }
        }
        todo &= ~alike;
        fprintf(out, first ? " " : "; ");
        rank_set(out, first ? "Rank" : "rank", alike);
        const bool many = (alike & (alike - 1u)) != 0;
        if (fate == FATE_LET_GO) {
            fprintf(out, " %s gone, or had let go of it, and %s told nothing",
                    many ? "were" : "was", many ? "were" : "was");
        } else if (fate == FATE_NOT_TOLD) {
            fprintf(out, " %s not been told", many ? "have" : "has");
        } else {
            fprintf(out, " %s told so ", many ? "were" : "was");
            later(out, life->verdict.time_ns, one->told.time_ns);
            fprintf(out, fate == FATE_UNCONFIRMED ? ", and did not confirm it" : "");
        }
        fprintf(out, todo == 0 ? "." : "");
    }
}

static bool destinations_alike(const struct why_destination *a, const struct why_destination *b)
{
    return a->first_notice.time_ns == b->first_notice.time_ns &&
           a->acked.time_ns == b->acked.time_ns && a->notices == b->notices &&
           (a->gone.entry != 0) == (b->gone.entry != 0) &&
           (a->gave_up.entry != 0) == (b->gave_up.entry != 0);
}

static void tell_notice(FILE *out, const struct why_life *life, const struct why_destination *d,
                        bool many)
{
    if (d->notices > 0) {
        fprintf(out, many ? " were told so " : " was told so ");
        later(out, life->verdict.time_ns, d->first_notice.time_ns);
        if (d->notices > 1u) {
            fprintf(out, ", in %" PRIu32 " tries", d->notices);
        }
    }
    if (d->acked.entry != 0) {
        fprintf(out, d->notices > 0 ? ", and confirmed it " : " knew it ");
        later(out, d->notices > 0 ? d->first_notice.time_ns : life->verdict.time_ns,
              d->acked.time_ns);
    } else if (d->gave_up.entry != 0 && d->notices == 0) {
        fprintf(out, " had given it up and needed no notice");
    } else if (d->gone.entry != 0) {
        fprintf(out, "%s",
                d->notices > 0 ? ", and then was out of reach"
                               : " was out of reach, and has to end its own half");
    } else {
        fprintf(out, "%s", d->notices > 0 ? ", and has not confirmed it" : " has not been told");
    }
}

static void tell_counterparts(FILE *out, const struct why_life *life)
{
    uint64_t todo =
        life->destination_count >= 64u ? UINT64_MAX : (UINT64_C(1) << life->destination_count) - 1u;
    for (bool first = true; todo != 0; first = false) {
        const struct why_destination *one = NULL;
        uint32_t named = 0;
        uint32_t count = 0;
        fprintf(out, first ? " " : "; ");
        for (uint32_t i = 0; i < life->destination_count; i++) {
            const struct why_destination *d = &life->destinations[i];
            if ((todo >> i & 1u) == 0 || (one != NULL && !destinations_alike(one, d))) {
                continue;
            }
            one = one == NULL ? d : one;
            todo &= ~(UINT64_C(1) << i);
            count++;
            if (named < 4u) {
                fprintf(out, "%s", named == 0 ? "" : ", ");
                destination_name(out, d);
                named++;
            }
        }
        if (count > named) {
            fprintf(out, " and %" PRIu32 " more", count - named);
        }
        tell_notice(out, life, one, count > 1u);
        fprintf(out, todo == 0 ? "." : "");
    }
}

/* What a decode half that failed has asked of its sources. */
static void tell_aborts(FILE *out, const struct why_life *life)
{
    uint64_t mask = 0;
    uint32_t most = 0;
    uint64_t first_ns = 0;
    for (uint32_t r = 0; r < SM_RANKS_MAX; r++) {
        const struct why_rank *rank = &life->ranks[r];
        if (rank->aborts > 0) {
            first_ns = mask == 0 || rank->first_abort.time_ns < first_ns ? rank->first_abort.time_ns
                                                                         : first_ns;
            mask |= UINT64_C(1) << r;
            most = rank->aborts > most ? rank->aborts : most;
        }
    }
    if (mask == 0) {
        return;
    }
    fprintf(out, " The prefill side was asked ");
    later(out, life->verdict.time_ns, first_ns);
    fprintf(out, " to stop writing for ");
    rank_set(out, "rank", mask);
    if (most > 1u) {
        fprintf(out, ", up to %" PRIu32 " times", most);
    }
    fprintf(out, ".");
}

/* ---- what was held
 * ------------------------------------------------------------------------------------ */

static void tell_in_flight(FILE *out, const struct why_life *life)
{
    const uint64_t count = life->in_flight_at_verdict;
    if (count == 0) {
        return;
    }
    fprintf(out, " At that moment ");
    count_of(out, count, "write");
    fprintf(out, count == 1u ? " was still in flight" : " were still in flight");
    if (life->last_write.time_ns >= life->verdict.time_ns && life->writes_ended == life->writes) {
        fprintf(out, count == 1u ? "; it ended " : "; the last of them ended ");
        later(out, life->verdict.time_ns, life->last_write.time_ns);
    }
    fprintf(out, ".");
}

static void tell_pages_of(FILE *out, const struct why *why, const struct why_life *life,
                          uint64_t alike, bool first)
{
    const struct why_rank *one = first_of(life, alike);
    fprintf(out, first ? " The " : "; the ");
    count_of(out, one->pages, "page");
    fprintf(out, " of ");
    rank_set(out, "rank", alike);
    if (one->freed.entry == 0) {
        char text[32];
        cli_duration(why->last_time_ns - life->verdict.time_ns, text, sizeof text);
        fprintf(out, " %s still held at the journal's end, %s after the verdict",
                one->pages == 1u ? "is" : "are", text);
    } else if (one->quarantined) {
        fprintf(out, " were taken out of use for good ");
        later(out, life->verdict.time_ns, one->freed.time_ns);
        fprintf(out, ": nobody could show that no write can reach them any more");
    } else if (one->freed.time_ns <= life->verdict.time_ns) {
        fprintf(out, " %s free at once", one->pages == 1u ? "was" : "were");
    } else {
        char text[32];
        cli_duration(one->freed.time_ns - life->verdict.time_ns, text, sizeof text);
        fprintf(out, " stayed held for %s more, and then %s free", text,
                one->pages == 1u ? "was" : "were");
    }
}

static void tell_pages(FILE *out, const struct why *why, const struct why_life *life)
{
    uint64_t todo = 0;
    for (uint32_t r = 0; r < SM_RANKS_MAX; r++) {
        todo |= life->ranks[r].pages > 0 ? UINT64_C(1) << r : 0;
    }
    for (bool first = true; todo != 0; first = false) {
        const struct why_rank *one = first_of(life, todo);
        uint64_t alike = 0;
        for (uint32_t r = 0; r < SM_RANKS_MAX; r++) {
            const struct why_rank *rank = &life->ranks[r];
            if ((todo >> r & 1u) != 0 && rank->freed.time_ns == one->freed.time_ns &&
                rank->pages == one->pages && rank->quarantined == one->quarantined) {
                alike |= UINT64_C(1) << r;
            }
        }
        todo &= ~alike;
        tell_pages_of(out, why, life, alike, first);
        fprintf(out, todo == 0 ? "." : "");
    }
}

/* ---- how it ended
 * ------------------------------------------------------------------------------------- */

static void tell_end(FILE *out, const struct why_life *life)
{
    if (life->cleared.entry != 0) {
        fprintf(out, " It was cleared ");
        later(out, life->verdict.time_ns, life->cleared.time_ns);
        fprintf(out, " (entry %" PRIu64 "): nothing of it is owed any more.", life->cleared.entry);
        return;
    }
    uint64_t waiting = 0;
    for (uint32_t r = 0; r < SM_RANKS_MAX; r++) {
        const struct why_rank *rank = &life->ranks[r];
        if (rank->opened.entry != 0 && rank->released.entry == 0) {
            waiting |= UINT64_C(1) << r;
        }
    }
    fprintf(out, " It is not cleared");
    if (waiting != 0) {
        fprintf(out, ": ");
        rank_set(out, "rank", waiting);
        fprintf(out, (waiting & (waiting - 1u)) != 0 ? " of its engine have not let go of it"
                                                     : " of its engine has not let go of it");
    }
    fprintf(out, ".");
}

static void tell_live(FILE *out, const struct why *why, const struct why_life *life)
{
    char text[32];
    const struct sm_half_view *view = &why->views[life->side];
    cli_duration(why->last_time_ns - life->created.time_ns, text, sizeof text);
    fprintf(out, " It has no verdict: at the journal's end (entry %" PRIu64 "), %s after it began,",
            why->last_entry, text);
    fprintf(out, " it is %s", sm_phase_name(life->phase));
    if (why->has_view[life->side] && view->generation == life->generation && !view->remembered) {
        fprintf(out, ", has %" PRIu32 " of ", view->destinations);
        if (view->required != 0) {
            fprintf(out, "%" PRIu32, view->required);
        } else {
            fprintf(out, "a number of");
        }
        fprintf(out, life->side == SM_PREFILL ? " destinations" : " ranks");
        fprintf(out, view->required == 0 ? " that nobody has said yet" : "");
        if (view->writes_in_flight > 0) {
            fprintf(out, ", %" PRIu32 " of its writes in flight", view->writes_in_flight);
        }
        if (view->deadline_ns > why->last_time_ns) {
            cli_duration(view->deadline_ns - why->last_time_ns, text, sizeof text);
            fprintf(out, ", and %s to go to its deadline", text);
        }
    }
    fprintf(out, ".");
}

static void tell_besides(FILE *out, const struct why *why)
{
    uint64_t ignored = 0;
    for (uint32_t i = 0; i < SM_IGNORED_COUNT; i++) {
        ignored += why->ignored[i];
    }
    if (ignored > 0) {
        bool first = true;
        fprintf(out, " In all, ");
        count_of(out, ignored, "input");
        fprintf(out, " about the room changed nothing (");
        for (uint32_t i = 0; i < SM_IGNORED_COUNT; i++) {
            if (why->ignored[i] > 0) {
                fprintf(out, "%s%" PRIu64 " %s", first ? "" : ", ", why->ignored[i],
                        sm_ignored_name(i));
                first = false;
            }
        }
        fprintf(out, ").");
    }
    if (why->refused > 0) {
        fprintf(out, " ");
        count_of(out, why->refused, "command");
        fprintf(out, why->refused == 1u ? " was refused: %s." : " were refused, the last: %s.",
                why->refusal);
    }
}

static bool is_last(const struct why *why, const struct why_life *life)
{
    return life == &why->lives[why->life_count - 1u];
}

void why_tell(FILE *out, const struct why *why, const struct why_life *life)
{
    if (life == NULL) {
        fprintf(out,
                "Room %" PRIu64 " never lived at node %s, although the journal speaks of it from "
                "entry %" PRIu64 " on.",
                why->room, why->node, why->first.entry);
        tell_besides(out, why);
        return;
    }
    tell_begin(out, why, life);
    tell_destinations(out, life);
    tell_writes(out, life);
    if (life->verdict.entry == 0) {
        tell_live(out, why, life);
    } else {
        tell_verdict(out, life);
        tell_ranks(out, life);
        tell_counterparts(out, life);
        tell_aborts(out, life);
        tell_in_flight(out, life);
        tell_pages(out, why, life);
        tell_end(out, life);
    }
    if (is_last(why, life)) {
        tell_besides(out, why);
    }
}
