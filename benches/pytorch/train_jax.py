#!/usr/bin/env python3
"""Trains the networks of `mpiburn train` with JAX: one core, and a jitted step.

A peer of mpiburn in the comparison of speed, beside tests/pytorch/train_ddp.py. It has the same samples, initial
weights, losses, Adam, options and output as train_ddp.py, for convnet and mlp on one rank. A step is one compiled
function of the weights, Adam's moments, batch norm's statistics and the sums of losses.

    mpirun -n 1 --bind-to core .venv/bin/python benches/pytorch/train_jax.py --model mlp --noise 1000
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

# One thread, as in the ranks of the other programs.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
# Imports must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True
# The programs, networks and samples that are shared with the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/pytorch"))

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from safetensors.numpy import load_file

from networks import CLASSES, PLAIN, SHAPES, build
from samples import load_shard
from train_ddp import NOISE_BATCHES, WARM_UP_STEPS, positive

# Constants of Adam and of batch norm, as in PyTorch.
BETAS, EPSILON = (0.9, 0.999), 1e-8
NORM_EPSILON, NORM_MOMENTUM = 1e-5, 0.1


# ------------------------------------------------------------------ networks

def conv_relu_pool(images, weights, bias):
    """3x3 convolution with padding 1, ReLU, 2x2 max pooling; channels are innermost."""
    sums = lax.conv_general_dilated(images, weights.transpose(2, 3, 1, 0), (1, 1), "SAME",
                                    dimension_numbers=("NHWC", "HWIO", "NHWC"))
    values = jax.nn.relu(sums + bias)
    count, height, width, channels = values.shape
    # Pooling is a maximum over two axes, whose gradient is much faster than the gradient of reduce_window.
    return values.reshape(count, height // 2, 2, width // 2, 2, channels).max((2, 4))


def convnet(weights, stats, images):
    """Class scores of images [batch, 28, 28, 1], and the statistics, of which this network has none."""
    for number in (1, 2):
        images = conv_relu_pool(images, weights[f"conv{number}.weight"], weights[f"conv{number}.bias"])
    # The linear layer's weights expect the channels before height and width.
    flat = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return flat @ weights["linear.weight"].T + weights["linear.bias"], stats


def mlp(weights, stats, features):
    """Class scores of features [batch, 512], and the new running statistics of batch norm."""
    hidden = features @ weights["layer1.weight"].T + weights["layer1.bias"]
    mean, variance = hidden.mean(0), hidden.var(0)
    normalised = (hidden - mean) * lax.rsqrt(variance + NORM_EPSILON) * weights["bn1.weight"] + weights["bn1.bias"]
    unbiased = variance * len(hidden) / (len(hidden) - 1)
    update = lambda name, new: (1 - NORM_MOMENTUM) * stats[name] + NORM_MOMENTUM * new
    stats = {name: update(name, new) for name, new in
             (("bn1.running_mean", mean), ("bn1.running_var", unbiased))}
    return jax.nn.relu(normalised) @ weights["layer2.weight"].T + weights["layer2.bias"], stats


NETWORKS = {"convnet": convnet, "mlp": mlp}


def to_inputs(samples):
    """Samples in PyTorch's shape as inputs of JAX: images get their channels innermost."""
    array = samples.numpy()
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


# ------------------------------------------------------------------- training

def new_state(options):
    """Weights, moments, statistics and sums before the first step."""
    torch.manual_seed(options.seed)
    network = build(options.model, PLAIN)
    arrays = load_file(options.init) if options.init else {n: v.numpy() for n, v in network.state_dict().items()}
    trained = {name for name, _ in network.named_parameters()}
    weights = {name: jnp.array(array) for name, array in arrays.items() if name in trained}
    zeros = lambda: {name: jnp.zeros_like(array) for name, array in weights.items()}
    return {
        "weights": weights, "first": zeros(), "second": zeros(), "step": jnp.zeros((), jnp.int32),
        "stats": {name: jnp.array(array) for name, array in arrays.items() if name.split(".")[-1].startswith("running")},
        "loss": jnp.zeros(()), "hits": jnp.zeros((), jnp.int32),
    }


