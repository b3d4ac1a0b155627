#!/usr/bin/env python3
"""Compares operator profiles of PyTorch (torch.profiler) and mpiburn: inference on one thread.

    tests/pytorch/setup.sh                               once
    .venv/bin/python benches/pytorch/profiles.py         all rows
    .venv/bin/python benches/pytorch/profiles.py --rows mlp-gelu convnet --batches 1000

Both programs infer the same number of random batches of the same network, in turn. `operators` is the sum of the self
CPU times of all operators, without the conversion of samples to tensors. The lines below it are the kinds of operators
that take most of this time. A fused operator of mpiburn is several operators of PyTorch. `plain` is the time of all
batches without profiling: the median of a batch, times the number of batches. For mpiburn, it includes the conversion.

All times are medians over rounds. Exit code 0, or 2 if nothing could be compared.
"""

# Not profile.py: torch.compile imports the standard library's module of that name.

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

os.environ["CUDA_VISIBLE_DEVICES"] = ""
# The profiler would look for GPUs, and log an error because there are none.
os.environ.setdefault("KINETO_LOG_LEVEL", "5")
# Imports must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True
# The programs, networks and samples that are shared with the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/pytorch"))

from machine import BUSY, OtherPrograms
from networks import ACTIVATIONS, PLAIN, SHAPES, build
from programs import ROOT, CannotCompare, positive, require_programs, run

# Network and activation of each row.
ROWS = {f"mlp-{name}": ("mlp", name) for name in ACTIVATIONS} | {"convnet": ("convnet", "relu"), "vgg": ("vgg", "relu")}
# Both programs infer WARM_UP batches before the first measured one, and use DIFFERENT batches in turn.
WARM_UP, DIFFERENT = 3, 16
# The number of kinds of operators that are printed.
KINDS = 3


@dataclass
class Side:
    """Times of one program in ms. Each list has an entry for each round."""

    operators: list = field(default_factory=list)
    plain: list = field(default_factory=list)
    kinds: list = field(default_factory=list)

    def largest(self):
        """The KINDS kinds with the largest median times, and these times."""
        names = {name for kinds in self.kinds for name in kinds}
        medians = {name: statistics.median(kinds.get(name, 0.0) for kinds in self.kinds) for name in names}
        return sorted(medians.items(), key=lambda item: -item[1])[:KINDS]

    def add(self, kinds, plain):
        """Adds the times of a round."""
        self.kinds.append(kinds)
        self.operators.append(sum(kinds.values()))
        self.plain.append(plain)


def profile_pytorch(side, network, inputs, batches):
    """Profiles PyTorch in one round; returns its times."""
    # PyTorch is imported only after `require_programs` has checked that it is installed.
    import torch
    from torch.profiler import ProfilerActivity, profile

    def infer(count):
        times = []
        for number in range(count):
            began = time.perf_counter()
            network(inputs[number % len(inputs)])
            times.append(time.perf_counter() - began)
        return times

    with torch.no_grad():
        infer(WARM_UP)
        plain = 1e3 * batches * statistics.median(infer(batches))
        with profile(activities=[ProfilerActivity.CPU]) as found:
            infer(batches)
    kinds = Counter()
    for event in found.key_averages():
        if event.key.startswith("aten::"):
            kinds[event.key.removeprefix("aten::")] += 1e-3 * event.self_cpu_time_total
    side.add(kinds, plain)


def profile_mpiburn(side, binary, model, activation, options, file):
    """Profiles mpiburn in one round; returns its times."""
    done = subprocess.run(
        [binary, "-q", "profile", "--model", model, "--activation", activation, "--batches", str(options.batches),
         "--batch", str(options.batch), "--threads", "1", "--json", file], capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotCompare(f"mpiburn profile: {done.stderr.strip()}")
    figures, kinds = json.loads(file.read_text()), Counter()
    for row in figures["operators"]:
        if row["phase"] == "forward":
            kinds[row["kind"]] += row["self_cpu_ms"]
    side.add(kinds, figures["batch_ms_without_profiling"] * figures["batches"])


def compare(name, options, folder):
    """Profiles a row with both programs; returns the times of PyTorch and of mpiburn."""
    import torch

    model, activation = ROWS[name]
    torch.manual_seed(1)
    network = build(model, SimpleNamespace(**vars(PLAIN) | {"activation": activation})).eval()
    inputs = [torch.randn(options.batch, *SHAPES[model]) for _ in range(DIFFERENT)]
    theirs, ours = Side(), Side()
    for _ in range(options.rounds):
        profile_mpiburn(ours, options.mpiburn, model, activation, options, folder / "profile.json")
        profile_pytorch(theirs, network, inputs, options.batches)
    return theirs, ours


def show(name, theirs, ours):
    """Prints a row: the totals with their ratios, and the kinds that take the most time."""
    for title in ("operators", "plain"):
        pair = [statistics.median(getattr(side, title)) for side in (theirs, ours)]
        print(f"{name if title == 'operators' else '':<12} {title:<10} {'':<28}{pair[0]:>10.3f}  "
              f"{'':<24}{pair[1]:>10.3f} {pair[0] / pair[1]:>7.2f}")
    pairs = [theirs.largest(), ours.largest()]
    for number in range(max(map(len, pairs))):
        cells = [pair[number] if number < len(pair) else ("", None) for pair in pairs]
        texts = [(kind, "" if ms is None else f"{ms:.3f}") for kind, ms in cells]
        print(f"{'':<12} {'kind' if number == 0 else '':<10} {texts[0][0]:<28}{texts[0][1]:>10}  "
              f"{texts[1][0]:<24}{texts[1][1]:>10}", flush=True)


def parse_options():
    """The command line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW",
                        help=f"rows of the table (default: all): {', '.join(ROWS)}")
    parser.add_argument("--batches", type=positive, default=100, metavar="N", help="batches of a round (default: 100)")
    parser.add_argument("--batch", type=positive, default=32, metavar="N", help="samples of a batch (default: 32)")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="turns of each program (default: 3)")
    parser.add_argument("--mpiburn", type=Path, default=ROOT / "target/release/mpiburn", metavar="PATH",
                        help="our program (default: target/release/mpiburn)")
    return parser.parse_args()


def main():
    """Returns no problems: times are printed, but not judged."""
    options = parse_options()
    require_programs(options.mpiburn, Path(__file__))
    options.mpiburn = options.mpiburn.resolve()
    import torch

    torch.set_num_threads(1)
    print(f"{options.batches} inferences at batch {options.batch}, one thread; medians of {options.rounds} rounds in ms")
    print(f"{'':<23} {'PyTorch ' + torch.__version__:<28}{'ms':>10}  {'mpiburn':<24}{'ms':>10} {'ratio':>7}")
    others = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="mpiburn-profiles-") as folder:
        for name in options.rows:
            show(name, *compare(name, options, Path(folder)))
    if others.cores() > BUSY:
        print(f"note: other programs kept {others.cores():.1f} cores busy: timings are not representative")
    return []


if __name__ == "__main__":
    run(main)
