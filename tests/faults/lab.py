"""The runs that faults disturb: their options, their data, and undisturbed runs to compare with."""

import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from job import DEADLINE, Job, send


@dataclass(frozen=True)
class Config:
    """The number of ranks, the backend and the options of a run."""

    ranks: int
    backend: str
    options: str

    def words(self):
        common = f"--backend {self.backend} --test-samples 301 --log-every 10 --comm-timeout {DEADLINE}"
        return f"{common} {self.options}".split()

    def __str__(self):
        return f"-n {self.ranks} --backend {self.backend} {self.options}"


CONFIGS = [
    Config(2, "mpi", "--train-samples 1601 --epochs 8 --checkpoint-every 7 --shuffle"),
    Config(3, "mpi", "--train-samples 2003 --epochs 9 --checkpoint-every 11"),
    Config(4, "mpi", "--train-samples 1283 --epochs 12 --checkpoint-every 5 --dropout 0.25 --shuffle"),
    Config(2, "mpi", "--train-samples 3187 --epochs 4 --checkpoint-every 9 --batch-norm --accumulate 2"),
    Config(2, "mpi", "--train-samples 997 --epochs 5 --checkpoint-every 6 --quantize qat"),
    Config(2, "gloo", "--train-samples 641 --epochs 6 --checkpoint-every 4 --shuffle"),
    Config(3, "gloo", "--train-samples 1003 --epochs 5 --checkpoint-every 5 --early-stopping 4"),
    Config(
        4,
        "gloo",
        "--train-samples 811 --epochs 5 --checkpoint-every 3 --optimizer sgd --momentum 0.9 --lr 0.02",
    ),
]


def read_json(file):
    """The content of a JSON file; an empty object if it cannot be read."""
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def checkpoints(folder):
    """The complete checkpoints of a run directory, oldest first."""
    return sorted(Path(folder).glob("checkpoints/step-*"))


def results(folder):
    """The rows of epochs.csv without times, and the curves of all ranks, by file name."""
    folder = Path(folder)
    found = {}
    for file in [folder / "epochs.csv", *folder.glob("rank*/*")]:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        if file.name == "epochs.csv":
            lines = [[v for k, v in enumerate(line.split(",")) if k != 5] for line in lines]
        found[str(file.relative_to(folder))] = lines
    return found


def has_epoch(folder):
    """True if an epoch of the run is complete."""
    return len(results(folder).get("epochs.csv", [])) > 1


@dataclass
class Reference:
    """An undisturbed run, and a run that was stopped, with the test results of their checkpoints."""

    folder: Path
    stopped: Path
    start_up: float
    steps: int
    weights: str
    results: dict
    evaluations: dict[Path, set[str]] = field(default_factory=dict)


class Lab:
    """The folder of a campaign, with its data and its undisturbed runs. They are made when they are first needed."""

    def __init__(self, binary, folder):
        self.binary = Path(binary).resolve()
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self.numbers = iter(range(10**9))
        self.references = {}
        command = [self.binary, "-q", "data", "digits", "--train", "6400", "--test", "500"]
        subprocess.run([*command, "--out", self.data], check=True)

    def new(self, name):
        """A path in the campaign's folder that does not exist yet."""
        return self.folder / f"{name}-{next(self.numbers)}"

    def mpirun(self, *groups):
        """The command of one job. `groups` are pairs of a number of ranks and the command of these ranks."""
        few = sum(ranks for ranks, _ in groups) <= len(os.sched_getaffinity(0))
        words = ["mpirun", "--bind-to", "core" if few else "core:overload-allowed"]
        words += [] if few else ["--oversubscribe"]
        for ranks, command in groups:
            if ranks:
                words += [":"] if "-n" in words else []
                words += ["-n", str(ranks), *map(str, command)]
        return words

    def train_command(self, config, out, extra=()):
        return [self.binary, "train", "--data-root", self.data, *config.words(), "--out", out, *extra]

    def start(self, config, out):
        return Job(self.mpirun((config.ranks, self.train_command(config, out))), self.folder)

    def resume(self, config, out):
        """Resumes a run and waits for its end."""
        return Job(self.mpirun((config.ranks, [self.binary, "train", "--resume", out])), self.folder).end()

    def evaluate(self, path):
        return Job([str(self.binary), "eval", "--checkpoint", str(path)], self.folder).end()

    def reference(self, config):
        if config not in self.references:
            self.references[config] = self.make_reference(config)
        return self.references[config]

    def make_reference(self, config):
        folder = self.new("whole")
        ended = self.start(config, folder).end()
        record = read_json(folder / "run.json")
        if ended.code != 0 or record.get("status") != "completed":
            raise SystemExit(f"an undisturbed run failed: {config}\n{ended.text}")
        stopped = self.make_stopped(config)
        made = Reference(
            folder=folder,
            stopped=stopped,
            # mpirun itself takes about half a second to start.
            start_up=record["start_up_seconds"] + 0.5,
            steps=record["steps"],
            weights=record["weights_sha256"],
            results=results(folder),
        )
        for base in (folder, stopped):
            found = [self.evaluate(path) for path in (base, *checkpoints(base))]
            if any(one.code != 0 for one in found):
                raise SystemExit(f"an undisturbed checkpoint does not load: {config}\n{found[-1].text}")
            made.evaluations[base] = {one.text.strip() for one in found}
        return made

    def make_stopped(self, config):
        """Makes a run that SIGUSR1 stopped in an epoch after the first one."""
        for _ in range(5):
            folder = self.new("stopped")
            job = self.start(config, folder)
            if job.until(partial(has_epoch, folder)):
                for process in job.ranks().values():
                    send(process, signal.SIGUSR1)
            ended = job.end()
            if ended.code == 75 and read_json(folder / "run.json").get("status") == "stopped":
                return folder
            shutil.rmtree(folder, ignore_errors=True)
        raise SystemExit(f"SIGUSR1 does not stop this run with exit code 75: {config}\n{ended.text}")
