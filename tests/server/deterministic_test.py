#!/usr/bin/env python3
"""serve --deterministic: what a request gets does not depend on who is asked beside it, on the prefix cache, on how prompts
are cut, or on who was preempted how often. And without --deterministic it does only from where two tokens were nearly
as likely on.

usage: deterministic_test.py PATH/TO/cachalot [--model FILE|FOLDER] [--full] [--concurrency 1,8,64]
Without --model two tiny generated models serve. --full tries every combination, otherwise each setting is tried with each
value of the others once. A long matrix can be done in pieces: --combination 0 to 7, with the lone answers kept in --wanted.
"""

import argparse
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from program_log import ProgramLog

TIMEOUT = 600
NUM_REQUESTS = 64
MARGIN = 0.05  # in log-probability


def requests_of(out_tokens):
    """Groups that begin alike, of different lengths, greedy and drawn, some with two answers."""
    asked = []
    for i in range(NUM_REQUESTS):
        shared = [(7 * (i % 4) + 3 * j) % 200 + 10 for j in range(33)]
        own = [(11 * i + 5 * j) % 200 + 10 for j in range(i % 13)]
        asked.append({"prompt": shared + own, "max_tokens": out_tokens + i % 7, "temperature": 0 if i % 3 else 0.9, "seed": i,
                      "logprobs": 2, "ignore_eos": True, "return_token_ids": True, "n": 2 if i % 8 == 5 else 1})
        if i % 5 == 2:
            asked[-1].update(echo=True)
        if i % 6 == 1:
            asked[-1].update(frequency_penalty=0.5, min_p=0.02)
    return asked


class Served:
    def __init__(self, program, model, *flags):
        self.errors = ProgramLog()
        self.process = subprocess.Popen([program, "serve", *model, "--port", "0", "--max-num-seqs", "64", "-c",
                                         "256", "--request-log=", *map(str, flags)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.errors.end)
        self.port = self.errors.port(self.process)

    def call(self, method, path, body=None, sent=lambda: None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.request(method, path, None if body is None else json.dumps(body))
        sent()
        response = connection.getresponse()
        content = json.loads(response.read())
        connection.close()
        if response.status != 200:
            sys.exit(f"{path}: {response.status} {content}")
        return content

    def answers(self, asked, at_once):
        # The server stands still until as many are asked as are to be at once, whichever of us is the faster.
        sent = threading.Semaphore(0)
        self.process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(at_once) as pool:
            told = pool.map(lambda body: self.call("POST", "/v1/completions", body, sent.release)["choices"], asked)
            for _ in range(at_once):
                sent.acquire(timeout=TIMEOUT)
            self.process.send_signal(signal.SIGCONT)
            return list(told)

    def stop(self):
        self.process.terminate()
        if self.process.wait(TIMEOUT) != 0:
            sys.exit(f"the server ended badly:\n{self.errors.text()}")


def combinations(full, only):
    """(prefix cache, how preemption goes, chunk)"""
    every = list(itertools.product((True, False), ("recompute", "swap"), (16, 512)))
    if only is not None:
        return [every[only]]
    # Of the eight the four in which every two settings meet once.
    return every if full else [c for c in every if (c[0] + (c[1] == "swap") + (c[2] == 16)) % 2 == 0]


def margins(choice):
    """Of each generated token, how much more likely the best one was than the next."""
    tops = choice["logprobs"]["top_logprobs"][-len(choice["token_ids"]):]
    # Two tokens with the same text are one entry: nothing is known then.
    return [top[0] - top[1] if len(top) > 1 else 0 for top in (sorted(top.values(), reverse=True) for top in tops)]


def check_free(program, model, asked, wanted, args):
    served = Served(program, model, "--kv-tokens", args.kv_tokens)
    compared = different = 0
    for body, got, want in zip(asked, served.answers(asked, max(args.concurrency)), wanted):
        if body["temperature"] > 0 or "frequency_penalty" in body:
            continue
        for mine, choice in zip(got, want):
            compared += 1
            pairs = enumerate(zip(mine["token_ids"], choice["token_ids"]))
            first = next((i for i, (a, b) in pairs if a != b), None)
            if first is None:
                continue
            different += 1
            least = min(margins(choice)[:first + 1])
            if least > MARGIN:
                sys.exit(f"{model}, not deterministic: token {first} of an answer to {body} is another, and no margin before was below {least}")
    served.stop()
    print(f"{' '.join(model)} without --deterministic: {compared} greedy answers, {different} go another way, none before a margin of {MARGIN}")


def check(program, model, args):
    asked = requests_of(args.out_tokens)
    if args.wanted and os.path.exists(args.wanted):
        with open(args.wanted, encoding="utf-8") as kept:
            wanted = json.load(kept)
    else:
        alone = Served(program, model, "--deterministic", "--no-enable-prefix-caching")
        wanted = alone.answers(asked, 1)
        alone.stop()
        if args.wanted:
            with open(args.wanted, "w", encoding="utf-8") as kept:
                json.dump(wanted, kept)
    moved = {"recompute": 0, "swap": 0}
    cached = 0
    for cache, how, chunk in combinations(args.full, args.combination):
        # Room for some twelve of the sixty-four.
        flags = ["--deterministic", "--kv-tokens", args.kv_tokens, "--prefill-chunk", chunk, "--preemption-mode", how]
        flags += ["--swap-tokens", 1 << 14] if how == "swap" else []
        flags += [] if cache else ["--no-enable-prefix-caching"]
        served = Served(program, model, *flags)
        for at_once in args.concurrency:
            for i, (got, want) in enumerate(zip(served.answers(asked, at_once), wanted)):
                if got != want:
                    sys.exit(f"{model} {flags}, {at_once} at once: request {i} got\n{json.dumps(got)}\nalone it gets\n{json.dumps(want)}")
        status = served.call("GET", "/status")
        told = f"{status['preemptions']} preemptions, {status['swap_preemptions']} by swap, {status['cache_hit_tokens']} tokens from the cache"
        moved[how] += status["swap_preemptions"] if how == "swap" else status["preemptions"]
        cached += status["cache_hit_tokens"]
        served.stop()
        print(f"{' '.join(model)} cache {cache}, {how}, chunk {chunk}: the same at {args.concurrency} at once; {told}", flush=True)
    if args.combination is None:
        check_free(program, model, asked, wanted, args)
    # How many depends on who came when; none at all would prove nothing.
    if args.combination is None and max(args.concurrency) >= 64 and (0 in moved.values() or cached == 0):
        sys.exit(f"{model}: preemptions {moved}, {cached} tokens from the cache: this proves nothing")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", help="instead of tiny generated ones")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--combination", type=int, choices=range(8), help="only this one of the full matrix")
    parser.add_argument("--wanted", help="file that keeps the lone answers")
    parser.add_argument("--concurrency", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 64])
    parser.add_argument("--out-tokens", type=int, default=60)
    parser.add_argument("--kv-tokens", type=int, default=640)
    args = parser.parse_args()
    models = [("-m", args.model)] if args.model else [("--dummy", "tiny-llama"), ("--dummy", "tiny-deepseek-v3")]
    for model in models:
        check(args.program, model, args)


if __name__ == "__main__":
    main()
