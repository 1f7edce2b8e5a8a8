#!/usr/bin/env python3
"""Compares `cachalot serve` with llama-server (make peers): the same file, the same client (`cachalot bench serve`).

  bench/compare_serve.py run -m FILE.gguf --pairs 2 --only load --log pairs.jsonl    measure, a few minutes a pair
  bench/compare_serve.py report --log pairs.jsonl                                     the tables of all pairs so far

What is measured (--only):
  load  output tokens/s, first token and time between tokens at 1, 8 and 32 requests at once, 128 in, 64 out
  itl   time between the tokens of 4 streams while a prompt of 2,000 tokens arrives every second
  idle  memory above that of the loaded server while 1,000 streams are open
  turn  first token of the second turn of a chat of 1,500 tokens, beside that of the first

Both servers have the same number of slots, the same context in each and the same threads. They are up together, and one
rests while the other is asked. Measurements come in pairs, one directly after the other, who is first changing from pair
to pair; what counts is the median of the pairs' ratios, because a shared machine is slow for both when it is slow.
"""
import argparse
import contextlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from compare_llama import circumstances, note, only_one, spread, table
from peer_runs import RunError, output_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
LOAD = [(1, 3), (8, 16), (32, 32)]  # requests at once, requests
STREAMS = 1000


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One server process. `slots` requests run at once, each with a context of its own of `context` tokens."""

    def __init__(self, name, command, port, cores=""):
        command = (["taskset", "-c", cores] if cores else []) + command
        self.name, self.command, self.port = name, command, port
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 60
        while not self.is_up():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                self.log.seek(0)
                raise RunError(f"{' '.join(command)}\ndid not come up:\n{self.log.read()[-2000:].decode(errors='replace')}")
            time.sleep(0.1)

    def is_up(self):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(self.url + "/health", timeout=2) as answer:
                return answer.status == 200
        return False

    def memory(self):
        """Resident bytes that are not pages of a file: the model is mapped by both."""
        fields = dict(line.split(":", 1) for line in open(f"/proc/{self.process.pid}/status", encoding="utf-8"))
        return int(fields["RssAnon"].split()[0]) * 1024

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_ours(args, slots, context, extra=()):
    port = free_port()
    return Server("cachalot", [args.cachalot, "serve", "-m", args.model, "--port", str(port), "-t", str(args.threads),
                               "--max-num-seqs", str(slots), "-c", str(context), "--max-waiting", "2048", "--request-log=",
                               *extra], port, args.server_cores)


def start_theirs(args, slots, context):
    port = free_port()
    return Server("llama-server", [os.path.join(args.peers, "llama-server"), "-m", args.model, "--port", str(port), "-t",
                                   str(args.threads), "-tb", str(args.threads), "-np", str(slots), "-c",
                                   str(slots * context)], port, args.server_cores)


@contextlib.contextmanager
def both(args, slots, context, extra=()):
    servers = []
    try:
        servers.append(start_ours(args, slots, context, extra))
        servers.append(start_theirs(args, slots, context))
        yield servers
    finally:
        for server in servers:
            server.stop()


def client(args, server, *flags):
    return [args.cachalot, "bench", "serve", "--base-url", server.url, "--json", *args.client, *flags]


def ask(args, server, *flags):
    return json.loads(output_of(client(args, server, *flags)).stdout)


def measure_load(args, pair, servers):
    """{server: {test: value}}"""
    told = {}
    for server in servers:
        values = told[server.name] = {}
        for at_once, count in LOAD:
            result = ask(args, server, "-n", str(count), "--concurrency", str(at_once), "--input-len", "128", "--output-len",
                         "64", "--seed", str(1000 * pair + at_once))
            if result["failed"]:
                raise RunError(f"{server.name}: {result['failed']} requests failed: {result.get('first_error')}")
            values[f"tokens/s at {at_once}"] = result["output_tokens_per_second"]
            values[f"first token, p50 at {at_once} (ms)"] = result["ttft_ms"]["p50"]
            values[f"between tokens, p50 at {at_once} (ms)"] = result["itl_ms"]["p50"]
    return told


class Stream(threading.Thread):
    """A completion that goes on until it is closed, and when each of its pieces came."""

    def __init__(self, server, prompt, tokens):
        super().__init__(daemon=True)
        self.times, self.closing = [], False
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        self.socket.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while piece := self.socket.recv(1 << 16):
                now = time.monotonic()
                self.times += [now] * piece.count(b"data: {")

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.join()


def gaps_within(times, begin, end):
    """Seconds between tokens, as far as the later one came after `begin`; what is still open at `end` counts too."""
    inside = [t for t in times if t < end]
    ends = inside + [end]
    return [b - a for a, b in zip(inside, ends[1:]) if b > begin]


def measure_itl(args, pair, servers):
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "prompts.jsonl")
        with open(trace, "w", encoding="utf-8") as out:
            for second in range(args.seconds):
                out.write(json.dumps({"timestamp": 1000 * second + pair, "input_length": 2000, "output_length": 1}) + "\n")
        for server in servers:
            streams = [Stream(server, f"Once upon a time {i} {pair}", 2400) for i in range(4)]
            try:
                limit = time.monotonic() + 120
                while not all(len(stream.times) > 2 for stream in streams):
                    if time.monotonic() > limit:
                        raise RunError(f"{server.name}: the streams did not begin")
                    time.sleep(0.05)
                arrivals = subprocess.Popen(
                    client(args, server, "--dataset", "trace", "--dataset-path", trace, "--trace-clock", "-n", str(args.seconds),
                           "--seed", str(pair)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                begin = time.monotonic()
                time.sleep(args.seconds)
                end = time.monotonic()
                ended = [stream for stream in streams if not stream.is_alive()]
                arrivals.terminate()
                arrivals.wait()
            finally:
                for stream in streams:
                    stream.close()
            if ended:
                raise RunError(f"{server.name}: {len(ended)} streams ended before the prompts did")
            gaps = sorted(1000 * gap for stream in streams for gap in gaps_within(stream.times, begin, end))
            told[server.name] = {"between tokens, p99 (ms)": gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))],
                                 "between tokens, p50 (ms)": gaps[len(gaps) // 2],
                                 "between tokens, longest (ms)": gaps[-1],
                                 "tokens of the streams": len(gaps)}
            wait_until_idle(server)
    return told


def wait_until_idle(server, limit=180):
    """Until a request of one token is answered at once: what was cancelled is gone then."""
    end = time.monotonic() + limit
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    while time.monotonic() < end:
        begin = time.monotonic()
        request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=limit) as answer:
            answer.read()
        if time.monotonic() - begin < 0.2:
            return


def measure_idle(args, pair, servers):
    del pair
    told = {}
    for server in servers:
        wait_until_idle(server)
        before = server.memory()
        body = json.dumps({"prompt": "Once", "max_tokens": 200, "stream": True, "ignore_eos": True}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        streams = []
        try:
            for _ in range(STREAMS):
                stream = socket.create_connection(("127.0.0.1", server.port), timeout=20)
                stream.sendall(head + body)
                streams.append(stream)
            time.sleep(3)
            after = server.memory()
        finally:
            for stream in streams:
                stream.close()
        told[server.name] = {f"MiB for {STREAMS} open streams": (after - before) / MIB}
        time.sleep(2)
    return told


def chat(server, messages):
    """Seconds to the first token, and the answer's text."""
    body = json.dumps({"messages": messages, "max_tokens": 32, "stream": True, "temperature": 0}).encode()
    request = urllib.request.Request(server.url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    begin = time.monotonic()
    first, text = None, ""
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                piece = choice["delta"].get("content")
                if piece and first is None:
                    first = time.monotonic() - begin
                text += piece or ""
    return first, text


def measure_turn(args, pair, servers):
    words = "the quick brown fox jumps over a lazy dog near the river bank while seven grey birds watch it run".split()
    told = {}
    for server in servers:
        story = " ".join(words[(i * 7 + pair * 13 + i * i) % len(words)] for i in range(args.story_words))
        messages = [{"role": "user", "content": f"Story {pair}: {story}. What is it about?"}]
        first, text = chat(server, messages)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Tell me more."}]
        second, _ = chat(server, messages)
        told[server.name] = {"first turn (ms)": 1000 * first, "second turn (ms)": 1000 * second,
                             "first / second": first / second}
    return told


# What is measured, with how many slots and which context.
KINDS = {"load": (measure_load, 32, 320), "itl": (measure_itl, 16, 2560), "idle": (measure_idle, 8, 512),
         "turn": (measure_turn, 2, 4096)}


def run(args):
    measure, slots, context = KINDS[args.only]
    end = time.monotonic() + args.budget
    with only_one(), both(args, slots, context, args.ours) as servers, open(args.log, "a", encoding="utf-8") as log:
        around = circumstances(args)
        for server in servers:
            wait_until_idle(server)
        for pair in range(args.first, args.first + args.pairs):
            if time.monotonic() > end:
                note(f"the time is over before pair {pair}")
                return
            try:
                told = measure(args, pair, servers if pair % 2 == 0 else servers[::-1])
            except RunError as error:  # a pair without both sides is none
                note(f"{args.only} pair {pair} does not count: {error}")
                continue
            line = {"kind": args.only, "pair": pair, "circumstances": around, "load": os.getloadavg()[0], "told": told,
                    "commands": {server.name: server.command for server in servers}}
            log.write(json.dumps(line) + "\n")
            log.flush()
            note(f"{args.only} pair {pair}: " + json.dumps(told))


def report(args):
    values = {}
    for line in open(args.log, encoding="utf-8"):
        entry = json.loads(line)
        for test, ours in entry["told"]["cachalot"].items():
            values.setdefault((entry["kind"], test), []).append((ours, entry["told"]["llama-server"][test]))
    rows = []
    for (kind, test), pairs in values.items():
        ours, theirs = spread([p[0] for p in pairs]), spread([p[1] for p in pairs])
        ratio = spread([p[0] / p[1] if p[1] else float("inf") for p in pairs])
        rows.append([kind, test, f"{ours['median']:.1f}", f"{theirs['median']:.1f}", f"**{ratio['median']:.2f}**",
                     f"{ratio['quarter']:.2f}–{ratio['three_quarters']:.2f}", str(len(pairs))])
    print(table(["", "", "cachalot", "llama-server", "ratio", "middle half", "pairs"], rows), end="")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["run", "report"])
    parser.add_argument("-m", "--model", help="GGUF file")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=KINDS, default="load")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="number of the first pair: prompts and turns depend on it")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no pair is begun")
    parser.add_argument("--server-cores", default="", help="cores that the servers are kept to, as taskset writes them")
    parser.add_argument("--seconds", type=int, default=30, help="itl: prompts that arrive")
    parser.add_argument("--story-words", type=int, default=1450, help="turn: of the first question, about as many tokens")
    parser.add_argument("--client", action="append", default=[], help="another flag for cachalot bench serve")
    parser.add_argument("--ours", action="append", default=[], help="another flag for cachalot serve")
    parser.add_argument("--log", required=True, help="a JSON line for each pair is appended here")
    parser.add_argument("--cachalot", default=str(ROOT / "build/cachalot"))
    parser.add_argument("--peers", default=str(ROOT / "build/peers/bin"))
    args = parser.parse_args()
    if args.mode == "run" and not args.model:
        parser.error("run needs -m FILE")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        run(args) if args.mode == "run" else report(args)
    except (RunError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
