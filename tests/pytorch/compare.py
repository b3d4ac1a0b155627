#!/usr/bin/env python3
"""mpiburn against PyTorch on this machine: is it as fast, and does it compute the same?

    tests/pytorch/setup.sh                               once
    .venv/bin/python tests/pytorch/compare.py speed      milliseconds a step of both, and their ratio
    .venv/bin/python tests/pytorch/compare.py correct    losses, accuracy and checkpoints of both

Both programs are started in the same way, by mpirun with one core a rank, and
train the same network on the same data. PyTorch's is train_ddp.py beside this
file, or another one with the same options and output (--peer). Exit code 0
where all is well, 1 where the two differ, 2 where they could not be compared.
"""

import argparse
import csv
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# What is imported from this folder leaves no __pycache__ in the source tree.
sys.dont_write_bytecode = True

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# A run that takes longer hangs: the longest here takes a minute.
TIMEOUT_SECONDS = 1800

# Both sides compute in f32 and differ in the order of their sums alone, which
# comes to less than 1e-6 in 100 steps. A wrong gradient or a wrong epsilon in
# Adam is far above this from the first steps on.
LOSS_STEPS = 100
LOSS_TOLERANCE = 1e-4
# In points of accuracy. After whole epochs the weights have drifted apart in
# the last digits, and some images on the border fall to the other side.
TRAINED_TOLERANCE = 0.3
# The same weights on both sides: two images of 10,000.
SAME_WEIGHTS_TOLERANCE = 0.02


class CannotCompare(Exception):
    """Something is missing or broke; the text says what to do."""


def plural(number):
    """The ending of a counted word."""
    return "" if number == 1 else "s"


# ------------------------------------------------------- starting the programs

@dataclass
class Programs:
    """What is compared, on what data."""

    mpiburn: Path
    pytorch: Path
    data: Path


def find_programs(options):
    """The programs and data of the options, checked, as an error of mpirun's is hard to read."""
    if shutil.which("mpirun") is None:
        raise CannotCompare("no mpirun; on Debian: apt-get install openmpi-bin")
    if importlib.util.find_spec("torch") is None:
        raise CannotCompare(f"{sys.executable} has no PyTorch; run tests/pytorch/setup.sh, "
                            "then .venv/bin/python tests/pytorch/compare.py")
    programs = Programs(options.mpiburn.resolve(), options.peer.resolve(), options.data.resolve())
    if not os.access(programs.mpiburn, os.X_OK):
        raise CannotCompare(f"no program {programs.mpiburn}; build it: cargo build --release")
    if not programs.pytorch.is_file():
        raise CannotCompare(f"no program {programs.pytorch}; check --peer")
    for split in ("train", "t10k"):
        if not list(programs.data.glob(f"{split}-images-idx3-ubyte*")):
            raise CannotCompare(f"no data in {programs.data}; make some: target/release/mpiburn data digits "
                                f"--out {programs.data}, or name a folder of MNIST's files: --data DIR")
    return programs


def core_count():
    """Cores that this process may use; two hardware threads of one core count once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            cores.add(cpu)
    return len(cores)


def mpirun_command(ranks):
    """mpirun and its options for that many ranks, one core each."""
    command = ["mpirun", "-n", str(ranks)]
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        return command + ["-bind-to", "core"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if ranks > core_count():
        return command + ["--oversubscribe", "--bind-to", "core:overload-allowed"]
    return command + ["--bind-to", "core"]


def free_port():
    """A port for PyTorch's ranks to meet at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_job(ranks, program):
    """Output of a program that is started on `ranks` ranks."""
    command = mpirun_command(ranks) + [str(word) for word in program]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = job.communicate(timeout=TIMEOUT_SECONDS)
    except BaseException as stop:
        # A killed mpirun leaves its ranks behind; one that is asked to end takes them along.
        job.terminate()
        job.wait()
        if isinstance(stop, subprocess.TimeoutExpired):
            raise CannotCompare(f"no end after {TIMEOUT_SECONDS} s: {' '.join(command)}") from None
        raise
    if job.returncode != 0:
        said = [line for line in (output + errors).splitlines() if line.strip()]
        raise CannotCompare("\n  ".join([f"exit code {job.returncode} of: {' '.join(command)}"] + said[-15:]))
    return output


