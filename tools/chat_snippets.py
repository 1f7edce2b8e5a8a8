"""The small templates of make_chat_goldens.py: enumerations of the language, the hand-written corners of
tests/data/chat/corners.json (expressions, and whole templates), and random ones."""

import itertools
import json
import pathlib
import random

CORNERS = json.loads(
    (pathlib.Path(__file__).resolve().parent.parent / "tests/data/chat/corners.json").read_text())

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi <b>there</b>"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
]
CONTEXT = {
    "s": "Hello World",
    "u": "Ünïcödé ß ǆ Σίσυφος",
    "w": "  two\n lines\t ",
    "csv": "a,b,,c",
    "e": "",
    "n": 7,
    "m": -3,
    "z": 0,
    "big": 18446744073709551615,
    "f": 2.5,
    "g": -0.125,
    "t": True,
    "no": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c", "a"],
    "lm": [1, "x", None, 2.5, True, [1], {"k": "v"}],
    "el": [],
    "d": {"b": 1, "a": 2, "C": 3},
    "dd": {"x": {"y": {"z": [10, 20, {"k": "deep"}]}}, "items": [1, 2], "get": "got", "1": "one"},
    "ed": {},
    "users": [{"name": "bob", "age": 3, "tags": ["x"]}, {"name": "Al", "age": 1},
              {"name": "cy", "age": 2, "tags": []}],
    "html": "<a href=\"x\">'&'</a>",
}

# Expressions that stand for the kinds of values there are.
VALUES = [
    "undef", "no", "t", "false", "n", "m", "z", "big", "f", "g", "1e16", "s", "u", "w", "e", "'12'", "' 3.7 '",
    "'0x1f'", "l", "ls", "lm", "el", "d", "dd", "ed", "users", "(1, 'a')", "()", "(5,)", "range(4)",
    "d.items()", "d.keys()", "namespace(a=1)", "html", "html|safe", "[[2], [1]]", "users|map(attribute='name')",
    "dict(k=[1, (2,)])", "[undef]",
]
FEW = ["undef", "no", "t", "n", "m", "f", "s", "e", "l", "el", "d", "(1, 2)", "range(3)", "'a'", "html|safe"]

FILTERS = """
abs attr('a') batch(2)|list batch(2,0)|list capitalize center(9) count d('x') d('x',true) default dictsort
dictsort(true) dictsort(by='value') dictsort(reverse=true) e escape first float float(1.5) forceescape format(1)
groupby('age')|list indent int int(9) int(base=16) items|list join join(',') last length list lower
map('upper')|list map('string')|join('/') map(attribute='name')|list map(attribute='tags',default='-')|list max
min reject|list reject('none')|list rejectattr('tags')|list replace('l','L') reverse|list reverse|string round
round(1) round(-1) round(1,'floor') round(method='ceil') safe select|list select('string')|list
selectattr('age')|list slice(2)|list slice(3,'x')|list sort sort(reverse=true) sort(case_sensitive=true)
sort(attribute='age') string sum sum(start=1) title tojson tojson(indent=2) trim trim('Hd') truncate(5)
truncate(5,true) truncate(6,false,'…',0) unique|list upper urlencode wordcount filesizeformat
""".split()

TESTS = [
    "defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping",
    "sequence", "iterable", "callable", "escaped", "odd", "even", "lower", "upper", "divisibleby 3",
    "divisibleby(2)", "eq 7", "equalto('a')", "== 7", "ne 7", "!= 7", "gt 2", "greaterthan 2", "> 2", "ge 7",
    "lt 2", "lessthan 2", "le 7", "in l", "in ('a', 7)", "in 'Hello World!'", "sameas none", "sameas true",
    "filter", "test", "not defined", "not none", "not in [7]",
]

METHODS = [
    "capitalize()", "casefold()", "center(12)", "center(15, '*')", "count('l')", "count('')", "endswith('d')",
    "endswith(('x', 'é'))", "expandtabs(4)", "find('l')", "find('l', 4)", "find('')", "find('zz')", "index('o')",
    "rfind('l')", "rfind('l', 0, -3)", "rindex('zz')", "isalnum()", "isalpha()", "isascii()", "isdecimal()",
    "isdigit()", "isidentifier()", "islower()", "isnumeric()", "isprintable()", "isspace()", "istitle()",
    "isupper()", "join(['1', '2'])", "ljust(14, '.')", "lower()", "lstrip()", "lstrip('Ha')", "partition('X')",
    "partition(',')", "removeprefix('He')", "removesuffix('ld')", "replace('l', '')", "replace('', '.')",
    "replace('X', '--', 1)", "rjust(14)", "rpartition(',')", "rsplit()", "rsplit(',', 1)", "rsplit(none, 1)",
    "rstrip()", "split()", "split(',')", "split(',', 1)", "split(none, 1)", "split('l', maxsplit=1)",
    "split(sep=',')", "splitlines()", "splitlines(true)", "startswith('H')", "startswith('e', 1)",
    "startswith(('a', ' '))", "startswith('', 99)", "strip()", "strip(' d')", "swapcase()", "title()", "upper()",
    "zfill(14)",
]

