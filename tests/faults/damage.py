"""Faults of files: a run directory is damaged, and then read again by `eval` and `train --resume`."""

import json
import shutil

from check import Verdict, check_damaged

VALUES = [0, -1, 1, 2**63, 0.5, 1e308, None, True, "", "x", [], {}]


def leaves(value, path=()):
    """The paths of all values in a JSON document that are neither lists nor objects."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        if isinstance(inner, (dict, list)) and inner:
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key)


def flip(rng, _folder, file):
    content = bytearray(file.read_bytes())
    if not content:
        return None
    at = rng.randrange(len(content))
    bit = rng.randrange(8)
    content[at] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {at} flipped"


def cut(rng, _folder, file):
    content = file.read_bytes()
    length = rng.randrange(len(content)) if content and rng.random() < 0.8 else 0
    file.write_bytes(content[:length])
    return f"cut to {length} of {len(content)} bytes"


def change_value(rng, _folder, file):
    document = json.loads(file.read_text(encoding="utf-8"))
    path = rng.choice(list(leaves(document)))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]]
    near = [old + 1, old - 1] if isinstance(old, int) and not isinstance(old, bool) else []
    near += [old * 1.5] if isinstance(old, float) else []
    new = rng.choice(near * 4 + [value for value in VALUES if value != old])
    inner[path[-1]] = new
    file.write_text(json.dumps(document, indent=2), encoding="utf-8")
    return f"{'.'.join(map(str, path))} changed from {old!r} to {new!r}"


def swap(rng, folder, file):
    others = [other for other in files(folder) if other != file and other.read_bytes() != file.read_bytes()]
    same = [other for other in others if other.name == file.name]
    if not others:
        return None
    other = rng.choice(same or others)
    first, second = file.read_bytes(), other.read_bytes()
    file.write_bytes(second)
    other.write_bytes(first)
    return f"swapped with {other.relative_to(folder)}", other


def remove(_rng, _folder, file):
    file.unlink()
    return "removed"


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def choose(rng, folder):
    """Draws a file. The kind is drawn first, because the many curves would otherwise be drawn more often than
    run.json."""
    kinds = (
        ["run.json"] * 3 + ["state.json"] * 3 + ["epochs.csv"] * 2 + ["curve"] * 2 + ["model.safetensors"] * 2
    )
    kind = rng.choice(kinds + ["other"] * 3)
    if kind == "curve":
        found = sorted(folder.glob("rank*/*"))
    elif kind == "other":
        found = [path for path in files(folder) if path.parent.parent.name == "checkpoints"]
        found = [path for path in found if path.name not in ("model.safetensors", "state.json")]
    else:
        found = [path for path in files(folder) if path.name == kind]
    # Half of the time the last checkpoint, because it is the one that is read.
    return found[-1] if rng.random() < 0.5 else rng.choice(found)


def damaged_file(lab, rng, config, ways):
    reference = lab.reference(config)
    base = rng.choice([reference.folder, reference.stopped])
    folder = lab.new("damaged")
    shutil.copytree(base, folder)
    file = choose(rng, folder)
    while ways == [change_value] and file.suffix != ".json":
        file = choose(rng, folder)
    how = rng.choice(ways)(rng, folder, file)
    damaged = [file]
    if isinstance(how, tuple):
        how, other = how
        damaged.append(other)
    kind = "a stopped" if base == reference.stopped else "a completed"
    verdict = Verdict(f"{file.relative_to(folder)} of {kind} run {how}", how is not None)
    check_damaged(verdict, lab, config, base, folder, [str(path.relative_to(folder)) for path in damaged])
    return verdict


def flipped(lab, rng, config):
    return damaged_file(lab, rng, config, [flip])


def shortened(lab, rng, config):
    return damaged_file(lab, rng, config, [cut])


def changed(lab, rng, config):
    return damaged_file(lab, rng, config, [change_value])


def swapped(lab, rng, config):
    return damaged_file(lab, rng, config, [swap])


def missing(lab, rng, config):
    return damaged_file(lab, rng, config, [remove])
