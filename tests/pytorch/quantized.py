#!/usr/bin/env python3
"""Compares quantization-aware training by mpiburn and by PyTorch, from the same weights: losses and accuracy.

    .venv/bin/python tests/pytorch/quantized.py                          generates a data set
    .venv/bin/python tests/pytorch/quantized.py --data data/digits --epochs 3

Trains the ConvNet on one rank, with weights quantized by channel and by tensor. The losses of the first 50 steps
may differ by 2e-3. After the last epoch, the test accuracies of the two integer models may differ by 0.3 points.
After every epoch, the test accuracies of mpiburn's integer and float models may differ by 0.3 points.

Exit code 0 if the programs agree, 1 if something differs, 2 if nothing could be compared.
"""

import argparse
import csv
import sys
import tempfile
from pathlib import Path

# Imports from this folder must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True

from accuracy import generate
from correct import compare_accuracy, compare_losses, mean_losses
from programs import ROOT, Programs, not_negative, require_programs, run, train_mpiburn, train_pytorch

BATCH = 32
LOSS_STEPS = 50
LOSS_TOLERANCE = 2e-3
# The largest difference of test accuracies, in points.
TOLERANCE = 0.3


def parse_options():
    """The command line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=not_negative, default=3, metavar="N", help="epochs (default: 3)")
    parser.add_argument("--samples", type=not_negative, default=0, metavar="N",
                        help="train on the first N samples, 0 for all (default: all)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="MNIST, or what mpiburn data digits makes")
    parser.add_argument("--mpiburn", type=Path, default=ROOT / "target/release/mpiburn", metavar="PATH",
                        help="our program (default: target/release/mpiburn)")
    return parser.parse_args()


def epochs_of(folder):
    """The float and the integer test accuracy of mpiburn's run after each epoch."""
    with open(folder / "epochs.csv", newline="") as file:
        return [(float(row["test_accuracy"]), float(row["int8_test_accuracy"])) for row in csv.DictReader(file)]


def check_scheme(scheme, programs, options, folder):
    """Trains with this scheme of quantized weights; yields a report and its problems for each check."""
    initial, out = folder / f"{scheme}.safetensors", folder / scheme
    training = (1, options.epochs, BATCH, options.samples, "--weight-scheme", scheme)
    theirs, _ = train_pytorch(programs, *training, "--save-init", initial, "--loss-steps", LOSS_STEPS)
    ours, _ = train_mpiburn(programs, out, *training, "--quantize", "qat", "--init", initial, "--log-every", 1)
    yield compare_losses(theirs["losses"], mean_losses(out, 1, LOSS_STEPS), LOSS_TOLERANCE)
    yield compare_accuracy("of the integer models", theirs["int8_test_acc"], ours["int8_test_accuracy"], TOLERANCE)
    for epoch, (float_accuracy, int8) in enumerate(epochs_of(out), 1):
        report = f"epoch {epoch}: test accuracy {float_accuracy:.2f}%, int8 {int8:.2f}%"
        apart = abs(float_accuracy - int8) > TOLERANCE + 1e-9
        yield report, [f"{report}, more than {TOLERANCE:g} points apart"] if apart else []


def main():
    """Returns the problems, one line each."""
    options = parse_options()
    peer = Path(__file__).with_name("train_qat.py")
    require_programs(options.mpiburn, peer)
    problems = []
    with tempfile.TemporaryDirectory(prefix="mpiburn-quantized-") as folder:
        folder = Path(folder)
        data = options.data or generate(options, "digits", folder)
        programs = Programs(options.mpiburn.resolve(), peer.resolve(), data.resolve())
        for scheme in ("channel", "tensor"):
            for report, wrong in check_scheme(scheme, programs, options, folder):
                print(f"weights by {scheme}: {report}", flush=True)
                problems += [f"weights by {scheme}: {problem}" for problem in wrong]
    if not problems:
        print("mpiburn and PyTorch agree")
    return problems


if __name__ == "__main__":
    run(main)
