#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Man pages against --help: every command has a page, every option and key of --help stands in it, and groff,
where it is installed, has nothing to say. usage: check_man.py BIN_DIR MAN_DIR"""
import pathlib
import re
import shutil
import subprocess
import sys


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def plain(roff):
    """The page as one line of words, as good as needed to look for options."""
    text = roff.replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")
    return re.sub(r'["\s,]+', " ", re.sub(r"^\.[A-Z]+ ?", "", text, flags=re.M))


def faults_of(page, help_text, wanted):
    if not page.exists():
        return [f"{page.name} is missing"]
    roff = page.read_text()
    found = [f"{page.name} has no {section}" for section in (".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH SEE ALSO")
             if section not in roff]
    text = plain(roff)
    names = re.findall(r"(--[a-z][a-z-]*)", help_text) + wanted
    found += [f"{page.name} does not have {name}, which --help has" for name in names if name not in text]
    if shutil.which("groff"):
        said = run("groff", "-man", "-Tascii", "-ww", "-z", str(page)).stderr
        found += [f"groff: {line}" for line in said.splitlines()]
    return found


def main():
    bins, man = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    overall = run(bins / "stateroom", "--help").stdout
    commands = re.findall(r"^  ([a-z-]+) {2,}", overall.split("commands:")[1].split("\n\n")[0], re.M)
    if len(commands) < 8:
        sys.exit("stateroom --help lists no commands: this check sees nothing")
    found = faults_of(man / "stateroom.1", "", commands)
    for command in commands:
        text = run(bins / "stateroom", command, "--help").stdout
        if "--help" not in text:
            found.append(f"stateroom {command} --help says nothing")
        found += faults_of(man / f"stateroom-{command}.1", text, [])
    daemon = run(bins / "stateroomd", "--help").stdout
    keys = re.findall(r"^  ([a-z_.]+) ", daemon.split("meanings:")[1], re.M)
    if len(keys) < 30:
        found.append("stateroomd --help lists too few keys")
    found += faults_of(man / "stateroomd.8", daemon, keys)
    extra = {p.name for p in man.glob("*.[18]")} - {f"stateroom-{c}.1" for c in commands} - {"stateroom.1", "stateroomd.8"}
    found += [f"{name} belongs to no command" for name in sorted(extra)]
    print("\n".join(found) if found else f"{len(commands) + 2} pages agree with --help")
    sys.exit(1 if found else 0)


main()
