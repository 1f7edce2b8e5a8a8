#!/usr/bin/env python3
"""End-to-end tests: runs the built program on small dummy models and looks at what a user would see.

usage: e2e_test.py PATH/TO/cachalot [unittest arguments]
Only Python's standard library is needed.
"""

import array
import json
import math
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM = ""
WORK = None
TIMEOUT = 120
TINY = ["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3-moe", "tiny-deepseek-moe", "tiny-deepseek-v2",
        "tiny-deepseek-v3"]


def cachalot(*args, stdin=b"", **kwargs):
    return subprocess.run([PROGRAM, *map(str, args)], input=stdin, capture_output=True, timeout=TIMEOUT, **kwargs)


def start(*args, stdout=subprocess.PIPE, **kwargs):
    return subprocess.Popen([PROGRAM, *map(str, args)], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, **kwargs)


def model(spec, suffix=".gguf", type_name="f32"):
    """A dummy of this spec, written once."""
    path = WORK / f"{spec}-{type_name}{suffix}"
    if not path.exists():
        done = cachalot("dummy", spec, "--type", type_name, "-o", path)
        assert done.returncode == 0, done.stderr.decode()
    return path


def read_safetensors(path):
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, info in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        values = array.array({"F32": "f", "I64": "q", "I32": "i"}[info["dtype"]])
        values.frombytes(data[8 + size + begin:8 + size + end])
        tensors[name] = (info["shape"], values)
    return tensors


def logits_of(model_path, tokens, *args):
    out = WORK / "logits.safetensors"
    done = cachalot("logits", "-m", model_path, "--tokens", ",".join(map(str, tokens)), "-o", out, *args)
    assert done.returncode == 0, done.stderr.decode()
    return read_safetensors(out)


def largest_difference(a, b):
    return max(map(lambda x, y: abs(x - y), a, b))


