#!/usr/bin/env python3
"""Exchanges weights between PyTorch and mpiburn, for every network with each of its options, and compares results.

    .venv/bin/python tests/pytorch/state_dicts.py                 all of them, some minutes
    .venv/bin/python tests/pytorch/state_dicts.py --only mlp

For each network, PyTorch initialises weights and saves them under the names of its state dict. mpiburn starts
from that file and trains a few steps, and PyTorch loads its checkpoint strictly. PyTorch evaluates the checkpoint,
which must give mpiburn's test loss.

Without dropout, PyTorch also trains the same steps, in f64, so that only mpiburn has rounding errors. Losses,
weights and batch norm's running statistics are compared. With dropout, whose masks differ between the programs,
the learning rate is 0: the weights must be returned bit by bit.

Sometimes rounding decides where a gradient goes: if two values in the window of a pooling are almost equal, or a
value before a ReLU is almost 0. From some initial weights, a few percent of the weights then step in the other
direction, in PyTorch's f32 too. Weights that differ by little are therefore trained again from other initial
weights, at most five times in all. An error in an operator shows from all initial weights.

Exit code 0 if they agree, 1 if they differ, 2 if they could not be compared.
"""

import argparse
import contextlib
import io
import itertools
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

# Imports from this folder must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True

from accuracy import generate
from correct import last_checkpoint, mean_losses
from programs import ROOT, Programs, require_programs, run, train_mpiburn

KINDS = {"convnet": "digits", "vgg": "objects", "mlp": "features"}
STEPS, BATCH, TEST_SAMPLES = 6, 8, 64
# Enough samples to contain every class. Only the first STEPS x BATCH are used for training.
TRAIN_SAMPLES = 1000
# The learning rate is small, because Adam divides by the gradient's magnitude: near 0, rounding decides the
# direction of a whole step.
RATE = 1e-4
# Largest relative differences of losses. The trainings diverge from step to step; in a test of the same
# weights, only rounding differs.
STEPS_TOLERANCE, TEST_TOLERANCE = 1e-4, 1e-5
# Mean difference of a tensor's weights, relative to the largest distance that Adam can move a weight; single
# weights with gradients near 0 may differ by this distance. The mean was at most 0.002 if rounding decided
# nothing, and 0.032 in a case in which it did (PyTorch's f32 differed from f64 by the same).
WEIGHT_TOLERANCE, CHOICE_TOLERANCE = 0.005, 0.1
SEEDS = range(123, 128)
# Difference of a running statistic, relative to the largest value.
STATISTICS_TOLERANCE = 1e-5


def variants(model):
    """Yields the variants to test: options of PyTorch's network, and the number of steps."""
    plain = {"activation": "relu", "bn": False, "dropout": 0.0, "hidden": 32, "steps": STEPS}
    for bn, dropout in itertools.product((False, True), (0.0, 0.3)):
        # Flat parts of an image give equal values in the window of a max pooling, and rounding decides which
        # value gets the gradient. Through vgg's batch norms, one such decision changes the losses of later
        # steps by 1e-3, so only the first steps are comparable.
        steps = 2 if model == "vgg" and bn else STEPS
        yield SimpleNamespace(**{**plain, "bn": bn, "dropout": dropout, "steps": steps})
    for activation in ("tanh", "sigmoid", "gelu"):
        yield SimpleNamespace(**{**plain, "activation": activation})
    if model == "mlp":
        yield SimpleNamespace(**{**plain, "hidden": 50})


def words_of(model, variant):
    """The variant as options that both programs share, as options of each program, and as a line of text."""
    shared = ["--model", model, "--activation", variant.activation, "--dropout", variant.dropout]
    if variant.hidden != 32:
        shared += ["--hidden", variant.hidden]
    norm = {"ours": ["--batch-norm"], "theirs": ["--bn"]} if variant.bn else {"ours": [], "theirs": []}
    return shared, norm, " ".join(str(word) for word in shared[1:] + norm["ours"])


