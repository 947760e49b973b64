/* SPDX-License-Identifier: Apache-2.0 */
#include "schemas/text.h"

#include <stdint.h>
#include <string.h>

/* The code point of a character that text_character has measured. */
static uint32_t code_point(const unsigned char *c, size_t size)
{
    static const unsigned char first_bits[] = {0, 0x7fu, 0x1fu, 0x0fu, 0x07u};
    uint32_t code = c[0] & first_bits[size];
    for (size_t i = 1; i < size; i++) {
        code = code << 6 | (c[i] & 0x3fu);
    }
    return code;
}

size_t text_character(const char *text, size_t size)
{
    static const uint32_t least[] = {0, 0, 0x80u, 0x800u, 0x10000u};
    const unsigned char *c = (const unsigned char *)text;
    if (size == 0) {
        return 0;
    }
    const size_t bytes = c[0] < 0x80u   ? 1u
                         : c[0] < 0xc0u ? 0u
                         : c[0] < 0xe0u ? 2u
                         : c[0] < 0xf0u ? 3u
                         : c[0] < 0xf8u ? 4u
                                        : 0u;
    if (bytes == 0 || bytes > size) {
        return 0;
    }
    for (size_t i = 1; i < bytes; i++) {
        if ((c[i] & 0xc0u) != 0x80u) {
            return 0;
        }
    }
    const uint32_t code = code_point(c, bytes);
    const bool surrogate = code >= 0xd800u && code <= 0xdfffu;
    return code < least[bytes] || surrogate || code > 0x10ffffu ? 0 : bytes;
}

bool text_printable(const char *character, size_t size)
{
    const uint32_t code = code_point((const unsigned char *)character, size);
    const bool control = code < 0x20u || (code >= 0x7fu && code < 0xa0u);
    const bool separator = code == 0x2028u || code == 0x2029u;
    /* Marks that change the direction of what follows can make a line read as another one. */
    const bool turns = code == 0x061cu || code == 0x200eu || code == 0x200fu ||
                       (code >= 0x202au && code <= 0x202eu) || (code >= 0x2066u && code <= 0x2069u);
    return !control && !separator && !turns;
}

size_t text_clean(const char *text, size_t size, char *out, size_t out_size)
{
    size_t used = 0;
    for (size_t at = 0; at < size;) {
        const size_t bytes = text_character(text + at, size - at);
        const bool keep = bytes > 0 && text_printable(text + at, bytes);
        const size_t need = keep ? bytes : 1u;
        if (used + need >= out_size) {
            break;
        }
        if (keep) {
            memmove(out + used, text + at, bytes); /* the same buffer, perhaps */
        } else {
            out[used] = '?';
        }
        used += need;
        at += bytes > 0 ? bytes : 1u;
    }
    out[used] = '\0';
    return used;
}

void text_roff(FILE *out, const char *text)
{
    if (text[0] == '.' || text[0] == '\'') {
        fputs("\\&", out); /* else a request */
    }
    for (; *text != '\0'; text++) {
        if (*text == '\\') {
            fputs("\\e", out);
        } else if (*text == '-') {
            fputs("\\-", out); /* else typeset as a hyphen, which nobody can paste */
        } else {
            fputc(*text, out);
        }
    }
}
