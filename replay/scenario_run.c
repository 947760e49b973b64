/* SPDX-License-Identifier: Apache-2.0 */
/* Statements carried out, expectations watched. */
#include "scenario.h"

#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is known of one expectation while the scenario runs. */
struct watch {
    const struct scenario_expectation *e;
    bool holds;    /* by: it did at some moment */
    bool reported; /* as a failure, or settled */
};

struct running {
    const struct scenario *s;
    struct scenario_run *run;
    struct world *world;
    struct watch *watches;
    uint32_t log_seen;
    FILE *out;
};

struct step {
    struct running *running;
    const struct scenario_statement *statement;
    struct watch *watch;
};

/* ---- statements
 * ----------------------------------------------------------------------------------------- */

static void issue(struct running *r, const struct scenario_statement *s, uint32_t rank)
{
    struct sm_input input = {.kind = s->command, .room = s->room};
    struct sm_in_command *c = &input.u.command;
    c->rank = rank;
    c->side = r->s->nodes[s->at.node].side;
    c->peer = (struct sm_text){s->from == NULL ? "" : s->from,
                               s->from == NULL ? 0 : (uint32_t)strlen(s->from)};
    c->pages = (struct sm_runs){s->runs, s->run_count};
    c->prefix_pages = s->prefix;
    c->aux_slot = s->aux;
    c->destinations = s->destinations;
    c->deadline_ns = s->deadline_ns;
    c->last = s->flag;
    c->cause.http = (uint16_t)s->http;
    c->cause.origin =
        (uint8_t)(s->command == SM_IN_REJECT ? (uint32_t)SM_ORIGIN_ENGINE : s->origin);
    c->cause.typed = s->command == SM_IN_REJECT;
    c->cause.reason = (struct sm_text){s->text == NULL ? "" : s->text,
                                       s->text == NULL ? 0 : (uint32_t)strlen(s->text)};
    world_command(r->world, s->at.node, &input);
}

static void send_frames(struct running *r, const struct scenario_statement *s, uint32_t rank)
{
    struct sglang_frame parts[SCENARIO_FRAMES_MAX];
    for (uint32_t i = 0; i < s->run_count; i++) {
        parts[i] = (struct sglang_frame){s->bytes + s->runs[i].first, s->runs[i].count};
    }
    world_frames(r->world, s->at.node, rank, parts, s->run_count);
}

static void for_ranks(struct running *r, const struct scenario_statement *s)
{
    const uint32_t ranks = r->s->nodes[s->at.node].ranks;
    const struct sm_runs pages = {s->runs, s->run_count};
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (s->at.rank != SM_NONE && s->at.rank != rank) {
            continue;
        }
        if (s->verb == VERB_COMMAND) {
            issue(r, s, rank);
        } else if (s->verb == VERB_FRAMES) {
            send_frames(r, s, rank);
        } else if (s->verb == VERB_REUSE) {
            world_reuse(r->world, s->at.node, rank, &pages);
        } else {
            world_mute(r->world, s->at.node, rank, s->verb == VERB_MUTE);
        }
    }
}

static void on_network(struct running *r, const struct scenario_statement *s)
{
    struct world *w = r->world;
    const struct world_path path = {s->at.node, s->at.rank, s->other.node, s->other.rank};
    switch ((uint32_t)s->verb) {
    case VERB_LINK:
        world_link(w, s->at.node, s->other.node, s->flag);
        if (!s->one_way) {
            world_link(w, s->other.node, s->at.node, s->flag);
        }
        break;
    case VERB_LATENCY:
        world_latency(w, s->at.node, s->other.node, s->ns);
        world_latency(w, s->other.node, s->at.node, s->ns);
        break;
    case VERB_RULE:
        world_rule(w, (enum world_rule_kind)s->number, &path, (enum world_message)s->message,
                   s->room, s->count, s->ns);
        break;
    case VERB_FABRIC_TIME:
        world_fabric_time(w, &path, s->ns);
        break;
    case VERB_FABRIC_FAIL:
        world_fabric_fail(w, &path, s->room, s->count, s->text, s->flag);
        break;
    default:
        world_fabric_hold(w, &path, s->room, s->verb == VERB_FABRIC_HOLD);
        break;
    }
}

