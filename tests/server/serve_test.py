#!/usr/bin/env python3
"""The served program as its clients meet it: the official `openai` client where it is installed, and plain HTTP.

usage: serve_test.py PATH/TO/cachalot [unittest arguments]
The client is looked for where tools/setup.sh clients puts it (build/clients) and among the installed packages; without
it its tests are skipped, and the last line counts them.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "build" / "clients"), str(ROOT / "tests" / "support")]
try:
    import openai
except ImportError:
    openai = None

from program_log import ProgramLog

PROGRAM = ""
TIMEOUT = 120
SKIPPED = 77  # the exit code when nothing could run


class Served:
    """`cachalot serve` on a free port."""

    def __init__(self, *args, model=("--dummy", "tiny-llama")):
        self.start([PROGRAM, "serve", *model, "--port", "0", *map(str, args)])

    def start(self, command):
        self.errors = ProgramLog()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors.end)
        self.port = self.errors.port(self.process)
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def log(self):
        return self.errors.text()

    def request_lines(self):
        return [json.loads(line) for line in self.errors.lines() if line.startswith('{"event":"request"')]

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, content

    def json(self, method, path, body=None, headers=None):
        status, content = self.ask(method, path, body, headers)
        return status, json.loads(content)

    def metric(self, name):
        _, text = self.ask("GET", "/metrics")
        for line in text.decode().splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
        return None

    def wait(self, condition, what):
        end = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < end, what
            time.sleep(0.01)

    def request_line(self, which):
        """The first in the log for which it holds: they come behind the answers."""
        found = []
        self.wait(lambda: found.extend(filter(which, self.request_lines())) or found, "no line")
        return found[0]

    def at_rest(self):
        self.wait(lambda: self.json("GET", "/status")[1]["live_requests"] == 0, "requests are still live")
        self.wait(lambda: self.json("GET", "/status")[1]["running"] == 0, "sequences still run")

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        return self.process.wait(TIMEOUT)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def needs_client(case):
    return unittest.skipIf(openai is None, "the openai client is not installed (tools/setup.sh clients)")(case)


class Base(unittest.TestCase):
    ARGS = ()

    @classmethod
    def setUpClass(cls):
        cls.served = Served(*cls.ARGS)

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        log = cls.served.log()
        cls.served.close()
        assert code == 0, (code, log)


@needs_client
class OfficialClient(Base):
    ARGS = ("--api-key", "k1", "-c", 512, "--max-num-seqs", 4)
    ASK = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "taneba?"}]

    def client(self, **kwargs):
        return openai.OpenAI(base_url=self.served.url, api_key="k1", max_retries=0, timeout=TIMEOUT, **kwargs)

    def test_chat(self):
        answer = self.client().chat.completions.create(model="tiny-llama", messages=self.ASK, max_tokens=12, seed=1, n=2,
                                                       extra_body={"ignore_eos": True})
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        self.assertEqual({c.finish_reason for c in answer.choices}, {"length"})
        self.assertEqual(answer.usage.completion_tokens, 24)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.usage.prompt_tokens_details.cached_tokens >= 0, True)
        again = self.client().chat.completions.create(model="tiny-llama", messages=self.ASK, max_tokens=12, seed=1,
                                                      extra_body={"ignore_eos": True})
        self.assertEqual(again.choices[0].message.content, answer.choices[0].message.content)

    def test_chat_stream(self):
        common = dict(model="tiny-llama", messages=self.ASK, max_completion_tokens=20, seed=4, logprobs=True, top_logprobs=2,
                      extra_body={"ignore_eos": True})
        whole = self.client().chat.completions.create(**common)
        chunks = list(self.client().chat.completions.create(stream=True, stream_options={"include_usage": True}, **common))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[0].choices[0].delta.content, "")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 20)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "length")
        self.assertTrue(all(c.choices[0].finish_reason is None for c in chunks[:-2]))
        text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
        self.assertEqual(text, whole.choices[0].message.content)
        tokens = [t for c in chunks[:-1] if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual([t.token for t in tokens], [t.token for t in whole.choices[0].logprobs.content])
        self.assertEqual(len(tokens), 20)
        for token in tokens:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertGreaterEqual(token.top_logprobs[0].logprob, token.top_logprobs[1].logprob)
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_completion(self):
        answer = self.client().completions.create(model="tiny-llama", prompt=["ta", "neba"], max_tokens=6, logprobs=1, temperature=0,
                                                  extra_body={"ignore_eos": True})
        self.assertEqual(len(answer.choices), 2)
        for choice in answer.choices:
            self.assertEqual(len(choice.logprobs.tokens), 6)
            for value, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
                self.assertAlmostEqual(value, max(top.values()), places=4)  # the best one is drawn at temperature 0
        echoed = self.client().completions.create(model="tiny-llama", prompt="taneba", max_tokens=4, echo=True, stream=True)
        self.assertTrue("".join(c.choices[0].text for c in echoed).startswith("taneba"))

    def test_stop_strings(self):
        common = dict(model="tiny-llama", prompt="taneba", max_tokens=40, seed=9, extra_body={"ignore_eos": True})
        text = self.client().completions.create(**common).choices[0].text
        stop = text[len(text) // 2:len(text) // 2 + 3]
        for stream in (False, True):
            answer = self.client().completions.create(stop=[stop], stream=stream, **common)
            if stream:
                chunks = list(answer)
                got, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
            else:
                got, reason = answer.choices[0].text, answer.choices[0].finish_reason
            self.assertEqual(got, text[:text.index(stop)])
            self.assertEqual(reason, "stop")

    def test_sampling_fields_work(self):
        token = self.served.json("POST", "/tokenize", {"prompt": "ta", "add_special_tokens": False}, {"x-api-key": "k1"})[1]["tokens"][0]
        forced = self.client().completions.create(model="tiny-llama", prompt="x", max_tokens=5, logit_bias={str(token): 100}, temperature=0,
                                                  logprobs=0, extra_body={"ignore_eos": True})
        self.assertEqual(len(set(forced.choices[0].logprobs.tokens)), 1)
        penalised = self.client().completions.create(model="tiny-llama", prompt="x", max_tokens=5, temperature=0, frequency_penalty=2,
                                                     presence_penalty=2, logprobs=0, extra_body={"ignore_eos": True, "top_k": 1, "min_p": 0.1})
        self.assertEqual(len(penalised.choices[0].logprobs.tokens), 5)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().chat.completions.create(model="tiny-llama", messages=self.ASK, temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertIn("-1", str(caught.exception))
        with self.assertRaises(openai.NotFoundError):
            self.client().chat.completions.create(model="gpt-4", messages=self.ASK)
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.served.url, api_key="wrong", max_retries=0).models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().chat.completions.create(model="tiny-llama", messages=[{"role": "user", "content": "taneba " * 600}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.client().chat.completions.create(model="tiny-llama", messages=self.ASK, response_format={"type": "json_object"})

    def test_cancellation(self):
        stream = self.client().chat.completions.create(model="tiny-llama", messages=self.ASK, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.served.wait(lambda: self.served.json("GET", "/status", None, {"x-api-key": "k1"})[1]["live_requests"] == 0, "not cancelled")

    def test_timeout(self):
        client = openai.OpenAI(base_url=self.served.url, api_key="k1", max_retries=0, timeout=0.001)
        with self.assertRaises(openai.APITimeoutError):
            client.chat.completions.create(model="tiny-llama", messages=self.ASK, n=4, extra_body={"ignore_eos": True})

    def test_models(self):
        models = self.client().models.list().data
        self.assertEqual([m.id for m in models], ["tiny-llama"])
        self.assertEqual(self.client().models.retrieve("tiny-llama").owned_by, "cachalot")


class PlainHttp(Base):
    ARGS = ("-c", 512, "--deterministic", "--served-model-name", "one", "--alias", "two,three", "--metrics-compat", "vllm")

    def test_names(self):
        _, models = self.served.json("GET", "/v1/models")
        self.assertEqual([m["id"] for m in models["data"]], ["one", "two", "three"])
        status, _ = self.served.json("POST", "/v1/completions", {"prompt": "ta", "model": "three", "max_tokens": 1})
        self.assertEqual(status, 200)

    def test_tokens_there_and_back(self):
        _, tokens = self.served.json("POST", "/tokenize", {"content": "taneba ü", "add_special": False, "return_token_strs": True})
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(len(tokens["token_strs"]), tokens["count"])
        _, text = self.served.json("POST", "/detokenize", {"tokens": tokens["tokens"]})
        self.assertEqual(text["content"], "taneba ü")
        chat = {"messages": [{"role": "user", "content": "ta"}]}
        _, prompt = self.served.json("POST", "/apply-template", chat)
        self.assertIn("ta", prompt["prompt"])
        self.assertGreater(self.served.json("POST", "/tokenize", chat)[1]["count"], 0)

    def test_hostile_bodies(self):
        deep = b'{"messages":' + b"[" * 100000
        bodies = [b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"prompt":"a"', deep, b'{"a":' * 5000 + b"1" + b"}" * 5000,
                  b'{"prompt":' + b"9" * 100000 + b"}", b'{"prompt":"\\ud800"}', b'{"prompt":"\\u0000"}', b'{"messages":[{"role":"user"}]}',
                  b'{"prompt":"a","max_tokens":1e400}', b'{"prompt":"a","temperature":NaN}', b'{"prompt":[[[1]]]}',
                  b'{"messages":[{"role":"user","content":"a","tool_calls":[[[]]]}]}', b'{"messages":[[{"role":"user"}]]}']
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template"):
            for body in bodies:
                status, content = self.served.ask("POST", path, body)
                self.assertLess(status, 500, (path, body[:80], content))
                if status != 200:
                    self.assertEqual(set(json.loads(content)["error"]), {"message", "type", "param", "code"}, body[:80])

    def test_description_is_complete(self):
        _, api = self.served.json("GET", "/openapi.json")
        for path, operations in api["paths"].items():
            for method in operations:
                status, _ = self.served.ask(method.upper(), path.replace("{id}", "one"), b"{}" if method == "post" else None)
                self.assertNotIn(status, (404, 405, 500), path)

    def test_page(self):
        for path, kind in (("/", b"<!DOCTYPE html>"), ("/web/app.js", b"use strict"), ("/web/style.css", b":root")):
            status, content = self.served.ask("GET", path)
            self.assertEqual(status, 200)
            self.assertIn(kind, content)

    def test_log_line(self):
        self.served.json("POST", "/v1/completions", {"prompt": "ta", "max_tokens": 3, "seed": 77, "user": "u1", "ignore_eos": True})
        line = self.served.request_line(lambda line: line.get("user") == "u1")
        self.assertEqual((line["status"], line["completion_tokens"], line["seed"], line["finish_reason"]), (200, 3, 77, "length"))
        self.assertGreater(line["e2e_ms"], 0)

    def test_refused_requests_are_in_the_log(self):
        status, answer = self.served.json("POST", "/v1/chat/completions", {"messages": [], "temperature": "x" * 2000})
        self.assertEqual(status, 400)
        self.assertIn("temperature", answer["error"]["message"])
        line = self.served.request_line(lambda line: line["status"] == 400 and "temperature" in line["error"])
        self.assertEqual(line["path"], "/v1/chat/completions")
        self.assertLess(len(json.dumps(line)), 1000)

    def test_what_dashboards_ask_for(self):
        self.served.json("POST", "/v1/completions", {"prompt": "ta", "max_tokens": 3, "ignore_eos": True})
        self.served.at_rest()
        _, text = self.served.ask("GET", "/metrics")
        names = {re.split(r"[{ ]", line)[0] for line in text.decode().splitlines() if line.startswith("vllm:")}
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "lora_requests_info", "cache_config_info",
                     "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total",
                     "prompt_tokens_cached_total", "generation_tokens_total", "request_success_total", "iteration_tokens_total_sum",
                     *(f"{histogram}_{part}" for part in ("bucket", "sum", "count") for histogram in (
                         "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
                         "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
                         "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens",
                         "request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens"))):
            self.assertIn(f"vllm:{name}", names)
        for line in text.decode().splitlines():
            if line.startswith("vllm:"):
                self.assertIn('model_name="one"', line)
                self.assertIn('engine="0"', line)

    def test_invalid_utf8_from_the_model(self):
        # Every byte that a byte-level vocabulary has, forced one after the other.
        ids = [self.served.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"][0] for text in ("ü", "😀", "한")]
        for token in ids:
            body = {"prompt": "x", "max_tokens": 5, "temperature": 0, "logit_bias": {str(token): 100}, "logprobs": 2, "ignore_eos": True}
            status, answer = self.served.json("POST", "/v1/completions", body)
            self.assertEqual(status, 200)
            status, content = self.served.ask("POST", "/v1/completions", {**body, "stream": True})
            self.assertEqual(status, 200)
            self.assertTrue(content.decode("utf-8").rstrip().endswith("data: [DONE]"))
            chunks = [json.loads(x[6:]) for x in content.decode().split("\n\n") if x.startswith("data: {")]
            self.assertEqual("".join(c["choices"][0]["text"] for c in chunks), answer["choices"][0]["text"])

    def test_counters_agree_with_the_client(self):
        self.served.at_rest()
        before = self.served.metric("cachalot:generation_tokens_total")
        total = sum(self.served.json("POST", "/v1/completions", {"prompt": "ta", "max_tokens": n, "ignore_eos": True})[1]["usage"]["completion_tokens"]
                    for n in (1, 5, 9))
        self.assertEqual(self.served.metric("cachalot:generation_tokens_total") - before, total)
        self.assertEqual(self.served.metric("vllm:generation_tokens_total") - before, total)

    def test_parallel_streams(self):
        results = []

        def one(seed):
            body = {"prompt": "taneba", "max_tokens": 20, "seed": seed, "ignore_eos": True}
            whole = self.served.json("POST", "/v1/completions", body)[1]["choices"][0]["text"]
            _, content = self.served.ask("POST", "/v1/completions", {**body, "stream": True})
            chunks = [json.loads(x[6:]) for x in content.decode().split("\n\n") if x.startswith("data: {")]
            results.append("".join(c["choices"][0]["text"] for c in chunks) == whole)

        threads = [threading.Thread(target=one, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [True] * 12)


class Lifecycle(unittest.TestCase):
    def run_program(self, *args):
        return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)

    def test_drain(self):
        body = {"prompt": "ta", "max_tokens": 1000, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        for _ in range(10):
            served = Served("-c", 2048, model=("--dummy", "tiny-deepseek-v3"))
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=TIMEOUT)
            connection.request("POST", "/v1/completions", json.dumps(body))
            response = connection.getresponse()
            got = response.read(1)  # it has begun
            code = served.stop()
            got += response.read()
            connection.close()
            log = served.log()
            served.close()
            self.assertEqual(code, 0)
            self.assertIn(b'"completion_tokens":1000', got)
            self.assertTrue(got.endswith(b"data: [DONE]\n\n"))
            if "1 requests are still running" in log:
                return
        self.fail("each answer was over before the signal came")

    def test_drain_is_bounded(self):
        # One sequence after the other: this takes the longer the more there are, and is never waited for.
        served = Served("-c", 2560, "--drain-timeout", 0, "--max-num-seqs", 1, model=("--dummy", "tiny-deepseek-v3"))
        got = []
        body = {"prompt": "ta", "max_tokens": 2500, "ignore_eos": True, "n": 64}
        thread = threading.Thread(target=lambda: got.append(served.json("POST", "/v1/completions", body)))
        thread.start()
        served.wait(lambda: served.json("GET", "/status")[1]["running"] > 0, "not running")
        self.assertEqual(served.stop(), 0)
        thread.join()
        self.assertEqual(got[0][0], 503)
        served.close()

    def test_configuration_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "serve.toml"
            path.write_text('dummy = "tiny-llama"\nserved-model-name = "from-file"\nctx-size = 96\napi-key = ["a", "b"]\n')
            served = Served("--config", path, model=())
            status, models = served.json("GET", "/v1/models", None, {"Authorization": "Bearer b"})
            self.assertEqual((status, models["data"][0]["id"], models["data"][0]["max_model_len"]), (200, "from-file", 96))
            self.assertEqual(served.ask("GET", "/v1/models")[0], 401)
            served.close()
            path.write_text("prot = 80\n")
            done = self.run_program("serve", "--config", path, "--dummy", "tiny-llama")
            self.assertEqual(done.returncode, 2)
            self.assertIn("--port", done.stderr)

    def test_wrong_command_lines(self):
        for args in (("--port", "70000"), ("--max-num-seqs", "0"), ("--api-key-file", "/no/such"), ("--host", "no.such.host.invalid"), ("--wat",)):
            done = self.run_program("serve", "--dummy", "tiny-llama", *args)
            self.assertNotEqual(done.returncode, 0, args)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_kv_disk_outlives_the_process(self):
        body = {"prompt": "taneba " * 60, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        with tempfile.TemporaryDirectory() as folder:
            args = ("-c", 512, "--kv-disk", folder, "--kv-disk-size", "64MiB")
            texts = []
            for ending in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
                served = Served(*args)
                disk = served.json("GET", "/v1/cachalot/cache")[1]["disk"]
                self.assertEqual(served.metric("cachalot:kv_disk_blocks"), disk["blocks"])
                _, answer = served.json("POST", "/v1/completions", body)
                texts.append(answer["choices"][0]["text"])
                cached = answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
                if len(texts) == 1:
                    self.assertEqual(cached, 0)
                    self.assertEqual(disk["blocks"], 0)
                else:
                    self.assertGreater(cached, answer["usage"]["prompt_tokens"] // 2)
                    self.assertGreater(disk["blocks"], 0)
                    self.assertGreater(served.metric("cachalot:kv_disk_promoted_blocks_total"), 0)
                if ending == signal.SIGKILL:
                    served.process.kill()
                    served.process.wait()
                else:
                    self.assertEqual(served.stop(ending), 0)
                served.close()
            self.assertEqual(texts, texts[:1] * 3)
            served = Served(*args)
            other = self.run_program("run", "--dummy", "tiny-llama", "-p", "x", "--kv-disk", folder)
            self.assertEqual(other.returncode, 1)
            self.assertIn("another process", other.stderr)
            self.assertEqual(served.json("POST", "/v1/cachalot/cache", {"action": "flush"})[0], 200)
            self.assertEqual(served.json("GET", "/v1/cachalot/cache")[1]["disk"]["blocks"], 0)
            served.close()

    def test_response_cache(self):
        served = Served("-c", 512, "--response-cache", 100)
        body = {"prompt": "taneba", "max_tokens": 16, "temperature": 0, "ignore_eos": True, "logprobs": 2, "n": 2}

        def answers(body, count=2):
            whole = [served.json("POST", "/v1/completions", body)[1]["choices"] for _ in range(count)]
            _, content = served.ask("POST", "/v1/completions", {**body, "stream": True})
            chunks = [json.loads(x[6:]) for x in content.decode().split("\n\n") if x.startswith("data: {")]
            streamed = "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == 0)
            return whole, streamed

        hits = lambda: served.metric("cachalot:response_cache_hits_total")
        whole, streamed = answers(body)
        self.assertEqual(whole[0], whole[1])
        self.assertEqual(streamed, whole[0][0]["text"])
        self.assertEqual(hits(), 2)
        seeded = {**body, "temperature": 1, "seed": 5}
        whole, streamed = answers(seeded)
        self.assertEqual(whole[0], whole[1])
        self.assertEqual(streamed, whole[0][0]["text"])
        self.assertEqual(hits(), 4)
        answers({**body, "temperature": 1})
        self.assertEqual(hits(), 4)
        self.assertEqual(served.json("POST", "/v1/cachalot/cache", {"action": "flush"})[0], 200)
        self.assertEqual(served.json("POST", "/v1/completions", body)[1]["choices"], answers(body, 1)[0][0])
        self.assertEqual(hits(), 6)
        served.at_rest()
        self.assertEqual(served.stop(), 0)
        served.close()

    def test_record_and_replay(self):
        with tempfile.TemporaryDirectory() as folder:
            served = Served("--record", folder, "--deterministic", "-c", 512)
            threads = [threading.Thread(target=lambda i=i: served.json("POST", "/v1/chat/completions" if i % 2 else "/v1/completions",
                       {"prompt": "taneba", "messages": [{"role": "user", "content": "taneba " * i}], "max_tokens": 20, "n": 1 + i % 3,
                        "ignore_eos": True})) for i in range(1, 9)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(served.stop(), 0)
            served.close()
            record = Path(folder) / "requests.jsonl"
            self.assertEqual(len(record.read_text().splitlines()), 8)
            again = Served("-c", 512)
            done = self.run_program("bench", "serve", "--base-url", f"http://127.0.0.1:{again.port}", "--dataset", "trace", "--dataset-path", record,
                                    "--concurrency", "3", "--json")
            again.close()
            self.assertEqual(json.loads(done.stdout)["completed"], 8, done.stderr)
            for more in (("--max-num-seqs", "1"), ("--speed", "2")):
                done = self.run_program("replay", folder, "--dummy", "tiny-llama", "--deterministic", "-c", "512", *more)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("0 different", done.stdout)
            lines = record.read_text().splitlines()
            broken = json.loads(lines[0])
            broken["choices"][0]["result"]["token_ids"][3] += 1
            record.write_text("\n".join([json.dumps(broken), *lines[1:]]))
            done = self.run_program("replay", folder, "--dummy", "tiny-llama", "--deterministic", "-c", "512")
            self.assertEqual(done.returncode, 1)
            self.assertIn("token 3", done.stdout)

    def test_bench_serve(self):
        served = Served("-c", 512, "--max-num-seqs", 4)
        base = ("bench", "serve", "--base-url", f"http://127.0.0.1:{served.port}", "-n", 12, "--input-len", 8, "--output-len", 6, "--json")
        with tempfile.TemporaryDirectory() as folder:
            svg = Path(folder) / "times.svg"
            for more in (("--concurrency", 3), ("--request-rate", 100, "--slo", "ttft:60000,itl:60000", "--svg", svg),
                         ("--static-batch", 4, "--endpoint", "chat"), ("--dataset", "shared-prefix", "--prefix-len", 20)):
                done = self.run_program(*base, *more)
                self.assertEqual(done.returncode, 0, done.stderr)
                report = json.loads(done.stdout)
                self.assertEqual((report["completed"], report["failed"], report["output_tokens"]), (12, 0, 72), more)
                if "--slo" in more:
                    self.assertEqual(report["goodput"]["good"], 12)
            self.assertIn("<polyline", svg.read_text())
        done = self.run_program(*base, "--model", "wrong")
        self.assertEqual(done.returncode, 1)
        self.assertIn("404", done.stderr)
        served.close()


def certificate(folder, name="own", *more):
    """FOLDER/NAME.pem and NAME-key.pem for localhost, made by the openssl program."""
    cert, key = Path(folder) / f"{name}.pem", Path(folder) / f"{name}-key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", *more], check=True, capture_output=True)
    return cert, key


@unittest.skipIf(shutil.which("openssl") is None, "there is no openssl program to make a certificate with")
class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cert, cls.key = certificate(cls.folder.name)
        cls.served = Served("--ssl-certfile", cls.cert, "--ssl-keyfile", cls.key, "-c", 2048, "--deterministic", model=("--dummy", "tiny-deepseek-v3"))
        cls.context = ssl.create_default_context(cafile=cls.cert)

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        cls.served.close()
        cls.folder.cleanup()
        assert code == 0, code

    def connect(self, context=None):
        plain = socket.create_connection(("127.0.0.1", self.served.port), timeout=TIMEOUT)
        return (context or self.context).wrap_socket(plain, server_hostname="localhost")

    @staticmethod
    def post(body):
        data = json.dumps(body).encode()
        return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data

    def status(self):
        connection = http.client.HTTPSConnection("localhost", self.served.port, timeout=TIMEOUT, context=self.context)
        connection.request("GET", "/status")
        status = json.loads(connection.getresponse().read())
        connection.close()
        return status

    def test_requests_on_one_connection(self):
        self.assertIn("https://", self.served.log())
        connection = http.client.HTTPSConnection("localhost", self.served.port, timeout=TIMEOUT, context=self.context)
        for size in (1, 100_000, 3):
            connection.request("POST", "/tokenize", json.dumps({"content": "ta " * size}))
            self.assertGreaterEqual(json.loads(connection.getresponse().read())["count"], size)
        connection.close()

    def test_streams(self):
        texts = []

        def one():
            with self.connect() as stream:
                stream.sendall(self.post({"prompt": "taneba", "max_tokens": 60, "seed": 3, "ignore_eos": True, "stream": True}))
                got = b""
                while not got.endswith(b"\r\n0\r\n\r\n"):
                    piece = stream.recv(1 << 16)
                    if not piece:
                        break
                    got += piece
                texts.append(re.sub(rb'"(id|created)": ?("[^"]*"|\d+)', b"", b"".join(re.findall(rb"data: .*", got))))
        threads = [threading.Thread(target=one) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 24)
        self.assertTrue(all(text.endswith(b"[DONE]") for text in texts))
        self.assertEqual(len(set(texts)), 1)

    def test_a_client_that_goes(self):
        for stream in (True, False):
            for politely in (True, False):  # with TLS's own end, and without
                connection = self.connect()
                connection.sendall(self.post({"prompt": "ta", "max_tokens": 2000, "ignore_eos": True, "stream": stream, "n": 64}))
                self.served.wait(lambda: self.status()["running"] > 0, "not running")
                before = self.status()["generated_tokens"]
                if politely:
                    connection.setblocking(False)
                    with contextlib.suppress(OSError, ValueError):
                        connection.unwrap()
                connection.close()
                self.served.wait(lambda: self.status()["live_requests"] == 0, "not cancelled")
                self.assertLess(self.status()["generated_tokens"] - before, 64 * 2000)

    def test_other_languages(self):
        plain = socket.create_connection(("127.0.0.1", self.served.port), timeout=TIMEOUT)
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertIn(b"400 Bad Request", plain.recv(1 << 16))
        plain.close()
        plain = socket.create_connection(("127.0.0.1", self.served.port), timeout=TIMEOUT)
        plain.sendall(b"\x16\x03\x01\x00\x05hello" + os.urandom(500))
        while plain.recv(1 << 16):
            pass
        plain.close()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(self.cert)
        with contextlib.suppress(ValueError, DeprecationWarning), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises(OSError):
                self.connect(old)
        with self.assertRaises(ssl.SSLCertVerificationError):
            self.connect(ssl.create_default_context())
        self.assertEqual(self.status()["live_requests"], 0)

    def test_bench_serve(self):
        base = (PROGRAM, "bench", "serve", "--base-url", f"https://localhost:{self.served.port}/v1", "-n", "6", "--concurrency", "2", "--input-len", "5",
                "--vocab-size", "300", "--output-len", "4", "--json")
        done = subprocess.run([*base, "--ca-file", self.cert], capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual((report["completed"], report["prompt_tokens"], report["output_tokens"]), (6, 30, 24))
        done = subprocess.run(base, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 1)
        self.assertIn("certificate", done.stderr)

    def test_what_is_no_certificate(self):
        other, other_key = certificate(self.folder.name, "other")
        locked = Path(self.folder.name) / "locked.pem"
        subprocess.run(["openssl", "rsa", "-aes128", "-passout", "pass:x", "-in", self.key, "-out", locked], check=True, capture_output=True)
        for args, told in (((self.cert, None), "go together"), ((None, self.key), "go together"), (("/no/such", self.key), "/no/such"),
                           ((self.cert, "/no/such"), "/no/such"), ((self.key, self.key), "no PEM certificate"), ((self.cert, self.cert), "no PEM key"),
                           ((self.cert, other_key), "is not the key of"), ((other, self.key), "is not the key of"), ((self.cert, locked), "passphrase")):
            flags = [part for name, value in zip(("--ssl-cert-file", "--ssl-key-file"), args) if value for part in (name, str(value))]
            done = subprocess.run([PROGRAM, "serve", "--dummy", "tiny-llama", "--port", "0", *flags], capture_output=True, text=True, timeout=TIMEOUT,
                                  stdin=subprocess.DEVNULL)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(told, done.stderr)


def main():
    global PROGRAM
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit(__doc__)
    PROGRAM = os.path.abspath(sys.argv[1])
    suite = unittest.main(argv=sys.argv[:1] + sys.argv[2:], exit=False)
    result = suite.result
    for case, reason in result.skipped:
        print(f"skipped: {case}: {reason}")
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad - len(result.skipped)} passed, {bad} failed, {len(result.skipped)} skipped")
    if bad or result.testsRun == 0:
        sys.exit(1)
    sys.exit(SKIPPED if len(result.skipped) == result.testsRun else 0)


if __name__ == "__main__":
    main()
