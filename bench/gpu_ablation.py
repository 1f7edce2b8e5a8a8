#!/usr/bin/env python3
"""What graphs, fusion and early starts bring a decode step, alone and together: one table for each model.

usage: gpu_ablation.py BUILD [v2-lite] [8b] [--no-trace] [--no-bytes] [--json FILE] [-- more flags of cachalot bench]

A step is launched op by op or as one graph, with every op a launch of its own or fused with others, each launch behind the end of the one
before or early (programmatic dependent launch): eight combinations of settings of `bench --gpu-tune` (docs/gpu-tuning.md).

  us a step   one sequence, 2,048 tokens in the cache, all combinations in turn within one run, nothing else attached
  launches    kernels of a step, counted by CUPTI (BUILD/libcachalot_gpu_trace.so) in a run of its own
  idle        of a step's time there, when nothing was on the device: kernels that have started early and wait count as on it
  written     bytes that all kernels of a step write to L2, counted by ncu: what one op leaves for the next, the logits and a token's KV
              cache; the cache of the weights is only read. It does not depend on how a step is launched, so it is measured op by op.

Only Python's standard library is needed; a column whose tool is missing stays empty.
"""

import argparse
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MODELS = {"v2-lite": "deepseek-v2-lite", "8b": "r1-distill-llama-8b"}
GRAPH, FUSED, EARLY = "graph", "fused", "early"
OFF = {GRAPH: "launch=ops", FUSED: "fuse=none,experts=apart,chain=none", EARLY: "late=all"}
COMBINATIONS = [(), (GRAPH,), (FUSED,), (EARLY,), (GRAPH, FUSED), (GRAPH, EARLY), (FUSED, EARLY), (GRAPH, FUSED, EARLY)]
SPLIT_MS = 10  # bench waits 20 ms where settings change
SECTOR_BYTES = 32


def settings(combination):
    return ",".join(off for name, off in OFF.items() if name not in combination) or "-"


