"""The small templates of make_chat_goldens.py: enumerations of the language, hand-written corners, random ones."""

import itertools
import random

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
    "users": [{"name": "bob", "age": 3, "tags": ["x"]}, {"name": "Al", "age": 1}, {"name": "cy", "age": 2, "tags": []}],
    "html": "<a href=\"x\">'&'</a>",
}

# Expressions that stand for the kinds of values there are.
VALUES = ["undef", "no", "t", "false", "n", "m", "z", "big", "f", "g", "1e16", "s", "u", "w", "e", "'12'", "' 3.7 '", "'0x1f'",
          "l", "ls", "lm", "el", "d", "dd", "ed", "users", "(1, 'a')", "()", "(5,)", "range(4)", "d.items()", "d.keys()",
          "namespace(a=1)", "html", "html|safe", "[[2], [1]]", "users|map(attribute='name')", "dict(k=[1, (2,)])", "[undef]"]
FEW = ["undef", "no", "t", "n", "m", "f", "s", "e", "l", "el", "d", "(1, 2)", "range(3)", "'a'", "html|safe"]


def whitespace():
    before = ["", "a", " ", "a ", "\n", "a\n", "\n  ", "a\n\t ", "a\n\n"]
    after = ["", "b", " ", " b", "\n", "\nb", "\n\n", "  \n b", "\n  b\n"]
    for x, y in itertools.product(before, after):
        for open_sign, close_sign in itertools.product(["", "-", "+"], repeat=2):
            yield f"{x}{{%{open_sign} set q = 1 {close_sign}%}}{y}"
            yield f"{x}{{#{open_sign} note {close_sign}#}}{y}"
        for open_sign, close_sign in itertools.product(["", "-", "+"], ["", "-"]):
            yield f"{x}{{{{{open_sign} s {close_sign}}}}}{y}"
    signs = ["", "-", "+"]
    for a, b, c, d in itertools.product(signs, repeat=4):
        yield f" x\n  {{%{a} if t {b}%}}\n  y\n  {{%{c} endif {d}%}}\n z"
        yield f" x\n  {{%{a} raw {b}%}}\n  {{{{ y }}}}\n  {{%{c} endraw {d}%}}\n z"
    for a, b in itertools.product(signs, repeat=2):
        yield f"<\n {{%{a} for i in l %}}\n  {{{{ i }}}}\n {{%{b} endfor %}}\n>"
    yield from ["x\n", "x\n\n", "x\r\n", "x\r", "a\r\nb\rc\n", "{{ 'a\r\nb' }}", "{# a #}{# b #}\n", "  {# x #}  y", "{{ s }}\n",
                "{%- if t -%}\n\n a \n\n{%- endif -%}\n", "{{ s }} {% if t %}\n{% endif %}\nx", "\u00a0{%- if t %}x{% endif %}",
                "{{ 1 }}{% if t %} \n {% endif %}2", " {% if t %}x{% endif %}", "\n {% if t %}x{% endif %}\n y", "", " ", "\n"]


