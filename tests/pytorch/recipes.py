#!/usr/bin/env python3
"""Compares optimizers, schedules, penalties and label smoothing with PyTorch's.

    cargo build --release --workspace --example check_recipes
    .venv/bin/python tests/pytorch/recipes.py

mpiburn (through the example check_recipes) and PyTorch get the same weights and gradients, and make 20 updates. Exit
code 0 if they agree, 1 if they differ, 2 if they could not be compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPES = [(8, 4, 3, 3), (8,), (10, 37), (10,)]
UPDATES = 20
# The largest difference of weights after the first and the last update, relative to the root mean square of
# the tensor's weights. The precision of f32 is 6e-8, and another order of operations gives a few times as
# much.
FIRST_TOLERANCE = 1e-6
LAST_TOLERANCE = 1e-5
# The largest difference of learning rates and momenta: both programs compute schedules in f64.
RATE_TOLERANCE = 1e-12


@dataclass
class Case:
    """mpiburn's options, and the same settings in PyTorch."""

    options: str
    optimizer: type
    settings: dict
    schedule: object = None
    by_step: bool = False
    l1: float = 0.0
    l2: float = 0.0
    clip: float | None = None
    smoothing: float = 0.0
    epochs: int = 7
    steps: int = 13
    decay: float = 5e-4

    @property
    def lr(self):
        """The learning rate. It is larger for SGD, because SGD does not normalise its gradients."""
        return 0.05 if self.optimizer is SGD else 5e-4


class Lamb(torch.optim.Optimizer):
    """LAMB as in algorithm 2 of You et al. (2020), with a state of f32. PyTorch has no LAMB."""

    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": (0.9, 0.999)})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                state = self.state[weight]
                time = state["time"] = state.get("time", 0) + 1
                update = []
                for moment, beta, value in zip("mv", group["betas"], (weight.grad, weight.grad**2)):
                    state[moment] = beta * state.get(moment, torch.zeros_like(weight)) + (1 - beta) * value
                    update.append(state[moment] / (1 - beta**time))
                update = update[0] / (update[1].sqrt() + 1e-6) + group["weight_decay"] * weight
                norms = weight.norm(), update.norm()
                ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
                weight -= group["lr"] * ratio * update


def one_cycle(case):
    """Makes PyTorch's OneCycleLR over all steps of the case's training."""
    return lambda optimizer: OneCycleLR(optimizer, max_lr=0.02, total_steps=case.epochs * case.steps)


CASES = [
    Case("--optimizer adam", Adam, {}),
    Case("--optimizer adamw", AdamW, {}, decay=0.05),
    Case("--optimizer lamb", Lamb, {}, decay=0.05),
    Case("--optimizer sgd", SGD, {}),
    Case("--optimizer sgd --momentum 0.9", SGD, {"momentum": 0.9}),
    Case("--optimizer rmsprop", RMSprop, {}),
    Case("--optimizer rmsprop --momentum 0.9", RMSprop, {"momentum": 0.9}),
    Case("--clip-norm 0.5", Adam, {}, clip=0.5),
    Case("--optimizer sgd --clip-norm 0.5", SGD, {}, clip=0.5),
    Case("--optimizer sgd --clip-norm 1e6", SGD, {}, clip=1e6),
    Case("--optimizer sgd --l1 0.01", SGD, {}, l1=0.01),
    Case("--optimizer sgd --l2 0.01", SGD, {}, l2=0.01),
    Case("--l1 0.01 --l2 0.02 --clip-norm 2", Adam, {}, l1=0.01, l2=0.02, clip=2.0),
    Case("--label-smoothing 0.1", Adam, {}, smoothing=0.1),
    Case("--schedule step --step-size 3 --gamma 0.5", Adam, {}, lambda o: StepLR(o, 3, 0.5), steps=3),
    Case("--schedule step --optimizer sgd", SGD, {}, lambda o: StepLR(o, 2), steps=3),
    Case("--schedule cosine", Adam, {}, lambda o: CosineAnnealingLR(o, 7), steps=3),
    *(
        Case(f"--schedule onecycle --max-lr 0.02 --optimizer {optimizer.__name__.lower()}", optimizer, {}, one_cycle,
             by_step=True, epochs=epochs, steps=steps)
        for optimizer, epochs, steps in [
            (Adam, 7, 13), (AdamW, 2, 10), (SGD, 3, 7), (RMSprop, 15, 20), (Adam, 1, 23), (SGD, 40, 157),
        ]
    ),
]


def make_inputs():
    """The weights, the gradients of each update and the class scores, drawn from a fixed seed."""
    torch.manual_seed(1)
    inputs = {f"weight.{at}": torch.randn(shape) for at, shape in enumerate(SHAPES)}
    for update in range(UPDATES):
        # The gradients within one parameter differ by orders of magnitude, as in a training.
        for at, shape in enumerate(SHAPES):
            inputs[f"gradient.{update}.{at}"] = torch.randn(shape) * 10 ** (torch.rand(shape) * 4 - 4)
    inputs["scores"] = torch.randn(33, 10) * 5
    return inputs


