"""Finds the fastest peer of a row: each peer trains a few steps, and its losses must be mpiburn's."""

from dataclasses import dataclass

from correct import compare_losses, mean_losses
from programs import train_mpiburn, train_pytorch

# The number of losses that are compared. All programs start from the same weights. A wrong gradient or a
# wrong constant of Adam changes the losses from the second step on.
LOSS_STEPS = 20
# Tolerances of the losses. Programs sum f32 in different orders, over thousands of products in vgg, and
# Adam's first steps have the same size for the smallest gradients. bf16 has 8 bits of precision, and each
# program rounds different sums to it.
LOSS_TOLERANCE = {"convnet": 1e-4, "mlp": 1e-4, "vgg": 2e-3}
BF16_TOLERANCE = 3e-2


@dataclass
class Trial:
    """A peer's time in the row's unit, and the largest difference of its losses from mpiburn's; None if not
    compared."""

    peer: object
    time: float
    loss_difference: float | None


def choose_peer(row, measuring):
    """Returns the trials of a row, fastest first, and the problems."""
    candidates = measuring.peers(row)
    if measuring.custom:
        # A program of --peer has no ways to choose from.
        return [Trial(candidates[0], 0.0, None)], []
    samples = row.trial_steps * row.batch * row.ranks
    data = measuring.programs.data if row.model == "convnet" else measuring.noise_files(row, row.trial_steps)
    programs = measuring.programs.on(data)
    training = (row.ranks, 1, row.batch, samples, "--model", row.model, *row.options)
    steps = min(LOSS_STEPS, row.trial_steps)
    initial = measuring.folder / f"{row.name}.safetensors"
    save_initial(programs, row, initial)
    run = measuring.folder / f"trial-{row.name}"
    train_mpiburn(programs, run, *training, "--init", initial, "--log-every", 1, "--backend", row.backend)
    ours = mean_losses(run, row.ranks, steps)

    tolerance = LOSS_TOLERANCE[row.model] if row.precision == "no" else BF16_TOLERANCE
    trials, problems = [], []
    for peer in candidates:
        result, _ = train_pytorch(programs, *training, "--init", initial, "--loss-steps", steps, peer=peer)
        theirs = result["losses"]
        _, wrong = compare_losses(theirs, ours, tolerance)
        problems += [f"{row.name}, {peer.name}: {problem}" for problem in wrong]
        # For the row of whole programs, an epoch's time is not enough: starting, testing and ending count
        # too.
        time = measuring.peer(row, peer).time if row.kind == "program" else result["ms_per_step"]
        trials.append(Trial(peer, time, max((abs(a - b) for a, b in zip(theirs, ours)), default=0.0)))
    return sorted(trials, key=lambda trial: trial.time), problems


def save_initial(programs, row, file):
    """Writes the network's initial weights, from which all programs start."""
    import torch
    from safetensors.torch import save_file

    from networks import PLAIN, build

    torch.manual_seed(123)
    save_file(build(row.model, PLAIN).state_dict(), file)


def describe(row, trials):
    """One line about the trials of a row."""
    if trials[0].loss_difference is None:
        return f"{row.name}: {trials[0].peer.name}, without a comparison of losses"
    times = ", ".join(f"{trial.peer.name} {trial.time:.3f}" for trial in trials)
    difference = max(trial.loss_difference for trial in trials)
    return f"{row.name}: {times} {row.unit}; losses within {difference:.1e} of mpiburn's"
