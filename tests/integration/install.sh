#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs into a directory, builds an engine and an embedded node against that alone, and runs the demo
# from there. usage: install.sh BUILD_DIR TESTS_DIR CC
set -eu
build=$1
tests=$2
cc=$3
dir=$(mktemp -d /tmp/stateroom-test-XXXXXX)
trap 'rm -rf "$dir"' EXIT
cmake --install "$build" --prefix "$dir/usr" >"$dir/install.log" 2>&1 || { cat "$dir/install.log"; exit 1; }
libs=$(dirname "$(find "$dir/usr" -name stateroom.pc)")
export PKG_CONFIG_PATH="$libs" LD_LIBRARY_PATH="${libs%/pkgconfig}"
flags() { pkg-config --define-variable=prefix="$dir/usr" --cflags --libs "$@"; }

# An engine: another node of its path must be missed by name.
"$cc" -D_GNU_SOURCE "$tests/integration/probe_engine.c" $(flags stateroom) -o "$dir/engine"
if "$dir/engine" "$dir/nobody" "$dir/go" decode >"$dir/out"; then echo "it attached to nobody"; exit 1; fi
grep -q "no node answers at $dir/nobody" "$dir/out" || { cat "$dir/out"; exit 1; }

# A node of its own: the header is C++ too, and a wrong key is named.
cat >"$dir/node.c" <<'C'
#include <stateroom/stateroom.h>
#include <stateroom/stateroom_node.h>
#include <stdio.h>
int main(void)
{
    const char *settings[] = {"name=P", "no_such_key=1"};
    struct stateroom_node_options options = {0};
    struct stateroom_node *node = 0;
    char why[320] = "";
    options.settings = settings;
    options.setting_count = 2;
    if (!stateroom_node_start(&options, &node, why, sizeof why)) {
        printf("%s\n", why);
        return 0;
    }
    return 1;
}
C
"$cc" "$dir/node.c" $(flags stateroom stateroom-node) -o "$dir/node"
"$dir/node" | grep -q 'no key is named no_such_key'
for page in man1/stateroom.1 man1/stateroom-replay.1 man8/stateroomd.8; do
  [ -s "$dir/usr/share/man/$page" ] || { echo "$page is not installed"; exit 1; }
done
"$dir/usr/bin/stateroom" demo --requests 12 --pages 64 >"$dir/demo.out" 2>&1 || { tail -30 "$dir/demo.out"; exit 1; }
echo "what is installed works"
