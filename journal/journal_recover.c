/* SPDX-License-Identifier: Apache-2.0 */
/* Replay with comparison. */
#include "journal/journal_recover.h"

#include "statemachine/sm_image.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- comparing
 * ------------------------------------------------------------------------------------------ */

static bool transitions_same(const struct sm_transition *a, const struct sm_transition *b)
{
    return a->kind == b->kind && a->side == b->side && a->room == b->room &&
           a->generation == b->generation && a->rank == b->rank && a->index == b->index &&
           a->a == b->a && a->b == b->b && a->text.size == b->text.size &&
           (a->text.size == 0 || memcmp(a->text.bytes, b->text.bytes, a->text.size) == 0);
}

static void diverged(struct journal_divergence *out, uint64_t number, const char *field)
{
    memset(out, 0, sizeof *out);
    out->number = number;
    (void)snprintf(out->field, sizeof out->field, "%s", field);
}

static bool compare(uint64_t number, const struct codec_entry *entry,
                    const struct sm_output *output, struct journal_divergence *out)
{
    const uint32_t most = entry->transition_count > output->transition_count
                              ? entry->transition_count
                              : output->transition_count;
    char field[64];
    for (uint32_t i = 0; i < most; i++) {
        const bool recorded = i < entry->transition_count;
        const bool replayed = i < output->transition_count;
        if (recorded && replayed &&
            transitions_same(&entry->transitions[i], &output->transitions[i])) {
            continue;
        }
        (void)snprintf(field, sizeof field, "transition %" PRIu32 " of %" PRIu32, i + 1u, most);
        diverged(out, number, field);
        if (recorded) {
            (void)sm_describe_transition(&entry->transitions[i], out->recorded,
                                         sizeof out->recorded);
        }
        if (replayed) {
            (void)sm_describe_transition(&output->transitions[i], out->replayed,
                                         sizeof out->replayed);
        }
        return false;
    }
    const uint64_t effects = codec_effects_digest(output);
    if (entry->digest != output->digest || entry->effects != effects) {
        const bool state = entry->digest != output->digest;
        diverged(out, number, state ? "digest of the state" : "digest of the effects");
        (void)snprintf(out->recorded, sizeof out->recorded, "%016" PRIx64,
                       state ? entry->digest : entry->effects);
        (void)snprintf(out->replayed, sizeof out->replayed, "%016" PRIx64,
                       state ? output->digest : effects);
        return false;
    }
    return true;
}

/* ---- snapshots
 * ------------------------------------------------------------------------------------------- */

static enum status restore_items(struct journal *journal, struct journal_machine *machine,
                                 uint64_t entry)
{
    const unsigned char *bytes = NULL;
    size_t size = 0;
    struct sm_item item;
    for (uint32_t index = 1;; index++) {
        const enum status status = journal_snapshot_get(journal, entry, index, &bytes, &size);
        if (status == STATUS_END) {
            return STATUS_OK;
        }
        TRY(status);
        codec_arena_reset(&machine->arena);
        TRY(codec_item_unpack(bytes, size, &machine->arena, &item));
        if (!sm_restore_item(machine->sm, &item)) {
            return STATUS_JOURNAL_DAMAGED;
        }
    }
}

static enum status snapshot_head(struct journal *journal, struct journal_machine *machine,
                                 uint64_t entry, struct codec_snapshot *out_head)
{
    const unsigned char *bytes = NULL;
    size_t size = 0;
    codec_arena_reset(&machine->arena);
    TRY(journal_snapshot_get(journal, entry, 0, &bytes, &size));
    TRY(codec_snapshot_unpack(bytes, size, &machine->arena, out_head));
    return out_head->entry == entry ? STATUS_OK : STATUS_JOURNAL_DAMAGED;
}

static enum status restore_snapshot(struct journal *journal, struct journal_machine *machine,
                                    const struct codec_snapshot *head)
{
    struct sm_violation violation;
    struct status_detail detail;
    journal_machine_forget(machine);
    TRY(journal_machine_lay_out(machine, &head->bounds, &detail));
    TRY(restore_items(journal, machine, head->entry));
    /* Another version may digest the same state to another number; this one may not. */
    return sm_restore_done(machine->sm, &violation) &&
                   (head->machine_version != SM_MACHINE_VERSION ||
                    sm_digest(machine->sm) == head->digest)
               ? STATUS_OK
               : STATUS_JOURNAL_DAMAGED;
}

