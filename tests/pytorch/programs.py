"""Runs the compared programs, mpiburn and PyTorch's, under mpirun with one core per rank."""

import argparse
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from machine import core_count

ROOT = Path(__file__).resolve().parent.parent.parent
PYTORCH = ROOT / "tests/pytorch/train_ddp.py"

# A job that runs longer than this many seconds counts as hanging. The longest job takes a minute.
TIMEOUT_SECONDS = 1800


class CannotCompare(Exception):
    """The comparison is not possible; the text says why and what to do."""


def run(main):
    """Runs `main`, which returns a list of problems, and exits.

    Exit code 0 without problems, 1 with problems, 2 if CannotCompare was raised.
    """
    program = Path(sys.argv[0]).name
    try:
        problems = main()
    except CannotCompare as problem:
        print(f"{program}: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    for problem in problems:
        print(f"{program}: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


def count(text, least):
    """Reads the value of an option that must be a number of at least `least`."""
    if int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is below {least}")
    return int(text)


def positive(text):
    """Reads the value of an option that must be 1 or more."""
    return count(text, 1)


def not_negative(text):
    """Reads the value of an option that must be 0 or more."""
    return count(text, 0)


def plural(number):
    """The plural ending of a word after a number: empty if the number is 1."""
    return "" if number == 1 else "s"


@dataclass
class Programs:
    """The paths of the compared programs and of their data."""

    mpiburn: Path
    pytorch: Path
    data: Path

    def on(self, data):
        """The same programs with other data."""
        return replace(self, data=Path(data))


def require_programs(mpiburn, pytorch):
    """Raises CannotCompare if a program is missing. mpirun's own errors are hard to read."""
    if shutil.which("mpirun") is None:
        raise CannotCompare("no mpirun; on Debian: apt-get install openmpi-bin")
    if importlib.util.find_spec("torch") is None:
        raise CannotCompare(f"{sys.executable} has no PyTorch; run tests/pytorch/setup.sh, "
                            f"then .venv/bin/python {os.path.relpath(sys.argv[0], ROOT)}")
    if not os.access(mpiburn, os.X_OK):
        raise CannotCompare(f"no program {mpiburn}; build it: cargo build --release")
    if not pytorch.is_file():
        raise CannotCompare(f"no program {pytorch}; check --peer")


def add_program_options(parser):
    """Adds the options that `find_programs` reads, and the number of samples."""
    parser.add_argument("--data", type=Path, default=ROOT / "data/digits", metavar="DIR",
                        help="folder of a data set in MNIST's layout (default: data/digits)")
    parser.add_argument("--samples", type=not_negative, default=0, metavar="N",
                        help="train on the first N samples only (default: all; 900 steps when timing the ConvNet)")
    parser.add_argument("--peer", type=Path, default=PYTORCH, metavar="PATH",
                        help="PyTorch's program, if not tests/pytorch/train_ddp.py")
    parser.add_argument("--mpiburn", type=Path, default=ROOT / "target/release/mpiburn", metavar="PATH",
                        help="our program (default: target/release/mpiburn)")


def find_programs(options):
    """The programs and the data of the options; raises CannotCompare if something is missing."""
    programs = Programs(options.mpiburn.resolve(), options.peer.resolve(), options.data.resolve())
    require_programs(programs.mpiburn, programs.pytorch)
    for split in ("train", "t10k"):
        if not list(programs.data.glob(f"{split}-images-idx3-ubyte*")):
            raise CannotCompare(f"no data in {programs.data}; generate some: target/release/mpiburn data digits "
                                f"--out {programs.data}, or select a folder with MNIST's files: --data DIR")
    return programs


def takes_noise(programs):
    """True if PyTorch's program can generate random batches. A program of --peer may not."""
    help_text = subprocess.run([sys.executable, programs.pytorch, "--help"], capture_output=True, text=True)
    return "--noise" in help_text.stdout


def has_precision(mpiburn):
    """True if this mpiburn trains in other precisions than f32. Older builds do not."""
    return "--precision" in subprocess.run([mpiburn, "train", "--help"], capture_output=True, text=True).stdout


def mpirun_command(ranks, threads=1):
    """The mpirun command for this number of ranks, with one core for each of a rank's threads."""
    command = ["mpirun", "-n", str(ranks)]
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        return command + ["-bind-to", f"core:{threads}"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if ranks * threads > core_count():
        return command + ["--oversubscribe", "--bind-to", "core:overload-allowed" if threads == 1 else "none"]
    return command + (["--map-by", f"slot:PE={threads}"] if threads > 1 else []) + ["--bind-to", "core"]


def free_port():
    """A free TCP port, where PyTorch's ranks can connect to each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_job(ranks, program, lab=None, threads=1):
    """Runs a program on `ranks` ranks, on this machine or on a lab's nodes. Returns its output, and its wall time in
    seconds. Each rank may use `threads` cores."""
    command = (lab.command(ranks) if lab else mpirun_command(ranks, threads)) + [str(word) for word in program]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if lab:
        environment = lab.variables(environment)
    started = time.perf_counter()
    job = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = job.communicate(timeout=TIMEOUT_SECONDS)
    except BaseException as stop:
        # SIGTERM lets mpirun end its ranks; a killed mpirun would leave them running.
        job.terminate()
        job.wait()
        if isinstance(stop, subprocess.TimeoutExpired):
            raise CannotCompare(f"timeout after {TIMEOUT_SECONDS} s: {' '.join(command)}") from None
        raise
    seconds = time.perf_counter() - started
    if job.returncode != 0:
        lines = [line for line in (output + errors).splitlines() if line.strip()]
        raise CannotCompare("\n  ".join([f"exit code {job.returncode} of: {' '.join(command)}"] + lines[-15:]))
    return output, seconds


def run_pytorch(programs, ranks, *options, peer=None, lab=None):
    """Runs PyTorch's program, or another `peer`. Returns its JSON lines merged into one, later fields over earlier ones,
    and the wall time in seconds."""
    program, selection = (peer.program, peer.options) if peer else (programs.pytorch, ())
    output, seconds = run_job(ranks, [sys.executable, program, *selection, *options], lab)
    result = {}
    for line in output.splitlines():
        if line.startswith("{"):
            result |= json.loads(line)
    if result.get("world") != ranks:
        raise CannotCompare(f"{program.name} saw {result.get('world')} ranks of {ranks}; "
                            "does it support the environment variables of this mpirun?")
    return result, seconds


def train_pytorch(programs, ranks, epochs, batch, samples, *more, peer=None):
    """Trains with PyTorch or another `peer`, by default the ConvNet. Returns the merged JSON lines, and the wall time in
    seconds."""
    return run_pytorch(programs, ranks, "--data", programs.data, "--epochs", epochs, "--batch", batch,
                       "--limit", samples, *more, peer=peer)


def train_mpiburn(programs, out, ranks, epochs, batch, samples, *more):
    """Trains with mpiburn, into the run directory `out`. Returns its run.json, and the wall time in seconds."""
    limit = ["--train-samples", samples] if samples else []
    _, seconds = run_job(ranks, [programs.mpiburn, "train", "--quiet", "--world-size", ranks,
                                 "--data-root", programs.data, "--out", out, "--epochs", epochs,
                                 "--train-batch-size", batch, *limit, *more])
    return json.loads((out / "run.json").read_text()), seconds


def step_mpiburn(programs, out, ranks, model, batch, steps, *more, lab=None):
    """Times steps of mpiburn on random samples. Returns the content of the JSON file `out`."""
    run_job(ranks, [programs.mpiburn, "bench", "step", "--model", model, "--train-batch-size", batch,
                    "--steps", steps, "--json", out, *more], lab)
    return json.loads(out.read_text())
