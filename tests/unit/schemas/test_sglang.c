/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGLang's frames: the bytes that its peers really send, every count that is none of its forms, and
 * messages made up at random, which must come back as they were.
 */
#include "schemas/sglang.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F(text)                                          \
    {                                                    \
        (const unsigned char *)(text), sizeof(text) - 1u \
    }
#define COUNT(frames) (sizeof(frames) / sizeof((frames)[0]))

static struct sglang_message message;
static struct sglang_error error;
static unsigned char buffer[1 << 16];

static void decodes(enum sglang_port port, const struct sglang_frame *frames, size_t count)
{
    const enum status status = sglang_decode(port, frames, count, &message, &error);
    cr_assert_eq(status, STATUS_OK, "%s: %s in frame %u", sglang_kind_name(error.kind),
                 sglang_fault_text(error.fault), error.frame);
}

static void encodes_to(const struct sglang_frame *frames, size_t count)
{
    struct sglang_frame made[SGLANG_FRAMES_MAX];
    size_t made_count = 0;
    cr_assert_eq(sglang_encode(&message, buffer, sizeof buffer, made, &made_count, &error),
                 STATUS_OK);
    cr_assert_eq(made_count, count);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(made[i].size, frames[i].size, "frame %zu", i);
        cr_assert(made[i].size == 0 || memcmp(made[i].bytes, frames[i].bytes, made[i].size) == 0,
                  "frame %zu", i);
    }
}

static void refuses(enum sglang_port port, const struct sglang_frame *frames, size_t count,
                    enum sglang_fault fault)
{
    cr_assert_neq(sglang_decode(port, frames, count, &message, &error), STATUS_OK);
    cr_assert_eq(error.fault, fault, "%s", sglang_fault_text(error.fault));
}

/* ---- bytes as they are on the wire: room 7, pages 4 and 5, slot 3, a state component [9] */

static const struct sglang_frame metadata[] = {
    F("\x37"),
    F("\x31\x30\x2e\x30\x2e\x30\x2e\x31"),
    F("\x35\x35\x35\x35"),
    F("\x31\x30\x2e\x30\x2e\x30\x2e\x31\x3a\x31\x36\x30\x30\x31"),
    F("\x04\x00\x00\x00\x05\x00\x00\x00"),
    F("\x33"),
    F("\x01\x00\x00\x00\x04\x00\x00\x00\x09\x00\x00\x00"),
    F("\x31"),
    F("\x30"),
    F("")};

Test(sglang, metadata_as_it_is_sent)
{
    decodes(SGLANG_AT_PREFILL, metadata, 10);
    const struct sglang_metadata *d = &message.u.metadata;
    cr_assert_eq(message.kind, SGLANG_METADATA);
    cr_assert_eq(message.room, 7u);
    cr_assert_eq(d->origin.port, 5555u);
    cr_assert(d->origin.session.size == 14u &&
              memcmp(d->origin.session.bytes, "10.0.0.1:16001", 14) == 0);
    cr_assert_eq(d->pages.count, 2u);
    cr_assert_eq(sglang_list_at(&d->pages, 0), 4u);
    cr_assert_eq(sglang_list_at(&d->pages, 1), 5u);
    cr_assert(d->has_aux && d->aux_slot == 3u && d->required == 1u);
    cr_assert(d->has_prefix && d->prefix_tokens == 0);
    cr_assert_eq(d->state_indices.count, 1u);
    const struct sglang_list state = sglang_lists_at(&d->state_indices, 0);
    cr_assert(state.count == 1u && sglang_list_at(&state, 0) == 9u);
    encodes_to(metadata, 10);
    decodes(SGLANG_AT_PREFILL, metadata, 9); /* older builds */
    encodes_to(metadata, 9);
    decodes(SGLANG_AT_PREFILL, metadata, 8);
    encodes_to(metadata, 8);
    for (size_t count = 1; count <= 7; count++) {
        refuses(SGLANG_AT_PREFILL, metadata, count, SGLANG_FAULT_FRAME_COUNT);
    }
}