def filters():
    plain = ["abs", "attr('a')", "batch(2)|list", "batch(2, 0)|list", "capitalize", "center(9)", "count", "d('x')", "d('x', true)",
             "default", "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "e", "escape", "first",
             "float", "float(1.5)", "forceescape", "format(1)", "groupby('age')|list", "indent", "int", "int(9)", "int(base=16)",
             "items|list", "join", "join(', ')", "last", "length", "list", "lower", "map('upper')|list", "map('string')|join('/')",
             "map(attribute='name')|list", "map(attribute='tags', default='-')|list", "max", "min", "reject|list", "reject('none')|list",
             "rejectattr('tags')|list", "replace('l', 'L')", "reverse|list", "reverse|string", "round", "round(1)", "round(-1)",
             "round(1, 'floor')", "round(method='ceil')", "safe", "select|list", "select('string')|list", "selectattr('age')|list",
             "slice(2)|list", "slice(3, 'x')|list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='age')",
             "string", "sum", "sum(start=1)", "title", "tojson", "tojson(indent=2)", "trim", "trim('Hd')", "truncate(5)",
             "truncate(5, true)", "truncate(6, false, '…', 0)", "unique|list", "upper", "urlencode", "wordcount", "filesizeformat"]
    for value, name in itertools.product(VALUES, plain):
        if not (name == "wordcount" and "|map" in value):  # counts the words of <generator object …>
            yield f"{{{{ ({value})|{name} }}}}"
    yield from ("{{ %s }}" % x for x in [
        "'%s-%d'|format('a', 3)", "'%(x)s'|format(x=1)", "'%s'|format('a', x=1)", "'a'|center(6)", "'a\nb\n\nc\n'|indent(2)",
        "'a\nb\n\nc'|indent(2, true)", "'a\nb\n\nc'|indent(2, blank=true)", "'a\nb'|indent('> ')", "'a\nb'|indent(width=0)", "''|indent",
        "'<a>\n<b>'|e|indent", "l|join(d='-')", "users|join(', ', attribute='name')", "users|join(attribute='nope')",
        "users|sum(attribute='age')", "users|map(attribute='name')|map('length')|list", "users|sort(attribute='age,name')|map(attribute='name')|join",
        "users|sort(attribute='name', case_sensitive=true)|map(attribute='name')|list", "users|selectattr('age', 'gt', 1)|list|length",
        "users|selectattr('name', 'in', ['bob'])|list", "users|rejectattr('age', 'odd')|map(attribute='name')|list",
        "users|groupby('age', default=0)|first", "(users|groupby('age')|list)[0].grouper", "(users|groupby('age')|list)[0].list|length",
        "['b','B','a']|groupby('0')|list", "users|max(attribute='age')", "users|min(attribute='name')", "['a','B']|max", "['a','B']|max(true)",
        "['a', 'B', 'A']|unique|list", "['a', 'B', 'A']|unique(true)|list", "users|unique(attribute='age')|list|length", "[1, true, 1.0, '1']|unique|list",
        "l|map('default', 5)|list", "[undef, 1]|map('default', 'z')|list", "l|map|list", "l|map('nope')|list", "l|map(attribute=none)|list",
        "[[1,2],[3]]|map(attribute=0)|list", "[[1,2],[3]]|map(attribute='0')|list", "[dd]|map(attribute='x.y.z.2.k')|list", "l|select('nope')|list",
        "l|select('divisibleby', 2)|list", "l|select('>', 1)|list", "ls|select('in', 'abc')|list", "l|reject('equalto', 1)|join(',')", "5|items|list", "5|items|string|length > 0",
        "d|items|list", "undef|items|list", "d|dictsort(by='nope')", "{'b': 2, 'A': 1}|dictsort", "{1: 2, 'a': 1}|dictsort", "'abc'|slice(2)|list", "l|slice(0)|list", "l|batch(0)|list",
        "10|batch(2)|list", "3.14159|round(2)", "2.675|round(2)", "0.5|round", "1.5|round", "-2.5|round", "1e300|round(2)", "25|round(-1)", "35|round(-1)", "-25|round(-1)",
        "2.5|round(none)", "1234.5|round(-2)", "12.3456|round(2, 'ceil')", "12.3456|round(2, 'floor')", "12|round(1, 'floor')", "-0.2|round(0, 'ceil')", "1|round(method='up')",
        "'7'|int + 1", "'abc'|int(5)", "'1_000'|int", "'0b11'|int(base=2)", "'0o17'|int(0, 8)", "'ff'|int(base=16)", "'z'|int(base=36)", "'12'|int(base=0)", "'012'|int(base=0)",
        "'1e3'|int", "'nan'|int(3)", "'inf'|int(3)", "3.99|int", "-3.99|int", "true|int", "none|int", "'٣'|int", "'  42\n'|int", "'4 2'|int", "'+5'|int", "'--5'|int", "[]|int('x')",
        "'1e400'|float", "'-inf'|float", "'NaN'|float", "'1_0.5'|float", "'.5'|float", "'5.'|float", "'0x10'|float", "'abc'|float(none)", "1e16|string", "1e15|string", "123456789012345678|float",
        "0.1 + 0.2", "1e-5", "0.0001", "1.0", "100.0", "1e22", "5e-324", "1.7976931348623157e308", "-0.0", "1/3", "2**0.5", "10**20", "2**100", "2**-1", "7.0 // 2", "-7 // 2", "-7 % 3", "7 % -3", "-7.5 % 2", "7.5 // -2",
        "1e308 * n", "-(1e308 * n)", "(1e308 * n) - (1e308 * n)", "0.0 == -0.0", "1 == 1.0", "1 == true", "2 == true", "'1' == 1", "9007199254740993 == 9007199254740992.0", "big + 1", "big == 18446744073709551615.0",
        "'a b/c?d=é&~'|urlencode", "d|urlencode", "[('a b', '/')]|urlencode", "[1]|urlencode", "5|urlencode", "1|filesizeformat", "999|filesizeformat", "1000|filesizeformat", "123456789|filesizeformat", "123456789|filesizeformat(true)",
        "1e30|filesizeformat", "'5000'|filesizeformat", "-5|filesizeformat", "0|filesizeformat", "1023|filesizeformat(binary=true)", "'foo bar baz qux'|truncate(9)", "'foo bar baz qux'|truncate(9, true)",
        "'foo bar baz qux'|truncate(11)", "'foo bar baz qux'|truncate(11, false, '...', 0)", "'foobar'|truncate(2)", "'ünïcödé wörds here'|truncate(8, leeway=0)", "'héllo wörld'|title", "'foo-bar (baz) {x} [y] <z>'|title",
        "\"don't stop\"|title", "'ǆabc'|title", "'ßa'|title", "'ßa'|upper", "'ΑΣ'|lower", "'ΑΣ Σ'|lower", "'İ'|lower", "'ﬁ'|upper", "'ǆ'|capitalize", "'HELLO wORLD'|capitalize", "'a_b c-d'|wordcount", "'日本 語'|wordcount",
        "'x'|e + '<'", "'<'|e", "'<'|e|e", "'<'|safe ~ '<'", "'<'|safe + '<'", "'<' + '<'|safe", "('<'|safe) * 2", "('<%s>'|safe) % '&'", "('<{}>'|safe).format('&')", "('a<b'|safe).replace('a', '&')", "('<'|safe).join(['&', 1])",
        "['<', '>'|safe]|join('&')", "('<b>'|safe)|upper + '&'", "('a b'|safe).split()[0] + '&'", "('ab'|safe)[0] + '&'", "'<'|forceescape", "('<'|safe)|forceescape", "('<'|safe)|string + '&'", "['<'|safe]|string", "('&'|e) is escaped",
        "'&' is escaped", "5|e", "none|e", "[1]|safe", "'a'|replace('', '-')", "'abc'|replace('', '-', 2)", "''|replace('', '-')", "'aaaa'|replace('a', 'b', 2)", "'aaaa'|replace('aa', 'b')", "123|replace(2, 'x')", "'a'|replace('a')",
        "'xxabcxx'|trim('x')", "'  a '|trim + '|'", "none|trim", "'abc'|trim(none)", "'abc'|trim('')", "s|first", "s|last", "''|first", "''|first is undefined", "[]|last", "d|first", "d|last", "d.items()|last", "range(3)|last", "(l|map('string'))|last",
        "l|reverse|first", "(l|map('string'))|reverse|list", "s|reverse", "5|reverse", "'x'|attr('upper')|string|length > 0", "d|attr('b')", "d|attr('items')|string|length > 0", "namespace(x=1)|attr('x')", "undef|attr('x')", "d|attr(5)",
        "l|sum(start=10)", "['a']|sum", "[[1],[2]]|sum(start=[])", "[1, 2.5]|sum", "[]|sum", "[none, none]|sort", "[1, 'a']|sort", "[true, 0, 2]|sort", "['b', 'a']|sort(true)", "[[2, 1], [1, 9]]|sort", "[{'a': 1}, {'a': 1}]|sort", "d|sort", "'hello'|sort",
        "l|nope", "5|length", "l|join(1)", "l|join(none)", "none|join", "'abc'|join('-')", "d|join(',')", "[[1], none, undef]|join(',')", "l|default('x', true)", "[]|default('x', true)", "undef|default", "undef.x|default('a')", "d.nope|default('a')",
        "no|default('a')", "no|default('a', true)", "d.nope.deeper|default('a')", "'pprint' is filter", "'upper' is filter", "'nope' is filter", "'odd' is test", "'nope' is test",
        "s|upper|lower|title", "s|upper()", "s|upper(1)", "s|trim(chars='H')", "s|trim(nope=1)", "s|replace(old='l', new='r')", "s|replace('l', 'r', count=1)", "s|center(width=20)", "l|first(1)", "l|length()", "s | replace ( 'l' , 'r' )",
    ])


def json_dumps():
    values = ["no", "t", "n", "f", "g", "s", "u", "html", "w", "'\\u2028\\x7f\\x00\\x1f\\b\\f'", "'🐳é'", "l", "el", "d", "ed", "lm", "dd", "users", "(1, (2,))", "{1: 2, none: 3, true: 4, 2.5: 5}", "{'b': 1, 'a': [1, {'c': {}}]}", "1e16",
              "1e308 * n", "big", "-1", "[[], [[]]]", "undef", "[undef]", "range(2)", "namespace()", "{(1,): 2}", "d.items()", "messages", "'a'|safe", "l|map('string')"]
    for value, args in itertools.product(values, ["", "()", "(indent=2)", "(true)", "(false, 1)", "(indent='\t')", "(sort_keys=true)", "(separators=(',', ':'))", "(ensure_ascii=true, indent=4)", "(indent=0)"]):
        yield f"{{{{ ({value})|tojson{args} }}}}"
    yield from ("{{ %s }}" % x for x in [
        "d|tojson(indent=-1)", "d|tojson(indent=2.5)", "d|tojson(indent=true)", "d|tojson(separators=(',',))", "d|tojson(separators=none)", "d|tojson(indent=2, separators=(', ', ' : '))", "{1: 1, 'a': 2}|tojson(sort_keys=true)", "d|tojson(2)", "d|tojson(nope=1)",
        "d|tojson|length", "d|tojson|safe", "'{\"a\": [1, 2.5, null, true, \"x\\\\n\\\\u00e9\"]}'|from_json", "'[1'|from_json", "'1 2'|from_json", "'NaN'|from_json", "'{\"a\":1,\"a\":2}'|from_json", "' 5 '|from_json", "'-0'|from_json", "'01'|from_json", "'1.'|from_json",
        "'\"\\t\"'|from_json", "'\"\\\\ud83d\\\\ude00\"'|from_json", "'[]'|from_json", "'{}'|from_json", "'{\"a\" 1}'|from_json", "'{1:2}'|from_json", "'1e5'|from_json", "''|from_json", "'tru'|from_json",
    ])