def train_pytorch(programs, ranks, epochs, batch, samples, *more):
    """Trains by PyTorch; everything its JSON lines say, later ones over earlier ones."""
    output = run_job(ranks, [sys.executable, programs.pytorch, "--data", programs.data, "--epochs", epochs,
                             "--batch", batch, "--limit", samples, *more])
    result = {}
    for line in output.splitlines():
        if line.startswith("{"):
            result |= json.loads(line)
    if result.get("world") != ranks:
        raise CannotCompare(f"{programs.pytorch.name} saw {result.get('world')} ranks of {ranks}; "
                            "is mpirun one whose environment variables it knows?")
    return result


def train_mpiburn(programs, out, ranks, epochs, batch, samples, *more):
    """Trains by mpiburn into the run directory `out`; its run.json."""
    limit = ["--train-samples", samples] if samples else []
    run_job(ranks, [programs.mpiburn, "train", "--quiet", "--world-size", ranks, "--data-root", programs.data,
                    "--out", out, "--epochs", epochs, "--train-batch-size", batch, *limit, *more])
    return json.loads((out / "run.json").read_text())


# ---------------------------------------------------------------------- speed

# Share of one core that other programs may take before the figures are called
# doubtful. An idle Linux stays below it.
BUSY = 0.1


class OtherPrograms:
    """How many cores the rest of the machine kept busy since this was made.

    The kernel's count of all busy time, less that of this process and of the
    jobs it started and saw end.
    """

    def __init__(self):
        self.start = self.now()

    @staticmethod
    def now():
        """Seconds on the clock, and seconds that the others have worked."""
        user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
        busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        own = os.times()
        return own.elapsed, busy - own.user - own.system - own.children_user - own.children_system

    def cores(self):
        """Mean number of cores; not below 0, which the coarse ticks could make of it."""
        (start, before), (end, after) = self.start, self.now()
        return max(0.0, (after - before) / (end - start))


@dataclass
class Pair:
    """One training by each program, one right after the other. Memory is a
    rank's largest, in MB; `other_cores` is what other programs took meanwhile."""

    pair: int
    pytorch_ms_per_step: float
    mpiburn_ms_per_step: float
    ratio: float
    other_cores: float
    pytorch_train_s: float
    mpiburn_train_s: float
    pytorch_peak_rss_mb: float
    mpiburn_peak_rss_mb: float


def measure_pair(number, programs, options, out):
    """Trains an epoch by each program.

    One after the other, so that a slow spell of the machine meets both. That
    does not make a busy machine fair: MPI's ranks wait for each other by
    polling and gloo's by sleeping, and where cores are shared with other
    programs the side that polls was seen to lose several times as much.
    """
    others = OtherPrograms()
    theirs = train_pytorch(programs, options.ranks, 1, options.batch, options.samples)
    ours = train_mpiburn(programs, out, options.ranks, 1, options.batch, options.samples)
    return theirs, Pair(
        pair=number,
        pytorch_ms_per_step=theirs["ms_per_step"],
        mpiburn_ms_per_step=ours["ms_per_step"],
        ratio=theirs["ms_per_step"] / ours["ms_per_step"],
        other_cores=others.cores(),
        pytorch_train_s=theirs["train_s"],
        mpiburn_train_s=ours["train_seconds"],
        pytorch_peak_rss_mb=theirs["peak_rss_mb"],
        mpiburn_peak_rss_mb=ours["peak_rss_mb"],
    )


def summarize(pairs, theirs, options, programs):
    """The content of speed.json."""
    median = lambda field: statistics.median(getattr(pair, field) for pair in pairs)
    return {
        "ranks": options.ranks, "batch": options.batch, "samples": options.samples or "all", "steps": theirs["steps"],
        "data": str(programs.data), "host": socket.gethostname(), "cores": core_count(),
        "median_other_cores": median("other_cores"), "torch": theirs["torch"],
        "median_pytorch_ms_per_step": median("pytorch_ms_per_step"),
        "median_mpiburn_ms_per_step": median("mpiburn_ms_per_step"),
        "median_ratio": median("ratio"),
        "pairs": [vars(pair) for pair in pairs],
    }


