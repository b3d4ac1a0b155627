#!/usr/bin/env python3
"""Do weights go from PyTorch to mpiburn and back, for every network and its options? And does it compute the same?

    .venv/bin/python tests/pytorch/state_dicts.py                 all of them, some minutes
    .venv/bin/python tests/pytorch/state_dicts.py --only mlp

For each network, PyTorch makes initial weights and saves them by the names of its
state dict; mpiburn starts from that file and trains a few steps, and PyTorch loads
its checkpoint strictly. Without dropout, whose masks are each program's own,
PyTorch trains the same steps, and losses, weights and batch norms' running
statistics are compared. With dropout, no step is taken: the weights have to come
back bit by bit. Either way PyTorch tests mpiburn's checkpoint, to the loss that
mpiburn found. Exit code 0 where all is well, 1 where the two differ, 2 where they
could not be compared.
"""

import argparse
import contextlib
import io
import itertools
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

# What is imported from this folder leaves no __pycache__ in the source tree.
sys.dont_write_bytecode = True

from accuracy import generate
from compare import ROOT
from correct import last_checkpoint, mean_losses
from programs import Programs, require_programs, run, train_mpiburn

KINDS = {"convnet": "digits", "vgg": "objects", "mlp": "features"}
STEPS, BATCH, TEST_SAMPLES = 6, 8, 64
# Enough that every class is among them; the first STEPS x BATCH are used.
TRAIN_SAMPLES = 1000
# Small, as Adam divides by a gradient's size: where one is all but 0, the last
# digits decide on a whole step.
RATE = 1e-4
# The two drift apart from step to step; the same weights leave rounding alone.
STEPS_TOLERANCE, TEST_TOLERANCE = 1e-4, 1e-5
# Of a tensor's mean weight, as a share of the way that Adam can have gone at
# most; single weights whose gradients are all but 0 may be off by all of it.
WEIGHT_TOLERANCE = 0.02
# Of a running statistic, as a share of the largest.
STATISTICS_TOLERANCE = 1e-5


def variants(model):
    """The options to try, as PyTorch's network takes them."""
    for bn, dropout in itertools.product((False, True), (0.0, 0.3)):
        yield SimpleNamespace(activation="relu", bn=bn, dropout=dropout, hidden=32)
    for activation in ("tanh", "sigmoid", "gelu"):
        yield SimpleNamespace(activation=activation, bn=False, dropout=0.0, hidden=32)
    if model == "mlp":
        yield SimpleNamespace(activation="relu", bn=False, dropout=0.0, hidden=50)


def words_of(model, variant):
    """The variant as options of both programs, and as one line."""
    shared = ["--model", model, "--activation", variant.activation, "--dropout", variant.dropout]
    if variant.hidden != 32:
        shared += ["--hidden", variant.hidden]
    norm = {"ours": ["--batch-norm"], "theirs": ["--bn"]} if variant.bn else {"ours": [], "theirs": []}
    return shared, norm, " ".join(str(word) for word in shared[1:] + norm["ours"])