def tests():
    names = ["defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "sequence", "iterable", "callable", "escaped", "odd", "even", "lower", "upper", "divisibleby 3", "divisibleby(2)", "eq 7", "equalto('a')", "== 7",
             "ne 7", "!= 7", "gt 2", "greaterthan 2", "> 2", "ge 7", "lt 2", "lessthan 2", "le 7", "in l", "in ('a', 7)", "in 'Hello World!'", "sameas none", "sameas true", "filter", "test", "not defined", "not none", "not in [7]"]
    for value, name in itertools.product(VALUES, names):
        yield f"{{{{ ({value}) is {name} }}}}"
    for name in ["range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now", "s.upper", "loop", "joiner()", "cycler(1)", "self"]:
        if name != "self":
            yield f"{{{{ {name} is defined }}}} {{{{ {name} is callable }}}}"
    yield from ("{{ %s }}" % x for x in [
        "s is string and n is number", "not s is none", "s is not none", "n is divisibleby 7 and true", "n is nope", "n is eq 7 if t else 2", "n is eq(7)", "n is divisibleby", "n is divisibleby 0", "n is defined is true", "1 is in [1]", "1 is not in [1]", "(n is odd) is true",
        "n is lt z", "s is eq s|string", "n is eq -7", "n is eq l[0]", "users[0].name is eq 'bob'", "'ABC' is upper", "'AbC' is upper", "'123' is upper", "'ß' is lower", "5 is upper", "n in l", "3 in l", "3 not in l", "not 3 in l", "'b' in d", "'z' in d", "1 in d", "'ell' in s",
        "'' in s", "1 in s", "none in lm", "none in 'x'", "1 in 5", "1 in no", "1 in undef", "2 in range(3)", "5 in range(3)", "('b', 1) in d.items()", "'b' in d.keys()", "1 in d.values()", "[1] in [[1]]", "[1] in d", "1 in (l|map('int'))", "'a' in namespace(a=1)", "'k' in lm[6]",
    ])


def operators():
    ops = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "and", "or", "in"]
    for a, b, op in itertools.product(FEW, FEW, ops):
        yield f"{{{{ ({a}) {op} ({b}) }}}}"
    for a in VALUES:
        yield f"{{{{ -({a}) }}}}"
        yield f"{{{{ +({a}) }}}}"
        yield f"{{{{ not ({a}) }}}}"
        yield f"{{{{ ({a}) }}}}"
        yield f"{{{{ [({a})] }}}}"
        yield f"{{{{ {{'k': ({a})}} }}}}"
        yield f"{{{{ ({a}) if ({a}) else 'no' }}}}"
        yield f"{{{{ ({a}) ** 2 }}}}"
        yield f"{{% for x in ({a}) %}}{{{{ x }}}}|{{% else %}}none{{% endfor %}}"
        yield f"{{% for x in ({a}) %}}{{{{ loop.index }}}}{{{{ loop.last }}}}{{{{ loop.length }}}}{{% endfor %}}"
        yield f"{{% set p, q = ({a}) %}}{{{{ p }}}}{{{{ q }}}}"
        yield f"{{{{ ({a}).a }}}}{{{{ ({a}).b is defined }}}}"
        yield f"{{{{ ({a})['b'] }}}}"
        yield f"{{{{ ({a})[0] }}}}"
        yield f"{{{{ ({a})[-1] }}}}"
        yield f"{{{{ ({a})[1:] }}}}"
        yield f"{{{{ ({a})() }}}}"
        yield f"{{{{ range({a})|list }}}}"
        yield f"{{{{ dict({a}) }}}}"
        yield f"{{{{ '%s' % ({a}) }}}}"
        yield f"{{{{ '%r' % [({a})] }}}}"
        yield f"{{{{ '{{}}'.format({a}) }}}}"
        yield f"{{{{ '{{!r:>12}}'.format({a}) }}}}"
        yield f"{{{{ '{{:>8}}'.format({a}) }}}}"
        yield f"{{{{ '-'.join({a}) }}}}"
        yield f"{{{{ raise_exception({a}) }}}}"
        yield f"{{{{ loop_is_undefined ~ ({a}) ~ 1 }}}}"
    yield from ("{{ %s }}" % x for x in [
        "1 + 2 * 3", "(1 + 2) * 3", "2 ** 3 ** 2", "-2 ** 2", "2 ** -1", "1 - 2 - 3", "8 / 2 / 2", "7 // 2 * 2", "1 + 2 ~ 3 + 4", "'a' ~ 1 + 2", "1 ~ 2 * 3", "not 1 == 2", "not true and false", "true or false and false", "1 < 2 < 3", "1 < 3 < 2", "3 > 2 == true", "1 < 2 > 0 != 5",
        "1 in [1] == true", "1 if 0 else 2 if 0 else 3", "1 if true", "1 if false", "(1 if false) is undefined", "(1 if false).x", "1 or undef.x", "0 and undef.x", "'' or 'x'", "[] and 1", "none or 0", "1 and 2", "- 5", "--5", "+-5", "-l[0]", "-5|abs", "(-5)|abs", "5 - -5", "not not s",
        "[1, 2,]", "[]", "(1,)", "(1)", "()", "1, 2", "1,", "{}", "{'a': 1,}", "{'a': 1, 'a': 2}", "{[]: 1}", "{none: 1}", "{1: 'a', 1.0: 'b', true: 'c'}", "[1, [2, [3]]]", "{'a': {'b': (1, 2)}}", "'a' 'b'", "'a' \"b\" 'c'|upper", "'\\n\\t\\\\\\'\\\"'", "'\\x41\\u00e9\\U0001F433\\101\\0'", "'\\q'", "'\\N{DASH}'",
        "'\\ud800'", "'\\x4'", "0x1F", "0b101", "0o17", "1_000", "1_000.5", "1e3", "1.5e-3", "1E5", "007", "0", "00", "1.", ".5", "1__0", "10_", "0x", "3.real", "3 .real", "l.0", "l.1.real", "dd.x.y.z.2.k", "dd['x']['y'].z[2]['k']", "dd.items", "dd['items']", "dd.get", "dd['get']", "dd.1", "dd['1']",
        "dd[1]", "d.items()|list", "d.keys()|list", "d.values()|list", "d.items()", "d.keys()", "d.get('b')", "d.get('q')", "d.get('q', 5)", "d.get()", "d.copy()", "d.update({})", "d.pop('b')", "l.append(1)", "l.append", "l.append is defined", "l.pop()", "l.index(2)", "l.index(9)", "l.count(1)", "l.copy()", "l.sort()",
        "(1, 1).count(1)", "(1, 2).index(2)", "range(5).index(3)", "range(1, 9, 2).stop", "l.nope", "l.nope.x", "l['nope']", "l[99]", "l['0']", "l[1.0]", "l[true]", "s[0]", "s[-1]", "s[99]", "s[99] is undefined", "u[4]", "s.nope", "s.nope()", "undef.x", "undef['x']", "undef()", "undef + 1", "undef ~ 'x'", "undef == undef", "undef == none",
        "undef != 1", "undef < 1", "undef is undefined", "undef|length", "undef[1:]", "[undef]", "undef.x.y is defined", "d.nope", "d.nope.x", "d['nope']['x']", "no.x", "no.x.y", "no['x']", "n.x", "n[0]", "n.real", "t.real", "f.is_integer()", "n.bit_length()", "s.__class__", "s.__class__ is undefined", "d.__len__", "d._x", "n.__add__", "s._private",
        "range(3)", "range(1, 4)|list", "range(5, 0, -2)|list", "range(0)", "range(1, 2, 0)", "range('a')", "range()", "range(1, 2, 3, 4)", "range(100000)|length", "range(100001)|length", "range(10)[2:8:3]", "range(10)[-1]", "range(3) == range(0, 3)", "range(3)|last", "range(2.0)",
        "dict(a=1)", "dict([('a', 1)])", "dict({'a': 1}, b=2)", "dict(d, a=5)", "dict(1)", "dict([1])", "dict([(1, 2, 3)])", "dict(**d)", "dict(**{'a': 1}, **d)", "dict(a=1, a=2)", "dict(a=1, **{'a': 2})", "dict(*[d])", "namespace(a=1)", "namespace(a=1).a", "namespace({'a': 1}, b=2).b", "namespace(1)",
        "namespace(a=1).b is defined", "namespace(a=1)['a']", "cycler('a', 'b').next()", "cycler()", "cycler('a').current", "joiner('-')()", "joiner()", "raise_exception('boom')", "raise_exception()", "strftime_now('%Y-%m-%d')", "strftime_now('%d %b %Y %H:%M:%S %j %A %B %p %%')", "strftime_now('')", "strftime_now('%-d/%f')", "strftime_now()",
        "strftime_now(5)", "bos_token ~ eos_token", "tools is none", "tools is defined", "documents", "add_generation_prompt", "messages|length", "messages[0].role", "messages[-1].content is none", "messages[-1].tool_calls[0].function.arguments|tojson", "messages[1:]|map(attribute='role')|join", "messages[::-1][0].role", "nope(1)", "s()", "s.upper", "s.upper()", "5()", "l()",
        "[1, 2] == [1, 2]", "[1] == (1,)", "(1, 2) < (1, 3)", "[1, 'a'] < [2, 1]", "[1] < ['a']", "'a' < 'b'", "'a' < 1", "none < none", "d == {'a': 2, 'C': 3, 'b': 1}", "{} == {}", "none == none", "true + true", "true * 'ab'", "'ab' * 2", "2 * 'ab'", "'ab' * -1", "[1] * 2", "(1,) * 2", "'a' * 2.0", "'a' + 1", "1 + 'a'", "[1] + [2]", "[1] + (2,)", "(1,) + (2,)", "'a' - 'b'", "d + d", "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "0 ** -1", "(-8) ** 0.5", "10 ** 400 > 0" if False else "2 ** 10", "1.0 ** 1000", "0.1 ** 400", "10.0 ** 400",
        "s[1:3]", "u[-3:]", "s[::-1]", "u[::2]", "l[5:]", "l[:'a']", "l[undef:]", "l[none:2]", "l[::0]", "l[1:2, 3]", "l[]", "l[1, 2]", "d[1:2]", "5[1:]", "s[true:]", "s[:-1][1:]", "(1, 2, 3)[::-2]", "l[-99:99]", "[1, 2, 3][-2:]", "'🐳x🐳'[1]", "'🐳x🐳'[::-1]", "l[1:][0]", "l[n - 6]",
        "(lambda)", "a b", "1 +", "* 2", "(1", "1)", "[1", "{'a'}", "{'a': }", "'a", "\"a", "s |", "s | 5", "s..x", "s.", "@", "$", "a = 1", "a := 1", "1 ? 2", "s is", "s is not", "if", "x if", "for x in l", "f(", "f(a b)", "f(a=1, 2)", "f(*a, *b)", "f(**a, b=1)", "f(**a, *b)", "f(*l)", "range(*[1, 4])|list", "range(*[1], 3)", "s!", "!s", "a && b", "{{ 1 }}", "s;", "not", "in l", "1 not 2", "true()", "True", "None", "none()", "false.x", "loop.index", "super()", "caller()", "varargs", "kwargs",
    ] if isinstance(x, str))


