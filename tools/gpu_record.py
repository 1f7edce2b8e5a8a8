#!/usr/bin/env python3
"""What the GPU tests last said, and about which code.

  tools/gpu_record.py --hash            the hash of src/kernels and src/device (what the GPU tests prove)
  tools/gpu_record.py --run build/bin   runs the GPU tests there and writes the record
  tools/gpu_record.py --run build/bin --tool memcheck   the op tests under compute-sanitizer, into the same record
  tools/gpu_record.py --check           says whether the record is of the present code; never fails

The record is docs/measurements/gpu-tests.json. CI has no GPU: it compiles the backend and prints the check's line.
"""

import argparse
import datetime
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/measurements/gpu-tests.json"
# Whether several processes may share the card: a model test measures free memory.
PROGRAMS = {"cachalot_gpu_tests": True, "cachalot_gpu_model_tests": False}
CODE = {".cc", ".h", ".cu", ".cuh"}


def code_files() -> dict:
    """SHA-256 by name; tests and benches beside the code do not count."""
    paths = [path for folder in ("src/device", "src/kernels") for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in CODE and not re.search(r"_(test|bench|testing)\.", path.name)]
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


def code_hash() -> str:
    return hashlib.sha256(json.dumps(code_files()).encode()).hexdigest()[:16]


def share(i: int, count: int) -> set:
    """Processor cores of shard i: the references compute with as many threads as a process has cores, and those wait busily."""
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[i * len(cores) // count:(i + 1) * len(cores) // count]) or set(cores)


def started(command: list, i: int, processes: int, log: Path, more: dict | None = None) -> subprocess.Popen:
    with log.open("w") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(more or {})}, start_new_session=True,
                                preexec_fn=functools.partial(os.sched_setaffinity, 0, share(i, processes)))


def counted(result: dict, text: str) -> None:
    for left_out, cases in re.findall(r"left out (\d+) of (\d+) cases", text):
        result["cases_left_out"] = result.get("cases_left_out", 0) + int(left_out)
        result["cases"] = result.get("cases", 0) + int(cases)
    for word, n in re.findall(r"\[  ?(PASSED|SKIPPED|FAILED)  ?\] (\d+) test", text):
        result[word.lower()] = result.get(word.lower(), 0) + int(n)
    if failed := re.findall(r"\[  FAILED  \] ([\w/]+\.[\w/]+)", text):
        result["failed_tests"] = sorted({*result.get("failed_tests", []), *failed})


def shards(command: list, processes: int, log: Path) -> tuple[dict, str]:
    """Runs a test program dealt among processes; what came of it, and all that was printed (which `log` keeps too)."""
    begun = time.monotonic()
    files = [log.with_suffix(f".{i}.txt") for i in range(processes)]
    running = [started(command, i, processes, path, {"GTEST_TOTAL_SHARDS": str(processes), "GTEST_SHARD_INDEX": str(i)})
               for i, path in enumerate(files)]
    result, everything = {"exit": 0}, ""
    for process, path in zip(running, files):
        process.wait()
        text = path.read_text(errors="replace")
        everything += text
        counted(result, text)
        result["exit"] = result["exit"] or process.returncode
        if process.returncode != 0:
            print(text[-6000:])
    return {**result, "seconds": round(time.monotonic() - begun)}, everything


