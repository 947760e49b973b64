/* SPDX-License-Identifier: Apache-2.0 */
/* A journal walked by hand. */
#include "stepper.h"

#include "schemas/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)64 << 20)

struct stepper {
    struct journal *journal;
    const struct stepper_options *options;
    struct journal_machine machine;
    struct journal_replayed replayed; /* of the last moves */
    struct codec_arena arena;
    struct codec_entry entry; /* at `at`, in the arena */
    void *memory;
    uint64_t first;
    uint64_t last;
    uint64_t at;
    uint64_t room;
    /* The first of each is said, and then not looked for any more. */
    uint64_t diverged;
    uint64_t fallen;
    struct sm_violation violation;
    bool to_person; /* prompts, and an empty line does it again */
    int code;
};

/* ---- moving
 * ---------------------------------------------------------------------------------------------- */

static struct journal_replay replay_options(const struct stepper *s, uint64_t until)
{
    const bool off = s->options->protections_off != 0;
    const struct journal_replay options = {
        .until = until,
        .from_snapshot = !off, /* one of a protected machine is no start without the protection */
        .no_compare = off || s->diverged != 0,
        .check = (off || s->options->check) && s->fallen == 0,
        .protections_off = s->options->protections_off,
    };
    return options;
}

static enum status read_here(struct stepper *s)
{
    struct journal_record record;
    codec_arena_reset(&s->arena);
    TRY(journal_read(s->journal, s->at, &record));
    return codec_entry_unpack(record.payload, record.payload_size, &s->arena, &s->entry);
}

static void say_divergence(struct stepper *s)
{
    s->diverged = s->replayed.divergence.number;
    s->code = EXIT_DIFFERS;
    if (s->options->json) {
        cli_print_json(json_pack("{s:I, s:o, s:o, s:o}", "differs", (json_int_t)s->diverged,
                                 "field", cli_json_text(s->replayed.divergence.field), "recorded",
                                 cli_json_text(s->replayed.divergence.recorded), "replayed",
                                 cli_json_text(s->replayed.divergence.replayed)));
    } else {
        divergence_print(s->journal, &s->machine, &s->replayed.divergence);
    }
}

static void say_fallen(struct stepper *s)
{
    s->fallen = s->at;
    s->violation = s->replayed.violation;
    s->code = EXIT_DIFFERS;
    const char *name = sm_invariant_name(s->violation.invariant);
    if (s->options->json) {
        cli_print_json(json_pack("{s:s, s:I, s:I, s:o}", "invariant", name, "entry",
                                 (json_int_t)s->at, "room", (json_int_t)s->violation.room, "detail",
                                 cli_json_text(s->violation.detail)));
    } else {
        printf("invariant %s falls here, at entry %" PRIu64 ": room %" PRIu64 ", %s\n", name, s->at,
               s->violation.room, s->violation.detail);
    }
}

/* After a move: what it found. True: something that a run stops at. */
static bool note_findings(struct stepper *s, enum status *status)
{
    bool stop = false;
    if (*status == STATUS_JOURNAL_DIVERGED) {
        say_divergence(s);
        *status = STATUS_OK;
        stop = true;
    }
    if (*status == STATUS_OK && s->replayed.violation.invariant != 0 && s->fallen == 0) {
        say_fallen(s);
        stop = true;
    }
    return stop;
}

/* One entry on; false at the journal's end. *out_stop: it found something. */
static enum status forward(struct stepper *s, bool *out_stop)
{
    struct status_detail detail = {"", 0};
    const struct journal_replay options = replay_options(s, 0);
    memset(&s->replayed, 0, sizeof s->replayed);
    enum status status =
        journal_replay_one(s->journal, &s->machine, &options, s->at + 1u, &s->replayed, &detail);
    if (status == STATUS_OK || status == STATUS_JOURNAL_DIVERGED) {
        s->at++;
    }
    *out_stop = note_findings(s, &status);
    if (status != STATUS_OK) {
        s->code = cli_fail(cli_code(status), "%s", detail.text);
    }
    return status;
}

