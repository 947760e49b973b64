/* SPDX-License-Identifier: Apache-2.0 */
/* The log. */
#include "coordinator/log.h"

#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 2048u
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
    (void)snprintf(log_state.node, sizeof log_state.node, "%s", node);
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

static void clean(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 32u || *text == 127) {
            *text = '?';
        }
    }
}

static void write_line(enum log_level level, const char *event, const char *text, uint32_t dropped)
{
    char line[LINE_BYTES + 256u];
    char stamp[40];
    struct timespec now;
    struct tm parts;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &parts);
    size_t used = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    (void)snprintf(stamp + used, sizeof stamp - used, ".%03ldZ", now.tv_nsec / 1000000);
    int size = 0;
    if (log_state.json) {
        json_t *object =
            json_pack("{s:s, s:s, s:s, s:s, s:s}", "time", stamp, "level", level_names[level],
                      "node", log_state.node, "event", event, "text", text);
        char *dump = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
        size = snprintf(line, sizeof line, "%s\n", dump != NULL ? dump : "{}");
        free(dump);
        json_decref(object);
    } else if (dropped > 0) {
        size = snprintf(line, sizeof line, "%s %-7s %s event=%s %s (%u more were not written)\n",
                        stamp, level_names[level], log_state.node, event, text, dropped);
    } else {
        size = snprintf(line, sizeof line, "%s %-7s %s event=%s %s\n", stamp, level_names[level],
                        log_state.node, event, text);
    }
    if (size > 0) {
        const size_t length = (size_t)size < sizeof line ? (size_t)size : sizeof line - 1u;
        if (write(STDERR_FILENO, line, length) < 0) {
            return; /* nowhere to say it */
        }
    }
}

void log_event(enum log_level level, const char *event, const char *format, ...)
{
    char text[LINE_BYTES];
    uint32_t dropped = 0;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    clean(text);
    (void)pthread_mutex_lock(&log_state.lock);
    if (level <= log_state.level && within_rate(event, time(NULL), &dropped)) {
        write_line(level, event, text, dropped);
    }
    (void)pthread_mutex_unlock(&log_state.lock);
}
