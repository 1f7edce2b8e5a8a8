#!/usr/bin/env python3
"""Tests of test_summary.py on results written by hand: what is counted, and that nothing broken counts as passed."""

import io
import json
import tempfile
import unittest
from pathlib import Path

import test_summary

GTEST = """<testsuites><testsuite name="S">
<testcase name="A" status="run" result="completed" classname="S" />
<testcase name="B" status="run" result="skipped" classname="S"><skipped message="x_test.cc:3&#x0A;no GPU" /></testcase>
<testcase name="D" status="notrun" result="suppressed" classname="S" />
{more}</testsuite></testsuites>"""
FAILING = '<testcase name="C" status="run" result="completed" classname="S"><failure message="m" /></testcase>\n'


class SummaryTest(unittest.TestCase):
    def summarise(self, entries, gtest_files=(), checks=None, stages=("release",)):
        """entries: name -> (binary, CTest status, skip message or None)."""
        with tempfile.TemporaryDirectory() as folder:
            stage = Path(folder) / "release"
            (stage / "gtest").mkdir(parents=True)
            listing = [{"name": n, "command": [f"/b/bin/{b}"]} for n, (b, _, _) in entries.items()]
            (stage / "entries.json").write_text(json.dumps({"tests": listing}))
            cases = "".join(
                f'<testcase name="{n}" status="{s}">' + (f'<skipped message="{m}"/>' if m else "") + "</testcase>"
                for n, (_, s, m) in entries.items() if s)
            (stage / "ctest.xml").write_text(f"<testsuite>{cases}</testsuite>")
            for name, text in dict(gtest_files).items():
                (stage / "gtest" / name).write_text(text)
            if checks is not None:
                (stage / "checks.tsv").write_text(checks)
            out = io.StringIO()
            code = test_summary.summarise(Path(folder), stages, out)
            return out.getvalue().splitlines()[-1], code, out.getvalue()

    def test_cases_count_one_by_one(self):
        line, code, text = self.summarise({"kv": ("kv_test", "run", None)}, {"kv_test.xml": GTEST.format(more="")})
        self.assertEqual((line, code), ("1 passed, 0 failed, 1 skipped", 0))
        self.assertIn("left out 1x: no GPU", text)

    def test_a_failing_case_counts_once(self):
        line, code, text = self.summarise({"kv": ("kv_test", "fail", None)}, {"kv_test.xml": GTEST.format(more=FAILING)})
        self.assertEqual((line, code), ("1 passed, 1 failed, 1 skipped", 1))
        self.assertIn("FAILED  kv: S.C", text)

    def test_a_leak_after_passing_cases_is_a_failure(self):
        line, code, _ = self.summarise({"kv": ("kv_test", "fail", None)}, {"kv_test.xml": GTEST.format(more="")})
        self.assertEqual((line, code), ("1 passed, 1 failed, 1 skipped", 1))

    def test_a_crash_or_a_torn_file_is_a_failure(self):
        for files in ({}, {"kv_test.xml": GTEST.format(more="")[:80]}):
            self.assertEqual(self.summarise({"kv": ("kv_test", "fail", None)}, files)[:2],
                             ("0 passed, 1 failed, 0 skipped", 1))

    def test_what_did_not_run_is_a_failure(self):
        self.assertEqual(self.summarise({"kv": ("kv_test", "notrun", "Unable to find executable")})[:2],
                         ("0 passed, 1 failed, 0 skipped", 1))
        self.assertEqual(self.summarise({"kv": ("kv_test", None, None)})[:2], ("0 passed, 1 failed, 0 skipped", 1))
        self.assertEqual(self.summarise({"kv": ("s", "run", None)}, stages=("release", "relassert"))[:2],
                         ("1 passed, 1 failed, 0 skipped", 1))

    def test_nothing_passed_is_no_success(self):
        self.assertEqual(self.summarise({})[:2], ("0 passed, 0 failed, 0 skipped", 1))

    def test_entries_that_are_no_gtest_count_as_one(self):
        self.assertEqual(self.summarise({"fuzz": ("fuzz_gguf", "run", None),
                                         "gpu": ("gpu.sh", "notrun", "SKIP_RETURN_CODE=77")})[:2],
                         ("1 passed, 0 failed, 1 skipped", 0))

    def test_two_entries_of_one_binary(self):
        files = {"kv_test.xml": GTEST.format(more=""), "kv_test_1.xml": GTEST.format(more="")}
        self.assertEqual(self.summarise({"kv_a": ("kv_test", "run", None), "kv_b": ("kv_test", "run", None)}, files)[:2],
                         ("2 passed, 0 failed, 2 skipped", 0))

    def test_checks(self):
        self.assertEqual(self.summarise({"kv": ("s", "run", None)}, checks="0\ta\n1\tb\n")[:2],
                         ("2 passed, 1 failed, 0 skipped", 1))


if __name__ == "__main__":
    unittest.main()
