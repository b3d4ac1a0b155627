#!/usr/bin/env python3
"""Compares trainings and steps on a GPU with the CPU: prints a table and failed checks, writes JSON. run.sh starts it.

Missing programs and devices are found before the first training. If a training fails, the JSON file has the trainings
before it.

The checks:
- On one rank, the test accuracy of convnet and vgg is within 0.5 points of the CPU's.
- Two ranks that share the first GPU, over mpi and over gloo, reach the accuracy of two CPU ranks within 0.5 points. The
  program itself checks that the ranks' weights are equal.
- One rank over nccl has the same weights as over mpi. With two GPUs, two ranks over nccl reach the accuracy of two CPU
  ranks.

The time of a step of vgg is printed beside PyTorch's.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# The largest difference between the accuracies on a GPU and on the CPU, in points: they round differently.
TOLERANCE = 0.5
# The trainings. Their accuracies are above chance, and a CPU needs minutes at most.
TRAININGS = {
    "convnet": ("digits", 6400, 2000, ["--epochs", "2", "--lr", "2e-3"]),
    "vgg": ("objects", 5000, 2000, ["--model", "vgg", "--epochs", "4", "--lr", "5e-4"]),
}


class CannotRun(Exception):
    """Something is missing or has failed; the text says what to do."""


@dataclass
class Row:
    """A training, as run.json describes it."""

    name: str
    device: str
    backend: str
    ranks: int
    run: dict

    def cells(self):
        exposed = self.run["step_ms"]["exposed"]
        return [self.name, self.device, self.backend, str(self.ranks), f"{self.run['ms_per_step']:.3f}",
                f"{self.run['images_per_second']:.0f}", f"{exposed:.3f}", f"{self.run['test_accuracy']:.2f}"]


HEADER = ["network", "device", "backend", "ranks", "ms/step", "images/s", "exposed ms", "accuracy %"]


class Machine:
    """Runs the program on generated data, with a folder for its runs."""

    def __init__(self, binary, work):
        self.binary, self.work, self.rows = binary, Path(work), []

    def run(self, words, ranks=1):
        """Runs the program on `ranks` ranks; returns its output."""
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        cores = os.cpu_count() or 1
        bind = "core" if ranks <= cores else "core:overload-allowed"
        over = [] if ranks <= cores else ["--oversubscribe"]
        command = ["mpirun", *as_root, "-n", str(ranks), "--bind-to", bind, *over, str(self.binary), "-q", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise CannotRun("\n  ".join([f"exit code {done.returncode} of: {' '.join(command)}", *lines[-8:]]))
        return done.stdout

    def data(self, kind, train, test):
        """Returns the folder of a generated data set; generates it at the first call."""
        folder = self.work / kind
        if not folder.exists():
            self.run(["data", kind, "--train", train, "--test", test, "--out", folder])
        return folder

    def train(self, name, device, backend, ranks):
        """Trains the network `name`; returns its row of the table."""
        kind, train, test, options = TRAININGS[name]
        out = self.work / f"{name}-{device.replace(':', '')}-{backend}-{ranks}"
        self.run(["train", "--data-root", self.data(kind, train, test), "--device", device, "--backend", backend,
                  "--out", out, *options], ranks)
        row = Row(name, device, backend, ranks, json.loads((out / "run.json").read_text()))
        self.rows.append(row)
        print("  ".join(row.cells()), file=sys.stderr)
        return row

    def step(self, device, batch):
        """The milliseconds of a step of vgg."""
        file = self.work / f"step-{batch}.json"
        self.run(["bench", "step", "--model", "vgg", "--train-batch-size", batch, "--device", device, "--products", 0,
                  "--json", file])
        return json.loads(file.read_text())["overlap_on"]["median"]


def gpus():
    """The names of the GPUs of this machine."""
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotRun("no nvidia-smi, so there is no NVIDIA driver; run it on a machine with an NVIDIA GPU") from None
    if listed.returncode != 0:
        said = (listed.stderr + listed.stdout).strip().splitlines() or ["nothing"]
        raise CannotRun(f"nvidia-smi ends with {listed.returncode} and says: {said[-1]}; repair the driver")
    found = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
    if not found:
        raise CannotRun("nvidia-smi names no GPU; run it on a machine with one")
    return found


def built(on_gpu):
    """The path of the program. On a GPU, the build with Burn's CUDA backend is made first."""
    # Every build runs on the CPU, so the default build is used there.
    binary = ROOT / ("target-cuda" if on_gpu else "target") / "release/mpiburn"
    if on_gpu and subprocess.run(["make", "--no-print-directory", "build", "DEVICES=cuda"], cwd=ROOT).returncode != 0:
        raise CannotRun("the build with DEVICES=cuda failed; its reason is above")
    if not binary.exists():
        raise CannotRun(f"{binary} is not there; make build writes it")
    return binary


