"""Checks exported ONNX files: onnx's checker must accept them, and onnxruntime must predict as mpiburn does.

    .venv/bin/python tests/pytorch/onnx_check.py results/try data/digits

Exports the run's float network, and its int8 model if it has one. Compares onnxruntime's scores of the test set
with the scores of `mpiburn eval --logits`.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from samples import load_shard

ROOT = Path(__file__).resolve().parents[2]
# The largest difference of two float logits, and the smallest share of equal predictions.
CLOSE, ALIKE = 1e-4, 0.999
BATCH = 128


def scores(file, samples):
    """onnxruntime's scores of all samples. The first batch has one sample, the others BATCH."""
    options = onnxruntime.SessionOptions()
    # By default, on processors without VNNI, sums of two products would saturate at 16 bits.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    parts = [samples[:1], *(samples[start : start + BATCH] for start in range(1, len(samples), BATCH))]
    return np.concatenate([session.run(None, {"input": part})[0] for part in parts])


def check(binary, run, data, folder, int8):
    """Exports and compares one of the two models; returns True if the scores agree."""
    kind = ["--int8"] if int8 else []
    file, logits = folder / "model.onnx", folder / "logits.npy"
    subprocess.run([binary, "export", run, "--out", file, *kind], check=True, stdout=subprocess.DEVNULL)
    model = onnx.load(file)
    onnx.checker.check_model(model, full_check=True)
    evaluation = [binary, "-q", "eval", "--checkpoint", run, "--data-root", data, "--logits", logits, *kind]
    subprocess.run(evaluation, check=True, stdout=subprocess.DEVNULL)
    expected = np.load(logits)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    samples = load_shard(model.graph.name, data, "test")[0].numpy().reshape(-1, *shape)[: len(expected)]
    found = scores(file, samples)
    alike = (found.argmax(1) == expected.argmax(1)).mean()
    apart = np.abs(found - expected).max()
    unit = ""
    if int8:
        constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        steps = apart / constants[model.graph.node[-1].input[1]]
        unit = f" ({steps:.0f} steps of the output's scale)"
    good = alike >= ALIKE and (int8 or apart <= CLOSE)
    print(
        f"{'int8' if int8 else 'float':5}  opset {model.opset_import[0].version}, IR version {model.ir_version}: "
        f"{len(found)} samples, {100 * alike:.2f}% predicted alike, logits at most {apart:.2e} apart{unit}"
        f"{'' if good else '  FAILED'}"
    )
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run directory")
    parser.add_argument("data", help="its data set")
    parser.add_argument("--binary", default=ROOT / "target/release/mpiburn")
    arguments = parser.parse_args()
    models = [False, *(True for _ in list(Path(arguments.run).glob("checkpoints/*/int8.safetensors"))[:1])]
    with tempfile.TemporaryDirectory() as folder:
        good = [check(arguments.binary, arguments.run, arguments.data, Path(folder), int8) for int8 in models]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
