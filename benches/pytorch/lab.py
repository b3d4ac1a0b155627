"""Two emulated nodes on this machine, made by tests/cluster, with a link of a given rate between them."""

import os
import shutil
import subprocess

from programs import ROOT, CannotCompare

CLUSTER = ROOT / "tests/cluster"
# Address of the node on which rank 0 runs, and its network interface.
FIRST_NODE, INTERFACE = "10.77.0.1", "eth0"


def is_possible():
    """True if this user can create network namespaces here."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


class Lab:
    """The two nodes, from entry to exit. If `rate` is None, there are no nodes, and jobs run on this
    machine."""

    def __init__(self, rate):
        self.rate = rate

    def __enter__(self):
        if not self.rate:
            return None
        made = subprocess.run([CLUSTER / "up.sh"], env=os.environ | {"RATE": self.rate}, capture_output=True, text=True)
        if made.returncode != 0:
            raise CannotCompare(f"no nodes: {made.stderr.strip() or 'tests/cluster/up.sh failed'}")
        return self

    def __exit__(self, *_):
        if self.rate:
            subprocess.run([CLUSTER / "down.sh"], capture_output=True, check=False)

    @staticmethod
    def command(ranks):
        """The mpirun that starts one rank on each node."""
        return [str(CLUSTER / "mpirun.sh"), f"{ranks}x1"]

    @staticmethod
    def variables(environment):
        """The environment of a job: mpirun passes the variables of PyTorch's rendezvous to both nodes."""
        changed = {"MASTER_ADDR": FIRST_NODE, "GLOO_SOCKET_IFNAME": INTERFACE}
        passed = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
        return environment | changed | {"MPIRUN_OPTIONS": " ".join(f"-x {name}" for name in passed)}
