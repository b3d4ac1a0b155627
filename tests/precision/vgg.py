#!/usr/bin/env python3
"""Trains vgg in each precision from several seeds, and compares the mean test accuracies with f32's mean.

    tests/precision/vgg.py [--seeds 3] [--samples 10000] [--epochs 2] [--data-objects DIR]

Without --data-objects, the data set is `data/digits` (made by `make data`), converted to colour images: 28x28 pixels in
the middle of 32x32, the same in all three channels. On objects or CIFAR-10, runs of the same precision that differ only
in the seed differ by more than the half point that is allowed here.

Exit code 0 if each mean is within half a point of f32's mean, 1 if not, or if accuracies are too low to compare.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRECISIONS = ("no", "bf16", "fp16")
ALLOWED = 0.5  # points of mean test accuracy
LEAST = 60  # percent; two untrained networks could agree by chance
RANKS = 2
SIDE = 28
MARGIN = 2


def content(folder, name):
    """The values of an IDX file after its header, which has 16 bytes, or 8 bytes for labels."""
    plain = folder / name
    data = plain.read_bytes() if plain.exists() else gzip.decompress(plain.with_name(name + ".gz").read_bytes())
    return data[8 if "labels" in name else 16 :]


def colour_batches(digits, out):
    """Writes the digits in CIFAR-10's format: five files of training samples, and one of test samples."""
    out.mkdir()
    (out / "batches.meta.txt").write_text("".join(f"{digit}\n" for digit in range(10)), encoding="utf-8")
    blank = bytes(MARGIN * (SIDE + 2 * MARGIN))
    side = bytes(MARGIN)

    def record(label, image):
        lines = b"".join(side + image[at : at + SIDE] + side for at in range(0, SIDE * SIDE, SIDE))
        return bytes([label]) + 3 * (blank + lines + blank)

    for part, names in (("train", [f"data_batch_{number}.bin" for number in range(1, 6)]), ("t10k", ["test_batch.bin"])):
        labels = content(digits, f"{part}-labels-idx1-ubyte")
        images = content(digits, f"{part}-images-idx3-ubyte")
        share = len(labels) // len(names)
        for number, name in enumerate(names):
            which = range(number * share, (number + 1) * share)
            size = SIDE * SIDE
            (out / name).write_bytes(b"".join(record(labels[i], images[i * size : (i + 1) * size]) for i in which))


def accuracy(options, data, precision, seed, out):
    """Trains once; returns the test accuracy in percent."""
    train = [options.binary, "-q", "train", "--model", "vgg", "--data-root", data, "--precision", precision]
    train += ["--seed", seed, "--train-samples", options.samples, "--epochs", options.epochs, "--shuffle"]
    train += ["--lr", "5e-4", "--weight-decay", "0", "--out", out]
    launch = ["mpirun", "-n", RANKS, "--bind-to", "core"]
    done = subprocess.run([str(word) for word in launch + train], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        # mpirun's own lines add nothing.
        lines = [line for line in done.stderr.splitlines() if line.startswith(("mpiburn: ", "error: "))]
        done.stderr = "\n".join(lines) or done.stderr
        raise SystemExit(f"vgg.py: exit code {done.returncode} of {precision}, seed {seed}:\n{done.stderr}")
    return json.loads((out / "run.json").read_text(encoding="utf-8"))["test_accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds of each precision (default: 3)")
    parser.add_argument("--samples", type=int, default=10000, metavar="N", help="training samples (default: 10000)")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="epochs (default: 2)")
    parser.add_argument("--data-objects", type=Path, metavar="DIR", help="CIFAR-10, or objects")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/mpiburn", metavar="FILE")
    options = parser.parse_args()
    if min(options.seeds, options.samples, options.epochs) < 1:
        parser.error("--seeds, --samples and --epochs must be positive")
    if not options.binary.is_file():
        parser.error(f"no program at {options.binary}: run `make build`")
    if options.data_objects and not options.data_objects.is_dir():
        parser.error(f"there is no folder {options.data_objects}")
    means = {}
    with tempfile.TemporaryDirectory(prefix="mpiburn-precision-") as folder:
        folder = Path(folder)
        data = options.data_objects
        if data is None:
            digits = ROOT / "data/digits"
            if not digits.is_dir():
                parser.error(f"there is no {digits}: run `make data`, or choose --data-objects")
            data = folder / "digits"
            colour_batches(digits, data)
        seeds = range(123, 123 + options.seeds)
        print(f"| precision | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | from `no` |")
        print(f"| --- | {'---: | ' * (options.seeds + 2)}".rstrip(), flush=True)
        for precision in PRECISIONS:
            found = [accuracy(options, data, precision, seed, folder / f"{precision}-{seed}") for seed in seeds]
            means[precision] = statistics.mean(found)
            far = means[precision] - means["no"]
            cells = [f"`{precision}`", *(f"{one:.2f}" for one in found), f"{means[precision]:.2f}", f"{far:+.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
    if means["no"] < LEAST:
        print("the accuracy is too low to compare: train on more samples, or for more epochs")
        return 1
    return 0 if all(abs(mean - means["no"]) <= ALLOWED for mean in means.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
