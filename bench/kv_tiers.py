#!/usr/bin/env python3
"""How soon a prompt starts whose KV blocks are below the cache of a GPU: in the host's memory, or on the disk after a restart.

usage: kv_tiers.py [--cachalot PROGRAM] [--prompts N] [--host SIZE] [--log FILE] -- MODEL AND FLAGS OF serve
       kv_tiers.py -- --dummy r1-distill-llama-8b

Two servers, one after the other, with a cache for three prompts of 1,500 tokens, a tier in the host's memory and one on the disk:
  cold     prompts that nobody has seen
  card     each again at once, when all of it is still on the GPU: what no tier can be faster than
  host     the same again, when others have taken their place on the GPU
  disk     the same again, in a new process
  beside   the longest time between two tokens of a stream, while prompts come beside it that are computed, or copied from the host
With --host 0 there is no tier in the host's memory, and "host" is the disk. A JSON line for each request, then a table. Every answer must be the one that the cold prompt got where the server is deterministic (give
--deterministic); without it, answers that differ are counted. Only Python's standard library is needed.
"""

import argparse
import http.client
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from kv_lifecycle import Server, prompt_of

LENGTH = 1500
ANSWER = 8


def wait_until_saved(server):
    """Until nothing more arrives below."""
    before = None
    while True:
        cache = server.get("/v1/cachalot/cache")
        now = [cache[tier]["written_bytes"] for tier in ("host", "disk") if tier in cache]
        if now == before:
            return cache
        before = now
        time.sleep(0.3)


class Stream(threading.Thread):
    """An answer that goes on, and the times of its tokens."""

    def __init__(self, server):
        super().__init__()
        self.server, self.times, self.over = server, [], False

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        body = json.dumps({"prompt": prompt_of(5, 16), "max_tokens": 1500, "temperature": 0, "stream": True, "ignore_eos": True})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                self.times.append(time.monotonic())
            if self.over:
                break
        connection.close()

    def longest_gap_ms(self, begin):
        times = [t for t in self.times if t >= begin]
        return 1e3 * max((b - a for a, b in zip(times, times[1:])), default=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cachalot", default="build/cachalot")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--host", default="8GiB")
    parser.add_argument("--log", default="")
    parser.add_argument("flags", nargs="+")
    options = parser.parse_args()
    log = open(options.log, "a", encoding="utf-8") if options.log else sys.stdout
    folder = Path(tempfile.mkdtemp(prefix="cachalot-kv-tiers-"))
    args = (*options.flags, "-c", 2048, "-np", 4, "--kv-tokens", 3 * LENGTH, "--kv-disk", folder, "--kv-disk-size", "32GiB",
            *(("--kv-offloading-size", options.host) if options.host != "0" else ()))
    prompts = [prompt_of(100 + i, LENGTH) for i in range(options.prompts)]
    texts, times, gaps, others = {}, {}, {}, 0

    def note(**line):
        log.write(json.dumps(line) + "\n")
        log.flush()

    def ask(server, which, number):
        nonlocal others
        first, whole, text = server.ask(prompts[number], ANSWER)
        times.setdefault(which, []).append(1e3 * first)
        others += texts.setdefault(number, text) != text
        note(which=which, prompt=number, ttft_ms=1e3 * first, whole_ms=1e3 * whole, same=texts[number] == text)

    def warm(server):
        """Kernels are loaded, steps captured and the rate of computing is known before anything is measured."""
        for length in (32, LENGTH, LENGTH):
            server.ask(prompt_of(7 * length + len(times), length), ANSWER)

    try:
        begin = time.monotonic()
        with Server(options.cachalot, *args) as server:
            note(start_s=time.monotonic() - begin)
            warm(server)
            for number in range(options.prompts):
                ask(server, "cold", number)
                ask(server, "card", number)
            wait_until_saved(server)
            for _ in range(2):
                for number in range(options.prompts):
                    ask(server, "host", number)
            stream = Stream(server)
            stream.start()
            while len(stream.times) < 20:
                time.sleep(0.01)
            for which in ("alone", "computed", "copied"):
                for i in range(4):
                    begin = time.monotonic()
                    if which == "alone":
                        time.sleep(0.3)
                    else:
                        server.ask(prompt_of(900 + i, LENGTH) if which == "computed" else prompts[i], 1)
                    time.sleep(0.05)
                    gaps.setdefault(which, []).append(stream.longest_gap_ms(begin))
                    note(beside=which, longest_gap_ms=gaps[which][-1])
            stream.over = True
            stream.join()
            note(end=wait_until_saved(server))
        begin = time.monotonic()
        with Server(options.cachalot, *args) as server:
            note(start_s=time.monotonic() - begin)
            warm(server)
            for number in range(options.prompts):
                ask(server, "disk", number)
            note(end=server.get("/v1/cachalot/cache"))
    finally:
        shutil.rmtree(folder)
    cold = statistics.median(times["cold"])
    print(f"time to the first token of {LENGTH} tokens, ms (median, least to most), and cold over it")
    for which, values in times.items():
        print(f"  {which:6} {statistics.median(values):7.1f}  {min(values):.1f} to {max(values):.1f}  {cold / statistics.median(values):.1f}")
    print("longest time between two tokens of a stream, ms (median of 4)")
    for which, values in gaps.items():
        print(f"  {which:9} {statistics.median(values):7.1f}")
    print(f"answers that differ from the cold prompt's: {others}")


if __name__ == "__main__":
    sys.exit(main())
