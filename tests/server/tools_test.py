#!/usr/bin/env python3
"""Tools and reasoning as clients meet them, on a server whose model says what it is told to (scripted_server.cc): with the
official `openai` client where it is installed, and over plain HTTP.

usage: tools_test.py PATH/TO/scripted_server [unittest arguments]
"""

import json
import sys
import unittest
from pathlib import Path

import serve_test
from serve_test import SKIPPED, TIMEOUT, needs_client, openai

TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "chat" / "templates"
PROGRAM = ""
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}} for name in ("get_weather", "get_time")]
HERMES = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


class Scripted(serve_test.Served):
    def __init__(self, template, *args):
        self.start([PROGRAM, str(TEMPLATES / template), *map(str, args)])


def say(text):
    return [{"role": "user", "content": f"SAY:{text}:END"}]


def gather(chunks):
    """What a client makes of a stream of plain dictionaries."""
    answer = {"content": "", "reasoning": "", "calls": [], "reason": None, "usage": None}
    for chunk in chunks:
        answer["usage"] = chunk.get("usage") or answer["usage"]
        for choice in chunk["choices"]:
            delta = choice["delta"]
            answer["content"] += delta.get("content") or ""
            answer["reasoning"] += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls") or []:
                if piece["index"] == len(answer["calls"]):
                    assert piece["id"] and piece["type"] == "function" and piece["function"]["name"], piece
                    answer["calls"].append({"id": piece["id"], "name": piece["function"]["name"], "arguments": "", "pieces": 0})
                call = answer["calls"][piece["index"]]
                call["arguments"] += piece["function"].get("arguments") or ""
                call["pieces"] += 1
            answer["reason"] = choice["finish_reason"] or answer["reason"]
    return answer


class Base(unittest.TestCase):
    TEMPLATE = "Qwen-Qwen3-0.6B.jinja"
    ARGS = ()

    @classmethod
    def setUpClass(cls):
        cls.served = Scripted(cls.TEMPLATE, *cls.ARGS)

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        log = cls.served.log()
        cls.served.close()
        assert code == 0, (code, log)

    def whole(self, text, **fields):
        status, body = self.served.json("POST", "/v1/chat/completions", {"messages": say(text), **fields})
        self.assertEqual(status, 200, body)
        return body["choices"][0], body["usage"]

    def stream(self, text, **fields):
        status, body = self.served.ask("POST", "/v1/chat/completions", {
            "messages": say(text), "stream": True, "stream_options": {"include_usage": True}, **fields})
        self.assertEqual(status, 200, body)
        events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
        self.assertEqual(events[-1], "[DONE]")
        return gather(json.loads(event) for event in events[:-1])

    def both(self, text, **fields):
        """(content, reasoning, [(name, arguments)], finish_reason), the same whole and streamed."""
        choice, usage = self.whole(text, **fields)
        message = choice["message"]
        one = (message["content"] or "", message.get("reasoning_content", ""),
               [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])], choice["finish_reason"])
        streamed = self.stream(text, **fields)
        two = (streamed["content"], streamed["reasoning"], [(c["name"], c["arguments"]) for c in streamed["calls"]], streamed["reason"])
        self.assertEqual(one, two)
        self.assertEqual(usage, {**streamed["usage"], "prompt_tokens_details": usage["prompt_tokens_details"]})
        return one