def slices():
    bounds = ["", "0", "1", "3", "-1", "-2", "9", "-9"]
    for start, stop, step in itertools.product(bounds, bounds, ["", ":", ":1", ":2", ":-1", ":-2"]):
        yield f"{{{{ 'abcdé'[{start}:{stop}{step}] }}}}"
        yield f"{{{{ [1, 2, 3, 4][{start}:{stop}{step}] }}}}"
    for start, step in itertools.product(bounds, [":", "::-1", "::3"]):
        yield f"{{{{ range(7)[{start}{step}]|list }}}}"
        yield f"{{{{ (1, 2, 3)[{start}{step}] }}}}"


def methods():
    receivers = ["s", "u", "w", "csv", "e", "'aXbXc'", "'123'", "'½²'", "'ABC'", "'a\\tb\\n'", "'+5'", "' '"]
    calls = ["capitalize()", "casefold()", "center(12)", "center(15, '*')", "count('l')", "count('')", "endswith('d')", "endswith(('x', 'é'))", "expandtabs(4)", "find('l')", "find('l', 4)", "find('')", "find('zz')", "index('o')", "rfind('l')", "rfind('l', 0, -3)", "rindex('zz')",
             "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()", "isidentifier()", "islower()", "isnumeric()", "isprintable()", "isspace()", "istitle()", "isupper()", "join(['1', '2'])", "ljust(14, '.')", "lower()", "lstrip()", "lstrip('Ha')", "partition('X')", "partition(',')", "removeprefix('He')",
             "removesuffix('ld')", "replace('l', '')", "replace('', '.')", "replace('X', '--', 1)", "rjust(14)", "rpartition(',')", "rsplit()", "rsplit(',', 1)", "rsplit(none, 1)", "rstrip()", "split()", "split(',')", "split(',', 1)", "split(none, 1)", "split('l', maxsplit=1)", "split(sep=',')", "splitlines()", "splitlines(true)",
             "startswith('H')", "startswith('e', 1)", "startswith(('a', ' '))", "startswith('', 99)", "strip()", "strip(' d')", "swapcase()", "title()", "upper()", "zfill(14)"]
    for receiver, call in itertools.product(receivers, calls):
        yield f"{{{{ ({receiver}).{call} }}}}"
    yield from ("{{ %s }}" % x for x in [
        "'a'.join([1])", "'a'.join(5)", "','.join(d)", "','.join('abc')", "s.split('')", "s.split(5)", "s.startswith(5)", "s.find(1)", "s.center()", "s.center(5, 'ab')", "s.replace('a')", "s.strip(1)", "s.upper(1)", "s.zfill('a')", "s.count()", "s.index('zz')", "'a\\r\\nb\\vc\\x85d\\u2028e'.splitlines()", "'a\\n\\nb\\n'.splitlines()", "''.split()", "''.split(',')",
        "'  a  b  '.split(none, 1)", "'  a  b  '.rsplit(none, 1)", "'a,b,c'.split(',', 0)", "'a,b,c'.rsplit(',', 0)", "'a--b--c'.rsplit('--', 1)", "'aaa'.split('aa')", "'aaa'.rsplit('aa')", "'abcabc'.rfind('abc', 1)", "'abcabc'.find('c', -2)", "'abc'.find('', 3)", "'abc'.find('', 4)", "'abc'.rfind('')", "'éé'.find('é', 1)", "'éxé'.index('x')", "'abc'.count('', 1)", "'aaaa'.count('aa')",
        "'-5'.zfill(5)", "'x'.ljust(3) ~ '|'", "'ab'.center(5) ~ '|'", "'abc'.center(6, '-')", "'abc'.center(4, '-')", "'ΑΣ'.lower()", "'ǆǅ'.title()", "\"they're bill's\".title()", "'ß'.casefold()", "'İI'.casefold()", "'ﬃ'.upper()", "'ŉ'.title()", "'xx'.strip('x') ~ '|'", "'\\x1c\\x85a\\u3000'.strip()",
        "'{}'.format(1)", "'{} {}'.format(1, 'a')", "'{0}{1}{0}'.format('a', 'b')", "'{a}'.format(a=1)", "'{a.b}{a[b]}'.format(a=d)", "'{0[0]}'.format(l)", "'{0.x}'.format(1)", "'{}'.format()", "'{1}'.format(1)", "'{x}'.format()", "'{} {0}'.format(1)", "'{0} {}'.format(1)", "'{{}}'.format()", "'{'.format()", "'}'.format()", "'{!r}'.format('a')", "'{!s:>5}'.format(1)", "'{!x}'.format(1)", "'{:5}|{:<5}|{:^5}|{:>5}'.format('a', 'b', 'c', 'd')",
        "'{:*^9}'.format('é')", "'{:5}|{:<5}|{:^5}|{:=5}'.format(1, -2, 3, -4)", "'{:05}|{:+}|{: }|{:+05}'.format(42, 7, 7, 7)", "'{:,}|{:_}|{:,.2f}|{:012,}'.format(1234567, 1234567, 1234.567, 1234)", "'{:d}|{:x}|{:X}|{:o}|{:b}|{:#x}|{:#b}|{:c}'.format(255, 255, 255, 8, 5, 255, 5, 65)", "'{:f}|{:.2f}|{:e}|{:.3e}|{:g}|{:G}|{:%}|{:.1%}'.format(1.5, 2.345, 12345.678, 0.00012, 1e10, 1e-10, 0.25, 0.333)",
        "'{:.3}|{:.0f}|{:10.3f}|{:<10.2f}|'.format(3.14159, 2.5, 3.14159, 2.0)", "'{:.3}|{:5.1}|'.format('abcdef', 'xyz')", "'{:d}'.format('a')", "'{:s}'.format(1)", "'{:.2}'.format(1)", "'{:d}'.format(1.5)", "'{:,}'.format('a')", "'{:=5}'.format('a')", "'{:+}'.format('a')", "'{:05}'.format('a')", "'{:<05}|'.format(3)", "'{:5}'.format(true)", "'{}'.format(true)", "'{:d}'.format(true)", "'{:>5}'.format(none)", "'{}'.format(none)", "'{:{}}|'.format('a', 4)", "'{:{w}.{p}f}'.format(3.14159, w=8, p=2)",
        "'{:.2f}'.format(5)", "'{:e}'.format(5)", "'{:%}'.format(1)", "'{:n}'.format(5)", "'{:q}'.format(5)", "'{:}'.format(5)", "'{: >+6d}'.format(5)", "'{:#.3g}'.format(1.0)", "'{:.10}'.format(1.1)", "'{:}'.format(1e16)", "'{:5}|'.format(1.5)", "'{:f}'.format(1e308 * n)", "'{:06.1f}'.format(-1.25)", "'{a}{b}'.format_map({'a': 1, 'b': 2})", "'{a}'.format_map({})", "'{0}'.format_map({})",
        "'%s %s' % (1, 'a')", "'%s' % 'a'", "'%s' % (1,)", "'%s' % [1]", "'%s' % d", "'%s' % none", "'%d' % 3.7", "'%d' % '3'", "'%i|%u' % (1, 2)", "'%x|%X|%o|%#x|%#o' % (255, 255, 8, 255, 8)", "'%x' % 1.5", "'%5d|%-5d|%05d|%+d|% d' % (1, 2, 3, 4, 5)", "'%5s|%-5s|%.2s|%5.1s|' % ('a', 'b', 'cde', 'fgh')", "'%f|%.2f|%e|%g|%G' % (1.5, 2.345, 1e5, 1e-5, 1e20)", "'%c%c' % (65, 'é')", "'%c' % 'ab'", "'%r|%s' % ('a', 'a')", "'%%'", "'%%' % ()", "'%' % 1", "'%q' % 1", "'%s'",
        "'%s %s' % 1", "'%s' % (1, 2)", "'x' % ()", "'x' % 1", "'x' % [1]", "'x' % d", "'%(a)s-%(b)05d' % d", "'%(zz)s' % d", "'%(a)s' % 1", "'%(a)s' % [1]", "'%*d|%-*d|%.*f' % (5, 1, 5, 2, 2, 3.14159)", "'%ld' % 5", "'%.3d' % 5", "'%+.1e' % -12345.678", "'%08.2f|%-8.2f|' % (3.14159, 3.14159)", "'%s' % undef", "'%d' % undef", "'%d' % true", "'%5.3s|' % 'é日本語'", "'%f' % (1e308 * n)", "'%s' % ((1, 2),)", "'%d%%' % 50",
    ])


