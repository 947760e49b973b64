/* SPDX-License-Identifier: Apache-2.0 */
/* The head, and which line is what. */
#include "scenario_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void scenario_free(struct scenario *s)
{
    chunks_free(&s->memory);
    free(s->statements);
    free(s->expectations);
    memset(s, 0, sizeof *s);
}

/* Empty, with the memory of what it was. */
static void renew(struct scenario *s)
{
    struct scenario fresh = {.statements = s->statements,
                             .statement_capacity = s->statement_capacity,
                             .expectations = s->expectations,
                             .expectation_capacity = s->expectation_capacity,
                             .memory = s->memory};
    chunks_reset(&fresh.memory);
    *s = fresh;
}

/* ---- the head
 * ------------------------------------------------------------------------------------------ */

static bool name_sound(const char *name)
{
    for (const char *c = name; *c != '\0'; c++) {
        const bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                            (*c >= '0' && *c <= '9') || *c == '_' || *c == '-';
        if (!letter) {
            return false;
        }
    }
    return name[0] != '\0' && strlen(name) <= SM_NAME_BYTES_MAX;
}

static bool node_line(struct parser *p)
{
    struct scenario *s = p->s;
    uint64_t value = 0;
    if (s->node_count == WORLD_NODES_MAX) {
        return parse_wrong(p, 1, "more than %u nodes", WORLD_NODES_MAX);
    }
    struct world_node_options *node = &s->nodes[s->node_count];
    world_node_defaults(node);
    const uint32_t column = parse_here(p);
    const char *name = parse_take(p, "a name");
    if (name == NULL) {
        return false;
    }
    if (!name_sound(name)) {
        return parse_wrong(p, column, "a name has letters, digits, _ and -");
    }
    (void)snprintf(node->name, sizeof node->name, "%s", name);
    const uint32_t side_column = parse_here(p);
    const char *side = parse_take(p, "prefill or decode");
    if (side == NULL) {
        return false;
    }
    node->side = strcmp(side, "prefill") == 0  ? (uint32_t)SM_PREFILL
                 : strcmp(side, "decode") == 0 ? (uint32_t)SM_DECODE
                                               : 0;
    if (node->side == 0) {
        return parse_wrong(p, side_column, "a node is prefill or decode");
    }
    for (const struct word *word = parse_option(p); word != NULL; word = parse_option(p)) {
        if (strcmp(word->text, "ranks") == 0) {
            if (!parse_number_value(p, word, WORLD_RANKS_MAX, &value) || value == 0) {
                return value == 0 ? parse_wrong(p, parse_value_column(word), "a node has a rank")
                                  : false;
            }
            node->ranks = (uint32_t)value;
        } else if (strcmp(word->text, "pool") == 0) {
            if (!parse_number_value(p, word, WORLD_POOL_PAGES_MAX, &value) || value == 0) {
                return value == 0 ? parse_wrong(p, parse_value_column(word), "a pool has a page")
                                  : false;
            }
            node->pool_pages = (uint32_t)value;
        } else if (strcmp(word->text, "wire") == 0 && strcmp(word->value, "native") == 0) {
            continue;
        } else if (strcmp(word->text, "wire") == 0 && strcmp(word->value, "sglang") == 0) {
            node->sglang = true;
        } else {
            return parse_wrong(p, word->column, "'%s=%s' is not known here", word->text,
                               word->value);
        }
    }
    s->node_count++;
    return parse_finish(p);
}

static bool set_geometry(struct world_node_options *node, const char *key, const char *value)
{
    static const char *const names[] = {"page_tokens", "layers",      "kv_heads",
                                        "item_bytes",  "planes",      "dtype",
                                        "layer_first", "layer_count", "stages"};
    uint32_t *const fields[] = {
        &node->geometry.page_tokens, &node->geometry.layers,      &node->geometry.kv_heads,
        &node->geometry.item_bytes,  &node->geometry.planes,      &node->geometry.dtype,
        &node->geometry.layer_first, &node->geometry.layer_count, &node->geometry.stages};
    uint32_t which = 0;
    uint64_t number_of = 0;
    if (!parse_word_of(key, names, sizeof names / sizeof names[0], &which)) {
        return false;
    }
    if (!parse_number(value, UINT32_MAX, &number_of)) {
        /* An element type may be a name: it is compared, never interpreted. */
        for (const char *c = value; *c != '\0'; c++) {
            number_of = (number_of * 131u + (unsigned char)*c) & 0x7fffffffu;
        }
    }
    *fields[which] = (uint32_t)number_of;
    return which == 5u || number_of > 0;
}

static bool set_one(struct parser *p, struct world_node_options *node, const char *key,
                    const char *value, uint32_t column)
{
    struct status_detail detail;
    if (strcmp(key, "auto_release") == 0) {
        node->auto_release = strcmp(value, "on") == 0;
        return node->auto_release || strcmp(value, "off") == 0
                   ? true
                   : parse_wrong(p, column, "auto_release is on or off");
    }
    if (strncmp(key, "geometry.", 9) == 0) {
        return set_geometry(node, key + 9, value)
                   ? true
                   : parse_wrong(p, column,
                                 "geometry has page_tokens, layers, kv_heads, item_bytes, "
                                 "planes, dtype, layer_first, layer_count and stages, and numbers");
    }
    return policy_set(&node->settings, key, value, &detail) == STATUS_OK
               ? true
               : parse_wrong(p, column, "%.200s", detail.text);
}