def make_step(options):
    """The jitted step. It maps the state and a batch to the next state and the loss."""
    network, (beta1, beta2) = NETWORKS[options.model], BETAS

    def loss_of(weights, stats, inputs, labels):
        scores, stats = network(weights, stats, inputs)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1)
        return -chosen.mean(), (scores, stats)

    def step(state, inputs, labels):
        gradients = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (scores, stats)), grads = gradients(state["weights"], state["stats"], inputs, labels)
        number = state["step"] + 1
        # 1 - beta^number, computed without cancellation.
        correction1, correction2 = (-jnp.expm1(number * jnp.log(beta)) for beta in BETAS)
        grads = jax.tree.map(lambda g, w: g + options.weight_decay * w, grads, state["weights"])
        first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["first"], grads)
        second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state["second"], grads)
        weights = jax.tree.map(
            lambda w, m, v: w - options.lr / correction1 * m / (jnp.sqrt(v / correction2) + EPSILON),
            state["weights"], first, second)
        return {
            "weights": weights, "first": first, "second": second, "step": number, "stats": stats,
            "loss": state["loss"] + loss * len(labels), "hits": state["hits"] + (scores.argmax(1) == labels).sum(),
        }, loss

    return jax.jit(step, donate_argnums=0)


def describe(options, steps, started):
    """The fields that the last JSON line always has. Memory is left out, because this process also loads PyTorch."""
    return {"jax": jax.__version__, "model": options.model, "world": 1, "batch": options.batch, "steps": steps,
            "total_s": time.perf_counter() - started, "peak_rss_mb": None}


def time_steps(options):
    """Trains on random batches and times each step; returns the JSON line."""
    started = time.perf_counter()
    state, step = new_state(options), make_step(options)
    torch.manual_seed(options.seed)
    images = torch.randn(NOISE_BATCHES, options.batch, *SHAPES[options.model])
    labels = torch.randint(CLASSES[options.model], (NOISE_BATCHES, options.batch))
    batches = [(jnp.array(to_inputs(x)), jnp.array(y.numpy())) for x, y in zip(images, labels)]
    seconds = []
    for number in range(WARM_UP_STEPS + options.noise):
        inputs, classes = batches[number % NOISE_BATCHES]
        began = time.perf_counter()
        state, loss = step(state, inputs, classes)
        loss.block_until_ready()
        seconds.append(time.perf_counter() - began)
    seconds = np.array(seconds[WARM_UP_STEPS:])
    return describe(options, options.noise, started) | {
        "train_s": seconds.sum(), "ms_per_step": 1000 * np.median(seconds), "mean_ms_per_step": 1000 * seconds.mean(),
    }


def train(options):
    """Trains for one epoch; returns the JSON line."""
    started = time.perf_counter()
    state, step = new_state(options), make_step(options)
    samples, labels = load_shard(options.model, options.data, "train", limit=options.limit)
    batches = [(jnp.array(to_inputs(x)), jnp.array(y.numpy()))
               for x, y in zip(samples.split(options.batch), labels.split(options.batch))]
    # The step is compiled before the clock starts, as in train_ddp.py. It gets a copy, because it consumes
    # its state.
    jax.block_until_ready(step(jax.tree.map(jnp.copy, state), *batches[0]))
    began, losses = time.perf_counter(), []
    for inputs, classes in batches:
        state, loss = step(state, inputs, classes)
        if len(losses) < options.loss_steps:
            losses.append(loss)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - began
    return describe(options, len(batches), started) | {
        "train_s": seconds, "ms_per_step": 1000 * seconds / len(batches), "losses": [float(loss) for loss in losses],
        "train_loss": float(state["loss"]) / len(labels), "train_acc": 100 * int(state["hits"]) / len(labels),
    }


def parse_options():
    """The command line options, as train_ddp.py's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=NETWORKS, default="convnet")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", metavar="DIR", help="folder of the model's data set; batches must be whole")
    data.add_argument("--noise", type=positive, metavar="STEPS", help="time STEPS steps on random batches instead")
    parser.add_argument("--epochs", type=int, choices=[1], default=1)
    parser.add_argument("--batch", type=positive, default=32, help="training batch size")
    parser.add_argument("--lr", type=float, default=5e-4, help="learning rate of Adam")
    parser.add_argument("--weight-decay", type=float, default=5e-4, help="L2 penalty, added to the gradient")
    parser.add_argument("--seed", type=int, default=123, help="seed of the initial weights")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="train on the first N samples only")
    parser.add_argument("--loss-steps", type=int, default=0, metavar="N", help="report the losses of the first N steps")
    parser.add_argument("--init", metavar="FILE", help="start from these weights, a .safetensors file")
    options = parser.parse_args()
    if options.data and options.limit % options.batch:
        parser.error(f"--limit {options.limit}: not a multiple of the batch size {options.batch}")
    return options


def main():
    options = parse_options()
    torch.set_num_threads(1)
    print(json.dumps((time_steps if options.noise else train)(options)), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"train_jax.py: {error}")
