"""Jobs under mpirun: start, find the ranks, wait with a limit, leave no process behind."""

import itertools
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

# The limit of tests against hanging, in seconds: no job lasts as long, disturbed or not.
LIMIT = int((Path(__file__).resolve().parents[1] / "limit_s").read_text(encoding="utf-8"))
# --comm-timeout of all runs, which ends those with a stopped rank: no busy machine takes as long for a step.
DEADLINE = LIMIT // 8

MARK = "MPIBURN_FAULTS_JOB"
COUNTER = itertools.count()


@dataclass
class Ended:
    """How a job ended: exit code (None after a hang), output, processes that outlived it."""

    code: int | None
    text: str
    seconds: float
    left: list[int] = field(default_factory=list)

    def lines(self):
        """Lines that the program or mpirun prints about an error."""
        starts = ("mpiburn: ", "error: ", "warn: ", "mpirun noticed that process rank ", "ORTE ", "An ORTE ")
        return [line for line in self.text.splitlines() if line.startswith(starts)]


def environment(process):
    """Environment variables of a process; empty for one that has ended."""
    try:
        text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def is_rank(process):
    try:
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip() == "mpiburn"
    except OSError:
        return False


def send(process, number):
    """Sends a signal; False if the process has ended."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def marked(mark):
    """Processes whose mark begins with `mark`."""
    every = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in every if environment(process).get(MARK, "").startswith(mark)]


def end_all():
    """Kills all processes of this program's jobs."""
    for process in marked(f"{os.getpid()}."):
        send(process, signal.SIGKILL)


class Job:
    """A running command, whose processes are known by a variable in their environment."""

    def __init__(self, command, folder):
        # The last character ends the number: job 1 is not job 10.
        self.mark = f"{os.getpid()}.{next(COUNTER)}."
        self.log = Path(folder) / f"job-{self.mark}log"
        settings = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            # By default mpirun sleeps for a second between SIGTERM and SIGKILL.
            "OMPI_MCA_odls_base_sigkill_timeout": "0",
            "TMPDIR": str(folder),
            MARK: self.mark,
        }
        inherited = {name: value for name, value in os.environ.items() if name != "RUST_LOG"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**inherited, **settings},
                start_new_session=True,
            )
        self.started = time.monotonic()

    def processes(self):
        return marked(self.mark)

    def ranks(self):
        """Process of each rank that has started."""
        found = {}
        for process in self.processes():
            rank = environment(process).get("OMPI_COMM_WORLD_RANK", "")
            if rank.isdigit() and is_rank(process):
                found[int(rank)] = process
        return found

    def is_running(self):
        return self.process.poll() is None

    def sleep(self, seconds):
        """Waits until so many seconds after the start, or until the job ends."""
        while self.is_running() and time.monotonic() - self.started < seconds:
            time.sleep(0.003)

    def until(self, ready):
        """Waits until `ready` returns something true, or until the job ends."""
        while self.is_running() and time.monotonic() - self.started < LIMIT:
            if found := ready():
                return found
            time.sleep(0.003)
        return None

    def end(self):
        """Waits for the end, kills what is left, and returns both.

        Processes end some time after mpirun; those that it has lost, at the deadline.
        """
        begun = time.monotonic()
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        left = self.processes()
        while left and code is not None and time.monotonic() - begun < LIMIT:
            time.sleep(0.02)
            left = self.processes()
        seconds = time.monotonic() - begun
        for process in left:
            send(process, signal.SIGKILL)
        self.process.wait()
        text = self.log.read_text(encoding="utf-8", errors="replace")
        self.log.unlink()
        return Ended(code, text, seconds, left)