def statements():
    yield from [
        "{% set x = 1 %}{{ x }}", "{% set x = 1 %}{% set x = x + 1 %}{{ x }}", "{{ x }}{% set x = 1 %}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set (x, y) = [1, 2] %}{{ x }}{{ y }}", "{% set x, (y, q) = 1, (2, 3) %}{{ x }}{{ y }}{{ q }}", "{% set x, y = 1 %}", "{% set x, y = [1, 2, 3] %}", "{% set x, y = 'ab' %}{{ x }}{{ y }}",
        "{% set x, = [1] %}{{ x }}", "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ n }}b{% endset %}[{{ x }}]", "{% set x | upper %}a{{ s }}{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}aac{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", "{% set x | length %}abc{% endset %}{{ x + 1 }}", "{% set x | nope %}{% endset %}", "{% set x | replace(qq, 'b') %}aac{% endset %}{{ x }}",
        "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{% set ns.b = 3 %}{{ ns.a }}{{ ns.b }}{{ ns }}", "{% set ns = {} %}{% set ns.a = 1 %}", "{% set nope.a = 1 %}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace() %}{% set ns.a %}txt{% endset %}{{ ns.a }}", "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
        "{% set true = 1 %}", "{% set none, x = 1, 2 %}", "{% set 5 = 1 %}", "{% set x.y.z = 1 %}", "{% set x[0] = 1 %}", "{% set 'a' = 1 %}", "{% set (x) = 1 %}{{ x }}", "{% set x = %}", "{% set %}", "{% set x 1 %}", "{% set x = 1 if false %}{{ x is defined }}", "{% set x = undef %}{{ x is defined }}", "{% set s = 's' %}{{ s }}", "{% set s = s ~ '!' %}{{ s }}", "{% if false %}{% set s = 1 %}{% endif %}{{ s }}", "{% if false %}{% set q = 1 %}{% endif %}{{ q is defined }}",
        "{% if true %}{% set s = 1 %}{% endif %}{{ s }}", "{% if t %}a{% elif n %}b{% else %}c{% endif %}", "{% if no %}a{% elif n %}b{% else %}c{% endif %}", "{% if no %}a{% elif z %}b{% else %}c{% endif %}", "{% if %}x{% endif %}", "{% if t %}", "{% endif %}", "{% if t %}{% else %}{% elif n %}{% endif %}", "{% if t %}x{% endfor %}", "{% if n == 7 and s %}y{% endif %}", "{% if not n %}y{% endif %}", "{% if l, 1 %}y{% endif %}", "{% if t: %}x{% endif %}", "{% if (1 if false) %}x{% else %}y{% endif %}",
        "{% for x in l %}{{ x }},{% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}", "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
        "{% for x in l %}{{ loop.cycle() }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop.depth }}{{ loop.depth0 }}{{ loop.nope }}{% endfor %}", "{% for x in l %}{{ loop|length }}{% endfor %}", "{% for x in [] %}{{ x }}{% else %}empty{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.length }}{{ loop.last }};{% endfor %}", "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}={{ v }}{{ ',' if not loop.last }}{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for k, v in d.items() if v > 1 %}{{ k }}{{ loop.previtem }}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for c in s %}{{ c }}.{% endfor %}",
        "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in undef %}{{ x }}{% else %}e{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% break %}{% else %}e{% endfor %}", "{% for x in l %}{% continue %}{% else %}e{% endfor %}", "{% for x in l %}{{ x }}{% break %}{% endfor %}{{ x is defined }}",
        "{% break %}", "{% if t %}{% continue %}{% endif %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}", "{% for x in l %}{% for y in [] %}{% else %}{% break %}{% endfor %}{{ x }}{% endfor %}", "{% for x in l %}{% set q %}{{ x }}{% break %}{% endset %}{% endfor %}{{ q is defined }}", "{% for x in l %}{% with %}{% continue %}{% endwith %}{{ x }}{% endfor %}z", "{% for x in l %}{% filter upper %}a{% break %}{% endfilter %}{% endfor %}z",
        "{% for x in l %}{% macro q() %}{% break %}{% endmacro %}{% endfor %}", "{% for x in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{% for x in l %}{% for y in ls %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for x in l %}{% set outer = loop %}{% for y in [1] %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}", "{% for x in l %}{% set q = x %}{{ q }}{% endfor %}{{ q is defined }}", "{% set q = 0 %}{% for x in l %}{% set q = q + x %}{{ q }},{% endfor %}{{ q }}",
        "{% for x in l %}{{ q }}{% set q = x %}{% endfor %}", "{% for s in l %}{{ s }}{% endfor %}{{ s }}", "{% for x in l %}{% if loop.first %}{% set q = 1 %}{% endif %}{{ q is defined }}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}", "{% set loop = 5 %}{{ loop }}", "{% for x in l if loop.index > 1 %}{{ x }}{% endfor %}", "{% for x in l %}{% for y in l if loop.first %}{{ y }}{% endfor %}{% endfor %}", "{% for x in l if x in [1, 2] %}{{ x }}{% endfor %}",
        "{% for x in (l if t else el) %}{{ x }}{% endfor %}", "{% for x in l if t else el %}{{ x }}{% endfor %}", "{% for x in l recursive %}{{ x }}{{ loop.depth }}{% endfor %}", "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}", "{% for x in l %}{{ loop(l) }}{% endfor %}", "{% for u in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}{{ u.n }}({{ loop(u.c) if u.c }}){% endfor %}",
        "{% for x in l recursive %}{% set q = x %}{{ q }}{% else %}e{% endfor %}", "{% for x in range(3) %}{% for y in range(x) %}{{ x }}{{ y }} {% else %}-{% endfor %}{% endfor %}", "{% for x in l|sort %}{{ x }}{{ loop.nextitem }}{% endfor %}", "{% for x in users|selectattr('tags') %}{{ x.name }}{{ loop.length }}{% endfor %}", "{% for x in l|map('string') %}{{ loop.revindex }}{{ loop.last }}{{ x }}{% endfor %}", "{% for i in range(2) %}{% for x in users %}{{ loop.parent }}{{ x.name }}{% endfor %}{% endfor %}",
        "{% for %}{% endfor %}", "{% for x %}{% endfor %}", "{% for x in %}{% endfor %}", "{% for x in l %}", "{% for x.y in l %}{% endfor %}", "{% for 'a' in l %}{% endfor %}", "{% for x in l %}{% else %}{% else %}{% endfor %}", "{% for x, in [[1]] %}{{ x }}{% endfor %}", "{% for a, b, c in ['xyz'] %}{{ c }}{{ b }}{{ a }}{% endfor %}",
        "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}", "{% macro m(a, b=2) %}{{ a }}{{ b }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}", "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(q=1) }}", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, q=4) }}", "{% macro m() %}{{ varargs|length }}{% endmacro %}{{ m(1, 2) }}", "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(x=1) }}{{ m(1) }}",
        "{% macro m(a=b, b=1) %}{{ a }}|{{ b }}{% endmacro %}{{ m() }}", "{% macro m(a=1, b=a) %}{{ a }}|{{ b }}{% endmacro %}{{ m(5) }}", "{% macro m(a=s) %}{{ a }}{% endmacro %}{{ m() }}", "{% macro m(a, a) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m() %}{{ s }}{{ y }}{% endmacro %}{% set y = 1 %}{{ m() }}", "{% set y = 1 %}{% macro m() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ m() }}", "{% macro m() %}{% set s = 1 %}{{ s }}{% endmacro %}{{ m() }}{{ s }}", "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}{% set n = 1 %}",
        "{% macro m(i) %}{{ i }}{% if i %}{{ m(i - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{{ m is defined }}{% macro m() %}x{% endmacro %}{{ m is defined }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body{{ n }}{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
        "{% macro m(x) %}[{{ x }}{{ caller(x) }}]{% endmacro %}{% call(y) m(5) %}<{{ y }}>{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ m.name }}{{ m.arguments }}{{ m.caller }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{% endmacro %}{{ m() }}", "{% macro m(a, b) %}{% endmacro %}{{ m.arguments }}{{ m }}{{ m.nope is defined }}", "{% macro m(caller) %}{{ caller() }}{% endmacro %}", "{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}",
        "{% macro m(a) -%}  {{ a }}  {%- endmacro %}[{{ m('x') }}]", "{% macro outer() %}{% macro inner() %}i{{ n }}{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}", "{% set ns = namespace() %}{% macro m() %}{% set ns.x = 1 %}{% endmacro %}{{ m() }}{{ ns.x }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(m(m('a'))) }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('<')|e }}{{ m('<') + '&' }}", "{% macro m() %}{{ loop.index }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}", "{% macro m(items) %}{% for i in items %}{{ loop.index }}{{ i }}{% endfor %}{% endmacro %}{{ m(l) }}",
        "{% macro m(true) %}{% endmacro %}", "{% macro 5() %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% macro m() %}", "{% call s %}{% endcall %}", "{% call dict() %}x{% endcall %}", "{% call s.upper() %}x{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{% for x in l %}{% call m() %}{{ x }}{{ loop.index }}{% endcall %}{% endfor %}", "{% macro m() %}{% set caller = 1 %}{{ caller }}{% endmacro %}{{ m() }}", "{% macro m(*a) %}{% endmacro %}", "{% macro m(a,) %}{{ a }}{% endmacro %}{{ m(1) }}", "{% macro m(a=[1, 2], b={'k': 3}) %}{{ a }}{{ b.k }}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro m(x, y='d') %}{{ x }}{{ y }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'x': 3}) }}{{ m(1, **{'x': 3}) }}", "{% macro m() %}{{ kwargs.caller is defined }}{% endmacro %}{% call m() %}{% endcall %}", "{% macro m() %}{{ varargs }}{{ caller() }}{% endmacro %}{% call m(1) %}c{% endcall %}",
        "{% with x = 1 %}{{ x }}{% endwith %}{{ x is defined }}", "{% with x = 1, y = x %}{{ y is defined }}{% endwith %}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}", "{% with s = s ~ '!' %}{{ s }}{% endwith %}{{ s }}", "{% with a, b = 1, 2 %}{% endwith %}", "{% with (a, b) = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "{% with x = 1 %}", "{% with x %}{% endwith %}", "{% with s = 1 %}{% set s = 2 %}{{ s }}{% endwith %}{{ s }}",
        "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aac{% endfilter %}", "{% filter length %}abc{% endfilter %}", "{% filter indent(2) %}a\nb\n{% endfilter %}|", "{% filter nope %}{% endfilter %}", "{% filter trim %}  x {% set q = 1 %}{% endfilter %}{{ q is defined }}", "{% set c = 'x' %}{% filter replace('a', c) %}abc{% endfilter %}", "{% filter upper %}{% filter lower %}AbC{% endfilter %}{% endfilter %}",
        "{% generation %}abc{{ n }}{% endgeneration %}", "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q is defined }}", "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% for m in messages %}{%- generation -%}\n {{ m.role }} \n{%- endgeneration -%}{% endfor %}", "{% generation %}", "{% generation x %}{% endgeneration %}",
        "{% raw %}{{ x }}{% if %}{% endraw %}", "{% raw %}{# #}{% endraw %}", "{%- raw -%} x {%- endraw -%} y", "{% raw %}", "{% endraw %}", "{% rawx %}", "{%raw%}a{%endraw%}", "a{% raw %}\nb\n{% endraw %}\nc", "{% raw %}{% raw %}{% endraw %}", "{# comment #}x", "{# unclosed", "{#- a -#} b", "{# {{ x }} {% y %} #}z", "{##}x", "{#-#} x", "{# # } #}y", "{% # comment %}",
        "{% print s %}", "{% print s, n %}", "{% print %}", "{% do 1 %}", "{% nope %}", "{% %}", "{%%}", "{{}}", "{{ }}", "{% 5 %}", "{% 'if' %}", "{{ s", "{% if t", "{{ s }", "{% if t }}", "{{ s %}", "}}", "%}", "#}", "{", "{ {", "{{ '}}' }}", "{{ '{{' }}", "{{ '%}' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}.a.b }}", "{{{'a': 1}}}", "{{ [[1]] }}", "{{ s }}{{ n }}", "{{s}}", "{{-s-}}", "{{- s -}} x", "{{ -1 }}", "{{-1}}", "{{ - 1 }}", "{{ s -}}  x", "{{ n -1 }}", "{{ n-1 }}", "a {{- -1 -}} b",
        "{% autoescape true %}{{ html }}{% endautoescape %}" if False else "x", "{% set x = namespace(l=[]) %}{% for i in l %}{% set x.l = x.l + [i * 2] %}{% endfor %}{{ x.l }}", "{% set ns = namespace(found=false) %}{% for m in messages if m.role == 'user' %}{% set ns.found = true %}{% endfor %}{{ ns.found }}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
        "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|select %}{{ g is iterable }}{{ g is sequence }}{{ g is string }}", "{% set it = l|map('int') %}{{ it|first }}{{ it|list }}", "{% set a = [1] %}{% set b = a %}{% set a = a + [2] %}{{ a }}{{ b }}", "{% set x = 'a' %}{% set x = x ~ x %}{% set y = x + 'b' %}{% set w2 = x + 'c' %}{{ x }}{{ y }}{{ w2 }}", "{% set x = s %}{% set a = x + '1' %}{% set b = a + '2' %}{% set c = a + '3' %}{{ x }}|{{ a }}|{{ b }}|{{ c }}",
        "{% if t %}{{ s|nope }}{% endif %}", "{% if no %}{{ s|nope }}{% endif %}ok", "{% if no %}{% for x in l %}{{ s|nope }}{% endfor %}{% endif %}ok", "{{ s|nope if no else 'ok' }}", "{{ 'ok' if t else s|nope }}", "{% if no is nope %}x{% endif %}", "{% if t or s is nope %}ok{% endif %}", "{% if no %}{% set x = s|nope %}{% endif %}ok", "{% if no %}{% with %}{{ s|nope }}{% endwith %}{% endif %}ok", "{% for x in el %}{{ s|nope }}{% endfor %}ok", "{% macro m() %}{{ s|nope }}{% endmacro %}ok", "{% if no %}{% macro m() %}{{ s|nope }}{% endmacro %}{% endif %}ok",
        "{% if no %}{% for x in l if s is nope %}{% endfor %}{% endif %}ok", "{% if no %}{% for x in s|nope %}{% endfor %}{% endif %}ok", "{{ [s|nope] if no }}", "{% if t %}{% if no %}{{ s|nope }}{% endif %}{% endif %}ok",
        "{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% set x = 1 %}", "{% if t %}{% set q = 1 %}{% else %}{% set q = 2 %}{% endif %}{{ q }}", "{% if no %}{% set s = 1 %}{% elif n %}{% set s = 2 %}{% endif %}{{ s }}", "{% for x in l %}{% if x == 1 %}{% set s = 'changed' %}{% endif %}{{ s }};{% endfor %}{{ s }}", "{% for x in l %}{% set s = s ~ x %}{{ s }};{% endfor %}{{ s }}", "{% macro m() %}{% if no %}{% set s = 1 %}{% endif %}{{ s }}{% endmacro %}{{ m() }}", "{% set q = 1 %}{% macro m() %}{% if no %}{% set q = 2 %}{% endif %}{{ q }}{% endmacro %}{{ m() }}",
        "{% set q = 1 %}{% with q = 2 %}{% macro m() %}{{ q }}{% endmacro %}{{ m() }}{% endwith %}{{ q }}", "{% set q = 1 %}{% set r %}{% set q = 2 %}{{ q }}{% endset %}{{ q }}{{ r }}", "{% for x in [1, 2] %}{% with %}{% set x = 5 %}{{ x }}{% endwith %}{{ x }}{% endfor %}", "{% for x in [1, 2] %}{% for x in [3] %}{{ x }}{% endfor %}{{ x }}{% endfor %}", "{% set x = 0 %}{% for x in [1] %}{% endfor %}{{ x }}",
    ]