static void carry_out(struct world *world, void *context)
{
    const struct step *step = context;
    const struct scenario_statement *s = step->statement;
    switch (s->verb) {
    case VERB_COMMAND:
    case VERB_REUSE:
    case VERB_MUTE:
    case VERB_UNMUTE:
    case VERB_FRAMES:
        for_ranks(step->running, s);
        break;
    case VERB_CRASH:
        world_crash(world, s->at.node, s->flag);
        break;
    case VERB_RESTART:
        world_restart(world, s->at.node, s->flag);
        break;
    case VERB_STOP:
        world_stop(world, s->at.node);
        break;
    case VERB_FREEZE:
    case VERB_THAW:
        world_freeze(world, s->at.node, s->verb == VERB_FREEZE);
        break;
    case VERB_DISK:
        world_disk(world, s->at.node, (enum world_disk)s->number);
        break;
    case VERB_BYTES:
        world_bytes(world, s->at.node, s->bytes, s->size);
        break;
    case VERB_LINK:
    case VERB_LATENCY:
    case VERB_RULE:
    case VERB_FABRIC_TIME:
    case VERB_FABRIC_HOLD:
    case VERB_FABRIC_RESUME:
    case VERB_FABRIC_FAIL:
        on_network(step->running, s);
        break;
    }
}

/* ---- claims
 * --------------------------------------------------------------------------------------------- */

static bool http_fits(const struct scenario_claim *c, uint32_t http)
{
    for (uint32_t i = 0; i < c->http_count; i++) {
        if (c->https[i] == http) {
            return true;
        }
    }
    return c->http_count == 0;
}

static bool reason_fits(const struct scenario_claim *c, const char *reason)
{
    if (c->reason == NULL) {
        return true;
    }
    return c->reason_part ? strstr(reason, c->reason) != NULL : strcmp(reason, c->reason) == 0;
}

static bool is_log_claim(const struct scenario_claim *c)
{
    return c->kind == CLAIM_TOLD || c->kind == CLAIM_NOTICE || c->kind == CLAIM_WRITE ||
           c->kind == CLAIM_REFUSED;
}

static bool place_fits(const struct scenario_place *place, uint32_t node, uint32_t rank)
{
    return place->node == SM_NONE ||
           (place->node == node && (place->rank == SM_NONE || place->rank == rank));
}

static bool log_fits(const struct scenario_claim *c, const struct world_log *log)
{
    static const enum world_log_kind kinds[] = {[CLAIM_TOLD] = WORLD_TOLD,
                                                [CLAIM_NOTICE] = WORLD_NOTICE,
                                                [CLAIM_WRITE] = WORLD_WRITE,
                                                [CLAIM_REFUSED] = WORLD_REFUSED};
    return kinds[c->kind] == log->kind && c->room == log->room &&
           place_fits(&c->at, log->node, log->rank) &&
           (c->from.node == SM_NONE || c->from.node == log->from) &&
           (c->outcomes == 0 || (c->outcomes >> log->outcome & 1u) != 0) &&
           (c->kind != CLAIM_REFUSED || c->command == log->command) && http_fits(c, log->http) &&
           reason_fits(c, log->reason) && (c->gen == 0 || c->gen == log->life);
}

static uint32_t log_count(const struct running *r, const struct scenario_claim *c,
                          uint64_t until_ns)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world_log_count(r->world); i++) {
        const struct world_log *log = world_log_at(r->world, i);
        count += log->time_ns <= until_ns && log_fits(c, log);
    }
    return count;
}