def bench(build, model, more, *flags, prefix=(), env=None, limit=120):
    program = build / "cachalot" if (build / "cachalot").exists() else build / "bin" / "cachalot"
    command = [*prefix, str(program), "bench", "--dummy", model, "--device", "cuda", "-b", "1", "-p", "0", *flags, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env={**os.environ, **(env or {})}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    return done


def tunes(combinations):
    return [flag for combination in combinations for flag in ("--gpu-tune", settings(combination))]


def step_times(build, model, more, repeats):
    done = bench(build, model, more, "-d", "2048", "-n", "32", "-r", str(repeats), "--json", *tunes(COMBINATIONS))
    return [row["token_us"] for row in json.loads(done.stdout)["results"]]


def traced(text):
    """(kernels a step, share of the time that the device was idle) of each piece of a trace that has steps."""
    pieces = []
    for line in text.splitlines():
        head = re.match(r"(\d+) us: busy [\d.]+ %, idle ([\d.]+) % in", line)
        if head:
            pieces.append({"idle": float(head[2]) / 100, "kernels": 0, "steps": 0})
        row = re.match(r" *(\d+) +[\d.]+ +[\d.]+%  (\S.*)", line)
        if not row or not pieces or row[2] == "memcpy":
            continue
        pieces[-1]["kernels"] += int(row[1])
        if row[2] == "BeginKernel":
            pieces[-1]["steps"] += int(row[1])
    return [(piece["kernels"] / piece["steps"], piece["idle"]) for piece in pieces if piece["steps"] > 0]


def traces(build, model, more):
    library = next((place / "libcachalot_gpu_trace.so" for place in (build, build / "bin") if (place / "libcachalot_gpu_trace.so").exists()), None)
    if library is None:
        raise RuntimeError("there is no libcachalot_gpu_trace.so")
    env = {"CUDA_INJECTION64_PATH": str(library.resolve()), "GPU_TRACE_MS": "100000", "GPU_TRACE_SPLIT_MS": str(SPLIT_MS)}
    done = bench(build, model, more, "-d", "2048", "-n", "24", "-r", "1", *tunes(COMBINATIONS), env=env)
    pieces = traced(done.stderr)
    if len(pieces) < len(COMBINATIONS):
        raise RuntimeError(f"{len(pieces)} pieces in a trace of {len(COMBINATIONS)} settings")
    return pieces[-len(COMBINATIONS):]


def written_sectors(text):
    """The sum of ncu's table in its CSV form."""
    rows = list(csv.reader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"')))))
    if not rows:
        raise RuntimeError(f"ncu gave no table: {text.strip()[-300:]}")
    column = next(i for i, name in enumerate(rows[0]) if name.startswith("lts__t_sectors_op_write"))
    values = [row[column].replace(",", "") for row in rows[1:] if len(row) > column]
    return sum(float(value) for value in values if re.fullmatch(r"[\d.]+", value))


def written_bytes(build, model, more, launches, fused):
    """Of one step: as many launches as it has, from anywhere among many equal steps behind the first."""
    combination = (FUSED,) if fused else ()
    ncu = ["ncu", "--clock-control", "none", "--cache-control", "none", "--metrics", "lts__t_sectors_op_write.sum", "--csv", "--page", "raw",
           "--launch-skip", str(4 * launches + 300), "--launch-count", str(launches)]
    done = bench(build, model, more, "-d", "2048", "-n", "24", "-r", "1", *tunes([combination]), prefix=ncu)
    return written_sectors(done.stdout) * SECTOR_BYTES


def optional(what, measure, *args):
    try:
        return measure(*args)
    except (RuntimeError, OSError, StopIteration, subprocess.TimeoutExpired) as error:
        print(f"{what}: {error}", file=sys.stderr)
        return None


def table(name, rows):
    lines = [f"{name}, one sequence, 2,048 tokens in the cache", "",
             "| graph | fused | early | us a step | as fast | launches | idle | written |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        marks = ["x" if row[key] else "" for key in (GRAPH, FUSED, EARLY)]
        launches = "" if row["launches"] is None else f"{row['launches']:.0f}"
        idle = "" if row["idle_us"] is None else f"{row['idle_us']:.0f} us ({100 * row['idle']:.1f} %)"
        written = "" if row["written_bytes"] is None else f"{row['written_bytes'] / 1e6:.2f} MB"
        lines.append(f"| {' | '.join(marks)} | {row['step_us']:,.0f} | {row['speedup']:.2f} | {launches} | {idle} | {written} |")
    return "\n".join(lines) + "\n"


def measure(build, model, more, options):
    times = step_times(build, MODELS[model], more, options.repeats)
    pieces = None if options.no_trace else optional("trace", traces, build, MODELS[model], more)
    rows = []
    for i, combination in enumerate(COMBINATIONS):
        launches, idle = pieces[i] if pieces else (None, None)
        rows.append({GRAPH: GRAPH in combination, FUSED: FUSED in combination, EARLY: EARLY in combination, "settings": settings(combination),
                     "step_us": times[i], "speedup": times[0] / times[i], "launches": launches, "idle": idle,
                     "idle_us": None if idle is None else idle * times[i], "written_bytes": None})
    if not options.no_bytes and pieces and shutil.which("ncu"):
        for fused in (True, False):
            launches = round(next(row["launches"] for row in rows if row[FUSED] == fused))
            written = optional("ncu", written_bytes, build, MODELS[model], more, launches, fused)
            for row in rows:
                if row[FUSED] == fused:
                    row["written_bytes"] = written
    return rows


def main():
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[:own.index("--")], own[own.index("--") + 1:]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all, if none is named")
    parser.add_argument("--no-trace", action="store_true")
    parser.add_argument("--no-bytes", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(own)
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)} (known: {', '.join(MODELS)})")
    results = {}
    for model in options.models or MODELS:
        results[model] = measure(options.build, model, more, options)
        print(table(MODELS[model], results[model]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
