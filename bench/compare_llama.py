#!/usr/bin/env python3
"""Compares cachalot with llama.cpp (make peers) on the same files.

  bench/compare_llama.py ppl   -m FILE.gguf -c 512,1024            perplexity of the same text by the same protocol
  bench/compare_llama.py speed -m FILE.gguf -t 1,2 -b 1,8          prompt and generation speed
  bench/compare_llama.py start -m FILE.gguf                        first token from process start, peak memory
  bench/compare_llama.py opens -m FILE.gguf                        do both run this file at all?

Speeds are measured in pairs: one run of each program directly after the other, who is first changing from pair to
pair, and what counts is the median of the pairs' ratios, because a shared machine is slow for both when it is slow.
Only one comparison runs at a time on a machine (a lock in the temporary folder). Interrupted, `speed` tells the pairs
it has (so may be given a limit: timeout -s INT 180 bench/compare_llama.py speed …).
"""
import argparse
import contextlib
import datetime
import fcntl
import json
import lzma
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

from peer_runs import Cachalot, Llama, RunError, first_token

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20


def note(text):
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def only_one():
    with open(os.path.join(tempfile.gettempdir(), "cachalot-bench.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("another comparison runs; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def plain_text(path):
    """The file itself, or an unpacked copy of FILE.xz."""
    if not path.endswith(".xz"):
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".txt") as copy:
        copy.write(lzma.open(path).read())
        copy.flush()
        yield copy.name


def spread(values):
    ordered = sorted(values)
    quarters = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
    return {"median": statistics.median(ordered), "quarter": quarters[0], "three_quarters": quarters[2],
            "min": ordered[0], "max": ordered[-1]}


def cpu_name():
    with contextlib.suppress(OSError):
        for line in open("/proc/cpuinfo", encoding="utf-8"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def told_by(command):
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              check=True).stdout.strip()
    return ""


def circumstances(args):
    peer = pathlib.Path(args.peers) / "VERSION"
    return {"date": datetime.datetime.now().isoformat(timespec="seconds"), "cpu": cpu_name(), "cores": os.cpu_count(),
            "load": os.getloadavg()[0], "peer": peer.read_text(encoding="utf-8").strip() if peer.exists() else "unknown",
            "commit": told_by(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]),
            "changed": bool(told_by(["git", "-C", str(ROOT), "status", "--porcelain", "-uno", "src"]))}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def compare_ppl(args, ours, theirs):
    results = []
    with plain_text(args.text) as text:
        for model in args.model:
            for context in args.context:
                case = (model, text, context, args.threads[0], args.chunks)
                a, b = ours.ppl(*case), theirs.ppl(*case)
                if a["chunks"] != b["chunks"]:
                    raise RunError(f"{model}, context {context}: {a['chunks']} chunks here, {b['chunks']} there")
                results.append({"model": model, "context": context, "chunks": a["chunks"], "ours": a["ppl"],
                                "theirs": b["ppl"], "error": b["error"], "difference": a["ppl"] / b["ppl"] - 1,
                                "commands": [ours.ppl_command(*case), theirs.ppl_command(*case)]})
                note(f"{pathlib.Path(model).name} -c {context}: {a['ppl']:.4f} and {b['ppl']:.4f}")
    rows = [[pathlib.Path(r["model"]).name, str(r["context"]), str(r["chunks"]), f"{r['ours']:.4f}",
             f"{r['theirs']:.4f} ± {r['error']:.2f}", f"{100 * r['difference']:+.3f} %"] for r in results]
    return results, table(["file", "context", "chunks", "cachalot", "llama.cpp", "difference"], rows)


def measure_pairs(args, ours, theirs, cases, pairs):
    for i in range(args.pairs):
        for case in cases:  # pairs of different cases interleave too
            load = os.getloadavg()[0]
            first, second = (ours, theirs) if i % 2 == 0 else (theirs, ours)
            told = {first.name: first.speed(*case), second.name: second.speed(*case)}
            for test, speed in told[ours.name].items():
                pairs.setdefault((case, test), []).append(
                    {"ours": speed, "theirs": told[theirs.name][test], "load": load})
            note(f"pair {i + 1} of {args.pairs}, load {load:.1f}: {pathlib.Path(case[0]).name} -t {case[1]} -b {case[4]} "
                 + ", ".join(f"{t} {s:.2f} and {told[theirs.name][t]:.2f}" for t, s in told[ours.name].items()))


