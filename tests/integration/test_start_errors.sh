#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What a wrong start says: each text must name the thing, the cause and the way out, and nothing may be
# harmed. usage: test_start_errors.sh BIN_DIR
set -eu
bin=$1
dir=$(mktemp -d /tmp/stateroom-test-XXXXXX)
pids=
trap 'kill $pids 2>/dev/null || true; rm -rf "$dir"' EXIT

config() { # NAME PORT [EXTRA]
  mkdir -p "$dir/$1"
  cat >"$dir/$1.yaml" <<YAML
name: $1
listen: ipc://$dir/$1.peer
engines: $dir/$1-engines/socket
journal:
  path: $dir/journal-$1
fabric: {provider: tcp}
${2:-}
YAML
}

# expect CODE PATTERN COMMAND...: the command ends with CODE and says PATTERN
expect() {
  code=$1; pattern=$2; shift 2
  set +e
  timeout 20 "$@" >"$dir/out" 2>&1
  got=$?
  set -e
  if [ "$got" -ne "$code" ] || ! grep -qE "$pattern" "$dir/out"; then
    echo "FAILED: $*"
    echo "expected status $code and /$pattern/, got status $got and:"
    cat "$dir/out"
    exit 1
  fi
}

config a
expect 2 'no key is named room_deadlin; did you mean room_deadline\?' \
  "$bin/stateroomd" -c "$dir/a.yaml" --set room_deadlin=1s
expect 2 "heartbeat_bound: '5' is not a duration" "$bin/stateroomd" -c "$dir/a.yaml" --set heartbeat_bound=5
sed 's/^fabric.*/jurnal: 1/' "$dir/a.yaml" >"$dir/wrong.yaml"
expect 2 'wrong.yaml:6:1: no key is named jurnal' "$bin/stateroomd" -c "$dir/wrong.yaml"
expect 2 ':[0-9]+:[0-9]+: name stands twice' sh -c "(cat $dir/a.yaml; echo 'name: again') > $dir/twice.yaml; \
  exec $bin/stateroomd -c $dir/twice.yaml"
expect 2 'not YAML' sh -c "printf 'name: \"a' > $dir/broken.yaml; exec $bin/stateroomd -c $dir/broken.yaml"
expect 2 'missing.yaml: No such file' "$bin/stateroomd" -c "$dir/missing.yaml"
expect 2 'every node needs a name' "$bin/stateroomd"
expect 0 'the configuration is well' "$bin/stateroomd" -c "$dir/a.yaml" --check-config
expect 0 'room_deadline: 7s +# flag' "$bin/stateroomd" -c "$dir/a.yaml" --set room_deadline=7s --print-config
expect 2 'listen: .*reachable from other hosts.*insecure' "$bin/stateroomd" -c "$dir/a.yaml" --set listen=tcp://0.0.0.0:17699
expect 2 "listen: 'tcp://127.0.0.1' is not an address" "$bin/stateroomd" -c "$dir/a.yaml" --set listen=tcp://127.0.0.1
expect 1 'provider nonsense does not offer' "$bin/stateroomd" -c "$dir/a.yaml" --set fabric.provider=nonsense
expect 1 "fabric.address '192.0.2.1' is not of this host" "$bin/stateroomd" -c "$dir/a.yaml" --set fabric.address=192.0.2.1
[ ! -e "$dir/a.peer" ] || { echo "a node that cannot start leaves a socket"; exit 1; }
expect 1 'must belong to this user and be closed to others' sh -c "mkdir $dir/open; chmod 755 $dir/open; \
  exec $bin/stateroomd -c $dir/a.yaml --set engines=$dir/open/socket"
expect 1 'directory cannot be made|cannot be opened' "$bin/stateroomd" -c "$dir/a.yaml" \
  --set journal.path=/proc/no/such/place

# A port in use, and a journal that another process has.
"$bin/stateroomd" -c "$dir/a.yaml" --set listen=tcp://127.0.0.1:17698 2>"$dir/a.log" &
first=$!
pids=$first
n=0
until grep -q node.ready "$dir/a.log"; do n=$((n + 1)); [ $n -lt 100 ] || { cat "$dir/a.log"; exit 1; }; sleep 0.1; done
config c
expect 1 'cannot listen on tcp://127.0.0.1:17698.*another process has it' \
  "$bin/stateroomd" -c "$dir/c.yaml" --set listen=tcp://127.0.0.1:17698
