#!/usr/bin/env python3
"""Checks that run.py, the campaign of random faults, finds errors: runs it on programs that are wrong on purpose.

    broken.py [--binary target/release/mpiburn]

Each program is a shell script around the real one. Without a fault, its runs are right. After a fault, it is wrong in
one way, which the campaign must count in a certain column of its table.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check import HANG, LOST, UNCLEAR, WRONG
from job import DEADLINE

HERE = Path(__file__).resolve().parent

# The column that must not be zero, the kind of fault, and shell commands that run before the real program.
PROGRAMS = [
    # The deadline is an hour instead of DEADLINE.
    (HANG, "SIGSTOP of a rank", f'for a; do shift; [ "$a" = {DEADLINE} ] && a=3600; set -- "$@" "$a"; done'),
    (HANG, "file removed", 'case "$*" in *--resume*damaged*) setsid sleep 3600 >/dev/null 2>&1 & ;; esac'),
    (WRONG, "file cut", 'case "$*" in *--resume*) exit 0;; esac'),
    (LOST, "SIGKILL of a rank", 'case "$*" in *--resume*) echo "mpiburn: no such run" >&2; exit 1;; esac'),
    (LOST, "SIGKILL of a rank", 'case "$*" in eval*run-*) echo "mpiburn: no such run" >&2; exit 1;; esac'),
    (UNCLEAR, "file removed", 'case "$*" in *--resume*damaged*) exec 2>/dev/null;; esac'),
    (UNCLEAR, "unknown option", 'case "$*" in *run-*) exec 2>/dev/null;; esac'),
]


def count(table, column):
    """The total of a column in the printed table."""
    heads = next(line for line in table.splitlines() if line.startswith("| fault"))
    total = next(line for line in table.splitlines() if line.startswith("| total"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (heads, total)]
    return int(dict(zip(*cells, strict=True))[column])


def run(binary, folder, kind, trick):
    """Runs a campaign of one kind of fault on a wrong program; returns its output and exit code."""
    program = Path(folder) / "mpiburn"
    program.write_text(f'#!/bin/sh\n{trick}\nexec "{binary}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    command = [
        sys.executable,
        HERE / "run.py",
        "--binary",
        program,
        "--kind",
        kind,
        "--configs",
        "2",
        "--faults",
        "3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr, done.returncode


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", type=Path, default=HERE.parents[1] / "target/release/mpiburn")
    binary = parser.parse_args().binary.resolve()
    wrong = 0
    for column, kind, trick in PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            output, code = run(binary, folder, kind, trick)
        found = code == 1 and re.search(r"^\| total", output, re.MULTILINE) and count(output, column)
        print(f"{'ok' if found else 'NOT FOUND'}  {column}: {kind}, {trick}", flush=True)
        if not found:
            wrong += 1
            print(output)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
