#!/usr/bin/env python3
"""Writes src/tokenizer/chat/jinja/unicode_tables.cc: what Python's str methods know about code points.

Run it again only to move to another Unicode version:
  tools/make_unicode_tables.py > src/tokenizer/chat/jinja/unicode_tables.cc
"""
import sys
import unicodedata

ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def ranges(predicate):
    out = []
    for c in ALL:
        if predicate(chr(c)):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    return out


def runs(mapping):
    """[first, last, stride, delta] for c -> c + delta."""
    out = []
    for c in sorted(mapping):
        delta = mapping[c] - c
        if out:
            first, last, stride, d = out[-1]
            step = c - last
            if d == delta and step in (1, 2) and (first == last or step == stride):
                out[-1] = [first, c, step, d]
                continue
        out.append([c, c, 1, delta])
    return out


def wrap(items, width=116):
    line, lines = "   ", []
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    lines.append(line)
    return "\n".join(lines)


def emit_ranges(name, predicate):
    print(f"const CodeRange k{name}[] = {{")
    print(wrap("{%#x,%#x}" % tuple(r) for r in ranges(predicate)))
    print("};")
    print(f"const int kNum{name} = sizeof(k{name}) / sizeof(k{name}[0]);\n")


def emit_case(name, simple, full):
    single = {c: ord(full(chr(c))) for c in ALL if len(full(chr(c))) == 1 and full(chr(c)) != simple(chr(c))}
    multi = {c: full(chr(c)) for c in ALL if len(full(chr(c))) > 1}
    print(f"const CaseRun k{name}Runs[] = {{")
    print(wrap("{%#x,%#x,%d,%d}" % tuple(r) for r in runs(single)))
    print("};")
    print(f"const int kNum{name}Runs = sizeof(k{name}Runs) / sizeof(k{name}Runs[0]);\n")
    print(f"const CaseSpecial k{name}Specials[] = {{")
    print(wrap("{%#x,{%s}}" % (c, ",".join("%#x" % ord(x) for x in s)) for c, s in multi.items()))
    print("};")
    print(f"const int kNum{name}Specials = sizeof(k{name}Specials) / sizeof(k{name}Specials[0]);\n")


def case_ignorable(c):
    return ("a" + c + "\u03a3").lower()[-1] == "\u03c2" and ("1" + c + "\u03a3").lower()[-1] != "\u03c2"


print("// Made by tools/make_unicode_tables.py from Python %d.%d (Unicode %s): do not edit." %
      (*sys.version_info[:2], unicodedata.unidata_version))
print('#include "tokenizer/chat/jinja/unicode_tables.h"\n')
print("namespace cachalot::jinja {\n")
print("// clang-format off")
emit_ranges("Alpha", str.isalpha)
emit_ranges("Decimal", str.isdecimal)
emit_ranges("Digit", lambda c: c.isdigit() and not c.isdecimal())
emit_ranges("Numeric", lambda c: c.isnumeric() and not c.isdigit())
emit_ranges("NotPrintable", lambda c: not c.isprintable())
emit_ranges("Lowercase", str.islower)
emit_ranges("Uppercase", str.isupper)
emit_ranges("CaseIgnorable", case_ignorable)
same = lambda c: c
emit_case("Upper", same, str.upper)
emit_case("Lower", same, str.lower)
emit_case("Title", str.upper, lambda c: c.title())  # only where it is not the upper case
emit_case("Fold", str.lower, str.casefold)          # only where it is not the lower case
print("// clang-format on")
print("\n}  // namespace cachalot::jinja")
