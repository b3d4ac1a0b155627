#!/usr/bin/env python3
"""Compares the speed of mpiburn and its fastest peer: both do the same work, in turn.

    make compare-pytorch
    .venv/bin/python benches/pytorch/speed.py --rows convnet-32 vgg-32 --repeats 5

All programs are started in the same way, by mpirun with one core per rank, and train the same network on the same
data. The peers are PyTorch (eager, with fused Adam, with channels-last memory, with torch.compile) and, on one rank,
JAX's jit. Each row first tries all peers for a few steps, compares their losses, and then repeats the fastest peer.

PyTorch's program is tests/pytorch/train_ddp.py, or another one with the same options and output (--peer). JAX's program
is train_jax.py. Exit code 0, 1 if the losses of a peer differ from mpiburn's, 2 if nothing could be compared.
"""

import argparse
import csv
import json
import socket
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Imports must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True
# The programs, networks and samples that are shared with the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/pytorch"))

import lab
from machine import BUSY, OtherPrograms, core_count
from peers import versions
from programs import (
    PYTORCH, ROOT, CannotCompare, add_program_options, find_programs, has_precision, plural, positive, run,
)
from rows import EPOCH_STEPS, ROWS, Measuring
from trials import choose_peer, describe


@dataclass
class Pair:
    """A row run by mpiburn and by a peer, one right after the other. Times are in `unit`, and memory is the peak of a
    rank in MB. `other_cores` is the mean number of cores that other programs used in the meantime."""

    row: str
    pair: int
    unit: str
    peer: str
    peer_time: float
    mpiburn: float
    ratio: float
    goal: float
    other_cores: float
    peer_peak_rss_mb: float | None
    mpiburn_peak_rss_mb: float | None


def measure_pair(row, number, measuring, peer):
    """Runs the row with mpiburn and with the peer; returns the pair of results.

    The two run one right after the other, in alternating order, so that a slowdown of the machine affects both.
    On a busy machine, mpiburn is still at a disadvantage: ranks of MPI wait by polling, ranks of gloo by sleeping.
    If other programs share the cores, polling was measured to lose several times as much.
    """
    others = OtherPrograms()
    sides = {"peer": lambda: measuring.peer(row, peer), "mpiburn": lambda: measuring.mpiburn(row)}
    order = list(sides) if number % 2 else list(sides)[::-1]
    done = {side: sides[side]() for side in order}
    theirs, ours = done["peer"], done["mpiburn"]
    return Pair(
        row=row.name, pair=number, unit=row.unit, peer=peer.name, peer_time=theirs.time, mpiburn=ours.time,
        ratio=theirs.time / ours.time, goal=row.goal, other_cores=others.cores(),
        peer_peak_rss_mb=theirs.peak_rss_mb, mpiburn_peak_rss_mb=ours.peak_rss_mb,
    )


def summarize_row(row, trials, pairs):
    """A row of speed.json: medians over its pairs, the range of their ratios, and the trials of all peers."""
    median = lambda field: statistics.median(getattr(pair, field) for pair in pairs)
    ratios = [pair.ratio for pair in pairs]
    return {
        "row": row.name, "title": row.title, "model": row.model, "ranks": row.ranks, "batch": row.batch,
        "precision": row.precision, "mpiburn_backend": row.backend, "unit": row.unit, "peer": trials[0].peer.name,
        "trials": [{"peer": trial.peer.name, "time": trial.time, "loss_difference": trial.loss_difference}
                   for trial in trials],
        "median_peer": median("peer_time"), "median_mpiburn": median("mpiburn"),
        "median_ratio": median("ratio"), "least_ratio": min(ratios), "largest_ratio": max(ratios), "goal": row.goal,
        "median_other_cores": median("other_cores"), "pairs": [vars(pair) for pair in pairs],
    }