def compare_speed(args, ours, theirs):
    cases = [(model, threads, args.prompt if batch == 1 else 0, args.generate if batch == 1 else args.batch_generate,
              batch) for model in args.model for threads in args.threads for batch in args.batch]
    pairs = {}
    with contextlib.suppress(KeyboardInterrupt):
        measure_pairs(args, ours, theirs, cases, pairs)
    commands = {case: [ours.speed_command(*case), theirs.speed_command(*case)] for case in cases}
    results, rows = [], []
    for (case, test), values in pairs.items():
        a, b = (spread([v[side] for v in values]) for side in ("ours", "theirs"))
        ratio = spread([v["ours"] / v["theirs"] for v in values])
        results.append({"model": case[0], "threads": case[1], "batch": case[4], "test": test, "ours": a, "theirs": b,
                        "ratio": ratio, "pairs": values, "commands": commands[case]})
        rows.append([pathlib.Path(case[0]).name, str(case[1]), str(case[4]), test, f"{a['median']:.2f}",
                     f"{b['median']:.2f}", f"**{ratio['median']:.2f}**",
                     f"{ratio['quarter']:.2f}–{ratio['three_quarters']:.2f}", str(len(values))])
    return results, table(["file", "threads", "batch", "test", "cachalot t/s", "llama.cpp t/s", "ratio", "middle half",
                           "pairs"], rows)


def measure_start(args, ours, theirs):
    del theirs  # its programs here are benches, which stream no answer
    results, rows = [], []
    for model in args.model:
        runs = [first_token(ours.program, model, args.context[0], args.threads[0]) for _ in range(args.pairs)]
        memory = json.loads(told_by([ours.program, "inspect", "-m", model, "-c", str(args.context[0]), "--json"]) or "{}")
        seconds, peak = spread([r["seconds"] for r in runs]), max(r["peak_bytes"] for r in runs)
        cpu = statistics.median(r["cpu_seconds"] for r in runs)
        size = os.path.getsize(model)
        results.append({"model": model, "context": args.context[0], "file_bytes": size, "seconds": seconds,
                        "cpu_seconds": cpu, "peak_bytes": peak, "memory": memory.get("memory"),
                        "command": runs[0]["command"]})
        rows.append([pathlib.Path(model).name, str(args.context[0]), f"{seconds['median']:.2f} s",
                     f"{seconds['min']:.2f}–{seconds['max']:.2f} s", f"{cpu:.2f} s", f"{size / MIB:.1f} MiB",
                     f"{peak / MIB:.1f} MiB"])
    return results, table(["file", "context", "first token", "least and most", "processor time", "file", "peak memory"], rows)


def try_opening(args, ours, theirs):
    results, rows = [], []
    for model in args.model:
        case = (model, args.threads[0], 8, 4, 1)
        told = {}
        for side in (ours, theirs):
            try:
                speeds = side.speed(*case)
                told[side.name] = "runs" if all(math.isfinite(s) for s in speeds.values()) else f"odd: {speeds}"
            except (RunError, ValueError) as error:
                told[side.name] = str(error)
        results.append({"model": model, **told})
        rows.append([pathlib.Path(model).name, *(told[s.name].replace("\n", " ") for s in (ours, theirs))])
    return results, table(["file", "cachalot", "llama.cpp"], rows)


MODES = {"ppl": compare_ppl, "speed": compare_speed, "start": measure_start, "opens": try_opening}


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("-m", "--model", action="append", required=True, help="GGUF file; may be given several times")
    parser.add_argument("-t", "--threads", type=numbers, default=[os.cpu_count()], help="list; default: all cores")
    parser.add_argument("-c", "--context", type=numbers, default=[512], help="ppl: list of contexts; start: the context")
    parser.add_argument("-f", "--text", default=str(ROOT / "tests/data/text/novels.txt.xz"), help="ppl: the text (or .xz)")
    parser.add_argument("--chunks", type=int, default=0, help="ppl: only the first chunks")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--generate", type=int, default=128)
    parser.add_argument("-b", "--batch", type=numbers, default=[1], help="list; above 1 generation alone is compared")
    parser.add_argument("--batch-generate", type=int, default=32, help="tokens of each sequence of a batch")
    parser.add_argument("--pairs", type=int, default=8, help="speed: pairs; start: runs")
    parser.add_argument("--isa", default="auto", help="cachalot's instruction set")
    parser.add_argument("--cachalot", default=str(ROOT / "build/cachalot"))
    parser.add_argument("--peers", default=str(ROOT / "build/peers/bin"))
    parser.add_argument("--json", help="write the numbers here")
    parser.add_argument("--markdown", help="append the table here (it is always printed)")
    args = parser.parse_args()
    ours, theirs = Cachalot(args.cachalot, ["--isa", args.isa]), Llama(args.peers)
    try:
        with only_one():
            around = circumstances(args)
            results, text = MODES[args.mode](args, ours, theirs)
    except (RunError, OSError) as error:
        sys.exit(f"error: {error}")
    print(text, end="")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"mode": args.mode, "circumstances": around, "results": results},
                                                      indent=1) + "\n", encoding="utf-8")
    if args.markdown:
        with open(args.markdown, "a", encoding="utf-8") as out:
            out.write(f"\n{text}")


if __name__ == "__main__":
    main()
