#!/usr/bin/env python3
"""Compares int8 inference of the ConvNet by mpiburn, PyTorch (qnnpack) and onnxruntime: times and logits, on one thread.

    mpiburn train --quantize qat --data-root data/digits --out results/qat
    .venv/bin/python benches/pytorch/int8_speed.py results/qat data/digits

The int8 models have the integers and scales of the run, the float models its weights. The programs
take turns. A time is the median over rounds of each round's median. For PyTorch and onnxruntime, CPU
times are taken, because load of other programs prolongs them less than wall times; mpiburn's are wall
times.

Int8 logits are compared in steps of the output's scale. PyTorch rounds its requantization in f32,
mpiburn exactly. Exit code 0 if mpiburn reaches the goals for its speed and no logit differs by more
than one step, 1 if not, 2 if nothing could be compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Imports must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True
# The programs, networks and samples that are shared with the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/pytorch"))
# torch.ao.quantization is deprecated in favour of a package with other formulas.
warnings.filterwarnings("ignore")

import numpy as np
import onnxruntime
import torch
from torch import nn
from torch.ao.nn import quantized
from torch.ao.nn.intrinsic.quantized import ConvReLU2d

from machine import BUSY, OtherPrograms
from programs import ROOT, CannotCompare, require_programs, run
from read_int8 import read
from samples import load_shard

BATCH = 128
ENGINE = "qnnpack"
# Rows of the table, and how many times as fast as each row mpiburn's int8 has to be. The goal for mpiburn's
# float path is for AVX-512 VNNI; on other processors, it has no goal.
OURS, OURS_FLOAT, PYTORCH, ONNX = "mpiburn int8", "mpiburn float, fused", f"PyTorch {ENGINE} int8", "onnxruntime float"
GOALS = {OURS_FLOAT: 1.5, PYTORCH: 25.0, ONNX: 1.0}
# The largest difference of int8 logits, in steps of the output's scale.
APART = 1


@dataclass
class Subject:
    """The run whose model is measured, its checkpoint's folder, and its data."""

    binary: Path
    run: Path
    data: Path
    checkpoint: Path


