"""Jobs under mpirun: starts them, finds their ranks, waits with a limit, and leaves no process behind."""

import itertools
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

# The time in seconds after which a test counts as hanging. No job takes as long, disturbed or not.
LIMIT = int((Path(__file__).resolve().parents[1] / "limit_s").read_text(encoding="utf-8"))
# --comm-timeout of all runs. It ends a run with a stopped rank. Even on a busy machine, no step takes as
# long.
DEADLINE = LIMIT // 8

MARK = "MPIBURN_FAULTS_JOB"
COUNTER = itertools.count()


@dataclass
class Ended:
    """How a job ended: its exit code (None after a hang), its output, and the processes that outlived it."""

    code: int | None
    text: str
    seconds: float
    left: list[int] = field(default_factory=list)

    def lines(self):
        """The lines that the program or mpirun printed about an error."""
        starts = ("mpiburn: ", "error: ", "warn: ", "mpirun noticed that process rank ", "ORTE ", "An ORTE ")
        return [line for line in self.text.splitlines() if line.startswith(starts)]


def environment(process):
    """The environment variables of a process; empty if the process has ended."""
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
    """Sends a signal; returns False if the process has ended."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def marked(mark):
    """The processes whose environment has a mark that begins with `mark`."""
    every = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in every if environment(process).get(MARK, "").startswith(mark)]


def end_all():
    """Kills all processes of this program's jobs."""
    for process in marked(f"{os.getpid()}."):
        send(process, signal.SIGKILL)


class Job:
    """A running command. Its processes are found by a variable in their environment, the mark."""

    def __init__(self, command, folder):
        # The point ends the number, so that the mark of job 1 is no prefix of job 10's.
        self.mark = f"{os.getpid()}.{next(COUNTER)}."
        self.log = Path(folder) / f"job-{self.mark}log"
        settings = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            # By default, mpirun sleeps for a second between SIGTERM and SIGKILL.
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
        """The process of each rank that has started."""
        found = {}
        for process in self.processes():
            rank = environment(process).get("OMPI_COMM_WORLD_RANK", "")
            if rank.isdigit() and is_rank(process):
                found[int(rank)] = process
        return found

    def is_running(self):
        return self.process.poll() is None

    def sleep(self, seconds):
        """Waits until `seconds` after the start of the job, or until the job ends."""
        while self.is_running() and time.monotonic() - self.started < seconds:
            time.sleep(0.003)

    def until(self, ready):
        """Waits until `ready` returns a true value, and returns it; returns None if the job ends before."""
        while self.is_running() and time.monotonic() - self.started < LIMIT:
            if found := ready():
                return found
            time.sleep(0.003)
        return None

    def end(self):
        """Waits for the end of the job, and kills the processes that are left.

    Processes end some time after mpirun. A process that mpirun cannot reach any more ends at its own deadline.
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
