/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice: the entries of one room, run again without the others.
 *
 * The machine as it was before the room's first entry, less all other rooms, takes the inputs that
 * are about the room, and those about the node, its engines and its peers. What it does to the room
 * must be what the journal says. Where it is not, another room had a hand in it: that one is added,
 * and all is tried again; when no such room can be named, the whole range goes into the file.
 */
#include "carry.h"
#include "redact.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_BYTES_MAX JOURNAL_PAYLOAD_MAX
#define ARENA_BYTES ((size_t)96 << 20)

struct write_pair {
    uint64_t was;
    uint64_t is;
};

struct slicing {
    struct journal *journal;
    uint64_t room;
    uint64_t before; /* the last entry before the room's first */
    uint64_t last;   /* the room's last */
    uint64_t rooms[CODEC_BUNDLE_ROOMS_MAX];
    uint32_t room_count;
    struct journal_machine origin;  /* as it was after `before` */
    struct journal_machine machine; /* without the other rooms */
    struct codec_arena arena;       /* the entry that is read */
    unsigned char *packed;
    struct redact *redact; /* NULL: texts stay */
    struct write_pair *writes;
    uint32_t write_count;
    uint32_t write_capacity;
    /* Of a run. */
    struct journal_sink *sink; /* NULL: only tried */
    uint64_t next;
    uint64_t odd; /* the entry that came out otherwise; 0 */
    struct status_detail detail;
};

static bool is_ours(const struct slicing *s, uint64_t room)
{
    for (uint32_t i = 0; i < s->room_count; i++) {
        if (s->rooms[i] == room) {
            return true;
        }
    }
    return false;
}

/* ---- writes have other ids when fewer are made
 * ------------------------------------------------------------------- */

static enum status note_write(struct slicing *s, uint64_t was, uint64_t is)
{
    if (s->write_count == s->write_capacity) {
        const uint32_t capacity = s->write_capacity == 0 ? 64u : 2u * s->write_capacity;
        struct write_pair *grown = realloc(s->writes, capacity * sizeof *grown);
        if (grown == NULL) {
            return status_fail(STATUS_NO_MEMORY, &s->detail, 0, "no memory for a slice");
        }
        s->writes = grown;
        s->write_capacity = capacity;
    }
    s->writes[s->write_count++] = (struct write_pair){was, is};
    return STATUS_OK;
}

/* One that was in flight before keeps its id. */
static uint64_t write_now(const struct slicing *s, uint64_t was)
{
    for (uint32_t i = s->write_count; i > 0; i--) {
        if (s->writes[i - 1u].was == was) {
            return s->writes[i - 1u].is;
        }
    }
    return was;
}

/* ---- one entry
 * ------------------------------------------------------------------------------------------ */

static bool wanted(const struct slicing *s, const struct codec_entry *entry)
{
    const uint32_t kind = entry->input.kind;
    if (entry->input.room != 0 ? is_ours(s, entry->input.room) : kind != SM_IN_TICK) {
        return true;
    }
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        const struct sm_transition *t = &entry->transitions[i];
        if (t->room != 0 ? is_ours(s, t->room) : kind == SM_IN_TICK && t->kind != SM_TR_IGNORED) {
            return true;
        }
    }
    return false;
}

/* The next transition that is about a room of ours, from *at on; NULL. */
static const struct sm_transition *
next_ours(const struct slicing *s, const struct sm_transition *list, uint32_t count, uint32_t *at)
{
    while (*at < count) {
        const struct sm_transition *t = &list[(*at)++];
        if (t->room != 0 && is_ours(s, t->room)) {
            return t;
        }
    }
    return NULL;
}

static bool same_transition(struct slicing *s, const struct sm_transition *was,
                            const struct sm_transition *is)
{
    const bool write = was->kind == SM_TR_WRITE_POSTED || was->kind == SM_TR_WRITE_COMPLETED;
    if (was->kind == SM_TR_WRITE_POSTED && is->kind == SM_TR_WRITE_POSTED &&
        note_write(s, was->a, is->a) != STATUS_OK) {
        return false;
    }
    const uint64_t a = write ? write_now(s, was->a) : was->a;
    return was->kind == is->kind && was->side == is->side && was->room == is->room &&
           was->generation == is->generation && was->rank == is->rank && was->index == is->index &&
           a == is->a && was->b == is->b && was->text.size == is->text.size &&
           (s->redact != NULL || was->text.size == 0 ||
            memcmp(was->text.bytes, is->text.bytes, was->text.size) == 0);
}

