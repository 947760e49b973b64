/* SPDX-License-Identifier: Apache-2.0 */
#include "told.h"

#include "journal/journal_verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct told_half {
    uint8_t commands[TOLD_COMMANDS]; /* accepted, by enum stateroom_command (an input's kind) */
    uint64_t generation;
    uint32_t reason; /* digest of the text */
    uint16_t http;
    uint8_t outcome; /* 0: none yet */
    bool told;
};

static uint32_t digest(const char *text, size_t size)
{
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < size; i++) {
        sum = (sum ^ (unsigned char)text[i]) * 16777619u;
    }
    return sum;
}

static bool wrong(struct told *told, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct told *told, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(told->text, sizeof told->text, format, arguments);
    va_end(arguments);
    return false;
}

bool told_open(struct told *told, const char *journal)
{
    struct status_detail detail;
    memset(told, 0, sizeof *told);
    told->journal = journal;
    told->said = calloc(TOLD_ROOMS_MAX, sizeof *told->said);
    told->found = calloc(TOLD_ROOMS_MAX, sizeof *told->found);
    return told->said != NULL && told->found != NULL &&
           journal_machine_open(&told->machine, &detail) == STATUS_OK;
}

void told_close(struct told *told)
{
    journal_machine_close(&told->machine);
    free(told->said);
    free(told->found);
}

void told_accepted(struct told *told, uint64_t room, enum stateroom_command command)
{
    told->rooms = room > told->rooms ? room : told->rooms;
    told->said[room].commands[command]++;
}

bool told_result(struct told *told, const struct stateroom_event *event)
{
    struct told_half *half = &told->said[event->room];
    if (half->told) {
        return false;
    }
    told->rooms = event->room > told->rooms ? event->room : told->rooms;
    half->told = true;
    half->outcome = (uint8_t)event->outcome;
    half->http = (uint16_t)event->http;
    half->reason = digest(event->reason, strlen(event->reason));
    half->generation = event->generation;
    return true;
}

/* ---- the journal
 * ------------------------------------------------------------------------------------------------
 */

static void note_transition(struct told *told, const struct sm_transition *t)
{
    if (t->room == 0 || t->room >= TOLD_ROOMS_MAX) {
        return;
    }
    struct told_half *half = &told->found[t->room];
    if (t->kind == SM_TR_VERDICT) {
        half->outcome = (uint8_t)t->a;
        half->generation = t->generation;
    }
    if (t->kind == SM_TR_VERDICT || t->kind == SM_TR_CAUSE_REPLACED) {
        half->http = (uint16_t)t->b;
        half->reason = digest((const char *)t->text.bytes, t->text.size);
    }
    half->told = half->told || t->kind == SM_TR_TOLD;
}

static bool note_entry(struct told *told, struct journal *journal, uint64_t number)
{
    struct journal_record record;
    struct codec_entry entry;
    codec_arena_reset(&told->machine.arena);
    if (journal_read(journal, number, &record) != STATUS_OK ||
        codec_entry_unpack(record.payload, record.payload_size, &told->machine.arena, &entry) !=
            STATUS_OK) {
        return wrong(told, "entry %" PRIu64 " cannot be read: %s", number,
                     journal_detail(journal)->text);
    }
    told->entries++;
    const uint64_t room = entry.input.room;
    if (room < TOLD_ROOMS_MAX && sm_input_is_command(entry.input.kind)) {
        told->found[room].commands[entry.input.kind]++;
    }
    for (uint32_t i = 0; i < entry.transition_count; i++) {
        note_transition(told, &entry.transitions[i]);
    }
    return true;
}

static bool note_new(struct told *told, struct journal *journal)
{
    struct journal_identity identity;
    if (journal_identity(journal, &identity) != STATUS_OK || identity.last < told->looked ||
        identity.first > told->looked + 1u) {
        return wrong(told,
                     "the journal has entries %" PRIu64 " to %" PRIu64
                     ", looked at were those to %" PRIu64,
                     identity.first, identity.last, told->looked);
    }
    for (; told->looked < identity.last; told->looked++) {
        if (!note_entry(told, journal, told->looked + 1u)) {
            return false;
        }
    }
    return true;
}

static bool compare_half(struct told *told, uint64_t room)
{
    const struct told_half *said = &told->said[room];
    const struct told_half *found = &told->found[room];
    for (uint32_t command = 0; command < TOLD_COMMANDS; command++) {
        if (said->commands[command] > found->commands[command]) {
            return wrong(told,
                         "of room %" PRIu64
                         " %u commands of kind %u were accepted, the journal has %u",
                         room, said->commands[command], command, found->commands[command]);
        }
    }
    const bool same = found->told && said->outcome == found->outcome && said->http == found->http &&
                      said->reason == found->reason && said->generation == found->generation;
    return !said->told || same ||
           wrong(told,
                 "room %" PRIu64 " was told outcome %u, http %u, generation %" PRIu64
                 "; its journal has %s%u, http %u, generation %" PRIu64 "%s",
                 room, said->outcome, said->http, said->generation,
                 found->told ? "" : "not told: ", found->outcome, found->http, found->generation,
                 said->reason != found->reason ? ", another reason" : "");
}

static bool replays(struct told *told, struct journal *journal)
{
    const struct journal_replay options = {.from_snapshot = true, .check = true};
    struct journal_replayed replayed;
    struct status_detail detail = {"", 0};
    journal_machine_renew(&told->machine);
    if (journal_replay(journal, &told->machine, &options, &replayed, &detail) != STATUS_OK) {
        return wrong(told, "replay: %s", detail.text);
    }
    return replayed.violation.invariant == 0 ||
           wrong(told, "replay: an invariant does not hold: %s", replayed.violation.detail);
}

static bool look(struct told *told, bool all)
{
    const struct journal_options options = {.path = told->journal, .read_only = true};
    struct journal *journal = NULL;
    struct journal_fault_report report;
    struct status_detail detail = {"", 0};
    if (journal_open(&options, &journal, &detail) != STATUS_OK) {
        return wrong(told, "%s", detail.text);
    }
    bool well = note_new(told, journal);
    if (well && all) {
        well = replays(told, journal);
        if (well && journal_verify(journal, &report, &detail) != STATUS_OK) {
            well = wrong(told, "verify: %s", detail.text);
        }
    }
    journal_close(journal);
    return well;
}

bool told_look(struct told *told)
{
    return look(told, false);
}

bool told_check(struct told *told)
{
    if (!look(told, true)) {
        return false;
    }
    for (uint64_t room = 1; room <= told->rooms; room++) {
        if (!compare_half(told, room)) {
            return false;
        }
    }
    return true;
}
