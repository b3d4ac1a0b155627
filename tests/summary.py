"""The ten slowest tests of a run, and those that failed: summary.py JUNIT.XML FAILURES

Reads what cargo-nextest writes. Each failed test is added to the file FAILURES with the last 20 lines
of its output and the command that repeats it.
"""

import sys
import xml.etree.ElementTree as xml

LINES = 20


def main(junit, failures):
    """Prints the slowest, and describes the failed."""
    cases = list(xml.parse(junit).iter("testcase"))
    print(f"the slowest of {len(cases)} tests:")
    for case in sorted(cases, key=lambda case: -float(case.get("time")))[:10]:
        print(f"{float(case.get('time')):8.1f} s  {case.get('classname')} {case.get('name')}")
    with open(failures, "a", encoding="utf-8") as file:
        for case in cases:
            if case.find("failure") is None and case.find("error") is None:
                continue
            texts = [case.findtext("system-out") or "", case.findtext("system-err") or ""]
            lines = [line for text in texts for line in text.splitlines() if line.strip()]
            print(f"not ok - {case.get('classname')} {case.get('name')}", *(f"    {line}" for line in lines[-LINES:]),
                  f"  repeat: scripts/cargo.sh nextest run --release --workspace -E 'test(={case.get('name')})'",
                  sep="\n", file=file)


main(*sys.argv[1:])
