/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that are verified: when all bytes of a write are at the destination, the writer sends the
 * digests of what it has written there over the same connection, and the destination reads its pool
 * and answers. Only then is the write reported. Every connection can answer; who asks is the
 * writer, when either side wants it.
 */
#include "data_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one look may read of a pool: other connections wait meanwhile. */
#define HASH_BYTES_MAX (1u << 20)
#define PIECE_BYTES_MAX (64u << 20)

uint32_t data_checks_of(const struct writing *writing)
{
    return writing->digests == NULL ? 0
                                    : writing->plan.span_count + (writing->slot_bytes > 0 ? 1u : 0);
}

/* ---- notes
 * ---------------------------------------------------------------------------------------------- */

static void post_receive(struct data *data, struct link *link, struct note *note)
{
    void *descriptor = note->local != NULL ? fi_mr_desc(note->local) : NULL;
    note->operation.kind = OPERATION_RECEIVE;
    note->operation.note = note;
    const ssize_t code = fi_recv(link->endpoint, note->bytes, sizeof note->bytes, descriptor,
                                 FI_ADDR_UNSPEC, &note->operation.context);
    note->to_send = code == -FI_EAGAIN; /* of a note that comes in: to be posted */
    note->in_use = code == 0;
    if (code != 0 && code != -FI_EAGAIN) {
        data_link_break(data, link, fi_strerror((int)-code));
    }
}

static void send_note(struct data *data, struct link *link, struct note *note)
{
    void *descriptor = note->local != NULL ? fi_mr_desc(note->local) : NULL;
    struct iovec bytes = {note->bytes, note->size};
    note->operation.kind = OPERATION_SEND;
    note->operation.note = note;
    const struct fi_msg message = {.msg_iov = &bytes,
                                   .desc = &descriptor,
                                   .iov_count = 1,
                                   .addr = link->remote,
                                   .context = &note->operation.context};
    const ssize_t code = fi_sendmsg(link->endpoint, &message, FI_COMPLETION);
    note->to_send = code == -FI_EAGAIN;
    note->in_use = code == 0;
    if (code != 0 && code != -FI_EAGAIN) {
        data_link_break(data, link, fi_strerror((int)-code));
    }
}

void data_check_sent(struct note *note)
{
    note->in_use = false;
}

static enum status open_note(struct data *data, struct note *note, uint64_t access,
                             struct status_detail *out_detail)
{
    return data_register_local(data, note->bytes, sizeof note->bytes, access, &note->local,
                               out_detail);
}

enum status data_checks_open(struct data *data, struct link *link, struct status_detail *out_detail)
{
    link->checks = calloc(1, sizeof *link->checks);
    if (link->checks == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a connection");
    }
    for (uint32_t i = 0; i < QUESTIONS_MAX; i++) {
        struct answering *answering = &link->checks->answers[i];
        TRY(open_note(data, &link->checks->questions[i].note, FI_SEND, out_detail));
        TRY(open_note(data, &answering->out, FI_SEND, out_detail));
    }
    /* Answers come in here as well. */
    for (uint32_t i = 0; i < QUESTIONS_MAX && !link->broken; i++) {
        struct answering *answering = &link->checks->answers[i];
        TRY(open_note(data, &answering->in, FI_RECV, out_detail));
        post_receive(data, link, &answering->in);
    }
    return link->broken ? status_fail(STATUS_FABRIC_PEER, out_detail, 0,
                                      "nothing can be received: %s", link->why)
                        : STATUS_OK;
}

static void close_note(struct note *note)
{
    if (note->local != NULL) {
        (void)fi_close(&note->local->fid);
    }
}

void data_checks_close(struct data *data, struct link *link)
{
    for (uint32_t i = 0; link->checks != NULL && i < QUESTIONS_MAX; i++) {
        struct answering *answering = &link->checks->answers[i];
        if (answering->hashing) {
            data->pools[answering->rank].reading--;
        }
        if (link->checks->questions[i].writing != NULL) {
            link->checks->questions[i].writing->asked = false;
        }
        close_note(&link->checks->questions[i].note);
        close_note(&answering->in);
        close_note(&answering->out);
    }
    free(link->checks);
    link->checks = NULL;
}

/* ---- asking
 * --------------------------------------------------------------------------------------------- */

void data_check_queue(struct link *link, struct writing *writing)
{
    struct checks *checks = link->checks;
    writing->to_ask = true;
    writing->next_to_ask = NULL;
    if (checks->last_to_ask != NULL) {
        checks->last_to_ask->next_to_ask = writing;
    } else {
        checks->first_to_ask = writing;
    }
    checks->last_to_ask = writing;
}