/* The machine as it is before entry `number`: from the snapshot before, or from the start. */
static enum status begin_before(struct stepper *s, uint64_t number)
{
    struct status_detail detail = {"", 0};
    memset(&s->replayed, 0, sizeof s->replayed);
    journal_machine_renew(&s->machine);
    if (number == 1u) {
        s->at = 0;
        return STATUS_OK;
    }
    const struct journal_replay options = replay_options(s, number - 1u);
    enum status status = journal_replay(s->journal, &s->machine, &options, &s->replayed, &detail);
    s->at = s->replayed.last;
    (void)note_findings(s, &status);
    if (status != STATUS_OK) {
        s->code = cli_fail(cli_code(status), "%s", detail.text);
    }
    return status;
}

/* To an entry, wherever it is; less far when something is found on the way. */
static enum status go(struct stepper *s, uint64_t number)
{
    bool stop = false;
    if (number <= s->at || s->machine.sm == NULL) {
        TRY(begin_before(s, number));
        stop = s->at + 1u < number;
    }
    while (s->at < number && !stop) {
        TRY(forward(s, &stop));
    }
    return STATUS_OK;
}

/* ---- commands
 * -------------------------------------------------------------------------------------------- */

static void show(struct stepper *s)
{
    const enum status status = read_here(s);
    if (status != STATUS_OK) {
        s->code = cli_fail(cli_code(status), "entry %" PRIu64 " cannot be read", s->at);
        return;
    }
    step_print(s->at, &s->entry, &s->machine, s->options->json);
}

/* That a journal differs or breaks an invariant stays the greater news. */
static void missed(struct stepper *s)
{
    s->code = s->code == EXIT_DIFFERS ? EXIT_DIFFERS : EXIT_NOT_THERE;
}

static uint64_t clamped(const struct stepper *s, uint64_t number)
{
    return number < s->first ? s->first : number > s->last ? s->last : number;
}

static uint64_t goal_of(const struct stepper *s, const struct steps_command *c)
{
    switch (c->anchor) {
    case STEPS_FIRST:
        return s->first;
    case STEPS_LAST:
        return s->last;
    case STEPS_FORWARD:
        return c->number > s->last - s->at ? s->last : s->at + c->number;
    case STEPS_BACKWARD:
        return c->number >= s->at ? s->first : clamped(s, s->at - c->number);
    case STEPS_ABSOLUTE:
    default:
        return c->number;
    }
}

static void go_and_show(struct stepper *s, uint64_t number)
{
    if (number < s->first || number > s->last) {
        fprintf(stderr, "stateroom: the journal has entries %" PRIu64 " to %" PRIu64 "\n", s->first,
                s->last);
        missed(s);
        return;
    }
    if (go(s, number) == STATUS_OK) {
        show(s);
    }
}

static void nothing_fits(struct stepper *s, const char *where)
{
    fprintf(stderr, "stateroom: nothing like that %s entry %" PRIu64 "\n", where, s->at);
    missed(s);
}

/* On to the next entry that fits; else the place stays. */
static void run_to(struct stepper *s, const struct steps_condition *condition)
{
    const uint64_t from = s->at;
    bool stop = false;
    while (s->at < s->last) {
        if (forward(s, &stop) != STATUS_OK || read_here(s) != STATUS_OK) {
            return;
        }
        if (stop || steps_fits(condition, &s->entry, s->machine.output)) {
            show(s);
            return;
        }
    }
    if (condition->nothing) {
        show(s);
    } else if (go(s, from) == STATUS_OK) {
        nothing_fits(s, "after");
    }
}

