/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks for faults at random: each seed makes a cluster of two to six nodes with rooms, and
 * everything that can go wrong goes wrong until a moment from which on nothing does. It is written
 * as a scenario and run as one, so that a seed that fails is a file already; it is then made as
 * small as it can be.
 *
 *     simulator [--seconds S] [--first N] [--seeds N] [--out DIR] [--print SEED]
 *
 * What must hold: every invariant after every step; no success without the room's bytes; when
 * faults are over everybody has a result, nothing is held, every node is quiescent.
 *
 * Exit status: 0 nothing fell; 1 something did (DIR/seed-N.scn has it).
 */
#include "scenario.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define LINES_MAX 700u
#define LINE_BYTES 160u
#define FAULTS_END_MS 20000u
#define SHRINK_SECONDS 10.0

struct text {
    char lines[LINES_MAX][LINE_BYTES];
    uint32_t count;
    uint32_t peace; /* the first line that must stay: from there on nothing goes wrong */
};

struct cluster {
    uint64_t random;
    struct text *text;
    uint32_t prefills;
    uint32_t decodes;
    uint32_t prefill_ranks;
    uint32_t decode_ranks;
    uint32_t next_page[8]; /* of each node's pools; pages are never used twice unless given back */
};

static uint64_t next(struct cluster *c)
{
    c->random = c->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return c->random >> 24;
}

static uint32_t below(struct cluster *c, uint32_t n)
{
    return (uint32_t)(next(c) % n);
}

static bool one_in(struct cluster *c, uint32_t n)
{
    return below(c, n) == 0;
}

__attribute__((format(printf, 2, 3))) static void add(struct cluster *c, const char *format, ...)
{
    va_list arguments;
    if (c->text->count == LINES_MAX) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(c->text->lines[c->text->count++], LINE_BYTES, format, arguments);
    va_end(arguments);
}

/* ---- a cluster
 * ------------------------------------------------------------------------------------------ */

static void make_nodes(struct cluster *c, uint64_t seed)
{
    static const uint32_t shapes[][2] = {{1, 1}, {1, 1}, {2, 2}, {1, 2}, {2, 1}, {2, 4}, {4, 2}};
    const uint32_t *shape = shapes[below(c, sizeof shapes / sizeof shapes[0])];
    c->prefills = 1u + below(c, 3);
    c->decodes = 1u + below(c, 3);
    c->prefill_ranks = shape[0];
    c->decode_ranks = shape[1];
    /* Some clusters speak SGLang's frames, some have one node that does. */
    const bool frames = seed % 8u == 5u;
    const bool one_frames = seed % 8u == 7u;
    add(c, "scenario \"seed %" PRIu64 "\"", seed);
    for (uint32_t i = 0; i < c->prefills; i++) {
        add(c, "node P%u prefill ranks=%u pool=320%s", i, c->prefill_ranks,
            frames || (one_frames && i == 0) ? " wire=sglang" : "");
    }
    for (uint32_t i = 0; i < c->decodes; i++) {
        add(c, "node D%u decode ranks=%u pool=320%s", i, c->decode_ranks,
            frames ? " wire=sglang" : "");
    }
    add(c, "set room_deadline %us", 20u + below(c, 40));
    add(c, "set unclaimed_deadline %us", 5u + below(c, 20));
    add(c, "set drain_timeout %ums", 200u + below(c, 5000));
    add(c, "set retry_first %ums", 5u + below(c, 200));
    add(c, "set cause_grace %ums", below(c, 300));
    add(c, "set recovery_grace %ums", 50u + below(c, 2000));
    if (one_in(c, 4)) {
        add(c, "set rooms_max %u", 2u + below(c, 6));
    }
    if (one_in(c, 4)) {
        add(c, "set rooms_per_peer_max %u", 1u + below(c, 6));
    }
    if (one_in(c, 6)) {
        add(c, "set tombstone_ttl %us", 1u + below(c, 30));
    }
}

static void make_chunks(struct cluster *c, uint32_t room, uint32_t p, uint32_t at_ms,
                        uint32_t pages)
{
    const uint32_t chunks = pages == 0 ? 1u : 1u + below(c, pages < 3u ? pages : 3u);
    for (uint32_t rank = 0; rank < c->prefill_ranks; rank++) {
        uint32_t sent = 0;
        uint32_t time = at_ms + below(c, 5);
        for (uint32_t i = 0; i < chunks; i++) {
            const bool last = i + 1u == chunks;
            const uint32_t count = last ? pages - sent : pages / chunks;
            const uint32_t first = 8u * room + sent;
            if (count == 0 && !last) {
                continue;
            }
            if (one_in(c, 60)) {
                return; /* the engine never sends the rest */
            }
            if (count > 0) {
                add(c, "at %ums P%u.%u send room=%u pages=%u-%u%s", time, p, rank, room, first,
                    first + count - 1u, last ? " last" : "");
            } else {
                add(c, "at %ums P%u.%u send room=%u pages=\"\" last", time, p, rank, room);
            }
            sent += count;
            time += below(c, 30);
        }
    }
}

