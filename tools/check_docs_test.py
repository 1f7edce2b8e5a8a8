#!/usr/bin/env python3
"""Tests of check_docs.py on a small tree with a stand-in program."""

import tempfile
import unittest
from pathlib import Path

import check_docs as cd

PROGRAM = """#!/bin/sh
if [ "$1" = --help ]; then
  printf 'usage: cachalot COMMAND ...\\n\\n'
  printf '  run     answer\\n  inspect  show\\n\\ncachalot --version tells the version\\n'
elif [ "$1" = run ]; then
  printf 'Options:\\n  -m TEXT   file\\n  --temp,--temperature FLOAT\\n'
elif [ "$2" = ppl ]; then
  printf '  --window N\\n'
else
  printf 'Options:\\n  -c UINT\\n'
fi
"""


class CheckDocsTest(unittest.TestCase):
    def problems(self, markdown):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "src/base").mkdir(parents=True)
            (root / "src/base/status.h").touch()
            (root / "docs").mkdir()
            (root / "docs/a.md").touch()
            (root / "Makefile").write_text("run:\n\ttrue\n")
            program = root / "program"
            program.write_text(PROGRAM)
            program.chmod(0o755)
            (root / "README.md").write_text(markdown)
            return cd.check(root, cd.Program(program))[0]

    def test_paths(self):
        self.assertEqual(self.problems("`src/base/status.h` `base/status.h:12` `base/` `src/base/*.h` `status.h` "
                                       "`build/cachalot` `text/plain` `1/2` [a](docs/a.md) [b](https://x.y/z)"), [])
        for wrong in ("`src/base/nothing.h`", "`base/nothing.h`", "`tools/x.py`", "`nothing.h`", "[a](docs/b.md)"):
            self.assertEqual(len(self.problems(wrong)), 1, wrong)

    def test_the_future_is_not_checked(self):
        self.assertEqual(self.problems("planned: `src/base/nothing.h`"), [])

    def test_commands_and_flags(self):
        self.assertEqual(self.problems("`cachalot run -m x --temp 0`, `cachalot -m x -c 5`, `make run`\n"
                                       "```\n$ build/cachalot inspect -c 4 | grep --colour x\n```"), [])
        self.assertIn("no command 'fly'", self.problems("`cachalot fly`")[0])
        self.assertIn("no flag --fly", self.problems("```\ncachalot run --fly\n```")[0])
        self.assertEqual(self.problems("`--temp`, `-c 5`, `cachalot COMMAND --help`"), [])
        self.assertEqual(self.problems("`cachalot inspect ppl --window 5`"), [])
        self.assertIn("no flag --fly", self.problems("`--fly`")[0])
        self.assertIn("no flag -c", self.problems("`cachalot run -c 5`")[0])
        self.assertIn("no target 'fly'", self.problems("`make fly`")[0])


if __name__ == "__main__":
    unittest.main()