static struct question *free_question(struct checks *checks)
{
    for (uint32_t i = 0; i < QUESTIONS_MAX; i++) {
        struct question *question = &checks->questions[i];
        if (question->writing == NULL && !question->note.in_use && !question->note.to_send) {
            return question;
        }
    }
    return NULL;
}

static void ask(struct data *data, struct link *link, struct writing *writing,
                struct question *question)
{
    struct check_note note;
    const uint32_t spans = writing->plan.span_count;
    const uint32_t left = spans - (writing->checked < spans ? writing->checked : spans);
    note.kind = CHECK_QUESTION;
    note.id = ++link->checks->last_id;
    note.from_rank = writing->from_rank;
    note.to_rank = writing->to_rank;
    note.piece_bytes = data->options.piece_bytes;
    note.span_count = left < CHECK_SPANS_MAX ? left : CHECK_SPANS_MAX;
    memcpy(note.spans, writing->spans + writing->checked, note.span_count * sizeof note.spans[0]);
    memcpy(note.digests, writing->digests + writing->checked,
           note.span_count * sizeof note.digests[0]);
    const bool slot = writing->slot_bytes > 0 && left == note.span_count;
    note.slot_from = slot ? writing->slot_from : SM_AUX_NONE;
    note.slot_to = slot ? writing->slot_to : SM_AUX_NONE;
    note.slot_digest = slot ? writing->digests[spans] : 0;
    question->writing = writing;
    question->id = note.id;
    question->count = note.span_count + (slot ? 1u : 0u);
    question->note.size = check_write(&note, question->note.bytes);
    writing->asked = true;
    send_note(data, link, &question->note);
}

static void ask_next(struct data *data, struct link *link)
{
    struct checks *checks = link->checks;
    while (!link->broken && checks->first_to_ask != NULL) {
        struct question *question = free_question(checks);
        if (question == NULL) {
            return;
        }
        struct writing *writing = checks->first_to_ask;
        checks->first_to_ask = writing->next_to_ask;
        checks->last_to_ask = checks->first_to_ask == NULL ? NULL : checks->last_to_ask;
        writing->to_ask = false;
        if (writing->code != 0) {
            data_settle(data, link, writing); /* nobody wants to know any more */
        } else {
            ask(data, link, writing, question);
        }
    }
}

static void fail_for_difference(struct data *data, struct writing *writing, uint32_t at)
{
    char text[DATA_TEXT_BYTES];
    const uint32_t span = writing->checked + at;
    data->counters.mismatches++;
    if (span < writing->plan.span_count) {
        const struct plan_span *s = &writing->spans[span];
        (void)snprintf(text, sizeof text,
                       "verify_pages: pages %u to %u at the destination are not what was sent",
                       s->to, s->to + s->pages - 1u);
    } else {
        (void)snprintf(text, sizeof text,
                       "verify_pages: metadata slot %u at the destination is not what was sent",
                       writing->slot_to);
    }
    data_fail(writing, -EBADMSG, text);
}

static void on_answer(struct data *data, struct link *link, const struct check_note *note)
{
    struct question *question = NULL;
    for (uint32_t i = 0; i < QUESTIONS_MAX && question == NULL; i++) {
        struct question *candidate = &link->checks->questions[i];
        question = candidate->writing != NULL && candidate->id == note->id ? candidate : NULL;
    }
    if (question == NULL) {
        return; /* of nothing that we have asked */
    }
    struct writing *writing = question->writing;
    question->writing = NULL;
    writing->asked = false;
    if (note->verdict == CHECK_SAME) {
        writing->checked += question->count;
    } else if (note->verdict == CHECK_DIFFERS) {
        fail_for_difference(data, writing, note->at < question->count ? note->at : 0);
    } else {
        data_fail(writing, -EBADMSG,
                  "verify_pages: the destination has no such pool any more, or cannot read it");
    }
    data_settle(data, link, writing);
}

/* ---- answering
 * ------------------------------------------------------------------------------------------- */

static void answer(struct data *data, struct link *link, struct answering *answering,
                   enum check_verdict verdict, uint32_t at)
{
    struct check_note note;
    note.kind = CHECK_ANSWER;
    note.id = answering->question.id;
    note.verdict = verdict;
    note.at = at;
    note.span_count = 0;
    if (answering->hashing) {
        answering->hashing = false;
        link->checks->hashing--;
        data->pools[answering->rank].reading--;
    }
    answering->out.size = check_write(&note, answering->out.bytes);
    send_note(data, link, &answering->out);
    if (!link->broken) {
        post_receive(data, link, &answering->in);
    }
}