static bool same_for_ours(struct slicing *s, const struct codec_entry *entry)
{
    const struct sm_output *output = s->machine.output;
    uint32_t at = 0;
    uint32_t at_now = 0;
    for (;;) {
        const struct sm_transition *was =
            next_ours(s, entry->transitions, entry->transition_count, &at);
        const struct sm_transition *is =
            next_ours(s, output->transitions, output->transition_count, &at_now);
        if (was == NULL || is == NULL) {
            return was == is;
        }
        if (!same_transition(s, was, is)) {
            return false;
        }
    }
}

static enum status put_entry(struct slicing *s, const struct journal_record *record,
                             struct codec_entry *entry)
{
    const struct sm_output *output = s->machine.output;
    size_t size = 0;
    entry->transitions = output->transitions;
    entry->transition_count = output->transition_count;
    entry->digest = output->digest;
    entry->effects = codec_effects_digest(output);
    entry->origin = entry->origin != 0 ? entry->origin : record->number;
    const uint64_t write =
        entry->input.kind == SM_IN_WRITE_DONE ? entry->input.u.write_done.write : 0;
    const enum status packed =
        s->redact != NULL
            ? codec_entry_pack(entry, &s->machine.scratch, s->packed, ENTRY_BYTES_MAX, &size)
            : codec_entry_repack(record->payload, record->payload_size, entry, write,
                                 &s->machine.scratch, s->packed, ENTRY_BYTES_MAX, &size);
    if (packed != STATUS_OK) {
        return status_fail(packed, &s->detail, 0, "entry %" PRIu64 " cannot be written again: %s",
                           record->number, status_text(packed));
    }
    const struct journal_record out = {s->next, record->room, 0, s->packed, size, NULL, 0};
    const enum status status = sink_entry(s->sink, &out);
    if (status != STATUS_OK) {
        s->detail = *journal_sink_detail(s->sink);
    }
    s->next++;
    return status;
}

static enum status run_entry(struct slicing *s, uint64_t number)
{
    struct journal_record record;
    struct codec_entry entry;
    enum status status = journal_read(s->journal, number, &record);
    if (status != STATUS_OK) {
        s->detail = *journal_detail(s->journal);
        return status;
    }
    codec_arena_reset(&s->arena);
    status = codec_entry_unpack(record.payload, record.payload_size, &s->arena, &entry);
    if (status != STATUS_OK) {
        return status_fail(STATUS_JOURNAL_DAMAGED, &s->detail, 0,
                           "entry %" PRIu64 " does not parse: %s", number, status_text(status));
    }
    if (!wanted(s, &entry)) {
        return STATUS_OK;
    }
    if (entry.input.kind == SM_IN_NODE_STARTED) {
        TRY(journal_machine_lay_out(&s->machine, &entry.bounds, &s->detail));
    }
    if (entry.input.kind == SM_IN_WRITE_DONE) {
        entry.input.u.write_done.write = write_now(s, entry.input.u.write_done.write);
    }
    if (s->redact != NULL && !redact_entry(s->redact, &entry)) {
        return status_fail(STATUS_TOO_LARGE, &s->detail, 0,
                           "entry %" PRIu64 " has too many texts to be redacted", number);
    }
    if (entry.input.time_ns < sm_now(s->machine.sm)) {
        return status_fail(STATUS_JOURNAL_DAMAGED, &s->detail, 0,
                           "entry %" PRIu64 ": time goes back", number);
    }
    sm_step(s->machine.sm, &entry.input, s->machine.output);
    if (!same_for_ours(s, &entry)) {
        s->odd = number;
        return STATUS_OK;
    }
    return s->sink != NULL ? put_entry(s, &record, &entry) : STATUS_OK;
}

/* ---- a run
 * ---------------------------------------------------------------------------------------------- */

/* The machine before the room's first entry, less the other rooms. */
static enum status begin_machine(struct slicing *s)
{
    struct sm_pack cursor = {0, 0, 0};
    struct sm_item item;
    struct sm_violation violation = {.invariant = 0};
    static struct sm_keep keep;
    memset(&keep, 0, sizeof keep);
    keep.rooms = s->rooms;
    keep.room_count = s->room_count;
    journal_machine_forget(&s->machine);
    TRY(journal_machine_lay_out(&s->machine, &s->origin.bounds, &s->detail));
    while (sm_pack_next(s->origin.sm, &cursor, &item, s->origin.runs, SM_OUTPUT_RUNS_MAX)) {
        if (!sm_keep_item(&keep, &item)) {
            continue;
        }
        if ((s->redact != NULL && !redact_item(s->redact, &item)) ||
            !sm_restore_item(s->machine.sm, &item)) {
            return status_fail(STATUS_UNSUPPORTED, &s->detail, 0,
                               "the state before the room's first entry cannot be taken apart");
        }
    }
    return sm_restore_done(s->machine.sm, &violation)
               ? STATUS_OK
               : status_fail(STATUS_UNSUPPORTED, &s->detail, 0,
                             "without the other rooms invariant %s falls: %s",
                             sm_invariant_name(violation.invariant), violation.detail);
}

