#!/usr/bin/env python3
"""Checks a time line of `--trace`: check.py FILE.json[.gz] --ranks N --steps FIRST..LAST

Only Python's standard library is used. The PyPI package perfetto has a trace processor, but downloads it from elsewhere
at its first use.

A rank sees the end of an all-reduce when its call returns. If ranks share cores, one rank may return much later than
another. The only check is therefore that no rank sees an end before another rank's start, within the error of the
clocks. How far apart the ends are is printed.
"""

import argparse
import gzip
import json
import math
import statistics
import sys
from collections import defaultdict

# Times are in µs, rounded to three decimals.
ROUNDING = 0.002
COMPUTE = 1


def load(path):
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def end(event):
    return event["ts"] + event["dur"]


def check_threads(spans):
    """Checks that any two events of a thread are nested or do not overlap."""
    threads = defaultdict(list)
    for event in spans:
        assert event["dur"] >= 0 and event["ts"] >= -ROUNDING, event
        threads[event["pid"], event["tid"]].append(event)
    for thread, events in threads.items():
        outer = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while outer and end(outer[-1]) <= event["ts"] + ROUNDING:
                outer.pop()
            inside = not outer or end(event) <= end(outer[-1]) + ROUNDING
            assert inside, f"thread {thread}: {event} overlaps {outer[-1]}"
            assert not outer or thread[1] == COMPUTE, f"thread {thread}: nested buckets {event}, {outer[-1]}"
            outer.append(event)


def check_steps(spans, ranks, steps):
    """Checks that every rank has every step once, and that operators and buckets are inside their step."""
    found = {(event["pid"], event["args"]["step"]): event for event in spans if event["cat"] == "step"}
    assert len(found) == sum(event["cat"] == "step" for event in spans), "a step is there twice"
    assert sorted(found) == [(rank, step) for rank in range(ranks) for step in steps], sorted(found)
    for event in spans:
        if event["cat"] in ("step", "evaluation", "checkpoint"):
            continue
        step = found[event["pid"], event["args"]["step"]]
        assert step["ts"] <= event["ts"] + ROUNDING and end(event) <= end(step) + ROUNDING, (event, step)
    for rank in range(ranks):
        order = [found[rank, step] for step in steps]
        assert all(end(a) <= b["ts"] + ROUNDING for a, b in zip(order, order[1:])), f"steps of rank {rank}"
    updates = {(event["pid"], event["args"]["step"]) for event in spans if event["cat"] == "optimizer"}
    assert updates == set(found), "an optimizer in each step"


def check_buckets(spans, ranks, errors):
    """Checks that every rank has the buckets of a step, and that no bucket ends before it has started on all ranks."""
    buckets = defaultdict(dict)
    for event in (event for event in spans if event["tid"] != COMPUTE):
        args = event["args"]
        assert args["bytes"] > 0 and args["exposed_ms"] > 0 and args["hidden_ms"] >= 0, event
        assert 1e3 * args["hidden_ms"] <= event["dur"] + ROUNDING, event
        of_rank = buckets[args["step"], event["name"]]
        assert event["pid"] not in of_rank, f"twice on a rank: {event}"
        of_rank[event["pid"]] = event
    apart = []
    for name, events in buckets.items():
        assert len(events) == ranks, f"{name} is on ranks {sorted(events)} of {ranks}"
        assert len({event["args"]["bytes"] for event in events.values()}) == 1, name
        last = max(events, key=lambda rank: events[rank]["ts"])
        for rank, event in events.items():
            early = events[last]["ts"] - end(event)
            allowed = errors[rank] + errors[last] + ROUNDING
            assert early <= allowed, f"{name}: ends on rank {rank} {early} µs before rank {last} starts it"
        ends = [end(event) for event in events.values()]
        apart.append(max(ends) - min(ends))
    if ranks > 1:
        print(f"all-reduces end {statistics.median(apart):.1f} µs apart (median of {len(apart)})")
    return len(buckets)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--steps", required=True)
    options = parser.parse_args()
    first, last = map(int, options.steps.split(".."))
    trace = load(options.file)
    other, events = trace["otherData"], trace["traceEvents"]
    assert trace["displayTimeUnit"] == "ms"
    assert [other["ranks"], other["first_step"], other["last_step"]] == [options.ranks, first, last], other
    errors = other["clock_error_us"]
    assert len(errors) == options.ranks and errors[0] == 0 and all(0 < x < math.inf for x in errors[1:]), errors
    names = defaultdict(dict)
    for event in events:
        if event["ph"] == "M":
            names[event["pid"]][event["name"], event["tid"]] = event["args"].get("name")
    for rank in range(options.ranks):
        assert names[rank]["process_name", COMPUTE].startswith(f"rank {rank} on "), names[rank]
        assert names[rank]["thread_name", COMPUTE] == "compute", names[rank]
        assert names[rank]["thread_name", COMPUTE + 1] == "communication", names[rank]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) + sum(event["ph"] == "M" for event in events) == len(events)
    assert all(("thread_name", event["tid"]) in names[event["pid"]] for event in spans)
    check_threads(spans)
    check_steps(spans, options.ranks, range(first, last + 1))
    buckets = check_buckets(spans, options.ranks, errors)
    assert buckets > 0 or options.ranks == 1, "no bucket"
    print(f"ok: {len(spans)} events, {buckets} buckets, clock errors {max(errors)} µs")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"check.py: {error}")