enum status journal_snapshot_check(struct journal *journal, struct journal_machine *machine,
                                   uint64_t entry)
{
    struct codec_snapshot head;
    enum status status = snapshot_head(journal, machine, entry, &head);
    if (status == STATUS_OK && head.machine_version == SM_MACHINE_VERSION) {
        status = restore_snapshot(journal, machine, &head);
    }
    journal_machine_forget(machine);
    return status;
}

/* A disk that cannot be read now says nothing about what is on it. */
static bool is_unread(enum status status)
{
    return status_class(status) == STATUS_CLASS_STORE;
}

/*
 * The newest snapshot not after `until` that this machine can go on from; *out_entry 0: none. One
 * that does not restore is no loss: the one before it, or replay from the start, will do. One of an
 * older version does only when nothing comes after it: entries of that version are not ours to run.
 */
static enum status start_from_snapshot(struct journal *journal, struct journal_machine *machine,
                                       uint64_t until, bool upgrade, uint64_t *out_entry,
                                       uint32_t *out_version)
{
    uint64_t entry = until;
    enum status status = STATUS_OK;
    *out_entry = 0;
    while (entry > 0 && status == STATUS_OK) {
        struct codec_snapshot head;
        status = journal_snapshot_newest(journal, entry, &entry);
        if (status != STATUS_OK) {
            break;
        }
        enum status read = snapshot_head(journal, machine, entry, &head);
        const bool older = read == STATUS_OK && upgrade && entry == until &&
                           head.machine_version < SM_MACHINE_VERSION;
        if (read == STATUS_OK && (older || head.machine_version == SM_MACHINE_VERSION)) {
            read = restore_snapshot(journal, machine, &head);
            if (read == STATUS_OK) {
                *out_version = head.machine_version;
                *out_entry = entry;
                return STATUS_OK;
            }
        }
        status = is_unread(read) ? read : STATUS_OK;
        entry--;
    }
    journal_machine_forget(machine);
    return is_unread(status) ? status : STATUS_OK;
}

/* Machine version of a segment's entries; 0: it cannot be told. */
static uint32_t version_of(struct journal *journal, struct journal_machine *machine, uint64_t first)
{
    struct codec_snapshot head;
    struct journal_record record;
    struct codec_entry entry;
    if (first > 1u) {
        return snapshot_head(journal, machine, first - 1u, &head) == STATUS_OK
                   ? head.machine_version
                   : 0;
    }
    codec_arena_reset(&machine->arena);
    return journal_read(journal, first, &record) == STATUS_OK &&
                   codec_entry_unpack(record.payload, record.payload_size, &machine->arena,
                                      &entry) == STATUS_OK
               ? entry.machine_version
               : 0;
}

/*
 * The first entry of the first segment that this machine's version wrote, when the journal begins
 * with another's; else the journal's first.
 */
static uint64_t first_of_ours(struct journal *journal, struct journal_machine *machine,
                              uint64_t first, uint32_t *out_skipped)
{
    const uint32_t version = version_of(journal, machine, first);
    struct journal_segment segment;
    if (version == 0 || version == SM_MACHINE_VERSION) {
        return first;
    }
    for (uint32_t i = 0; journal_segment_at(journal, i, &segment) == STATUS_OK; i++) {
        if (segment.first > first &&
            version_of(journal, machine, segment.first) == SM_MACHINE_VERSION) {
            *out_skipped = version;
            return segment.first;
        }
    }
    return first;
}

/* ---- running
 * -----------------------------------------------------------------------------------------------
 */

static enum status before_step(struct journal_machine *machine,
                               const struct journal_replay *options, struct codec_entry *entry,
                               struct status_detail *out_detail)
{
    if (entry->input.kind == SM_IN_NODE_STARTED) {
        if (entry->machine_version != SM_MACHINE_VERSION && !options->no_compare) {
            return status_fail(
                STATUS_JOURNAL_VERSION, out_detail, 0,
                "the journal was written by machine version %" PRIu32
                ", this program has version %u, and would not do the same: replay it "
                "with the program that wrote it; to go on from it with this one, "
                "start the other once more and stop it gracefully",
                entry->machine_version, SM_MACHINE_VERSION);
        }
        TRY(journal_machine_lay_out(machine, &entry->bounds, out_detail));
        entry->input.u.node_started.policy.protections_off |= options->protections_off;
    }
    if (machine->sm == NULL) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "the journal does not begin with node_started");
    }
    if (entry->input.time_ns < sm_now(machine->sm)) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "the time of an entry goes back (monotone_time)");
    }
    return STATUS_OK;
}

