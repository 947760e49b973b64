/* SPDX-License-Identifier: Apache-2.0 */
/* A machine with its memory: laying out, packing, restoring. */
#include "journal/journal_recover.h"
#include "journal_private.h"

#include "statemachine/sm_image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Unpacking an entry of JOURNAL_PAYLOAD_MAX needs a few times its size; pages come as they are
 * used. */
#define ARENA_BYTES ((size_t)96 << 20)
#define ITEM_BYTES_MAX ((size_t)8 << 20)

void *journal_take_pages(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void journal_give_pages(void *pages, size_t bytes)
{
    if (pages != NULL) {
        (void)munmap(pages, bytes);
    }
}

enum status journal_machine_open(struct journal_machine *machine, struct status_detail *out_detail)
{
    memset(machine, 0, sizeof *machine);
    machine->output = journal_take_pages(sizeof *machine->output);
    machine->runs = journal_take_pages(SM_OUTPUT_RUNS_MAX * sizeof *machine->runs);
    void *arena = journal_take_pages(ARENA_BYTES);
    void *scratch = journal_take_pages(ARENA_BYTES);
    codec_arena_init(&machine->arena, arena, ARENA_BYTES);
    codec_arena_init(&machine->scratch, scratch, ARENA_BYTES);
    if (machine->output == NULL || machine->runs == NULL || arena == NULL || scratch == NULL) {
        journal_machine_close(machine);
        return status_fail(STATUS_NO_MEMORY, out_detail, errno, "no memory to run a machine");
    }
    return STATUS_OK;
}

void journal_machine_forget(struct journal_machine *machine)
{
    journal_give_pages(machine->sm, machine->bytes);
    machine->sm = NULL;
    machine->bytes = 0;
    memset(&machine->bounds, 0, sizeof machine->bounds);
}

void journal_machine_renew(struct journal_machine *machine)
{
    if (machine->sm != NULL) {
        journal_give_pages(machine->spare, machine->spare_bytes);
        machine->spare = machine->sm;
        machine->spare_bytes = machine->bytes;
    }
    machine->sm = NULL;
    machine->bytes = 0;
    memset(&machine->bounds, 0, sizeof machine->bounds);
}

void journal_machine_close(struct journal_machine *machine)
{
    journal_give_pages(machine->sm, machine->bytes);
    journal_give_pages(machine->spare, machine->spare_bytes);
    journal_give_pages(machine->output, sizeof *machine->output);
    journal_give_pages(machine->runs, SM_OUTPUT_RUNS_MAX * sizeof *machine->runs);
    journal_give_pages(machine->arena.memory, ARENA_BYTES);
    journal_give_pages(machine->scratch.memory, ARENA_BYTES);
    memset(machine, 0, sizeof *machine);
}

static enum status fresh(struct journal_machine *machine, const struct sm_bounds *bounds,
                         struct sm **out_sm, size_t *out_bytes, struct status_detail *out_detail)
{
    const size_t bytes = sm_memory_bytes(bounds);
    if (bytes == 0) {
        return status_fail(STATUS_INVALID, out_detail, 0, "a bound of the machine is out of range");
    }
    if (machine->spare != NULL && machine->spare_bytes >= bytes) {
        *out_sm = sm_renew(machine->spare, bounds);
        *out_bytes = machine->spare_bytes;
        machine->spare = NULL;
        machine->spare_bytes = 0;
        return STATUS_OK;
    }
    void *memory = journal_take_pages(bytes);
    if (memory == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, errno,
                           "no memory for the machine's tables (%zu MiB); lower rooms_max or "
                           "tombstones_max",
                           bytes >> 20);
    }
    *out_sm = sm_init(memory, bounds);
    *out_bytes = bytes;
    return STATUS_OK;
}

static enum status move_state(struct journal_machine *machine, struct sm *to,
                              struct status_detail *out_detail)
{
    struct sm_pack cursor = {0, 0, 0};
    struct sm_item item;
    struct sm_violation violation;
    while (sm_pack_next(machine->sm, &cursor, &item, machine->runs, SM_OUTPUT_RUNS_MAX)) {
        if (!sm_restore_item(to, &item)) {
            return status_fail(STATUS_TOO_LARGE, out_detail, 0,
                               "the rooms of the journal do not fit the configured bounds; raise "
                               "rooms_max and tombstones_max");
        }
    }
    if (!sm_restore_done(to, &violation)) {
        return status_fail(STATUS_JOURNAL_DAMAGED, out_detail, 0,
                           "the restored state breaks invariant %s: %s",
                           sm_invariant_name(violation.invariant), violation.detail);
    }
    return STATUS_OK;
}

