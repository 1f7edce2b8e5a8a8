#!/usr/bin/env python3
"""What the tiers and policies of the KV cache are worth to those who wait for an answer.

usage: kv_lifecycle.py run -m MODEL [--cachalot PROGRAM] [--only restart,responses,policies] [--pairs N] --log FILE
       kv_lifecycle.py report --log FILE

Each pair is two runs, one right after the other, in an order that alternates; every run has a server of its own. The log
gets a JSON line for each run, and `report` shows all of them.
  restart    time to the first token of a 1,500-token prompt: with an empty disk tier, then by a new process with the
             directory that the first one left
  responses  requests that repeat (Zipf), all greedy: without and with --response-cache
  policies   prefixes of 256 tokens, Zipf, whose popularity changes every 30 requests; the cache holds 30 % of them:
             --kv-policy lru and lru-k
Only Python's standard library is needed.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


class Server:
    def __init__(self, program, *args):
        self.process = subprocess.Popen([program, "serve", "--port", "0", "--request-log", "", *map(str, args)],
                                        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.port = None
        for line in self.process.stderr:
            if " is served at http://" in line:
                self.port = int(line.split("http://", 1)[1].split("/", 1)[0].rsplit(":", 1)[1])
                break
        if self.port is None:
            raise RuntimeError("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())

    def ask(self, tokens, num_tokens, connection=None):
        """(seconds to the first token, seconds to the end, text)"""
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = json.dumps({"prompt": tokens, "max_tokens": num_tokens, "temperature": 0, "stream": True, "ignore_eos": True})
        begin = time.monotonic()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        first, text = None, ""
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            if first is None:
                first = time.monotonic() - begin
            text += json.loads(line[6:])["choices"][0]["text"]
        if response.status != 200 or first is None:
            raise RuntimeError(f"status {response.status}")
        return first, time.monotonic() - begin, text


def prompt_of(seed, length):
    rng = random.Random(seed)
    return [rng.randrange(1000, 40000) for _ in range(length)]


def zipf(rng, count, exponent):
    return rng.choices(range(count), [1 / (rank + 1) ** exponent for rank in range(count)])[0]


def load(server, requests, concurrency):
    """All requests, so many at a time: what they took."""
    queue, results, lock = list(enumerate(requests)), [None] * len(requests), threading.Lock()
    queue.reverse()

    def work():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        while True:
            with lock:
                if not queue:
                    return
                index, (tokens, num_tokens) = queue.pop()
            results[index] = server.ask(tokens, num_tokens, connection)

    begin = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    firsts = sorted(result[0] for result in results)
    wholes = sorted(result[1] for result in results)
    p99 = lambda values: values[min(len(values) - 1, int(0.99 * len(values)))]
    return {"requests": len(requests), "requests_per_second": len(requests) / seconds, "ttft_p50_ms": 1e3 * statistics.median(firsts),
            "ttft_p99_ms": 1e3 * p99(firsts), "e2e_p50_ms": 1e3 * statistics.median(wholes), "e2e_p99_ms": 1e3 * p99(wholes)}


def restart_pair(options, index, note):
    folder = Path(tempfile.mkdtemp(prefix="cachalot-kv-disk-"))
    try:
        args = ("-m", options.model, "--device", "cpu", "-c", 2048, "--kv-disk", folder, "--kv-disk-size", "1GiB")
        tokens = prompt_of(100 + index, 1500)
        texts = []
        for which in ("cold", "warm"):
            with Server(options.cachalot, *args) as server:
                server.ask(prompt_of(7, 32), 1)  # the weights have been read once
                first, _, text = server.ask(tokens, 4)
                texts.append(text)
                disk = server.get("/v1/cachalot/cache")["disk"]
                note({"what": "restart", "which": which, "ttft_ms": 1e3 * first, "promoted_blocks": disk["promoted_blocks"],
                      "read_bytes": disk["read_bytes"]})
        assert texts[0] == texts[1], "another answer"
    finally:
        shutil.rmtree(folder)


def responses_pair(options, index, note):
    rng = random.Random(index)
    requests = [(prompt_of(1000 + zipf(rng, 30, 1.0), 48), 8) for _ in range(options.requests)]
    for which in (("off", "on"), ("on", "off"))[index % 2]:
        with Server(options.cachalot, "-m", options.model, "--device", "cpu", "-c", 512, *(("--response-cache", 1000) if which == "on" else ())) as server:
            server.ask(prompt_of(7, 32), 1)
            note({"what": "responses", "which": which, **load(server, requests, 4)})


def policies_pair(options, index, note):
    rng = random.Random(index)
    num_prefixes, length = 24, 256
    order = list(range(num_prefixes))
    requests = []
    for number in range(options.requests):
        if number % 30 == 0:  # a third of the places change hands
            places = rng.sample(range(num_prefixes), num_prefixes // 3)
            values = [order[place] for place in places]
            rng.shuffle(values)
            for place, value in zip(places, values):
                order[place] = value
        prefix = order[zipf(rng, num_prefixes, 0.9)]
        requests.append((prompt_of(5000 + prefix, length) + prompt_of(10 ** 6 + 1000 * index + number, 16), 2))
    capacity = int(0.3 * num_prefixes * length)
    for which in (("lru", "lru-k"), ("lru-k", "lru"))[index % 2]:
        with Server(options.cachalot, "-m", options.model, "--device", "cpu", "-c", 512, "-np", 2, "--kv-tokens", capacity, "--kv-policy", which) as server:
            result = load(server, requests, 2)
            cache = server.get("/v1/cachalot/cache")
            note({"what": "policies", "which": which, **result, "hit_ratio": cache["hit_tokens"] / cache["query_tokens"]})


PAIRS = {"restart": restart_pair, "responses": responses_pair, "policies": policies_pair}
SHOWN = {"restart": ("cold", "warm", ("ttft_ms",)),
         "responses": ("off", "on", ("requests_per_second", "ttft_p99_ms", "e2e_p99_ms")),
         "policies": ("lru", "lru-k", ("requests_per_second", "ttft_p50_ms", "ttft_p99_ms", "hit_ratio"))}


def run(options):
    deadline = time.monotonic() + options.seconds
    with open(options.log, "a", encoding="utf-8") as log:
        for index in range(options.first, options.first + options.pairs):
            for what in options.only.split(","):
                if time.monotonic() > deadline:
                    return
                def note(result):
                    log.write(json.dumps({"pair": index, "time": time.strftime("%Y-%m-%dT%H:%M:%S"), **result}) + "\n")
                    log.flush()
                PAIRS[what](options, index, note)


def report(options):
    lines = [json.loads(line) for line in open(options.log, encoding="utf-8")]
    for what, (base, other, columns) in SHOWN.items():
        pairs = {}
        for line in lines:
            if line["what"] == what:
                pairs.setdefault(line["pair"], {})[line["which"]] = line
        pairs = {index: pair for index, pair in sorted(pairs.items()) if len(pair) == 2}
        if not pairs:
            continue
        print(f"\n{what}: {len(pairs)} pairs")
        print("| pair | " + " | ".join(f"{column} {which}" for column in columns for which in (base, other)) + " |")
        print("|---" * (1 + 2 * len(columns)) + "|")
        for index, pair in pairs.items():
            print(f"| {index} | " + " | ".join(f"{pair[which][column]:.4g}" for column in columns for which in (base, other)) + " |")
        print("| median | " + " | ".join(f"{statistics.median(pair[which][column] for pair in pairs.values()):.4g}"
                                         for column in columns for which in (base, other)) + " |")
        for column in columns:
            ratios = sorted(pair[other][column] / pair[base][column] for pair in pairs.values() if pair[base][column])
            if ratios:
                print(f"{column}, {other} over {base}: median {statistics.median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("-m", "--model")
    parser.add_argument("--cachalot", default="build/cachalot")
    parser.add_argument("--only", default="restart,responses,policies")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="number of the first pair")
    parser.add_argument("--requests", type=int, default=120, help="of a run")
    parser.add_argument("--seconds", type=float, default=1e9, help="no pair begins after so long")
    parser.add_argument("--log", required=True)
    options = parser.parse_args()
    if options.command == "run" and not options.model:
        parser.error("run needs -m MODEL")
    (run if options.command == "run" else report)(options)


if __name__ == "__main__":
    sys.exit(main())
