#!/usr/bin/env python3
"""mlp and vgg, trained by mpiburn and by PyTorch from the same weights: the same losses, the same accuracy?

    .venv/bin/python tests/pytorch/accuracy.py                           all, seven minutes
    .venv/bin/python tests/pytorch/accuracy.py --only vgg --seeds 0      the first losses of vgg alone
    .venv/bin/python tests/pytorch/accuracy.py --data-features data/features --data-objects data/objects

Without folders, both data sets are generated. Both programs train with Adam and
without shuffling.

mlp: 10 epochs at a learning rate of 1e-3 on 1 and 2 ranks; the losses of the first
20 steps differ by 1e-3 at most, test accuracies by 1 point. vgg: the losses of the
first 5 steps differ by 1e-3 at most; after 2 epochs the mean test accuracies over
the seeds differ by 3 points at most. Single runs of vgg differ by more: a change
of 1e-7 in PyTorch's own start does as much. vgg goes without the reports' weight
decay, with which it stays at the loss of guessing for some seeds, in PyTorch as
well, and takes batches of 8, to learn something in minutes; --seeds 0 is the
reports' own recipe. Exit code 0 where all is well, 1 where the two differ, 2 where
they could not be compared.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# What is imported from this folder leaves no __pycache__ in the source tree.
sys.dont_write_bytecode = True

from compare import ROOT, not_negative
from correct import compare_accuracy, compare_losses, mean_losses
from programs import CannotCompare, Programs, plural, require_programs, run, train_mpiburn, train_pytorch


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, beside its data and seed."""

    model: str
    batch: int
    lr: float
    weight_decay: float
    epochs: int
    loss_steps: int

    def words(self):
        """As options of both programs."""
        return "--model", self.model, "--lr", self.lr, "--weight-decay", self.weight_decay


MLP = Recipe("mlp", 32, 1e-3, 0, epochs=10, loss_steps=20)
VGG = Recipe("vgg", 8, 5e-4, 0, epochs=2, loss_steps=5)
VGG_START = Recipe("vgg", 32, 5e-4, 5e-4, epochs=1, loss_steps=5)

LOSS_TOLERANCE = 1e-3
# In points of accuracy.
ACCURACY_TOLERANCE = {"mlp": 1.0, "vgg": 3.0}
# A network that has learned nothing agrees with any other.
LEAST_ACCURACY = {"mlp": 60.0, "vgg": 18.0}


def parse_options():
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("mlp", "vgg"), help="one of the networks (default: both)")
    parser.add_argument("--seeds", type=not_negative, default=5, metavar="N",
                        help="seeds of vgg's mean accuracy (default: 5); 0 is 5 steps and no accuracy")
    parser.add_argument("--samples", type=not_negative, default=2000, metavar="N",
                        help="vgg trains on the first N samples, 0 for all (default: 2000)")
    parser.add_argument("--data-features", type=Path, metavar="DIR", help="features, as mpiburn data features makes")
    parser.add_argument("--data-objects", type=Path, metavar="DIR", help="CIFAR-10, or what mpiburn data objects makes")
    parser.add_argument("--mpiburn", type=Path, default=ROOT / "target/release/mpiburn", metavar="PATH",
                        help="our program (default: target/release/mpiburn)")
    parser.add_argument("--peer", type=Path, default=Path(__file__).with_name("train_ddp.py"), metavar="PATH",
                        help="PyTorch's program (default: train_ddp.py beside this)")
    return parser.parse_args()


def generate(options, kind, folder, *sizes):
    """Makes the data set `kind` in a folder of its own; the folder."""
    command = [options.mpiburn, "data", kind, "--out", folder / kind, *sizes]
    made = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if made.returncode != 0:
        raise CannotCompare(made.stderr.strip() or f"exit code {made.returncode} of mpiburn data {kind}")
    return folder / kind


class Pair:
    """Trains a network by both programs from the same weights."""

    def __init__(self, data, options, folder):
        self.folder = folder
        self.programs = Programs(options.mpiburn.resolve(), options.peer.resolve(), data.resolve())

    def train(self, recipe, ranks, samples, seed):
        """The check of the losses, and both test accuracies."""
        name = f"{recipe.model}-{ranks}-{seed}"
        initial, run = self.folder / f"{name}.safetensors", self.folder / name
        training = (ranks, recipe.epochs, recipe.batch, samples, "--seed", seed, *recipe.words())
        theirs, _ = train_pytorch(self.programs, *training, "--save-init", initial, "--loss-steps", recipe.loss_steps)
        ours, _ = train_mpiburn(self.programs, run, *training, "--init", initial, "--log-every", 1)
        losses = compare_losses(theirs["losses"], mean_losses(run, ranks, recipe.loss_steps), LOSS_TOLERANCE)
        return losses, (theirs["test_acc"], ours["test_accuracy"])


def check_accuracy(model, what, theirs, ours):
    """A report on two accuracies, and what is wrong with them."""
    report, problems = compare_accuracy(what, theirs, ours, ACCURACY_TOLERANCE[model])
    if min(theirs, ours) < LEAST_ACCURACY[model]:
        problems.append(f"{report}: too little is learned to compare")
    return report, problems


def check_mlp(options, folder):
    """Reports and what differs, for mlp."""
    pair = Pair(options.data_features or generate(options, "features", folder), options, folder)
    for ranks in (1, 2):
        losses, accuracies = pair.train(MLP, ranks, 0, 123)
        where = f"mlp, {ranks} rank{plural(ranks)}"
        yield where, losses
        yield where, check_accuracy("mlp", f"after {MLP.epochs} epochs", *accuracies)


def check_vgg(options, folder):
    """Reports and what differs, for vgg."""
    sizes = ("--train", options.samples or 2000, "--test", 500)
    pair = Pair(options.data_objects or generate(options, "objects", folder, *sizes), options, folder)
    if options.seeds == 0:
        losses, _ = pair.train(VGG_START, 1, VGG_START.loss_steps * VGG_START.batch, 1)
        yield "vgg", losses
        return
    found = []
    for seed in range(1, options.seeds + 1):
        losses, accuracies = pair.train(VGG, 1, options.samples, seed)
        found.append(accuracies)
        yield f"vgg, seed {seed}", losses
        yield f"vgg, seed {seed}", ("test accuracy: PyTorch {:.2f}%, mpiburn {:.2f}%".format(*accuracies), [])
    means = map(statistics.fmean, zip(*found))
    what = f"after {VGG.epochs} epochs, mean of {options.seeds} seed{plural(options.seeds)}"
    yield "vgg", check_accuracy("vgg", what, *means)


def main():
    """What is wrong."""
    options = parse_options()
    problems = []
    require_programs(options.mpiburn, options.peer)
    with tempfile.TemporaryDirectory(prefix="mpiburn-accuracy-") as folder:
        for model, check in (("mlp", check_mlp), ("vgg", check_vgg)):
            if options.only not in (None, model):
                continue
            for where, (report, wrong) in check(options, Path(folder)):
                print(f"{where}: {report}", flush=True)
                problems += [f"{where}: {problem}" for problem in wrong]
    if not problems:
        print("mpiburn and PyTorch agree")
    return problems


if __name__ == "__main__":
    run(main)