/* Back to the last entry that fits: found on the way from the start to here. */
static void run_back(struct stepper *s, const struct steps_condition *condition)
{
    const uint64_t from = s->at;
    uint64_t found = 0;
    bool stop = false;
    if (begin_before(s, s->first) != STATUS_OK) {
        return;
    }
    while (s->at + 1u < from) {
        if (forward(s, &stop) != STATUS_OK || read_here(s) != STATUS_OK) {
            return;
        }
        found = steps_fits(condition, &s->entry, s->machine.output) ? s->at : found;
    }
    if (go(s, found != 0 ? found : from) != STATUS_OK) {
        return;
    }
    if (found != 0) {
        show(s);
    } else {
        nothing_fits(s, "before");
    }
}

/* So many steps, or so many entries about the room that is walked along. */
static void walk(struct stepper *s, const struct steps_command *c)
{
    struct steps_condition about = {.room = s->room, .rank = SM_NONE};
    const bool on = c->verb == STEPS_NEXT;
    if (on ? s->at == s->last : s->at <= s->first) {
        fprintf(stderr, "stateroom: entry %" PRIu64 " is the journal's %s\n", s->at,
                on ? "last" : "first");
        missed(s);
        return;
    }
    if (s->room == 0) {
        const struct steps_command there = {.anchor = on ? STEPS_FORWARD : STEPS_BACKWARD,
                                            .number = c->number};
        go_and_show(s, goal_of(s, &there));
        return;
    }
    uint64_t was = 0;
    for (uint64_t i = 0; i < c->number && s->at != was; i++) {
        was = s->at; /* it stays where nothing comes any more */
        if (on) {
            run_to(s, &about);
        } else {
            run_back(s, &about);
        }
    }
}

static void print_state(struct stepper *s, uint64_t room)
{
    struct state_fields fields = {0};
    if (s->machine.sm == NULL || !state_read(s->machine.sm, room, NULL, &fields)) {
        s->code = cli_fail(EXIT_UNREACHABLE, "no memory");
    } else {
        state_print(&fields, s->options->json);
    }
    state_free(&fields);
}

static void diff(struct stepper *s, const struct steps_command *c)
{
    const uint64_t here = s->at;
    const uint64_t second = c->second != 0 ? c->second : here;
    struct state_fields before = {0};
    struct state_fields after = {0};
    if (c->number < s->first || c->number > s->last || second < s->first || second > s->last) {
        go_and_show(s, 0); /* says which there are */
        return;
    }
    bool well = go(s, c->number) == STATUS_OK &&
                state_read(s->machine.sm, c->room, NULL, &before) && go(s, second) == STATUS_OK &&
                state_read(s->machine.sm, c->room, &before, &after);
    if (well) {
        if (!s->options->json) {
            printf("from after entry %" PRIu64 " to after entry %" PRIu64 "\n", c->number, second);
        }
        if (state_diff(&before, &after, s->options->json) == 0 && !s->options->json) {
            printf("  nothing that is shown differs\n");
        }
        well = go(s, here) == STATUS_OK;
    }
    if (!well && s->code == EXIT_WELL) {
        s->code = cli_fail(EXIT_UNREACHABLE, "no memory");
    }
    state_free(&before);
    state_free(&after);
}

static const char help_text[] =
    "  next [N], previous [N]   so many entries on or back; along a room after `room R`\n"
    "  goto N|+N|-N|first|last  to an entry\n"
    "  run [CONDITION...]       on to the next entry that fits, or to the end\n"
    "  back CONDITION...        back to the last one that fits\n"
    "                           room=R side=S rank=N phase=P input=I transition=T effect=E http=H\n"
    "                           reason=TEXT (a part of it), or the name of a phase, transition,\n"
    "                           input or effect; several: all of them\n"
    "  show                     this entry again\n"
    "  state [R]                the machine after this entry, or what it has of a room\n"
    "  diff N [M] [room R]      what differs between after N and after M (or here)\n"
    "  room [R]                 walk along a room; without a number along every entry again\n"
    "  help, quit\n";