Test(sglang, status_abort_and_ack_as_they_are_sent)
{
    static const struct sglang_frame success[] = {F("\x37"), F("\x34"), F("\x30")};
    static const struct sglang_frame failure[] = {F("\x37"), F("\x30"), F("\x30")};
    static const struct sglang_frame abort_[] = {F("\x41\x42\x4f\x52\x54"), F("\x37"),
                                                 F("10.0.0.1"), F("5555"), F("\x37")};
    static const struct sglang_frame ack[] = {F("\x41\x42\x4f\x52\x54\x5f\x41\x43\x4b"), F("\x37"),
                                              F("\x33"), F("\x37")};
    decodes(SGLANG_AT_DECODE, success, 3);
    cr_assert(message.u.status.succeeded && message.u.status.rank == 0 && message.room == 7u);
    encodes_to(success, 3);
    decodes(SGLANG_AT_DECODE, failure, 3);
    cr_assert(!message.u.status.succeeded && !message.u.status.has_reason);
    encodes_to(failure, 3);
    decodes(SGLANG_AT_PREFILL, abort_, 5);
    cr_assert(message.u.abort.has_generation && message.u.abort.generation == 7u);
    encodes_to(abort_, 5);
    decodes(SGLANG_AT_PREFILL, abort_, 4);
    cr_assert(message.u.abort.has_origin && !message.u.abort.has_token);
    encodes_to(abort_, 4);
    decodes(SGLANG_AT_PREFILL, abort_, 2);
    cr_assert(!message.u.abort.has_origin);
    refuses(SGLANG_AT_PREFILL, abort_, 3, SGLANG_FAULT_FRAME_COUNT);
    decodes(SGLANG_AT_DECODE, ack, 4);
    cr_assert(message.u.ack.rank == 3u && message.u.ack.generation == 7u);
    encodes_to(ack, 4);
    decodes(SGLANG_AT_DECODE, ack, 3);
    cr_assert(message.u.ack.has_rank && !message.u.ack.has_generation);
    decodes(SGLANG_AT_DECODE, ack, 2);
    cr_assert(!message.u.ack.has_rank);
}

Test(sglang, a_token_that_is_no_number_is_kept_as_it_is)
{
    static const struct sglang_frame token[] = {F("ABORT"), F("7"), F("10.0.0.1"), F("5555"),
                                                F("\x01\xfftoken")};
    decodes(SGLANG_AT_PREFILL, token, 5);
    cr_assert(message.u.abort.has_token && !message.u.abort.has_generation);
    cr_assert_eq(message.u.abort.token.size, 7u);
    encodes_to(token, 5);
}

Test(sglang, a_status_with_its_cause)
{
    static const struct sglang_frame cause[] = {F("7"), F("0"), F("2"), F("too long"), F("400")};
    decodes(SGLANG_AT_DECODE, cause, 5);
    cr_assert(message.u.status.has_http && message.u.status.http == 400u);
    cr_assert(message.u.status.has_reason && message.u.status.reason.size == 8u);
    encodes_to(cause, 5);
    decodes(SGLANG_AT_DECODE, cause, 4);
    cr_assert(message.u.status.has_reason && !message.u.status.has_http);
    encodes_to(cause, 4);
    static const struct sglang_frame nixl[] = {F("KV_STATUS"), F("7"), F("0"), F("1"), F("why")};
    decodes(SGLANG_AT_DECODE, nixl, 5);
    cr_assert_eq(message.u.status.dialect, SGLANG_NIXL);
    encodes_to(nixl, 5);
    static const struct sglang_frame mori[] = {
        F("MoriMsgGuard"), F("7"), F("4"), F("1"), F(""), F("12")};
    decodes(SGLANG_AT_DECODE, mori, 6);
    cr_assert(message.u.status.has_generation && message.u.status.generation == 12u);
    encodes_to(mori, 6);
    decodes(SGLANG_AT_DECODE, mori, 5);
}

/* Two sends on one socket without a lock come out as one message: nobody's, not the first one's. */
Test(sglang, two_messages_in_one_are_none)
{
    static const struct sglang_frame two[] = {F("7"), F("4"), F("0"), F("8"), F("4"), F("0")};
    refuses(SGLANG_AT_DECODE, two, 6, SGLANG_FAULT_FRAME_COUNT);
    struct sglang_frame both[12];
    memcpy(both, metadata, sizeof metadata);
    memcpy(both + 10, two, 2 * sizeof two[0]);
    refuses(SGLANG_AT_PREFILL, both, 12, SGLANG_FAULT_FRAME_COUNT);
}

