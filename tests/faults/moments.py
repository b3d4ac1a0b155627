"""Faults at a random moment of a run: signals, slow ranks, and changes of the run's folder."""

import os
import shutil
import signal
import subprocess
import time

from check import UNCLEAR, Verdict, check_all, check_end
from job import Job, send
from lab import Lab, checkpoints

SPACE = "No space left"


def at_random_moment(lab, rng, config, folder, start=Lab.start, in_start_up=0.3):
    """Starts a job with `start`. Waits for a random moment of its start-up, or for a random step's checkpoint.

    Moments of the training are counted in steps: seconds would depend on the load of the machine.
    """
    reference = lab.reference(config)
    share = rng.random()
    job = start(lab, config, folder)
    if rng.random() < in_start_up:
        seconds = share * reference.start_up
        job.sleep(seconds)
        return job, f"after {seconds:.2f} s"
    step = int(share * 0.9 * reference.steps)
    job.until(lambda: any(int(path.name.removeprefix("step-")) >= step for path in checkpoints(folder)))
    time.sleep(rng.uniform(0, 0.02))
    return job, f"after step {step}"


def strike(lab, rng, config, number, whom, pause=None):
    """Sends a signal to a random rank or to mpirun, and after `pause` seconds SIGCONT."""
    folder = lab.new("run")
    job, moment = at_random_moment(lab, rng, config, folder)
    before = checkpoints(folder)
    ranks = job.ranks()
    rank = rng.choice(range(config.ranks))
    process = job.process.pid if whom == "mpirun" else ranks.get(rank)
    injected = job.is_running() and process is not None and send(process, number)
    if pause:
        time.sleep(pause)
        if injected:
            send(process, signal.SIGCONT)
    name = "mpirun" if whom == "mpirun" else f"rank {rank}"
    text = f"{signal.Signals(number).name} to {name} {moment}" + (f", for {pause:.2f} s" if pause else "")
    verdict = Verdict(f"{text}; {len(ranks)} ranks had started", injected)
    return verdict, folder, job.end(), before, rank, len(ranks) == config.ranks


def kill_rank(lab, rng, config):
    verdict, folder, ended, before, rank, _ = strike(lab, rng, config, signal.SIGKILL, "rank")
    check_all(verdict, lab, config, folder, ended, rf"rank {rank}\b", before)
    return verdict


def kill_mpirun(lab, rng, config):
    verdict, folder, ended, before, _, _ = strike(lab, rng, config, signal.SIGKILL, "mpirun")
    check_all(verdict, lab, config, folder, ended, None, before)
    return verdict


def stop_rank(lab, rng, config):
    verdict, folder, ended, before, rank, _ = strike(lab, rng, config, signal.SIGSTOP, "rank")
    check_all(verdict, lab, config, folder, ended, rf"rank {rank}\b|start of MPI", before)
    return verdict


def slow_rank(lab, rng, config):
    pause = rng.uniform(0.2, 2.2)
    struck = strike(lab, rng, config, signal.SIGSTOP, "rank", pause=pause)
    verdict, folder, ended, before, _, _ = struck
    check_all(verdict, lab, config, folder, ended, None, before)
    if ended.code not in (0, None):
        verdict.add(UNCLEAR, f"a rank that was slow for {pause:.2f} s ended the job", ended)
    return verdict


def ask_to_stop(lab, rng, config):
    number = rng.choice([signal.SIGTERM, signal.SIGUSR1])
    whom = rng.choice(["rank", "mpirun"])
    verdict, folder, ended, before, _, started = strike(lab, rng, config, number, whom)
    # mpirun and the ranks may end before the program handles signals, and then print no line of their own.
    pattern = r"stopped by (SIG|a signal)|rank \d" if started and before else None
    # After SIGTERM, mpirun kills its ranks at once, before they can stop by themselves.
    if number == signal.SIGTERM and whom == "mpirun":
        pattern = None
    check_all(verdict, lab, config, folder, ended, pattern, before)
    return verdict