def all_snippets():
    for part in [whitespace, filters, json_dumps, tests, operators, slices, methods, statements]:
        yield from part()
    yield from random_snippets(2500, 20260101)


class Random:
    """Random templates: mostly well-formed, with names and literals that make most expressions meaningful."""

    NAMES = list(CONTEXT) + ["undef", "messages", "x", "y", "ns"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *choices):
        return self.r.choice(choices)

    def literal(self):
        return self.pick("1", "0", "-2", "2.5", "'a'", "'b,c'", "'Hello'", "''", "' x '", "true", "false", "none", "[1, 2]", "[]", "('a', 1)", "{'a': 1}", "{}", "'é🐳'", "'%s'", "'{}'", "3", "10")

    def name(self):
        return self.r.choice(self.NAMES)

    def expr(self, depth):
        if depth <= 0 or self.r.random() < 0.2:
            return self.name() if self.r.random() < 0.6 else self.literal()
        e = lambda: self.expr(depth - 1)
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
            return f"({e()})|{self.filter(depth)}"
        if kind < 13:
            return f"{self.name()}|{self.filter(depth)}|{self.filter(depth)}"
        if kind == 13:
            return f"({e()}) is {self.pick('', 'not ')}{self.test(depth)}"
        if kind == 14:
            return f"({e()})[{self.pick(e(), '0', '-1', '1:', ':2', '::-1', '1:-1', '::2')}]"
        if kind == 15:
            return f"({e()}).{self.pick('a', 'b', 'items', 'keys', 'name', 'role', 'content', 'x', 'nope', 'upper', 'get')}"
        if kind == 16:
            return f"({self.pick(e(), 's', 'u', 'w', 'csv')}).{self.method(depth)}"
        if kind == 17:
            return f"[{e()}, {e()}]"
        if kind == 18:
            return "{" + f"{self.pick(e(), self.literal())}: {e()}" + "}"
        return self.pick(f"range({self.r.randrange(6)})", f"dict(a={e()})", f"namespace(a={e()})", f"({e()}, {e()})", f"-({e()})", f"({e()}) ** {self.r.randrange(4)}")

    def filter(self, depth):
        e = lambda: self.expr(min(depth - 2, 1))
        return self.pick("upper", "lower", "title", "capitalize", "trim", "length", "list", "first", "last", "sort", "reverse", "unique|list", "join", "join(', ')", f"join({e()})", "string", "int", "float", "abs", "round", "sum", "min", "max", "tojson", "tojson(indent=1)", f"default({e()})", f"default({e()}, true)", f"replace({e()}, {e()})",
                         "map('string')|list", f"map('default', {e()})|list", f"map(attribute={e()})|list", "select|list", "reject|list", self.pick("select('odd')|list", "select('string')|list", f"select({e()})|list"), "selectattr('name')|list", "rejectattr('tags')|list", f"selectattr('age', 'gt', {e()})|list", "items|list", "dictsort", "e", "safe", f"indent({self.pick('2', '0', e())})",
                         f"truncate({self.pick('5', '9')})", "wordcount", f"batch({self.pick('2', e())})|list", f"slice({self.pick('2', e())})|list", self.pick("groupby('age')|list", f"groupby({e()})|list"), f"center({self.pick('8', '3')})", f"format({e()})", f"attr({e()})", f"trim({e()})", "urlencode")

    def test(self, depth):
        e = lambda: self.expr(min(depth - 2, 1))
        return self.pick("defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean", "true", "false", "integer", "float", "odd", "even", "lower", "upper", "callable", f"divisibleby({e()})", f"eq({e()})", f"ne({e()})", f"lt({e()})", f"ge({e()})", f"in({e()})", f"sameas({self.pick('none', 'true')})")

    def method(self, depth):
        e = lambda: self.expr(min(depth - 2, 1))
        return self.pick("upper()", "lower()", "strip()", f"strip({e()})", "lstrip()", "rstrip()", "split()", f"split({e()})", f"split({e()}, {self.pick('1', '0', '-1')})", f"rsplit({e()}, 1)", f"replace({e()}, {e()})", f"startswith({e()})", f"endswith({e()})", f"find({e()})", f"count({e()})", f"join({e()})", "title()", "capitalize()", f"format({e()})", "splitlines()", "isdigit()",
                         f"get({e()})", f"get({e()}, {e()})", "items()|list", "keys()|list", "values()|list", f"index({e()})", "copy()", f"removeprefix({e()})", self.pick("partition(',')", f"partition({e()})"), f"zfill({self.pick('4', e())})", "swapcase()", "isupper()")

    def text(self):
        return self.pick("", "a", " ", "\n", "b\n", "  ", " c ", "\n\n", "\n  ", "é")

    def tag(self, body):
        return "{%" + self.pick("", "", "-", "+") + f" {body} " + self.pick("", "", "-", "+") + "%}"

    def block(self, depth):
        return "".join(self.text() + self.statement(depth) for _ in range(self.r.randrange(1, 4))) + self.text()

    def statement(self, depth):
        e = lambda: self.expr(2)
        kind = self.r.randrange(14) if depth > 0 else self.r.randrange(3)
        if kind < 3:
            return "{{" + self.pick("", "", "-") + f" {e()} " + self.pick("", "", "-") + "}}"
        if kind == 3:
            return self.tag(f"set {self.pick('x', 'y', 's')} = {e()}")
        if kind == 4:
            return self.tag("set ns = namespace(a=1)") + self.tag(f"set ns.{self.pick('a', 'b')} = {e()}")
        if kind < 7:
            out = self.tag(f"if {e()}") + self.block(depth - 1)
            if self.r.random() < 0.3:
                out += self.tag(f"elif {e()}") + self.block(depth - 1)
            if self.r.random() < 0.5:
                out += self.tag("else") + self.block(depth - 1)
            return out + self.tag("endif")
        if kind < 10:
            head = self.pick(f"for x in {self.name()}", f"for x in {e()}", "for x, y in d.items()", "for x in l", f"for x in users if {e()}", "for x in messages")
            jump = self.tag(f"if {e()}") + self.tag(self.pick("break", "continue")) + self.tag("endif") if self.r.random() < 0.2 else ""
            shown = self.pick("", "{{ loop.index }}", "{{ loop.last }}", "{{ x }}", "{{ loop.nextitem }}", "{{ loop.length }}")
            out = self.tag(head) + self.block(depth - 1) + jump + shown
            if self.r.random() < 0.3:
                out += self.tag("else") + self.block(depth - 1)
            return out + self.tag("endfor")
        if kind == 10:
            args = self.pick("", "x", "x, y=1", f"x={self.literal()}")
            call = self.pick("{{ m() }}", f"{{{{ m({e()}) }}}}", f"{{{{ m({e()}, {e()}) }}}}", f"{{{{ m(x={e()}) }}}}")
            return self.tag(f"macro m({args})") + self.block(depth - 1) + self.tag("endmacro") + call
        if kind == 11:
            return self.tag(f"set {self.pick('x', 'y')}") + self.block(depth - 1) + self.tag("endset")
        if kind == 12:
            return self.tag(f"with x = {e()}") + self.block(depth - 1) + self.tag("endwith")
        return self.tag("filter " + self.pick("upper", "trim", "title", "replace('a', 'b')")) + self.block(depth - 1) + self.tag("endfilter")


def random_snippets(count, seed):
    source = Random(seed)
    for i in range(count):
        if i % 5 < 3:
            yield "{{ " + source.expr(3) + " }}"
        else:
            yield source.block(2)
