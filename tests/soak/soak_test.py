#!/usr/bin/env python3
"""Random traffic against `cachalot serve`, and what must be left of it: nothing.

usage: soak_test.py PATH/TO/cachalot [--seconds N] [--seed N] [--model FILE|FOLDER]
Clients ask, stream, hang up before and amid answers, read slowly, send nonsense, too much and half of it, while the KV
memory is too small for all of them, deadlines are missed and steps of the device fail now and then. At the end every accepted request has had a result or an error, and blocks,
sockets and memory are where they began.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from program_log import ProgramLog

KEY = "soak"
MAX_GROWTH_MIB = 16  # allocators keep some; a leak of a few hundred bytes a request is more than that in half an hour


class Failure(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Failure(" ".join(str(w) for w in what))


class Soak:
    def __init__(self, args):
        self.random = random.Random(args.seed)
        self.sanitized = args.sanitized
        self.counts = collections.Counter()
        faults = ["--inject-fault", "device.op:1500", "--inject-fault", "net.slow:40"]
        model = ["-m", args.model] if args.model else ["--dummy", "tiny-deepseek-v2"]
        self.errors = ProgramLog()
        self.process = subprocess.Popen(
            [args.program, "serve", *model, "--port", "0", "-c", "512", "--max-num-seqs", "8", "--kv-tokens", "1024",
             "--max-waiting", "40", "--api-key", KEY, "--max-body-mib", "1", "--read-timeout", "2", "--idle-timeout", "5", "--log-level", "off", *faults],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors.end)
        self.port = self.errors.port(self.process)

    async def open(self):
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)

    async def ask(self, method, path, body=b"", headers=""):
        reader, writer = await self.open()
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n{headers}"
                         f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            data = await asyncio.wait_for(reader.read(), 120)
        except asyncio.TimeoutError:
            raise Failure(f"no answer in 120 s to {method} {path} {body[:500]}; the server: {await self.glance()}") from None
        finally:
            writer.close()
        head, _, content = data.partition(b"\r\n\r\n")
        check(head.startswith(b"HTTP/1.1 "), method, path, "got no response:", data[:200])
        return int(head[9:12]), head, content

    async def glance(self):
        reader, writer = await self.open()
        writer.write(f"GET /status HTTP/1.0\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        try:
            return (await asyncio.wait_for(reader.read(), 20))[-2000:]
        except asyncio.TimeoutError:
            return "does not answer"
        finally:
            writer.close()

    def body(self, **more):
        r = self.random
        body = {"max_tokens": r.choice([1, 3, 10, 40, 150]), "seed": r.randrange(1000), "ignore_eos": r.random() < 0.8,
                "n": r.choice([1, 1, 1, 2, 4]), "temperature": r.choice([0, 0.7, 1.5]), "priority": r.randrange(-2, 3)}
        words = "taneba " * r.choice([1, 2, 5, 20, 60])
        if r.random() < 0.5:
            body["messages"] = [{"role": "user", "content": words}]
            path = "/v1/chat/completions"
        else:
            body["prompt"] = words if r.random() < 0.7 else [words, "ta"]
            path = "/v1/completions"
            if r.random() < 0.2:
                body["logprobs"] = r.randrange(5)
        if r.random() < 0.2:
            body["stop"] = r.choice(["a", ["ba", "e"], "zzz"])
        if r.random() < 0.2:
            body["bad_words"] = r.choice(["ta", ["neba", "ta ne"], ["a", "b", "taneba taneba"]])
        body.update(more)
        return path, json.dumps(body).encode()

    @staticmethod
    def is_fault(content):
        return b"injected fault" in content

    # What clients do. Each returns how it ended, for the count.
    async def whole(self):
        status, head, content = await self.ask("POST", *self.body())
        json.loads(content)
        if self.is_fault(content):
            return "fault"
        check(status in (200, 429), "a good request got", status, content[:300])
        if status == 429:
            check(b"Retry-After" in head, "429 without Retry-After")
            await asyncio.sleep(0.1)
        return status

    async def stream(self, slow=False):
        path, body = self.body(stream=True)
        reader, writer = await self.open()
        try:
            writer.write(f"POST {path} HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
                         f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            data = b""
            while piece := await asyncio.wait_for(reader.read(512 if slow else 1 << 16), 120):
                data += piece
                if slow:
                    await asyncio.sleep(0.005)
        finally:
            writer.close()
        if data.startswith(b"HTTP/1.1 429"):
            await asyncio.sleep(0.1)
            return 429
        if self.is_fault(data):
            return "fault"
        check(data.startswith(b"HTTP/1.1 200"), "a good stream got", data[:300])
        check(b"data: [DONE]" in data, "a stream without an end:", data[-300:])
        data.decode("utf-8")
        return "stream"

    async def late(self):
        status, _, content = await self.ask("POST", *self.body(max_tokens=150, timeout=self.random.choice([0.001, 0.01, 0.05])))
        check(status in (200, 429, 504) or self.is_fault(content), "a request with a deadline got", status, content[:300])
        return "late" if status == 504 else status

    async def half_close(self):
        path, body = self.body(stream=self.random.random() < 0.5)
        reader, writer = await self.open()
        try:
            writer.write(f"POST {path} HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            writer.write_eof()
            data = await asyncio.wait_for(reader.read(), 240)
        finally:
            writer.close()
        while data.startswith(b"HTTP/1.1 100 "):
            data = data.partition(b"\r\n\r\n")[2]
        check(data.startswith((b"HTTP/1.1 200", b"HTTP/1.1 429")) or self.is_fault(data), "who ended its side got", data[:300])
        return "half closed"

    async def hang_up(self):
        path, body = self.body(stream=self.random.random() < 0.7, max_tokens=300)
        reader, writer = await self.open()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        if self.random.random() < 0.6:
            await asyncio.wait_for(reader.read(100), 120)
        else:
            await asyncio.sleep(self.random.random() * 0.05)
        writer.transport.abort() if self.random.random() < 0.5 else writer.close()
        return "hung up"

    async def half(self):
        _, writer = await self.open()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: s\r\nContent-Length: 100000\r\n\r\n{\"prompt\":"[:self.random.randrange(10, 80)])
        await asyncio.sleep(self.random.choice([0, 0, 0, 2.5]))
        writer.close()
        return "half"

    async def nonsense(self):
        r = self.random
        path, body = self.body()
        broken = bytearray(body)
        for _ in range(r.randrange(1, 6)):
            broken[r.randrange(len(broken))] = r.randrange(256)
        status, _, content = await self.ask("POST", path, bytes(broken))
        check(status < 500 or self.is_fault(content), "damaged JSON got", status, content[:300], bytes(broken)[:200])
        return "nonsense"

    async def wrong(self):
        more = self.random.choice([{"temperature": -1}, {"n": 10 ** 9}, {"max_tokens": "x"}, {"logit_bias": {"-1": 5}}, {"stop": [""]},
                                   {"model": "none"}, {"stream": 5}, {"prompt": [[10 ** 9]]}, {"messages": []}, {"response_format": {"type": "json_object"}}])
        path, body = self.body()
        status, _, content = await self.ask("POST", path, json.dumps({**json.loads(body), **more}).encode())
        check(status in (200, 400, 404, 429) or self.is_fault(content), "a wrong field got", status, content[:300])
        return "wrong"

    async def too_long(self):
        status, _, content = await self.ask("POST", "/v1/completions", json.dumps({"prompt": "taneba " * 2000}).encode())
        check(status == 400, "a prompt over the context got", status, content[:300])
        return "too long"

    async def too_big(self):
        reader, writer = await self.open()
        size = 3 << 20
        try:
            writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: s\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size)
            data = await asyncio.wait_for(reader.read(), 60)
            check(data.startswith(b"HTTP/1.1 413"), "a huge body got", data[:300])
        except ConnectionError:
            pass
        finally:
            writer.close()
        return "too big"

    async def no_http(self):
        reader, writer = await self.open()
        writer.write(self.random.randbytes(self.random.randrange(1, 2000)) + b"\r\n\r\n")
        writer.write_eof()
        try:
            await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            pass
        writer.close()
        return "no HTTP"

    async def look(self):
        path = self.random.choice(["/health", "/metrics", "/status", "/v1/models", "/", "/nothing"])
        status, _, content = await self.ask("GET", path)
        check(status == (404 if path == "/nothing" else 200), path, "got", status, content[:300])
        return "look"

    async def client(self, end):
        doings = [(self.whole, 6), (self.stream, 6), (lambda: self.stream(slow=True), 1), (self.hang_up, 5), (self.half, 1), (self.half_close, 1), (self.late, 1), (self.nonsense, 3),
                  (self.wrong, 3), (self.too_long, 1), (self.too_big, 1), (self.no_http, 1), (self.look, 2)]
        while time.monotonic() < end:
            doing = self.random.choices([d for d, _ in doings], [w for _, w in doings])[0]
            try:
                self.counts[await doing()] += 1
            except (ConnectionError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
                raise Failure(f"{doing}: {type(error).__name__}: {error}") from error

    async def state(self):
        _, _, content = await self.ask("GET", "/status")
        return json.loads(content)

    async def rest(self):
        """Waits until nothing runs; returns resident memory and open descriptors."""
        end = time.monotonic() + 60
        while True:
            state = await self.state()
            used = sum(group["blocks_used"] for group in state["kv_groups"])
            if state["live_requests"] == state["running"] == state["waiting"] == used == 0 and state["connections"] <= 1:
                break
            check(time.monotonic() < end, "the server did not come to rest:", json.dumps(state))
            await asyncio.sleep(0.1)
        _, _, content = await self.ask("GET", "/metrics")
        resident = float(re.search(rb"\ncachalot:resident_memory_bytes (\S+)", content).group(1)) / (1 << 20)
        # The question's own connection may still be closing; a descriptor that leaked is there every time.
        counts = []
        for _ in range(20):
            counts.append(len(os.listdir(f"/proc/{self.process.pid}/fd")))
            await asyncio.sleep(0.05)
        return resident, min(counts)

    async def traffic(self, seconds):
        end = time.monotonic() + seconds
        await asyncio.gather(*(self.client(end) for _ in range(40)))

    async def run(self, seconds):
        warm_up = min(seconds / 4, 60)
        await self.traffic(warm_up)  # what is allocated once and kept
        memory, descriptors = await self.rest()
        print(f"at rest after the warm-up: {memory:.1f} MiB, {descriptors} descriptors", flush=True)
        await self.traffic(seconds - warm_up)
        after_memory, after_descriptors = await self.rest()
        print(f"at rest at the end: {after_memory:.1f} MiB, {after_descriptors} descriptors; {sum(self.counts.values())} requests: "
              + ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items(), key=str)), flush=True)
        check(after_descriptors <= descriptors, "descriptors grew from", descriptors, "to", after_descriptors)
        # A sanitizer keeps freed memory for a while, and finds leaks itself.
        if not self.sanitized:
            check(after_memory - memory < MAX_GROWTH_MIB, "memory grew from", memory, "to", after_memory, "MiB")
        status, _, _ = await self.ask("GET", "/health")
        check(status == 200, "/health is", status)
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        check(code == 0, "the server ended with", code, self.errors.text()[-2000:])
        lines = [json.loads(line) for line in self.errors.lines() if line.startswith('{"event":"request"')]
        lines = [line for line in lines if "id" in line]  # those without were refused
        reasons = collections.Counter(line["status"] for line in lines)
        print(f"{len(lines)} accepted requests, by status: {dict(reasons)}")
        odd = [x for x in lines if x["status"] not in (200, 499, 504) and not self.is_fault(x.get("error", "").encode())]
        check(not odd, "an accepted request ended otherwise:", odd[:3])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model")
    parser.add_argument("--sanitized", action="store_true", help="the program is a sanitized build")
    soak = Soak(parser.parse_args())
    args = parser.parse_args()
    try:
        asyncio.run(soak.run(args.seconds))
    except Failure as failure:
        print(f"FAILED: {failure}")
        sys.exit(1)
    finally:
        if soak.process.poll() is None:
            soak.process.kill()
            soak.process.wait()


if __name__ == "__main__":
    main()
