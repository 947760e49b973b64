#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The commands that carry journals about, over journals of scenarios and over those that older programs have left:
# export, import, slice, repair, trim, snapshot, compact. What comes out replays identical and says the same.
# usage: test_bundles.sh BIN_DIR
set -eu
bin=$1
tests=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d /tmp/stateroom-test-XXXXXX)
trap 'rm -rf "$dir"' EXIT
export NO_COLOR=1
s="$bin/stateroom"

fail() { echo "FAILED: $*"; exit 1; }
identical() { "$s" replay --check "$1" >"$dir/out" 2>&1 || { cat "$dir/out"; fail "replay of $1"; }; }
same() { # A B: every line of every entry
  "$s" tail -n 100000 "$1" >"$dir/a"
  "$s" tail -n 100000 "$2" >"$dir/b"
  cmp -s "$dir/a" "$dir/b" || fail "$1 and $2 differ"
}
# What a room's entries did to it, without numbers of entries and writes.
of_room() {
  "$s" replay "$1" --room "$2" --json |
    grep -o "\"[a-z_]* room=$2 [^\"]*" | grep -v '^"write_' | grep -v '^"send_' || true
}

# ---- round trips, and a slice of each room
"$s" scenario --journal "$dir/j" "$tests/scenarios/f00-basics/two-rooms.scn" \
  "$tests/scenarios/f00-basics/prefill-twice-decode.scn" "$tests/scenarios/own/crash-in-the-recovery.scn" \
  "$tests/scenarios/own/five-lives-in-a-row.scn" >"$dir/out" || { cat "$dir/out"; fail scenario; }
for j in "$dir"/j/*/*; do
  rm -rf "$dir/copy" "$dir"/*.bundle
  "$s" export "$j" -o "$dir/x.bundle" >/dev/null
  "$s" verify "$dir/x.bundle" >/dev/null
  identical "$dir/x.bundle"
  same "$j" "$dir/x.bundle"
  "$s" import "$dir/x.bundle" "$dir/copy" >/dev/null
  "$s" verify "$dir/copy" >/dev/null
  identical "$dir/copy"
  same "$j" "$dir/copy"
  last=$("$s" stat "$j" --json | sed 's/.*"last":\([0-9]*\).*/\1/')
  "$s" export "$j" --from $((last / 2)) -o "$dir/half.bundle" >/dev/null
  identical "$dir/half.bundle"
  "$s" verify "$dir/half.bundle" >/dev/null
  for room in $("$s" rooms "$j" --json -n 0 | sed 's/.*"room":"\([0-9]*\)".*/\1/' | sort -u); do
    rm -f "$dir/room.bundle"
    "$s" slice "$j" --room "$room" -o "$dir/room.bundle" >/dev/null || fail "slice of room $room of $j"
    identical "$dir/room.bundle"
    of_room "$j" "$room" >"$dir/a"
    of_room "$dir/room.bundle" "$room" >"$dir/b"
    [ -s "$dir/a" ] || fail "nothing about room $room of $j"
    cmp -s "$dir/a" "$dir/b" || { diff "$dir/a" "$dir/b"; fail "room $room of $j went otherwise in its slice"; }
  done
done

# ---- what must not be overwritten, and what is not there
"$s" export "$j" -o "$dir/x.bundle" 2>"$dir/out" && fail "a bundle was overwritten"
grep -q 'is there already' "$dir/out" || fail "$(cat "$dir/out")"
"$s" import "$dir/x.bundle" "$dir/copy" 2>"$dir/out" && fail "a journal was overwritten"
"$s" slice "$j" --room 999999 -o "$dir/no.bundle" 2>"$dir/out" && fail "a slice of a room that is not there"
grep -q 'room 999999 is not in the journal' "$dir/out" || fail "$(cat "$dir/out")"
[ ! -e "$dir/no.bundle" ] || fail "a slice of nothing was left behind"
"$s" verify /dev/null 2>"$dir/out" && fail "/dev/null is well"
grep -q 'neither a journal' "$dir/out" || fail "$(cat "$dir/out")"

