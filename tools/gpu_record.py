#!/usr/bin/env python3
"""What the GPU tests last said, and about which code.

  tools/gpu_record.py --hash            the hash of src/kernels and src/device (what the GPU tests prove)
  tools/gpu_record.py --run build/bin   runs the GPU tests there and writes the record
  tools/gpu_record.py --check           says whether the record is of the present code; never fails

The record is docs/measurements/gpu-tests.json. CI has no GPU: it compiles the backend and prints the check's line.
"""

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/measurements/gpu-tests.json"
PROGRAMS = ["cachalot_gpu_tests", "cachalot_gpu_model_tests"]
CODE = {".cc", ".h", ".cu", ".cuh"}


def code_hash() -> str:
    """SHA-256 over names and contents, in the order of the names; tests and benches beside the code do not count."""
    digest = hashlib.sha256()
    for folder in ("src/device", "src/kernels"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in CODE or re.search(r"_(test|bench|testing)\.", path.name):
                continue
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def run(folder: Path) -> int:
    results, card = {}, ""
    for name in PROGRAMS:
        done = subprocess.run([str(folder / name), "--gtest_brief=1"], capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        counts = {word.lower(): int(n) for word, n in re.findall(r"\[  ?(PASSED|SKIPPED|FAILED)  ?\] (\d+) test", text)}
        results[name] = {"exit": done.returncode, **counts}
        card = card or (re.search(r"GPU tests on (.*)", text) or [None, ""])[1]
        if done.returncode != 0:
            print(text[-6000:])
    record = {"date": datetime.date.today().isoformat(), "card": card, "code": code_hash(), "results": results}
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))
    return max(abs(result["exit"]) for result in results.values())


def check() -> int:
    if not RECORD.exists():
        print("no GPU run is recorded")
        return 0
    record = json.loads(RECORD.read_text())
    same = record["code"] == code_hash()
    state = "of this code" if same else f"OLDER than the code (it is of {record['code']}, this is {code_hash()})"
    print(f"the recorded GPU run ({record['date']}, {record['card']}) is {state}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--hash", action="store_true")
    group.add_argument("--run", metavar="FOLDER", type=Path)
    group.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.hash:
        print(code_hash())
        return 0
    return check() if args.check else run(args.run)


if __name__ == "__main__":
    sys.exit(main())
