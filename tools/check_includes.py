#!/usr/bin/env python3
"""Checks the tree against its plan: who may include whom, and the house rules that a machine can see.

Reads every source file and CMakeLists.txt; prints `file:line: what is wrong` for each finding and exits 1 if
there is any. The table below is the one in the architecture document ("Who may include whom"); our readings of
its ambiguous places are in docs/decisions/0001-build-and-boundaries.md. A new module is one new row.
"""

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

# module -> the modules it may include directly. Rows are transitive, except through PLAN_ONLY.
# Every module may include base and obs, but for base and obs themselves.
COMPUTE = {
    "tensor": [],
    "quant": ["tensor"],
    "device": ["quant"],
    "kernels": ["device"],
    "formats": ["tensor"],  # dtype and shape only: a file names the element types of its tensors
    "weights": ["formats", "tensor", "quant", "device"],
    "parallel": ["tensor", "device"],
    "model": ["kernels", "weights", "parallel"],
}
POLICY = {
    "kv": [],
    "moe": [],
    "spec": [],
    "skip": [],
    "sample": [],
    "control": [],
    "topology": [],
    "tokenizer": ["formats"],
    "grammar": ["tokenizer"],
    "sched": ["kv", "moe", "spec", "skip", "sample"],
}
TOP = {
    "runtime": ["model", "parallel", "weights", "kernels"],
    "engine": ["sched", "runtime", "control", "tokenizer", "grammar"],
    "hub": ["formats"],
    "tasks": [*COMPUTE, *POLICY, "runtime"],
    "server": ["engine"],
    "capi": ["engine"],
    "capi/flashinfer": ["kernels"],
    "cli": ["engine", "tasks", "server", "hub"],
}
TABLE = {"base": [], "obs": ["base"], **COMPUTE, **POLICY, **TOP}

# Where the towers meet: runtime sees of these modules only headers named plan.h or *_plan.h, and such a header
# itself sees only base, obs and other plan headers.
PLAN_ONLY = {"runtime": set(POLICY) - {"topology", "tokenizer", "grammar"}}
PLAN_HEADER = re.compile(r"(^|_)plan\.h$")

CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|cupti|cutlass|nccl|nvml|nvtx|nv/)")
CUDA_ALLOWED = set(COMPUTE) - {"formats", "quant"} | {"runtime", "capi", "capi/flashinfer"}

# Vector code stays in files whose name says which instruction set they need (and are compiled for it); what every
# x86-64 has (SSE2, pause) may stand anywhere, and a function with a target attribute says it itself.
INTRINSICS = re.compile(r"\b(_mm(?:256|512)_\w+|__m(?:256|512)[di]?)\b|\b(arm_neon\.h)\b")
INTRINSICS_FILE = re.compile(r"[_/](avx2|avx512|amx|neon)(_[a-z0-9]+)?\.(cc|h)$")

KERNEL_VARIANT = re.compile(r"_(ref|avx2|avx512|amx|sm\d+a?)$")

ENVIRONMENT_ALLOWED = re.compile(r"^(XDG_\w+|OTEL_\w+|HF_\w+|HOME|NO_COLOR|TERM)$")
# The library never prints, exits or aborts; cli/ is the program, and a failed CHECK is the one legal death.
PROCESS_CALL = re.compile(
    r"(?<![\w.>:])(?:(?:std)?::)?(exit|_exit|_Exit|quick_exit|abort|terminate|printf|vprintf|fprintf|vfprintf|"
    r"puts|fputs|putchar|perror)\s*\(|\b(std::(?:cout|cerr|clog))\b|\b(fmt::print)\s*\(")
PROCESS_ALLOWED = {"src/base/check.cc"}

WARN_LINES, FAIL_LINES = 400, 800
GENERATED = re.compile(r"^\W*(generated|made) by tools/", re.IGNORECASE | re.MULTILINE)

CXX = {".h", ".cc", ".cu", ".cuh"}
UNIQUE = CXX | {".py", ".sh"}
SHARED_STEMS = {"plan"}  # one plan.h per policy module, by design
STEM_SUFFIX = re.compile(r"_(test|bench|fuzz)$")

# Words of a workplace, not of the project; spelt in pieces so that this file passes its own check.
FOREIGN = [
    (re.compile("sub" + "agent", re.IGNORECASE), "a word that is nobody's business here"),
    (re.compile("helper" + " session", re.IGNORECASE), "a word that is nobody's business here"),
    (re.compile(r"(?<![\w.$}])/" + "work/"), "an absolute path of one machine"),
    (re.compile(r"py" r"pi\.org|python" r"hosted\.org|deb\." r"debian\.org|archive\." r"ubuntu\.com"),
     "the host name of a package registry"),
]


@dataclass
class Report:
    errors: list = field(default_factory=list)
    warnings: list = field(default_factory=list)

    def error(self, path, line, text):
        self.errors.append(f"{path}:{line}: {text}")

    def warn(self, path, line, text):
        self.warnings.append(f"{path}:{line}: {text}")