def is_statistic(name):
    """True if a tensor is a running statistic, which gradients do not update."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def compare_states(theirs, ours, idle_biases, rate, steps):
    """The differences of two state dicts after the same steps, one line each. Returns two lists: differences that are
    too large, and differences that can be explained by a decision of rounding."""
    wrong, chosen = [], []
    # The gradient of a bias before a batch norm is only rounding errors, so its direction is arbitrary. The
    # running mean follows this bias.
    astray = 2 * rate * steps
    for name, expected in theirs.items():
        differences = (ours[name].double() - expected.double()).abs()
        difference = (differences.max() if is_statistic(name) else differences.mean()).item()
        weights = not is_statistic(name) and name not in idle_biases
        if is_statistic(name):
            allowed = STATISTICS_TOLERANCE * max(1.0, expected.double().abs().max().item()) + astray
        else:
            allowed = WEIGHT_TOLERANCE * rate * steps if weights else astray
        if not difference <= allowed:
            explained = weights and difference <= CHOICE_TOLERANCE * rate * steps
            (chosen if explained else wrong).append(f"{name} differs by {difference:.1e}, more than {allowed:.1e}")
    return wrong, chosen


def biases_before_norms(network):
    """Names of biases that the following batch norm cancels."""
    from torch import nn

    layers = [(name, layer) for name, layer in network.named_modules() if not isinstance(layer, nn.Sequential)]
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    return {f"{name}.bias" for (name, _), (_, after) in itertools.pairwise(layers) if isinstance(after, norms)}


def train_here(data, *words):
    """Trains with train_ddp.py in this process, because PyTorch starts slowly. Returns the last JSON line."""
    from train_ddp import parse_options, train

    options = parse_options([str(word) for word in ("--data", data, *words)])
    with contextlib.redirect_stdout(io.StringIO()):
        return train(options, 0, 1)


def check(model, variant, seed, programs, folder):
    """Trains the variant with both programs. Returns a report, the problems, and the differences that rounding may
    explain."""
    from safetensors.torch import load_file

    from networks import build
    from samples import load_shard
    from train_ddp import evaluate

    shared, norm, title = words_of(model, variant)
    name, steps = f"{title.replace(' ', '_')}-{seed}", variant.steps
    initial, final, run = folder / f"{name}.init", folder / f"{name}.final", folder / name
    # With dropout, the losses differ from the first step, so the learning rate is 0.
    rate = 0 if variant.dropout else RATE
    recipe = (*shared, "--lr", rate, "--weight-decay", 0)
    theirs = train_here(programs.data, "--epochs", 1, "--batch", BATCH, "--limit", steps * BATCH, *recipe,
                        *norm["theirs"], "--save-init", initial, "--save", final, "--loss-steps", steps,
                        "--precision", "f64", "--seed", seed)
    ours, _ = train_mpiburn(programs, run, 1, 1, BATCH, steps * BATCH, *recipe, *norm["ours"], "--init", initial,
                            "--log-every", 1)

    problems = []
    network = build(model, variant)
    state = load_file(last_checkpoint(run))
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        return f"{title}: not loaded", [f"PyTorch cannot load the checkpoint: {' '.join(str(error).split())}"], []
    expected = load_file(final)
    if variant.dropout:
        problems += [f"{name} has changed without a step" for name, value in load_file(initial).items()
                     if not is_statistic(name) and not state[name].equal(value)]
        # The batch norms are before the dropout, so their statistics are equal although the masks differ.
        expected = {name: value for name, value in expected.items() if is_statistic(name)}
    wrong, chosen = compare_states(expected, state, biases_before_norms(network), rate, steps)
    problems += wrong
    pairs = zip(theirs["losses"], mean_losses(run, 1, steps), strict=True)
    largest = max(abs(a - b) for a, b in pairs)
    if not variant.dropout and not largest <= STEPS_TOLERANCE:
        problems.append(f"losses differ by {largest:.1e}")
    tested, _ = evaluate(network, load_shard(model, programs.data, "test"), 32).over_ranks()
    if not abs(tested - ours["test_loss"]) <= TEST_TOLERANCE:
        problems.append(f"test loss of the checkpoint: PyTorch {tested:.6f}, mpiburn {ours['test_loss']:.6f}")
    losses = "weights unchanged" if variant.dropout else f"losses within {largest:.0e}"
    return f"{title}: loaded, {losses}, test loss {tested:.4f} and {ours['test_loss']:.4f}", problems, chosen


def check_from_seeds(model, variant, programs, folder):
    """Checks the variant from several initial weights, until rounding explains no difference. Prints reports; returns
    the problems."""
    for seed in SEEDS:
        report, problems, chosen = check(model, variant, seed, programs, folder)
        print(report, flush=True)
        if problems or not chosen:
            break
        print(f"  seed {seed}: {len(chosen)} tensors differ, {chosen[0]}: again from other weights", flush=True)
    return [f"{report.split(':')[0]}: {problem}" for problem in problems or chosen]


def main():
    """Returns the problems, one line each."""
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
                    continue  # mlp always has a batch norm, so the option changes nothing
                failed += check_from_seeds(model, variant, programs, Path(folder))
    return failed


if __name__ == "__main__":
    run(main)
