#!/usr/bin/env python3
"""Injects random faults into training jobs (a campaign): run.py [--faults 200] [--seed 1] [--only K]

Each fault of a seed is drawn independently of the others, so `--only K` repeats fault K. A moment in the start-up is a
share of an undisturbed run's time, so it varies with the load of the machine. A moment in the training is a step.
"""

import argparse
import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import clocks
import damage
import differing
import links
import moments
from check import COLUMNS, remove
from job import end_all
from lab import CONFIGS, Lab

# Name, relative frequency and function of each fault.
FAULTS = [
    ("SIGKILL of a rank", 5, moments.kill_rank),
    ("SIGKILL of mpirun", 3, moments.kill_mpirun),
    ("SIGSTOP of a rank", 3, moments.stop_rank),
    ("SIGTERM or SIGUSR1", 4, moments.ask_to_stop),
    ("slow rank", 2, moments.slow_rank),
    ("full disk", 3, moments.full_disk),
    ("read-only folder", 2, moments.read_only),
    ("removed folder", 2, moments.removed),
    ("second job in the folder", 1, moments.start_again),
    ("byte flipped", 4, damage.flipped),
    ("file cut", 3, damage.shortened),
    ("JSON value changed", 4, damage.changed),
    ("two files swapped", 2, damage.swapped),
    ("file removed", 2, damage.missing),
    ("another option on one rank", 3, differing.other_option),
    ("unknown option on one rank", 1, differing.unknown_option),
    ("--resume on one rank only", 1, differing.resume_on_one_rank),
    ("another data set on one rank", 2, differing.other_data),
    ("another binary on one rank", 1, differing.other_binary),
    ("another environment on one rank", 1, differing.other_environment),
    ("link cut", 3, links.link_cut),
    ("link cut and restored", 2, links.link_interrupted),
    ("clock that jumps", 2, clocks.jump),
]


def possible(lab):
    """The faults that can be injected on this machine, and why the others cannot."""
    found, left_out = list(FAULTS), []
    for name, works, reason in [
        ("full disk", moments.can_mount, "a tmpfs cannot be mounted; be root"),
        ("read-only folder", moments.can_forbid, "chattr +i does not work on this file system"),
        ("link cut", links.can_cut, "two nodes cannot be emulated; be root, and install iproute2"),
        ("link cut and restored", links.can_cut, "the same"),
        ("clock that jumps", clocks.can_jump, "no libfaketime; install it"),
    ]:
        if not works(lab):
            found = [fault for fault in found if fault[0] != name]
            left_out.append(f"not drawn: {name} ({reason})")
    return found, left_out


def draw(faults, arguments, number):
    """The random generator, name, function and configuration of a fault. The function is None if it cannot run here."""
    rng = random.Random(f"{arguments.seed}/{number}")
    # The draw does not depend on the machine, so that a number means the same fault everywhere.
    name, _, run = rng.choices(FAULTS, weights=[weight for _, weight, _ in FAULTS])[0]
    config = rng.choice(CONFIGS[: arguments.configs])
    return rng, name, run if any(name == fault[0] for fault in faults) else None, config


def print_table(counts, left_out):
    heads = ["fault", "injected", *COLUMNS]
    rows = [[name, *map(str, counts[name])] for name, _, _ in FAULTS if name in counts]
    if not counts:
        raise SystemExit("no fault was drawn")
    total = ["total", *(str(sum(column)) for column in zip(*counts.values(), strict=True))]
    print("\n| " + " | ".join(heads) + " |\n| --- |" + " ---: |" * (len(heads) - 1))
    for row in [*rows, total]:
        print("| " + " | ".join(row) + " |")
    print("\n".join(left_out))


def report(number, name, config, verdict, seconds, arguments):
    sign = "FAILED" if verdict.problems else "ok" if verdict.injected else "too late"
    print(f"{number:4} {sign:8} {seconds:5.1f} s  {name}: {verdict.what} [{config}]")
    for column, text in verdict.problems:
        print("     " + f"{column}: {text}".replace("\n", "\n     | "))
    if verdict.problems:
        few = f" --configs {arguments.configs}" if arguments.configs else ""
        print(f"     again: python3 tests/faults/run.py --seed {arguments.seed}{few} --only {number}")
    sys.stdout.flush()


def inject(lab, faults, arguments, number, counts):
    """Injects one fault and counts it; returns False if the fault is not to be injected."""
    rng, name, run, config = draw(faults, arguments, number)
    if run is None or (arguments.kind and arguments.kind not in name):
        return False
    lab.reference(config)
    begun = time.monotonic()
    try:
        verdict = run(lab, rng, config)
    finally:
        # Processes are left only if this program is interrupted.
        end_all()
    report(number, name, config, verdict, time.monotonic() - begun, arguments)
    row = counts.setdefault(name, [0] * (1 + len(COLUMNS)))
    row[0] += verdict.injected
    # A fault with several problems of one kind counts once in a column.
    for column in {column for column, _ in verdict.problems}:
        row[1 + COLUMNS.index(column)] += 1
    if not arguments.keep:
        for kind in ("run", "damaged", "removed", "folders", "disk", "forbidden", "clock"):
            for path in lab.folder.glob(f"{kind}-*"):
                remove(path)
    return True


def campaign(arguments, lab):
    """Injects all faults; returns True if none of them found a problem."""
    faults, left_out = possible(lab)
    counts = {}
    numbers = itertools.count() if arguments.only is None else iter([arguments.only])
    done = 0
    try:
        for number in numbers:
            done += inject(lab, faults, arguments, number, counts)
            if done >= arguments.faults or number > 1000 * arguments.faults:
                break
    except KeyboardInterrupt:
        left_out.append(f"interrupted after {done} of {arguments.faults} faults")
    if late := done - sum(row[0] for row in counts.values()):
        left_out.append(f"too late, since their run had ended: {late} of {done} faults")
    print_table(counts, left_out)
    return done > 0 and not any(any(row[1:]) for row in counts.values())


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200, metavar="N", help="number of faults")
    parser.add_argument("--seed", type=int, default=1, metavar="SEED", help="seed of all random choices")
    parser.add_argument("--only", type=int, metavar="K", help="only fault K of the seed")
    parser.add_argument("--kind", metavar="TEXT", help="only faults whose name contains TEXT")
    parser.add_argument("--configs", type=int, metavar="M", help="only the first M configurations")
    parser.add_argument("--binary", type=Path, default=root / "target/release/mpiburn", metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all run directories")
    arguments = parser.parse_args()
    if not arguments.binary.is_file():
        parser.error(f"no program at {arguments.binary}: run `make build`")
    if shutil.which("mpirun") is None:
        parser.error("no mpirun: run `make setup`")
    # A shell in the background ignores SIGINT. Here it is handled, so that an interrupted campaign prints its
    # table.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # Not in /tmp, because each node has its own /tmp.
    folder = Path(tempfile.mkdtemp(prefix="mpiburn-faults-", dir="/var/tmp"))
    try:
        good = campaign(arguments, Lab(arguments.binary, folder))
    finally:
        if arguments.keep:
            print(f"run directories: {folder}")
        else:
            remove(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
