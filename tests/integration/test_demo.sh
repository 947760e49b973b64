#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The main job over real processes: rooms of the trace over tcp and shm, an engine killed, each node killed
# with kill -9 in mid-run; the demo itself fails unless all bytes are right, nothing is left over, and both
# journals replay identical. usage: test_demo.sh BIN_DIR
set -eu
bin=$1
dir=$(mktemp -d /tmp/stateroom-test-XXXXXX)
trap 'rm -rf "$dir"' EXIT
export NO_COLOR=1

run() { # NAME OPTIONS...
  name=$1; shift
  timeout 200 "$bin/stateroom" demo --dir "$dir/$name" --pages 96 "$@" >"$dir/$name.out" 2>&1 || {
    echo "FAILED: demo $*"
    tail -60 "$dir/$name.out"
    tail -20 "$dir/$name/P.log" "$dir/$name/D.log"
    exit 1
  }
  "$bin/stateroom" replay --check "$dir/$name/journal-P" >"$dir/check"
  "$bin/stateroom" replay --check "$dir/$name/journal-D" >>"$dir/check"
  [ "$(grep -c identical "$dir/check")" -eq 2 ] || { cat "$dir/check"; exit 1; }
  "$bin/stateroom" verify "$dir/$name/journal-P" >/dev/null
}

run tcp --requests 40
grep -q '400 refused before the queue' "$dir/tcp.out"
"$bin/stateroom" rooms -j "$dir/tcp/journal-D" --outcome succeeded --limit 0 | grep -q succeeded
"$bin/stateroom" rooms -j "$dir/tcp/journal-P" --http 400 --json | head -1 | grep -q '"reason":"input is longer'
"$bin/stateroom" stat "$dir/tcp/journal-P" | grep -q 'verdicts'
run shm --requests 30 --provider shm
# Both restart from a snapshot and the entries after it.
export STATEROOM_JOURNAL_SNAPSHOT_EVERY=100
run killp --requests 60 --kill-node P --seed 2
grep -q 'journal.recovered .*from_snapshot_at=[1-9]' "$dir/killp/P.log" || { echo "no recovery from a snapshot"; exit 1; }
# Rooms that the restart ended are listed with its verdict, and none is live for ever.
"$bin/stateroom" rooms -j "$dir/killp/journal-P" --outcome live | grep -q 'no room is like that' ||
  { echo "rooms are live after all is over"; exit 1; }
"$bin/stateroom" rooms -j "$dir/killp/journal-P" --http 503 | grep -q 'the coordinator restarted' ||
  { echo "no room that the restart ended is listed"; exit 1; }
run killd --requests 40 --kill-node D --seed 3
# Pools are named after their engine's process: none of ours may be left, whoever else runs here.
for pid in $(grep -ho 'event=engine.attached .*pid=[0-9]*' "$dir"/*/?.log | sed 's/.*pid=//' | sort -u); do
  ls /dev/shm/stateroom-"$pid"-* 2>/dev/null && { echo "shared memory is left over"; exit 1; }
done
echo "all runs were whole"
