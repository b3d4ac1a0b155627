"""Faults of clocks: the time of day jumps while ranks train. libfaketime changes the time that a process reads."""

from pathlib import Path

from check import UNCLEAR, WRONG, Verdict, check_all
from differing import odd_one
from job import LIMIT, Job
from lab import read_json
from moments import at_random_moment

LIBRARY = "faketime/libfaketime.so.1"
# From a small correction by a time server to a clock that was never set.
JUMPS = ["-0.5", "+2", "-30", "+3600", "-86400", "+400d", "-20y"]


def library():
    """The path of libfaketime; None if it is not installed."""
    folders = [*Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib")]
    return next((folder / LIBRARY for folder in folders if (folder / LIBRARY).exists()), None)


def can_jump(_lab):
    return library() is not None


def jump(lab, rng, config):
    """Lets the clock of one rank, or of all ranks, jump at a random moment. The run must not notice."""
    folder, clock = lab.new("run"), lab.new("clock")
    clock.write_text("+0\n", encoding="utf-8")
    settings = [
        f"LD_PRELOAD={library()}",
        f"FAKETIME_TIMESTAMP_FILE={clock}",
        "FAKETIME_NO_CACHE=1",
        # Clocks that count from the start of the machine do not jump.
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ]
    common = lab.train_command(config, folder)
    odd = ["env", *settings, *common]
    everywhere = rng.random() < 0.5
    rank, command = odd_one(lab, rng, config, odd if everywhere else common, odd)
    job, moment = at_random_moment(lab, rng, config, folder, lambda *_: Job(command, lab.folder))
    by, injected = rng.choice(JUMPS), job.is_running()
    new = clock.with_suffix(".new")
    new.write_text(f"{by}\n", encoding="utf-8")
    new.rename(clock)
    verdict = Verdict(f"clock of {'all ranks' if everywhere else f'rank {rank}'} {by} {moment}", injected)
    ended = job.end()
    check_all(verdict, lab, config, folder, ended, None)
    if ended.code not in (0, None):
        verdict.add(UNCLEAR, "a clock that jumped ended the job", ended)
    for name, value in read_json(folder / "run.json").items():
        if name.endswith("_seconds") and not (isinstance(value, (int, float)) and 0 <= value < LIMIT):
            verdict.add(WRONG, f"run.json: {name} is {value}")
    return verdict
