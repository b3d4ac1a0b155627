"""Ways to run a network in PyTorch, all with the same result: some are faster than eager on some networks."""

import argparse
import copy

import torch
from torch import nn

# `eager` is PyTorch without any of the others.
WAYS = ("eager", "fused", "channels-last", "compile")
# As `mpiburn train --precision`, and f64, whose rounding errors are too small to matter.
PRECISIONS = ("no", "bf16", "f64")
# One forward and backward compiles both; the second finds out whether that was all.
COMPILING_STEPS = 2


def parse_ways(text):
    """Names with a plus between them, such as fused+channels-last, as a set."""
    names = frozenset(text.split("+"))
    unknown = names - set(WAYS)
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown way {', '.join(sorted(unknown))}: choose {', '.join(WAYS)}")
    return names


class Autocast(nn.Module):
    """Runs the network with products in bf16. The scores are f32 again, as autocast's cross entropy has them."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        with torch.autocast("cpu", torch.bfloat16):
            scores = self.network(images)
        return scores.float()


def in_f64(network):
    """Makes the network one of f64 that takes f32 samples."""
    network.double().register_forward_pre_hook(lambda _, inputs: tuple(samples.double() for samples in inputs))


def prepare(network, ways, precision="no"):
    """The module that computes the network's scores in those ways; its parameters are the network's."""
    if precision == "f64":
        in_f64(network)
    if "channels-last" in ways:
        network.to(memory_format=torch.channels_last)
    if "compile" in ways:
        # Fixed shapes: a last batch of another size is compiled for itself.
        # Not network.compile(), which does nothing for an nn.Sequential.
        network = torch.compile(network, dynamic=False)
    return Autocast(network) if precision == "bf16" else network


def layout(images, ways):
    """The images in the memory layout in which the network reads them fastest."""
    if "channels-last" in ways and images.dim() == 4:
        return images.contiguous(memory_format=torch.channels_last)
    return images


def compile_now(model, loss_of, images, labels):
    """Compiles a model's forward and backward, so that no measured step does. Parameters and statistics remain.

    Raises ValueError if nothing was compiled: then PyTorch runs eagerly without a word.
    """
    # Slow to import, and no other way needs it.
    from torch._dynamo.utils import counters

    before = copy.deepcopy(model.state_dict())
    for _ in range(COMPILING_STEPS):
        loss_of(model(images), labels).backward()
    model.load_state_dict(before)
    model.zero_grad()
    if not counters["stats"]["unique_graphs"]:
        raise ValueError("torch.compile has compiled nothing")