def write_speed(folder, summary):
    """speed.json and speed.csv. Written after each pair, so that a stopped comparison leaves what it has."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "speed.json").write_text(json.dumps(summary, indent=2) + "\n")
    with open(folder / "speed.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(summary["pairs"][0]))
        writer.writeheader()
        writer.writerows(summary["pairs"])


def spread(values):
    """Largest less smallest value, in percent of the median."""
    return 100 * (max(values) - min(values)) / statistics.median(values)


def compare_speed(programs, options):
    """The subcommand `speed`."""
    cores = core_count()
    shared = ", MORE RANKS THAN CORES" if options.ranks > cores else ""
    print(f"{options.ranks} rank{plural(options.ranks)} on {cores} core{plural(cores)}{shared}, batch {options.batch} a rank, "
          f"{options.samples or 'all'} samples of {programs.data}")
    columns = "{:>6} {:>16} {:>16} {:>7} {:>20}"
    print(columns.format("pair", "PyTorch ms/step", "mpiburn ms/step", "ratio", "others' busy cores"))
    row = lambda name, *numbers: print(columns.format(name, *(f"{number:.2f}" for number in numbers)), flush=True)
    pairs = []
    with tempfile.TemporaryDirectory(prefix="mpiburn-compare-") as runs:
        for number in range(1, options.repeats + 1):
            theirs, pair = measure_pair(number, programs, options, Path(runs, f"run-{number}"))
            pairs.append(pair)
            row(number, pair.pytorch_ms_per_step, pair.mpiburn_ms_per_step, pair.ratio, pair.other_cores)
            summary = summarize(pairs, theirs, options, programs)
            write_speed(options.out, summary)
    row("median", summary["median_pytorch_ms_per_step"], summary["median_mpiburn_ms_per_step"],
        summary["median_ratio"], summary["median_other_cores"])
    ratios = [pair.ratio for pair in pairs]
    print(f"PyTorch's time over mpiburn's: {summary['median_ratio']:.2f}, median of {len(pairs)} pair{plural(len(pairs))} "
          f"from {min(ratios):.2f} to {max(ratios):.2f}; in {options.out}/speed.json and .csv")
    widest = max(spread([pair.pytorch_ms_per_step for pair in pairs]),
                 spread([pair.mpiburn_ms_per_step for pair in pairs]))
    if summary["median_other_cores"] > BUSY:
        print(f"note: other programs kept {summary['median_other_cores']:.1f} cores busy; these figures are no measure, "
              "and mpiburn's suffer most: repeat on an idle machine")
    elif widest > 10:
        print(f"note: one program's times differ by {widest:.0f}% from run to run; small differences mean nothing")
    return []


# -------------------------------------------------------------------- correct

def mean_losses(run, ranks, steps):
    """Losses of the run's first steps, mean over ranks, from rank<k>/train.loss."""
    curves = []
    for rank in range(ranks):
        lines = (run / f"rank{rank}" / "train.loss").read_text().splitlines()[:steps]
        curve = [line.split() for line in lines]
        if [int(step) for step, _ in curve] != list(range(1, len(curve) + 1)):
            raise CannotCompare(f"rank{rank}/train.loss does not hold every step's loss")
        curves.append([float(loss) for _, loss in curve])
    return [statistics.fmean(losses) for losses in zip(*curves, strict=True)]


def accuracy_in_pytorch(checkpoint, data):
    """Test accuracy of our weights, loaded by name into PyTorch's network."""
    from safetensors.torch import load_file

    from train_ddp import ConvNet, evaluate, load_shard

    network = ConvNet()
    network.load_state_dict(load_file(checkpoint), strict=True)
    return evaluate(network, load_shard(data, "test"), 128).over_ranks()[1]


def last_checkpoint(run):
    """Weights at the end of the run. Folders are named by step, with leading zeros."""
    return sorted(run.glob("checkpoints/step-*/model.safetensors"))[-1]


def compare_losses(theirs, ours):
    """What there is to say about the losses, and what is wrong with them."""
    if not ours or len(ours) != len(theirs):
        report = f"PyTorch reports {len(theirs)} losses to compare, and mpiburn {len(ours)}"
        return report, [f"{report}; are there too few samples for two steps?"]
    differences = [abs(a - b) for a, b in zip(theirs, ours)]
    largest = max(differences)
    at = differences.index(largest)
    report = f"losses of the first {len(ours)} steps: largest difference {largest:.1e}, at step {at + 1}"
    if largest <= LOSS_TOLERANCE:
        return report, []
    first = next(step for step, difference in enumerate(differences) if difference > LOSS_TOLERANCE)
    return report, [f"losses differ by more than {LOSS_TOLERANCE:g} from step {first + 1} on "
                    f"(PyTorch {theirs[first]:.6f}, mpiburn {ours[first]:.6f})"]


def compare_accuracy(what, theirs, ours, tolerance):
    """The same for two test accuracies in percent."""
    report = f"test accuracy {what}: PyTorch {theirs:.2f}%, mpiburn {ours:.2f}%"
    # Room for the rounding of a difference that is just the tolerance.
    wrong = abs(theirs - ours) > tolerance + 1e-9
    return report, [f"{report}, more than {tolerance:g} points apart"] if wrong else []