class CommandLine(unittest.TestCase):
    def assert_refused(self, done, code, *texts):
        message = done.stderr.decode()
        self.assertEqual(done.returncode, code, message)
        self.assertEqual(done.stdout, b"")
        self.assertTrue(message.startswith("cachalot: "), message)
        self.assertEqual(message.count("\n"), 1, message)
        for text in texts:
            self.assertIn(text, message)

    def test_help(self):
        for args in (["--help"], ["--version"]):
            done = cachalot(*args)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"cachalot", done.stdout)
        self.assertEqual(cachalot().returncode, 2)
        for command in ("run", "chat", "inspect", "tokenize", "detokenize", "eval ppl", "logits", "bench", "dummy"):
            done = cachalot(*command.split(), "--help")
            self.assertEqual((done.returncode, done.stderr), (0, b""), command)
            self.assertIn(b"usage: cachalot " + command.encode(), done.stdout)

    def test_wrong_command_lines(self):
        gguf = model("tiny-llama")
        self.assert_refused(cachalot("rnu"), 2, "'rnu'", "'run'")
        self.assert_refused(cachalot("run", "--tmep", "1"), 2, "--tmep", "--temp")
        self.assert_refused(cachalot("-m", gguf, "--promt", "x"), 2, "--promt", "--prompt")
        self.assert_refused(cachalot("run", "-p", "x"), 2, "-m")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "-n", "many"), 2, "-n", "'many'")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "--top-p", "1.5"), 2, "'1.5'", "0..1")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "-f", "y"), 2, "-p and -f")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "-fa", "off"), 2, "fused")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "--isa", "sse"), 2, "'sse'", "avx2")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "--stop", ""), 2, "--stop")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "-l", "5"), 2, "--logit-bias", "'5'")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "-ngl", "many"), 2, "-ngl", "many")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "--gpu-memory", "lots"), 2, "--gpu-memory", "lots")
        self.assert_refused(cachalot(gguf), 2, "run -m")
        self.assert_refused(cachalot("eval", "pll"), 2, "'ppl'")
        self.assert_refused(cachalot("eval", "ppl", "-m", gguf, "-f", gguf, "--window", "8"), 2, "--bos")
        self.assert_refused(cachalot("dummy", "tiny-lama", "-o", WORK / "x.gguf"), 2, "tiny-llama")
        self.assert_refused(cachalot("logits", "-m", gguf, "--tokens", "1"), 2, "--out")

    def test_an_output_never_replaces_an_input(self):
        gguf = model("tiny-llama")
        text, trace = WORK / "inputs.txt", WORK / "trace.jsonl"
        text.write_text("ta ta")
        trace.write_text("{}")
        linked = WORK / "linked.gguf"
        linked.unlink(missing_ok=True)
        linked.symlink_to(gguf)
        before = gguf.read_bytes()
        for output in (gguf, linked, text):
            for command in (("imatrix", "-o"), ("kv", "calibrate", "-o")):
                self.assert_refused(cachalot(*command[:-1], "-m", gguf, "-f", text, "-o", output), 2, str(output), "is read")
            self.assert_refused(cachalot("run", "-m", gguf, "-f", text, "--session", output), 2, str(output), "is read")
        with text.open() as stdin:
            piped = subprocess.run([PROGRAM, "imatrix", "-m", gguf, "-o", text], stdin=stdin, capture_output=True, timeout=TIMEOUT)
        self.assert_refused(piped, 2, str(text), "is read")
        self.assert_refused(cachalot("logits", "-m", linked, "--tokens", "1", "-o", gguf), 2, str(gguf), "is read")
        self.assert_refused(cachalot("quantize", gguf, linked, "Q8_0"), 1, str(linked), "is read")
        self.assert_refused(cachalot("kv", "simulate", "--trace", trace, "--blocks", "8", "--csv", trace), 2, str(trace))
        self.assert_refused(cachalot("imatrix", "-m", gguf, "-f", text, "-o", WORK / "none" / "i"), 2, "no folder")
        self.assertEqual((gguf.read_bytes(), text.read_text(), trace.read_text()), (before, "ta ta", "{}"))

    def test_limits_name_value_and_limit(self):
        gguf = model("tiny-llama")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "-c", "100000"), 1, "100000", "512")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "ta " * 900, "--raw"), 1, "512")
        self.assert_refused(cachalot("logits", "-m", gguf, "--tokens", "1,640", "-o", WORK / "l"), 1, "640")
        self.assert_refused(cachalot("detokenize", "-m", gguf, "--ids", "1,640"), 1, "640")
        self.assert_refused(cachalot("run", "-m", gguf, "-p", "x", "-l", "640+1"), 1, "640")

    def test_too_large_a_model_is_refused(self):
        self.assert_refused(cachalot("run", "--dummy", "deepseek-v3", "-p", "x"), 1, "GiB", "available")

    def test_bad_files(self):
        absent = WORK / "absent.gguf"
        self.assert_refused(cachalot("inspect", "-m", absent), 1, str(absent))
        self.assert_refused(cachalot("run", "-m", absent, "-p", "x"), 1, str(absent))
        self.assert_refused(cachalot("run", "-m", model("tiny-llama"), "-f", WORK / "absent.txt"), 1, "absent.txt")
        folder = WORK / "empty-folder"
        folder.mkdir(exist_ok=True)
        self.assert_refused(cachalot("inspect", "-m", folder), 1, "config.json")
        broken = WORK / "broken.gguf"
        for content in (b"", b"GGUF", b"no model at all" * 100, os.urandom(4096)):
            broken.write_bytes(content)
            self.assert_refused(cachalot("inspect", "-m", broken), 1, str(broken))
        whole = model("tiny-llama").read_bytes()
        for cut in (20, 1000, len(whole) // 2, len(whole) - 1):
            broken.write_bytes(whole[:cut])
            self.assert_refused(cachalot("run", "-m", broken, "-p", "x"), 1, str(broken))

    def test_flipped_bytes_never_crash(self):
        whole = bytearray(model("tiny-llama").read_bytes())
        broken = WORK / "flipped.gguf"
        for i in range(24):
            data = bytearray(whole)
            for j in range(4):
                data[(i * 7919 + j * 104729 + 8) % 20000] ^= 1 << ((i + j) % 8)
            broken.write_bytes(data)
            done = cachalot("run", "-m", broken, "-p", "x", "-n", "2")
            self.assertIn(done.returncode, (0, 1), done.stderr.decode(errors="replace"))


class Models(unittest.TestCase):
    def test_inspect(self):
        gguf = model("tiny-deepseek-v3", type_name="bf16")
        text = cachalot("inspect", gguf, "--tensors", "--metadata").stdout.decode()
        for wanted in ("deepseek", "blk.2.ffn_down_exps.weight", "deepseek2.expert_count", "BF16", "workspace"):
            self.assertIn(wanted, text)
        short, long = (json.loads(cachalot("inspect", "-m", gguf, "-c", c, "-np", p, "--json").stdout)["memory"]
                       for c, p in ((256, 1), (512, 2)))
        self.assertEqual(short["total_bytes"], sum(short[key] for key in (
            "weight_bytes", "mapped_bytes", "kv_bytes", "workspace_bytes")))
        self.assertEqual(long["weight_bytes"], short["weight_bytes"])
        self.assertGreater(long["kv_bytes"], 3 * short["kv_bytes"])

    def test_inspect_of_a_giant_reads_nothing(self):
        done = cachalot("inspect", "--dummy", "deepseek-v3", "--json")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        found = json.loads(done.stdout)
        self.assertAlmostEqual(found["parameters"] / 1e9, 683, delta=3)
        self.assertGreater(found["memory"]["total_bytes"], 600e9)

    def test_tokenizer_round_trip(self):
        # Nothing that Qwen's normalisation to composed letters would change.
        text = "Zürich, naïve — 日本語 \U0001f40b  \t\n\n  12345 don't <|im_end|>\u00a0\x01 taneba".encode()
        for spec in TINY:
            for suffix in (".gguf", ""):
                path = model(spec, suffix)
                ids = cachalot("tokenize", "-m", path, "--ids", "--no-bos", "--no-parse-special", stdin=text)
                self.assertEqual(ids.returncode, 0, ids.stderr.decode())
                back = cachalot("detokenize", "-m", path, stdin=ids.stdout)
                self.assertEqual(back.stdout, text, spec)
        path = model("tiny-llama")
        parsed = json.loads(cachalot("tokenize", "-m", path, "-p", "a<|im_end|>", "--json").stdout)
        self.assertEqual(parsed["tokens"][-1], 2)
        self.assertEqual(parsed["texts"][-1], "<|im_end|>")
        words = cachalot("tokenize", "-m", path, "-p", "a").stdout.decode()
        self.assertIn('"a"', words)

    def test_logits_are_the_same_from_every_source(self):
        tokens = [(17 * i + 5) % 600 for i in range(70)]
        for spec in TINY:
            with self.subTest(spec):
                (shape, folder) = logits_of(model(spec, ""), tokens, "--isa", "ref")["logits"]
                self.assertEqual(shape[0], 70)
                (_, gguf) = logits_of(model(spec), tokens, "--isa", "ref")["logits"]
                self.assertLess(largest_difference(folder, gguf), 2e-4)
                converted = WORK / f"{spec}-converted.gguf"
                done = cachalot("quantize", model(spec, ""), converted, "F32")
                self.assertEqual(done.returncode, 0, done.stderr.decode())
                (_, same) = logits_of(converted, tokens, "--isa", "ref")["logits"]
                self.assertLess(largest_difference(folder, same), 2e-4)
                out = WORK / "memory.safetensors"
                done = cachalot("logits", "--dummy", spec, "--dummy-type", "f32", "--tokens",
                                ",".join(map(str, tokens)), "-o", out, "--isa", "ref")
                self.assertEqual(done.returncode, 0, done.stderr.decode())
                self.assertEqual(read_safetensors(out)["logits"][1], folder)

    def test_logits_do_not_depend_on_chunks_or_company(self):
        tokens = [(31 * i + 3) % 600 for i in range(50)]
        for spec in ("tiny-llama", "tiny-deepseek-v3"):
            path = model(spec)
            whole = logits_of(path, tokens, "--deterministic", "--greedy", "8")
            self.assertEqual(len(whole["greedy"][1]), 8)
            for args in (("--chunk", "1"), ("--chunk", "7"), ("--batch-with", "3"), ("-t", "1")):
                other = logits_of(path, tokens, "--deterministic", "--greedy", "8", *args)
                self.assertEqual(whole["logits"][1].tobytes(), other["logits"][1].tobytes(), (spec, args))
                self.assertEqual(whole["greedy"][1], other["greedy"][1], (spec, args))

    def test_token_files(self):
        path, ids = model("tiny-llama"), [9, 8, 7, 300]
        listed = logits_of(path, ids)["logits"][1]
        file = WORK / "tokens.json"
        out = WORK / "from-file.safetensors"
        for content in (ids, {"tokens": ids}):
            file.write_text(json.dumps(content))
            self.assertEqual(cachalot("logits", "-m", path, "--tokens", file, "-o", out).returncode, 0)
            self.assertEqual(read_safetensors(out)["logits"][1], listed)

    def test_mtp(self):
        found = logits_of(model("tiny-deepseek-v3", ""), [1, 2, 3, 4, 5], "--mtp")
        self.assertEqual(found["mtp_logits"][0][1], 2048)
        self.assertGreaterEqual(found["mtp_logits"][0][0], 4)
        done = cachalot("logits", "-m", model("tiny-llama"), "--tokens", "1", "--mtp", "-o", WORK / "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"MTP", done.stderr)

    def test_perplexity_is_what_the_logits_say(self):
        path = model("tiny-llama")
        text = WORK / "text.txt"
        text.write_bytes(b"tanebado rilota, hema no vuku. " * 12)
        ids = [int(i) for i in cachalot("tokenize", "-m", path, "-f", text, "--ids").stdout.split(b",")]

        def nll(window, first):
            shape, values = logits_of(path, window, "--kv-type", "f16")["logits"]
            total = 0.0
            for i in range(first, len(window) - 1):
                row = values[i * shape[1]:(i + 1) * shape[1]]
                top = max(row)
                total += top + math.log(sum(math.exp(value - top) for value in row)) - row[window[i + 1]]
            return total

        done = cachalot("eval", "ppl", "-m", path, "-f", text, "-c", "64", "--json")
        found = json.loads(done.stdout)
        chunks = [ids[i:i + 64] for i in range(0, len(ids) - 63, 64)]
        self.assertEqual((found["windows"], found["tokens"]), (len(chunks), len(chunks) * 31))
        self.assertAlmostEqual(found["nll"], sum(nll(chunk, 32) for chunk in chunks) / found["tokens"], delta=1e-3)
        self.assertAlmostEqual(found["perplexity"], math.exp(found["nll"]), delta=1e-6 * found["perplexity"])

        done = cachalot("eval", "ppl", "-m", path, "-f", text, "--window", "50", "--bos", "--limit-tokens", "120", "--json")
        found = json.loads(done.stdout)
        windows = [[1] + ids[i:min(i + 49, 120)] for i in range(0, 120, 49)]
        self.assertEqual((found["windows"], found["tokens"]), (3, 120))
        self.assertAlmostEqual(found["nll"], sum(nll(window, 0) for window in windows) / 120, delta=1e-3)

    def test_quantised_kv(self):
        # Where an expert changes, all does: limits from what was seen, that four bits a key would miss.
        for name, most_kl in (("tiny-llama", 0.002), ("tiny-deepseek-v3", 0.02)):
            path, means = model(name), WORK / f"{name}.means"
            tokens = WORK / "kv-tokens.json"
            tokens.write_text(json.dumps([3 + (7 * i * i + i // 5) % 200 for i in range(128)]))
            text = ("--tokens", tokens, "-c", 32)
            done = cachalot("kv", "calibrate", "-m", path, *text, "-o", means)
            self.assertEqual(done.returncode, 0, done.stderr)
            names = read_safetensors(means)
            self.assertIn("layers.0.key_mean", names)
            for extra in ((), ("--kv-calibration", means), ("--kv-rotate", "off", "--kv-group", 32)):
                done = cachalot("kv", "report", "-m", path, *text, "--sample-every", 8, "--json", *extra)
                self.assertEqual(done.returncode, 0, done.stderr)
                report = json.loads(done.stdout)
                self.assertEqual(report["positions"], 4 * 15)
                self.assertLess(report["mean_kl"], most_kl)
                self.assertGreater(report["mean_kl"], 0)
                for layer in report["layers"]:
                    self.assertGreater(layer["measured"], 0)
                    self.assertLess(abs(layer["predicted"] / layer["measured"] - 1), 0.4)
            done = cachalot("kv", "report", "-m", path, *text, "--max-kl", "1e-9")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"--max-kl", done.stderr)
            # Types by a budget.
            done = cachalot("kv", "report", "-m", path, *text, "--layers-only", "--sample-every", 8, "--json", "--kv-calibration", means,
                            "--kv-budget", 12)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("=", json.loads(done.stdout)["mix"])
            # The gate at the start refuses, or falls back.
            gate = ("run", "-m", path, "-p", "x", "-n", 1, "--kv-type", "k4v4", "--kv-max-kl")
            done = cachalot(*gate, "1e-9")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"--kv-max-kl allows 1e-09", done.stderr)
            done = cachalot(*gate, "1e-9", "--kv-fallback", "auto")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"going on with f16", done.stderr)
            done = cachalot(*gate, 100)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            # Means of another model are refused.
            other = model("tiny-deepseek-v3" if name == "tiny-llama" else "tiny-llama")
            done = cachalot("run", "-m", other, "-p", "x", "-n", 1, "--kv-type", "k6v8", "--kv-calibration", means)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"key_mean", done.stderr)
            # What a quantised cache generates is the same whatever the chunks.
            outputs = [cachalot("run", "-m", path, "-p", "one two three four", "-n", 12, "--temp", 0, "--kv-type", "k4v4", "--deterministic",
                                "-b", batch).stdout for batch in (1, 3, 64)]
            self.assertTrue(outputs[0])
            self.assertEqual(outputs[0], outputs[1])
            self.assertEqual(outputs[0], outputs[2])

    def test_bench(self):
        done = cachalot("bench", "-m", model("tiny-llama", type_name="q8_0"), "-p", "16,32", "-n", "4", "-t", "1,2",
                        "-b", "1,4", "-r", "2", "--json")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        results = json.loads(done.stdout)["results"]
        self.assertEqual(len(results), 2 * 2 * 3)
        for result in results:
            self.assertGreater(result["tokens_per_second"], 0)
            self.assertGreater(result["moved_bytes"], 0)
            self.assertEqual(len(result["seconds"]), 2)
        # One forward serves all sequences of a batch: it does not read the weights four times.
        moved = {(r["test"], r["batch"]): r["moved_bytes"] for r in results if r["threads"] == 1}
        self.assertLess(moved["tg4", 4], 2 * moved["tg4", 1])
        self.assertIn(b"roof", cachalot("bench", "-m", model("tiny-llama"), "-p", "8", "-n", "2", "-r", "1").stdout)
        tuned = cachalot("bench", "-m", model("tiny-llama"), "--device", "cpu", "-p", "0", "-n", "2", "--gpu-tune", "-")
        self.assertEqual(tuned.returncode, 1)
        self.assertIn(b"runs on the CPU", tuned.stderr)

    def test_dummies(self):
        done = cachalot("dummy", "--list")
        self.assertIn(b"r1-distill-qwen-7b\n", done.stdout)
        file = WORK / "two-layers.gguf"
        done = cachalot("dummy", "smollm2-135m", "--layers", "2", "--type", "q4_0", "-o", file)
        self.assertEqual((done.returncode, done.stdout), (0, b""), done.stderr.decode())
        found = json.loads(cachalot("inspect", "-m", file, "--json").stdout)
        self.assertEqual(found["hyper_parameters"]["layers"], 2)
        self.assertEqual(found["types"][0]["type"], "Q4_0")
        file.unlink()

    def test_interrupted_dummy_leaves_nothing(self):
        folder = WORK / "interrupted"
        folder.mkdir()
        process = start("dummy", "llama-8b", "--type", "f32", "-o", folder / "large.gguf")
        while not list(folder.iterdir()) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(list(folder.iterdir()), [])


class Running(unittest.TestCase):
    def test_ways_to_give_a_prompt(self):
        path = model("tiny-llama")
        file = WORK / "prompt.txt"
        file.write_text("taneba")
        common = ("-n", "12", "--temp", "0")
        wanted = cachalot("run", "-m", path, "-p", "taneba", *common)
        self.assertEqual((wanted.returncode, wanted.stderr), (0, b""))
        self.assertGreater(len(wanted.stdout), 1)
        for done in (cachalot("-m", path, "-p", "taneba", *common),
                     cachalot("run", "-m", path, "-f", file, *common),
                     cachalot("run", "-m", path, "-p", "-", *common, stdin=b"taneba"),
                     cachalot("run", "-m", path, *common, stdin=b"taneba"),
                     cachalot("run", "-m", path, "-p", "taneba", *common, "--no-mmap"),
                     cachalot("run", "-m", path, "-p", "taneba", *common, "-t", "1", "-fa", "on")):
            self.assertEqual(done.stdout, wanted.stdout, done.stderr.decode())

    def test_every_family_answers(self):
        for spec in TINY:
            for path in (model(spec), model(spec, ""), model(spec, type_name="q4_1")):
                done = cachalot("run", "-m", path, "-p", "taneba?", "-n", "8", "--system", "be brief")
                self.assertEqual((done.returncode, done.stderr), (0, b""), path)
            done = cachalot("run", "--dummy", spec, "-p", "taneba?", "-n", "4")
            self.assertEqual(done.returncode, 0, done.stderr.decode())
        done = cachalot("run", "-m", model("tiny-deepseek-v3", "", "fp8"), "-p", "taneba?", "-n", "4")
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_seeds(self):
        path = model("tiny-qwen2")
        texts = [cachalot("run", "-m", path, "-p", "x", "-n", "24", "-s", seed, "--temp", "1", "--raw").stdout
                 for seed in (1, 1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        stats = cachalot("run", "-m", path, "-p", "x", "-n", "4", "--stats")
        self.assertIn(b"seed", stats.stderr)
        self.assertIn(b"tokens/s", stats.stderr)
        self.assertNotIn(b"tokens/s", stats.stdout)

    def test_drafts_change_nothing(self):
        path = model("tiny-deepseek-v3", "")
        for more in (["--temp", "0"], ["--temp", "1", "-s", "3"]):
            args = ["run", "-m", path, "-p", "ta ta ta ta", "-n", "40", "--raw", "--deterministic", *more]
            plain = cachalot(*args)
            self.assertEqual(plain.returncode, 0, plain.stderr.decode())
            for spec in (["ngram"], ["mtp", "--draft-max", "2"], ["draft", "-md", path]):
                done = cachalot(*args, "--draft-always", "--stats", "--spec", *spec)
                self.assertEqual((done.returncode, done.stdout), (0, plain.stdout), spec)
                self.assertIn(b"accepted", done.stderr)
        bench = cachalot("bench", "-m", path, "-p", "0", "-n", "8", "-r", "1", "--spec", "draft", "-md", path, "--json",
                         "--spec-accept-fixed", "1", "--draft-always", "--draft-max", "3")
        result = json.loads(bench.stdout)
        self.assertTrue(result["synthetic_acceptance"])
        self.assertEqual(result["results"][0]["accepted_tokens"], result["results"][0]["draft_tokens"])
        self.assertGreater(result["results"][0]["tokens_per_step"], 2)
        for wrong in (["--spec", "draft"], ["-md", path], ["--draft-always"], ["--spec", "ngram", "--draft-max", "17"]):
            self.assertEqual(cachalot("run", "-m", path, "-p", "x", *wrong).returncode, 2, wrong)
        self.assertIn(b"no MTP layer", cachalot("run", "-m", model("tiny-llama"), "-p", "x", "--spec", "mtp").stderr)

    def test_a_cut_gpu_library_costs_the_gpu_alone(self):
        folder = WORK / "cut"
        folder.mkdir()
        shutil.copy(PROGRAM, folder / "cachalot")
        (folder / "libcachalot_cuda.so").write_bytes(Path(PROGRAM).read_bytes()[:100_000])
        run = [folder / "cachalot", "run", "-m", model("tiny-llama"), "-p", "a", "-n", "4"]
        automatic = subprocess.run(run, capture_output=True, timeout=TIMEOUT)
        self.assertEqual(automatic.returncode, 0, automatic.stderr)
        self.assertIn(b"libcachalot_cuda.so: cut off", automatic.stderr)
        wanted = subprocess.run([*run, "--device", "cuda"], capture_output=True, timeout=TIMEOUT)
        self.assertEqual((wanted.returncode, wanted.stdout), (1, b""))
        self.assertIn(b"libcachalot_cuda.so: cut off: it has 100000 bytes", wanted.stderr)

    def test_limits_of_an_answer(self):
        path = model("tiny-qwen2")
        common = ("run", "-m", path, "-p", "taneba", "--raw", "-s", "5", "--temp", "1", "--ignore-eos")
        text = cachalot(*common, "-n", "64").stdout.decode(errors="replace")
        stop = text[len(text) // 2:len(text) // 2 + 3]
        stopped = cachalot(*common, "-n", "64", "--stop", stop).stdout.decode(errors="replace")
        self.assertEqual(stopped.rstrip("\n"), text[:text.index(stop)].rstrip("\n"))
        full = cachalot(*common, "-c", "32")
        self.assertEqual(full.returncode, 0)
        self.assertIn(b"context is full", full.stderr)
        self.assertEqual(cachalot(*common, "-n", "0").stdout, b"")

    def test_logprobs(self):
        done = cachalot("run", "-m", model("tiny-llama"), "-p", "x", "-n", "5", "--temp", "0", "--logprobs", "3")
        lines = done.stderr.decode().splitlines()
        self.assertEqual(len(lines), 5)
        self.assertLessEqual(float(lines[0].split()[0]), 0)

    def slow(self, **kwargs):
        """A run that takes a while: a few thousand tokens."""
        return start("run", "-m", model("tiny-deepseek-v3"), "-p", "taneba", "--raw", "--ignore-eos", "-c", "2560", "-s", "3", **kwargs)

    def test_text_streams(self):
        # What is written at once comes as one packet, and few of them fit: the program waits until they are read.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        ours.settimeout(TIMEOUT)
        process = self.slow(stdout=theirs)
        theirs.close()
        packets = [ours.recv(1 << 16) for _ in range(20)]
        self.assertTrue(all(0 < len(packet) < 200 for packet in packets), packets)
        self.assertIsNone(process.poll(), "it has not waited")
        process.send_signal(signal.SIGINT)
        while packet := ours.recv(1 << 16):
            packets.append(packet)
        ours.close()
        self.assertEqual(process.wait(timeout=TIMEOUT), 130)
        self.assertEqual(process.stderr.read(), b"")
        process.stderr.close()
        self.assertTrue(packets[-1].endswith(b"\n"))

    def test_closed_output_ends_cleanly(self):
        process = self.slow()
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=TIMEOUT), 0)
        self.assertEqual(process.stderr.read(), b"")
        process.stderr.close()

    def test_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "run", "-m", model("tiny-llama"), "-p", "x", "-n", "4"], stdout=full,
                                  stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"standard output", done.stderr)


class Keeping(unittest.TestCase):
    """KV caches in files: the same answers, whatever is in them."""

    LONG = "taneba " * 60

    def test_kv_disk(self):
        for spec, more in (("tiny-llama", []), ("tiny-mistral", []), ("tiny-deepseek-v3", ["--deterministic"]),
                           ("tiny-llama", ["--kv-type", "k8v8", "--deterministic"])):
            path = model(spec)
            disk = WORK / f"disk-{spec}"
            args = ["run", "-m", path, "-p", self.LONG, "-n", "24", "--temp", "0", "--raw", *more]
            plain = cachalot(*args)
            self.assertEqual(plain.returncode, 0, plain.stderr.decode())
            for turn in range(3):
                done = cachalot(*args, "--kv-disk", disk, "--kv-disk-size", "64MiB")
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, plain.stdout, b""), (spec, more, turn))
            segments = sorted(disk.glob("*.segment"))
            self.assertGreater(len(segments), 0)
            # What is damaged is computed again.
            for segment in segments:
                data = bytearray(segment.read_bytes())
                for at in range(300, len(data), 997):
                    data[at] ^= 1 << at % 8
                segment.write_bytes(data)
            done = cachalot(*args, "--kv-disk", disk)
            self.assertEqual((done.returncode, done.stdout), (0, plain.stdout), done.stderr.decode())
        self.assertEqual(cachalot("run", "-m", path, "-p", "x", "--kv-disk-size", "1GiB").returncode, 2)
        self.assertEqual(cachalot("run", "-m", path, "-p", "x", "--kv-disk", "/proc/nowhere").returncode, 1)
        done = cachalot("run", "-m", path, "-p", "x", "--kv-disk", "")
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"--kv-disk", done.stderr)
        done = cachalot("run", "-m", path, "-p", "x", "--device", "cpu", "--kv-offloading-size", "1GiB")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"--kv-offloading-size", done.stderr)

    def test_sessions(self):
        path = model("tiny-llama")
        session = WORK / "talk.session"
        args = ["-m", path, "-n", "12", "--temp", "0", "--session", session]
        first = cachalot("run", "-p", "taneba", *args)
        self.assertEqual((first.returncode, first.stderr), (0, b""))
        self.assertGreater(session.stat().st_size, 256)
        second = cachalot("run", "-p", "go on", *args)
        self.assertEqual((second.returncode, second.stderr), (0, b""))
        # The same conversation in one process.
        chat = cachalot("chat", *args[:-2], stdin=b"taneba\ngo on\n")
        self.assertEqual(chat.returncode, 0, chat.stderr.decode())
        self.assertEqual(chat.stdout, first.stdout + second.stdout)
        saved = WORK / "talk.json"
        third = cachalot("chat", *args, stdin=f"more\n/save {saved}\n".encode())
        self.assertEqual(third.returncode, 0, third.stderr.decode())
        self.assertIn(b"after 2 turns", third.stderr)
        roles = [message["role"] for message in json.loads(saved.read_text())]
        self.assertEqual(roles, ["user", "assistant"] * 3)
        # Another model takes the words, and no KV cache.
        other = cachalot("run", "-m", model("tiny-qwen2"), "-n", "4", "--session", session, "-p", "x")
        self.assertEqual(other.returncode, 0, other.stderr.decode())
        self.assertIn(b"another model", other.stderr)
        session.write_bytes(session.read_bytes()[:100])
        self.assertEqual(cachalot("run", "-p", "x", *args).returncode, 1)
        self.assertEqual(cachalot("run", "-p", "x", "--raw", *args).returncode, 1)