static void make_room(struct cluster *c, uint32_t room)
{
    const uint32_t p = below(c, c->prefills);
    const uint32_t d = below(c, c->decodes);
    const uint32_t start = below(c, FAULTS_END_MS - 2000u);
    const uint32_t pages = one_in(c, 12) ? 0 : 1u + below(c, 8);
    const uint32_t d_at = start + (one_in(c, 3) ? below(c, 3000) : below(c, 5));
    const uint32_t p_at = start + (one_in(c, 3) ? below(c, 3000) : below(c, 5));
    const uint32_t base = 8u * room;
    if (!one_in(c, 12)) {
        for (uint32_t rank = 0; rank < c->decode_ranks; rank++) {
            char set[32] = "\"\"";
            if (pages > 0) {
                (void)snprintf(set, sizeof set, "%u-%u", base, base + pages - 1u);
            }
            add(c, "at %ums D%u.%u open room=%u pages=%s from=P%u", d_at + below(c, 3), d, rank,
                room, set, p);
        }
    }
    if (!one_in(c, 12)) {
        add(c, "at %ums P%u open room=%u", p_at, p, room);
        if (one_in(c, 6)) {
            add(c, "at %ums P%u.0 reject room=%u http=4%02u reason=\"refused %u\"",
                p_at + below(c, 50), p, room, below(c, 30), room);
        } else {
            add(c, "at %ums P%u admit room=%u", p_at + 1u + below(c, 20), p, room);
            make_chunks(c, room, p, p_at + 2u + below(c, 200), pages);
        }
    }
    if (one_in(c, 5)) {
        add(c, "at %ums D%u.%u abort room=%u by=client http=499 reason=\"gone %u\"",
            d_at + below(c, 500), d, below(c, c->decode_ranks), room, room);
    }
    if (one_in(c, 6)) {
        add(c, "at %ums P%u.%u abort room=%u by=engine%s", p_at + below(c, 500), p,
            below(c, c->prefill_ranks), room, one_in(c, 2) ? "" : " http=503 reason=\"short\"");
    }
    if (one_in(c, 15)) {
        add(c, "at %ums D%u.0 release room=%u", d_at + below(c, 300), d, room);
    }
}

/* ---- what goes wrong
 * ------------------------------------------------------------------------------------ */

static const char *node_name(struct cluster *c, char *out, size_t size)
{
    const bool prefill = one_in(c, 2);
    (void)snprintf(out, size, "%s%u", prefill ? "P" : "D",
                   below(c, prefill ? c->prefills : c->decodes));
    return out;
}

static void make_message_fault(struct cluster *c, uint32_t at, uint32_t p, uint32_t d)
{
    static const char *const kinds[] = {"prepare", "status", "ack", "abort", "drained", "any"};
    const char *kind = kinds[below(c, 6)];
    char way[32];
    if (one_in(c, 2)) {
        (void)snprintf(way, sizeof way, "P%u>D%u", p, d);
    } else {
        (void)snprintf(way, sizeof way, "D%u>P%u", d, p);
    }
    switch (below(c, 3)) {
    case 0:
        add(c, "at %ums drop %s %s count=%u", at, way, kind, 1u + below(c, 3));
        break;
    case 1:
        add(c, "at %ums dup %s %s count=%u", at, way, kind, 1u + below(c, 3));
        break;
    default:
        add(c, "at %ums delay %s %s by=%ums count=%u", at, way, kind, 1u + below(c, 4000),
            1u + below(c, 3));
        break;
    }
}

static void make_fabric_fault(struct cluster *c, uint32_t at, uint32_t p, uint32_t d)
{
    switch (below(c, 3)) {
    case 0:
        add(c, "at %ums fabric P%u D%u hold", at, p, d);
        add(c, "at %ums fabric P%u D%u resume", at + below(c, 6000), p, d);
        break;
    case 1:
        add(c, "at %ums fabric P%u D%u fail count=%u%s", at, p, d, 1u + below(c, 3),
            one_in(c, 2) ? " at=post" : "");
        break;
    default:
        add(c, "at %ums fabric P%u D%u %ums", at, p, d, 1u + below(c, 2000));
        break;
    }
}

