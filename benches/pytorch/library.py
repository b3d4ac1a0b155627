#!/usr/bin/env python3
"""Times the networks of the examples: with fused modules, with Burn's, and in PyTorch, in turn.

    make compare-pytorch ONLY=library
    .venv/bin/python benches/pytorch/library.py --rows gpt-256 lstm --repeats 5
    .venv/bin/python benches/pytorch/library.py --rows gpt-256 cnn lstm --threads 2

The examples are char_gpt and own_cnn. This program has the same networks in PyTorch. All train on the
same number of samples of the same data, with AdamW and one thread and core per rank. PyTorch uses its fused AdamW, eager and with
torch.compile; on several ranks, it uses DistributedDataParallel over gloo, and the examples use `GradientSync` over MPI.

Each program reports the median time of its steps. The table has the medians over the repeats, and two ratios to the
time with fused modules: of the faster PyTorch, and of Burn's modules. With `--rank`, this program is a rank of
PyTorch's job.

With `--threads`, ranks have more threads, and the fused modules are also timed with one thread. A second table has the
speedups, the time of a step that runs on one thread, and the speedups that follow from it by Amdahl's law.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Only the CPU is compared; GPUs are hidden.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Imports must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True
# The programs, networks and samples that are shared with the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/pytorch"))

import torch
from torch import nn
from torch.nn import functional as F

from machine import BUSY, OtherPrograms, core_count
from programs import ROOT, CannotCompare, run, run_job
from samples import DIGITS_MEAN, DIGITS_STD, read_digits
from train_ddp import join_ranks, positive, sum_over_ranks

CHARACTERS = 256
# Names of measured times: of the fused modules with one thread, and of the part of a step on one thread.
ONE, ALONE = "fused, one thread", "alone"
# Numbers of threads that speedups are predicted for.
PREDICTED = (4, 8, 16)
# Steps before the timed ones, as in the examples.
WARM_UP = 3


@dataclass
class Row:
    """A row of the table: a network, with the options that its example and this program share."""

    name: str
    network: str
    ranks: int = 1
    width: int = 256
    batch: int = 16
    tokens: int = 32
    dropout: float = 0.0
    ways: tuple = ("eager", "compile")

    def options(self, text, data, steps):
        """The example's options for this row."""
        if self.network == "cnn":
            return [data, "--batch", self.batch, "--steps", steps]
        shape = ["--network", self.network, "--width", self.width, "--batch", self.batch, "--tokens", self.tokens]
        dropout = ["--dropout", self.dropout] if self.network == "gpt" else []
        return shape + dropout + ["--text", text, "--steps", steps]

    def program(self, folder):
        """The path of the example."""
        return folder / ("own_cnn" if self.network == "cnn" else "char_gpt")


ROWS = [
    Row("gpt-256", "gpt"),
    # On two ranks only eager: DistributedDataParallel with torch.compile has no fixed order of what
    # it compiles.
    Row("gpt-256-2-ranks", "gpt", ranks=2, ways=("eager",)),
    Row("gpt-128", "gpt", width=128),
    Row("gpt-512", "gpt", width=512),
    Row("gpt-long", "gpt", batch=4, tokens=256),
    Row("gpt-long-dropout", "gpt", batch=4, tokens=256, dropout=0.1),
    Row("cnn", "cnn", batch=64),
    Row("lstm", "lstm", width=128, batch=32),
]


# ----------------------------------------------------------------- a rank

class Gpt(nn.Module):
    """The transformer of char_gpt: normalisation before attention and the feed-forward network, GELU."""

    def __init__(self, row, layers=4, heads=4):
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, row.width)
        self.positions = nn.Embedding(row.tokens, row.width)
        layer = nn.TransformerEncoderLayer(row.width, heads, 4 * row.width, dropout=row.dropout, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(row.width)
        self.head = nn.Linear(row.width, CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(row.tokens), persistent=False)

    def forward(self, characters):
        positions = torch.arange(characters.shape[1])
        x = self.characters(characters) + self.positions(positions)
        scores = self.head(self.norm(self.layers(x, mask=self.mask, is_causal=True)))
        return scores.reshape(-1, CHARACTERS)


class Lstm(nn.Module):
    """The LSTM of char_gpt."""

    def __init__(self, row):
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, row.width)
        self.lstm = nn.LSTM(row.width, row.width, batch_first=True)
        self.head = nn.Linear(row.width, CHARACTERS)

    def forward(self, characters):
        return self.head(self.lstm(self.characters(characters))[0]).reshape(-1, CHARACTERS)