class PlainHttp(Base):
    def test_calls(self):
        text = "Let me look.\n" + HERMES % ("get_weather", '{"city": "Zürich"}') + "\n" + HERMES % ("get_time", "{}")
        expected = [("get_weather", '{"city": "Zürich"}'), ("get_time", "{}")]
        self.assertEqual(self.both(text, tools=TOOLS), ("Let me look.", "", expected, "tool_calls"))
        self.assertEqual(self.both(text, tools=TOOLS, parallel_tool_calls=False), ("Let me look.", "", expected[:1], "tool_calls"))
        choice, _ = self.whole(HERMES % ("get_time", "{}"), tools=TOOLS)
        self.assertIsNone(choice["message"]["content"])
        self.assertRegex(choice["message"]["tool_calls"][0]["id"], r"^call_[0-9a-z]{24}$")
        self.assertGreater(self.stream(text, tools=TOOLS)["calls"][0]["pieces"], 3, "the arguments do not stream")
        self.served.at_rest()

    def test_without_tools_markup_is_text(self):
        text = HERMES % ("get_time", "{}")
        self.assertEqual(self.both(text), (text, "", [], "stop"))
        self.assertEqual(self.both(text, tools=TOOLS, tool_choice="none"), (text, "", [], "stop"))

    def test_wrong_arguments_do_not_count_as_a_call_to_make(self):
        calls = self.both('<tool_call>\n{"name": "get_time", "arguments": {"city": }\n</tool_call>', tools=TOOLS)
        self.assertEqual(calls[2:], ([("get_time", '{"city": }')], "stop"))
        cut = self.both(HERMES % ("get_time", '{"city": "' + "x" * 99 + '"}'), tools=TOOLS, max_tokens=60)
        self.assertEqual((cut[2][0][0], cut[3]), ("get_time", "length"))

    def test_a_call_is_forced(self):
        text = HERMES % ("get_time", '{"city": "Bern"}')
        for choice in ("required", {"type": "function", "function": {"name": "get_time"}}):
            self.assertEqual(self.both(text, tools=TOOLS, tool_choice=choice), ("", "", [("get_time", '{"city": "Bern"}')], "tool_calls"))
        # It says something else, or ends too early: what is missing of the call is put there.
        self.assertEqual(self.both("no", tools=TOOLS, tool_choice=choice), ("", "", [("get_time", "{}")], "tool_calls"))
        cut = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Be'
        for choice in ("required", choice):
            self.assertEqual(self.both(cut, tools=TOOLS, tool_choice=choice), ("", "", [("get_time", '{"city": "Be"}')], "tool_calls"))

    def test_a_call_that_is_cut_off_is_what_was_written_of_it(self):
        call = {"tools": TOOLS, "tool_choice": "required"}
        text = HERMES % ("get_weather", '{"city": "Bern"}')
        for choice in (call, {"tools": TOOLS}):
            for stop, calls, reason in (("_weather", [], "stop"), ('get', [], "stop"), ("arguments", [("get_weather", "")], "stop"),
                                        ("{\"city", [("get_weather", "")], "stop"), ("ern", [("get_weather", '{"city": "B')], "stop"),
                                        ("</tool_call>", [("get_weather", '{"city": "Bern"}')], "tool_calls")):
                with self.subTest(stop=stop, forced=choice is call):
                    self.assertEqual(self.both(text, stop=[stop], **choice), ("", "", calls, reason))
        seen = set()
        for n in range(1, 80):
            content, _, calls, reason = self.both(text, max_tokens=n, **call)
            self.assertEqual((content, reason if len(calls) == 0 else ""), ("", "length" if len(calls) == 0 else ""), n)
            for name, arguments in calls:
                self.assertEqual(name, "get_weather")
                self.assertTrue('{"city": "Bern"}'.startswith(arguments), arguments)
                seen.add(arguments)
            if reason != "length":
                break
        self.assertEqual(reason, "tool_calls")
        self.assertIn("", seen)
        # Nothing that the client does not see is counted, also where the call's end was put there.
        _, usage = self.whole("no", stop=["_weather"], **call)
        _, whole = self.whole("no", **call)
        self.assertLess(usage["completion_tokens"], whole["completion_tokens"])

    def test_reasoning(self):
        text = "<think>\none two three four five six seven eight\n</think>\n\nAnswer."
        content, reasoning, calls, reason = self.both(text)
        self.assertEqual((content, reasoning, calls, reason), ("Answer.", "one two three four five six seven eight", [], "stop"))
        _, usage = self.whole(text)
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 5)
        self.assertEqual(self.both(text, separate_reasoning=False)[0], text)

    def test_reasoning_budget(self):
        text = "<think>\none two three four five six seven eight\n</think>\n\nAnswer."
        for field in ("reasoning_budget", "thinking_budget", "thinking_token_budget"):
            for budget in (0, 1, 7):
                content, reasoning, _, reason = self.both(text, **{field: budget})
                self.assertEqual((content, reason), ("Answer.", "stop"))
                self.assertTrue("one two three four five six seven eight".startswith(reasoning), reasoning)
                _, usage = self.whole(text, **{field: budget})
                self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], budget)

    def test_the_next_turn_begins_with_this_one(self):
        text = "<think>\nHm.\n</think>\n\n" + HERMES % ("get_weather", '{"city": "Bern"}')
        messages = say(text)
        choice, _ = self.whole(text, tools=TOOLS)
        call = choice["message"]["tool_calls"][0]
        _, first = self.served.json("POST", "/apply-template", {"messages": messages, "tools": TOOLS})
        messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
        _, second = self.served.json("POST", "/apply-template", {"messages": messages, "tools": TOOLS})
        self.assertTrue(second["prompt"].startswith(first["prompt"] + text), second["prompt"])
        _, ids = self.served.json("POST", "/tokenize", {"messages": messages, "tools": TOOLS})
        self.assertGreater(ids["count"], 0)


