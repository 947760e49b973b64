/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's log: one event a line on stderr, as text or JSON. Only the coordinator and mains log.
 *
 * Threads: any; a line is written at once.
 * Limits: a text has at most 1,700 bytes and is cut with "..." beyond; each `event` name at most
 * LOG_RATE lines a second, the rest is counted and said. What is not UTF-8 or not printable is
 * written as '?'.
 */
#ifndef COORDINATOR_LOG_H
#define COORDINATOR_LOG_H

#include <stdint.h>

enum log_level { LOG_ERROR_LEVEL, LOG_WARNING_LEVEL, LOG_INFO_LEVEL, LOG_DEBUG_LEVEL };

#define LOG_RATE 20u

void log_setup(const char *node, const char *format, const char *level);

/* Says what the rate has held back, once its second is over. Called when there is time. */
void log_catch_up(void);

/*
 * event: a stable name ("peer.up"). format: `key=%s key=%llu` pairs that people read in text and
 * programs in JSON (as one field "text").
 */
void log_event(enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
