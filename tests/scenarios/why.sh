#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What `why` says of rooms of scenarios, word for word (why.txt); of every room of every scenario that it says
# something; of half journals the node's name, and what a room without an end waits for.
# usage: why.sh STATEROOM [--update]
set -eu
s=$1
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d /tmp/stateroom-test-XXXXXX)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

"$s" scenario --journal "$dir/j" "$here"/*/*.scn >"$dir/out" || { cat "$dir/out"; fail "scenarios"; }

# ---- word for word
for name in equal-tp prefill-twice-decode refused-before-published abort-while-writing second-rank-publishes-late \
  abort-before-open typed-cause-within-the-grace frames-cause-too-late owed-verdict-after-a-crash \
  both-coordinators-die-at-once gone-for-an-hour decode-leg-never-comes prefill-alone release-of-a-live-room \
  journal-broken-write-held-past-hope reasons-as-they-were-given; do
  for node in "$dir/j/$name"/*; do
    [ -d "$node" ] || fail "no journal of $name"
    for room in $("$s" rooms "$node" --json -n 0 | sed 's/.*"room":"\([0-9]*\)".*/\1/' | sort -un | head -3); do
      echo "==== $name, node ${node##*/}, room $room"
      "$s" why "$room" "$node"
    done
  done
done >"$dir/said" || fail "why"
if [ "${2:-}" = --update ]; then
  cp "$dir/said" "$here/why.txt"
fi
diff "$here/why.txt" "$dir/said" || fail "why does not say what why.txt says (why.sh STATEROOM --update writes it)"

# ---- everything says something, in lines of a terminal, and as JSON
for node in "$dir"/j/*/*; do
  for room in $("$s" rooms "$node" --json -n 3 | sed 's/.*"room":"\([0-9]*\)".*/\1/' | sort -un); do
    "$s" why --all "$room" "$node" >"$dir/one" || fail "why $room of $node"
    grep -q "^Room $room" "$dir/one" || { cat "$dir/one"; fail "room $room of $node"; }
    "$s" why --all --json "$room" "$node" >>"$dir/json"
  done
done
python3 - "$dir/json" <<'PYTHON' || fail "its JSON"
import json, sys
count = 0
for line in open(sys.argv[1], encoding="ascii"):
    o = json.loads(line)
    assert o["text"].startswith(f"Room {o['room']}"), o
    if o.get("outcome") == "failed":
        assert o["http"] >= 400 and o["decided_by"] and o["verdict_entry"] > 0, o
        assert str(o["http"]) in o["text"] and o["decided_by"] in o["text"], o
    if o.get("cleared_ns") is not None:
        assert all(r["freed_ns"] is not None for r in o["ranks"] if r["pages"]), o
    count += 1
assert count > 200, count
PYTHON

# ---- a journal that ends in the middle, and one that begins there
"$s" export "$dir/j/abort-while-writing/P" --until 8 -o "$dir/live" >/dev/null
"$s" why 7 "$dir/live" | tr '\n' ' ' >"$dir/out"
grep -q 'It has no verdict: at the journal.s end (entry 8).* it is transferring, has 1 of 1 destinations, 1 of its writes in flight' \
  "$dir/out" || { cat "$dir/out"; fail "a live room"; }
"$s" export "$dir/j/abort-while-writing/D" --until 12 -o "$dir/held" >/dev/null
"$s" why 7 "$dir/held" | tr '\n' ' ' >"$dir/out"
grep -q 'The 31 pages of rank 0 are still held at the journal.s end' "$dir/out" || { cat "$dir/out"; fail "held pages"; }
"$s" export "$dir/j/five-lives-in-a-row/P" --from 28 -o "$dir/half" >/dev/null
"$s" why 7 "$dir/half" | grep -q 'half at node P, generation 5' || fail "the node's name in a half journal"
"$s" history 7 "$dir/half" | grep -q 'at node P' || fail "the node's name in the history of a half journal"
code=0; "$s" why 99 "$dir/half" 2>"$dir/out" || code=$?
[ "$code" = 4 ] && grep -q 'knows nothing of room 99' "$dir/out" || fail "an unknown room: $code"
code=0; "$s" why 0 "$dir/half" 2>"$dir/out" || code=$?
[ "$code" = 2 ] || fail "room 0: $code"
echo "why says what it should"