static bool set_line(struct parser *p)
{
    struct scenario_place at = {SM_NONE, SM_NONE};
    const uint32_t column = parse_here(p);
    for (uint32_t i = 0; i < p->s->node_count && p->count == 4u; i++) {
        if (strcmp(p->words[p->at].text, p->s->nodes[i].name) == 0) {
            at.node = i;
        }
    }
    if (p->count == 4u && !parse_take_place(p, &at)) {
        return false;
    }
    const uint32_t key_column = parse_here(p);
    const char *key = parse_take(p, "a key");
    const char *value = key == NULL ? NULL : parse_take(p, "a value");
    if (value == NULL) {
        return false;
    }
    (void)column;
    if (p->s->node_count == 0) {
        return parse_wrong(p, 1, "set stands behind the nodes that it is for");
    }
    for (uint32_t i = 0; i < p->s->node_count; i++) {
        if ((at.node == SM_NONE || at.node == i) &&
            !set_one(p, &p->s->nodes[i], key, value, key_column)) {
            return false;
        }
    }
    return parse_finish(p);
}

static bool map_line(struct parser *p)
{
    struct scenario_place to;
    if (!parse_take_place(p, &to)) {
        return false;
    }
    const uint32_t column = parse_here(p);
    const char *sources = parse_take(p, "prefill ranks (like P.0,P.1)");
    if (sources == NULL) {
        return false;
    }
    if (p->s->nodes[to.node].side != SM_DECODE || to.rank == SM_NONE) {
        return parse_wrong(p, p->words[1].column, "map names a decode rank and its prefill ranks");
    }
    uint64_t mask = 0;
    for (const char *at = sources; *at != '\0';) {
        struct scenario_place from;
        const size_t size = strcspn(at, ",");
        if (!parse_place(p, at, size, column + (uint32_t)(at - sources), &from)) {
            return false;
        }
        if (from.rank == SM_NONE || p->s->nodes[from.node].side != SM_PREFILL) {
            return parse_wrong(p, column, "map names a decode rank and its prefill ranks");
        }
        mask |= UINT64_C(1) << from.rank;
        at += size + (at[size] == ',' ? 1u : 0u);
    }
    p->s->nodes[to.node].sources_by_hand[to.rank] = mask;
    return parse_finish(p);
}

static bool needs_line(struct parser *p)
{
    while (parse_more(p)) {
        const uint32_t column = parse_here(p);
        const char *text = parse_take(p, "a protection");
        bool found = false;
        if (text == NULL) {
            return false;
        }
        for (uint32_t i = 0; i < SM_PROTECT_COUNT; i++) {
            const size_t size = strlen(text);
            const size_t bare = size > 0 && text[size - 1u] == ',' ? size - 1u : size;
            const char *name = sm_protection_name(i);
            if (strlen(name) == bare && memcmp(name, text, bare) == 0) {
                p->s->needs |= 1u << i;
                found = true;
            }
        }
        if (!found) {
            return parse_wrong(p, column,
                               "'%s' is no protection: tombstones, drain, ownership, gather, "
                               "generations, retry, single_notice, journal_first, fence",
                               text);
        }
    }
    return true;
}

/* ---- lines
 * ---------------------------------------------------------------------------------------------- */

static bool at_line(struct parser *p)
{
    uint64_t time_ns = 0;
    p->body = true;
    if (!parse_take_time(p, &time_ns)) {
        return false;
    }
    if (parse_is_next(p, "expect")) {
        p->at++;
        return parse_expectation(p, WHEN_AT, time_ns);
    }
    if (parse_is_next(p, "link")) {
        p->at++;
        return parse_link(p, time_ns);
    }
    if (parse_is_next(p, "latency")) {
        p->at++;
        return parse_latency(p, time_ns);
    }
    if (parse_is_next(p, "fabric")) {
        p->at++;
        return parse_fabric(p, time_ns);
    }
    if (parse_is_next(p, "drop") || parse_is_next(p, "dup") || parse_is_next(p, "delay")) {
        const char *kind = p->words[p->at++].text;
        return parse_rule(p, time_ns,
                          strcmp(kind, "drop") == 0  ? WORLD_DROP
                          : strcmp(kind, "dup") == 0 ? WORLD_DOUBLE
                                                     : WORLD_DELAY);
    }
    return parse_subject(p, time_ns);
}

static bool end_line(struct parser *p)
{
    if (parse_is_next(p, "at")) {
        p->at++;
        return parse_take_time(p, &p->s->end_ns) && parse_finish(p);
    }
    if (!parse_is_next(p, "expect")) {
        return parse_wrong(p, parse_here(p), "expected `end expect CLAIM` or `end at TIME`");
    }
    p->at++;
    return parse_expectation(p, WHEN_END, UINT64_MAX);
}