def is_statistic(name):
    """Whether no gradient moves the tensor."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def compare_states(theirs, ours, idle_biases, rate):
    """What differs in two state dicts after the same steps, as lines."""
    # An idle bias has no gradient but rounding: any way is as good as another,
    # and the mean that is taken over it follows.
    astray = 2 * rate * STEPS
    for name, expected in theirs.items():
        differences = (ours[name].double() - expected.double()).abs()
        difference = (differences.max() if is_statistic(name) else differences.mean()).item()
        if is_statistic(name):
            allowed = STATISTICS_TOLERANCE * max(1.0, expected.double().abs().max().item()) + astray
        else:
            allowed = astray if name in idle_biases else WEIGHT_TOLERANCE * rate * STEPS
        if not difference <= allowed:
            yield f"{name} differs by {difference:.1e}, more than {allowed:.1e}"


def biases_before_norms(network):
    """Names of biases that the batch norm after them takes away again."""
    from torch import nn

    layers = [(name, layer) for name, layer in network.named_modules() if not isinstance(layer, nn.Sequential)]
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    return {f"{name}.bias" for (name, _), (_, after) in itertools.pairwise(layers) if isinstance(after, norms)}


def train_here(data, *words):
    """Trains by train_ddp.py in this process, as PyTorch takes long to start; its last JSON line."""
    from train_ddp import parse_options, train

    options = parse_options([str(word) for word in ("--data", data, *words)])
    with contextlib.redirect_stdout(io.StringIO()):
        return train(options, 0, 1)


def check(model, variant, programs, folder):
    """Trains the variant on both sides; a line, and what differs."""
    from safetensors.torch import load_file

    from networks import build
    from samples import load_shard
    from train_ddp import evaluate

    shared, norm, title = words_of(model, variant)
    name = title.replace(" ", "_")
    initial, final, run = folder / f"{name}.init", folder / f"{name}.final", folder / name
    # With dropout, the two go different ways from the first step on.
    rate = 0 if variant.dropout else RATE
    recipe = (*shared, "--lr", rate, "--weight-decay", 0)
    theirs = train_here(programs.data, "--epochs", 1, "--batch", BATCH, "--limit", STEPS * BATCH, *recipe,
                        *norm["theirs"], "--save-init", initial, "--save", final, "--loss-steps", STEPS)
    ours, _ = train_mpiburn(programs, run, 1, 1, BATCH, STEPS * BATCH, *recipe, *norm["ours"], "--init", initial,
                            "--log-every", 1)

    problems = []
    network = build(model, variant)
    state = load_file(last_checkpoint(run))
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        return f"{title}: not loaded", [f"PyTorch cannot load the checkpoint: {' '.join(str(error).split())}"]
    expected = load_file(final)
    if variant.dropout:
        problems += [f"{name} has changed without a step" for name, value in load_file(initial).items()
                     if not is_statistic(name) and not state[name].equal(value)]
        # Batch norms stand before the dropout, so their statistics are the same.
        expected = {name: value for name, value in expected.items() if is_statistic(name)}
    problems += compare_states(expected, state, biases_before_norms(network), rate)
    pairs = zip(theirs["losses"], mean_losses(run, 1, STEPS), strict=True)
    largest = max(abs(a - b) for a, b in pairs)
    if not variant.dropout and not largest <= STEPS_TOLERANCE:
        problems.append(f"losses differ by {largest:.1e}")
    tested, _ = evaluate(network, load_shard(model, programs.data, "test"), 32).over_ranks()
    if not abs(tested - ours["test_loss"]) <= TEST_TOLERANCE:
        problems.append(f"test loss of the checkpoint: PyTorch {tested:.6f}, mpiburn {ours['test_loss']:.6f}")
    losses = "weights unchanged" if variant.dropout else f"losses within {largest:.0e}"
    return f"{title}: loaded, {losses}, test loss {tested:.4f} and {ours['test_loss']:.4f}", problems


def main():
    """What is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, help="one of the networks (default: all)")
    parser.add_argument("--mpiburn", type=Path, default=ROOT / "target/release/mpiburn", metavar="PATH",
                        help="our program (default: target/release/mpiburn)")
    options = parser.parse_args()
    peer = Path(__file__).with_name("train_ddp.py")
    failed = []
    require_programs(options.mpiburn, peer)
    with tempfile.TemporaryDirectory(prefix="mpiburn-names-") as folder:
        for model in [options.only] if options.only else KINDS:
            sizes = ("--train", TRAIN_SAMPLES, "--test", TEST_SAMPLES)
            data = generate(options, KINDS[model], Path(folder), *sizes)
            programs = Programs(options.mpiburn.resolve(), peer, data)
            for variant in variants(model):
                if model == "mlp" and variant.bn:
                    continue  # It has a batch norm with the option and without.
                report, problems = check(model, variant, programs, Path(folder))
                print(report, flush=True)
                failed += [f"{report.split(':')[0]}: {problem}" for problem in problems]
    return failed


if __name__ == "__main__":
    run(main)