def update_by_pytorch(case, inputs):
    """PyTorch's results, with the names that check_recipes prints."""
    weights = [inputs[f"weight.{at}"].clone().requires_grad_() for at in range(len(SHAPES))]
    optimizer = case.optimizer(weights, lr=case.lr, weight_decay=case.decay, **case.settings)
    schedule = case.schedule
    if schedule is one_cycle:
        schedule = one_cycle(case)
    schedule = schedule and schedule(optimizer)
    states, rates = [], []
    for step in range(case.epochs * case.steps):
        group = optimizer.param_groups[0]
        rates.append((group["lr"], group["betas"][0] if "betas" in group else group["momentum"]))
        if step < UPDATES:
            optimizer.zero_grad()
            if case.l1 or case.l2:
                sum(case.l1 * w.abs().sum() + case.l2 * w.square().sum() for w in weights).backward()
            for at, weight in enumerate(weights):
                gradient = inputs[f"gradient.{step}.{at}"]
                weight.grad = gradient.clone() if weight.grad is None else weight.grad + gradient
            if case.clip:
                torch.nn.utils.clip_grad_norm_(weights, case.clip)
            optimizer.step()
            states.append([weight.detach().clone() for weight in weights])
        else:
            # PyTorch's schedules warn if the optimizer has not made a step before them.
            optimizer.zero_grad()
            optimizer.step()
        if schedule and (case.by_step or (step + 1) % case.steps == 0) and step + 1 < case.epochs * case.steps:
            schedule.step()
    scores = inputs["scores"].clone().requires_grad_()
    labels = torch.arange(len(scores)) % scores.shape[1]
    loss = torch.nn.CrossEntropyLoss(label_smoothing=case.smoothing)(scores, labels)
    loss.backward()
    return {"first": states[0], "last": states[-1], "rates": rates, "loss": loss.item(), "gradient": scores.grad}


def update_by_mpiburn(program, case, file):
    """The results of check_recipes."""
    command = [program, file, str(case.steps), *case.options.split(), "--epochs", str(case.epochs),
               "--lr", str(case.lr), "--weight-decay", str(case.decay)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"recipes.py: {' '.join(map(str, command))}: {done.stderr.strip()}", file=sys.stderr)
        sys.exit(2)
    return json.loads(done.stdout)


def relative(ours, theirs):
    """The largest difference, relative to the root mean square of PyTorch's values."""
    ours = torch.tensor(ours, dtype=torch.float64)
    theirs = theirs.detach().double().flatten()
    return ((ours - theirs).abs().max() / theirs.square().mean().sqrt()).item()


def compare(case, ours, theirs):
    """A list of differences, each with its name and its tolerance."""
    def weights(when):
        return max(relative(mine, yours) for mine, yours in zip(ours[when], theirs[when], strict=True))
    pairs = [(a, b) for mine, yours in zip(ours["rates"], theirs["rates"], strict=True) for a, b in zip(mine, yours, strict=True)]
    rates = max(abs(a - b) / max(abs(b), 1e-300) if a != b else 0.0 for a, b in pairs)
    return [
        ("1 update", weights("first"), FIRST_TOLERANCE),
        (f"{UPDATES} updates", weights("last"), LAST_TOLERANCE),
        (f"{len(pairs) // 2} rates", rates, RATE_TOLERANCE),
        ("loss", abs(ours["loss"] - theirs["loss"]) / theirs["loss"], FIRST_TOLERANCE),
        ("its gradient", relative(ours["gradient"], theirs["gradient"]), FIRST_TOLERANCE),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/examples/check_recipes", metavar="PATH",
                        help="our program (default: target/release/examples/check_recipes)")
    program = parser.parse_args().program
    if not program.is_file():
        print(f"recipes.py: no program {program}; build it: cargo build --release --workspace --example check_recipes", file=sys.stderr)
        return 2
    inputs = make_inputs()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="mpiburn-recipes-") as folder:
        file = Path(folder) / "inputs.safetensors"
        save_file(inputs, file)
        for case in CASES:
            found = compare(case, update_by_mpiburn(program, case, file), update_by_pytorch(case, inputs))
            # Written so that NaN fails too.
            far = [name for name, difference, most in found if not difference <= most]
            wrong += len(far)
            print(f"{case.options}: " + ", ".join(f"{name} {difference:.1e}" for name, difference, _ in found)
                  + (f"  TOO LARGE: {', '.join(far)}" if far else ""))
    print("equal to PyTorch's" if not wrong else f"{wrong} differences are too large")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