static bool by_line(struct parser *p)
{
    uint64_t time_ns = 0;
    if (!parse_take_time(p, &time_ns)) {
        return false;
    }
    if (!parse_is_next(p, "expect")) {
        return parse_wrong(p, parse_here(p), "expected `expect` here");
    }
    p->at++;
    return parse_expectation(p, WHEN_BY, time_ns);
}

static bool line(struct parser *p)
{
    const char *first = p->words[0].text;
    p->at = 1;
    if (p->s->title == NULL) {
        if (strcmp(first, "scenario") != 0) {
            return parse_wrong(p, 1, "a scenario begins with: scenario \"title\"");
        }
        const char *title = parse_take(p, "a title in quotes");
        if (title == NULL) {
            return false;
        }
        p->s->title = title;
        return parse_finish(p);
    }
    if (strcmp(first, "ref") == 0) {
        return true;
    }
    if (strcmp(first, "node") == 0) {
        return node_line(p);
    }
    if (strcmp(first, "set") == 0) {
        return set_line(p);
    }
    if (strcmp(first, "map") == 0) {
        return map_line(p);
    }
    if (strcmp(first, "needs") == 0) {
        return needs_line(p);
    }
    if (strcmp(first, "latency") == 0) {
        return parse_latency(p, 0);
    }
    if (strcmp(first, "fabric") == 0) {
        return parse_fabric(p, 0);
    }
    if (strcmp(first, "at") == 0) {
        return at_line(p);
    }
    if (strcmp(first, "by") == 0) {
        return by_line(p);
    }
    if (strcmp(first, "end") == 0) {
        return end_line(p);
    }
    if (strcmp(first, "never") == 0) {
        return parse_expectation(p, WHEN_NEVER, UINT64_MAX);
    }
    return parse_wrong(
        p, 1,
        "'%s' begins no line: scenario, ref, node, set, latency, fabric, map, needs, at, "
        "by, end, never",
        first);
}

/* SGLang's ranks find each other by their TP sizes: no frame says otherwise. */
static bool check_maps(struct parser *p, const struct world_node_options *prefill,
                       const struct world_node_options *decode)
{
    for (uint32_t rank = 0; rank < decode->ranks; rank++) {
        const uint64_t by_hand = decode->sources_by_hand[rank];
        const uint32_t each = prefill->ranks > decode->ranks ? prefill->ranks / decode->ranks : 1u;
        const uint64_t by_size = prefill->ranks > decode->ranks
                                     ? ((UINT64_C(1) << each) - 1u) << (rank * each)
                                     : UINT64_C(1) << (rank / (decode->ranks / prefill->ranks));
        if (by_hand != 0 && by_hand != by_size) {
            return parse_wrong(p, 1,
                               "map %s.%u differs from what the TP sizes say, and %s and %s speak "
                               "in SGLang's frames, which have no other mapping",
                               decode->name, rank, prefill->name, decode->name);
        }
    }
    return true;
}

static bool check_whole(struct parser *p)
{
    if (p->s->title == NULL) {
        return parse_wrong(p, 1, "a scenario begins with: scenario \"title\"");
    }
    if (p->s->node_count == 0) {
        return parse_wrong(p, 1, "a scenario has nodes: node NAME prefill|decode");
    }
    for (uint32_t i = 0; i < p->s->node_count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            const struct world_node_options *a = &p->s->nodes[i];
            const struct world_node_options *b = &p->s->nodes[j];
            if (strcmp(a->name, b->name) == 0) {
                return parse_wrong(p, 1, "two nodes are named %s", a->name);
            }
            if (a->side != b->side && a->ranks % b->ranks != 0 && b->ranks % a->ranks != 0) {
                return parse_wrong(p, 1, "%s has %u ranks and %s %u: one must divide the other",
                                   a->name, a->ranks, b->name, b->ranks);
            }
            if (a->side != b->side && (a->sglang || b->sglang) &&
                !check_maps(p, a->side == SM_PREFILL ? a : b, a->side == SM_PREFILL ? b : a)) {
                return false;
            }
        }
    }
    return true;
}

bool scenario_parse(const char *file, const char *text, size_t size, struct scenario *out,
                    struct scenario_error *out_error)
{
    struct parser *p = calloc(1, sizeof *p);
    bool well = true;
    renew(out);
    memset(out_error, 0, sizeof *out_error);
    if (p == NULL) {
        abort();
    }
    out->file = file;
    p->s = out;
    p->error = out_error;
    p->line_end = 1;
    if (size > SCENARIO_TEXT_MAX || memchr(text, 0, size) != NULL) {
        p->line = 1;
        well = parse_wrong(p, 1, size > SCENARIO_TEXT_MAX ? "larger than 4 MiB" : "a zero byte");
    }
    for (size_t at = 0; at < size && well;) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t length = end != NULL ? (size_t)(end - text) - at : size - at;
        p->line++;
        p->line_text = text + at;
        p->line_size = length;
        well = parse_split(p, text + at, length) && (p->count == 0 || line(p));
        at += length + 1u;
    }
    p->line = p->line == 0 ? 1u : p->line;
    well = well && check_whole(p);
    free(p);
    return well;
}
