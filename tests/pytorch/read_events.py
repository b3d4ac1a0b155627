"""Checks a run's event files with TensorBoard's own reader: read_events.py DIR

DIR is the `tensorboard` folder of a run. Each folder in it must have the four curves of a training, with finite
values at increasing steps.
"""

import math
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

CURVES = {"train/loss", "train/accuracy", "test/loss", "test/accuracy"}


def check(folder: Path) -> None:
    events = EventAccumulator(str(folder))
    events.Reload()
    found = set(events.Tags()["scalars"])
    assert found >= CURVES, f"{folder}: {CURVES - found} are missing"
    for curve in sorted(CURVES):
        points = events.Scalars(curve)
        steps = [point.step for point in points]
        assert points and steps == sorted(set(steps)), f"{folder}: steps {steps} of {curve}"
        assert all(math.isfinite(point.value) for point in points), f"{folder}: {curve}"
    accuracy = events.Scalars("test/accuracy")[-1].value
    print(f"{folder.name}: test accuracy {accuracy:.2f}%")


def main() -> None:
    folders = sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir())
    assert folders, f"{sys.argv[1]}: no event files"
    for folder in folders:
        check(folder)


if __name__ == "__main__":
    main()