def tests_of(program: Path, chosen: str) -> list:
    names, suite = [], ""
    for line in subprocess.run([str(program), "--gtest_list_tests", f"--gtest_filter={chosen}"], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("  ") and "DISABLED_" not in line:
            names.append(suite + line.split("#")[0].strip())
        elif not line.startswith(" ") and re.match(r"[\w/]+\.", line):
            suite = line.split("#")[0].strip()
    return names


def one_by_one(command: list, names: list, processes: int, log: Path, limit: float) -> tuple[dict, str]:
    """Runs tests of matmuls and of sampling each in a process of its own, so that a slow one keeps no other waiting, the others six to a process,
    since the tool has to prepare each kernel in each process; what has not ended after `limit` seconds is counted as not run,
    and an exit of 1."""
    begun = time.monotonic()
    long = [name for name in names if re.search("Matmul|Fusion|Sample", name)]
    rest = [name for name in names if name not in long]
    waiting = [[name] for name in long] + [rest[i:i + 6] for i in range(0, len(rest), 6)]
    running, result, everything = {}, {"exit": 0, "not_run": 0}, ""
    while waiting or running:
        late = time.monotonic() - begun > limit
        for i in range(processes):
            if i not in running and waiting and not late:
                tests = waiting.pop(0)
                path = log.with_suffix(f".{tests[0].replace('/', '_')}.txt")
                running[i] = (tests, path, started([*command, f"--gtest_filter={':'.join(tests)}"], i, processes, path), time.monotonic())
        for i, (tests, path, process, since) in list(running.items()):
            if process.poll() is None and not late:
                continue
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # the tool and its test
                process.wait()
                result["not_run"] += len(tests)
                print(f"not ended after {time.monotonic() - since:.0f} s:", *tests)
            else:
                text = path.read_text(errors="replace")
                everything += text
                counted(result, text)
                print(f"{process.returncode} {time.monotonic() - since:5.1f} s {' '.join(tests)} {' '.join(re.findall('ERROR SUMMARY.*|RACECHECK SUMMARY.*', text))}")
                result["exit"] = result["exit"] or process.returncode
            del running[i]
        if late and waiting:
            print("not begun:", *sum(waiting, []))
            result["not_run"] += len(sum(waiting, []))
            waiting = []
        time.sleep(0.02)
    result["exit"] = result["exit"] or min(1, result["not_run"])
    return {**result, "seconds": round(time.monotonic() - begun)}, everything


def run(folder: Path, args) -> int:
    results, card, tool = {}, "", args.tool
    for name, shared in PROGRAMS.items():
        key = name if tool is None else f"{name}, {tool}"
        log = folder / f"record_{key.replace(', ', '_')}"
        if tool is None:
            results[key], text = shards([str(folder / name)], args.processes if shared else 1, log)
        elif shared:
            if args.cases:
                os.environ["CACHALOT_GPU_CASES"] = args.cases
            command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", str(folder / name)]
            results[key], text = one_by_one(command, tests_of(folder / name, args.tests), args.processes, log, args.limit)
        card = card or (re.search(r"GPU tests on (.*)", text) or [None, ""])[1]
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if tool is None or record.get("code") != code_hash():
        record = {"results": {}}
    record.update(date=datetime.date.today().isoformat(), card=card, code=code_hash(), files=code_files(), results={**record["results"], **results})
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({**record, "files": len(record["files"])}))
    return max(abs(result["exit"]) for result in results.values())


def only_on_cpus(names: set) -> set:
    """Those of `names` that are for a CPU's instruction set, by their own names or by those of all that include them."""
    includers = {}
    for path in code_files():
        for header in re.findall(r'#include "([^"]+)"', (ROOT / path).read_text()):
            includers.setdefault("src/" + header, set()).add(path)

    def of_cpus(name: str) -> bool:
        return bool(re.search("_(avx2|avx512|amx)[._]", name)) or (name in includers and all(map(of_cpus, includers[name])))

    return set(filter(of_cpus, names))


def check() -> int:
    if not RECORD.exists():
        print("no GPU run is recorded")
        return 0
    record, now = json.loads(RECORD.read_text()), code_files()
    changed = {name for name in record["files"].keys() | now.keys() if record["files"].get(name) != now.get(name)}
    cpus = only_on_cpus(changed)
    state = "of this code" if not changed else "of this code but for files that only CPUs run" if changed == cpus else \
        f"OLDER than the code (it is of {record['code']}, this is {code_hash()})"
    print(f"the recorded GPU run ({record['date']}, {record['card']}) is {state}")
    for name in sorted(changed):
        print(f"  changed since: {name}" + (" (CPUs only)" if name in cpus else ""))
    for name, result in record["results"].items():
        print(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in result.items() if key != "seconds"))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--hash", action="store_true")
    group.add_argument("--run", metavar="FOLDER", type=Path)
    group.add_argument("--check", action="store_true")
    parser.add_argument("--tool", choices=["memcheck", "racecheck", "initcheck", "synccheck"],
                        help="run the op tests under this tool of compute-sanitizer and add what came of it to the record")
    parser.add_argument("--processes", type=int, default=1, help="among which the op tests are dealt (they wait for references on the CPU)")
    parser.add_argument("--tests", default="*", metavar="FILTER", help="with --tool: which tests (GoogleTest's patterns)")
    parser.add_argument("--cases", metavar="EVERY,MOST", help="with --tool: of the cases with at most MOST multiply-adds each EVERY-th one")
    parser.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="with --tool: what has not ended by then is counted as not run")
    args = parser.parse_args()
    if args.hash:
        print(code_hash())
        return 0
    return check() if args.check else run(args.run, args)


if __name__ == "__main__":
    sys.exit(main())