expect 1 'cannot be made: No such file.*make the directory' "$bin/stateroomd" -c "$dir/c.yaml" \
  --set journal.path="$dir/no/such/place"
expect 1 "process $first has it" "$bin/stateroomd" -c "$dir/c.yaml" --set journal.path="$dir/journal-a"
expect 1 "engine link: process $first has .*name another path .engines" \
  "$bin/stateroomd" -c "$dir/c.yaml" --set engines="$dir/a-engines/socket"
kill -0 $first || { echo "the first node was harmed"; exit 1; }
[ -S "$dir/a-engines/socket" ] || { echo "the first node's socket was taken away"; exit 1; }
kill -TERM $first
wait $first || { echo "a graceful stop must end with 0"; cat "$dir/a.log"; exit 1; }
[ ! -e "$dir/a-engines/socket" ] || { echo "the socket is left over"; exit 1; }
pids=

expect 1 "is of node a and this node's name is c" "$bin/stateroomd" -c "$dir/c.yaml" --set journal.path="$dir/journal-a"

# A journal that is none, one that is cut, one with a flipped bit.
mkdir "$dir/foreign"
expect 4 'No such file' "$bin/stateroom" replay "$dir/nowhere"
expect 4 'there is no journal' "$bin/stateroom" rooms "$dir"
expect 4 'neither a journal.s directory nor a bundle' "$bin/stateroom" rooms "$dir/a.yaml"
[ -z "$(find "$dir" -maxdepth 1 -name '*.mdb*')" ] || { echo "a reader has left a lock file where no journal is"; exit 1; }
head -c 300000 /dev/urandom >"$dir/foreign/data.mdb"
expect 6 'foreign: data.mdb is a journal of format 1' "$bin/stateroom" rooms "$dir/foreign"
segment=00000000000000000001.mdb
mv "$dir/foreign/data.mdb" "$dir/foreign/$segment"
expect 5 'journal .*foreign' "$bin/stateroom" verify "$dir/foreign"
expect 0 'well, [0-9]+ entries' "$bin/stateroom" verify "$dir/journal-a"
expect 0 'identical' "$bin/stateroom" replay "$dir/journal-a"
cp -r "$dir/journal-a" "$dir/cut"
truncate -s 9000 "$dir/cut/$segment"
for command in rooms stat replay tail; do
  expect 5 'its pages are damaged|cannot be|is damaged' "$bin/stateroom" $command "$dir/cut"
done
expect 1 'could not be written' sh -c "exec $bin/stateroom stat $dir/journal-a >/dev/full"
cp -r "$dir/journal-a" "$dir/flipped"
# Everywhere: LMDB copies pages, and an old copy is no damage.
sed -i 's/stateroomd 0\.1/stateroomX 0.1/g' "$dir/flipped/$segment"
expect 5 'entry 1 is altered' "$bin/stateroom" verify "$dir/flipped"
expect 2 "no command is named 'repaly'; did you mean 'replay'" "$bin/stateroom" repaly
expect 2 "demo: 'x' is one argument too many" "$bin/stateroom" demo x
expect 2 'replay: name the journal' "$bin/stateroom" replay
expect 4 'knows nothing of room 99' "$bin/stateroom" history 99 -j "$dir/journal-a"

expect 2 'requests: 1 to 100000' "$bin/stateroom" demo --dir "$dir/demo" --requests 0
expect 2 'dir: 63 bytes or less' "$bin/stateroom" demo --dir "/tmp/$(printf '%080d' 0)"
expect 3 'the trace cannot be read .No such file.*--trace' "$bin/stateroom" demo --dir "$dir/demo" --trace /no/such
[ ! -e "$dir/demo" ] || { echo "a demo that cannot start leaves its directory"; exit 1; }
expect 3 'node [PD] has ended .*provider nonsense does not offer' \
  "$bin/stateroom" demo --dir "$dir/demo" --provider nonsense
echo "every wrong start says what is wrong"