/* The plan that the writer had, from what both sides know; false: it makes no sense here. */
static bool plan_question(const struct data *data, const struct link *link,
                          struct answering *answering)
{
    const struct check_note *q = &answering->question;
    struct status_detail detail;
    if (q->from_rank >= SM_RANKS_MAX || q->to_rank >= SM_RANKS_MAX ||
        link->layouts[q->from_rank].ranks == 0 || !data->pools[q->to_rank].used ||
        data->pools[q->to_rank].retiring || q->piece_bytes == 0 ||
        q->piece_bytes > PIECE_BYTES_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < q->span_count; i++) {
        answering->runs[0][i] = (struct sm_run){q->spans[i].from, q->spans[i].pages};
        answering->runs[1][i] = (struct sm_run){q->spans[i].to, q->spans[i].pages};
    }
    answering->from = link->layouts[q->from_rank];
    answering->to = data->pools[q->to_rank].layout;
    const struct plan_side from = {
        &answering->from, q->from_rank, {answering->runs[0], q->span_count}, q->slot_from};
    const struct plan_side to = {
        &answering->to, q->to_rank, {answering->runs[1], q->span_count}, q->slot_to};
    return plan_begin(&answering->plan, &from, &to, q->piece_bytes, answering->spans, &detail) ==
               STATUS_OK &&
           answering->plan.span_count == q->span_count;
}

static void on_question(struct data *data, struct link *link, struct answering *answering)
{
    if (!plan_question(data, link, answering)) {
        answer(data, link, answering, CHECK_CANNOT, 0);
        return;
    }
    memset(answering->digests, 0, sizeof answering->digests);
    answering->rank = answering->question.to_rank;
    answering->hashing = true;
    link->checks->hashing++;
    data->pools[answering->rank].reading++;
}

static void give_verdict(struct data *data, struct link *link, struct answering *answering)
{
    const struct check_note *q = &answering->question;
    uint32_t at = 0;
    while (at < q->span_count && answering->digests[at] == q->digests[at]) {
        at++;
    }
    const bool slot =
        q->slot_to == SM_AUX_NONE || answering->digests[q->span_count] == q->slot_digest;
    const bool same = at == q->span_count && slot;
    answer(data, link, answering, same ? CHECK_SAME : CHECK_DIFFERS, at);
}

static void hash_some(struct data *data, struct link *link, struct answering *answering)
{
    const struct pool *pool = &data->pools[answering->rank];
    struct plan_piece piece;
    uint64_t bytes = 0;
    if (pool->retiring) {
        answer(data, link, answering, CHECK_CANNOT, 0);
        return;
    }
    while (bytes < HASH_BYTES_MAX) {
        if (!plan_next(&answering->plan, &piece)) {
            give_verdict(data, link, answering);
            return;
        }
        answering->digests[piece.span] +=
            check_digest(pool->base + piece.to, piece.bytes, piece.to);
        bytes += piece.bytes;
    }
}

void data_check_received(struct data *data, struct link *link, struct note *note, size_t size)
{
    struct checks *checks = link->checks;
    for (uint32_t i = 0; i < QUESTIONS_MAX; i++) {
        struct answering *answering = &checks->answers[i];
        if (&answering->in != note) {
            continue;
        }
        note->in_use = false;
        const bool well = check_read(note->bytes, size, &answering->question);
        if (well && answering->question.kind == CHECK_QUESTION && link->connected) {
            /* Its answer of before has to be away first. */
            answering->waiting = true;
            return;
        }
        if (well && answering->question.kind == CHECK_ANSWER) {
            on_answer(data, link, &answering->question);
        }
        post_receive(data, link, note);
        return;
    }
}

void data_check_work(struct data *data, struct link *link)
{
    struct checks *checks = link->checks;
    for (uint32_t i = 0; i < QUESTIONS_MAX && !link->broken; i++) {
        struct answering *answering = &checks->answers[i];
        if (checks->questions[i].note.to_send) {
            send_note(data, link, &checks->questions[i].note);
        }
        if (!link->broken && answering->out.to_send) {
            send_note(data, link, &answering->out);
        }
        if (!link->broken && answering->in.to_send) {
            post_receive(data, link, &answering->in);
        }
        if (!link->broken && answering->waiting && !answering->out.to_send &&
            !answering->out.in_use) {
            answering->waiting = false;
            on_question(data, link, answering);
        }
        if (!link->broken && answering->hashing) {
            hash_some(data, link, answering);
        }
    }
    if (!link->broken) {
        ask_next(data, link);
    }
}
