"""Faults of one rank that has other options, data, another binary or another environment than the other ranks."""

import os
import shutil

from check import UNCLEAR, WRONG, Verdict, check_all
from job import Job

OPTIONS = [
    "--lr 0.002",
    "--seed 7",
    "--epochs 2",
    "--train-samples 640",
    "--test-samples 300",
    "--train-batch-size 16",
    "--weight-decay 0",
    "--l1 0.001",
    "--grad-dtype bf16",
    "--reduce ordered",
    "--overlap off",
    "--fused off",
    "--activation tanh",
    "--label-smoothing 0.1",
    "--clip-norm 1",
    "--precision bf16",
    "--augment crop",
    "--checkpoint-every 2",
    "--log-every 3",
    "--bucket-mb 1",
    "--comm-timeout 100",
]
ENVIRONMENTS = [
    "OMP_NUM_THREADS=2",
    "LANG=de_DE.UTF-8",
    "LC_ALL=C",
    "RUST_LOG=debug",
    "RUST_BACKTRACE=1",
    "TZ=Asia/Tokyo",
]


def odd_one(lab, rng, config, common, odd):
    """The command of a job in which one random rank has the command `odd`, and the others `common`."""
    rank = rng.randrange(config.ranks)
    groups = [(rank, common), (1, odd), (config.ranks - rank - 1, common)]
    return rank, lab.mpirun(*groups)


def without(words, option):
    """The words of a command without an option and its value."""
    if option not in words:
        return list(words)
    at = words.index(option)
    return [*words[:at], *words[at + 2 :]]


def refused(lab, config, folder, what, command, pattern, resumable=True):
    """Runs a job that must fail with a line that names the cause, or complete with the right weights."""
    verdict = Verdict(what)
    ended = Job(command, lab.folder).end()
    check_all(verdict, lab, config, folder, ended, pattern, resumable=resumable)
    return verdict, ended


def other_option(lab, rng, config):
    folder = lab.new("run")
    common = [str(word) for word in lab.train_command(config, folder)]
    option = rng.choice(OPTIONS)
    if rng.random() < 0.15:
        odd, option = without(common, "--out"), "no --out"
    elif rng.random() < 0.15:
        other = "gloo" if config.backend == "mpi" else "mpi"
        odd, option = [*without(common, "--backend"), "--backend", other], f"--backend {other}"
    else:
        odd = [*without(common, option.split()[0]), *option.split()]
    rank, command = odd_one(lab, rng, config, common, odd)
    return refused(lab, config, folder, f"{option} on rank {rank}", command, r"rank \d")[0]


def unknown_option(lab, rng, config):
    folder = lab.new("run")
    common = lab.train_command(config, folder)
    word = rng.choice(["--learning-rate=1", "--epoch", "--epochs=x", "--comm-timeout=-1", "--backend=nccl"])
    rank, command = odd_one(lab, rng, config, common, [*common, word])
    verdict, ended = refused(lab, config, folder, f"{word} on rank {rank}", command, word.split("=")[0])
    if ended.code == 0:
        verdict.add(WRONG, "exit code 0", ended)
    return verdict


def resume_on_one_rank(lab, rng, config):
    reference = lab.reference(config)
    folder = lab.new("run")
    stopped = lab.new("stopped")
    shutil.copytree(reference.stopped, stopped)
    fresh = lab.train_command(config, folder)
    resumes = [lab.binary, "train", "--resume", stopped]
    pair = [fresh, resumes] if rng.random() < 0.6 else [resumes, fresh]
    rank, command = odd_one(lab, rng, config, *pair)
    what = f"{'--resume' if pair[1] is resumes else 'no --resume'} on rank {rank}"
    verdict, ended = refused(lab, config, folder, what, command, r"rank \d")
    if ended.code == 0:
        verdict.add(WRONG, "exit code 0", ended)
    return verdict


def other_data(lab, rng, config):
    """Gives each rank a folder of its own with the same relative --data-root. One rank's data differ."""
    rank = rng.randrange(config.ranks)
    top = lab.new("folders")
    for each in range(config.ranks):
        (top / f"{each}").mkdir(parents=True)
        if each != rank:
            (top / f"{each}" / "data").symlink_to(lab.data)
    own = top / f"{rank}" / "data"
    own.mkdir()
    changed = rng.choice(sorted(path.name for path in lab.data.iterdir()))
    how = rng.choice(["a changed byte in", "no", "a shorter"])
    for path in lab.data.iterdir():
        if path.name != changed:
            (own / path.name).symlink_to(path)
            continue
        content = bytearray(path.read_bytes())
        if how == "a changed byte in":
            content[rng.randrange(16 if "images" in changed else 8, len(content))] ^= 1
        if how != "no":
            (own / path.name).write_bytes(content[: -1 if how == "a shorter" else None])
    folder = lab.new("run")
    words = without([str(word) for word in lab.train_command(config, folder)], "--data-root")
    script = f'cd {top}/$OMPI_COMM_WORLD_RANK && exec "$0" "$@"'
    command = lab.mpirun((config.ranks, ["sh", "-c", script, *words, "--data-root", "data"]))
    what = f"{how} {changed} on rank {rank}"
    # The relative folder of the data exists only where the ranks started, so the run is not resumed.
    verdict, ended = refused(lab, config, folder, what, command, r"rank \d", resumable=False)
    if ended.code == 0:
        verdict.add(WRONG, "exit code 0", ended)
    return verdict


def other_binary(lab, rng, config):
    other = lab.folder / "other" / lab.binary.name
    if not other.exists():
        other.parent.mkdir()
        shutil.copy(lab.binary, other)
        with open(other, "ab") as file:
            file.write(b"\n")
        os.chmod(other, 0o755)
    folder = lab.new("run")
    common = lab.train_command(config, folder)
    rank, command = odd_one(lab, rng, config, common, [other, *common[1:]])
    verdict, ended = refused(
        lab, config, folder, f"another binary on rank {rank}", command, r"rank \d.*binar"
    )
    if ended.code == 0:
        verdict.add(WRONG, "exit code 0", ended)
    return verdict


def other_environment(lab, rng, config):
    """Gives one rank an environment that must not matter: the job must complete with the same weights."""
    folder = lab.new("run")
    common = lab.train_command(config, folder)
    setting = rng.choice(ENVIRONMENTS)
    rank, command = odd_one(lab, rng, config, common, ["env", setting, *common])
    verdict, ended = refused(lab, config, folder, f"{setting} on rank {rank}", command, r"rank \d")
    if ended.code not in (0, None):
        verdict.add(UNCLEAR, f"the job fails with {setting} on one rank", ended)
    return verdict