def can_mount(lab):
    folder = lab.new("mount")
    folder.mkdir()
    mounted = mount(folder, "size=64k")
    if mounted:
        unmount(folder)
    return mounted


def mount(folder, options):
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def unmount(folder):
    subprocess.run(["umount", "-l", folder], capture_output=True, check=False)


def full_disk(lab, rng, config):
    kilobytes = rng.choice([0, 16, 48, 96, 128, 160, 200, 256, 320])
    disk = lab.new("disk")
    disk.mkdir()
    # For tmpfs, a size of 0 means no limit.
    if not mount(disk, f"size={max(4, kilobytes)}k"):
        return Verdict("a full disk", injected=False)
    try:
        folder = disk / "run"
        verdict = Verdict(f"a disk of {max(4, kilobytes)} KiB")
        ended = lab.start(config, folder).end()
        # A checkpoint that did not fit must be named as the cause, not a file that failed after it for the
        # same reason.
        halves = sorted(path.name for path in folder.glob("checkpoints/.step-*"))
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True, capture_output=True)
        pattern = f"step-.*{SPACE}" if halves and ended.code != 0 else SPACE
        check_all(verdict, lab, config, folder, ended, pattern)
    finally:
        unmount(disk)
    return verdict


def can_forbid(lab):
    folder = lab.new("forbidden")
    folder.mkdir()
    forbidden = forbid(folder)
    allow(folder)
    return forbidden


def forbid(folder):
    """Forbids creating and removing files in the folder. For root, by an attribute, because modes do not bind root."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        return True
    return subprocess.run(["chattr", "+i", folder], capture_output=True, check=False).returncode == 0


def allow(folder):
    if os.geteuid() != 0:
        folder.chmod(0o700)
    else:
        subprocess.run(["chattr", "-i", folder], capture_output=True, check=False)


def read_only(lab, rng, config):
    folder = lab.new("run")
    job, moment = at_random_moment(lab, rng, config, folder)
    target = folder / rng.choice([".", "checkpoints"])
    verdict = Verdict(
        f"{target.relative_to(folder.parent)} read-only {moment}", job.is_running() and target.is_dir()
    )
    try:
        before = checkpoints(folder)
        if verdict.injected:
            verdict.injected = forbid(target)
        ended = job.end()
    finally:
        if target.is_dir():
            allow(target)
    check_all(
        verdict, lab, config, folder, ended, r"cannot write|Operation not permitted|Permission denied", before
    )
    return verdict


def removed(lab, rng, config):
    """Removes the run directory, or its checkpoints, while ranks train. The removed checkpoints are lost."""
    folder = lab.new("run")
    job, moment = at_random_moment(lab, rng, config, folder)
    target = folder / rng.choice([".", "checkpoints"])
    verdict = Verdict(
        f"{target.relative_to(folder.parent)} removed {moment}", job.is_running() and target.is_dir()
    )
    if verdict.injected:
        aside = lab.new("removed")
        target.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    ended = job.end()
    check_all(verdict, lab, config, folder, ended, folder.name)
    return verdict


def start_again(lab, rng, config):
    """Starts a second job on the run directory of a running job. It must be rejected, and the first one must continue."""
    folder = lab.new("run")
    job, moment = at_random_moment(lab, rng, config, folder)
    verdict = Verdict(
        f"a second job in the same folder {moment}", job.is_running() and bool(checkpoints(folder))
    )
    if verdict.injected:
        again = [lab.binary, "train", "--resume", folder]
        second = Job(lab.mpirun((config.ranks, again)), lab.folder).end()
        check_end(verdict, second, "the second job")
        if second.code != 0 and f"{folder.name}" not in "\n".join(second.lines()):
            verdict.add(UNCLEAR, "the second job is refused without a line that names the folder", second)
    check_all(verdict, lab, config, folder, job.end(), None)
    return verdict
