"""The cores of this machine, and the load that other programs put on them."""

import ctypes
import os
import time
from pathlib import Path

# If other programs use more than this share of one core, timings count as not representative. An idle Linux
# uses less.
BUSY = 0.1
# From linux/prctl.h.
PR_SET_CHILD_SUBREAPER = 36


def core_count():
    """The number of cores that this process may use. Two hardware threads of one core count once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            cores.add(cpu)
    return len(cores)


class OtherPrograms:
    """The number of cores that other programs have kept busy since this object was made.

    It is the kernel's count of all busy time, less the time of this process and of its child processes that have
    ended. On an emulated node, Open MPI's daemon detaches itself from its parent, together with its ranks. This process
    adopts such orphans; otherwise, their time would count as the time of other programs.
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
        """The mean number of cores. It is at least 0, although the kernel counts time in coarse ticks."""
        (start, before), (end, after) = self.start, self.now()
        return max(0.0, (after - before) / (end - start))


def wait_for_orphans(seconds=10):
    """Waits until the remaining child processes have ended, at most `seconds`. Their time is known only then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)
