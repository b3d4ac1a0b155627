"""Ways to run a network in PyTorch. All give the same result; on some networks, some are faster than eager."""

import argparse
import copy

import torch
from torch import nn

# `eager` is PyTorch without any of the other ways.
WAYS = ("eager", "fused", "channels-last", "compile")
# The precisions of `mpiburn train --precision`, and f64, whose rounding errors are negligible.
PRECISIONS = ("no", "bf16", "f64")
# The first step compiles forward and backward. The second one compiles again if something was left.
COMPILING_STEPS = 2


def parse_ways(text):
    """Reads names joined by plus signs, such as fused+channels-last, as a set."""
    names = frozenset(text.split("+"))
    unknown = names - set(WAYS)
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown way {', '.join(sorted(unknown))}: choose {', '.join(WAYS)}")
    return names


class Autocast(nn.Module):
    """Runs the network with products in bf16, as autocast does. The scores are f32 again, for the cross entropy."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        with torch.autocast("cpu", torch.bfloat16):
            scores = self.network(images)
        return scores.float()


def in_f64(network):
    """Converts the network to f64. Its samples stay f32, and are converted when it is called."""
    network.double().register_forward_pre_hook(lambda _, inputs: tuple(samples.double() for samples in inputs))


def prepare(network, ways, precision="no"):
    """Returns the module that computes the network's scores in these ways, with the network's parameters."""
    if precision == "f64":
        in_f64(network)
    if "channels-last" in ways:
        network.to(memory_format=torch.channels_last)
    if "compile" in ways:
        # Shapes are fixed, so a last batch of another size is compiled separately. Not network.compile(),
        # because it does nothing for an nn.Sequential.
        network = torch.compile(network, dynamic=False)
    return Autocast(network) if precision == "bf16" else network


def layout(images, ways):
    """The images in the memory format that the network reads fastest."""
    if "channels-last" in ways and images.dim() == 4:
        return images.contiguous(memory_format=torch.channels_last)
    return images


def compile_now(model, loss_of, images, labels):
    """Compiles the model's forward and backward before the measured steps. Parameters and statistics stay as they are.

    Raises ValueError if nothing was compiled: PyTorch would then run eagerly without a message.
    """
    # Imported here, because it is slow to import, and only this way needs it.
    from torch._dynamo.utils import counters

    before = copy.deepcopy(model.state_dict())
    for _ in range(COMPILING_STEPS):
        loss_of(model(images), labels).backward()
    model.load_state_dict(before)
    model.zero_grad()
    if not counters["stats"]["unique_graphs"]:
        raise ValueError("torch.compile has compiled nothing")