static bool room_holds(const struct running *r, const struct scenario_claim *c)
{
    struct sm_half_view view;
    char reason[SM_REASON_BYTES_MAX + 1u];
    const struct sm *sm = world_machine(r->world, c->at.node);
    if (sm == NULL) {
        return false;
    }
    const bool there = sm_half_find(sm, c->room, r->s->nodes[c->at.node].side, &view);
    if (c->kind == CLAIM_ABSENT || !there) {
        return c->kind == CLAIM_ABSENT && !there;
    }
    (void)snprintf(reason, sizeof reason, "%.*s", (int)view.cause.reason.size,
                   view.cause.reason.bytes);
    return (c->phases == 0 || (c->phases >> view.phase & 1u) != 0) &&
           (c->outcomes == 0 || (c->outcomes >> view.outcome & 1u) != 0) &&
           (c->http_count == 0 || http_fits(c, view.cause.http)) && reason_fits(c, reason) &&
           (c->owner == 0 || c->owner == (view.owned_by_engine ? 1u : 2u));
}

static bool any_held(const struct sm *sm, const struct scenario_claim *c, uint32_t rank)
{
    for (uint32_t i = 0; i < c->run_count; i++) {
        if (sm_pages_held(sm, rank, c->runs[i].first, c->runs[i].count)) {
            return true;
        }
    }
    return false;
}

static bool over_ranks(const struct running *r, const struct scenario_claim *c)
{
    const struct sm *sm = world_machine(r->world, c->at.node);
    const uint32_t ranks = r->s->nodes[c->at.node].ranks;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (c->at.rank != SM_NONE && c->at.rank != rank) {
            continue;
        }
        if (c->kind == CLAIM_DATA ? (world_data(r->world, c->at.node, rank, c->room) & c->data) == 0
                                  : sm == NULL || any_held(sm, c, rank) != c->held) {
            return false;
        }
    }
    return true;
}

static bool counter_holds(const struct running *r, const struct scenario_claim *c)
{
    struct sm_counters n;
    const struct sm *sm = world_machine(r->world, c->at.node);
    if (sm == NULL) {
        return false;
    }
    sm_counters(sm, &n);
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"steps", n.steps},
                {"rooms_opened", n.rooms_opened},
                {"rooms_succeeded", n.rooms_succeeded},
                {"rooms_failed", n.rooms_failed},
                {"notices_sent", n.notices_sent},
                {"notices_repeated", n.notices_repeated},
                {"writes_posted", n.writes_posted},
                {"writes_failed", n.writes_failed},
                {"peers_fenced", n.peers_fenced},
                {"pages_quarantined", n.pages_quarantined},
                {"tombstones_dropped", n.tombstones_dropped}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, c->name) == 0) {
            return rows[i].value >= c->least;
        }
    }
    uint64_t value = 0;
    if (strncmp(c->name, "sglang.", 7) == 0) {
        return world_sglang_counter(r->world, c->at.node, c->name + 7, &value) && value >= c->least;
    }
    for (uint32_t i = 1; i < SM_IGNORED_COUNT && strncmp(c->name, "ignored.", 8) == 0; i++) {
        if (strcmp(sm_ignored_name(i), c->name + 8) == 0) {
            return n.ignored[i] >= c->least;
        }
    }
    for (uint32_t i = 1; i < SM_REFUSAL_COUNT && strncmp(c->name, "refused.", 8) == 0; i++) {
        if (strcmp(sm_refusal_name(i), c->name + 8) == 0) {
            return n.refused[i] >= c->least;
        }
    }
    return false;
}

