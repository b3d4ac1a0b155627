#!/usr/bin/env python3
"""Trains the networks of `mpiburn train` with PyTorch's DistributedDataParallel.

This is the reference that mpiburn is compared with. Everything that affects losses is as in `mpiburn train`: the
layers and their names, Adam with an L2 penalty, cross entropy, and samples in file order with strided (round-robin)
sharding. Everything else is as fast as PyTorch allows: a rank's samples are in memory as one normalised tensor, a batch
is a slice of it, and there is no data loader.

    mpirun -n 2 --bind-to core .venv/bin/python tests/pytorch/train_ddp.py --data data/digits
    torchrun --nproc-per-node 2 tests/pytorch/train_ddp.py --data data/digits
    mpirun -n 1 --bind-to core .venv/bin/python tests/pytorch/train_ddp.py --model vgg --bn --data data/objects
    mpirun -n 1 --bind-to core .venv/bin/python tests/pytorch/train_ddp.py --model vgg --noise 20

--noise STEPS times STEPS steps on random batches, like `mpiburn bench step`, and needs no data set. Ranks communicate
with gloo. Rank 0 prints a JSON line for each epoch, and a last one for the whole run.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

# Only the CPU is compared; GPUs are hidden.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Imports from this folder must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from networks import ACTIVATIONS, CLASSES, NETWORKS, SHAPES, build
from samples import load_shard
from ways import PRECISIONS, WAYS, compile_now, layout, parse_ways, prepare

# As in `mpiburn bench step`: the number of random batches, used in turn so that none is memorised, and the
# number of steps before the timed ones.
NOISE_BATCHES = 16
WARM_UP_STEPS = 3


# ------------------------------------------------------------------ the ranks

def first_of(*names, default):
    """The value of the first of these environment variables that is set, as a number."""
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def join_ranks():
    """Connects the ranks; returns the rank and the world size, which the launcher sets."""
    rank = first_of("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", default=0)
    world = first_of("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", default=1)
    if world > 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        # mpirun sets no port for the rendezvous of the ranks. mpirun is the parent of all ranks on a host, so
        # its process id is the same for all of them, and it differs between concurrent jobs.
        os.environ.setdefault("MASTER_PORT", str(20000 + os.getppid() % 12000))
        dist.init_process_group("gloo", rank=rank, world_size=world)
    return rank, world


def sum_over_ranks(values):
    """Sums each value over all ranks."""
    total = torch.as_tensor(values, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.tolist()


# ------------------------------------------------------------------- training

class Tally:
    """The sums of losses and of correct predictions so far. They are tensors, because reading their values at every step
    would take time."""

    def __init__(self):
        self.loss = torch.zeros((), dtype=torch.float64)
        self.hits = torch.zeros((), dtype=torch.int64)
        self.samples = 0

    def add(self, scores, loss, labels):
        self.loss += loss.detach() * len(labels)
        self.hits += (scores.argmax(1) == labels).sum()
        self.samples += len(labels)

    def over_ranks(self):
        """The mean loss, and the accuracy in percent, over the samples of all ranks."""
        loss, hits, samples = sum_over_ranks([self.loss, self.hits, self.samples])
        return loss / samples, 100 * hits / samples


def train_step(model, optimizer, images, labels, tally):
    """Makes one update of the weights; returns the loss as a tensor."""
    optimizer.zero_grad()
    scores = model(images)
    loss = F.cross_entropy(scores, labels)
    loss.backward()
    optimizer.step()
    tally.add(scores, loss, labels)
    return loss


def train_epoch(model, optimizer, shard, batch, step_losses, wanted_losses):
    """Trains one epoch on the shard. Appends the losses of the run's first steps to `step_losses`."""
    tally = Tally()
    model.train()
    for images, labels in zip(*(part.split(batch) for part in shard)):
        loss = train_step(model, optimizer, images, labels, tally)
        if len(step_losses) < wanted_losses:
            step_losses.append(loss.item())
    return tally


@torch.no_grad()
def evaluate(model, shard, batch):
    """The loss and the correct predictions of the shard. `model` is the bare network: DistributedDataParallel would
    require the same number of steps on all ranks."""
    tally = Tally()
    model.eval()
    for images, labels in zip(*(part.split(batch) for part in shard)):
        scores = model(images)
        tally.add(scores, F.cross_entropy(scores, labels), labels)
    return tally


def start(options, rank, world):
    """Returns the network with its initial weights, the module that trains it, and its optimizer."""
    torch.manual_seed(options.seed)
    network = build(options.model, options)
    if options.init:
        network.load_state_dict(load_file(options.init), strict=True)
    if options.save_init and rank == 0:
        save_file(network.state_dict(), options.save_init)
    model = prepare(network, options.ways, options.precision)
    model = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    fused = True if "fused" in options.ways else None
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=fused)
    return network, model, optimizer