static bool put_item(void *context, uint32_t index, const unsigned char *bytes, size_t size)
{
    struct slicing *s = context;
    return sink_snapshot_item(s->sink, s->before, index, bytes, size) == STATUS_OK;
}

static enum status begin_file(struct slicing *s)
{
    enum status status = sink_segment(s->sink, 0);
    if (status == STATUS_OK) {
        status = journal_machine_pack(&s->machine, s->before, put_item, s, &s->detail);
        if (status != STATUS_AGAIN) {
            return status;
        }
    }
    s->detail = *journal_sink_detail(s->sink);
    return STATUS_JOURNAL_IO;
}

/* Runs all; s->odd says where it first came out otherwise. */
static enum status run(struct slicing *s)
{
    s->odd = 0;
    s->write_count = 0;
    s->next = s->before + 1u;
    TRY(begin_machine(s));
    if (s->sink != NULL) {
        TRY(begin_file(s));
    }
    enum status status = STATUS_OK;
    for (uint64_t n = s->before + 1u; n <= s->last && status == STATUS_OK && s->odd == 0; n++) {
        status = run_entry(s, n);
    }
    journal_read_pause(s->journal);
    return status;
}

/* ---- which rooms
 * ---------------------------------------------------------------------------------------- */

static bool add_room(struct slicing *s, uint64_t room)
{
    if (room == 0 || is_ours(s, room) || s->room_count == CODEC_BUNDLE_ROOMS_MAX) {
        return false;
    }
    s->rooms[s->room_count++] = room;
    return true;
}

/* "... is held by room 7": who a refusal names. */
static uint64_t room_in_text(struct sm_text text)
{
    static const char words[] = " is held by room ";
    uint64_t room = 0;
    const char *at = text.size > 0 ? memmem(text.bytes, text.size, words, sizeof words - 1u) : NULL;
    if (at == NULL) {
        return 0;
    }
    const char *end = text.bytes + text.size;
    for (at += sizeof words - 1u; at < end && *at >= '0' && *at <= '9'; at++) {
        room = room * 10u + (uint64_t)(*at - '0');
    }
    return room;
}

/* The rooms that the odd entry is also about, or that it names. False: there are none. */
static bool add_rooms_of(struct slicing *s, uint64_t number)
{
    struct journal_record record;
    struct codec_entry entry;
    bool added = false;
    codec_arena_reset(&s->arena);
    if (journal_read(s->journal, number, &record) != STATUS_OK ||
        codec_entry_unpack(record.payload, record.payload_size, &s->arena, &entry) != STATUS_OK) {
        return false;
    }
    added = add_room(s, entry.input.room);
    for (uint32_t i = 0; i < entry.transition_count; i++) {
        const struct sm_transition *t = &entry.transitions[i];
        added = add_room(s, t->room) || added;
        added = (t->kind == SM_TR_REFUSED && add_room(s, room_in_text(t->text))) || added;
    }
    return added;
}

/* STATUS_UNSUPPORTED: the room cannot be had without the others; s->detail says why. */
static enum status find_rooms(struct slicing *s)
{
    for (;;) {
        TRY(run(s));
        if (s->odd == 0) {
            return STATUS_OK;
        }
        if (!add_rooms_of(s, s->odd)) {
            return status_fail(STATUS_UNSUPPORTED, &s->detail, 0,
                               "entry %" PRIu64 " comes out otherwise without the other rooms",
                               s->odd);
        }
    }
}