class Opened(Base):
    """The template opens <think>."""
    TEMPLATE = "deepseek-ai-DeepSeek-V3.1.jinja"
    ARGS = (20,)
    CALL = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"

    def test_reasoning_goes_on_from_the_prompt(self):
        thinks = {"chat_template_kwargs": {"thinking": True}}
        self.assertEqual(self.both("why</think>because", **thinks), ("because", "why", [], "stop"))
        self.assertEqual(self.both("because"), ("because", "", [], "stop"))
        self.assertEqual(self.both("why</think>" + self.CALL, tools=TOOLS, enable_thinking=True), ("", "why", [("get_time", "{}")], "tool_calls"))

    def test_the_server_has_a_budget(self):
        text = "x" * 99 + "</think>because"
        content, reasoning, _, _ = self.both(text, enable_thinking=True)
        self.assertEqual(content, "because")
        self.assertTrue(reasoning and set(reasoning) == {"x"})
        self.assertEqual(self.both(text, enable_thinking=True, reasoning_budget=-1)[1], "x" * 99)

    def test_a_call_is_forced_behind_the_reasoning(self):
        for choice in ("required", {"type": "function", "function": {"name": "get_time"}}):
            for think in ("why", "y" * 99):
                content, reasoning, calls, reason = self.both(f"{think}</think>" + self.CALL, tools=TOOLS, tool_choice=choice, enable_thinking=True)
                self.assertEqual((content, calls, reason), ("", [("get_time", "{}")], "tool_calls"))
                self.assertTrue(think.startswith(reasoning) and reasoning)


@needs_client
class OfficialClient(Base):
    def client(self):
        return openai.OpenAI(base_url=self.served.url, api_key="none", max_retries=0, timeout=TIMEOUT)

    def test_call_and_result(self):
        text = "<think>\nHm.\n</think>\n\nI look.\n" + HERMES % ("get_weather", '{"city": "Bern"}')
        answer = self.client().chat.completions.create(model="scripted", messages=say(text), tools=TOOLS)
        message = answer.choices[0].message
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        self.assertEqual((message.content, message.reasoning_content), ("I look.", "Hm."))
        self.assertEqual(json.loads(message.tool_calls[0].function.arguments), {"city": "Bern"})
        messages = say(text) + [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "SAY:It is sunny.:END"}]
        answer = self.client().chat.completions.create(model="scripted", messages=messages, tools=TOOLS)
        self.assertEqual(answer.choices[0].message.content, "It is sunny.")
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_stream_helper_puts_the_call_together(self):
        text = "<think>\nHm.\n</think>\n\n" + HERMES % ("get_weather", '{"city": "Bern"}') + "\n" + HERMES % ("get_time", "{}")
        chunks = list(self.client().chat.completions.create(model="scripted", messages=say(text), tools=TOOLS, stream=True))
        self.assertEqual("".join(getattr(c.choices[0].delta, "reasoning_content", "") or "" for c in chunks), "Hm.")
        calls = {}
        for chunk in chunks:
            for piece in chunk.choices[0].delta.tool_calls or []:
                call = calls.setdefault(piece.index, {"name": "", "arguments": ""})
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
        self.assertEqual([calls[0]["name"], calls[1]["name"]], ["get_weather", "get_time"])
        self.assertEqual([json.loads(calls[i]["arguments"]) for i in (0, 1)], [{"city": "Bern"}, {}])
        with self.client().beta.chat.completions.stream(model="scripted", messages=say(text), tools=TOOLS) as stream:
            final = stream.get_final_completion() if all(True for _ in stream) else None
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")
        self.assertEqual(final.choices[0].message.tool_calls[0].function.name, "get_weather")

    def test_choices(self):
        text = HERMES % ("get_time", "{}")
        answer = self.client().chat.completions.create(
            model="scripted", messages=say(text), tools=TOOLS, n=2, tool_choice={"type": "function", "function": {"name": "get_time"}})
        self.assertEqual([c.message.tool_calls[0].function.name for c in answer.choices], ["get_time"] * 2)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().chat.completions.create(model="scripted", messages=say(""), tools=TOOLS,
                                                  tool_choice={"type": "function", "function": {"name": "nothing"}})
        self.assertEqual(caught.exception.body["param"], "tool_choice")


def main():
    global PROGRAM
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = sys.argv.pop(1)
    result = unittest.main(exit=False).result
    for case, reason in result.skipped:
        print(f"skipped: {case}: {reason}")
    bad, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    passed = max(result.testsRun - bad - skipped, 0)
    print(f"{passed} passed, {bad} failed, {skipped} skipped")
    sys.exit(1 if bad or passed + skipped == 0 else 0 if passed else SKIPPED)


if __name__ == "__main__":
    main()
