/* SPDX-License-Identifier: Apache-2.0 */
/* The log: each line whole and parseable whatever the text, and nothing held back in silence. */
#include "coordinator/log.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static FILE *lines;

static void set_up(void)
{
    lines = tmpfile();
    cr_assert_not_null(lines);
    cr_assert_geq(dup2(fileno(lines), STDERR_FILENO), 0);
}

TestSuite(log, .init = set_up, .timeout = 240);

/* Rewinds, and reads one line after the other. */
static char *next_line(void)
{
    static char line[8192];
    return fgets(line, sizeof line, lines);
}

static json_t *next_object(void)
{
    json_error_t error;
    const char *line = next_line();
    cr_assert_not_null(line);
    json_t *object = json_loads(line, 0, &error);
    cr_assert_not_null(object, "%s in: %s", error.text, line);
    return object;
}

static const char *field(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

Test(log, json_holds_whatever_text)
{
    char quotes[3000];
    memset(quotes, '"', sizeof quotes);
    quotes[sizeof quotes - 1u] = '\0';
    log_setup("no\xff"
              "de",
              "json", "info");
    log_event(LOG_INFO_LEVEL, "a.b", "reason=\"%s\"", "\xff\xfe caf\xc3\xa9 \x1b[2J\n");
    log_event(LOG_INFO_LEVEL, "a.c", "%s", quotes);
    rewind(lines);
    json_t *first = next_object();
    cr_assert_str_eq(field(first, "text"), "reason=\"?? caf\xc3\xa9 ?[2J?\"");
    cr_assert_str_eq(field(first, "node"), "no?de");
    cr_assert_str_eq(field(first, "event"), "a.b");
    cr_assert_str_eq(field(first, "level"), "info");
    json_t *second = next_object();
    const char *text = field(second, "text");
    cr_assert_gt(strlen(text), 1500u);
    cr_assert_str_eq(text + strlen(text) - 3u, "...");
    cr_assert_null(next_line());
    json_decref(first);
    json_decref(second);
}

Test(log, text_lines_stay_one_line)
{
    char longest[5000];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1u] = '\0';
    log_setup("P", "text", "warning");
    log_event(LOG_INFO_LEVEL, "too.low", "is not written");
    log_event(LOG_WARNING_LEVEL, "a.b", "one\ntwo %s", longest);
    rewind(lines);
    const char *line = next_line();
    cr_assert_not_null(strstr(line, "warning P event=a.b one?two xxx"), "%s", line);
    cr_assert_str_eq(line + strlen(line) - 4u, "...\n");
    cr_assert_null(next_line());
}

static void expect_held_back(bool json)
{
    uint32_t written = 0;
    log_setup("P", json ? "json" : "text", "info");
    for (uint32_t i = 0; i < 10u * LOG_RATE; i++) {
        log_event(LOG_INFO_LEVEL, "storm", "number=%u", i);
    }
    (void)sleep(2);
    log_catch_up();
    log_catch_up(); /* once is enough */
    rewind(lines);
    unsigned long dropped = 0;
    uint32_t told = 0;
    for (const char *line = next_line(); line != NULL; line = next_line()) {
        const char *count = json ? strstr(line, "\"not_written\":") : strstr(line, " (");
        if (count != NULL) {
            dropped += strtoul(count + (json ? 14 : 2), NULL, 10);
            told++;
        }
        written += strstr(line, "event=storm") != NULL || strstr(line, "\"storm\"") != NULL;
    }
    cr_assert_geq(told, 1u);
    cr_assert_leq(told, 2u, "once is enough");
    cr_assert_eq(dropped + written, 10u * LOG_RATE, "%lu held back, %u written", dropped, written);
}

/* The burst may fall into two seconds; then the second one's first line says a part of it. */
Test(log, what_the_rate_holds_back_is_said_in_json)
{
    expect_held_back(true);
}

Test(log, what_the_rate_holds_back_is_said_in_text)
{
    expect_held_back(false);
}
