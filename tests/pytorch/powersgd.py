#!/usr/bin/env python3
"""Compares the errors of PyTorch's PowerSGD hook with the errors that a test of burn-mpi expects.

    tests/pytorch/setup.sh                               once
    .venv/bin/python tests/pytorch/powersgd.py

Two processes run torch.distributed's powerSGD_hook over gloo, with gradients that are functions of step and rank.
crates/burn-mpi/tests/powersgd/pytorch.rs makes the same steps, and expects the errors that this program prints. One
line for each step has the error of the step's average, and the error of the sum of all averages so far: the norm of
the difference from the exact value, relative to the norm of the exact value.

Exit code 0 if the errors are those of the test, 1 if they differ, 2 if they could not be compared.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

# Imports from this folder must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from programs import ROOT, CannotCompare, run

TEST = ROOT / "crates/burn-mpi/tests/powersgd/pytorch.rs"
RANKS = 2
STEPS = 12
SHAPES = [(24, 20), (8, 4, 3, 3)]
# The rank of the approximation: Gram-Schmidt up to 2 columns, and QR above.
APPROXIMATIONS = [1, 2, 3]


def numbers(seed, count):
    """Pseudo-random numbers from -1 to 1, in integer arithmetic. pytorch.rs has the same function."""
    values = []
    state = (seed * 7919 + 12345) % 2147483647
    for _ in range(count):
        state = state * 48271 % 2147483647
        values.append(state % 2001 / 1000.0 - 1.0)
    return numpy.array(values, dtype=numpy.float32)


def gradient(param, step, rank):
    """A matrix of falling singular values that changes slowly, and noise of the step and of the rank."""
    shape = SHAPES[param]
    rows, columns = shape[0], int(numpy.prod(shape[1:]))
    matrix = numpy.zeros((rows, columns), dtype=numpy.float32)
    for k in range(4):
        left = numbers(100 * param + 10 * k + 1, rows)
        right = numbers(100 * param + 10 * k + 2, columns)
        change = numbers(1000 + 100 * param + 10 * k + step // 4, columns)
        right = right + numpy.float32(0.25) * change
        matrix += numpy.float32(0.5**k) * numpy.outer(left, right)
    for seed in (5000 + 10 * step + param, 9000 + 100 * step + 10 * rank + param):
        matrix += numpy.float32(0.125) * numbers(seed, rows * columns).reshape(rows, columns)
    return torch.from_numpy(matrix)


def first_columns(param, rank_of_approximation):
    """The columns that the first step begins with, before they are made orthonormal."""
    columns = int(numpy.prod(SHAPES[param][1:]))
    values = numbers(70 + param, rank_of_approximation * columns)
    return torch.from_numpy(values.reshape(rank_of_approximation, columns)).t().contiguous()


class Bucket:
    """What the hook reads of DDP's GradBucket."""

    def __init__(self, matrices):
        self.flat = torch.cat([matrix.reshape(-1) for matrix in matrices])
        self.views, start = [], 0
        for shape in SHAPES:
            end = start + int(numpy.prod(shape))
            self.views.append(self.flat[start:end].view(shape))
            start = end

    def index(self):
        return 0

    def buffer(self):
        return self.flat

    def gradients(self):
        return self.views

    def is_last(self):
        return True


def run_rank(rank, folder):
    lines = []
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for approximation in APPROXIMATIONS:
        state = PowerSGDState(None, matrix_approximation_rank=approximation, start_powerSGD_iter=2)
        state.iter = 2
        first = [first_columns(param, approximation) for param in range(len(SHAPES))]
        state.q_memory_dict[0] = torch.cat([columns.reshape(-1) for columns in first])
        rows = sum(shape[0] for shape in SHAPES)
        state.p_memory_dict[0] = torch.zeros(rows * approximation)
        given, delivered = 0.0, 0.0
        for step in range(STEPS):
            bucket = Bucket([gradient(param, step, rank) for param in range(len(SHAPES))])
            exact = torch.cat([
                sum(gradient(param, step, other) for other in range(RANKS)).reshape(-1) / RANKS
                for param in range(len(SHAPES))
            ]).double()
            average = powerSGD_hook(state, bucket).wait().double()
            given, delivered = given + exact, delivered + average
            errors = [(average - exact).norm() / exact.norm(), (delivered - given).norm() / given.norm()]
            lines.append(f"({approximation}, {step}, {errors[0]:.6f}, {errors[1]:.6f}),")
    if rank == 0:
        Path(folder, "lines").write_text("\n".join(lines))
    dist.barrier()
    # PyTorch 2.9 sometimes aborts while it ends gloo's threads.
    os._exit(0)


def main():
    """Returns the problems, one line each."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, args=(folder,), nprocs=RANKS)
        lines = Path(folder, "lines").read_text().splitlines()
    print("\n".join(lines))
    expected = re.findall(r"\(\d+, \d+, [\d.]+, [\d.]+\),", TEST.read_text())
    if len(expected) != len(lines):
        raise CannotCompare(f"{TEST} has {len(expected)} lines of errors, and PyTorch {len(lines)}")
    return [f"{TEST}: {there}, but PyTorch has {line}" for line, there in zip(lines, expected) if differ(line, there)]


def differ(*lines):
    """Whether the numbers of two lines differ by more than rounding in another order."""
    numbers = [[float(number) for number in line.strip("(),").split(", ")] for line in lines]
    return any(abs(a - b) > 1e-4 * max(a, b) + 1e-6 for a, b in zip(*numbers))


if __name__ == "__main__":
    run(main)
