"""Compares the speed of mpiburn and PyTorch: the same work by both, in turn, and the ratio of their times."""

import csv
import json
import socket
import statistics
import tempfile
from dataclasses import dataclass

from machine import BUSY, OtherPrograms, core_count
from programs import plural
from rows import EPOCH_STEPS, ROWS, Measuring


@dataclass
class Pair:
    """A row run by each program, one right after the other. Times are in `unit`; memory is a rank's peak, in MB;
    `other_cores` is the mean number of cores that other programs used in the meantime."""

    row: str
    pair: int
    unit: str
    pytorch: float
    mpiburn: float
    ratio: float
    goal: float
    other_cores: float
    pytorch_peak_rss_mb: float
    mpiburn_peak_rss_mb: float | None


def measure_pair(row, number, measuring):
    """Runs the row with each program; returns the version of PyTorch, and the pair.

    One right after the other, in alternating order, so that a slowdown of the machine
    affects both. A busy machine still favours one side: MPI's ranks wait by polling and
    gloo's by sleeping, and with cores shared with other programs, the polling side was
    measured to lose several times as much.
    """
    others = OtherPrograms()
    sides = [measuring.pytorch, measuring.mpiburn]
    order = sides if number % 2 else sides[::-1]
    done = {side.__name__: side(row) for side in order}
    theirs, ours = done["pytorch"], done["mpiburn"]
    return theirs.torch, Pair(
        row=row.name, pair=number, unit=row.unit, pytorch=theirs.time, mpiburn=ours.time,
        ratio=theirs.time / ours.time, goal=row.goal, other_cores=others.cores(),
        pytorch_peak_rss_mb=theirs.peak_rss_mb, mpiburn_peak_rss_mb=ours.peak_rss_mb,
    )


def summarize_row(row, pairs):
    """A row of speed.json: medians over its pairs, and the range of their ratios."""
    median = lambda field: statistics.median(getattr(pair, field) for pair in pairs)
    ratios = [pair.ratio for pair in pairs]
    return {
        "row": row.name, "title": row.title, "model": row.model, "ranks": row.ranks, "batch": row.batch,
        "mpiburn_backend": row.backend, "unit": row.unit,
        "median_pytorch": median("pytorch"), "median_mpiburn": median("mpiburn"),
        "median_ratio": median("ratio"), "least_ratio": min(ratios), "largest_ratio": max(ratios), "goal": row.goal,
        "median_other_cores": median("other_cores"), "pairs": [vars(pair) for pair in pairs],
    }


def write_speed(folder, programs, options, torch, rows):
    """speed.json and speed.csv. Written after each pair, so that an interrupted comparison keeps its results."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = {
        "host": socket.gethostname(), "cores": core_count(), "torch": torch, "peer": programs.pytorch.name,
        "data": str(programs.data), "samples": options.samples or "default of the rows", "rows": rows,
    }
    (folder / "speed.json").write_text(json.dumps(summary, indent=2) + "\n")
    pairs = [pair for row in rows for pair in row["pairs"]]
    with open(folder / "speed.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(pairs[0]))
        writer.writeheader()
        writer.writerows(pairs)


def print_table(rows):
    """The summary, one line per row. The goal is a target, not a measurement."""
    width = max(len(row["title"]) for row in rows)
    line = f"{{:<{width}}} {{:>17}} {{:>17}} {{:>7}} {{:>15}} {{:>6}}"
    print("\n" + line.format("medians", "PyTorch", "mpiburn", "ratio", "from - to", "goal"))
    for row in rows:
        time = lambda value: f"{value:.3f} {row['unit']}"
        print(line.format(row["title"], time(row["median_pytorch"]), time(row["median_mpiburn"]),
                          f"{row['median_ratio']:.2f}", f"{row['least_ratio']:.2f} - {row['largest_ratio']:.2f}",
                          f"{row['goal']:g}"))


def notes(rows):
    """Conditions under which timings are not representative."""
    cores, busy = core_count(), max(row["median_other_cores"] for row in rows)
    if any(row["ranks"] > cores for row in rows):
        yield f"2 ranks share {cores} core{plural(cores)}: timings of those rows are not representative"
    if busy > BUSY:
        yield (f"other programs kept up to {busy:.1f} cores busy: timings are not representative, and mpiburn's suffer "
               "most; repeat on an idle machine")
    fewest = min(len(row["pairs"]) for row in rows)
    if fewest < 3:
        yield f"{fewest} pair{plural(fewest)} of a row: the range of so few is not representative"


def compare_speed(programs, options):
    """The subcommand `speed`."""
    wanted = [row for row in ROWS if row.name in options.rows]
    print(f"{len(wanted)} row{plural(len(wanted))}, {options.repeats} pair{plural(options.repeats)} each, in turn; "
          f"ConvNet on {options.samples or f'{EPOCH_STEPS} steps of'} samples of {programs.data} (the whole program: all), "
          "vgg and mlp on random samples", flush=True)
    pairs = {row.name: [] for row in wanted}
    with tempfile.TemporaryDirectory(prefix="mpiburn-compare-") as folder:
        measuring = Measuring(programs, options.samples, folder)
        for number in range(1, options.repeats + 1):
            for row in wanted:
                torch, pair = measure_pair(row, number, measuring)
                pairs[row.name].append(pair)
                print(f"pair {number}, {row.name}: PyTorch {pair.pytorch:.3f} {row.unit}, mpiburn {pair.mpiburn:.3f} "
                      f"{row.unit}, ratio {pair.ratio:.2f} (others' busy cores: {pair.other_cores:.2f})", flush=True)
                rows = [summarize_row(row, pairs[row.name]) for row in wanted if pairs[row.name]]
                write_speed(options.out, programs, options, torch, rows)
    print_table(rows)
    print(f"ratio: PyTorch's time over mpiburn's, median over pairs; goal: the target ratio; "
          f"all pairs in {options.out}/speed.json and .csv")
    for note in notes(rows):
        print(f"note: {note}")
    return []
