"""One run of cachalot or of a llama.cpp program, as numbers. Every function starts one process, waits for it and
returns what it printed; nothing is averaged here.

Invariant: both sides get the same file, the same threads, an F16 KV cache, fused attention and steps of at most 512
tokens, which are the defaults of both.
"""
import json
import os
import re
import subprocess
import time

STEP_TOKENS = 512


class RunError(Exception):
    pass


def output_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise RunError(f"{' '.join(command)}\nended with {done.returncode}:\n{last}")
    return done


def value_after(prefix, text):
    found = re.search(re.escape(prefix) + r"\s*([0-9.]+)(?:\s*\+/-\s*([0-9.]+))?", text)
    if not found:
        raise RunError(f"no '{prefix}' in:\n{text[-2000:]}")
    return float(found.group(1)), float(found.group(2) or "nan")


class Cachalot:
    name = "cachalot"

    def __init__(self, program, extra=()):
        self.program, self.extra = program, list(extra)

    def ppl_command(self, model, text, context, threads, chunks):
        limit = ["--limit-tokens", str(chunks * context)] if chunks else []
        return [self.program, "eval", "ppl", "-m", model, "-f", text, "-c", str(context), "-t", str(threads), "--json",
                *limit, *self.extra]

    def ppl(self, *args):
        result = json.loads(output_of(self.ppl_command(*args)).stdout)
        return {"ppl": result["perplexity"], "error": result["perplexity_error"], "chunks": result["windows"]}

    def speed_command(self, model, threads, prompt, generate, batch):
        return [self.program, "bench", "-m", model, "-t", str(threads), "-p", str(prompt), "-n", str(generate),
                "-b", str(batch), "-ub", str(STEP_TOKENS), "-r", "1", "--json", *self.extra]

    def speed(self, *args):
        """{test: tokens per second}"""
        results = json.loads(output_of(self.speed_command(*args)).stdout)["results"]
        return {result["test"]: result["tokens_per_second"] for result in results}


class Llama:
    name = "llama.cpp"

    def __init__(self, folder):
        self.folder = folder

    def program(self, name):
        return os.path.join(self.folder, name)

    def ppl_command(self, model, text, context, threads, chunks):
        limit = ["--chunks", str(chunks)] if chunks else []
        return [self.program("llama-perplexity"), "-m", model, "-f", text, "-c", str(context), "-t", str(threads), *limit]

    def ppl(self, *args):
        done = output_of(self.ppl_command(*args))
        told = done.stdout + done.stderr
        value, error = value_after("Final estimate: PPL =", told)
        return {"ppl": value, "error": error, "chunks": int(value_after("calculating perplexity over", told)[0])}

    def speed_command(self, model, threads, prompt, generate, batch):
        if batch == 1:
            return [self.program("llama-bench"), "-m", model, "-t", str(threads), "-p", str(prompt), "-n", str(generate),
                    "-ub", str(STEP_TOKENS), "-r", "1", "-o", "json"]
        # Prompts of one token, as cachalot's: what is timed is generation at the same cache lengths.
        return [self.program("llama-batched-bench"), "-m", model, "-t", str(threads), "-npp", "1", "-ntg", str(generate),
                "-npl", str(batch), "-c", str(batch * (generate + 1)), "-ub", str(STEP_TOKENS),
                "--output-format", "jsonl"]

    def speed(self, model, threads, prompt, generate, batch):
        done = output_of(self.speed_command(model, threads, prompt, generate, batch))
        if batch > 1:
            lines = [line for line in (done.stdout + "\n" + done.stderr).splitlines() if line.startswith('{"n_kv_max"')]
            if not lines:
                raise RunError(f"llama-batched-bench told no result:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            return {f"tg{generate}": json.loads(lines[-1])["speed_tg"]}
        speeds = {}
        for result in json.loads(done.stdout):
            test = f"pp{result['n_prompt']}" if result["n_prompt"] else f"tg{result['n_gen']}"
            speeds[test] = result["avg_ts"]
        return speeds


def first_token(program, model, context, threads, prompt="The capital of France is"):
    """Seconds from process start to the first byte of text, and the peak of the resident memory in bytes."""
    command = [program, "run", "-m", model, "-p", prompt, "-n", "1", "-c", str(context), "-t", str(threads), "--temp", "0"]
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    first = child.stdout.read(1)
    seconds = time.monotonic() - start
    child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0 or not first:
        raise RunError(f"{' '.join(command)}\nended with {child.returncode} and {'some' if first else 'no'} text")
    return {"seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024,
            "cpu_seconds": usage.ru_utime + usage.ru_stime, "command": command}
