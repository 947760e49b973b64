/* SPDX-License-Identifier: Apache-2.0 */
/* Text from outside: every byte sequence must come out as printable UTF-8 that fits. */
#include "schemas/text.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void cleaned(const char *text, size_t size, const char *expected)
{
    char out[256];
    const size_t used = text_clean(text, size, out, sizeof out);
    cr_assert_str_eq(out, expected);
    cr_assert_eq(used, strlen(expected));
}

Test(text, keeps_what_is_printable)
{
    cleaned("", 0, "");
    cleaned("plain", 5, "plain");
    const char *mixed = "gr\xc3\xb6\xc3\x9f\x65r \xe2\x82\xac \xf0\x9f\x9a\x80";
    cleaned(mixed, strlen(mixed), mixed);
}

Test(text, replaces_controls_and_what_turns_the_line)
{
    cleaned("a\nb\x1b[31mc\x7f", 10, "a?b?[31mc?");
    cleaned("a\0b", 3, "a?b");
    cleaned("\xc2\x9b"
            "31m",
            5, "?31m"); /* CSI as one character */
    cleaned("x\xe2\x80\xae"
            "y",
            5, "x?y"); /* right-to-left override */
    cleaned("x\xe2\x80\xa8"
            "y",
            5, "x?y"); /* line separator */
}

Test(text, replaces_each_byte_that_is_not_utf8)
{
    cleaned("\xff\xfe", 2, "??");
    cleaned("\xc0\xaf", 2, "??");           /* overlong */
    cleaned("\xe0\x80\xaf", 3, "???");      /* overlong */
    cleaned("\xed\xa0\x80", 3, "???");      /* surrogate */
    cleaned("\xf4\x90\x80\x80", 4, "????"); /* beyond U+10FFFF */
    cleaned("\xe2\x82", 2, "??");           /* cut off */
    cleaned("\xe2\x82"
            "a",
            3, "??a");
}

Test(text, cuts_at_a_character)
{
    char out[4];
    cr_assert_eq(text_clean("ab\xe2\x82\xac", 5, out, sizeof out), 2u);
    cr_assert_str_eq(out, "ab");
    cr_assert_eq(text_clean("abc", 3, out, 1), 0u);
    cr_assert_str_eq(out, "");
}

Test(text, random_bytes_come_out_sound)
{
    unsigned int state = 7;
    for (int round = 0; round < 20000; round++) {
        char in[40];
        char out[24];
        const size_t size = (size_t)rand_r(&state) % sizeof in;
        for (size_t i = 0; i < size; i++) {
            in[i] = (char)(rand_r(&state) % 3 == 0 ? rand_r(&state) : 0x80 | rand_r(&state) % 128);
        }
        const size_t used = text_clean(in, size, out, 1u + (size_t)rand_r(&state) % sizeof out);
        cr_assert_eq(strlen(out), used);
        for (size_t at = 0; at < used;) {
            const size_t bytes = text_character(out + at, used - at);
            cr_assert_gt(bytes, 0u);
            cr_assert(text_printable(out + at, bytes));
            at += bytes;
        }
    }
}