def closure(table):
    """module -> every module it may include, itself and what all may include among them."""
    reach = {}

    def visit(module, path):
        if module in path:
            raise ValueError("the dependency table has a cycle: " + " -> ".join([*path, module]))
        if module not in reach:
            seen = {module}
            for dep in table[module]:
                seen |= visit(dep, [*path, module])
            if module != "base":
                seen |= {"base", "obs"}
            reach[module] = seen
        return reach[module]

    for module in table:
        visit(module, [])
    for module in set(POLICY) & set(table):  # reading a format's headers does not open the compute tower
        reach[module] = reach[module] - set(COMPUTE) | {"formats"} & reach[module]
    return reach


def module_of(relative):
    """The module of a path below src/: its first folder, or a longer one that has a row of its own."""
    parts = relative.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in TABLE:
            return name
    return parts[0] if parts else ""


def strip_code(text, keep_strings=False):
    """Blanks comments (and string literals), keeping every line break, so that line numbers stay true."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![\w\'])\'(?:\\.|[^\'\\\n])+\'',
        re.DOTALL)

    def blank(match):
        piece = match.group(0)
        if keep_strings and not piece.startswith("/"):
            return piece
        return ('""' if not piece.startswith("/") else " ") + "\n" * piece.count("\n")

    return token.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def is_test_file(path):
    return bool(re.search(r"_(test|bench|fuzz)\.(cc|cu)$", path)) or not path.startswith("src/")


def check_include(path, line, target, quoted, reach, report):
    module = module_of(path[len("src/"):])
    if not quoted:
        if CUDA_HEADER.match(target) and module not in CUDA_ALLOWED:
            report.error(path, line, f"{module}/ may not include the CUDA header <{target}>")
        return
    if "/" not in target:
        report.error(path, line, f'"{target}": write include paths from src/, as in "base/status.h"')
        return
    other = module_of(target)
    if other == "support" and is_test_file(path):
        return  # tests/support/: what tests of several modules share; it includes no module
    if other == "cachalot" and module.startswith("capi"):
        return  # the public headers, in include/: they are what capi/ implements
    if other not in TABLE:
        report.error(path, line, f'"{target}": {other}/ is not a module of the dependency table')
        return
    name = target.rsplit("/", 1)[1]
    plan_only = other in PLAN_ONLY.get(module, ())
    if plan_only and not PLAN_HEADER.search(name):
        report.error(path, line, f'"{target}": {module}/ may include only plan headers (plan.h, *_plan.h) of {other}/')
    elif not plan_only and other not in reach[module]:
        report.error(path, line, f'"{target}": {module}/ may not include {other}/')
    own_name = path.rsplit("/", 1)[1]
    if PLAN_HEADER.search(own_name) and module in PLAN_ONLY["runtime"]:
        if other not in ("base", "obs") and not PLAN_HEADER.search(name):
            report.error(path, line, f'"{target}": a plan header sees only base/, obs/ and other plan headers')


def check_source(path, text, reach, report):
    code = strip_code(text, keep_strings=True)
    bare = strip_code(text)
    in_src = path.startswith("src/")

    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', code, re.MULTILINE):
        line = line_of(code, match.start())
        if in_src:
            check_include(path, line, match.group(1) or match.group(2), match.group(1) is not None, reach, report)
        elif path.startswith("include/") and match.group(1) and not match.group(1).startswith("cachalot/"):
            report.error(path, line, "public headers include only the standard library and each other")

    if in_src and module_of(path[len("src/"):]) not in TABLE:
        report.error(path, 1, "this folder has no row in the dependency table of tools/check_includes.py")

    if in_src and not is_test_file(path):
        wide = INTRINSICS.search(bare)
        if wide and not INTRINSICS_FILE.search(path) and "__attribute__((target(" not in bare:
            report.error(path, line_of(bare, wide.start()),
                         f"{wide.group(0)} belongs in a file named *_avx2.cc, *_avx512.cc, *_amx.cc or *_neon.cc")
        for match in re.finditer(r"\b(?:secure_)?getenv\s*\(\s*([^)\n]*)", code):
            name = re.fullmatch(r'"(\w+)"\s*', match.group(1))
            if not name or not ENVIRONMENT_ALLOWED.match(name.group(1)):
                report.error(path, line_of(code, match.start()),
                             f"getenv({match.group(1).strip()}): environment variables are no API "
                             "(XDG_*, OTEL_*, HF_*, HOME, NO_COLOR, TERM apart)")
        if not path.startswith("src/cli/") and path not in PROCESS_ALLOWED:
            for match in PROCESS_CALL.finditer(bare):
                call = next(group for group in match.groups() if group)
                report.error(path, line_of(bare, match.start()), f"{call}: the library never prints, exits or aborts")

    lines = text.count("\n")
    if lines > WARN_LINES and not GENERATED.search(text[:600]):
        if lines > FAIL_LINES:
            report.error(path, lines, f"{lines} lines; {FAIL_LINES} is the limit: this is several files")
        else:
            report.warn(path, lines, f"{lines} lines (> {WARN_LINES}): probably two files")


def check_kernel_folder(path, paths, report):
    """kernels/<op>/: one level, named as its header; a variant (_ref, _avx2, _sm90 …) is named after a header.

    kernels/common/ is what several ops share, and no op."""
    parts = path.split("/")
    if len(parts) > 4:
        report.error(path, 1, "kernel sources lie in kernels/<op>/, one level deep")
    if len(parts) != 4:
        return
    op, folder = parts[2], "/".join(parts[:3])
    headers = {Path(p).stem for p in paths if p.startswith(folder + "/") and p.endswith(".h")}
    if op != "common" and op not in headers:
        report.error(path, 1, f"{folder}/ needs {op}.h, the op's API")
        return
    stem = KERNEL_VARIANT.sub("", Path(path).stem)
    variant = op != "common" and stem != Path(path).stem and path.endswith(".cc")
    if variant and not any(stem == h or stem.startswith(h + "_") for h in headers):
        report.error(path, 1, f"a variant of what? No header beside it is named as '{stem}' begins")


def check_names(paths, report):
    """A stem names one thing in the whole tree: x.h, x.cc and x_test.cc stand side by side (plan.h apart)."""
    home = {}
    for path in sorted(paths):
        if Path(path).suffix not in UNIQUE:
            continue
        folder, name = os.path.split(path)
        if not re.fullmatch(r"[a-z0-9_]+\.[a-z]+", name):
            report.error(path, 1, "file names are snake_case")
        stem = Path(name).stem
        # x_test.cc belongs to the x beside it; in tests/ x_fuzz.cc only tells that it is about x.
        keys = {stem} if folder.startswith("tests") else {stem, STEM_SUFFIX.sub("", stem)}
        for key in sorted(keys - SHARED_STEMS, key=len):
            if home.setdefault(key, folder) != folder:
                report.error(path, 1, f"the name '{key}' is taken in {home[key]}/: file names are unique in the tree")
                break


def check_cmake(cmake_files, reach, report):
    """Links follow the same table as includes. cmake_files: path -> text of src/**/{CMakeLists.txt,*.cmake}."""
    bare = {path: re.sub(r"#[^\n]*", "", text) for path, text in cmake_files.items()}
    home = {}
    for path, text in bare.items():
        for match in re.finditer(r"\bcachalot_module\s*\(\s*(\w+)", text):
            home["cachalot_" + match.group(1)] = module_of(path[len("src/"):])
    for path, text in bare.items():
        module = module_of(path[len("src/"):])
        if not module:
            continue
        allowed = reach.get(module, {module}) | PLAN_ONLY.get(module, set())
        for match in re.finditer(r"\bcachalot_\w+", text):
            other = home.get(re.sub(r"_(test|bench)$", "", match.group(0)))
            if other and other not in allowed:
                report.error(path, line_of(text, match.start()), f"{match.group(0)}: {module}/ may not link {other}/")


def check_foreign(path, text, report):
    for pattern, what in FOREIGN:
        for match in pattern.finditer(text):
            report.error(path, line_of(text, match.start()), f"'{match.group(0)}': {what}")


def list_files(root):
    """Tracked and new files, without ignored ones; a plain walk where there is no git."""
    try:
        out = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"],
                             check=True, capture_output=True).stdout
        names = [os.fsdecode(name) for name in out.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(root)) for p in root.rglob("*")
                 if not re.match(r"(build|build-[^/]*|\.git|\.cache)(/|$)", str(p.relative_to(root)))]
    return sorted({name for name in names if (root / name).is_file() and not (root / name).is_symlink()})


def check_tree(root):
    report = Report()
    reach = closure(TABLE)
    paths = list_files(root)
    cmake_files = {}
    for path in paths:
        if path.startswith("tests/data/"):
            continue
        data = (root / path).read_bytes()
        if b"\0" in data[:8192]:
            continue
        text = data.decode("utf-8", errors="replace")
        check_foreign(path, text, report)
        if Path(path).suffix in CXX:
            check_source(path, text, reach, report)
            if path.startswith("src/kernels/"):
                check_kernel_folder(path, paths, report)
        if path.startswith("src/") and path.endswith(("/CMakeLists.txt", ".cmake")):
            cmake_files[path] = text
    check_names([p for p in paths if not p.startswith("tests/data/")], report)
    check_cmake(cmake_files, reach, report)
    return report, len(paths)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    report, count = check_tree(root)
    for text in report.warnings:
        print("warning: " + text)
    for text in report.errors:
        print("error: " + text)
    print(f"{count} files: {len(report.errors)} errors, {len(report.warnings)} warnings")
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
