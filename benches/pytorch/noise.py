"""Writes random samples as the files of a data set, for PyTorch programs that cannot generate random batches."""

import numpy as np

# Samples of the test set. Tests are not timed.
TEST_SAMPLES = 32


def write_noise(folder, model, samples):
    """Creates `folder` with `samples` training samples: CIFAR-10's binary files for vgg, .npy files for mlp."""
    random = np.random.default_rng(1)
    folder.mkdir(parents=True)
    if model == "vgg":
        # A sample is a label and 3 x 32 x 32 bytes; the samples are in five files.
        records = random.integers(0, 256, (samples + TEST_SAMPLES, 1 + 3 * 32 * 32), dtype=np.uint8)
        records[:, 0] %= 10
        for number, part in enumerate(np.array_split(records[:samples], 5), 1):
            part.tofile(folder / f"data_batch_{number}.bin")
        records[samples:].tofile(folder / "test_batch.bin")
        return
    for split, count in (("train", samples), ("test", TEST_SAMPLES)):
        (folder / f"{split}_data").mkdir()
        np.save(folder / f"{split}_data" / f"{split}_x.npy", random.standard_normal((count, 512), dtype=np.float32))
        np.save(folder / f"{split}_data" / f"{split}_y.npy", random.integers(0, 20, count))