# What an expression can stand in; X is the expression.
USES = [
    "{{ -(X) }}", "{{ +(X) }}", "{{ not (X) }}", "{{ (X) }}", "{{ [(X)] }}", "{{ {'k': (X)} }}",
    "{{ (X) if (X) else 'no' }}", "{{ (X) ** 2 }}", "{% for x in (X) %}{{ x }}|{% else %}none{% endfor %}",
    "{% for x in (X) %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% set p, q = (X) %}{{ p }}{{ q }}", "{{ (X).a }}{{ (X).b is defined }}", "{{ (X)['b'] }}", "{{ (X)[0] }}",
    "{{ (X)[-1] }}", "{{ (X)[1:] }}", "{{ (X)() }}", "{{ range(X)|list }}", "{{ dict(X) }}", "{{ '%s' % (X) }}",
    "{{ '%r' % [(X)] }}", "{{ '{}'.format(X) }}", "{{ '{!r:>12}'.format(X) }}", "{{ '{:>8}'.format(X) }}",
    "{{ '-'.join(X) }}", "{{ raise_exception(X) }}", "{{ loop_is_undefined ~ (X) ~ 1 }}",
]


def corners(name):
    yield from ("{{ " + x + " }}" for x in CORNERS["expressions"].get(name, []))
    yield from CORNERS["templates"].get(name, [])


def whitespace():
    signs = ["", "-", "+"]
    before = ["", "a", " ", "a ", "\n", "a\n", "\n  ", "a\n\t ", "a\n\n"]
    after = ["", "b", " ", " b", "\n", "\nb", "\n\n", "  \n b", "\n  b\n"]
    for x, y in itertools.product(before, after):
        for left, right in itertools.product(signs, repeat=2):
            yield f"{x}{{%{left} set q = 1 {right}%}}{y}"
            yield f"{x}{{#{left} note {right}#}}{y}"
        for left, right in itertools.product(signs, ["", "-"]):
            yield f"{x}{{{{{left} s {right}}}}}{y}"
    for a, b, c, d in itertools.product(signs, repeat=4):
        yield f" x\n  {{%{a} if t {b}%}}\n  y\n  {{%{c} endif {d}%}}\n z"
        yield f" x\n  {{%{a} raw {b}%}}\n  {{{{ y }}}}\n  {{%{c} endraw {d}%}}\n z"
    for a, b in itertools.product(signs, repeat=2):
        yield f"<\n {{%{a} for i in l %}}\n  {{{{ i }}}}\n {{%{b} endfor %}}\n>"


def filters():
    for value, name in itertools.product(VALUES, FILTERS):
        if not (name == "wordcount" and "|map" in value):  # counts the words of <generator object …>
            yield f"{{{{ ({value})|{name} }}}}"


def json_dumps():
    values = [
        "no", "t", "n", "f", "g", "s", "u", "html", "w", "'\\u2028\\x7f\\x00\\x1f\\b\\f'", "'🐳é'", "l", "el", "d",
        "ed", "lm", "dd", "users", "(1, (2,))", "{1: 2, none: 3, true: 4, 2.5: 5}", "{'b': 1, 'a': [1, {'c': {}}]}",
        "1e16", "1e308 * n", "big", "-1", "[[], [[]]]", "undef", "[undef]", "range(2)", "namespace()", "{(1,): 2}",
        "d.items()", "messages", "'a'|safe", "l|map('string')",
    ]
    styles = [
        "", "()", "(indent=2)", "(true)", "(false, 1)", "(indent='\t')", "(sort_keys=true)",
        "(separators=(',', ':'))", "(ensure_ascii=true, indent=4)", "(indent=0)",
    ]
    for value, style in itertools.product(values, styles):
        yield f"{{{{ ({value})|tojson{style} }}}}"


def tests():
    for value, name in itertools.product(VALUES, TESTS):
        yield f"{{{{ ({value}) is {name} }}}}"
    for name in ["range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now", "s.upper",
                 "loop", "joiner()", "cycler(1)"]:
        yield f"{{{{ {name} is defined }}}} {{{{ {name} is callable }}}}"


