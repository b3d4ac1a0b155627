"""Faults of the network between two nodes, which tests/cluster emulates on this machine."""

import atexit
import contextlib
import fcntl
import os
import subprocess
import time
from pathlib import Path

from check import Verdict, check_all
from job import Job
from lab import CONFIGS, checkpoints
from moments import at_random_moment

CLUSTER = Path(__file__).resolve().parents[1] / "cluster"
NODES = ["node0", "node1"]
# A line that names the cause. If mpirun notices the lost node itself, it kills the ranks before they can
# print a line, and prints one of three sentences. (The first one is about a start, but mpirun also prints it
# later.) Otherwise, a rank names the ranks that it waits for.
CAUSE = (
    r"unable to reliably start one or more daemons|daemon has unexpectedly failed"
    r"|lost communication with a remote daemon|rank \d"
)


def run(script, *words):
    """Runs one of tests/cluster's scripts; returns True if it succeeds."""
    return subprocess.run([CLUSTER / script, *words], capture_output=True, check=False).returncode == 0


def can_cut(_lab):
    """True if there are two nodes: those of `make cluster-up`, or nodes that are made for this campaign."""
    if os.geteuid() != 0:
        return False
    if Path("/run/netns/mpiburn-node0").exists():
        return True
    if not run("up.sh"):
        return False
    atexit.register(run, "down.sh")
    return True


@contextlib.contextmanager
def nodes_alone():
    """Waits until no other campaign on this machine uses the nodes."""
    folder = os.open("/run/netns", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def on_two_nodes(lab, config, folder):
    """Starts a training with half of its ranks on each node."""
    command = [CLUSTER / "mpirun.sh", f"2x{config.ranks // 2}", *lab.train_command(config, folder)]
    return Job([str(word) for word in command], lab.folder)


def cut(lab, rng, config, pause):
    """Cuts the link of a node at a random moment. Restores it after `pause` seconds, or after the job if None."""
    with nodes_alone():
        return cut_alone(lab, rng, config, pause)


def cut_alone(lab, rng, config, pause):
    """Does the work of `cut`. No other campaign cuts a link at the same time."""
    # Two nodes can have two or four ranks, but not an odd number.
    config = config if config.ranks % 2 == 0 else rng.choice([one for one in CONFIGS if one.ranks % 2 == 0])
    folder, node = lab.new("run"), rng.choice(NODES)
    # A link without a `pause` is not cut during the start-up. There, mpirun would wait for the node whatever
    # its ranks do: it has sent something to the node, and TCP repeats that for many minutes.
    in_start_up = 0.3 if pause is not None else 0
    job, moment = at_random_moment(lab, rng, config, folder, on_two_nodes, in_start_up)
    before = checkpoints(folder)
    injected = job.is_running() and run("link.sh", "down", node)
    try:
        if pause is not None:
            time.sleep(pause)
            run("link.sh", "up", node)
        # Ranks that mpirun cannot reach end by themselves, at their deadline.
        ended = job.end()
    finally:
        run("link.sh", "up", node)
    how = "cut" if pause is None else f"cut for {pause:.2f} s"
    verdict = Verdict(f"link of {node} {how} {moment}, {config.ranks} ranks", injected)
    check_all(verdict, lab, config, folder, ended, CAUSE, before)
    return verdict


def link_cut(lab, rng, config):
    return cut(lab, rng, config, None)


def link_interrupted(lab, rng, config):
    return cut(lab, rng, config, rng.uniform(0.2, 2))