static void make_node_fault(struct cluster *c, uint32_t at)
{
    char name[16];
    (void)node_name(c, name, sizeof name);
    switch (below(c, 5)) {
    case 0:
    case 1:
        add(c, "at %ums %s crash%s", at, name, one_in(c, 2) ? " after=commit" : "");
        add(c, "at %ums %s restart%s", at + 1u + below(c, one_in(c, 2) ? 500 : 9000), name,
            one_in(c, 12) ? " wipe" : "");
        break;
    case 2:
        add(c, "at %ums %s freeze", at, name);
        add(c, "at %ums %s thaw", at + below(c, 9000), name);
        break;
    case 3:
        add(c, "at %ums %s disk %s", at, name, one_in(c, 2) ? "full" : "fail");
        add(c, "at %ums %s disk ok", at + below(c, 5000), name);
        break;
    default:
        add(c, "at %ums %s mute", at, name);
        add(c, "at %ums %s unmute", at + below(c, 4000), name);
        break;
    }
}

static void make_fault(struct cluster *c)
{
    const uint32_t at = below(c, FAULTS_END_MS);
    const uint32_t p = below(c, c->prefills);
    const uint32_t d = below(c, c->decodes);
    switch (below(c, 5)) {
    case 0:
    case 1:
        make_message_fault(c, at, p, d);
        break;
    case 2:
        make_fabric_fault(c, at, p, d);
        break;
    case 3:
        if (one_in(c, 2)) {
            add(c, "at %ums link P%u D%u down", at, p, d);
        } else {
            add(c, "at %ums link %s down", at, one_in(c, 2) ? "P0>D0" : "D0>P0");
        }
        add(c, "at %ums link P%u D%u up", at + below(c, 9000), p, d);
        break;
    default:
        make_node_fault(c, at);
        break;
    }
}

/* From here on nothing goes wrong any more. */
static void make_peace(struct cluster *c)
{
    const uint32_t at = FAULTS_END_MS + 10000u;
    c->text->peace = c->text->count;
    for (uint32_t p = 0; p < c->prefills; p++) {
        for (uint32_t d = 0; d < c->decodes; d++) {
            add(c, "at %ums link P%u D%u up", at, p, d);
            add(c, "at %ums fabric P%u D%u resume", at, p, d);
            add(c, "at %ums fabric P%u D%u 200us", at, p, d);
        }
    }
    for (uint32_t i = 0; i < c->prefills + c->decodes; i++) {
        const char *side = i < c->prefills ? "P" : "D";
        const uint32_t index = i < c->prefills ? i : i - c->prefills;
        add(c, "at %ums %s%u thaw", at, side, index);
        add(c, "at %ums %s%u disk ok", at, side, index);
        add(c, "at %ums %s%u unmute", at, side, index);
    }
    add(c, "end expect quiescent");
}

static void make(struct text *text, uint64_t seed)
{
    struct cluster c;
    memset(&c, 0, sizeof c);
    text->count = 0;
    c.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1u;
    c.text = text;
    (void)next(&c);
    make_nodes(&c, seed);
    const uint32_t rooms = 2u + below(&c, 30);
    for (uint32_t room = 1; room <= rooms; room++) {
        make_room(&c, room);
        if (one_in(&c, 8)) {
            make_room(&c, room); /* the number lives again, or is opened while it lives */
        }
    }
    const uint32_t faults = below(&c, 16);
    for (uint32_t i = 0; i < faults; i++) {
        make_fault(&c);
    }
    make_peace(&c);
}

/* ---- running, and making small
 * --------------------------------------------------------------------------- */

static size_t join(const struct text *text, const bool *left_out, char *out, size_t size)
{
    size_t used = 0;
    for (uint32_t i = 0; i < text->count; i++) {
        if (left_out == NULL || !left_out[i]) {
            used += (size_t)snprintf(out + used, size - used, "%s\n", text->lines[i]);
        }
    }
    return used;
}

/* What one run after the other is made in, and what they come to. */
struct place {
    struct scenario scenario;
    struct world *world;
    uint64_t steps;
    uint64_t digest; /* of all journals: the same seeds give the same */
};

/* What fell, or "" when nothing did. */
static void run_text(struct place *place, const char *bytes, size_t size, uint64_t seed,
                     char *out_failure, size_t failure_size)
{
    struct scenario_error error;
    struct scenario_run run;
    struct status_detail detail = {"", 0};
    memset(&run, 0, sizeof run);
    run.seed = seed;
    run.world = place->world;
    out_failure[0] = '\0';
    if (!scenario_parse("simulator", bytes, size, &place->scenario, &error)) {
        (void)snprintf(out_failure, failure_size, "not a scenario: line %u: %s", error.line,
                       error.text);
    } else if (scenario_execute(&place->scenario, &run, stdout, &detail) != STATUS_OK) {
        (void)snprintf(out_failure, failure_size, "cannot run: %s", detail.text);
    } else if (run.failure_count > 0) {
        (void)snprintf(out_failure, failure_size, "%s", run.failures[0].seen);
    }
    place->steps += run.steps;
    place->digest = (place->digest ^ run.journal_digest) * UINT64_C(0x9e3779b97f4a7c15);
    place->world = run.world;
}