enum status journal_machine_lay_out(struct journal_machine *machine, const struct sm_bounds *bounds,
                                    struct status_detail *out_detail)
{
    struct sm *sm = NULL;
    size_t bytes = 0;
    if (machine->sm != NULL && memcmp(bounds, &machine->bounds, sizeof *bounds) == 0) {
        return STATUS_OK;
    }
    TRY(fresh(machine, bounds, &sm, &bytes, out_detail));
    if (machine->sm != NULL) {
        const enum status status = move_state(machine, sm, out_detail);
        if (status != STATUS_OK) {
            journal_give_pages(sm, bytes);
            return status;
        }
        journal_give_pages(machine->sm, machine->bytes);
    }
    machine->sm = sm;
    machine->bytes = bytes;
    machine->bounds = *bounds;
    return STATUS_OK;
}

enum status journal_machine_pack(struct journal_machine *machine, uint64_t entry,
                                 journal_item_fn put, void *context,
                                 struct status_detail *out_detail)
{
    const struct codec_snapshot head = {entry, sm_now(machine->sm), sm_digest(machine->sm),
                                        SM_MACHINE_VERSION, machine->bounds};
    struct sm_pack cursor = {0, 0, 0};
    struct sm_item item;
    size_t size = 0;
    uint32_t index = 0;
    unsigned char *buffer = malloc(ITEM_BYTES_MAX);
    if (buffer == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a snapshot");
    }
    enum status status =
        codec_snapshot_pack(&head, &machine->scratch, buffer, ITEM_BYTES_MAX, &size);
    while (status == STATUS_OK) {
        if (!put(context, index, buffer, size)) {
            status = STATUS_AGAIN;
            break;
        }
        if (!sm_pack_next(machine->sm, &cursor, &item, machine->runs, SM_OUTPUT_RUNS_MAX)) {
            break;
        }
        index++;
        status = codec_item_pack(&item, &machine->scratch, buffer, ITEM_BYTES_MAX, &size);
    }
    free(buffer);
    return status == STATUS_OK
               ? STATUS_OK
               : status_fail(status, out_detail, 0, "the snapshot was not written: %s",
                             status_text(status));
}

struct putting {
    struct journal *journal;
    uint64_t entry;
};

static bool put_item(void *context, uint32_t index, const unsigned char *bytes, size_t size)
{
    const struct putting *putting = context;
    return journal_snapshot_put(putting->journal, putting->entry, index, bytes, size) == STATUS_OK;
}

/* All items into the open batch. */
static enum status put_all(struct journal *journal, struct journal_machine *machine,
                           struct status_detail *out_detail)
{
    struct journal_identity identity;
    TRY(journal_identity(journal, &identity));
    struct putting putting = {journal, identity.last};
    const enum status status =
        journal_machine_pack(machine, identity.last, put_item, &putting, out_detail);
    if (status == STATUS_AGAIN) {
        *out_detail = *journal_detail(journal);
        return STATUS_JOURNAL_IO;
    }
    return status;
}

enum status journal_machine_begin_segment(struct journal *journal, struct journal_machine *machine,
                                          uint64_t now_ns, struct status_detail *out_detail)
{
    enum status status = journal_segment_begin(journal, now_ns);
    if (status == STATUS_OK) {
        TRY(put_all(journal, machine, out_detail));
        status = journal_segment_end(journal);
    }
    if (status != STATUS_OK) {
        *out_detail = *journal_detail(journal);
    }
    return status;
}

enum status journal_machine_snapshot(struct journal *journal, struct journal_machine *machine,
                                     struct status_detail *out_detail)
{
    const enum status status = put_all(journal, machine, out_detail);
    if (status != STATUS_OK) {
        journal_abort(journal);
        return status;
    }
    const enum status committed = journal_commit(journal);
    if (committed != STATUS_OK) {
        *out_detail = *journal_detail(journal);
    }
    return committed;
}

uint32_t journal_other_rooms(const struct sm_transition *transitions, uint32_t count, uint64_t own,
                             uint64_t *out_rooms)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t room = transitions[i].room;
        if (room != 0 && room != own && (found == 0 || out_rooms[found - 1u] != room)) {
            out_rooms[found++] = room;
        }
    }
    return found;
}