def check_ranks(ranks, programs, options, folder):
    """Trains by both from the same weights; what differs, as lines."""
    initial, run = folder / f"init-{ranks}.safetensors", folder / f"run-{ranks}"
    training = (ranks, options.epochs, options.batch, options.samples)
    theirs = train_pytorch(programs, *training, "--save-init", initial, "--loss-steps", LOSS_STEPS)
    ours = train_mpiburn(programs, run, *training, "--init", initial, "--log-every", 1)
    # The last step of an epoch is left out: where samples do not come out even
    # over the ranks, PyTorch repeats some there and mpiburn does not.
    steps = min(LOSS_STEPS, theirs["steps"] // options.epochs - 1)
    checks = [
        compare_losses(theirs["losses"][:steps], mean_losses(run, ranks, steps)),
        compare_accuracy(f"after {options.epochs} epoch{plural(options.epochs)}", theirs["test_acc"], ours["test_accuracy"], TRAINED_TOLERANCE),
    ]
    try:
        reloaded = accuracy_in_pytorch(last_checkpoint(run), programs.data)
        checks.append(compare_accuracy("of mpiburn's checkpoint", reloaded, ours["test_accuracy"], SAME_WEIGHTS_TOLERANCE))
    except RuntimeError as error:
        checks.append(("no test accuracy of mpiburn's checkpoint",
                       [f"PyTorch cannot load mpiburn's checkpoint: {' '.join(str(error).split())}"]))
    where = f"{ranks} rank{plural(ranks)}"
    print("\n".join(f"{where}: {report}" for report, _ in checks), flush=True)
    return [f"{where}: {problem}" for _, problems in checks for problem in problems]


def compare_results(programs, options):
    """The subcommand `correct`; what differs, as lines."""
    problems = []
    with tempfile.TemporaryDirectory(prefix="mpiburn-compare-") as folder:
        for ranks in options.ranks:
            problems += check_ranks(ranks, programs, options, Path(folder))
    if not problems:
        print("mpiburn and PyTorch agree")
    return problems


# ----------------------------------------------------------------------- main

def count(text, least):
    """An option's value that has to be at least `least`."""
    if int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is below {least}")
    return int(text)


def positive(text):
    """An option's value that has to be 1 or more."""
    return count(text, 1)


def not_negative(text):
    """An option's value that has to be 0 or more."""
    return count(text, 0)


def parse_options():
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed", help="milliseconds a step of both, and their ratio")
    correct = commands.add_parser("correct", help="losses, accuracy and checkpoints of both")
    for command in (speed, correct):
        command.add_argument("--data", type=Path, default=ROOT / "data/digits", metavar="DIR",
                             help="folder of the data set, MNIST's files or such (default: data/digits)")
        command.add_argument("--samples", type=not_negative, default=0, metavar="N",
                             help="train on the first N samples only (default: all)")
        command.add_argument("--batch", type=positive, default=32, help="samples of one rank's batch (default: 32)")
        command.add_argument("--peer", type=Path, default=HERE / "train_ddp.py", metavar="PATH",
                             help="PyTorch's program, if not train_ddp.py")
        command.add_argument("--mpiburn", type=Path, default=ROOT / "target/release/mpiburn", metavar="PATH",
                             help="our program (default: target/release/mpiburn)")
    speed.add_argument("--ranks", type=positive, default=2, metavar="N", help="ranks of both (default: 2)")
    speed.add_argument("--repeats", type=positive, default=5, metavar="N", help="pairs of runs (default: 5)")
    speed.add_argument("--out", type=Path, default=ROOT / "results/compare-pytorch", metavar="DIR",
                       help="folder of speed.json and speed.csv (default: results/compare-pytorch)")
    correct.add_argument("--ranks", type=positive, nargs="+", default=[1, 2], metavar="N",
                         help="numbers of ranks to try (default: 1 2)")
    correct.add_argument("--epochs", type=positive, default=3, metavar="N",
                         help="passes over the training set (default: 3)")
    return parser.parse_args()


def main():
    options = parse_options()
    try:
        programs = find_programs(options)
        problems = (compare_speed if options.command == "speed" else compare_results)(programs, options)
    except CannotCompare as problem:
        print(f"compare.py: {problem}", file=sys.stderr)
        return 2
    if problems:
        print(f"compare.py: {'; '.join(problems)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