/* Whether a claim holds now; of what is logged, up to now. */
static bool holds(const struct running *r, const struct scenario_claim *c)
{
    switch (c->kind) {
    case CLAIM_ROOM:
    case CLAIM_ABSENT:
        return room_holds(r, c);
    case CLAIM_PAGES:
    case CLAIM_DATA:
        return over_ranks(r, c);
    case CLAIM_COUNTER:
        return counter_holds(r, c);
    case CLAIM_ALIVE:
        return world_alive(r->world, c->at.node);
    case CLAIM_QUIESCENT:
        return world_quiescent(r->world);
    case CLAIM_TOLD:
    case CLAIM_NOTICE:
    case CLAIM_WRITE:
    case CLAIM_REFUSED:
        break;
    }
    const uint32_t count = log_count(r, c, UINT64_MAX);
    return c->has_times ? count == c->times : count > 0;
}

/* ---- what was seen instead
 * -------------------------------------------------------------------------------- */

static void seen_logs(const struct running *r, const struct scenario_claim *c, char *out,
                      size_t size)
{
    struct scenario_claim any = *c;
    size_t used = 0;
    any.outcomes = 0;
    any.http_count = 0;
    any.reason = NULL;
    any.gen = 0;
    for (uint32_t i = 0; i < world_log_count(r->world) && used + 64u < size; i++) {
        const struct world_log *log = world_log_at(r->world, i);
        char at[32];
        if (!log_fits(&any, log)) {
            continue;
        }
        cli_duration(log->time_ns, at, sizeof at);
        used += (size_t)snprintf(out + used, size - used, "%sat %s %s.%u", used > 0 ? "; " : "", at,
                                 r->s->nodes[log->node].name, log->rank);
        if (log->kind != WORLD_WRITE && used < size) {
            used += (size_t)snprintf(out + used, size - used, " %s %u \"%.60s\"",
                                     log->kind == WORLD_REFUSED ? "refused"
                                                                : sm_outcome_name(log->outcome),
                                     log->http, log->reason);
        }
        used = used < size ? used : size - 1u;
    }
    if (used == 0) {
        (void)snprintf(out, size, "nothing of that kind");
    }
}

static void seen(const struct running *r, const struct scenario_claim *c, char *out, size_t size)
{
    struct sm_half_view view;
    out[0] = '\0';
    if (is_log_claim(c)) {
        seen_logs(r, c, out, size);
        return;
    }
    const struct sm *sm = c->at.node == SM_NONE ? NULL : world_machine(r->world, c->at.node);
    if (c->kind == CLAIM_QUIESCENT) {
        size_t used = 0;
        for (uint32_t i = 0; i < r->s->node_count && used + 80u < size; i++) {
            struct sm_gauges g;
            sm = world_machine(r->world, i);
            if (sm == NULL || sm_quiescent(sm)) {
                continue;
            }
            sm_gauges(sm, &g);
            used += (size_t)snprintf(out + used, size - used,
                                     "%s%s has %" PRIu64 " rooms, %" PRIu64 " writes, %" PRIu64
                                     " pages, %" PRIu64 " notices",
                                     used > 0 ? "; " : "", r->s->nodes[i].name, g.halves,
                                     g.writes_in_flight, g.pages_held, g.unsent_notices);
        }
    } else if (sm == NULL) {
        (void)snprintf(out, size, "%s does not run", r->s->nodes[c->at.node].name);
    } else if ((c->kind == CLAIM_ROOM || c->kind == CLAIM_ABSENT) &&
               sm_half_find(sm, c->room, r->s->nodes[c->at.node].side, &view)) {
        (void)snprintf(out, size, "phase=%s outcome=%s http=%u reason=\"%.*s\" owner=%s",
                       sm_phase_name(view.phase), sm_outcome_name(view.outcome), view.cause.http,
                       (int)(view.cause.reason.size < 100u ? view.cause.reason.size : 100u),
                       view.cause.reason.bytes, view.owned_by_engine ? "engine" : "node");
    } else if (c->kind == CLAIM_DATA) {
        const uint32_t rank = c->at.rank == SM_NONE ? 0 : c->at.rank;
        const uint32_t data = world_data(r->world, c->at.node, rank, c->room);
        (void)snprintf(out, size, "%s%s%s%s", (data & WORLD_DATA_INTACT) != 0 ? "intact " : "",
                       (data & WORLD_DATA_PARTIAL) != 0 ? "partial " : "",
                       (data & WORLD_DATA_FOREIGN) != 0 ? "foreign " : "",
                       data == 0 ? "nothing of the room" : "");
    } else {
        (void)snprintf(out, size, "%s",
                       c->kind == CLAIM_PAGES ? (c->held ? "free" : "held") : "otherwise");
    }
}

