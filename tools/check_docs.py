#!/usr/bin/env python3
"""Checks that the documents name only what exists: repository paths, make targets, commands and flags.

Looks at README.md, docs/**/*.md and every CONTRACT.md, in `code spans`, fenced blocks and links.
A line that says "planned" speaks of the future and is not checked. Commands and flags are compared with the
program's own --help; without a built program that part is skipped, and the output says so.
"""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
PLANNED = re.compile(r"\bplanned\b", re.IGNORECASE)
PATH = re.compile(r"\.?[A-Za-z0-9_][\w.+*-]*(/[\w.+*-]+)*/?")
PRODUCTS = re.compile(r"build(-[a-z]+)?(/|$)")  # what a build makes is not in the repository
SUFFIXES = {".md", ".cc", ".h", ".cu", ".py", ".sh", ".txt", ".cmake"}
FLAG = re.compile(r"--?[A-Za-z][\w-]*")


def pieces(text):
    """(line number, kind, piece) with kind "span", "link" or "command" (a line of a fenced block)."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif PLANNED.search(line):
            continue
        elif fenced:
            yield number, "command", line.strip()
        else:
            for match in SPAN.finditer(line):
                yield number, "span", match.group(1)
            for match in LINK.finditer(SPAN.sub("", line)):
                yield number, "link", match.group(1)


def path_problem(root, piece):
    """Why `piece`, if it looks like a path of this repository, does not name one; else None."""
    piece = re.sub(r":\d+$", "", piece)
    if not PATH.fullmatch(piece) or PRODUCTS.match(piece):
        return None
    first = piece.split("/")[0]
    if "/" in piece:
        bases = [base for base in (root, root / "src") if (base / first).is_dir()]
        top = first in ("src", "include", "tests", "tools", "docs", "cmake", "bench", "web", "deploy", ".ci")
        if not bases and not top:
            return None  # a MIME type, a fraction, a model's name: not ours
    elif Path(piece).suffix in SUFFIXES and "*" not in piece:
        named = [p for p in root.glob("**/" + piece) if not PRODUCTS.match(str(p.relative_to(root)))]
        return None if named else f"no file of this name in the repository: {piece}"
    else:
        return None
    if any(list(base.glob(piece.rstrip("/"))) for base in bases):
        return None
    return f"no such path: {piece}"


class Program:
    """What the program says of itself in --help: its subcommands and each one's flags."""

    def __init__(self, binary):
        self.binary = binary
        main = self.help()
        self.commands = set(re.findall(r"^ {1,4}([a-z][\w-]*) {2,}\S", main, re.MULTILINE))
        self.flags = {"": set(FLAG.findall(main))}
        for command in self.commands:
            self.flags[command] = set(FLAG.findall(self.help(command)))

    def help(self, *command):
        done = subprocess.run([self.binary, *command, "--help"], capture_output=True, text=True, timeout=30,
                              stdin=subprocess.DEVNULL)
        return done.stdout + done.stderr

    def problem(self, words):
        """words: a command line after the program's name, or flags alone."""
        command = ""
        if words and not words[0].startswith("-"):
            command = words[0]
            if command.isupper():  # a placeholder
                return None
            if command not in self.commands:
                return f"the program has no command '{command}'"
        known = self.flags[command] | ({"-h", "--help"} if command else set())
        if len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]):  # a command of two words: eval ppl
            known |= set(FLAG.findall(self.help(command, words[1])))
        if not command:  # flags without a command may belong to any
            known = set().union(*self.flags.values())
        for word in words:
            match = re.fullmatch(r"(--?[A-Za-z][\w-]*)(=.*)?", word)
            if match and match.group(1) not in known:
                return f"the program{' ' + command if command else ''} has no flag {match.group(1)}"
        return None


def split_words(text):
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def command_problem(program, targets, piece):
    words = split_words(re.sub(r"^\$ ", "", piece))
    if not words:
        return None
    if words[0] == "make":
        for word in words[1:]:
            if re.fullmatch(r"[a-z][\w-]*", word) and word not in targets:
                return f"the Makefile has no target '{word}'"
        return None
    if program is None:
        return None
    if words[0] in ("cachalot", "build/cachalot", "./build/cachalot"):
        end = next((i for i, word in enumerate(words) if word in ("|", ">", "<", "&&", ";")), len(words))
        return program.problem([w for w in words[1:end] if w not in ("…", "...")])
    return None


def check(root, program):
    errors = []
    makefile = root / "Makefile"
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile.read_text(), re.MULTILINE)) if makefile.exists() else set()
    documents = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("src/**/CONTRACT.md")]
    for document in sorted(filter(Path.exists, documents)):
        for number, kind, piece in pieces(document.read_text()):
            if kind == "link":
                target = piece.split("#")[0]
                found = re.match(r"[a-z]+:", piece) or not target or (document.parent / target).exists()
                problem = None if found else f"the link leads nowhere: {piece}"
            else:
                problem = command_problem(program, targets, piece)
                if kind == "span" and program and document.name == "README.md" and FLAG.match(piece):
                    problem = program.problem(split_words(piece))  # a flag by itself is the program's
                if kind == "span":
                    problem = problem or path_problem(root, piece)
            if problem:
                errors.append(f"{document.relative_to(root)}:{number}: {problem}")
    return errors, len(documents)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--program", type=Path, help="the built program, whose --help the documents must match")
    args = parser.parse_args()
    program = None
    if args.program and args.program.exists():
        program = Program(args.program.resolve())
    else:
        print("note: no built program: commands and flags in the documents are not checked")
    errors, count = check(args.root.resolve(), program)
    for text in errors:
        print("error: " + text)
    print(f"{count} documents: {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
