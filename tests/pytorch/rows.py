"""The rows of the comparison: the work of both programs in each, and its timing."""

from dataclasses import dataclass
from pathlib import Path

from noise import write_noise
from programs import run_pytorch, step_mpiburn, takes_noise, train_mpiburn, train_pytorch

# Steps of the ConvNet's epoch unless --samples is given, limited by the data set: enough
# that fixed costs of a program are small.
EPOCH_STEPS = 900


@dataclass(frozen=True)
class Row:
    """One row. `goal` is the ratio that the project aims at."""

    name: str
    title: str
    goal: float
    kind: str  # "epoch", "noise" or "program"
    ranks: int = 1
    batch: int = 32
    model: str = "convnet"
    backend: str = "mpi"
    steps: int = 0

    @property
    def unit(self):
        """Unit of both programs' times."""
        return "s" if self.kind == "program" else "ms/step"


ROWS = (
    Row("convnet-32", "convnet, batch 32, 1 rank", 9, "epoch"),
    Row("convnet-256", "convnet, batch 256, 1 rank", 8, "epoch", batch=256),
    Row("convnet-32-mpi", "convnet, batch 32, 2 ranks, gloo : our mpi", 9, "epoch", ranks=2),
    Row("convnet-32-gloo", "convnet, batch 32, 2 ranks, gloo : our gloo", 6, "epoch", ranks=2, backend="gloo"),
    Row("mlp-32", "mlp, batch 32, 1 rank", 4.5, "noise", model="mlp", steps=1000),
    Row("vgg-32", "vgg, batch 32, 1 rank", 1.0, "noise", model="vgg", steps=12),
    Row("program", "whole program, 3 epochs with tests, 2 ranks", 6, "program", ranks=2),
)


@dataclass
class Measured:
    """A program's time in the row's unit, and a rank's largest memory in MB where it is known."""

    time: float
    peak_rss_mb: float | None
    torch: str | None = None


class Measuring:
    """Runs either program for a row. `samples` is --samples, 0 for the rows' default."""

    def __init__(self, programs, samples, folder):
        self.programs, self.samples, self.folder = programs, samples, Path(folder)
        self.makes_noise = takes_noise(programs)
        self.runs = 0

    def pytorch(self, row):
        """PyTorch's side of the row."""
        if row.kind == "noise":
            result = self.noise_in_pytorch(row)
            return Measured(result["ms_per_step"], result["peak_rss_mb"], result["torch"])
        result, seconds = train_pytorch(self.programs, *self.training(row))
        time = seconds if row.kind == "program" else result["ms_per_step"]
        return Measured(time, result["peak_rss_mb"], result["torch"])

    def mpiburn(self, row):
        """mpiburn's side of the row."""
        self.runs += 1
        if row.kind == "noise":
            file = self.folder / f"step-{self.runs}.json"
            times = step_mpiburn(self.programs, file, row.ranks, row.model, row.batch, row.steps)["overlap_on"]
            # The statistic that the other side reports: of single steps, or of an epoch.
            return Measured(times["median" if self.makes_noise else "mean"], None)
        result, seconds = train_mpiburn(self.programs, self.folder / f"run-{self.runs}", *self.training(row),
                                        "--backend", row.backend)
        return Measured(seconds if row.kind == "program" else result["ms_per_step"], result["peak_rss_mb"])

    def training(self, row):
        """Ranks, epochs, batch and samples of a training; 0 samples means all."""
        if row.kind == "program":
            return row.ranks, 3, row.batch, self.samples
        return row.ranks, 1, row.batch, self.samples or EPOCH_STEPS * row.batch

    def noise_in_pytorch(self, row):
        """Trains on random samples, from files if the program does not generate them."""
        options = ["--model", row.model, "--batch", row.batch]
        if self.makes_noise:
            return run_pytorch(self.programs, row.ranks, *options, "--noise", row.steps)[0]
        files = self.folder / f"noise-{row.name}"
        if not files.exists():
            write_noise(files, row.model, row.steps * row.batch * row.ranks)
        return run_pytorch(self.programs, row.ranks, *options, "--data", files, "--epochs", 1)[0]