# ---- those that older programs have left
golden="$tests/data/golden/format-2"
cp -r "$golden" "$dir/golden"
for g in D:155 P.bundle:365 P-room-23.bundle:0; do
  name=${g%:*}
  "$s" verify "$dir/golden/$name" >"$dir/out" || { cat "$dir/out"; fail "golden $name does not verify"; }
  [ "${g#*:}" = 0 ] || grep -q ": well, ${g#*:} entries" "$dir/out" || fail "golden $name: $(cat "$dir/out")"
  "$s" history 23 "$dir/golden/$name" >"$dir/out" || fail "golden $name: no history"
  code=0
  "$s" replay --check "$dir/golden/$name" >"$dir/out" 2>&1 || code=$?
  if "$s" --version | grep -q 'machine version 5,'; then
    [ "$code" -eq 0 ] || { cat "$dir/out"; fail "the machine does otherwise: count SM_MACHINE_VERSION up"; }
  else
    [ "$code" -eq 6 ] || { cat "$dir/out"; fail "golden $name: not refused by version"; }
  fi
done
"$s" rooms "$dir/golden/P.bundle" -n 0 --http 400 | grep -q "input is longer than the model's context" ||
  fail "golden: a reason is lost"

# ---- redacted: no name and no reason is left
"$s" tail -n 1000 "$dir/golden/P-room-23.bundle" >"$dir/out"
grep -q 'the other side' "$dir/out" && fail "a reason was not redacted"
grep -q 'xxx xxxxx xxxx' "$dir/out" || fail "the redacted reason is lost"
grep -q '"D"' "$dir/out" && fail "a peer's name was not redacted"

# ---- repair: whatever is overwritten, what is saved is a whole beginning
for at in 8192 20480 40960 41000 61440; do
  for size in 1 512 4096; do
    rm -rf "$dir/hurt" "$dir/saved"
    mkdir "$dir/hurt"
    cp "$golden"/D/*.mdb "$dir/hurt/"
    head -c "$size" /dev/zero | tr '\0' '\125' |
      dd of="$dir/hurt/00000000000000000001.mdb" bs=1 seek=$((at + 300)) conv=notrunc 2>/dev/null
    if "$s" verify "$dir/hurt" >"$dir/out" 2>&1; then
      same "$dir/golden/D" "$dir/hurt"
      continue
    fi
    if "$s" repair "$dir/hurt" -o "$dir/saved" >"$dir/out" 2>&1; then
      "$s" verify "$dir/saved" >/dev/null || fail "what was saved (byte $at) does not verify"
      "$s" tail -n 100000 "$dir/saved" >"$dir/a"
      if grep -q 'nothing is damaged' "$dir/out"; then
        "$s" verify "$dir/saved" | grep -q 'well, 155 entries' || fail "repair (byte $at) calls a part the whole"
      fi
      "$s" tail -n 100000 "$dir/golden/D" | head -n "$(wc -l <"$dir/a")" | cmp -s - "$dir/a" ||
        fail "what was saved (byte $at) is not a beginning"
    else
      grep -q 'nothing can be saved' "$dir/out" || { cat "$dir/out"; fail "repair (byte $at)"; }
    fi
    [ ! -e "$dir/saved.part" ] || fail "repair left its part behind"
  done
done

# ---- keeping: a segment begins, the old one goes, the rest replays
rm -rf "$dir/keep"
"$s" import "$dir/x.bundle" "$dir/keep" >/dev/null
"$s" snapshot --segment "$dir/keep" >/dev/null
"$s" trim --before 1000000 "$dir/keep" | grep -q '1 of 2 segments removed' || fail "nothing was trimmed"
"$s" verify "$dir/keep" >/dev/null
identical "$dir/keep"
"$s" compact "$dir/keep" >/dev/null
"$s" verify "$dir/keep" >/dev/null
identical "$dir/keep"
"$s" --help >/dev/full 2>/dev/null && fail "help into a full device is well"
echo "well"
