"""The rows of the speed comparison: what both programs do in each row, and how it is timed."""

from dataclasses import dataclass
from pathlib import Path

from lab import Lab
from noise import write_noise
from peers import FEATURES, IMAGES, custom_peer, peer_named
from programs import run_pytorch, step_mpiburn, takes_noise, train_mpiburn, train_pytorch

# Steps of the ConvNet's epoch, if neither the row nor --samples says otherwise. With 900 steps, the fixed
# costs of a program are small. All batches have the same size, because torch.compile and JAX compile again
# for a smaller one.
EPOCH_STEPS = 900


@dataclass(frozen=True)
class Row:
    """One row of the comparison. `goal` is the ratio of times that the project aims at. `trial_steps` is the
    number of steps of the trainings that find the fastest of `peers`. `rate` is that of the link between two nodes."""

    name: str
    title: str
    goal: float
    kind: str  # "epoch", "noise" or "program"
    ranks: int = 1
    batch: int = 32
    model: str = "convnet"
    backend: str = "mpi"
    steps: int = 0
    trial_steps: int = 200
    peers: tuple = IMAGES
    precision: str = "no"
    rate: str = ""

    @property
    def unit(self):
        """The unit in which the times of both programs are reported."""
        return "s" if self.kind == "program" else "ms/step"

    @property
    def options(self):
        """Options of the row that both programs know by the same name."""
        return ("--precision", self.precision) if self.precision != "no" else ()


ROWS = (
    Row("convnet-32", "convnet, batch 32, 1 rank", 9, "epoch", peers=(*IMAGES, "jax")),
    Row("convnet-256", "convnet, batch 256, 1 rank", 8, "epoch", batch=256, steps=234, trial_steps=50, peers=(*IMAGES, "jax")),
    Row("convnet-32-mpi", "convnet, batch 32, 2 ranks, mpi", 9, "epoch", ranks=2),
    Row("convnet-32-gloo", "convnet, batch 32, 2 ranks, gloo", 6, "epoch", ranks=2, backend="gloo"),
    Row("mlp-32", "mlp, batch 32, 1 rank", 2, "noise", model="mlp", steps=1000, trial_steps=500,
        peers=(*FEATURES, "jax")),
    Row("vgg-32", "vgg, batch 32, 1 rank", 2.2, "noise", model="vgg", steps=12, trial_steps=6),
    Row("vgg-bf16", "vgg, batch 32, 1 rank, bf16", 1.4, "noise", model="vgg", steps=12, trial_steps=6,
        precision="bf16"),
    Row("vgg-lab", "vgg, batch 32, 2 emulated nodes, 1 Gbit/s, mpi", 1.8, "noise", ranks=2, model="vgg", steps=12,
        trial_steps=6, peers=("eager",), rate="1gbit"),
    Row("program", "whole program, 3 epochs with tests, 2 ranks", 12, "program", ranks=2),
)


@dataclass
class Measured:
    """A program's time in the row's unit, and the peak memory of a rank in MB, or None if it is not known."""

    time: float
    peak_rss_mb: float | None


class Measuring:
    """Runs a row with mpiburn or with a peer. `samples` is --samples; 0 means the default of the row."""

    def __init__(self, programs, samples, folder):
        self.programs, self.samples, self.folder = programs, samples, Path(folder)
        self.custom = custom_peer(programs)
        self.makes_noise = self.custom is None or takes_noise(programs)
        self.runs = 0

    def peers(self, row):
        """The peers of a row: the program of --peer alone, or PyTorch in each of its ways, and JAX."""
        return [self.custom] if self.custom else [peer_named(name) for name in row.peers]

    def peer(self, row, peer):
        """Runs the row with a peer."""
        if row.kind == "noise":
            result = self.noise_in_peer(row, peer)
            return Measured(result["ms_per_step"], result["peak_rss_mb"])
        result, seconds = train_pytorch(self.programs, *self.training(row), *row.options, peer=peer)
        return Measured(seconds if row.kind == "program" else result["ms_per_step"], result["peak_rss_mb"])

    def mpiburn(self, row):
        """Runs the row with mpiburn."""
        self.runs += 1
        if row.kind == "noise":
            file = self.folder / f"step-{self.runs}.json"
            with Lab(row.rate) as lab:
                times = step_mpiburn(self.programs, file, row.ranks, row.model, row.batch, row.steps, *row.options,
                                     "--backend", row.backend, lab=lab)["overlap_on"]
            # The statistic that the peer reports too: the median of single steps, or the mean over an epoch.
            return Measured(times["median" if self.makes_noise else "mean"], None)
        result, seconds = train_mpiburn(self.programs, self.folder / f"run-{self.runs}", *self.training(row),
                                        "--backend", row.backend, *row.options)
        return Measured(seconds if row.kind == "program" else result["ms_per_step"], result["peak_rss_mb"])

    def training(self, row):
        """The number of ranks, epochs, samples per batch, and samples of a training. 0 samples means all."""
        if row.kind == "program":
            return row.ranks, 3, row.batch, self.samples
        step = row.ranks * row.batch
        wanted = self.samples or (row.steps or EPOCH_STEPS) * row.batch
        return row.ranks, 1, row.batch, max(wanted // step, 1) * step

    def noise_in_peer(self, row, peer):
        """Trains a peer on random samples. They are read from files if the peer cannot generate them."""
        options = ["--model", row.model, "--batch", row.batch, *row.options]
        source = ["--noise", row.steps] if self.makes_noise else ["--data", self.noise_files(row, row.steps), "--epochs", 1]
        with Lab(row.rate) as lab:
            return run_pytorch(self.programs, row.ranks, *options, *source, peer=peer, lab=lab)[0]

    def noise_files(self, row, steps):
        """A folder with random samples for `steps` steps, as files of the data set of the row's network."""
        files = self.folder / f"noise-{row.model}-{steps}-{row.batch}x{row.ranks}"
        if not files.exists():
            write_noise(files, row.model, steps * row.batch * row.ranks)
        return files
