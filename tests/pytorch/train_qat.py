#!/usr/bin/env python3
"""Quantization-aware training in PyTorch's eager mode, with the formulas of `mpiburn train --quantize qat`.

    .venv/bin/python tests/pytorch/train_qat.py --model convnet --data data/digits --loss-steps 50

Weights are int8 (symmetric, -127 to 127), and activations uint8 (affine, 0 to 255). Ranges are moving averages of
minimum and maximum with the constant 0.01; the first batch sets them. Convolution and ReLU are fused.

Observers and fake quantization are composed explicitly. PyTorch's fused operator computes its parameters by another
function (fbgemm's), which differs for ranges without 0.

At the end of every epoch, the integer model is derived and tested. Prints a JSON line for each epoch, and a last one
with the losses.
"""

import argparse
import copy
import json
import os
import sys
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.dont_write_bytecode = True
# torch.ao.quantization is deprecated in favour of a package with other formulas.
warnings.filterwarnings("ignore")

import torch
from safetensors.torch import save_file
from torch import nn
from torch.ao import quantization

from networks import NETWORKS, PLAIN, build
from samples import load_shard
from train_ddp import evaluate, train_epoch

AVERAGING = 0.01


def qconfig(scheme):
    """The configuration of observers and fake quantization. `scheme` is how weights are quantized: channel or tensor."""
    fake = quantization.FakeQuantize
    activation = fake.with_args(
        observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8,
        qscheme=torch.per_tensor_affine, reduce_range=False, averaging_constant=AVERAGING)
    observers = {
        "channel": (quantization.MovingAveragePerChannelMinMaxObserver, torch.per_channel_symmetric, {"ch_axis": 0}),
        "tensor": (quantization.MovingAverageMinMaxObserver, torch.per_tensor_symmetric, {}),
    }
    observer, qscheme, more = observers[scheme]
    weight = fake.with_args(
        observer=observer, quant_min=-127, quant_max=127, dtype=torch.qint8, qscheme=qscheme, reduce_range=False,
        averaging_constant=AVERAGING, **more)
    return quantization.QConfig(activation=activation, weight=weight)


def fusions(network):
    """The names of layers that are fused into one, as PyTorch's dotted names."""
    names = [name for name, layer in network.named_modules() if not isinstance(layer, nn.Sequential)]
    layers = dict(network.named_modules())
    groups, at = [], 0
    while at < len(names):
        kinds = [type(layers[name]) for name in names[at:at + 3]]
        for wanted in ((nn.Conv2d, nn.BatchNorm2d, nn.ReLU), (nn.Conv2d, nn.ReLU), (nn.Linear, nn.ReLU)):
            if tuple(kinds[:len(wanted)]) == wanted:
                groups.append(names[at:at + len(wanted)])
                at += len(wanted) - 1
                break
        at += 1
    return groups


def prepare(network, scheme):
    """Returns `network` with fake quantization, ready for training."""
    network.train()
    fused = quantization.fuse_modules_qat(network, fusions(network))
    wrapped = quantization.QuantWrapper(fused)
    wrapped.qconfig = qconfig(scheme)
    return quantization.prepare_qat(wrapped.train())


def integer_model(model):
    """The int8 model of the current weights and ranges."""
    frozen = copy.deepcopy(model).eval()
    return quantization.convert(frozen)


def train(options):
    """Trains; returns the last JSON line."""
    torch.manual_seed(options.seed)
    network = build(options.model, PLAIN)
    if options.save_init:
        save_file(network.state_dict(), options.save_init)
    model = prepare(network, options.weight_scheme)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    shard = load_shard(options.model, options.data, "train", limit=options.limit)
    tests = load_shard(options.model, options.data, "test")
    losses, result = [], {}
    for epoch in range(1, options.epochs + 1):
        tally = train_epoch(model, optimizer, shard, options.batch, losses, options.loss_steps)
        int8 = integer_model(model)
        _, int8_accuracy = evaluate(int8, tests, 128).over_ranks()
        # Tests a copy, because observers update their ranges in a test too.
        _, accuracy = evaluate(copy.deepcopy(model), tests, 128).over_ranks()
        result = {"epoch": epoch, "train_loss": tally.over_ranks()[0], "test_acc": accuracy,
                  "int8_test_acc": int8_accuracy}
        print(json.dumps(result), flush=True)
    if options.save_logits:
        with torch.no_grad():
            save_file({"logits": int8(tests[0])}, options.save_logits)
    return result | {"world": 1, "losses": losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=NETWORKS, default="convnet")
    parser.add_argument("--data", required=True, metavar="DIR")
    parser.add_argument("--weight-scheme", choices=("channel", "tensor"), default="channel")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=123)
    parser.add_argument("--limit", type=int, default=0, metavar="N")
    parser.add_argument("--loss-steps", type=int, default=0, metavar="N")
    parser.add_argument("--save-init", metavar="FILE")
    parser.add_argument("--save-logits", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.quantized.engine = "fbgemm"
    print(json.dumps(train(options)), flush=True)


if __name__ == "__main__":
    main()