static bool check_invariants(const struct journal_machine *machine, struct sm_violation *out)
{
    return sm_check_step(machine->sm, machine->output, out) && sm_check_strictly(machine->sm, out);
}

static enum status run_entry(struct journal *journal, struct journal_machine *machine,
                             const struct journal_replay *options, uint64_t number,
                             struct journal_replayed *out, bool *out_go_on,
                             struct status_detail *out_detail)
{
    struct journal_record record;
    struct codec_entry entry;
    enum status status = journal_read(journal, number, &record);
    if (status != STATUS_OK) {
        *out_detail = *journal_detail(journal);
        return status;
    }
    codec_arena_reset(&machine->arena);
    status = codec_entry_unpack(record.payload, record.payload_size, &machine->arena, &entry);
    if (status != STATUS_OK) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "entry %" PRIu64 " does not parse: %s", number, status_text(status));
    }
    TRY(before_step(machine, options, &entry, out_detail));
    sm_step(machine->sm, &entry.input, machine->output);
    out->entries++;
    out->last = number;
    out->last_time_ns = entry.input.time_ns;
    *out_go_on =
        options->observer == NULL || options->observer(options->context, number, &entry, machine);
    if (!options->no_compare && !compare(number, &entry, machine->output, &out->divergence)) {
        return status_fail(STATUS_JOURNAL_DIVERGED, out_detail, 0, "entry %" PRIu64 ": %s differs",
                           number, out->divergence.field);
    }
    if (options->check && !check_invariants(machine, &out->violation)) {
        *out_go_on = false;
    }
    return STATUS_OK;
}

enum status journal_replay_one(struct journal *journal, struct journal_machine *machine,
                               const struct journal_replay *options, uint64_t number,
                               struct journal_replayed *out, struct status_detail *out_detail)
{
    bool go_on = true;
    memset(out, 0, sizeof *out);
    const enum status status =
        run_entry(journal, machine, options, number, out, &go_on, out_detail);
    journal_read_pause(journal);
    return status;
}

/* Where to begin: at the first entry, or after a snapshot. */
static enum status find_start(struct journal *journal, struct journal_machine *machine,
                              const struct journal_replay *options, uint64_t until,
                              uint64_t *number, struct journal_replayed *out,
                              struct status_detail *out_detail)
{
    if (!options->from_snapshot) {
        *number = first_of_ours(journal, machine, *number, &out->skipped);
    }
    if (!options->from_snapshot && *number <= 1u) {
        return STATUS_OK;
    }
    /* A journal without its beginning starts where its oldest segment does. */
    const uint64_t entry = options->from_snapshot ? until : *number - 1u;
    const enum status status = start_from_snapshot(journal, machine, entry, options->upgrade,
                                                   &out->started_at, &out->version);
    if (status != STATUS_OK) {
        *out_detail = *journal_detail(journal);
        return status;
    }
    if (out->started_at == 0 && *number > 1u) {
        return status_fail(STATUS_JOURNAL_VERSION, out_detail, 0,
                           "the journal begins at entry %" PRIu64
                           " and has no snapshot that machine version %u can start from: replay it "
                           "with the program that wrote it; to go on from it with this one, start "
                           "the other once more and stop it gracefully",
                           *number, SM_MACHINE_VERSION);
    }
    if (out->started_at != 0) {
        *number = out->started_at + 1u;
        out->last = out->started_at;
        out->last_time_ns = sm_now(machine->sm);
    }
    return STATUS_OK;
}

enum status journal_replay(struct journal *journal, struct journal_machine *machine,
                           const struct journal_replay *options, struct journal_replayed *out,
                           struct status_detail *out_detail)
{
    struct journal_identity identity;
    memset(out, 0, sizeof *out);
    TRY(journal_identity(journal, &identity));
    uint64_t until =
        options->until == 0 || options->until > identity.last ? identity.last : options->until;
    uint64_t number = identity.first == 0 ? 1u : identity.first;
    if (until + 1u < number) {
        return status_fail(STATUS_NOT_FOUND, out_detail, 0,
                           "the journal begins at entry %" PRIu64
                           ": what was before has been removed (journal.keep_bytes, "
                           "journal.keep_hours)",
                           number);
    }
    TRY(find_start(journal, machine, options, until, &number, out, out_detail));
    bool go_on = true;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && go_on && number <= until) {
        status = run_entry(journal, machine, options, number, out, &go_on, out_detail);
        number++;
    }
    journal_read_pause(journal);
    return status;
}