/* The room's first and last entry, its own and those that are also about it. */
static enum status find_span(struct slicing *s)
{
    struct journal_record record;
    uint64_t number = 0;
    uint64_t first = 0;
    enum status status = journal_room_last(s->journal, s->room, &number);
    s->last = status == STATUS_OK ? number : 0;
    while (status == STATUS_OK) {
        first = number;
        TRY(journal_read(s->journal, number, &record));
        status = journal_room_before(s->journal, &record, &number);
    }
    if (status != STATUS_END && status != STATUS_NOT_FOUND) {
        return status;
    }
    number = 0;
    while ((status = journal_room_also(s->journal, s->room, number + 1u, &number)) == STATUS_OK) {
        first = first == 0 || number < first ? number : first;
        s->last = number > s->last ? number : s->last;
    }
    if (status != STATUS_END) {
        return status;
    }
    if (first <= 1u) {
        return status_fail(STATUS_NOT_FOUND, &s->detail, 0,
                           "room %" PRIu64 " is not in the journal", s->room);
    }
    s->before = first - 1u;
    return STATUS_OK;
}

/* ---- the file
 * -------------------------------------------------------------------------------------------- */

/* The start in force, without what it says in words. */
static enum status redact_head(struct slicing *s, struct carry_head *head,
                               unsigned char **out_started)
{
    struct codec_entry entry;
    size_t size = 0;
    redact_name(s->redact, head->head.node, head->node);
    head->head.node.bytes = head->node;
    codec_arena_reset(&s->arena);
    const struct sm_text started = head->head.started;
    head->head.started = (struct sm_text){NULL, 0};
    if (started.size == 0 || codec_entry_unpack((const unsigned char *)started.bytes, started.size,
                                                &s->arena, &entry) != STATUS_OK) {
        return STATUS_OK;
    }
    *out_started = malloc(started.size + 64u);
    if (*out_started == NULL || !redact_entry(s->redact, &entry)) {
        return status_fail(STATUS_NO_MEMORY, &s->detail, 0, "no memory for a slice");
    }
    TRY(codec_entry_pack(&entry, &s->machine.scratch, *out_started, started.size + 64u, &size));
    head->head.started = (struct sm_text){(const char *)*out_started, (uint32_t)size};
    return STATUS_OK;
}

static enum status fill(struct slicing *s, bool whole, struct journal_copied *out_copied)
{
    if (whole) {
        return carry_range(s->journal, s->before + 1u, s->last, s->sink, NULL, out_copied,
                           &s->detail);
    }
    TRY(run(s));
    const enum status status = sink_settle(s->sink);
    if (status != STATUS_OK) {
        s->detail = *journal_sink_detail(s->sink);
    }
    out_copied->entries = s->next - s->before - 1u;
    return status;
}

static enum status write_slice(struct slicing *s, const char *to, bool whole,
                               struct journal_copied *out_copied, uint64_t *out_bytes)
{
    struct carry_head head;
    struct journal_sink sink;
    struct bundle_writer *writer = NULL;
    unsigned char *started = NULL;
    TRY(carry_head_make(s->journal, s->before + 1u, &head, &s->detail));
    enum status status = STATUS_OK;
    head.head.rooms = s->rooms;
    head.head.room_count = whole ? 1u : s->room_count;
    if (!whole) {
        head.head.kind = CODEC_BUNDLE_SLICE;
        head.head.machine_version = SM_MACHINE_VERSION;
        memset(head.head.chain, 0, sizeof head.head.chain);
    }
    if (s->redact != NULL) {
        status = redact_head(s, &head, &started);
    }
    status = status == STATUS_OK ? bundle_create(to, &head.head, &writer, &s->detail) : status;
    if (status == STATUS_OK) {
        status = journal_sink_open(&sink, NULL, writer, &head.head, &s->detail);
        if (status == STATUS_OK) {
            s->sink = &sink;
            status = fill(s, whole, out_copied);
            journal_sink_close(&sink);
            s->sink = NULL;
        }
        if (status == STATUS_OK) {
            status = bundle_finish(writer, out_bytes, &s->detail);
        } else {
            bundle_abandon(writer);
        }
    }
    free(started);
    carry_head_free(&head);
    return status;
}

/* What was written must do what it is for. */
static enum status prove(struct slicing *s, const char *path)
{
    struct journal *journal = NULL;
    struct journal_replayed replayed;
    const struct journal_options options = {.path = path, .read_only = true};
    const struct journal_replay all = {.check = true};
    TRY(journal_open(&options, &journal, &s->detail));
    const enum status status = journal_replay(journal, &s->machine, &all, &replayed, &s->detail);
    journal_close(journal);
    TRY(status);
    return replayed.violation.invariant == 0
               ? STATUS_OK
               : status_fail(STATUS_JOURNAL_DIVERGED, &s->detail, 0,
                             "in the slice invariant %s falls at entry %" PRIu64,
                             sm_invariant_name(replayed.violation.invariant), replayed.last);
}