class Cnn(nn.Sequential):
    """The network of own_cnn: two blocks of convolution, batch normalisation, ReLU and pooling."""

    def __init__(self, _row):
        block = lambda inputs, outputs: [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
                                         nn.MaxPool2d(2)]
        super().__init__(*block(1, 32), *block(32, 64), nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(),
                         nn.Linear(128, 10))


NETWORKS = {"gpt": Gpt, "lstm": Lstm, "cnn": Cnn}


def samples_of(row, options):
    """The inputs and targets of a training."""
    if row.network == "cnn":
        images, labels = (torch.from_numpy(values.copy()) for values in read_digits(options.data, "train"))
        return (images.float() / 255 - DIGITS_MEAN) / DIGITS_STD, labels.long()
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
    windows = text.unfold(0, row.tokens + 1, row.tokens)
    return windows[:, :-1], windows[:, 1:]


def train(row, options):
    """Trains `options.steps` steps as one rank of PyTorch's job; rank 0 prints a JSON line."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    rank, world = join_ranks()
    network = NETWORKS[row.network](row)
    # Shapes are fixed, because all batches have the same size.
    model = torch.compile(network, dynamic=False) if options.way == "compile" else network
    model = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-8, weight_decay=1e-4, fused=True)
    inputs, targets = samples_of(row, options)
    order = torch.randperm(len(inputs))[rank::world]
    batches = [batch for batch in order.split(row.batch) if len(batch) == row.batch]
    seconds, losses = [], []
    for step in range(options.steps):
        batch = batches[step % len(batches)]
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), targets[batch].reshape(-1))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    first, last = (loss / world for loss in sum_over_ranks([losses[0], losses[-1]]))
    timed = seconds[min(WARM_UP, len(seconds) - 1):]
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in network.parameters())
        print(json.dumps({"parameters": parameters, "first_loss": first, "last_loss": last, "world": world,
                          "ms_per_step": 1000 * statistics.median(timed)}), flush=True)
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


# ------------------------------------------------------------- comparison

def time_pytorch(row, options, way):
    """Runs PyTorch's job of a row; returns the JSON line that rank 0 prints."""
    output, _ = run_job(row.ranks, [sys.executable, __file__, "--rank", "--rows", row.name, "--way", way, "--text", options.text,
                                    "--data", options.data, "--steps", options.steps, "--threads", options.threads],
                        threads=options.threads)
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def time_example(row, options, modules, threads):
    """Runs the example of a row with this kind of modules; returns its number of parameters, its time per step, and the
    part of this time on one thread (None with Burn's modules)."""
    program = row.program(options.examples)
    output, _ = run_job(row.ranks, [program, *row.options(options.text, options.data, options.steps), "--modules", modules,
                                    "--threads", threads], threads=threads)
    found = re.search(r"^([\d.]+) ms per step(?:.* ([\d.]+) ms (?:of them )?on one thread)?", output, re.MULTILINE)
    parameters = re.search(r"^(\d+) parameters", output, re.MULTILINE)
    if not found or not parameters:
        raise CannotCompare(f"{program} printed no time:\n{output}")
    return {"parameters": int(parameters[1]), "ms_per_step": float(found[1]), "ms_alone": found[2] and float(found[2])}


