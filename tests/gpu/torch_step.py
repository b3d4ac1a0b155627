"""Times a step of vgg in PyTorch on random samples (eager, f32 without TF32). Prints milliseconds, as a JSON line.

    PYTHON tests/gpu/torch_step.py --batch 256 --steps 30 [--device cpu]
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

# Imports must not leave a __pycache__ in the source tree.
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "pytorch"))

import torch
from torch.nn import functional as F

from networks import build

# The same numbers of batches as in `mpiburn bench step`.
BATCHES = 16
WARM_UP = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_step.py: this PyTorch sees no GPU; install its build for CUDA")
    device = torch.device(options.device)
    torch.manual_seed(123)
    model = build("vgg", argparse.Namespace(activation="relu", bn=False, dropout=0.0)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    images = torch.randn(BATCHES, options.batch, 3, 32, 32, device=device)
    labels = torch.randint(10, (BATCHES, options.batch), device=device)
    seconds = []
    for step in range(WARM_UP + options.steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[step % BATCHES]), labels[step % BATCHES])
        loss.backward()
        optimizer.step()
        # Reading the loss waits for the GPU. mpiburn reads the loss of every step too.
        loss.item()
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(json.dumps({"torch": torch.__version__, "gpu": name,
                      "ms_per_step": 1e3 * statistics.median(seconds[WARM_UP:])}))


main()
