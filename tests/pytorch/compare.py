#!/usr/bin/env python3
"""Compares mpiburn with PyTorch and JAX on this machine: speed, and equal results.

    tests/pytorch/setup.sh                               once
    .venv/bin/python tests/pytorch/compare.py speed      times of mpiburn and its fastest peer, and their ratio
    .venv/bin/python tests/pytorch/compare.py speed --rows convnet-32 vgg-32 --repeats 5
    .venv/bin/python tests/pytorch/compare.py correct    losses, accuracy and checkpoints of both

All programs are started in the same way, by mpirun with one core per rank, and train the
same network on the same data. PyTorch's program is train_ddp.py in this folder, or another
one with the same options and output (--peer); JAX's is train_jax.py. Speed is compared with
the fastest of PyTorch eager, with fused Adam, with channels-last memory, with torch.compile,
and on one rank JAX's jit: on each row all are tried first, and their losses are compared.
Exit code 0 if they agree, 1 if they differ, 2 if they could not be compared.
"""

import argparse
import sys
from pathlib import Path

# Imports from this folder must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True

from correct import compare_results
from programs import find_programs, run
from rows import ROWS
from speed import compare_speed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def count(text, least):
    """An option's value that must be at least `least`."""
    if int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is below {least}")
    return int(text)


def positive(text):
    """An option's value that must be 1 or more."""
    return count(text, 1)


def not_negative(text):
    """An option's value that must be 0 or more."""
    return count(text, 0)


def parse_options():
    """The command line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed", help="times of mpiburn and its fastest peer, and their ratio")
    correct = commands.add_parser("correct", help="losses, accuracy and checkpoints of both")
    for command in (speed, correct):
        command.add_argument("--data", type=Path, default=ROOT / "data/digits", metavar="DIR",
                             help="folder of a data set in MNIST's layout (default: data/digits)")
        command.add_argument("--samples", type=not_negative, default=0, metavar="N",
                             help="train on the first N samples only (default: all; 900 steps when timing the ConvNet)")
        command.add_argument("--peer", type=Path, default=HERE / "train_ddp.py", metavar="PATH",
                             help="PyTorch's program, if not train_ddp.py")
        command.add_argument("--mpiburn", type=Path, default=ROOT / "target/release/mpiburn", metavar="PATH",
                             help="our program (default: target/release/mpiburn)")
    names = [row.name for row in ROWS]
    speed.add_argument("--rows", nargs="+", choices=names, metavar="ROW",
                       help=f"rows of the table (default: all; vgg-lab as root only): {', '.join(names)}")
    speed.add_argument("--repeats", type=positive, default=5, metavar="N", help="pairs of runs (default: 5)")
    speed.add_argument("--out", type=Path, default=ROOT / "results/compare-pytorch", metavar="DIR",
                       help="folder of speed.json and speed.csv (default: results/compare-pytorch)")
    correct.add_argument("--batch", type=positive, default=32, help="batch size per rank (default: 32)")
    correct.add_argument("--ranks", type=positive, nargs="+", default=[1, 2], metavar="N",
                         help="numbers of ranks to test (default: 1 2)")
    correct.add_argument("--epochs", type=positive, default=3, metavar="N",
                         help="number of epochs (default: 3)")
    correct.add_argument("--first-losses", action="store_true",
                         help="train 100 steps and compare their losses alone")
    return parser.parse_args()


def main():
    """Returns the problems."""
    options = parse_options()
    compare = compare_speed if options.command == "speed" else compare_results
    return compare(find_programs(options), options)


if __name__ == "__main__":
    run(main)