/* False: quit. */
static bool obey(struct stepper *s, const struct steps_command *c)
{
    switch (c->verb) {
    case STEPS_NEXT:
    case STEPS_PREVIOUS:
        walk(s, c);
        break;
    case STEPS_GOTO:
        go_and_show(s, goal_of(s, c));
        break;
    case STEPS_RUN:
        run_to(s, &c->condition);
        break;
    case STEPS_BACK:
        run_back(s, &c->condition);
        break;
    case STEPS_SHOW:
        show(s);
        break;
    case STEPS_STATE:
        print_state(s, c->room);
        break;
    case STEPS_DIFF:
        diff(s, c);
        break;
    case STEPS_ROOM:
        s->room = c->room;
        break;
    case STEPS_HELP:
        printf("%s", help_text);
        break;
    case STEPS_QUIT:
        return false;
    case STEPS_NOTHING:
    default:
        break;
    }
    return true;
}

static void prompt(const struct stepper *s)
{
    if (s->to_person) {
        (void)fflush(stdout);
        fprintf(stderr, "[%" PRIu64 " of %" PRIu64 "] ", s->at, s->last);
    }
    (void)fflush(stdout);
}

static void converse(struct stepper *s, FILE *in)
{
    char line[STEPS_LINE_MAX];
    char error[STEPS_LINE_MAX];
    struct steps_command command;
    struct steps_command before = {.verb = STEPS_NEXT, .number = 1};
    for (prompt(s); fgets(line, sizeof line, in) != NULL; prompt(s)) {
        const bool whole = strchr(line, '\n') != NULL || feof(in);
        if (!whole || !steps_parse(line, &command, error, sizeof error)) {
            fprintf(stderr, "stateroom: %s\n", whole ? error : "the line is too long");
            if (!s->to_person) {
                s->code = EXIT_WRONG_USAGE;
                return;
            }
            continue;
        }
        if (command.verb == STEPS_NOTHING && s->to_person) {
            command = before;
        }
        /* To a person only the journal's own faults are an exit status. */
        s->code = s->to_person && s->code != EXIT_DIFFERS ? EXIT_WELL : s->code;
        if (!obey(s, &command)) {
            return;
        }
        if (command.verb == STEPS_NEXT || command.verb == STEPS_PREVIOUS) {
            before = command;
        }
        if (!s->to_person && s->code != EXIT_WELL && s->code != EXIT_DIFFERS &&
            s->code != EXIT_NOT_THERE) {
            return;
        }
    }
}

int stepper_run(struct journal *journal, const struct stepper_options *options, FILE *in)
{
    struct stepper s;
    struct status_detail detail = {"", 0};
    struct journal_identity identity;
    memset(&s, 0, sizeof s);
    s.journal = journal;
    s.options = options;
    s.room = options->room;
    s.to_person = isatty(fileno(in)) != 0;
    s.memory = malloc(ARENA_BYTES);
    enum status status = journal_machine_open(&s.machine, &detail);
    status = status == STATUS_OK ? journal_identity(journal, &identity) : status;
    if (status != STATUS_OK || s.memory == NULL || identity.last == 0) {
        s.code = cli_fail(EXIT_UNREACHABLE, "%s",
                          status != STATUS_OK ? detail.text
                          : s.memory == NULL  ? "no memory"
                                              : "the journal has no entry yet");
    } else {
        codec_arena_init(&s.arena, s.memory, ARENA_BYTES);
        s.first = identity.first;
        s.last = identity.last;
        const struct steps_condition about = {.room = s.room, .rank = SM_NONE};
        const uint64_t start = options->start != 0 ? clamped(&s, options->start) : s.first;
        if (options->start == 0 && s.room != 0) {
            /* Along a room: to its first entry. */
            status = begin_before(&s, s.first);
            if (status == STATUS_OK) {
                run_to(&s, &about);
            }
        } else {
            go_and_show(&s, start);
        }
        if (s.machine.sm != NULL) {
            converse(&s, in);
        }
    }
    journal_machine_close(&s.machine);
    journal_read_pause(journal);
    free(s.memory);
    return s.code;
}
