"""Compares the pixels that `mpiburn data import` makes with Pillow's: formats, modes, orientations and sizes.

  .venv/bin/python tests/pytorch/pictures.py [BINARY]

The pixels must be equal, except in two cases: JPEG decoders differ, and scaled pixels may differ by 1.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HEIGHT, WIDTH = 33, 44
BINARY = sys.argv[1] if len(sys.argv) > 1 else "target/release/mpiburn"


def picture(number, mode="RGB", size=(WIDTH, HEIGHT)):
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).convert(mode)


def write(folder):
    cases = [(mode, "png", {}) for mode in ["L", "LA", "P", "RGB", "RGBA", "1"]]
    cases += [("RGB", "bmp", {}), ("L", "bmp", {}), ("RGB", "webp", {"lossless": True}), ("RGB", "ppm", {})]
    cases += [(mode, "tif", {}) for mode in ["L", "RGB", "CMYK"]] + [("RGB", "gif", {})]
    cases += [(mode, "jpg", {"quality": 95}) for mode in ["L", "RGB", "CMYK"]]
    folder.mkdir(parents=True)
    for number, (mode, ending, options) in enumerate(cases):
        picture(number, mode).save(folder / f"{number:02}-{mode}.{ending}", **options)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        size = (WIDTH, HEIGHT) if orientation < 5 else (HEIGHT, WIDTH)
        picture(orientation, size=size).save(folder / f"turned-{orientation}.png", exif=exif)


def as_rgb(path):
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def fitted(image, fit, height, width):
    if fit == "stretch":
        return image.resize((width, height), Image.BILINEAR)
    scale = max(height / image.height, width / image.width)
    scaled = image.resize((int(image.width * scale + 1e-9), int(image.height * scale + 1e-9)), Image.BILINEAR)
    left, top = round((scaled.width - width) / 2), round((scaled.height - height) / 2)
    return scaled.crop((left, top, left + width, top + height))


def compare(work, name, options, expected, tolerance):
    out = work / name
    subprocess.run([BINARY, "-q", "data", "import", work / "pictures", "--out", out, "--rgb", *options], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    known, worst = json.loads((out / "dataset.json").read_text()), 0
    for split in ["train", "test"]:
        images = np.load(out / f"{split}-images.npy").astype(int)
        assert len(images) == len(known[split]["from"]) > 0
        for pixels, source in zip(images, known[split]["from"]):
            found = np.asarray(expected(as_rgb(work / "pictures" / source))).transpose(2, 0, 1)
            apart = np.abs(pixels - found).max()
            is_jpeg = source.endswith(".jpg")
            worst = max(worst, 0 if is_jpeg else apart)
            if apart > (48 if is_jpeg else tolerance):
                sys.exit(f"{name}: {source} differs from Pillow by {apart}")
    print(f"{name}: {sum(known[split]['samples'] for split in ['train', 'test'])} pictures, at most {worst} apart")


with tempfile.TemporaryDirectory() as work:
    work = Path(work)
    write(work / "pictures" / "all")
    compare(work, "as they are", [], lambda image: image, 0)
    for fit in ["crop", "stretch"]:
        for height, width in [(20, 20), (17, 40), (64, 31)]:
            compare(work, f"{fit} {height}x{width}", ["--size", f"{height}x{width}", "--fit", fit],
                    lambda image: fitted(image, fit, height, width), 1)
