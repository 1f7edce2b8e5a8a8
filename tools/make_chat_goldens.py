#!/usr/bin/env python3
"""Writes what Python's jinja2 renders, with Hugging Face's settings, to tests/data/chat.

  chats.json     conversations, and the prompt that every template of tests/data/chat/templates makes of each
  snippets.json  small templates: [template, output], or [template, null] where jinja2 fails

Needs jinja2 (the files were made with 3.1.6). With --random N --seed S it writes N random snippets instead, and
with --templates DIR the chats of other templates, in the same formats, for a comparison that is not kept
(--out FILE).
"""
import argparse
import copy
import datetime
import functools
import json
import pathlib
import resource
import signal
import warnings

import jinja2
import jinja2.ext
import jinja2.sandbox

import chat_conversations
import chat_snippets

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "chat"
NOW = 1765432100  # 2025-12-11 05:48:20 UTC
BOS, EOS = "<s>", "</s>"


class Generation(jinja2.ext.Extension):
    """{% generation %}: rendered as it is, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """While compiling, jinja2 takes a slice of a constant number for undefined; while rendering, it fails, as we do."""

    def getitem(self, obj, argument):
        if isinstance(argument, slice):
            return obj[argument]
        return super().getitem(obj, argument)


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(format)

    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads  # ours in addition
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()


def too_slow(signum, frame):
    raise TimeoutError


@functools.lru_cache(maxsize=1)
def compiled(source):
    return ENV.from_string(source)


def render(source, messages, tools=None, add_generation_prompt=True, extra=None):
    """The text, or None where jinja2 fails."""
    try:
        template = compiled(source)
        # Copies: some filters change a list that they are given by mistake (indent does).
        text = template.render(bos_token=BOS, eos_token=EOS, **copy.deepcopy(
            {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt,
             **(extra or {})}))
        text.encode("utf-8")
        return text
    except Exception:
        return None


def chats(directory):
    """Conversations that a template prints the same way are told apart by name only, so each text is kept once."""
    outputs = {}
    for path in sorted(pathlib.Path(directory).glob("*.jinja")):
        source = path.read_text()
        outputs[path.stem] = {}
        for name, chat in chat_conversations.CHATS.items():
            outputs[path.stem][name] = render(source, chat["messages"], chat.get("tools"), chat.get("prompt", True),
                                              chat.get("extra"))
    return {"now": NOW, "bos": BOS, "eos": EOS, "chats": chat_conversations.CHATS, "outputs": outputs}


def snippets(sources):
    out, seen = [], set()
    for source in sources:
        if source in seen:
            continue
        seen.add(source)
        signal.setitimer(signal.ITIMER_REAL, 5)
        text = render(source, chat_snippets.MESSAGES, extra=chat_snippets.CONTEXT)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # What prints an address (generators, methods) is not a result to compare.
        if text is not None and any(x in text.lower() for x in [" at 0x", "x0 ta ", "<class", "<built-in", "<bound"]):
            continue
        if text is not None and len(text) > 2000:
            continue
        out.append([source, text])
    return {"now": NOW, "bos": BOS, "eos": EOS, "messages": chat_snippets.MESSAGES, "context": chat_snippets.CONTEXT,
            "snippets": out}


def write(path, data, lists):
    """Compact JSON, but one item of data[lists] on a line: a change shows up as a small difference."""
    dump = lambda x: json.dumps(x, ensure_ascii=False, separators=(",", ":"))
    items = data[lists]
    if isinstance(items, dict):
        body = "{" + ",\n".join(f"{dump(k)}:{{" + ",\n".join(f"{dump(n)}:{dump(t)}" for n, t in v.items()) + "}"
                                for k, v in items.items()) + "}"
    else:
        body = "[" + ",\n".join(dump(x) for x in items) + "]"
    rest = {k: v for k, v in data.items() if k != lists}
    path.write_text(dump(rest)[:-1] + f',\n"{lists}":{body}}}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--templates")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    # Random templates may ask for any amount of memory and time: what Python cannot do here counts as failed.
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    signal.signal(signal.SIGALRM, too_slow)
    if args.random:
        write(args.out, snippets(chat_snippets.random_snippets(args.random, args.seed)), "snippets")
    elif args.templates:
        write(args.out, chats(args.templates), "outputs")
    else:
        write(ROOT / "chats.json", chats(ROOT / "templates"), "outputs")
        write(ROOT / "snippets.json", snippets(chat_snippets.all_snippets()), "snippets")


if __name__ == "__main__":
    warnings.simplefilter("ignore", SyntaxWarning)  # 1[0] and the like
    main()
