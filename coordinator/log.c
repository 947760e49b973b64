/* SPDX-License-Identifier: Apache-2.0 */
/* The log. */
#include "coordinator/log.h"

#include "schemas/text.h"

#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEXT_BYTES 1704u
#define LINE_BYTES 4096u /* written at once, also into a pipe */
#define SITES_MAX 64u

struct site {
    char event[48];
    time_t second;
    uint32_t lines;
    uint32_t dropped;
};

/* The one piece of state that is process-wide: there is one stderr. */
static struct {
    pthread_mutex_t lock;
    char node[64];
    bool json;
    enum log_level level;
    struct site sites[SITES_MAX];
} log_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = LOG_INFO_LEVEL};

static const char *const level_names[] = {"error", "warning", "info", "debug"};

void log_setup(const char *node, const char *format, const char *level)
{
    (void)pthread_mutex_lock(&log_state.lock);
    (void)text_clean(node, strlen(node), log_state.node, sizeof log_state.node);
    log_state.json = strcmp(format, "json") == 0;
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strcmp(level, level_names[i]) == 0) {
            log_state.level = (enum log_level)i;
        }
    }
    (void)pthread_mutex_unlock(&log_state.lock);
}

/* Whether this line is within its event's rate; *out_dropped: how many were not, to be said now. */
static bool within_rate(const char *event, time_t second, uint32_t *out_dropped)
{
    struct site *site = NULL;
    *out_dropped = 0;
    for (size_t i = 0; i < SITES_MAX && site == NULL; i++) {
        if (log_state.sites[i].event[0] == '\0') {
            (void)snprintf(log_state.sites[i].event, sizeof log_state.sites[i].event, "%s", event);
        }
        if (strcmp(log_state.sites[i].event, event) == 0) {
            site = &log_state.sites[i];
        }
    }
    if (site == NULL) {
        return true;
    }
    if (site->second != second) {
        *out_dropped = site->dropped;
        site->second = second;
        site->lines = 0;
        site->dropped = 0;
    }
    if (site->lines >= LOG_RATE) {
        site->dropped++;
        return false;
    }
    site->lines++;
    return true;
}

static size_t time_stamp(char *out, size_t size)
{
    struct timespec now;
    struct tm parts;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &parts);
    const size_t used = strftime(out, size, "%Y-%m-%dT%H:%M:%S", &parts);
    return used + (size_t)snprintf(out + used, size - used, ".%03ldZ", now.tv_nsec / 1000000);
}

/* Quotes and backslashes double at the most: a JSON line stays under LINE_BYTES. */
static size_t json_line(char *line, const char *stamp, enum log_level level, const char *event,
                        const char *text, uint32_t dropped)
{
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:s}", "time", stamp, "level", level_names[level], "node",
                  log_state.node, "event", event, "text", text);
    if (object != NULL && dropped > 0) {
        (void)json_object_set_new(object, "not_written", json_integer(dropped));
    }
    size_t size = object != NULL ? json_dumpb(object, line, LINE_BYTES - 1u, JSON_COMPACT) : 0;
    json_decref(object);
    if (size == 0 || size > LINE_BYTES - 1u) {
        /* No memory, or a bug in the bounds above: still one line that says which event. */
        size =
            (size_t)snprintf(line, LINE_BYTES, "{\"time\":\"%s\",\"event\":\"%s\"}", stamp, event);
    }
    line[size++] = '\n';
    return size;
}

static size_t text_line(char *line, const char *stamp, enum log_level level, const char *event,
                        const char *text, uint32_t dropped)
{
    int size = snprintf(line, LINE_BYTES, "%s %-7s %s event=%s %s", stamp, level_names[level],
                        log_state.node, event, text);
    if (dropped > 0) {
        size += snprintf(line + size, LINE_BYTES - (size_t)size, " (%u more were not written)",
                         dropped);
    }
    line[size++] = '\n';
    return (size_t)size;
}

static void write_line(enum log_level level, const char *event, const char *text, uint32_t dropped)
{
    char line[LINE_BYTES];
    char stamp[40];
    (void)time_stamp(stamp, sizeof stamp);
    const size_t size = log_state.json ? json_line(line, stamp, level, event, text, dropped)
                                       : text_line(line, stamp, level, event, text, dropped);
    if (write(STDERR_FILENO, line, size) < 0) {
        return; /* nowhere to say it */
    }
}

void log_event(enum log_level level, const char *event, const char *format, ...)
{
    char raw[TEXT_BYTES];
    char text[TEXT_BYTES];
    uint32_t dropped = 0;
    va_list arguments;
    va_start(arguments, format);
    const int wanted = vsnprintf(raw, sizeof raw, format, arguments);
    va_end(arguments);
    const size_t size = text_clean(raw, strlen(raw), text, sizeof text);
    if (wanted >= (int)sizeof raw && size >= 4u) {
        size_t cut = size - 3u;
        while (cut > 0 && ((unsigned char)text[cut] & 0xc0u) == 0x80u) {
            cut--; /* not in the middle of a character */
        }
        memcpy(text + cut, "...", 4u);
    }
    (void)pthread_mutex_lock(&log_state.lock);
    if (level <= log_state.level && within_rate(event, time(NULL), &dropped)) {
        write_line(level, event, text, dropped);
    }
    (void)pthread_mutex_unlock(&log_state.lock);
}

void log_catch_up(void)
{
    const time_t now = time(NULL);
    (void)pthread_mutex_lock(&log_state.lock);
    for (size_t i = 0; i < SITES_MAX && log_state.sites[i].event[0] != '\0'; i++) {
        struct site *site = &log_state.sites[i];
        if (site->dropped > 0 && site->second != now) {
            char text[64];
            (void)snprintf(text, sizeof text, "of=%s", site->event);
            write_line(LOG_WARNING_LEVEL, "log.held_back", text, site->dropped);
            site->dropped = 0;
        }
    }
    (void)pthread_mutex_unlock(&log_state.lock);
}
