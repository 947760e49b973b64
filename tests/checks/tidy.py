#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House style that a compiler does not see. usage: tidy.py ROOT [--self-test]"""
import pathlib
import re
import subprocess
import sys

BANNED = {
    "strcpy": "snprintf", "strcat": "snprintf", "sprintf": "snprintf", "gets": "fgets",
    "strtok": "strcspn", "atoi": "strtol", "atol": "strtol", "strncpy": "snprintf", "alloca": "an array",
}
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800


def strip_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    return re.sub(r'"(\\.|[^"\\\n])*"', '""', text)


def function_lengths(code):
    """(first line, lines) of everything between a `{` at column 0 after a `)` line and its `}`."""
    lines = code.split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{" and number > 1 and ")" in lines[number - 2]:
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number - start + 1
            start = None


def check(name, text):
    code = strip_comments(text)
    first = text.split("\n", 1)[0]
    if "SPDX-License-Identifier: Apache-2.0" not in first:
        yield f"{name}:1: the first line has no SPDX licence"
    if text.count("\n") > FILE_LINES_MAX:
        yield f"{name}: {text.count(chr(10))} lines; at most {FILE_LINES_MAX}: split it"
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > 120:
            yield f"{name}:{number}: {len(line)} columns"
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            yield f"{name}:{number}: unfinished"
    for number, line in enumerate(code.split("\n"), 1):
        if re.search(r"(?<!:)//", line):
            yield f"{name}:{number}: // means not finished; write /* */"
        for banned, instead in BANNED.items():
            if re.search(rf"(?<![\w.>]){banned}\s*\(", line):
                yield f"{name}:{number}: {banned} is banned; use {instead}"
    for number, length in function_lengths(code):
        if length > FUNCTION_LINES_MAX:
            yield f"{name}:{number}: a function of {length} lines; at most {FUNCTION_LINES_MAX}"


def self_test():
    spdx = "/* SPDX-License-Identifier: Apache-2.0 */\n"
    seeds = ["int x;\n", spdx + "// later\n", spdx + "void f(void)\n{\n    strcpy(a, b);\n}\n",
             spdx + "void f(void)\n{\n" + "    a();\n" * 80 + "}\n", spdx + "/* FIXME */\n"]
    for seed in seeds:
        if not list(check("seed.c", seed)):
            sys.exit(f"the check did not see a seeded violation:\n{seed[:200]}")


def main():
    root = pathlib.Path(sys.argv[1])
    if "--self-test" in sys.argv:
        self_test()
    folders = ["statemachine", "schemas", "journal", "gpu", "fabric", "client", "coordinator", "replay",
               "tests", "bench"]
    found = []
    names = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.[ch]")):
            relative = str(path.relative_to(root))
            found += check(relative, path.read_text())
            names.setdefault(path.name, []).append(relative)
    for name, places in names.items():
        if len(places) > 1 and not name.startswith("plan.") and name not in ALLOWED_TWICE:
            found.append(f"{name} stands in {', '.join(places)}: file names are unique")
    print("\n".join(found) if found else "tidy")
    sys.exit(1 if found else 0)


# Header and source of one noun share a name by design; these stand twice for another reason.
ALLOWED_TWICE = set()

main()