def without_nccl(machine):
    """Why NCCL cannot be used here; None if it can."""
    try:
        machine.run(["bench", "allreduce", "--backends", "nccl", "--sizes", "4", "--iterations", 1])
    except CannotRun as problem:
        return next((line.strip() for line in str(problem).splitlines() if "nccl" in line and "exit code" not in line),
                    str(problem))
    return None


def near(problems, row, expected):
    """Appends a problem if the accuracies of two rows differ by more than the tolerance."""
    off = abs(row.run["test_accuracy"] - expected.run["test_accuracy"])
    if off > TOLERANCE:
        problems.append(f"{row.name} on {row.device} over {row.backend} at {row.ranks} ranks: accuracy "
                        f"{row.run['test_accuracy']:.2f}%, and {expected.run['test_accuracy']:.2f}% on {expected.device}")


def torch_step(python, device, batch):
    """PyTorch's time for a step of vgg, and None; or None, and why there is none."""
    script = ROOT / "tests/gpu/torch_step.py"
    words = [python, script, "--batch", str(batch), "--device", "cpu" if device == "flex" else "cuda"]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        return None, f"{python}: {error.strerror}"
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["no output"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), None


def table(rows):
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) if at < 3 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


def trainings(machine, one, on_gpu, found, no_nccl, problems):
    """Runs all trainings. `one` is the device: the first GPU, or the CPU."""
    for name in TRAININGS:
        cpu = machine.train(name, "flex", "mpi", 1)
        if on_gpu:
            near(problems, machine.train(name, one, "mpi", 1), cpu)
    cpu = machine.train("convnet", "flex", "mpi", 2)
    for backend in ["mpi", "gloo"] if on_gpu else ["gloo"]:
        near(problems, machine.train("convnet", one, backend, 2), cpu)
    if on_gpu and no_nccl is None:
        mpi = next(row for row in machine.rows if (row.name, row.device) == ("vgg", one))
        nccl = machine.train("vgg", one, "nccl", 1)
        if mpi.run["weights_sha256"] != nccl.run["weights_sha256"]:
            problems.append("one rank over nccl has other weights than over mpi")
        if len(found) > 1:
            near(problems, machine.train("convnet", "cuda", "nccl", 2), cpu)


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, help="the program; without it, that of this checkout, built if needed")
    parser.add_argument("--device", default="cuda", choices=["cuda", "flex"])
    parser.add_argument("--json", type=Path, default=ROOT / "results/gpu.json")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--batch", type=int, default=256, help="samples of the step of vgg (default: 256)")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    found, problems, skipped = gpus() if on_gpu else [], [], []
    if shutil.which(options.python) is None and options.python != parser.get_default("python"):
        raise CannotRun(f"--python {options.python}: there is no such program")
    try:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.open("a").close()
    except OSError as error:
        raise CannotRun(f"--json {options.json}: {error.strerror}") from None
    binary = (options.binary or built(on_gpu)).resolve()
    # All ranks use the first GPU.
    one = "cuda:0" if on_gpu else "flex"
    ours = theirs = why_not = failure = None
    with tempfile.TemporaryDirectory() as work:
        machine = Machine(binary, work)
        no_nccl = without_nccl(machine) if on_gpu else None
        if no_nccl:
            skipped.append(f"everything over nccl: {no_nccl}")
        elif len(found) < 2:
            skipped.append("two ranks over nccl: this machine has fewer than two GPUs")
        try:
            trainings(machine, one, on_gpu, found, no_nccl, problems)
            ours = machine.step(one, options.batch)
            theirs, why_not = torch_step(options.python, options.device, options.batch)
        except CannotRun as problem:
            failure = problem
            problems.append(str(problem))
        rows = machine.rows
    table([HEADER] + [row.cells() for row in rows])
    if ours:
        beside = f"PyTorch {theirs['torch']} eager {theirs['ms_per_step']:.3f} ms, ratio {theirs['ms_per_step'] / ours:.2f}" \
            if theirs else f"PyTorch not measured: {why_not}"
        print(f"a step of vgg at batch {options.batch}, f32: {ours:.3f} ms; {beside}")
    for line in skipped:
        print(f"skipped: {line}")
    options.json.write_text(json.dumps({
        "gpus": found, "rows": [{"network": row.name, "device": row.device, "backend": row.backend, "ranks": row.ranks,
                                 "run": row.run} for row in rows],
        "vgg_step": {"batch": options.batch, "ms": ours, "pytorch": theirs, "pytorch_missing": why_not},
        "skipped": skipped, "problems": problems,
    }, indent=2) + "\n")
    for problem in problems:
        print(f"run.sh: {problem}", file=sys.stderr)
    return 2 if failure else 1 if problems else 0


# The folder of the runs is removed after SIGTERM too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
try:
    sys.exit(main())
except CannotRun as problem:
    print(f"run.sh: {problem}", file=sys.stderr)
    sys.exit(2)