/* ---- the command
 * ----------------------------------------------------------------------------------------- */

static enum status slicing_open(struct slicing *s, bool redacting)
{
    void *memory = malloc(ARENA_BYTES);
    s->packed = malloc(ENTRY_BYTES_MAX);
    s->redact = redacting ? redact_open() : NULL;
    codec_arena_init(&s->arena, memory, ARENA_BYTES);
    if (memory == NULL || s->packed == NULL || (redacting && s->redact == NULL)) {
        return status_fail(STATUS_NO_MEMORY, &s->detail, 0, "no memory for a slice");
    }
    TRY(journal_machine_open(&s->machine, &s->detail));
    enum status status = find_span(s);
    if (status != STATUS_OK) {
        s->detail = s->detail.text[0] != '\0' ? s->detail : *journal_detail(s->journal);
        return status;
    }
    return carry_machine_at(s->journal, s->before, &s->origin, &s->detail);
}

static void slicing_close(struct slicing *s)
{
    journal_machine_close(&s->machine);
    journal_machine_close(&s->origin);
    redact_close(s->redact);
    free(s->arena.memory);
    free(s->packed);
    free(s->writes);
    journal_close(s->journal);
}

static void say_sliced(const struct cli_values *values, const struct slicing *s, const char *to,
                       const char *whole, const struct journal_copied *copied, uint64_t bytes)
{
    char size[32];
    carry_bytes_text(bytes, size, sizeof size);
    if (cli_given(values, "json")) {
        json_t *rooms = json_array();
        for (uint32_t i = 0; i < s->room_count; i++) {
            char room[24];
            (void)snprintf(room, sizeof room, "%" PRIu64, s->rooms[i]);
            json_array_append_new(rooms, json_string(room));
        }
        cli_print_json(json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:b, s:o}", "bundle",
                                 cli_json_text(to), "rooms", rooms, "first",
                                 (json_int_t)(s->before + 1u), "last", (json_int_t)s->last,
                                 "entries", (json_int_t)copied->entries, "bytes", (json_int_t)bytes,
                                 "whole_range", whole[0] != '\0', "because", cli_json_text(whole)));
        return;
    }
    printf("%s: room %" PRIu64 ", %" PRIu64 " of entries %" PRIu64 " to %" PRIu64 ", %s\n", to,
           s->room, copied->entries, s->before + 1u, s->last, size);
    if (whole[0] != '\0') {
        printf("with all other rooms in it, since %s\n", whole);
    } else if (s->room_count > 1u) {
        printf("with");
        for (uint32_t i = 1; i < s->room_count; i++) {
            printf("%s room %" PRIu64, i > 1u ? "," : "", s->rooms[i]);
        }
        printf(", which had a hand in it\n");
    }
}

static enum status slice(struct slicing *s, const struct cli_values *values, const char *to)
{
    struct journal_copied copied = {0};
    uint64_t bytes = 0;
    char because[STATUS_DETAIL_BYTES] = "";
    enum status status = slicing_open(s, cli_given(values, "redact"));
    status = status == STATUS_OK ? find_rooms(s) : status;
    if (status == STATUS_UNSUPPORTED) {
        (void)snprintf(because, sizeof because, "%s", s->detail.text);
        s->room_count = 1;
        if (s->redact != NULL) {
            return status_fail(STATUS_UNSUPPORTED, &s->detail, 0,
                               "%s; a whole range cannot be redacted", because);
        }
        status = STATUS_OK;
    }
    TRY(status);
    TRY(write_slice(s, to, because[0] != '\0', &copied, &bytes));
    if (strcmp(to, "-") != 0) {
        TRY(prove(s, to));
        say_sliced(values, s, to, because, &copied, bytes);
    }
    return STATUS_OK;
}

int cmd_slice(const struct cli_values *values)
{
    static struct slicing s;
    int code = EXIT_WELL;
    memset(&s, 0, sizeof s);
    const char *to = cli_text(values, "output", NULL);
    s.room = cli_number(values, "room", 0);
    if (to == NULL || s.room == 0) {
        return cli_fail(EXIT_WRONG_USAGE, "slice: name the room with --room, and the file with -o");
    }
    s.rooms[0] = s.room;
    s.room_count = 1;
    s.journal = cli_command_journal(values, 0, &code);
    if (s.journal == NULL) {
        return code;
    }
    const enum status status = slice(&s, values, to);
    if (status != STATUS_OK) {
        code = cli_fail(cli_code(status), "%s", s.detail.text);
    }
    slicing_close(&s);
    return code;
}
