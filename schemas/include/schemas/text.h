/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text from outside, made fit for a terminal, a log line or JSON: reasons, names, and whatever else
 * a socket or a file has brought.
 *
 * Layer: nothing below. Total on every input; no allocation.
 */
#ifndef SCHEMAS_TEXT_H
#define SCHEMAS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * Bytes (1 to 4) of the UTF-8 character that text begins with; 0 when none does within `size`
 * bytes: a stray byte, an overlong form, a surrogate, more than U+10FFFF.
 */
size_t text_character(const char *text, size_t size);

/* Whether a character of `size` bytes may be shown: no control, and nothing that turns the line. */
bool text_printable(const char *character, size_t size);

/*
 * Copies text: what is not UTF-8 or not printable becomes '?', byte for byte. Cut at a character so
 * that it fits with its zero; out_size is at least 1, out may be text. Returns the bytes before the
 * zero.
 */
size_t text_clean(const char *text, size_t size, char *out, size_t out_size);

/* Writes one line of ASCII text so that roff prints it as it stands, for man pages. */
void text_roff(FILE *out, const char *text);

#endif