def mpiburn(subject, *words):
    """Runs mpiburn on one thread."""
    done = subprocess.run([subject.binary, "-q", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotCompare(f"mpiburn {words[0]}: {done.stderr.strip()}")


def quantize_weights(values, scales):
    """PyTorch's quantized tensor of these integers."""
    scales = torch.from_numpy(scales).double().expand(len(values)).contiguous()
    zeros = torch.zeros(len(values), dtype=torch.long)
    return torch._make_per_channel_quantized_tensor(torch.from_numpy(values), scales, zeros, 0)


def converted(entry, tensors):
    """PyTorch's int8 model with the integers of an int8.safetensors, as PyTorch's own conversion makes it."""
    torch.backends.quantized.engine = ENGINE
    parameters = list(zip(tensors["activation.scale"].tolist(), tensors["activation.zero_point"].tolist()))
    (scale, zero), outputs = parameters[0], iter(parameters[1:])
    layers = [quantized.Quantize(scale, zero, torch.quint8)]
    for layer in entry["layers"]:
        if layer["op"] == "max_pool":
            layers.append(nn.MaxPool2d(layer["kernel"], layer["stride"]))
            continue
        values, scales, steps = (tensors[f"{layer['name']}.{part}"] for part in ("weight", "weight_scale", "bias"))
        weight = quantize_weights(values, scales)
        # PyTorch takes biases as real numbers, and rounds them to the same integers again.
        bias = torch.from_numpy(steps * (np.float64(scale) * scales.astype(np.float64))).float()
        scale, zero = next(outputs)
        if layer["op"] == "conv":
            of = ConvReLU2d if layer["relu"] else quantized.Conv2d
            module = of(values.shape[1], values.shape[0], values.shape[2:], layer["stride"], layer["padding"])
        else:
            layers.append(nn.Flatten())
            module = quantized.Linear(values.shape[1], values.shape[0])
        module.set_weight_bias(weight, bias)
        module.scale, module.zero_point = scale, zero
        layers.append(module)
    return nn.Sequential(*layers, quantized.DeQuantize()).eval()


def median_of(infer, iterations):
    """The median CPU time of one inference in ms. The first inference is not timed."""
    infer()
    times = []
    for _ in range(iterations):
        began = time.process_time()
        infer()
        times.append(time.process_time() - began)
    return 1e3 * statistics.median(times)


def time_mpiburn(subject, folder, iterations):
    """The times of mpiburn's int8 and fused float models, in ms."""
    file = folder / "bench.json"
    mpiburn(subject, "bench", "int8", "--checkpoint", subject.run, "--data-root", subject.data,
            "--iterations", iterations, "--json", file)
    figures = json.loads(file.read_text())
    times = {row["model"]: row["median_ms"] for row in figures["rows"] if row["batch"] == BATCH}
    return figures["simd"], times["int8"], times["float-fused"]


def onnx_session(subject, folder):
    """The exported float model in onnxruntime, on one thread."""
    file = folder / "model.onnx"
    mpiburn(subject, "export", subject.run, "--out", file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def compare_times(subject, model, samples, options, folder):
    """The times of each row (their median and range over rounds), and the SIMD level of mpiburn."""
    batch = samples[:BATCH].contiguous()
    array, session = batch.numpy(), onnx_session(subject, folder)
    rounds = {row: [] for row in (OURS, OURS_FLOAT, PYTORCH, ONNX)}
    for _ in range(options.rounds):
        simd, int8, fused = time_mpiburn(subject, folder, options.iterations)
        rounds[OURS].append(int8)
        rounds[OURS_FLOAT].append(fused)
        rounds[PYTORCH].append(median_of(lambda: model(batch), options.iterations))
        rounds[ONNX].append(median_of(lambda: session.run(None, {"input": array}), options.iterations))
    return simd, {row: (statistics.median(times), min(times), max(times)) for row, times in rounds.items()}


def check_times(simd, times):
    """Prints the table; returns a line for each missed goal."""
    print(f"{'batch ' + str(BATCH) + ', one thread, ' + simd:<40} {'median ms':>10} {'from - to':>19} {'ratio':>7} {'goal':>6}")
    problems = []
    for row, (median, least, most) in times.items():
        ratio, goal = median / times[OURS][0], GOALS.get(row)
        if row == OURS_FLOAT and "512" not in simd:
            goal = None
        shown = f"{goal:>6g}" if goal else f"{'':>6}"
        print(f"{row:<40} {median:>10.4f} {f'{least:.4f} - {most:.4f}':>19} {ratio:>7.2f} {shown}", flush=True)
        if goal and ratio < goal:
            problems.append(f"{row}: mpiburn's int8 is {ratio:.2f} times as fast, and the goal is {goal:g}")
    return problems


def check_logits(subject, model, samples, tensors, folder):
    """Prints the differences of int8 logits; returns the problems."""
    file = folder / "logits.npy"
    mpiburn(subject, "eval", "--checkpoint", subject.run, "--data-root", subject.data, "--int8", "--logits", file)
    ours = np.load(file)
    with torch.no_grad():
        theirs = torch.cat([model(part) for part in samples[:len(ours)].split(BATCH)]).numpy()
    if theirs.shape != ours.shape:
        return [f"{len(ours)} samples of mpiburn, {len(theirs)} of PyTorch"]
    steps = np.rint(np.abs(ours - theirs) / tensors["activation.scale"][-1]).astype(int)
    counts = ", ".join(f"{(steps == n).sum()} by {n}" for n in range(1, steps.max() + 1)) or "none"
    alike = 100 * (ours.argmax(1) == theirs.argmax(1)).mean()
    print(f"int8 logits of {len(ours)} test samples: at most {steps.max()} step(s) of the output's scale apart; "
          f"of {steps.size} logits differ {counts}; {alike:.2f}% predicted alike")
    return [f"int8 logits are up to {steps.max()} steps apart, more than {APART}"] if steps.max() > APART else []


def parse_options():
    """The command line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run of the ConvNet with a static int8 model")
    parser.add_argument("data", type=Path, help="its data set")
    parser.add_argument("--mpiburn", type=Path, default=ROOT / "target/release/mpiburn", metavar="PATH",
                        help="our program (default: target/release/mpiburn)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each program (default: 5)")
    parser.add_argument("--iterations", type=int, default=100, metavar="N",
                        help="timed inferences of a turn (default: 100)")
    return parser.parse_args()


def main():
    """Returns the problems, one line each."""
    options = parse_options()
    require_programs(options.mpiburn, Path(__file__))
    torch.set_num_threads(1)
    if ENGINE not in torch.backends.quantized.supported_engines:
        raise CannotCompare(f"this PyTorch has no {ENGINE}")
    checkpoint = max(options.run.glob("checkpoints/step-*"), default=None)
    if checkpoint is None or not (checkpoint / "int8.safetensors").exists():
        raise CannotCompare(f"{options.run} has no int8 model; make one: mpiburn quantize {options.run}")
    subject = Subject(options.mpiburn.resolve(), options.run, options.data, checkpoint)
    entry, tensors = read(checkpoint / "int8.safetensors")
    if entry["network"] != "convnet":
        raise CannotCompare(f"{checkpoint} has a model of {entry['network']}; a ConvNet is needed")
    model, samples = converted(entry, tensors), load_shard("convnet", options.data, "test")[0]
    others = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="mpiburn-int8-") as folder, torch.no_grad():
        folder = Path(folder)
        simd, times = compare_times(subject, model, samples, options, folder)
        problems = check_times(simd, times) + check_logits(subject, model, samples, tensors, folder)
    if others.cores() > BUSY:
        print(f"note: other programs kept {others.cores():.1f} cores busy: timings are not representative")
    return problems


if __name__ == "__main__":
    run(main)
