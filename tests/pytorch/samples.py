"""Reads data sets (IDX files, CIFAR-10's binary files, pairs of .npy files) and gives one rank's shard as normalised
tensors."""

import gzip
from pathlib import Path

import numpy as np
import torch

# The normalisation constants of `mpiburn train`.
DIGITS_MEAN, DIGITS_STD = 0.1307, 0.3081
OBJECTS_MEAN, OBJECTS_STD = 0.5, 0.5
# The bytes of a sample: a label, and 3 x 32 x 32 pixels.
OBJECTS_RECORD = 1 + 3 * 32 * 32


def read_idx(folder, name):
    """The values of an IDX file, plain or gzipped, as an array of the shape in its header."""
    plain = Path(folder, name)
    zipped = Path(folder, name + ".gz")
    if plain.exists():
        content = plain.read_bytes()
    elif zipped.exists():
        content = gzip.decompress(zipped.read_bytes())
    else:
        raise FileNotFoundError(f"{plain} is missing, and so is {zipped.name}")
    # The header: two zero bytes, the type (8: unsigned bytes), the number of dimensions, and each dimension
    # as a big-endian u32.
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{plain} is not an IDX file of bytes")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">u4").astype(int)
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_digits(folder, split):
    """The grey images [n, 1, 28, 28] as bytes, and the labels."""
    name = {"train": "train", "test": "t10k"}[split]
    images = read_idx(folder, f"{name}-images-idx3-ubyte")
    return images[:, np.newaxis], read_idx(folder, f"{name}-labels-idx1-ubyte")


def read_objects(folder, split):
    """The colour images [n, 3, 32, 32] as bytes, and the labels."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] if split == "train" else ["test_batch.bin"]
    records = np.concatenate([np.fromfile(Path(folder, name), np.uint8) for name in names])
    records = records.reshape(-1, OBJECTS_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_features(folder, split):
    """The features [n, 512], of any float type, and the labels."""
    return tuple(np.load(Path(folder, f"{split}_data", f"{split}_{part}.npy")) for part in "xy")


def standardise(mean, std):
    """A function from bytes to normalised floats. It has the operations of torchvision's transforms, in their order."""
    return lambda samples: samples.float().div_(255).sub_(mean).div_(std)


# How the samples of each network are read, and how they are converted to its inputs.
SOURCES = {
    "convnet": (read_digits, standardise(DIGITS_MEAN, DIGITS_STD)),
    "vgg": (read_objects, standardise(OBJECTS_MEAN, OBJECTS_STD)),
    "mlp": (read_features, lambda samples: samples.float()),
}


def load_shard(model, folder, split, rank=0, world=1, limit=0, pad=False):
    """This rank's normalised samples, and their labels: every `world`-th sample from `rank` on.

    `pad` makes all shards equally long by repeating the first samples, as PyTorch's DistributedSampler does. A training
    needs it, because a rank with fewer steps would block the others. A test does not use it, because it must not count
    a sample twice.
    """
    read, normalise = SOURCES[model]
    samples, labels = read(folder, split)
    count = min(limit, len(labels)) if limit else len(labels)
    end = -(-count // world) * world if pad else count
    mine = np.arange(rank, end, world) % count
    return normalise(torch.from_numpy(samples[mine])), torch.from_numpy(labels[mine].astype(np.int64))
