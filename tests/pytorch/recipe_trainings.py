"""Compares mpiburn's trainings with loops in PyTorch, for several recipes (optimizer, schedule, penalties): the losses
of all steps, and the weights."""

from dataclasses import dataclass

from programs import plural, train_mpiburn

STEPS = 100
# The number of samples in a step on all ranks together. It is rounded to a multiple of the ranks.
BATCH = 32
# Both programs differ only in the order of summation, by a few 1e-6. In a few of these trainings, rounding
# decides which value a max pooling takes, or the sign of a value; the weights then diverge slightly.
# recipes.py compares single updates to the last digits.
LOSS_TOLERANCE = 1e-3
WEIGHT_TOLERANCE = 1e-2


@dataclass
class Training:
    """mpiburn's options, and the same settings in PyTorch."""

    options: str
    optimizer: str
    settings: dict
    max_lr: float | None = None
    clip: float | None = None
    l1: float = 0.0
    l2: float = 0.0
    smoothing: float = 0.0


TRAININGS = [
    Training("--optimizer sgd --schedule onecycle --max-lr 0.1 --clip-norm 1 --weight-decay 0",
             "SGD", {"lr": 0.1, "momentum": 0.9}, max_lr=0.1, clip=1.0),
    Training("--optimizer adamw --schedule onecycle --max-lr 2e-3 --weight-decay 0.05 --label-smoothing 0.1",
             "AdamW", {"lr": 2e-3, "weight_decay": 0.05}, max_lr=2e-3, smoothing=0.1),
    Training("--optimizer rmsprop --momentum 0.5 --weight-decay 0 --l1 1e-3 --l2 1e-3",
             "RMSprop", {"lr": 5e-4, "momentum": 0.5}, l1=1e-3, l2=1e-3),
]


def train_by_pytorch(training, network, images, labels, size):
    """Trains `network` for an epoch in file order; returns the loss of each step."""
    import torch

    optimizer = getattr(torch.optim, training.optimizer)(network.parameters(), **training.settings)
    schedule = training.max_lr and torch.optim.lr_scheduler.OneCycleLR(optimizer, training.max_lr, total_steps=STEPS)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=training.smoothing)
    losses = []
    for batch, targets in zip(images.split(size), labels.split(size), strict=True):
        optimizer.zero_grad()
        loss = criterion(network(batch), targets)
        losses.append(loss.item())
        for weights in network.parameters():
            loss = loss + training.l1 * weights.abs().sum() + training.l2 * weights.square().sum()
        loss.backward()
        if training.clip:
            torch.nn.utils.clip_grad_norm_(network.parameters(), training.clip)
        optimizer.step()
        if schedule:
            schedule.step()
    return losses


def compare_trainings(programs, ranks, folder, mean_losses, last_checkpoint):
    """Trains with both programs on `ranks` ranks; returns the problems, one line each."""
    import torch
    from networks import PLAIN, convnet
    from safetensors.torch import load_file, save_file
    from samples import load_shard

    own = max(1, BATCH // ranks)
    samples = STEPS * own * ranks
    images, labels = load_shard("convnet", programs.data, "train", limit=samples)
    problems = []
    for at, training in enumerate(TRAININGS):
        torch.manual_seed(123)
        network = convnet(PLAIN)
        initial, run = folder / "recipe.safetensors", folder / f"recipe-{ranks}-{at}"
        save_file(network.state_dict(), initial)
        theirs = train_by_pytorch(training, network, images, labels, own * ranks)
        train_mpiburn(programs, run, ranks, 1, own, samples, "--init", initial, "--log-every", 1,
                      *training.options.split())
        ours = mean_losses(run, ranks, STEPS)
        losses = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
        trained = load_file(last_checkpoint(run))
        weights = max((trained[name] - values).abs().max().item() for name, values in network.state_dict().items())
        report = (f"{ranks} rank{plural(ranks)}, {training.options}: largest difference of losses {losses:.1e}, "
                  f"of weights after {STEPS} steps {weights:.1e}")
        print(report, flush=True)
        # Written so that NaN fails too.
        if not (losses <= LOSS_TOLERANCE and weights <= WEIGHT_TOLERANCE):
            problems.append(f"{report}, more than {LOSS_TOLERANCE:g} and {WEIGHT_TOLERANCE:g}")
    return problems
