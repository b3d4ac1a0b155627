"""Functions that compare losses, accuracy and checkpoints of mpiburn and PyTorch."""

import statistics
import tempfile
from pathlib import Path

from programs import CannotCompare, plural, train_mpiburn, train_pytorch
from recipe_trainings import compare_trainings

# Both programs compute in f32, and differ only in the order of summation, by less than 1e-6 in 100 steps. A
# wrong gradient, or a wrong epsilon in Adam, changes the losses by more than LOSS_TOLERANCE from the first
# steps on.
LOSS_STEPS = 100
LOSS_TOLERANCE = 1e-4
# The largest difference of test accuracies, in points, after separate trainings. The weights then differ in
# the last digits, and some images near a decision boundary change class.
TRAINED_TOLERANCE = 0.3
# The same if both programs test the same weights: two images of 10,000.
SAME_WEIGHTS_TOLERANCE = 0.02


def mean_losses(run, ranks, steps):
    """The losses of the run's first steps, read from rank<k>/train.loss; each is the mean over ranks."""
    curves = []
    for rank in range(ranks):
        lines = (run / f"rank{rank}" / "train.loss").read_text().splitlines()[:steps]
        curve = [line.split() for line in lines]
        if [int(step) for step, _ in curve] != list(range(1, len(curve) + 1)):
            raise CannotCompare(f"rank{rank}/train.loss does not have every step's loss")
        curves.append([float(loss) for _, loss in curve])
    return [statistics.fmean(losses) for losses in zip(*curves, strict=True)]


def accuracy_in_pytorch(checkpoint, data):
    """Loads mpiburn's weights by name into PyTorch's network; returns the test accuracy."""
    from safetensors.torch import load_file

    from networks import PLAIN, build
    from samples import load_shard
    from train_ddp import evaluate

    network = build("convnet", PLAIN)
    network.load_state_dict(load_file(checkpoint), strict=True)
    return evaluate(network, load_shard("convnet", data, "test"), 128).over_ranks()[1]


def last_checkpoint(run):
    """The file of the weights at the end of the run. Folders are named by step, with leading zeros."""
    return sorted(run.glob("checkpoints/step-*/model.safetensors"))[-1]


def compare_losses(theirs, ours, tolerance=LOSS_TOLERANCE):
    """Compares losses; returns a report and the problems."""
    if not ours or len(ours) != len(theirs):
        report = f"PyTorch reports {len(theirs)} losses to compare, and mpiburn {len(ours)}"
        return report, [f"{report}; are there too few samples for two steps?"]
    differences = [abs(a - b) for a, b in zip(theirs, ours)]
    largest = max(differences)
    at = differences.index(largest)
    report = f"losses of the first {len(ours)} steps: largest difference {largest:.1e}, at step {at + 1}"
    if largest <= tolerance:
        return report, []
    first = next(step for step, difference in enumerate(differences) if difference > tolerance)
    return report, [f"losses differ by more than {tolerance:g} from step {first + 1} on "
                    f"(PyTorch {theirs[first]:.6f}, mpiburn {ours[first]:.6f})"]


def compare_accuracy(what, theirs, ours, tolerance):
    """Compares two test accuracies in percent; returns a report and the problems."""
    report = f"test accuracy {what}: PyTorch {theirs:.2f}%, mpiburn {ours:.2f}%"
    # 1e-9 allows for rounding if the difference equals the tolerance.
    wrong = abs(theirs - ours) > tolerance + 1e-9
    return report, [f"{report}, more than {tolerance:g} points apart"] if wrong else []


def check_ranks(ranks, programs, options, folder):
    """Trains with both programs from the same weights; returns the problems, one line each."""
    initial, run = folder / f"init-{ranks}.safetensors", folder / f"run-{ranks}"
    where = f"{ranks} rank{plural(ranks)}"
    training = (ranks, options.epochs, options.batch, options.samples)
    if options.first_losses:
        training = (ranks, 1, options.batch, LOSS_STEPS * options.batch * ranks)
    theirs, _ = train_pytorch(programs, *training, "--save-init", initial, "--loss-steps", LOSS_STEPS)
    ours, _ = train_mpiburn(programs, run, *training, "--init", initial, "--log-every", 1)
    if options.first_losses:
        report, problems = compare_losses(theirs["losses"], mean_losses(run, ranks, LOSS_STEPS))
        print(f"{where}: {report}", flush=True)
        return [f"{where}: {problem}" for problem in problems]
    # The last step of each epoch is omitted. If the samples do not divide evenly by the ranks, PyTorch
    # repeats some samples in this step, and mpiburn does not.
    steps = min(LOSS_STEPS, theirs["steps"] // options.epochs - 1)
    checks = [
        compare_losses(theirs["losses"][:steps], mean_losses(run, ranks, steps)),
        compare_accuracy(f"after {options.epochs} epoch{plural(options.epochs)}", theirs["test_acc"], ours["test_accuracy"], TRAINED_TOLERANCE),
    ]
    try:
        reloaded = accuracy_in_pytorch(last_checkpoint(run), programs.data)
        checks.append(compare_accuracy("of mpiburn's checkpoint", reloaded, ours["test_accuracy"], SAME_WEIGHTS_TOLERANCE))
    except RuntimeError as error:
        checks.append(("no test accuracy of mpiburn's checkpoint",
                       [f"PyTorch cannot load mpiburn's checkpoint: {' '.join(str(error).split())}"]))
    print("\n".join(f"{where}: {report}" for report, _ in checks), flush=True)
    return [f"{where}: {problem}" for _, problems in checks for problem in problems]


def compare_results(programs, options):
    """Compares the results for each number of ranks; returns the problems, one line each."""
    problems = []
    with tempfile.TemporaryDirectory(prefix="mpiburn-compare-") as folder:
        for ranks in options.ranks:
            problems += check_ranks(ranks, programs, options, Path(folder))
            if not options.first_losses:
                problems += compare_trainings(programs, ranks, Path(folder), mean_losses, last_checkpoint)
    if not problems:
        print("mpiburn and PyTorch agree")
    return problems
