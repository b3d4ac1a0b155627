"""The machine: its cores, and the load of other programs."""

import ctypes
import os
import time
from pathlib import Path

# Share of one core that other programs may use before timings are considered not
# representative. An idle Linux stays below it.
BUSY = 0.1
# Of linux/prctl.h.
PR_SET_CHILD_SUBREAPER = 36


def core_count():
    """Cores that this process may use; two hardware threads of one core count once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            cores.add(cpu)
    return len(cores)


class OtherPrograms:
    """Number of cores that other programs have kept busy since construction.

    The kernel's count of all busy time, minus that of this process and of its finished
    child processes. On an emulated node Open MPI's daemon leaves its parent, and its ranks
    with it: this process takes over such orphans, or their time would be that of others.
    """

    def __init__(self):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.start = self.now()

    @staticmethod
    def now():
        """Wall time, and CPU time of other programs, in seconds. No child process may be running."""
        wait_for_orphans()
        user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
        busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        own = os.times()
        return own.elapsed, busy - own.user - own.system - own.children_user - own.children_system

    def cores(self):
        """Mean number of cores; at least 0, despite the coarse ticks."""
        (start, before), (end, after) = self.start, self.now()
        return max(0.0, (after - before) / (end - start))


def wait_for_orphans(seconds=10):
    """Waits until the child processes left over have ended, for so long at most; their time is known only then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)