def operators():
    ops = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "and", "or", "in"]
    for a, b, op in itertools.product(FEW, FEW, ops):
        yield f"{{{{ ({a}) {op} ({b}) }}}}"
    for value, use in itertools.product(VALUES, USES):
        yield use.replace("X", value)


def slices():
    bounds = ["", "0", "1", "3", "-1", "-2", "9", "-9"]
    for start, stop, step in itertools.product(bounds, bounds, ["", ":", ":1", ":2", ":-1", ":-2"]):
        yield f"{{{{ 'abcdé'[{start}:{stop}{step}] }}}}"
        yield f"{{{{ [1, 2, 3, 4][{start}:{stop}{step}] }}}}"
        yield f"{{{{ range(7)[{start}:{stop}{step}] }}}}"
    for start, step in itertools.product(bounds, [":", "::-1", "::3"]):
        yield f"{{{{ range(7)[{start}{step}]|list }}}}"
        yield f"{{{{ (1, 2, 3)[{start}{step}] }}}}"


def methods():
    receivers = ["s", "u", "w", "csv", "e", "'aXbXc'", "'123'", "'½²'", "'ABC'", "'a\\tb\\n'", "'+5'", "' '"]
    for receiver, call in itertools.product(receivers, METHODS):
        yield f"{{{{ ({receiver}).{call} }}}}"


def all_snippets():
    for part in [whitespace, filters, json_dumps, tests, operators, slices, methods]:
        yield from part()
        yield from corners(part.__name__)
    yield from corners("statements")
    yield from random_snippets(2500, 20260101)


