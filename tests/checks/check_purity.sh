#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The core is pure: its archive asks for nothing but memcpy, memmove, memset, memcmp and itself, and has no
# writable data. usage: check_purity.sh ARCHIVE [--self-test CC]
set -eu

check() {
  foreign=$(nm -u "$1" | awk '/ U /{print $2}' |
    grep -vE '^(memcpy|memmove|memset|memcmp|_GLOBAL_OFFSET_TABLE_|sm_.*|__stack_chk_fail|__(asan|ubsan|tsan|sanitizer)_.*|__gcov_.*)$' | sort -u)
  if [ -n "$foreign" ]; then
    echo "the core calls something foreign: $foreign"
    return 1
  fi
  # By section: constant tables of pointers stand in .data.rel.ro and are written by the loader only.
  state=$(objdump -t "$1" | awk '$0 ~ / O / {for (i = 1; i <= NF; i++) if ($i ~ /^\.(data|bss)/ && $i !~ /^\.data\.rel\.ro/) print $NF}' | grep -vE '^(__|\.L)' | sort -u)
  if [ -n "$state" ]; then
    echo "the core has writable data: $state"
    return 1
  fi
}

if [ "${2:-}" = --self-test ]; then
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  echo 'long time(long *); long sm_bad(void); long sm_bad(void) { return time(0); }' >"$dir/a.c"
  echo 'int sm_bad(void); int sm_bad(void) { static int n; return ++n; }' >"$dir/b.c"
  for seeded in a b; do
    "$3" -c "$dir/$seeded.c" -o "$dir/$seeded.o"
    ar rc "$dir/$seeded.a" "$dir/$seeded.o"
    if check "$dir/$seeded.a"; then
      echo "the check did not see a seeded violation ($seeded)"
      exit 1
    fi
  done
fi
check "$1"
echo "pure"
