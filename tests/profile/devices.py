"""Checks `mpiburn profile` on other compute devices than flex: devices.py BINARY RUN DEVICE...

BINARY is a build with these devices, and RUN is a run directory of a convnet. For each device, the profiles of inference
and training of each network must have a row for each layer, and the rows' times must sum to the wall time. Prints the
share of the wall time that is in operators.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = int((Path(__file__).parents[1] / "limit_s").read_text())
# For each network: batches, and samples of a batch. vgg is left out on ndarray, where it trains 14 s on a
# batch of one image.
MODELS = {"convnet": (5, 32), "mlp": (5, 128), "vgg": (2, 8)}
ON_NDARRAY = {"convnet": (5, 32), "mlp": (5, 128)}
LAYERS = {"convnet": ["conv1", "conv2", "linear"], "mlp": ["layer1 linear", "relu", "layer2 linear"],
          "vgg": ["block1.0", "block2.0", "block3.2", "block4.4"]}
MPIRUN = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-n", "1"]
problems = []


def profile(binary, device, options):
    """Runs a profile; returns the content of its JSON file, and the number of rows of its CSV file."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: f"{folder}/profile.{name}" for name in ("json", "csv")}
        command = [*MPIRUN, binary, "profile", "--device", device, *options]
        for name, path in files.items():
            command += [f"--{name}", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        with open(files["json"]) as json_file, open(files["csv"], newline="") as csv_file:
            return json.load(json_file), len(list(csv.DictReader(csv_file)))


def check(what, found, rows, layers, train):
    """Appends what is wrong with a profile to `problems`."""
    def expect(condition, problem):
        if not condition:
            problems.append(f"{what}: {problem}")

    operators = found["operators"]
    total = sum(row["self_cpu_ms"] for row in operators)
    expect(found["wall_ms"] > 0, "no time")
    expect(abs(total - found["wall_ms"]) <= 1e-6 * found["wall_ms"], f"{total} ms of {found['wall_ms']}")
    expect(0 < found["accounted_percent"] <= 100, f"{found['accounted_percent']:.1f}% in operators")
    expect(rows == len(operators), f"{rows} rows in the CSV file, {len(operators)} in JSON")
    names = {phase: [row["name"] for row in operators if row["phase"] == phase] for phase in ("forward", "backward")}
    for layer in layers:
        expect(any(layer in name for name in names["forward"]), f"no forward of {layer}: {names['forward']}")
    if train:
        # An operator before the first weights has no gradient to compute.
        missing = set(names["forward"]) - set(names["backward"]) - {"flatten"}
        expect(not missing, f"no backward of {sorted(missing)}")
        expect("optimizer" in [row["phase"] for row in operators], "no optimizer")
    else:
        expect(not names["backward"], f"a backward in inference: {names['backward']}")
    expect(all(row["calls"] == found["batches"] for row in operators if row["phase"] in names), "calls")
    print(f"{what}: {len(operators)} rows, {found['accounted_percent']:.1f}% in operators, "
          f"{found['wall_ms'] / found['batches']:.3f} ms a batch")


def main(binary, run, devices):
    for device in devices:
        models = ON_NDARRAY if device == "ndarray" else MODELS
        for train in ([], ["--train"]):
            for model, (batches, batch) in models.items():
                options = ["--model", model, "--batches", str(batches), "--batch", str(batch), *train]
                found, rows = profile(binary, device, options)
                check(f"{device} {' '.join(options)}", found, rows, LAYERS[model], bool(train))
            options = ["--checkpoint", run, "--batches", str(models["convnet"][0]), *train]
            found, rows = profile(binary, device, options)
            check(f"{device} --checkpoint RUN {' '.join(train)}", found, rows, LAYERS["convnet"], bool(train))
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