def compare(options):
    """Times all programs of each row in turn; returns the problems."""
    for name in sorted({row.program(options.examples) for row in options.rows}):
        if not os.access(name, os.X_OK):
            raise CannotCompare(f"no program {name}; build it: scripts/cargo.sh build --release --workspace "
                                "--features examples --examples")
    if not options.text.is_file():
        raise CannotCompare(f"no text {options.text}; select a file: --text FILE")
    times, problems, others = {}, set(), OtherPrograms()
    for repeat in range(1, options.repeats + 1):
        for row in options.rows:
            sides = [(f"PyTorch, {way}", lambda way=way: time_pytorch(row, options, way)) for way in row.ways]
            sides += [(name, lambda modules=modules: time_example(row, options, modules, options.threads))
                      for name, modules in (("Burn", "stock"), ("fused", "fused"))]
            if options.threads > 1:
                sides.append((ONE, lambda: time_example(row, options, "fused", 1)))
            # In alternating order, so that a slowdown of the machine affects all programs.
            results = {name: side() for name, side in (sides if repeat % 2 else sides[::-1])}
            for name, result in results.items():
                times.setdefault((row.name, name), []).append(result["ms_per_step"])
                if name == "fused":
                    times.setdefault((row.name, ALONE), []).append(result["ms_alone"])
            # The CNN is left out: Burn counts the statistics of batch normalisation as parameters, PyTorch
            # does not.
            if len({result["parameters"] for name, result in results.items() if row.network != "cnn"}) > 1:
                problems.add(f"the networks of {row.name} differ: {results}")
            line = ", ".join(f"{name} {result['ms_per_step']:.2f}" for name, result in results.items())
            print(f"repeat {repeat}, {row.name}: {line} ms per step", flush=True)
    print_table(options, times)
    if options.threads > 1:
        print_speedups(options, times)
    if others.cores() > BUSY:
        print(f"note: other programs kept {others.cores():.1f} cores busy: timings are not representative")
    if max(row.ranks for row in options.rows) * options.threads > core_count():
        print("note: more ranks and threads than cores: timings are not representative")
    return sorted(problems)


def print_table(options, times):
    """Prints medians over the repeats, and the ratios of the faster PyTorch and of Burn's modules to the
    fused modules."""
    medians = {key: statistics.median(values) for key, values in times.items()}
    print(f"\nms per step, medians of {options.repeats}\n")
    print(f"{'network':<18} {'PyTorch':>9} {'compiled':>9} {'Burn':>9} {'fused':>9} {'of PyTorch':>11} {'of Burn':>8}")
    for row in options.rows:
        of = lambda name: medians.get((row.name, name))
        cells = [of(name) for name in ("PyTorch, eager", "PyTorch, compile", "Burn", "fused")]
        peer = min(cell for cell in cells[:2] if cell)
        texts = " ".join(f"{cell:>9.2f}" if cell else f"{'':>9}" for cell in cells)
        print(f"{row.name:<18} {texts} {peer / cells[3]:>11.2f} {cells[2] / cells[3]:>8.2f}")


def print_speedups(options, times):
    """Prints the speedup of the fused modules by threads, and what Amdahl's law predicts for more threads."""
    print(f"\nfused modules, one thread and {options.threads}; predictions for more threads by Amdahl's law\n")
    print(f"{'network':<18} {'1 thread':>9} {options.threads:>2} {'threads':<7} {'speedup':>8} {'alone':>7} {'share':>6} "
          + " ".join(f"{threads:>6}" for threads in PREDICTED))
    for row in options.rows:
        one, many, alone = (statistics.median(times[row.name, name]) for name in (ONE, "fused", ALONE))
        share = alone / one
        predicted = " ".join(f"{1 / (share + (1 - share) / threads):>5.1f}x" for threads in PREDICTED)
        print(f"{row.name:<18} {one:>9.2f} {many:>10.2f} {one / many:>7.2f}x {alone:>7.2f} {100 * share:>5.1f}% {predicted}")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    rows = {row.name: row for row in ROWS}
    parser.add_argument("--rows", nargs="+", choices=rows, default=list(rows), metavar="ROW", help=f"of {', '.join(rows)}")
    parser.add_argument("--steps", type=positive, default=40)
    parser.add_argument("--text", type=Path, default=ROOT / "ARCHITECTURE.md", metavar="FILE")
    parser.add_argument("--data", type=Path, default=ROOT / "data/digits", metavar="DIR", help="MNIST's files")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="threads of each rank (default: 1)")
    parser.add_argument("--examples", type=Path, default=ROOT / "target/release/examples", metavar="DIR")
    parser.add_argument("--way", choices=("eager", "compile"), default="eager", help="of a rank")
    parser.add_argument("--rank", action="store_true", help="train as a rank of PyTorch's job")
    options = parser.parse_args()
    options.rows = [rows[name] for name in options.rows]
    return options


if __name__ == "__main__":
    options = parse_options()
    if options.rank:
        train(options.rows[0], options)
    else:
        run(lambda: compare(options))