class Chatting(unittest.TestCase):
    def test_tools_and_reasoning_flags(self):
        tools = WORK / "tools.json"
        tools.write_text('[{"type": "function", "function": {"name": "f"}}]')
        args = ["chat", "-m", model("tiny-llama"), "-n", "4", "-s", "1", "--reasoning", "hide", "--reasoning-budget", "2", "--tools", tools]
        done = cachalot(*args, stdin=b"taneba\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"--tool-call-parser", done.stderr)
        done = cachalot(*args, "--tool-call-parser", "hermes", stdin=b"taneba\n")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        tools.write_text("{")
        done = cachalot(*args, stdin=b"taneba\n")
        self.assertIn(str(tools).encode(), done.stderr)

    def test_from_a_pipe(self):
        saved = WORK / "chat.json"
        done = cachalot("chat", "-m", model("tiny-llama"), "-n", "6", "-s", "1",
                        stdin=f"ta\nfirst \\\nsecond\n\"\"\"one\ntwo\"\"\"\n/stats\n/nothing\n/save {saved}\n/clear\nlast".encode())
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn(b"tokens/s", done.stderr)
        self.assertIn(b"/nothing", done.stderr)
        messages = json.loads(saved.read_text())
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"] * 3)
        self.assertEqual([m["content"] for m in messages[::2]], ["ta", "first \nsecond", "one\ntwo"])
        # Templates keep line ends, so each answer is one line or more.
        self.assertGreaterEqual(done.stdout.count(b"\n"), 4)

    def test_context_overflow(self):
        done = cachalot("chat", "-m", model("tiny-llama"), "-n", "8", "-c", "128",
                        stdin=b"taneba taneba taneba\n" * 8 + b"ta " * 300 + b"\nta\n")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn(b"forgotten", done.stderr)
        self.assertIn(b"the context has room for", done.stderr)

    def test_in_a_terminal(self):
        master, slave = pty.openpty()
        process = subprocess.Popen([PROGRAM, "chat", "-m", model("tiny-deepseek-v3"), "-c", "2560", "--ignore-eos",
                                    "--color", "never"], stdin=slave, stdout=slave, stderr=slave,
                                   start_new_session=True, preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))
        os.close(slave)
        seen = b""

        def wait_for(text, after=0):
            """The place behind the text, or behind the first of several to come."""
            nonlocal seen
            texts = text if isinstance(text, tuple) else (text,)
            end = time.monotonic() + TIMEOUT
            while True:
                found = [(at, len(t)) for t in texts if (at := seen.find(t, after)) >= 0]
                if found:
                    return sum(min(found))
                self.assertLess(time.monotonic(), end, f"{text!r} did not come: {seen[-500:]!r}")
                if select.select([master], [], [], 0.2)[0]:
                    seen += os.read(master, 65536)

        try:
            at = wait_for(b"> ")
            # Typed wrongly, mended with the keys, and sent.
            os.write(master, "/hlep\x7f\x7f\x7felp\r".encode())
            at = wait_for(b"/system TEXT", at)
            at = wait_for(b"> ", at)
            # Stops the answer and not the program. Where the answer was over before the key came, another is asked for.
            while True:
                os.write(master, b"taneba\r")
                at = wait_for(b"\x1b[?2004l", wait_for(b"> taneba", at))  # the prompt is left
                os.write(master, b"\x03")
                at = wait_for((b"(stopped)", b"\x1b[?2004h"), at)  # or the next one has come
                stopped = seen[:at].endswith(b"(stopped)")
                at = wait_for(b"> ", at)
                if stopped:
                    break
            os.write(master, b"\x1b[A")  # the line before
            at = wait_for(b"> taneba", at)
            os.write(master, b"\x15")  # cut, so that the prompt is empty again
            os.write(master, b"\x03")
            at = wait_for(b"once more", at)
            os.write(master, b"\x03")
            end = time.monotonic() + TIMEOUT
            while process.poll() is None and time.monotonic() < end:
                if select.select([master], [], [], 0.1)[0]:
                    try:
                        seen += os.read(master, 65536)
                    except OSError:
                        break
            self.assertEqual(process.wait(timeout=TIMEOUT), 130)
        finally:
            process.kill()
            process.wait()
            os.close(master)


def main():
    global PROGRAM, WORK
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit(__doc__)
    PROGRAM = os.path.abspath(sys.argv[1])
    WORK = Path(tempfile.mkdtemp(prefix="cachalot-e2e-"))
    try:
        suite = unittest.main(argv=sys.argv[:1] + sys.argv[2:], exit=False)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    result = suite.result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad - len(result.skipped)} passed, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(1 if bad or result.testsRun == 0 else 0)


if __name__ == "__main__":
    main()