static void report(struct running *r, const struct watch *w, const char *text)
{
    struct scenario_run *run = r->run;
    if (run->failure_count == SCENARIO_FAILURES_MAX) {
        return;
    }
    struct scenario_failure *f = &run->failures[run->failure_count++];
    memset(f, 0, sizeof *f);
    f->line = w == NULL ? 0 : w->e->line;
    (void)snprintf(f->expected, sizeof f->expected, "%.250s",
                   w == NULL ? "no invariant falls" : w->e->words);
    if (w != NULL) {
        f->room = w->e->claim.room;
        f->node = w->e->claim.at.node;
    }
    if (text != NULL) {
        (void)snprintf(f->seen, sizeof f->seen, "%.380s", text);
    } else {
        seen(r, &w->e->claim, f->seen, sizeof f->seen);
    }
}

/* ---- watching
 * ------------------------------------------------------------------------------------------- */

/* Claims that may hold or fall at any moment. */
static void watch(struct world *world, void *context)
{
    struct running *r = context;
    const bool news = world_log_count(world) != r->log_seen;
    r->log_seen = world_log_count(world);
    for (uint32_t i = 0; i < r->s->expectation_count; i++) {
        struct watch *w = &r->watches[i];
        const struct scenario_expectation *e = w->e;
        if (w->reported || w->holds || (is_log_claim(&e->claim) && !news)) {
            continue;
        }
        if (e->when == WHEN_BY && !is_log_claim(&e->claim)) {
            w->holds = world_now(world) <= e->time_ns && holds(r, &e->claim);
        } else if (e->when == WHEN_NEVER && world_now(world) < e->time_ns) {
            if (holds(r, &e->claim)) {
                report(r, w, NULL);
                w->reported = true;
            }
        }
    }
}

/* At the time of a `by` or `at`, after all that happens then. */
static void judge(struct world *world, void *context)
{
    const struct step *step = context;
    struct watch *w = step->watch;
    (void)world;
    if (!w->reported && !w->holds) {
        if (!holds(step->running, &w->e->claim)) {
            report(step->running, w, NULL);
        }
        w->reported = true;
    }
}

/* ---- the whole
 * ------------------------------------------------------------------------------------------ */

static void draw_failure(const struct running *r, const struct scenario_failure *f)
{
    char base[] = "/tmp/stateroom-scenario-XXXXXX";
    char path[64];
    char command[80];
    struct status_detail detail;
    if (f->room == 0 || mkdtemp(base) == NULL) {
        return;
    }
    for (uint32_t node = 0; node < r->s->node_count; node++) {
        struct history history;
        int code = 0;
        (void)snprintf(path, sizeof path, "%s/%u", base, node);
        if (world_save_journal(r->world, node, path, &detail) != STATUS_OK) {
            continue;
        }
        struct journal *journal = cli_open_journal(path, &code);
        if (journal != NULL && history_read(journal, f->room, &history, &detail) == STATUS_OK) {
            fprintf(r->out, "\n    room %" PRIu64 " as %s saw it:\n", f->room,
                    r->s->nodes[node].name);
            history_tail(&history, 24);
            history_diagram(r->out, &history, true);
            history_free(&history);
        }
        journal_close(journal);
    }
    (void)snprintf(command, sizeof command, "rm -rf '%s'", base);
    if (system(command) != 0) {
        fprintf(stderr, "stateroom: %s could not be removed\n", base);
    }
}