/* The kind of a failure: what stands before the first room or colon. */
static bool same_kind(const char *a, const char *b)
{
    const size_t size = strcspn(a, ":,");
    return size == strcspn(b, ":,") && memcmp(a, b, size) == 0;
}

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Leaves out whatever can be left out while the same thing falls; for SHRINK_SECONDS at most. */
static void shrink(struct place *place, const struct text *text, uint64_t seed, const char *failure,
                   bool *left_out)
{
    static char bytes[LINES_MAX * LINE_BYTES];
    char now[512];
    const double until = seconds() + SHRINK_SECONDS;
    for (uint32_t chunk = text->peace / 2u; chunk > 0; chunk /= 2u) {
        for (uint32_t at = 0; at < text->peace && seconds() < until; at += chunk) {
            bool before[LINES_MAX];
            memcpy(before, left_out, sizeof before);
            for (uint32_t i = at; i < at + chunk && i < text->peace; i++) {
                left_out[i] = true;
            }
            const size_t size = join(text, left_out, bytes, sizeof bytes);
            run_text(place, bytes, size, seed, now, sizeof now);
            if (now[0] == '\0' || !same_kind(now, failure)) {
                memcpy(left_out, before, sizeof before);
            }
        }
    }
}

static void keep(struct place *place, const struct text *text, uint64_t seed, const char *failure,
                 const char *directory)
{
    static char bytes[LINES_MAX * LINE_BYTES];
    static bool left_out[LINES_MAX];
    char path[512];
    memset(left_out, 0, sizeof left_out);
    printf("seed %" PRIu64 " fails: %s\n", seed, failure);
    shrink(place, text, seed, failure, left_out);
    (void)mkdir(directory, 0755);
    (void)snprintf(path, sizeof path, "%s/seed-%" PRIu64 ".scn", directory, seed);
    FILE *out = fopen(path, "w");
    const size_t size = join(text, left_out, bytes, sizeof bytes);
    if (out != NULL) {
        fprintf(out, "# stateroom scenario --seed %" PRIu64 " : %s\n", seed, failure);
        (void)fwrite(bytes, 1, size, out);
        (void)fclose(out);
    }
    printf("%s has it in its smallest form:\n%s\n", path, bytes);
}

struct options {
    double time;
    uint64_t first;
    uint64_t seeds;
    const char *directory;
    bool print;
};

static bool read_options(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        const bool value = i + 1 < argc;
        if (value && strcmp(argv[i], "--seconds") == 0) {
            o->time = strtod(argv[++i], NULL);
        } else if (value && strcmp(argv[i], "--first") == 0) {
            o->first = strtoull(argv[++i], NULL, 10);
        } else if (value && strcmp(argv[i], "--seeds") == 0) {
            o->seeds = strtoull(argv[++i], NULL, 10);
        } else if (value && strcmp(argv[i], "--out") == 0) {
            o->directory = argv[++i];
        } else if (value && strcmp(argv[i], "--print") == 0) {
            o->first = strtoull(argv[++i], NULL, 10);
            o->print = true;
        } else {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct text text;
    static struct place place;
    static char bytes[LINES_MAX * LINE_BYTES];
    struct options o = {60, 1, UINT64_MAX, "simulator-failures", false};
    char failure[512];
    uint64_t done = 0;
    uint32_t failed = 0;
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: simulator [--seconds S] [--first N] [--seeds N] [--out DIR] "
                        "[--print SEED]\n");
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* what was seen is there also when it is killed */
    const double started = seconds();
    for (uint64_t seed = o.first; done < o.seeds && seconds() - started < o.time && failed < 5u;
         seed++) {
        make(&text, seed);
        const size_t size = join(&text, NULL, bytes, sizeof bytes);
        if (o.print) {
            fputs(bytes, stdout);
            return 0;
        }
        /* Half of the seeds with jitter, half as the file is. */
        run_text(&place, bytes, size, seed % 2u == 0 ? 0 : seed, failure, sizeof failure);
        done++;
        if (failure[0] != '\0') {
            failed++;
            keep(&place, &text, seed % 2u == 0 ? 0 : seed, failure, o.directory);
        }
    }
    const double took = seconds() - started;
    world_destroy(place.world);
    scenario_free(&place.scenario);
    printf("%" PRIu64 " seeds from %" PRIu64 ", %" PRIu64
           " steps, %.1f s, %.0f steps/s, %u failed, journals %016" PRIx64 "\n",
           done, o.first, place.steps, took, (double)place.steps / took, failed, place.digest);
    return failed == 0 ? 0 : 1;
}