class Random:
    """Random templates: mostly well-formed, with names and literals that make most expressions meaningful."""

    NAMES = list(CONTEXT) + ["undef", "messages", "x", "y", "ns"]
    LITERALS = [
        "1", "0", "-2", "2.5", "'a'", "'b,c'", "'Hello'", "''", "' x '", "true", "false", "none", "[1, 2]", "[]",
        "('a', 1)", "{'a': 1}", "{}", "'é🐳'", "'%s'", "'{}'", "3", "10",
    ]
    # E is an expression.
    FILTERS = [
        "upper", "lower", "title", "capitalize", "trim", "length", "list", "first", "last", "sort", "reverse",
        "unique|list", "join", "join(', ')", "join(E)", "string", "int", "float", "abs", "round", "sum", "min", "max",
        "tojson", "tojson(indent=1)", "default(E)", "default(E, true)", "replace(E, E)", "map('string')|list",
        "map('default', E)|list", "map(attribute=E)|list", "select|list", "reject|list", "select('odd')|list",
        "select('string')|list", "select(E)|list", "selectattr('name')|list", "rejectattr('tags')|list",
        "selectattr('age', 'gt', E)|list", "items|list", "dictsort", "e", "safe", "indent(2)", "indent(E)",
        "truncate(5)", "truncate(9)", "wordcount", "batch(2)|list", "batch(E)|list", "slice(2)|list",
        "slice(E)|list", "groupby('age')|list", "groupby(E)|list", "center(8)", "center(3)", "format(E)", "attr(E)",
        "trim(E)", "urlencode",
    ]
    TESTS = [
        "defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean", "true",
        "false", "integer", "float", "odd", "even", "lower", "upper", "callable", "divisibleby(E)", "eq(E)", "ne(E)",
        "lt(E)", "ge(E)", "in(E)", "sameas(none)", "sameas(true)",
    ]
    METHODS = [
        "upper()", "lower()", "strip()", "strip(E)", "lstrip()", "rstrip()", "split()", "split(E)", "split(E, 1)",
        "split(E, 0)", "split(E, -1)", "rsplit(E, 1)", "replace(E, E)", "startswith(E)", "endswith(E)", "find(E)",
        "count(E)", "join(E)", "title()", "capitalize()", "format(E)", "splitlines()", "isdigit()", "get(E)",
        "get(E, E)", "items()|list", "keys()|list", "values()|list", "index(E)", "copy()", "removeprefix(E)",
        "partition(',')", "partition(E)", "zfill(4)", "zfill(E)", "swapcase()", "isupper()",
    ]
    ATTRIBUTES = ["a", "b", "items", "keys", "name", "role", "content", "x", "nope", "upper", "get"]
    TEXTS = ["", "a", " ", "\n", "b\n", "  ", " c ", "\n\n", "\n  ", "é"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *choices):
        return self.r.choice(choices)

    def fill(self, pattern, depth):
        while "E" in pattern:
            pattern = pattern.replace("E", self.expr(depth), 1)
        return pattern

    def expr(self, depth):
        if depth <= 0 or self.r.random() < 0.2:
            return self.r.choice(self.NAMES if self.r.random() < 0.6 else self.LITERALS)
        e = lambda: self.expr(depth - 1)
        part = lambda patterns: self.fill(self.r.choice(patterns), min(depth - 2, 1))
        kind = self.r.randrange(20)
        if kind < 3:
            return f"{e()} {self.pick('+', '-', '*', '/', '//', '%', '~', '~', '+')} {e()}"
        if kind < 5:
            return f"{e()} {self.pick('==', '!=', '<', '>', '<=', '>=', 'in', 'not in', 'and', 'or')} {e()}"
        if kind == 5:
            return f"not {e()}"
        if kind == 6:
            return f"({e()})"
        if kind == 7:
            return f"{e()} if {e()}" + (f" else {e()}" if self.r.random() < 0.8 else "")
        if kind < 11:
            return f"({e()})|{part(self.FILTERS)}"
        if kind < 13:
            return f"{self.r.choice(self.NAMES)}|{part(self.FILTERS)}|{part(self.FILTERS)}"
        if kind == 13:
            return f"({e()}) is {self.pick('', 'not ')}{part(self.TESTS)}"
        if kind == 14:
            return f"({e()})[{self.pick(e(), '0', '-1', '1:', ':2', '::-1', '1:-1', '::2')}]"
        if kind == 15:
            return f"({e()}).{self.r.choice(self.ATTRIBUTES)}"
        if kind == 16:
            return f"({self.pick(e(), 's', 'u', 'w', 'csv')}).{part(self.METHODS)}"
        if kind == 17:
            return f"[{e()}, {e()}]"
        if kind == 18:
            return "{" + f"{self.r.choice(self.LITERALS[:10])}: {e()}" + "}"
        return self.fill(self.pick("range(5)", "range(0)", "dict(a=E)", "namespace(a=E)", "(E, E)", "-(E)", "(E) ** 2",
                                   "(E) ** 3"), depth - 1)

    def tag(self, body):
        return "{%" + self.pick("", "", "-", "+") + f" {body} " + self.pick("", "", "-", "+") + "%}"

    def print(self, body):
        return "{{" + self.pick("", "", "-") + f" {body} " + self.pick("", "", "-") + "}}"

    def block(self, depth):
        parts = [self.r.choice(self.TEXTS) + self.statement(depth) for _ in range(self.r.randrange(1, 4))]
        return "".join(parts) + self.r.choice(self.TEXTS)

    def statement(self, depth):
        e = lambda: self.expr(2)
        kind = self.r.randrange(14) if depth > 0 else self.r.randrange(3)
        if kind < 3:
            return self.print(e())
        if kind == 3:
            return self.tag(f"set {self.pick('x', 'y', 's')} = {e()}")
        if kind == 4:
            return self.tag("set ns = namespace(a=1)") + self.tag(f"set ns.{self.pick('a', 'b')} = {e()}")
        body = lambda: self.block(depth - 1)
        if kind < 7:
            out = self.tag(f"if {e()}") + body()
            if self.r.random() < 0.3:
                out += self.tag(f"elif {e()}") + body()
            if self.r.random() < 0.5:
                out += self.tag("else") + body()
            return out + self.tag("endif")
        if kind < 10:
            head = self.pick(f"x in {self.r.choice(self.NAMES)}", f"x in {e()}", "x, y in d.items()", "x in l",
                             f"x in users if {e()}", "x in messages")
            out = self.tag("for " + head) + body()
            if self.r.random() < 0.2:
                out += self.tag(f"if {e()}") + self.tag(self.pick("break", "continue")) + self.tag("endif")
            out += self.pick("", "{{ loop.index }}", "{{ loop.last }}", "{{ x }}", "{{ loop.nextitem }}",
                             "{{ loop.length }}")
            if self.r.random() < 0.3:
                out += self.tag("else") + body()
            return out + self.tag("endfor")
        if kind == 10:
            args = self.pick("", "x", "x, y=1", f"x={self.r.choice(self.LITERALS)}")
            call = self.pick("", e(), f"{e()}, {e()}", f"x={e()}")
            return self.tag(f"macro m({args})") + body() + self.tag("endmacro") + "{{ m(" + call + ") }}"
        if kind == 11:
            return self.tag(f"set {self.pick('x', 'y')}") + body() + self.tag("endset")
        if kind == 12:
            return self.tag(f"with x = {e()}") + body() + self.tag("endwith")
        name = self.pick("upper", "trim", "title", "replace('a', 'b')")
        return self.tag("filter " + name) + body() + self.tag("endfilter")


def random_snippets(count, seed):
    source = Random(seed)
    for i in range(count):
        yield "{{ " + source.expr(3) + " }}" if i % 5 < 3 else source.block(2)