def write_speed(folder, programs, options, rows):
    """Writes speed.json and speed.csv. Called after each pair, so that an interrupted comparison keeps its
    results."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = {
        "host": socket.gethostname(), "cores": core_count(), **versions(), "program": programs.pytorch.name,
        "data": str(programs.data), "samples": options.samples or "default of the rows", "rows": rows,
    }
    (folder / "speed.json").write_text(json.dumps(summary, indent=2) + "\n")
    pairs = [pair for row in rows for pair in row["pairs"]]
    with open(folder / "speed.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(pairs[0]))
        writer.writeheader()
        writer.writerows(pairs)


def print_table(rows):
    """Prints the summary, one line per row. The goal is what the project aims at, not a measurement."""
    width, peers = (max(len(row[field]) for row in rows) for field in ("title", "peer"))
    line = f"{{:<{width}}}  {{:<{max(peers, 12)}}} {{:>15}} {{:>15}} {{:>6}} {{:>13}} {{:>5}}"
    print("\n" + line.format("medians", "fastest peer", "its time", "mpiburn", "ratio", "from - to", "goal"))
    for row in rows:
        time = lambda value: f"{value:.3f} {row['unit']}"
        print(line.format(row["title"], row["peer"], time(row["median_peer"]), time(row["median_mpiburn"]),
                          f"{row['median_ratio']:.2f}", f"{row['least_ratio']:.2f} - {row['largest_ratio']:.2f}",
                          f"{row['goal']:g}"))


def notes(rows):
    """Yields a line for each reason why the timings are not representative."""
    cores, busy = core_count(), max(row["median_other_cores"] for row in rows)
    if any(row["ranks"] > cores for row in rows):
        yield f"2 ranks share {cores} core{plural(cores)}: timings of those rows are not representative"
    if busy > BUSY:
        yield (f"other programs kept up to {busy:.1f} cores busy: timings are not representative, and mpiburn's suffer "
               "most; repeat on an idle machine")
    fewest = min(len(row["pairs"]) for row in rows)
    if fewest < 3:
        yield f"{fewest} pair{plural(fewest)} of a row: the range of so few pairs is not representative"


def obstacle(row, programs):
    """Why this row cannot be run here; None if it can."""
    if row.rate and not lab.is_possible():
        return "emulating two nodes needs root and iproute2"
    if row.precision != "no" and programs.pytorch != PYTORCH:
        return "a program of --peer has no --precision"
    if row.precision != "no" and not has_precision(programs.mpiburn):
        return f"{programs.mpiburn.name} has no --precision; build it again"
    return None


def choose_rows(names, programs):
    """The rows of these names. Without names, all rows that can be run here."""
    obstacles = {row.name: obstacle(row, programs) for row in ROWS if not names or row.name in names}
    for name, reason in obstacles.items():
        if reason and names:
            raise CannotCompare(f"{name}: {reason}; or select other --rows")
        if reason:
            print(f"without {name}: {reason}")
    return [row for row in ROWS if row.name in obstacles and not obstacles[row.name]]


def compare_speed(programs, options):
    """Times the rows; returns the problems, such as a peer whose losses differ."""
    wanted = choose_rows(options.rows, programs)
    print(f"{len(wanted)} row{plural(len(wanted))}, {options.repeats} pair{plural(options.repeats)} each, in turn; "
          f"ConvNet on {options.samples or f'{EPOCH_STEPS} steps of'} samples of {programs.data} (the whole program: all), "
          "vgg and mlp on random samples", flush=True)
    # /tmp is private to each emulated node, so the folder is not there.
    (ROOT / "target").mkdir(exist_ok=True)
    pairs, trials, problems = {row.name: [] for row in wanted}, {}, []
    with tempfile.TemporaryDirectory(prefix="compare-", dir=ROOT / "target") as folder:
        measuring = Measuring(programs, options.samples, folder)
        for row in wanted:
            trials[row.name], wrong = choose_peer(row, measuring)
            problems += wrong
            print(describe(row, trials[row.name]), flush=True)
        for number in range(1, options.repeats + 1):
            for row in wanted:
                pair = measure_pair(row, number, measuring, trials[row.name][0].peer)
                pairs[row.name].append(pair)
                print(f"pair {number}, {row.name}: {pair.peer} {pair.peer_time:.3f} {row.unit}, mpiburn "
                      f"{pair.mpiburn:.3f} {row.unit}, ratio {pair.ratio:.2f} (others' busy cores: "
                      f"{pair.other_cores:.2f})", flush=True)
                rows = [summarize_row(row, trials[row.name], pairs[row.name]) for row in wanted if pairs[row.name]]
                write_speed(options.out, programs, options, rows)
    print_table(rows)
    print(f"ratio: the fastest peer's time over mpiburn's, median over pairs; goal: the target ratio; "
          f"all pairs and peers in {options.out}/speed.json, pairs in speed.csv")
    for note in notes(rows):
        print(f"note: {note}")
    return problems


def parse_options():
    """The command line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_program_options(parser)
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=names, metavar="ROW",
                        help=f"rows of the table (default: all; vgg-lab as root only): {', '.join(names)}")
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="pairs of runs (default: 5)")
    parser.add_argument("--out", type=Path, default=ROOT / "results/compare-pytorch", metavar="DIR",
                        help="folder of speed.json and speed.csv (default: results/compare-pytorch)")
    return parser.parse_args()


def main():
    """Returns the problems."""
    options = parse_options()
    return compare_speed(find_programs(options), options)


if __name__ == "__main__":
    run(main)
