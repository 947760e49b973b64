#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Includes against layers.txt: an arrow against the list fails. usage: check_layers.py ROOT [--self-test]"""
import pathlib
import re
import sys


def read_rules(path):
    rules = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            folder, _, allowed = line.partition(":")
            rules[folder.strip()] = allowed.split()
    return rules


def offences(folder, allowed, text):
    for include in re.findall(r'^#include "([^"]+)"', text, re.M):
        owner, _, rest = include.partition("/")
        if not rest or owner == folder:
            continue
        if owner not in allowed and include not in allowed:
            yield include


def main():
    root = pathlib.Path(sys.argv[1])
    rules = read_rules(root / "tests/checks/layers.txt")
    if "--self-test" in sys.argv:
        bad = list(offences("journal", rules["journal"], '#include "fabric/data.h"\n'))
        if not bad:
            sys.exit("the check did not see a seeded violation")
    found = []
    for folder, allowed in rules.items():
        for path in sorted((root / folder).rglob("*.[ch]")):
            # The core's types are everybody's; its functions are not fabric's or client's.
            for include in offences(folder, allowed, path.read_text()):
                found.append(f"{path.relative_to(root)} includes {include}: {folder} may use {allowed}")
    for folder in ("fabric", "client", "schemas"):
        for path in sorted((root / folder).rglob("*.[ch]")):
            if re.search(r'#include "statemachine/sm\.h"', path.read_text()):
                found.append(f"{path.relative_to(root)} includes the machine: only its types are allowed")
    print("\n".join(found) if found else "layers hold")
    sys.exit(1 if found else 0)


main()
