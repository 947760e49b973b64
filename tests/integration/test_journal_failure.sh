#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A journal that cannot be written for a while: every input that was in the failed batch must have its effect
# all the same. A limit on file size (prlimit --fsize) stands for the full disk: it needs no root and takes
# effect at any byte. usage: test_journal_failure.sh BIN_DIR
set -u
bin=$1
dir=$(mktemp -d /tmp/stateroom-test-XXXXXX)
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; rm -rf "$dir"' EXIT

config() { # NAME PEER
  cat >"$dir/$1.yaml" <<YAML
name: $1
listen: ipc://$dir/$1.peer
engines: $dir/$1-engines/socket
journal: {path: $dir/journal-$1}
fabric: {provider: tcp}
peers:
  - {name: $2, address: "ipc://$dir/$2.peer"}
YAML
}
config P D
config D P

fail() {
  echo "FAILED: $mode: $*"
  for file in "$dir"/*.log "$dir"/*.out; do echo "-- $file"; tail -15 "$file" | cut -c1-300; done
  exit 1
}

# wait_for PATTERN FILE: at most 20 s
wait_for() {
  for _ in $(seq 200); do grep -qs "$1" "$2" && return; sleep 0.1; done
  fail "'$1' did not come in $2"
}

# The log goes through a pipe, so that the limit touches the journal alone.
start_node() { # NAME
  "$bin/stateroomd" -c "$dir/$1.yaml" 2> >(exec cat >"$dir/$1.log") &
  node=$!; pids+=($node)
  wait_for node.ready "$dir/$1.log"
}
start_engine() { # NAME ARGUMENTS...
  "$bin/probe_engine" "$dir/$1-engines/socket" "$dir/go" "${@:2}" >"$dir/$1-engine.out" 2>&1 &
  engine=$!; pids+=($engine)
}
limit() { prlimit --pid "$decode" --fsize="$1:unlimited"; }

# A second SIGTERM would end a node at once: "asked" when the decode node has had its first.
finish() { # [asked]: stops what runs; the decode node's journal must be whole
  [ "${1:-}" = asked ] || kill -TERM "${pids[@]}" 2>/dev/null
  for _ in $(seq 200); do kill -0 "$decode" 2>/dev/null || break; sleep 0.1; done
  kill -0 "$decode" 2>/dev/null && fail "the node does not stop on SIGTERM"
  wait "$decode" || fail "the node ended with $?"
  "$bin/stateroom" verify "$dir/journal-D" >"$dir/verify.out" 2>&1 || fail "verify"
  "$bin/stateroom" replay --check "$dir/journal-D" >"$dir/replay.out" 2>&1 || fail "replay"
  grep -q identical "$dir/replay.out" || fail "replay differs"
  wait
  pids=()
  rm -rf "$dir"/journal-* "$dir"/*-engines "$dir"/*.log "$dir"/*.out "$dir/go"
}

# What happens while nothing can be written: an engine attaches; the peer comes up. Both must be
# there afterwards: a room goes over.
for mode in "an engine attaches" "the peer comes up"; do
  start_node D; decode=$node
  if [ "$mode" = "the peer comes up" ]; then
    start_engine D decode; first=$engine
    wait_for engine.attached "$dir/D.log"
    limit 4096
    start_node P
  else
    start_node P
    wait_for peer.up "$dir/D.log"
    limit 4096
    start_engine D decode; first=$engine
  fi
  wait_for journal.failed "$dir/D.log"
  limit unlimited
  wait_for journal.works_again "$dir/D.log"
  start_engine P prefill; second=$engine
  wait_for engine.attached "$dir/P.log"
  touch "$dir/go"
  wait "$first" || fail "the decode engine has no result"
  wait "$second" || fail "the prefill engine has no result"
  grep -q '^result succeeded' "$dir/D-engine.out" || fail "decode's room did not succeed"
  grep -q '^result succeeded' "$dir/P-engine.out" || fail "prefill's room did not succeed"
  echo "passed: $mode"
  finish
done

# Many commands, and a disk that takes no byte, some, or a little more with each retry: each command
# has one answer.
for mode in 4096 +8192 steps; do
  start_node D; decode=$node
  start_engine D flood 3000
  wait_for engine.attached "$dir/D.log"
  sleep 0.3
  size=$(stat -c %s "$dir/journal-D/00000000000000000001.mdb")
  case $mode in
    +*) limit $((size + ${mode#+})) ;;
    *) limit 4096 ;;
  esac
  touch "$dir/go"
  wait "$engine" || fail "commands have no answer"
  if [ "$mode" = steps ]; then
    for pages in 4 16 32 64; do limit $((size + pages * 4096)); sleep 1.1; done
  fi
  wait_for journal.failed "$dir/D.log"
  limit unlimited
  wait_for journal.works_again "$dir/D.log"
  grep -q 'with_503=[1-9]' "$dir/D-engine.out" || fail "nothing was refused with 503"
  echo "passed: $mode: $(cat "$dir/D-engine.out")"
  finish
done

# A stop that falls into the failure is not forgotten.
mode="a stop while nothing can be written"
start_node D; decode=$node
limit 4096
kill -TERM "$decode"
wait_for journal.failed "$dir/D.log"
limit unlimited
finish asked
echo "passed: $mode"
