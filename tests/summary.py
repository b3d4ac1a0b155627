"""Prints the ten slowest tests of a run, and describes the failed tests: summary.py JUNIT.XML FAILURES

Reads the XML file that cargo-nextest writes. Each failed test is appended to the file FAILURES, with the last
20 lines of its output and the command that repeats it.
"""

import re
import sys
import xml.etree.ElementTree as xml

LINES = 20
# A test may print these characters, but XML 1.0 does not allow them.
NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def main(junit, failures):
    """Prints the slowest tests, and describes the failed ones."""
    with open(junit, encoding="utf-8", errors="replace") as file:
        cases = list(xml.fromstring(NO_XML.sub("?", file.read()).encode()).iter("testcase"))
    print(f"the slowest of {len(cases)} tests:")
    for case in sorted(cases, key=lambda case: -float(case.get("time")))[:10]:
        print(f"{float(case.get('time')):8.1f} s  {case.get('classname')} {case.get('name')}")
    with open(failures, "a", encoding="utf-8") as file:
        for case in cases:
            failure = case.find("failure")
            failure = case.find("error") if failure is None else failure
            if failure is None:
                continue
            # The reason may be above the last lines, such as a panic before a long backtrace, or a signal.
            reason = f"{failure.get('type', '')}: {failure.get('message', '')}".splitlines()[:LINES]
            texts = [case.findtext("system-out") or "", case.findtext("system-err") or ""]
            lines = [line for text in texts for line in text.splitlines() if line.strip()]
            print(f"not ok - {case.get('classname')} {case.get('name')}", *(f"    {line}" for line in reason + lines[-LINES:]),
                  f"  repeat: scripts/cargo.sh nextest run --release --workspace -E 'test(={case.get('name')})'",
                  sep="\n", file=file)


main(*sys.argv[1:])
