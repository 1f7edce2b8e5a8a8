#!/usr/bin/env python3
"""Schemathesis on the served /openapi.json: whatever the description allows, and what it does not, no answer is a 5xx, and
every answer has a status, a type and a form that the description names.

usage: schema_test.py PATH/TO/cachalot [--examples N] [--seed N]
Skipped (77) where schemathesis is not installed (tools/setup.sh clients).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from program_log import ProgramLog

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "build" / "clients"
TIMEOUT = 120
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(CLIENTS), os.environ.get("PYTHONPATH")]))}


def known_names_only(node, names):
    """Other names of models are 404 and come no further: most bodies would end there."""
    if isinstance(node, dict):
        if str(node.get("description", "")).startswith("One of /v1/models"):
            node.clear()
            node["enum"] = names
        for child in node.values():
            known_names_only(child, names)
    elif isinstance(node, list):
        for child in node:
            known_names_only(child, names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--examples", type=int, default=8, help="of each operation")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    run = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    if subprocess.run([*run, "--version"], env=environment(), capture_output=True, check=False).returncode != 0:
        print("skipped: schemathesis is not installed (tools/setup.sh clients)")
        sys.exit(77)
    log = ProgramLog()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([args.program, "serve", "--dummy", "tiny-llama", "--port", "0", "-c", "128", "--max-num-seqs", "8", "-t", "1",
                                   "--request-log="], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log.end)
        try:
            url = f"http://127.0.0.1:{log.port(server)}/"
            with urllib.request.urlopen(url + "openapi.json", timeout=TIMEOUT) as answer:
                api = json.load(answer)
            known_names_only(api, ["tiny-llama"])
            path = Path(folder) / "openapi.json"
            path.write_text(json.dumps(api))
            # One worker: CPython 3.11 parses in two threads with one depth between them ("AST constructor recursion depth mismatch").
            done = subprocess.run([*run, "run", str(path), "--url", url, "--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples",
                                   str(args.examples), "--seed", str(args.seed), "--workers", "1", "--request-timeout", "60", "--suppress-health-check", "too_slow", "--no-color"],
                                  env=environment(), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            print(done.stdout[-6000:])
            if done.returncode != 0:
                sys.exit("schemathesis found something")
        finally:
            server.terminate()
            code = server.wait(TIMEOUT)
        if code != 0:
            sys.exit(f"the server ended with {code}:\n{log.text()[-2000:]}")


if __name__ == "__main__":
    main()
