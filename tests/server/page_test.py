#!/usr/bin/env python3
"""The page at / in a headless Chromium: a chat that streams, the live view, the width of a phone.

usage: page_test.py PATH/TO/cachalot
Speaks the DevTools protocol through pipes. Without a Chromium it exits with 77, which counts as left out.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from program_log import ProgramLog

SKIPPED = 77
TIMEOUT = 90


class Browser:
    def __init__(self, binary, folder):
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        command = (f"exec {binary} --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe "
                   f"--user-data-dir={folder} about:blank 3<&{to_browser} 4>&{from_browser}")
        self.process = subprocess.Popen(["bash", "-c", command], pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.number = 0
        self.session = None
        end = time.monotonic() + TIMEOUT
        while not (pages := [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]):
            check(time.monotonic() < end, "the browser opens no page")
            time.sleep(0.02)
        self.session = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        self.trouble = []
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Page.enable")

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + TIMEOUT
        while True:
            while b"\0" not in self.buffer:
                if not select.select([self.into], [], [], max(0, end - time.monotonic()))[0]:
                    raise TimeoutError(f"{method}: no answer from the browser")
                piece = os.read(self.into, 1 << 20)
                if not piece:
                    raise RuntimeError(f"{method}: the browser has ended")
                self.buffer += piece
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.trouble.append(answer["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.trouble.append(answer["params"]["entry"]["text"])
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        end = time.monotonic() + TIMEOUT
        while not self.run(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {expression}; the page says: {self.run('document.body.innerText')}")
            time.sleep(0.02)

    def close(self):
        os.close(self.out)
        self.process.kill()
        self.process.wait()
        os.close(self.into)


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


def look(browser, port):
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    browser.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
    browser.wait("document.readyState === 'complete' && document.getElementById('model').textContent === 'tiny-deepseek-v3'")
    check(browser.run("document.documentElement.scrollWidth <= 390"), "the page is wider than a phone")

    # The model's answers are noise: without ignore_eos they might end with their first token. What the server sends, however fast,
    # comes to the page event by event; while window.held is set, nothing behind the tenth until the request is stopped.
    browser.run("""
      window.plainFetch = window.fetch;
      window.fetch = async (url, options) => {
        if (!options || !options.body) return window.plainFetch(url, options);
        const body = JSON.stringify({...JSON.parse(options.body), ignore_eos: true, seed: 1});
        const response = await window.plainFetch(url, {...options, body});
        const reader = response.body.getReader(), decoder = new TextDecoder(), encoder = new TextEncoder();
        const stopped = new Promise((resolve) => options.signal.addEventListener("abort", resolve));
        let pending = "", events = 0;
        return new Response(new ReadableStream({async pull(controller) {
          if (window.held && events === 10) await stopped;
          while (!pending.includes("\\n\\n")) {
            const {value, done} = await reader.read();
            if (done) return controller.close();
            pending += decoder.decode(value, {stream: true});
          }
          const end = pending.indexOf("\\n\\n") + 2;
          controller.enqueue(encoder.encode(pending.slice(0, end)));
          pending = pending.slice(end);
          ++events;
          await new Promise((resolve) => setTimeout(resolve));
        }}, {highWaterMark: 0}), {status: response.status, headers: response.headers});
      }; 0""")
    # A chat: text must grow while it comes.
    browser.run("document.getElementById('max-tokens').value = 400; document.getElementById('text').value = 'taneba?'; "
                "window.lengths = new Set(); new MutationObserver(() => { const body = document.querySelector('.assistant .body'); "
                "if (body) window.lengths.add(body.textContent.length); }).observe(document.getElementById('messages'), "
                "{subtree: true, childList: true, characterData: true}); document.getElementById('ask').requestSubmit();")
    browser.wait("!document.getElementById('stop').hidden || document.querySelector('.assistant .foot')")
    browser.wait("!document.getElementById('send').hidden && /tokens/.test(document.querySelector('.assistant .foot').textContent)")
    check(browser.run("window.lengths.size") > 100, "the answer did not grow with its events, but", browser.run("window.lengths.size"), "times")
    check("tokens/s" in browser.run("document.querySelector('.assistant .foot').textContent"), "no tokens per second")

    # Reasoning stands apart; a stopped answer frees its sequence.
    browser.run("window.held = true; document.getElementById('max-tokens').value = ''; document.getElementById('text').value = 'again'; "
                "document.getElementById('ask').requestSubmit()")
    browser.wait("document.querySelectorAll('.assistant .foot').length === 2 && !document.getElementById('stop').hidden")
    browser.run("document.getElementById('show-live').click()")
    browser.wait("document.querySelectorAll('#requests tr').length > 0 || fetch('/status').then((r) => r.json()).then((s) => s.live_requests === 0)")
    browser.run("document.getElementById('stop').click()")
    browser.wait("fetch('/status').then((r) => r.json()).then((s) => s.live_requests === 0 && s.running === 0)")
    check(browser.run("document.querySelectorAll('#groups .bar').length") > 0, "no KV blocks are shown")
    check("Running" in browser.run("document.getElementById('numbers').textContent"), "no numbers are shown")
    check(browser.run("document.documentElement.scrollWidth <= 390"), "the live view is wider than a phone")
    # An answer is text, whatever it looks like.
    browser.run("document.getElementById('show-chat').click(); addMessage('assistant', '<img src=x onerror=window.hit=1>')")
    check(browser.run("document.querySelectorAll('#messages img').length") == 0, "an answer became HTML")
    # A call is shown with its arguments, whole or not; what is typed behind it is its result.
    check(browser.run("callText({function: {name: 'f', arguments: '{\"a\":1}'}})") == 'f({\n "a": 1\n})', "a call is not readable")
    check(browser.run("callText({function: {name: 'f', arguments: '{\"a'}})") == 'f({"a)', "a call that is coming is not shown")
    check(browser.run("messages.push({role: 'assistant', content: '', tool_calls: [{id: 'c', function: {name: 'f'}}]}); addQuestion('r'); "
                      "JSON.stringify(messages.pop())") == '{"role":"tool","tool_call_id":"c","name":"f","content":"r"}', "no result of a call")
    check(not browser.trouble, "errors in the page:", browser.trouble)


def main():
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if binary is None:
        print("left out: there is no chromium")
        sys.exit(SKIPPED)
    folder = tempfile.mkdtemp(prefix="cachalot-page-")
    log = ProgramLog()
    server = subprocess.Popen([os.path.abspath(sys.argv[1]), "serve", "--dummy", "tiny-deepseek-v3", "-c", "2048", "--port", "0"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log.end)
    browser = None
    try:
        port = log.port(server)
        browser = Browser(binary, folder)
        try:
            look(browser, port)
        finally:
            if len(sys.argv) > 2:
                shot = browser.call("Page.captureScreenshot", format="png")["data"]
                Path(sys.argv[2]).write_bytes(base64.b64decode(shot))
        server.send_signal(signal.SIGTERM)
        check(server.wait(TIMEOUT) == 0, "the server did not end well")
    finally:
        if browser:
            browser.close()
        if server.poll() is None:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)
    print("the page works")


if __name__ == "__main__":
    main()
