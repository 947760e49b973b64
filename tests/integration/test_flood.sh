#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# An engine that sends more than anybody reads: tens of thousands of opens, and it takes no answer, or is
# stopped altogether. Other engines are served meanwhile, the node stops when it is asked to, and who reads
# in the end has one answer for each command. usage: test_flood.sh BIN_DIR
set -u
bin=$1
rooms=60000
dir=$(mktemp -d /tmp/stateroom-test-XXXXXX)
pids=()
trap 'kill -CONT "${pids[@]}" 2>/dev/null; kill -9 "${pids[@]}" 2>/dev/null; rm -rf "$dir"' EXIT

cat >"$dir/D.yaml" <<YAML
name: D
listen: ipc://$dir/D.peer
engines: $dir/engines/socket
ranks: 2
stop_grace: 2s
retry_max: 1s
journal: {path: $dir/journal}
fabric: {provider: tcp}
peers:
  - {name: P, address: "ipc://$dir/P.peer"}
YAML

fail() {
  echo "FAILED: $mode: $*"
  for file in "$dir"/*.log "$dir"/*.out; do echo "-- $file"; tail -15 "$file" | cut -c1-300; done
  exit 1
}
wait_for() { # PATTERN FILE: at most 60 s
  for _ in $(seq 600); do grep -qs "$1" "$2" && return; sleep 0.1; done
  fail "'$1' did not come in $2"
}
start() {
  "$bin/stateroomd" -c "$dir/D.yaml" 2>"$dir/D.log" &
  node=$!; pids=($node)
  wait_for node.ready "$dir/D.log"
  "$bin/probe_engine" "$dir/engines/socket" "$dir/go" gush $rooms 0 >"$dir/gush.out" 2>&1 &
  engine=$!; pids+=($engine)
  wait_for engine.attached "$dir/D.log"
  touch "$dir/go"
  wait_for gushed "$dir/gush.out"
}
another() { # another engine's commands are answered
  timeout 60 "$bin/probe_engine" "$dir/engines/socket" "$dir/go" flood 200 1 >"$dir/other.out" 2>&1 ||
    fail "another engine is not served"
}
stop() {
  kill -TERM "$node"
  for _ in $(seq 300); do kill -0 "$node" 2>/dev/null || break; sleep 0.1; done
  kill -0 "$node" 2>/dev/null && fail "the node does not stop on SIGTERM"
  wait "$node" || fail "the node ended with $?"
  "$bin/stateroom" verify "$dir/journal" >"$dir/verify.out" 2>&1 || fail "verify"
  "$bin/stateroom" replay --check "$dir/journal" >"$dir/replay.out" 2>&1 || fail "replay"
  grep -q identical "$dir/replay.out" || fail "replay differs"
}
clean() { rm -rf "$dir/journal" "$dir/engines" "$dir"/*.log "$dir"/*.out "$dir"/go*; }

mode="an engine that reads late"
start
another
touch "$dir/go.read"
wait "$engine" || fail "commands have no answer"
grep -q "^sent=$rooms " "$dir/gush.out" || fail "not all was sent"
stop
echo "passed: $mode: $(tail -1 "$dir/gush.out")"
clean

mode="an engine that is stopped"
start
kill -STOP "$engine"
another
stop
{ kill -KILL "$engine"; wait "$engine"; } 2>/dev/null
echo "passed: $mode"
