#!/usr/bin/env python3
"""Counts what `make test` ran and prints the closing line 'N passed, N failed, N skipped'.

usage: test_summary.py RESULTS STAGE...
Each stage left a folder RESULTS/STAGE with checks.tsv (exit code, name) and/or ctest.xml (JUnit, by CTest),
entries.json (CTest's list: entry -> command) and gtest/*.xml (one per GoogleTest binary that ran to its end).
GoogleTest cases count one by one; an entry without such a file (a fuzzer, a script, a crash) counts as one.
Exit code 0 only if no case failed, something passed and every stage left its results.
"""

import collections
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


class Count:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures = []
        self.skip_reasons = collections.Counter()

    def fail(self, name):
        self.failed += 1
        self.failures.append(name)

    def skip(self, reason):
        self.skipped += 1
        self.skip_reasons[reason] += 1

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count_gtest_file(path, entry, count):
    """Counts the cases of one file; returns how many failed, or None where there is no whole file."""
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None
    failed = 0
    for case in cases:
        skipped = case.find("skipped")
        if case.find("failure") is not None:
            failed += 1
            count.fail(f"{entry}: {case.get('classname')}.{case.get('name')}")
        elif case.get("status") == "notrun":
            continue  # disabled, or left out by the entry's own filter
        elif case.get("result") == "skipped" or skipped is not None:
            reason = (skipped.get("message") or skipped.text or "") if skipped is not None else ""
            # "file.cc:12\nreason" -> reason
            reason = re.sub(r"^\S+:\d+\s*", "", reason.strip()).strip()
            count.skip(reason.split("\n")[0] or "no reason given")
        else:
            count.passed += 1
    return failed


def count_suite(folder, count):
    entries = json.loads((folder / "entries.json").read_text())["tests"]
    command = {entry["name"]: Path(entry["command"][0]).name for entry in entries if entry.get("command")}
    # A binary writes binary.xml, and binary_1.xml, … where several entries run it.
    files = collections.defaultdict(list)
    for path in sorted((folder / "gtest").glob("*.xml")):
        stem = path.stem if path.stem in command.values() else re.sub(r"_\d+$", "", path.stem)
        files[stem].append(path)
    unread = {binary: list(paths) for binary, paths in files.items()}
    case_by_name = {case.get("name"): case for case in ElementTree.parse(folder / "ctest.xml").getroot().iter("testcase")}
    cases_failed = collections.Counter()  # per binary: cases that explain failed entries
    for name in sorted({entry["name"] for entry in entries} | set(case_by_name)):
        case = case_by_name.get(name)
        binary = command.get(name, "")
        status = case.get("status") if case is not None else "missing"
        message = (case.find("skipped").get("message") or "") if case is not None and case.find("skipped") is not None else ""
        read = None
        if unread.get(binary):
            read = count_gtest_file(unread[binary].pop(0), name, count)
            cases_failed[binary] += read or 0
        if status == "run":
            if read is None:
                count.passed += 1
        elif status == "disabled" or (status == "notrun" and message.startswith("SKIP_")):
            count.skip(f"{name}: {message or 'disabled'}")
        elif read is None or cases_failed[binary] == 0:
            # A crash, a time-out, a leak found at exit, a missing binary: no failing case explains it.
            count.fail(f"{name}: {'did not run' if status in ('notrun', 'missing') else 'crashed, timed out or failed outside its cases'}")


def count_stage(folder):
    count = Count()
    found = False
    if (folder / "checks.tsv").exists():
        found = True
        for line in (folder / "checks.tsv").read_text().splitlines():
            code, name = line.split("\t", 1)
            if code == "0":
                count.passed += 1
            else:
                count.fail(name)
    if (folder / "entries.json").exists():
        found = True
        try:
            count_suite(folder, count)
        except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
            count.fail(f"CTest left no readable results ({error})")
    if not found:
        count.fail("this stage did not run")
    return count


def summarise(results, stages, out=sys.stdout):
    total = Count()
    reasons = collections.Counter()
    for stage in stages:
        count = count_stage(results / stage)
        total.add(count)
        reasons += count.skip_reasons
        print(f"{stage}: {count.passed} ok, {count.failed} not ok, {count.skipped} left out", file=out)
        for name in count.failures:
            print(f"  FAILED  {name}", file=out)
    for reason, number in reasons.most_common():
        print(f"  left out {number}x: {reason}", file=out)
    print(total, file=out)
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(summarise(Path(sys.argv[1]), sys.argv[2:]))
