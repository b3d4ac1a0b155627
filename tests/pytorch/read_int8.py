"""Computes an int8 model (int8.safetensors) in numpy, by the formulas of docs/quantization.md. The logits must be
mpiburn's, bit for bit.

    mpiburn eval --checkpoint results/qat --int8 --logits int8.npy
    .venv/bin/python tests/pytorch/read_int8.py results/qat data/digits int8.npy
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open

from samples import load_shard


def read(path):
    """Reads the file: the layers in order, and the tensors by name."""
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["mpiburn_int8"]), {name: file.get_tensor(name) for name in file.keys()}


def last_model(run):
    """The file of the int8 model in a run's last checkpoint; `run` itself if it is a file."""
    models = sorted(Path(run).glob("checkpoints/step-*/int8.safetensors")) if Path(run).is_dir() else [run]
    return models[-1] if models else sys.exit(f"read_int8.py: {run} has no int8 model; mpiburn quantize {run} makes one")


def windows(x, kernel, stride):
    """The windows of a convolution: [n, c, h, w] to [n, c, rows, columns, kernel height, kernel width]."""
    return np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))[:, :, :: stride[0], :: stride[1]]


def fixed_point(ratio):
    """Multiplier m and shift s with ratio = m / 2^s; m has 31 bits, and s is at most 54."""
    shift = min(31 - math.frexp(ratio)[1], 54)
    m = round(ratio * 2.0**shift)
    return (m // 2, shift - 1) if m == 2**31 else (m, shift)


def infer(entry, tensors, x):
    """The logits of normalised samples [n, c, h, w]."""
    parameters = list(zip(tensors["activation.scale"], tensors["activation.zero_point"].astype(np.int64)))
    (scale, zero), outputs = parameters[0], iter(parameters[1:])
    q = np.clip(np.rint(x * (np.float32(1) / scale)) + zero, 0, 255).astype(np.int64)
    for layer in entry["layers"]:
        if layer["op"] == "max_pool":
            q = windows(q, layer["kernel"], layer["stride"]).max((4, 5))
            continue
        weight, weight_scale, bias = (tensors[f"{layer['name']}.{part}"] for part in ("weight", "weight_scale", "bias"))
        # f64 holds the integer sums exactly, and its matrix product is fast.
        weight, centred = weight.astype(np.float64), (q - zero).astype(np.float64)
        if layer["op"] == "conv":
            rows, columns = layer["padding"]
            padded = np.pad(centred, ((0, 0), (0, 0), (rows, rows), (columns, columns)))
            sums = np.einsum("nchwij,ocij->nohw", windows(padded, weight.shape[2:], layer["stride"]), weight, optimize=True)
        else:
            sums = centred.reshape(len(q), -1) @ weight.T
        (next_scale, next_zero), axes = next(outputs), (1, -1) + (1,) * (sums.ndim - 2)
        ratios = np.broadcast_to(np.float64(scale) * weight_scale.astype(np.float64) / np.float64(next_scale), len(bias))
        m, s = (np.array(part).reshape(axes) for part in zip(*map(fixed_point, ratios)))
        q = next_zero + ((sums.astype(np.int64) + bias.reshape(axes)) * m + (1 << (s - 1)) >> s)
        q = np.clip(q, next_zero if layer["relu"] else 0, 255)
        scale, zero = next_scale, next_zero
    return ((q.reshape(len(q), -1) - zero).astype(np.float32) * scale).astype(np.float32)


def main():
    run, data, logits = sys.argv[1:]
    entry, tensors = read(last_model(run))
    samples = load_shard(entry["network"], data, "test")[0].numpy().reshape(-1, *entry["input_shape"])
    expected = np.load(logits)
    parts = np.array_split(samples[: len(expected)], max(1, len(expected) // 100))
    found = np.concatenate([infer(entry, tensors, part) for part in parts])
    if found.shape != expected.shape or found.tobytes() != expected.tobytes():
        sys.exit(f"read_int8.py: {(found != expected).any(1).sum()} of {len(expected)} samples have other logits")
    print(f"{len(found)} samples: the same logits, bit for bit")


if __name__ == "__main__":
    main()
