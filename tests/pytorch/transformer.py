#!/usr/bin/env python3
"""The transformer of burn-mpi's example char_gpt in PyTorch, timed in turn with it.

    scripts/cargo.sh build --release --package burn-mpi --features data --example char_gpt
    .venv/bin/python tests/pytorch/transformer.py --repeats 5

Both train on the same number of windows of the same text, with AdamW, one core per rank: at 1 rank, and at 2 ranks
with DistributedDataParallel over gloo there and `GradientSync` over MPI here. The median time of a step is each
program's own; the table has medians over the repeats, and their ratios. With `--rank` it is a rank of PyTorch's job.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

# Only the CPU is compared; GPUs are hidden.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Imports from this folder must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True

import torch
from torch import nn
from torch.nn import functional as F

from machine import BUSY, OtherPrograms, core_count
from programs import CannotCompare, plural, run, run_job
from train_ddp import join_ranks, positive, sum_over_ranks

ROOT = Path(__file__).resolve().parent.parent.parent
CHARACTERS = 256
# Steps before those that are timed, as in char_gpt.
WARM_UP = 3
# Shape of the network and the step; options of the same names in char_gpt.
SHAPE = {"width": 256, "layers": 4, "heads": 4, "batch": 16, "tokens": 32, "steps": 40}


# ----------------------------------------------------------------- a rank

class Gpt(nn.Module):
    """As in char_gpt.rs: normalisation before attention and the feed-forward network, GELU, no dropout."""

    def __init__(self, width, layers, heads, tokens):
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens), persistent=False)

    def forward(self, characters):
        positions = torch.arange(characters.shape[1])
        x = self.characters(characters) + self.positions(positions)
        return self.head(self.norm(self.layers(x, mask=self.mask, is_causal=True)))


def windows_of(path, tokens):
    """The text in windows of `tokens` characters, each with the next one."""
    text = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8).long()
    return text.unfold(0, tokens + 1, tokens)


def train(options):
    """Trains for some steps; returns the JSON line of rank 0."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank, world = join_ranks()
    gpt = Gpt(options.width, options.layers, options.heads, options.tokens)
    model = nn.parallel.DistributedDataParallel(gpt) if world > 1 else gpt
    # Burn's defaults.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5, weight_decay=1e-4, fused=options.fused or None)
    windows = windows_of(options.text, options.tokens)
    own = windows[torch.randperm(len(windows))][rank::world]
    seconds, losses = [], []
    while len(seconds) < options.steps:
        for batch in own.split(options.batch)[:options.steps - len(seconds)]:
            began = time.perf_counter()
            optimizer.zero_grad()
            scores = model(batch[:, :-1])
            loss = F.cross_entropy(scores.reshape(-1, CHARACTERS), batch[:, 1:].reshape(-1))
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            seconds.append(time.perf_counter() - began)
    first, last = (loss / world for loss in sum_over_ranks([losses[0], losses[-1]]))
    timed = seconds[min(WARM_UP, len(seconds) - 1):]
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in gpt.parameters())
        print(json.dumps({"parameters": parameters, "first_loss": first, "last_loss": last, "world": world,
                          "ms_per_step": 1000 * statistics.median(timed)}), flush=True)
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


# ------------------------------------------------------------- comparison

def words_of(options):
    """The options that both programs have."""
    return [word for name in SHAPE for word in (f"--{name}", getattr(options, name))] + ["--text", options.text]


def time_pytorch(options, ranks, *more):
    """PyTorch's JSON line."""
    output, _ = run_job(ranks, [sys.executable, __file__, "--rank", *words_of(options), *more])
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def time_char_gpt(options, ranks):
    """The parameters, the time of a step, and the line about communication of char_gpt."""
    output, _ = run_job(ranks, [options.char_gpt, *words_of(options)])
    found = re.search(r"^([\d.]+) ms per step", output, re.MULTILINE)
    parameters = re.search(r"^(\d+) parameters", output, re.MULTILINE)
    if not found or not parameters:
        raise CannotCompare(f"{options.char_gpt} printed no time:\n{output}")
    gradients = re.search(r"^gradients: (.*)", output, re.MULTILINE)
    return {"parameters": int(parameters[1]), "ms_per_step": float(found[1]), "gradients": gradients[1]}


def compare(options):
    """Times both in turn; returns problems."""
    if not os.access(options.char_gpt, os.X_OK):
        raise CannotCompare(f"no program {options.char_gpt}; build it: scripts/cargo.sh build --release "
                            "--package burn-mpi --features data --example char_gpt")
    if not options.text.is_file():
        raise CannotCompare(f"no text {options.text}; select a file: --text FILE")
    ways = {"PyTorch": (), "PyTorch, fused AdamW": ("--fused",)}
    times, problems, others = {}, set(), OtherPrograms()
    for repeat in range(1, options.repeats + 1):
        for ranks in options.ranks:
            sides = [(name, lambda more=more: time_pytorch(options, ranks, *more)) for name, more in ways.items()]
            sides.append(("char_gpt", lambda: time_char_gpt(options, ranks)))
            # In alternating order, so that a slowdown of the machine affects all.
            results = {name: side() for name, side in (sides if repeat % 2 else sides[::-1])}
            for name, result in results.items():
                times.setdefault((ranks, name), []).append(result["ms_per_step"])
            if len({result["parameters"] for result in results.values()}) > 1:
                problems.add(f"the networks differ: {results}")
            line = ", ".join(f"{name} {result['ms_per_step']:.1f}" for name, result in results.items())
            print(f"repeat {repeat}, {ranks} rank{plural(ranks)}: {line} ms per step", flush=True)
            print(f"  gradients of char_gpt: {results['char_gpt']['gradients']}", flush=True)
    print_table(options, times)
    if others.cores() > BUSY:
        print(f"note: other programs kept {others.cores():.1f} cores busy: timings are not representative")
    if max(options.ranks) > core_count():
        print("note: more ranks than cores: timings are not representative")
    return sorted(problems)


def print_table(options, times):
    """Medians over the repeats, the fastest PyTorch over char_gpt, and the efficiency of more ranks."""
    medians = {key: statistics.median(values) for key, values in times.items()}
    print(f"\n{'medians of ' + str(options.repeats):<24} {'ranks':>5} {'ms per step':>12} {'from - to':>16} {'efficiency':>10}")
    for (ranks, name), values in sorted(times.items()):
        alone = medians.get((1, name))
        efficiency = f"{alone / medians[ranks, name]:.2f}" if alone and ranks > 1 else ""
        print(f"{name:<24} {ranks:>5} {medians[ranks, name]:>12.1f} {f'{min(values):.1f} - {max(values):.1f}':>16} {efficiency:>10}")
    for ranks in options.ranks:
        peer = min(time for (at, name), time in medians.items() if at == ranks and name != "char_gpt")
        print(f"{ranks} rank{plural(ranks)}: PyTorch's time over char_gpt's: {peer / medians[ranks, 'char_gpt']:.2f}")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in SHAPE.items():
        parser.add_argument(f"--{name}", type=positive, default=value)
    parser.add_argument("--text", type=Path, default=ROOT / "CHANGELOG.md", metavar="FILE")
    parser.add_argument("--ranks", type=positive, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--char-gpt", type=Path, default=ROOT / "target/release/examples/char_gpt", metavar="PROGRAM")
    parser.add_argument("--fused", action="store_true", help="of a rank: PyTorch's fused AdamW")
    parser.add_argument("--rank", action="store_true", help="train as a rank of PyTorch's job")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_options()
    if options.rank:
        train(options)
    else:
        run(lambda: compare(options))