static enum status keep_journals(const struct running *r, struct status_detail *out_detail)
{
    char path[4096];
    char name[256];
    const char *file = strrchr(r->s->file, '/');
    (void)snprintf(name, sizeof name, "%s", file == NULL ? r->s->file : file + 1);
    char *dot = strrchr(name, '.');
    if (dot != NULL && dot != name) {
        *dot = '\0';
    }
    (void)mkdir(r->run->journal_dir, 0755);
    (void)snprintf(path, sizeof path, "%s/%s", r->run->journal_dir, name);
    (void)mkdir(path, 0755);
    for (uint32_t i = 0; i < r->s->node_count; i++) {
        (void)snprintf(path, sizeof path, "%s/%s/%s", r->run->journal_dir, name,
                       r->s->nodes[i].name);
        TRY(world_save_journal(r->world, i, path, out_detail));
    }
    return STATUS_OK;
}

static void settle(struct running *r)
{
    const char *fault = r->s->end_ns == 0 ? world_owed(r->world) : world_fault(r->world);
    for (uint32_t i = 0; i < r->s->expectation_count && fault == NULL; i++) {
        struct watch *w = &r->watches[i];
        const bool open = !w->reported && !w->holds;
        if (open && w->e->when != WHEN_NEVER && !holds(r, &w->e->claim)) {
            report(r, w, NULL);
        }
    }
    if (fault != NULL) {
        report(r, NULL, fault);
    }
    r->run->steps = world_steps(r->world);
    r->run->ended_ns = world_now(r->world);
    r->run->journal_digest = world_journal_digest(r->world);
    for (uint32_t i = 0; i < r->run->failure_count && r->run->draw; i++) {
        fprintf(r->out, "%s:%u: expected: %s\n    seen: %s\n", r->s->file, r->run->failures[i].line,
                r->run->failures[i].expected, r->run->failures[i].seen);
        if (i == 0) {
            draw_failure(r, &r->run->failures[i]);
        }
    }
}

static void plan(struct running *r, struct step *steps)
{
    const struct scenario *s = r->s;
    uint32_t used = 0;
    for (uint32_t i = 0; i < s->statement_count; i++) {
        steps[used] = (struct step){r, &s->statements[i], NULL};
        world_at(r->world, s->statements[i].time_ns, carry_out, &steps[used++]);
    }
    for (uint32_t i = 0; i < s->expectation_count; i++) {
        const struct scenario_expectation *e = &s->expectations[i];
        r->watches[i].e = e;
        if (e->when == WHEN_BY || e->when == WHEN_AT) {
            steps[used] = (struct step){r, NULL, &r->watches[i]};
            world_after(r->world, e->time_ns, judge, &steps[used++]);
        }
    }
}

enum status scenario_execute(const struct scenario *s, struct scenario_run *run, FILE *out,
                             struct status_detail *out_detail)
{
    const struct world_options options = {run->seed, run->protections_off};
    if (run->world == NULL && (run->world = world_create(&options, out_detail)) == NULL) {
        return STATUS_NO_MEMORY;
    }
    struct running r = {s, run, run->world, NULL, 0, out};
    world_renew(r.world, &options);
    run->failure_count = 0;
    r.watches = calloc(s->expectation_count + 1u, sizeof *r.watches);
    struct step *steps =
        calloc((size_t)s->statement_count + s->expectation_count + 1u, sizeof *steps);
    if (r.watches == NULL || steps == NULL) {
        abort();
    }
    for (uint32_t i = 0; i < s->node_count; i++) {
        (void)world_add_node(r.world, &s->nodes[i]);
    }
    enum status status = world_start(r.world, out_detail);
    if (status == STATUS_OK) {
        plan(&r, steps);
        world_run(r.world, s->end_ns, watch, &r);
        settle(&r);
        status = run->journal_dir != NULL ? keep_journals(&r, out_detail) : STATUS_OK;
    }
    free(r.watches);
    free(steps);
    return status;
}