Test(sglang, registrations_of_both_years)
{
    static const struct sglang_frame newest[] = {F("None"),
                                                 F("10.0.0.1"),
                                                 F("5555"),
                                                 F("10.0.0.1:16001"),
                                                 F("\1\0\0\0\0\0\0\0"),
                                                 F(""),
                                                 F(""),
                                                 F("1"),
                                                 F("2"),
                                                 F("4096"),
                                                 F(""),
                                                 F(""),
                                                 F("\5\0\0\0"),
                                                 F(""),
                                                 F("\0\0\0\0\0\0\0\0"),
                                                 F("0"),
                                                 F("1"),
                                                 F("0"),
                                                 F("")};
    decodes(SGLANG_AT_PREFILL, newest, 19);
    const struct sglang_registration *g = &message.u.registration;
    cr_assert(g->engine_rank == 1u && g->tp_size == 2u && g->kv_item_bytes == 4096u);
    cr_assert(g->kv_pointers.count == 1u && sglang_list_at(&g->kv_pointers, 0) == 1u);
    cr_assert(g->kv_layer_ids.count == 1u && sglang_list_at(&g->kv_layer_ids, 0) == 5u);
    encodes_to(newest, 19);
    struct sglang_frame older[15];
    memcpy(older, newest, 12 * sizeof newest[0]);
    older[12] = (struct sglang_frame)F("\0\1\0\0\0\0\0\0");
    older[13] = (struct sglang_frame)F("64");
    older[14] = (struct sglang_frame)F("QUIESCE_V1");
    decodes(SGLANG_AT_PREFILL, older, 14);
    cr_assert(message.u.registration.staging_base == 256u);
    cr_assert(message.u.registration.staging_bytes == 64u);
    encodes_to(older, 14);
    decodes(SGLANG_AT_PREFILL, older, 15);
    encodes_to(older, 15);
    for (size_t count = 1; count <= 19; count++) {
        if (count != 14 && count != 15 && count != 19) {
            refuses(SGLANG_AT_PREFILL, newest, count, SGLANG_FAULT_FRAME_COUNT);
        }
    }
}

Test(sglang, numbers_out_of_range)
{
    struct sglang_frame status[] = {F("7"), F("4"), F("0")};
    static const char *const rooms[] = {"0", "9223372036854775808", "99999999999999999999",
                                        "184467440737095516160", "07"};
    for (size_t i = 0; i < COUNT(rooms); i++) {
        status[0] = (struct sglang_frame){(const unsigned char *)rooms[i], strlen(rooms[i])};
        refuses(SGLANG_AT_DECODE, status, 3, SGLANG_FAULT_ROOM);
        cr_assert_eq(error.frame, 0u);
    }
    status[0] = (struct sglang_frame)F("9223372036854775807");
    decodes(SGLANG_AT_DECODE, status, 3);
    cr_assert_eq(message.room, SGLANG_ROOM_MAX);
    static const char *const values[] = {"1", "2", "3", "5", "-1", "", "44"};
    for (size_t i = 0; i < COUNT(values); i++) {
        status[1] = (struct sglang_frame){(const unsigned char *)values[i], strlen(values[i])};
        refuses(SGLANG_AT_DECODE, status, 3, SGLANG_FAULT_NUMBER);
        cr_assert_eq(error.frame, 1u);
    }
    struct sglang_frame changed[10];
    memcpy(changed, metadata, sizeof metadata);
    changed[2] = (struct sglang_frame)F("65536");
    refuses(SGLANG_AT_PREFILL, changed, 10, SGLANG_FAULT_NUMBER);
    memcpy(changed, metadata, sizeof metadata);
    changed[4] = (struct sglang_frame)F("\xff\xff\xff\xff");
    refuses(SGLANG_AT_PREFILL, changed, 10, SGLANG_FAULT_LIST);
    changed[4] = (struct sglang_frame)F("\1\0\0");
    refuses(SGLANG_AT_PREFILL, changed, 10, SGLANG_FAULT_LIST);
    memcpy(changed, metadata, sizeof metadata);
    changed[6] = (struct sglang_frame)F("\xff\xff\xff\xff\4\0\0\0\1\0\0\0");
    refuses(SGLANG_AT_PREFILL, changed, 10, SGLANG_FAULT_LISTS);
    memcpy(changed, metadata, sizeof metadata);
    changed[3] = (struct sglang_frame)F("nobody");
    refuses(SGLANG_AT_PREFILL, changed, 10, SGLANG_FAULT_TEXT);
}

Test(sglang, what_is_nobodys)
{
    static const struct sglang_frame unknown[] = {F("NOT_A_KNOWN_TYPE"), F("8"),
                                                  F("\xff\x00\xff\x00")};
    static const struct sglang_frame nothing[] = {F("")};
    static const struct sglang_frame guard[] = {F("NixlMsgGuard"), F("7")};
    static const struct sglang_frame aux[] = {
        F("AUX_DATA"), F("7"), F("0"), F("4294967295"), F("\xff\xff\xff\xff"), F("\0")};
    refuses(SGLANG_AT_PREFILL, unknown, 3, SGLANG_FAULT_UNKNOWN_TAG);
    refuses(SGLANG_AT_PREFILL, nothing, 1, SGLANG_FAULT_UNKNOWN_TAG);
    refuses(SGLANG_AT_PREFILL, NULL, 0, SGLANG_FAULT_FRAME_COUNT);
    refuses(SGLANG_AT_PREFILL, guard, 2, SGLANG_FAULT_DIALECT);
    refuses(SGLANG_AT_DECODE, aux, 6, SGLANG_FAULT_LENGTH);
    struct sglang_frame large = {buffer, SGLANG_MESSAGE_BYTES_MAX + 1u};
    cr_assert_eq(sglang_decode(SGLANG_AT_PREFILL, &large, 1, &message, &error), STATUS_TOO_LARGE);
}

