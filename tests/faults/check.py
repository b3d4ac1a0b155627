"""What must hold after a fault: how the job ends, its message, its checkpoints, and that the run can be resumed."""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from lab import checkpoints, read_json, results

HANG, WRONG, LOST, UNCLEAR = "hangs", "wrong results", "lost checkpoints", "unclear messages"
COLUMNS = [HANG, WRONG, LOST, UNCLEAR]


@dataclass
class Verdict:
    """The outcome of one fault: whether it was injected, and a pair of column and text for each problem."""

    what: str
    injected: bool = True
    problems: list[tuple[str, str]] = field(default_factory=list)

    def add(self, column, text, ended=None):
        output = "" if ended is None else "\n" + "\n".join(ended.text.strip().splitlines()[-40:])
        self.problems.append((column, text + output))


def names(ended, pattern):
    """True if a line of the program or of mpirun contains the pattern."""
    return any(re.search(pattern, line) for line in ended.lines())


def check_end(verdict, ended, what="the job"):
    """Checks that the job did not hang, left no process and did not panic. Returns False after a hang."""
    if ended.code is None:
        verdict.add(HANG, f"{what} did not end within {ended.seconds:.0f} s", ended)
    elif ended.left:
        verdict.add(HANG, f"{what} left {len(ended.left)} processes behind", ended)
    if "panicked at" in ended.text:
        verdict.add(UNCLEAR, f"{what} panicked", ended)
    return ended.code is not None


def check_completed(verdict, reference, folder, ended, what, damaged=()):
    """Checks a job with exit code 0: it must have the weights and results of an undisturbed run.

    The file of a curve that the fault damaged may stay damaged, if the weights are right. If a curve's file was removed,
    the curve may lack its first lines, and a warning must say so.
    """
    record = read_json(Path(folder) / "run.json")
    if record.get("status") != "completed" or record.get("weights_sha256") != reference.weights:
        status, weights = record.get("status"), record.get("weights_sha256")
        verdict.add(
            WRONG, f"{what}: exit code 0, status {status}, weights {weights}, not {reference.weights}", ended
        )
        return
    found = results(folder)
    for file, lines in reference.results.items():
        if found.get(file) == lines or (file in damaged and file.startswith("rank")):
            continue
        lines_left = found.get(file) or []
        cut = f"{file} is missing: the curve continues without its earlier points" in ended.text
        if not (cut and lines[len(lines) - len(lines_left) :] == lines_left):
            verdict.add(WRONG, f"{what}: exit code 0, but {file} differs from that of an undisturbed run")
            return


def check_job(verdict, lab, config, folder, ended, pattern):
    """Checks how a disturbed training ended. A line must match `pattern` if it failed; None means that no line must."""
    reference = lab.reference(config)
    if not check_end(verdict, ended):
        return
    if ended.code == 0:
        check_completed(verdict, reference, folder, ended, "the job")
        return
    if pattern and not names(ended, pattern):
        verdict.add(UNCLEAR, f"exit code {ended.code}, and no line contains {pattern!r}", ended)


def check_checkpoints(verdict, lab, folder, before=()):
    """Checks that the last checkpoint loads, and that no complete checkpoint has vanished without a later one."""
    found = checkpoints(folder)
    if before and (not found or found[-1].name < before[-1].name):
        verdict.add(LOST, f"{before[-1].name} was complete before the fault; now {[p.name for p in found]}")
    if found:
        ended = lab.evaluate(folder)
        if check_end(verdict, ended, "eval") and ended.code != 0:
            verdict.add(LOST, f"{found[-1].name} does not load", ended)


def check_resume(verdict, lab, config, folder):
    """Resumes the run. It must reach the undisturbed weights, or, if nothing was saved, fail and name the folder."""
    saved = checkpoints(folder)
    ended = lab.resume(config, folder)
    if not check_end(verdict, ended, "the resumed job"):
        return
    if ended.code == 0:
        check_completed(verdict, lab.reference(config), folder, ended, "the resumed job")
    elif saved:
        verdict.add(
            LOST, f"resuming fails with exit code {ended.code}, although {saved[-1].name} exists", ended
        )
    elif not names(ended, re.escape(Path(folder).name)):
        verdict.add(UNCLEAR, "resuming is refused without a line that names the folder", ended)


def check_all(verdict, lab, config, folder, ended, pattern, before=(), resumable=True):
    """Checks everything about a training that was disturbed while it ran."""
    check_job(verdict, lab, config, folder, ended, pattern)
    check_checkpoints(verdict, lab, folder, before)
    if ended.code != 0 and resumable:
        check_resume(verdict, lab, config, folder)


def check_damaged(verdict, lab, config, base, folder, damaged):
    """Checks that damaged files are rejected with a line that names a file, or that the results are undisturbed."""
    reference = lab.reference(config)
    parts = {part for file in damaged for part in Path(file).parts if part != "checkpoints"}
    pattern = "|".join(map(re.escape, sorted(parts)))
    file = " or ".join(damaged)
    ended = lab.evaluate(folder)
    if check_end(verdict, ended, "eval"):
        results_of = [line for line in ended.text.splitlines() if line.startswith("test loss")]
        known = "\n".join(reference.evaluations[base])
        if ended.code == 0 and not all(line in known for line in results_of):
            verdict.add(WRONG, "eval: exit code 0, and the result of no checkpoint of the run", ended)
        if ended.code != 0 and not names(ended, pattern):
            verdict.add(UNCLEAR, f"eval fails without a line that names {file}", ended)
    ended = lab.resume(config, folder)
    if not check_end(verdict, ended, "the resumed job"):
        return
    if ended.code == 0:
        check_completed(verdict, reference, folder, ended, "the resumed job", damaged)
    elif not names(ended, pattern):
        verdict.add(UNCLEAR, f"resuming is refused without a line that names {file}", ended)


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