def describe(options, world, steps, started):
    """The fields that the last JSON line always has."""
    return {
        "torch": torch.__version__, "model": options.model, "ways": "+".join(sorted(options.ways)),
        "precision": options.precision, "backend": "gloo", "world": world, "batch": options.batch, "steps": steps,
        "total_s": time.perf_counter() - started,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def time_steps(options, rank, world):
    """Trains on random batches and times each step; returns the JSON line."""
    started = time.perf_counter()
    _, model, optimizer = start(options, rank, world)
    torch.manual_seed(options.seed + rank)
    images = torch.randn(NOISE_BATCHES, options.batch, *SHAPES[options.model])
    images = [layout(batch, options.ways) for batch in images]
    labels = torch.randint(CLASSES[options.model], (NOISE_BATCHES, options.batch))
    model.train()
    if "compile" in options.ways:
        compile_now(model, F.cross_entropy, images[0], labels[0])
    tally, seconds = Tally(), []
    for step in range(WARM_UP_STEPS + options.noise):
        batch = step % NOISE_BATCHES
        began = time.perf_counter()
        train_step(model, optimizer, images[batch], labels[batch], tally)
        seconds.append(time.perf_counter() - began)
    seconds = seconds[WARM_UP_STEPS:]
    return describe(options, world, options.noise, started) | {
        "train_s": sum(seconds), "train_loss": tally.over_ranks()[0],
        "ms_per_step": 1000 * statistics.median(seconds), "mean_ms_per_step": 1000 * statistics.fmean(seconds),
    }


def train(options, rank, world):
    """Trains; returns the last JSON line, which is the same on every rank."""
    started = time.perf_counter()
    network, model, optimizer = start(options, rank, world)
    train_shard = load_shard(options.model, options.data, "train", rank, world, options.limit, pad=True)
    test_shard = load_shard(options.model, options.data, "test", rank, world)
    train_shard = layout(train_shard[0], options.ways), train_shard[1]
    if "compile" in options.ways:
        compile_now(model, F.cross_entropy, *(part[:options.batch] for part in train_shard))
    # Ranks wait for each other here, so that slow reading does not count as the first step of other ranks.
    sum_over_ranks([0])

    train_seconds, step_losses, result = 0.0, [], {}
    for epoch in range(1, options.epochs + 1):
        epoch_started = time.perf_counter()
        trained = train_epoch(model, optimizer, train_shard, options.batch, step_losses, options.loss_steps)
        train_seconds += time.perf_counter() - epoch_started
        tested = evaluate(network, test_shard, options.test_batch)
        train_loss, train_acc = trained.over_ranks()
        test_loss, test_acc = tested.over_ranks()
        result = {"epoch": epoch, "train_loss": train_loss, "train_acc": train_acc, "test_loss": test_loss,
                  "test_acc": test_acc, "epoch_s": time.perf_counter() - epoch_started}
        if rank == 0:
            print(json.dumps(result), flush=True)

    if options.save and rank == 0:
        save_file({name: value.contiguous() for name, value in network.state_dict().items()}, options.save)
    steps = options.epochs * -(-len(train_shard[1]) // options.batch)
    return result | describe(options, world, steps, started) | {
        "train_s": train_seconds, "ms_per_step": 1000 * train_seconds / steps,
        "losses": [loss / world for loss in sum_over_ranks(step_losses)],
    }


def positive(text):
    """Reads the value of an option that must be 1 or more."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def parse_options(words=None):
    """Reads the command line, or `words`. The defaults are those of `mpiburn train`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=NETWORKS, default="convnet")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", metavar="DIR", help="folder of the model's data set: IDX, CIFAR-10's or .npy files")
    data.add_argument("--noise", type=positive, metavar="STEPS", help="time STEPS steps on random batches instead")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu", help="activation after all layers but the last")
    parser.add_argument("--bn", action="store_true", help="batch norm after each convolution; mlp always has one")
    parser.add_argument("--dropout", type=float, default=0.0, metavar="P", help="like mpiburn's, with PyTorch's masks")
    parser.add_argument("--hidden", type=positive, default=32, metavar="N", help="width of mlp's hidden layer")
    parser.add_argument("--epochs", type=positive, default=3)
    parser.add_argument("--batch", type=positive, default=32, help="training batch size per rank")
    parser.add_argument("--test-batch", type=positive, default=128, help="test batch size per rank")
    parser.add_argument("--lr", type=float, default=5e-4, help="learning rate of Adam")
    parser.add_argument("--weight-decay", type=float, default=5e-4, help="L2 penalty, added to the gradient")
    parser.add_argument("--seed", type=int, default=123, help="seed of the initial weights")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="train on the first N samples only")
    parser.add_argument("--loss-steps", type=int, default=0, metavar="N",
                        help="report the losses of the first N steps, mean over ranks")
    parser.add_argument("--how", dest="ways", type=parse_ways, default="eager", metavar="WAYS",
                        help=f"{', '.join(WAYS)}, or several with + between them (default: eager)")
    parser.add_argument("--precision", choices=PRECISIONS, default="no", 
                        help="bf16: autocast of forward and backward; f64: all of it")
    parser.add_argument("--init", metavar="FILE", help="start from these weights, a .safetensors file")
    parser.add_argument("--save-init", metavar="FILE", help="write the initial weights as .safetensors")
    parser.add_argument("--save", metavar="FILE", help="write the final weights as .safetensors")
    return parser.parse_args(words)


def main():
    options = parse_options()
    torch.set_num_threads(1)
    rank, world = join_ranks()
    result = (time_steps if options.noise else train)(options, rank, world)
    if rank == 0:
        print(json.dumps(result), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"train_ddp.py: {error}")
