/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's fabric: writes, and what becomes of them. */
#include "world_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the fabric
 * ----------------------------------------------------------------------------------------- */

static bool on_path(const struct world_path *path, const struct flight *f)
{
    return path->from == f->from && path->to == f->to &&
           (path->from_rank == SM_NONE || path->from_rank == f->from_rank) &&
           (path->to_rank == SM_NONE || path->to_rank == f->to_rank);
}

static struct path_rule *path_add(struct world *world, enum path_rule_kind kind,
                                  const struct world_path *path)
{
    world->paths =
        array_grow(world->paths, &world->path_capacity, world->path_count, sizeof *world->paths);
    struct path_rule *rule = &world->paths[world->path_count++];
    memset(rule, 0, sizeof *rule);
    rule->kind = kind;
    rule->path = *path;
    return rule;
}

void world_fabric_time(struct world *world, const struct world_path *path, uint64_t ns)
{
    path_add(world, PATH_TIME, path)->ns = ns;
}

void world_fabric_fail(struct world *world, const struct world_path *path, uint64_t room,
                       uint32_t count, const char *text, bool when_posted)
{
    struct path_rule *rule = path_add(world, PATH_FAIL, path);
    rule->room = room;
    rule->left = count;
    rule->when_posted = when_posted;
    (void)snprintf(rule->text, sizeof rule->text, "%s", text);
}

static void plan_completion(struct world *world, uint32_t index, uint64_t time_ns)
{
    struct event *event = event_new(world, time_ns, CLASS_COMPLETION, EVENT_COMPLETION);
    event->number = index;
    event_add(world, event);
}

void world_fabric_hold(struct world *world, const struct world_path *path, uint64_t room, bool hold)
{
    if (hold) {
        struct path_rule *rule = path_add(world, PATH_HOLD, path);
        rule->room = room;
        rule->left = 1;
        return;
    }
    for (uint32_t i = 0; i < world->path_count; i++) {
        struct path_rule *rule = &world->paths[i];
        if (rule->kind == PATH_HOLD && rule->path.from == path->from && rule->path.to == path->to &&
            (room == WORLD_NO_ROOM || rule->room == room)) {
            rule->left = 0;
        }
    }
    for (uint32_t i = 0; i < world->flight_count; i++) {
        struct flight *f = &world->flights[i];
        if (!f->over && f->held && on_path(path, f)) {
            f->held = false;
            plan_completion(world, i, world->now_ns);
        }
    }
}

static bool held(const struct world *world, const struct flight *f)
{
    for (uint32_t i = 0; i < world->path_count; i++) {
        const struct path_rule *rule = &world->paths[i];
        if (rule->kind == PATH_HOLD && rule->left > 0 && on_path(&rule->path, f) &&
            (rule->room == WORLD_NO_ROOM || rule->room == f->room)) {
            return true;
        }
    }
    return false;
}

static uint64_t flight_time(struct world *world, struct flight *f)
{
    uint64_t ns = 200000;
    for (uint32_t i = 0; i < world->path_count; i++) {
        struct path_rule *rule = &world->paths[i];
        if (!on_path(&rule->path, f)) {
            continue;
        }
        if (rule->kind == PATH_TIME) {
            ns = rule->ns; /* the newest holds */
        } else if (rule->kind == PATH_FAIL && rule->left > 0 && !f->fails &&
                   (rule->room == WORLD_NO_ROOM || rule->room == f->room)) {
            rule->left--;
            f->fails = true;
            (void)snprintf(f->text, sizeof f->text, "%s", rule->text);
            if (rule->when_posted) {
                return 0;
            }
        }
    }
    return world_jittered(world, ns);
}

static void end_flight(struct world *world, struct flight *f, const char *failure)
{
    struct sm_input done = {.kind = SM_IN_WRITE_DONE, .room = f->room};
    f->over = true;
    world->flights_open--;
    done.u.write_done.write = f->id;
    done.u.write_done.code = failure == NULL ? 0 : -5;
    done.u.write_done.text = world_text(failure == NULL ? "" : failure);
    if (world->nodes[f->from].state == NODE_RUNS && world->nodes[f->from].epoch == f->from_epoch) {
        event_input(world, world->now_ns, CLASS_COMPLETION, f->from, &done);
    }
}

void flight_post(struct world *world, uint32_t node, const struct sm_effect *effect)
{
    const uint32_t to = net_peer(world, node, effect->peer);
    struct node *sender = &world->nodes[node];
    if (to == UINT32_MAX) {
        return;
    }
    world->flights = array_grow(world->flights, &world->flight_capacity, world->flight_count,
                                sizeof *world->flights);
    const uint32_t index = world->flight_count++;
    struct flight *f = &world->flights[index];
    const struct connection *c = &world->connections[node][to];
    memset(f, 0, sizeof *f);
    world->flights_open++;
    f->id = effect->u.write.id;
    f->room = effect->room;
    f->life = sglang_life(world, node, &effect->u.write.life);
    f->from = node;
    f->from_rank = effect->rank;
    f->to = to;
    f->to_rank = effect->u.write.decode_rank;
    f->from_link = effect->link;
    f->to_link = world->connections[to][node].link;
    f->from_epoch = sender->epoch;
    f->to_epoch = world->nodes[to].epoch;
    f->pages = world_page_list(world, &effect->u.write.to, &f->page_count);
    struct world_log *log = log_add(world, WORLD_WRITE);
    log->room = effect->room;
    log->from = node;
    log->node = to;
    log->rank = f->to_rank;
    if (effect->link <= c->fenced || effect->link != c->link) {
        end_flight(world, f, "the connection is closed");
        return;
    }
    plan_completion(world, index, world->now_ns + flight_time(world, f));
}

static void land(struct world *world, const struct flight *f)
{
    struct node *to = &world->nodes[f->to];
    for (uint32_t i = 0; i < f->page_count; i++) {
        if (f->pages[i] < to->options.pool_pages && f->to_rank < to->options.ranks) {
            to->stamps[f->to_rank][f->pages[i] * WORLD_STAMPS + f->from_rank % WORLD_STAMPS] =
                (struct stamp){f->room, f->life.generation, f->life.epoch};
        }
    }
}

void flight_complete(struct world *world, uint32_t index)
{
    struct flight *f = &world->flights[index];
    const struct node *to = &world->nodes[f->to];
    const bool fence = (world->options.protections_off >> SM_PROTECT_FENCE & 1u) == 0;
    if (f->over) {
        return;
    }
    if (world->nodes[f->from].state == NODE_DOWN || world->nodes[f->from].epoch != f->from_epoch) {
        f->over = true; /* the writer is gone */
        world->flights_open--;
        return;
    }
    if (held(world, f)) {
        f->held = true;
        return;
    }
    const bool gone = to->state == NODE_DOWN || to->epoch != f->to_epoch;
    const bool fenced = fence && world->connections[f->to][f->from].fenced >= f->to_link;
    if (f->fails || gone || fenced) {
        end_flight(world, f, f->fails ? f->text : "the peer's memory cannot be reached");
        return;
    }
    land(world, f);
    end_flight(world, f, NULL);
}

/* Our end of a connection is closed: what is in it ends before the fence is told. */
void flight_fence(struct world *world, uint32_t node, uint32_t peer, uint32_t link)
{
    if ((world->options.protections_off >> SM_PROTECT_FENCE & 1u) != 0) {
        return;
    }
    for (uint32_t i = 0; i < world->flight_count; i++) {
        struct flight *f = &world->flights[i];
        if (!f->over && f->from == node && f->to == peer && f->from_link <= link) {
            end_flight(world, f, "the connection is closed");
        }
    }
}