/* ---- messages at random */

static unsigned int state = 3;

static uint64_t some(uint64_t below)
{
    const uint64_t wide =
        (uint64_t)rand_r(&state) << 40 ^ (uint64_t)rand_r(&state) << 20 ^ (uint64_t)rand_r(&state);
    return wide % below;
}

static struct sglang_origin some_origin(void)
{
    static const char *const ips[] = {"10.0.0.1", "[fe80::1]", "host.example"};
    const char *ip = ips[some(3)];
    return (struct sglang_origin){
        {ip, (uint32_t)strlen(ip)}, {"10.0.0.1:16001", 14}, (uint16_t)(1u + some(65535))};
}

static void some_metadata(void)
{
    static unsigned char pages[4 * 64];
    struct sglang_metadata *d = &message.u.metadata;
    d->frames = 8u + (uint32_t)some(3);
    d->origin = some_origin();
    for (size_t i = 0; i < sizeof pages; i++) {
        pages[i] = (unsigned char)(i % 4u == 3u ? some(128) : some(256));
    }
    d->pages = (struct sglang_list){pages, (uint32_t)some(65), 4};
    d->has_aux = some(2) == 0;
    d->aux_slot = d->has_aux ? (uint32_t)some(1000) : 0;
    d->state_indices.width = 4;
    d->required = 1u + (uint32_t)some(64);
    d->has_prefix = d->frames > 8u && some(2) == 0;
    d->prefix_tokens = d->has_prefix ? some(1u << 30) : 0;
    d->device_pages = (struct sglang_list){pages, d->frames == 10u ? (uint32_t)some(9) : 0, 4};
}

static void some_message(void)
{
    memset(&message, 0, sizeof message);
    message.kind = (enum sglang_kind)(SGLANG_METADATA + some(2));
    message.room = 1u + some(SGLANG_ROOM_MAX);
    const bool more = some(2) == 0;
    switch (some(4)) {
    case 0:
        message.kind = SGLANG_METADATA;
        some_metadata();
        break;
    case 1:
        message.kind = SGLANG_ABORT;
        message.u.abort.has_origin = some(3) > 0;
        message.u.abort.origin = some_origin();
        message.u.abort.has_generation = message.u.abort.has_origin && more;
        message.u.abort.generation = some(UINT64_MAX);
        break;
    case 2:
        message.kind = SGLANG_STATUS;
        message.u.status.succeeded = more;
        message.u.status.rank = (uint32_t)some(64);
        message.u.status.has_reason = some(2) == 0;
        message.u.status.reason = (struct sglang_text){"not \xe2\x82\xac", 7};
        message.u.status.has_http = message.u.status.has_reason && some(2) == 0;
        message.u.status.http = (uint16_t)some(1000);
        break;
    default:
        message.kind = SGLANG_ABORT_ACK;
        message.u.ack.has_rank = some(3) > 0;
        message.u.ack.rank = (uint32_t)some(64);
        message.u.ack.has_generation = message.u.ack.has_rank && more;
        message.u.ack.generation = some(UINT64_MAX);
        break;
    }
}

/* And a message whose frames are cut, left out or changed is another one or none, never a crash. */
Test(sglang, random_messages_come_back)
{
    static unsigned char again[1 << 16];
    for (int round = 0; round < 20000; round++) {
        struct sglang_frame frames[SGLANG_FRAMES_MAX];
        size_t count = 0;
        some_message();
        const bool decode = message.kind >= SGLANG_STATUS;
        const enum sglang_port port = decode ? SGLANG_AT_DECODE : SGLANG_AT_PREFILL;
        cr_assert_eq(sglang_encode(&message, again, sizeof again, frames, &count, &error),
                     STATUS_OK, "%s, frame %u", sglang_fault_text(error.fault), error.frame);
        const enum sglang_kind kind = message.kind;
        decodes(port, frames, count);
        cr_assert_eq(message.kind, kind);
        encodes_to(frames, count);
        struct sglang_frame *one = &frames[some(count)];
        one->size = one->size == 0 ? 0 : some(one->size);
        (void)sglang_decode(port, frames, count, &message, &error);
        (void)sglang_decode(port, frames, some(count + 1u), &message, &error);
    }
}

Test(sglang, a_buffer_that_is_too_small_is_said)
{
    struct sglang_frame frames[SGLANG_FRAMES_MAX];
    size_t count = 0;
    decodes(SGLANG_AT_PREFILL, metadata, 10);
    cr_assert_eq(sglang_encode(&message, buffer, 20, frames, &count, &error), STATUS_TOO_LARGE);
    cr_assert_eq(error.fault, SGLANG_FAULT_SPACE);
}
