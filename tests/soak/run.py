#!/usr/bin/env python3
"""Trains for a long time on two ranks. Their memory, open files and threads must not grow.

    run.py [--minutes 30] [--limit 2] [-- OPTIONS OF mpiburn train]

Once a second, resident memory, open file descriptors and threads of each rank are read from /proc/PID. A checkpoint
is written in the middle and at the end of each epoch, and each epoch ends with a test. SIGUSR1 ends the run.

The time before the end of the warm-up is ignored. The last tenth of the remaining time is compared with the first
tenth: the medians of memory, descriptors and threads may differ by --limit percent.

The time of a step in both tenths is only printed, and has no limit. It is taken from the fastest tenth of the epochs:
other programs on the machine make some epochs slower, a leak in this program makes all epochs slower.
"""

import argparse
import csv
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

from job import Job, end_all, send  # noqa: E402

RANKS = 2
BATCH = 32
OPTIONS = f"--train-batch-size {BATCH} --epochs 1000000 --shuffle".split()
STEPS = 938  # of an epoch, as with MNIST. A run keeps a row for each epoch in memory, so with short epochs it would grow
STOPPED = 75  # exit code after SIGUSR1, with a checkpoint
FEWEST = 5  # epochs in a tenth of the time
OTHERS = 5  # if other programs use more than this percentage of the CPU time, a line says so


def sample(process):
    """Resident bytes, open file descriptors and threads of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
        descriptors = len(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return None
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if "VmRSS" not in fields:
        return None
    return int(fields["VmRSS"].split()[0]) * 1024, descriptors, int(fields["Threads"])


def cpu_time(processes):
    """Clock ticks of all CPUs: the ticks that other processes than these have used, and all ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    stats = [Path(f"/proc/{process}/stat").read_text(encoding="utf-8") for process in processes]
    # The name, which may have spaces, is skipped: user and system time are the 12th and 13th field after it.
    own = sum(sum(map(int, stat.rsplit(")", 1)[1].split()[11:13])) for stat in stats)
    return sum(ticks) - ticks[3] - ticks[4] - own, sum(ticks)


def epochs(folder):
    """The seconds of each epoch so far."""
    try:
        with open(folder / "epochs.csv", encoding="utf-8", newline="") as file:
            # The last line may be incomplete.
            return [float(row["seconds"]) for row in csv.DictReader(file) if row["int8_test_loss"] is not None]
    except FileNotFoundError:
        return []


def watch(job, folder, seconds):
    """Samples the ranks once a second until the time is over. Returns the ranks' process ids, the samples (time, epochs so
    far, values of each rank), and the percentage of the machine's CPU time that other programs used."""
    found = job.until(lambda: len(job.ranks()) == RANKS and epochs(folder) and job.ranks())
    samples, begun = [], time.monotonic()
    before = after = cpu_time((found or {}).values())
    while found and job.is_running() and time.monotonic() - begun < seconds:
        values = [sample(found[rank]) for rank in sorted(found)]
        if None not in values:
            samples.append((time.monotonic() - begun, len(epochs(folder)), values))
            after = cpu_time(found.values())
        time.sleep(1)
    return found, samples, 100 * (after[0] - before[0]) / max(1, after[1] - before[1])


def step_time(seconds):
    """Milliseconds of a step, as the mean over the fastest tenth of these epochs. Tests are included."""
    fastest = sorted(seconds)[: max(1, len(seconds) // 10)]
    return 1000 * statistics.mean(fastest) / STEPS


def rows(samples, seconds, warm_up):
    """(name, first, last) of everything that is compared, and the number of epochs in the first and in the last tenth."""
    end = samples[-1][0]
    tenth = (end - warm_up) / 10
    first = [one for one in samples if warm_up <= one[0] < warm_up + tenth]
    last = [one for one in samples if one[0] >= end - tenth]
    ends = [seconds[part[0][1] : part[-1][1]] for part in (first, last)]
    if min(map(len, ends)) < FEWEST:
        raise SystemExit(f"soak: fewer than {FEWEST} epochs in a tenth of the time; choose more minutes")
    found = []
    for rank in range(RANKS):
        for column, (name, unit) in enumerate([("resident memory, MB", 2**20), ("descriptors", 1), ("threads", 1)]):
            middle = [statistics.median(one[2][rank][column] for one in part) / unit for part in (first, last)]
            found.append((f"rank {rank}: {name}", *middle))
    return [*found, ("step, ms", *(step_time(part) for part in ends))], list(map(len, ends))


def print_table(found, limit):
    """Prints what is compared. True if only the step time changed by more than the limit, or nothing did."""
    print("| | first tenth | last tenth | change | |\n| --- | ---: | ---: | ---: | --- |")
    good = True
    for name, first, last in found:
        change = 100 * (last / first - 1)
        timed = name.startswith("step")
        flat = timed or abs(change) <= limit
        good &= flat
        word = "" if timed else "ok" if flat else "NOT FLAT"
        print(f"| {name} | {first:.3f} | {last:.3f} | {change:+.2f}% | {word} |")
    return good


def soak(arguments, folder):
    data, out = folder / "data", folder / "run"
    command = [arguments.binary, "-q", "data", "digits", "--test", "500", "--out", data]
    command += ["--train", str(STEPS * BATCH * RANKS)]
    subprocess.run(command, check=True)
    seconds = 60 * arguments.minutes
    warm_up = min(60, seconds / 10)
    train = [arguments.binary, "train", "--data-root", data, *OPTIONS, "--out", out]
    train += ["--checkpoint-every", STEPS // 2 + 3, *arguments.options]
    job = Job(["mpirun", "--bind-to", "core:overload-allowed", "-n", str(RANKS), *map(str, train)], folder)
    ranks, samples, others = watch(job, out, seconds)
    for process in (ranks or {}).values():
        send(process, signal.SIGUSR1)
    ended = job.end()
    if ended.code != STOPPED or len(samples) < 2:
        raise SystemExit(f"soak: the job ended with exit code {ended.code}, not {STOPPED}:\n{ended.text}")
    done = epochs(out)
    found, compared = rows(samples, done, warm_up)
    checkpoints = len(done) * 2
    print(
        f"{samples[-1][0]:.0f} s, the first {warm_up:.0f} s of them warm-up: {len(done) * STEPS} steps,"
        f" {len(done)} evaluations, about {checkpoints} checkpoints;"
        f" {compared[0]} and {compared[1]} epochs in the first and the last tenth"
    )
    good = print_table(found, arguments.limit)
    if others > OTHERS:
        print(f"other programs used {others:.0f}% of the machine's CPU time: step times are not representative")
    return good


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, metavar="MINUTES", help="length of the run")
    parser.add_argument("--limit", type=float, default=2, metavar="PERCENT", help="largest change")
    parser.add_argument("--binary", type=Path, default=root / "target/release/mpiburn", metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the run directory")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="options of mpiburn train, after --")
    arguments = parser.parse_args()
    arguments.binary = arguments.binary.resolve()
    if not arguments.binary.is_file():
        parser.error(f"no program at {arguments.binary}: run `make build`")
    if shutil.which("mpirun") is None:
        parser.error("no mpirun: run `make setup`")
    if not arguments.minutes > 0:
        parser.error("--minutes must be positive")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="mpiburn-soak-"))
    try:
        good = soak(arguments, folder)
    finally:
        end_all()
        if arguments.keep:
            print(f"run directory: {folder / 'run'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
