#!/usr/bin/env python3
"""Compares losses, accuracy and checkpoints of mpiburn and PyTorch on this machine.

    tests/pytorch/setup.sh                               once
    .venv/bin/python tests/pytorch/compare.py
    .venv/bin/python tests/pytorch/compare.py --first-losses

Both programs are started in the same way, by mpirun with one core per rank, and train the same network on the
same data. PyTorch's program is train_ddp.py in this folder, or another one with the same options and output (--peer).
Exit code 0 if the programs agree, 1 if they differ, 2 if they could not be compared. benches/pytorch/speed.py compares
their speed.
"""

import argparse
import sys

# Imports from this folder must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True

from correct import compare_results
from programs import add_program_options, find_programs, positive, run


def parse_options():
    """The command line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_program_options(parser)
    parser.add_argument("--batch", type=positive, default=32, help="batch size per rank (default: 32)")
    parser.add_argument("--ranks", type=positive, nargs="+", default=[1, 2], metavar="N",
                        help="numbers of ranks to test (default: 1 2)")
    parser.add_argument("--epochs", type=positive, default=3, metavar="N", help="number of epochs (default: 3)")
    parser.add_argument("--first-losses", action="store_true", help="train 100 steps and compare their losses alone")
    return parser.parse_args()


def main():
    """Returns the problems, one line each."""
    options = parse_options()
    return compare_results(find_programs(options), options)


if __name__ == "__main__":
    run(main)
