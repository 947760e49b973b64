/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes about verified pages, as a peer may send them: what is read is written back byte for byte,
 * and what a question names, planned for a pool of ours, lies inside of it.
 */
#include "fabric/check.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 20000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds) {
        abort();
    }
}

static void plan_it(const struct check_note *note)
{
    static const struct sm_geometry geometry = {4, 2, 4, 16, 2, 1, 0, 0, 0};
    static struct sm_run runs[2][CHECK_SPANS_MAX];
    static struct plan_span spans[2u * CHECK_SPANS_MAX];
    struct pool_layout layout;
    struct status_detail detail;
    struct plan plan;
    struct plan_piece piece;
    must(pool_layout_make(&geometry, 2, 64, 4, 100, &layout, &detail) == STATUS_OK);
    for (uint32_t i = 0; i < note->span_count; i++) {
        runs[0][i] = (struct sm_run){note->spans[i].from, note->spans[i].pages};
        runs[1][i] = (struct sm_run){note->spans[i].to, note->spans[i].pages};
    }
    const struct plan_side from = {
        &layout, note->from_rank, {runs[0], note->span_count}, note->slot_from};
    const struct plan_side to = {
        &layout, note->to_rank, {runs[1], note->span_count}, note->slot_to};
    if (note->piece_bytes == 0 ||
        plan_begin(&plan, &from, &to, note->piece_bytes, spans, &detail) != STATUS_OK) {
        return;
    }
    for (uint32_t i = 0; i < PIECES_MAX && plan_next(&plan, &piece); i++) {
        must(piece.bytes > 0 && piece.to <= layout.bytes && piece.bytes <= layout.bytes - piece.to);
        must(piece.span <= plan.span_count && plan.span_count <= note->span_count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct check_note note;
    static unsigned char bytes[CHECK_NOTE_BYTES];
    if (!check_read(data, size, &note)) {
        return 0;
    }
    must(check_write(&note, bytes) == size && memcmp(bytes, data, size) == 0);
    if (note.kind == CHECK_QUESTION) {
        plan_it(&note);
    }
    return 0;
}
