#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Every reason for which an input is ignored or a command refused can be read by a user: `stateroom stat`
# has a counter for each one that docs/state-machine.md lists, and counts what `stateroom tail` shows.
# usage: stat.sh STATEROOM STATE_MACHINE_MD
set -eu
stateroom=$1
document=$2
dir=$(mktemp -d /tmp/stateroom-test-XXXXXX)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/reasons.scn" <<'SCN'
scenario "some of everything that is ignored and refused"
node P prefill
node D decode
at 0    D.0 open  room=7 pages=0-3
at 0    D.0 open  room=7 pages=0-3
at 0    D.0 open  room=8 pages=2-5
at 0    P.0 send  room=9 pages=0
at 0    P.0 open  room=7
at 1ms  dup P>D status
at 1ms  P.0 send  room=7 pages=0-3 last
at 2s   P.0 admit room=7
at 2s   D.0 release room=7
at 2s   D.0 release room=11
end expect quiescent
SCN
"$stateroom" scenario --journal "$dir/journals" "$dir/reasons.scn"

for node in P D; do
  "$stateroom" stat --json "$dir/journals/reasons/$node" >"$dir/$node.json"
  "$stateroom" tail -n 1000 "$dir/journals/reasons/$node" >"$dir/$node.txt"
done
python3 - "$document" "$dir" <<'PY'
import json, re, sys

document = open(sys.argv[1]).read()
total = 0
for node in "P", "D":
    counted = json.load(open(f"{sys.argv[2]}/{node}.json"))
    shown = open(f"{sys.argv[2]}/{node}.txt").read()
    for kind, title in ("ignored", "Ignored inputs"), ("refused", "Refusals"):
        names = re.findall(r"^- (\w+)$", document.split(f"## {title}\n")[1].split("\n## ")[0], re.M)
        if sorted(names) != sorted(counted[kind]):
            sys.exit(f"stat has not the reasons of the document under {title}")
        for name in names:
            seen = len(re.findall(rf"^ +\. {kind} .*\b{name}\b", shown, re.M))
            if seen != counted[kind][name]:
                sys.exit(f"{node} {kind} {name}: stat says {counted[kind][name]}, tail shows {seen}")
            total += seen
if total < 6:
    sys.exit(f"only {total} ignored and refused")
print(f"{total} counted, each with its reason")
PY
