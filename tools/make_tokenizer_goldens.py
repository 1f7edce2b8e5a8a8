#!/usr/bin/env python3
"""Makes tests/data/tokenizer: a corpus of nasty texts and what the `tokenizers` package makes of them.

The package is the definition of correct, so its version is pinned:
  pip install tokenizers==0.23.3
  tools/make_tokenizer_goldens.py --vocabs DIR --smollm2 FILE.gguf --tiny-v3 tokenizer.json

DIR holds real vocabularies: deepseek_v3, qwen3, llama3 (tokenizer.json.xz each) and gguf/*.gguf. Written are
  corpus.json.xz          the texts
  splits.json.xz          per pre-tokenizer: its declaration and where it cuts each text (ends of pieces, in characters)
  vocab_NAME.json.xz      slimmed vocabularies as tokenizer.json
  golden_NAME.json.xz     per vocabulary, slim or full: ids of each text, random ids with their text
  cases.json.xz           small tokenizers for every feature of tokenizer.json that is supported, with texts and ids
  unicode.json.xz         bytes as Python decodes them, texts in the four normal forms
"""

import argparse
import json
import lzma
import pathlib
import random
import struct
import unicodedata

import tokenizers

PINNED = "0.23.3"
OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/tokenizer"
SLIM_TOKENS = 5000

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
CASED = (
    "A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*members):
    return {"type": "Sequence", "pretokenizers": list(members)}


DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS = {
    "gpt-2": byte_level(True),
    "smollm": sequence(DIGITS, byte_level(True)),
    "deepseek-llm": sequence(split("[\r\n]"), split(f"\\s?[{CASED}]+"), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
                             split(r"\s+$"), split(CJK), split(r"\p{N}+"), byte_level(False)),
    "deepseek-coder": sequence(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK), DIGITS,
                               byte_level(False)),
}

# ---------------------------------------------------------------------------------------------------------------- corpus

WORDS = ["the", "The", "THE", " and", "don't", "I'LL", "we've", "café", "cafe\u0301", "Zürich", "Zu\u0308rich", "naïve", "ß",
         "ẞ", "Ångström", "A\u030angstrom", "œuvre", "Ærø", "øre", "þú", "ö", "Ü", "ÿ", "Àé", "Ǆ", "ﬁ", "Кот", "кошка", "Ёж",
         "Е\u0308ж", "Ελλάδα", "ά", "α\u0301", "հայ", "ქართული", "עברית", "שָׁלוֹם", "العربية", "مُحَمَّد", "हिन्दी", "தமிழ்",
         "ไทย", "ພາສາ", "中文", "汉字", "漢字かな", "カタカナ", "が", "か\u3099", "ﾊﾝｶｸ", "한국어", "\u1112\u1161\u11ab", "㐀",
         "\U00020000", "Ａｂｃ", "１２３", "Ⅻ", "½", "²", "٣٤", "१२", "𝟘𝟙", "x²", "H₂O", "№", "™"]
SYMBOLS = ["!", "?", "...", "…", "—", "–", "“q”", "‘s", "«»", "„", "¿", "、", "。", "，", "！", "～", "$", "€", "₿", "+", "==", "=>",
           "->", "::", "//", "/*", "*/", "#", "@", "&&", "||", "^", "~", "`", "```", "<", ">", "</", "{", "}", "[]", "()", "\\",
           "\\n", "%d", "§", "°", "©", "→", "∑", "≠", "\u2260", "=\u0338", "😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "1️⃣", "❤️", "☺", "🧑‍🚀"]
SPACES = [" ", "  ", "   ", "        ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", " \n", "\n ", "\t ", "\u00a0", "\u3000",
          "\u2003", "\u200b", "\u2028", "\u2029", "\u0085", "\u180e", "\ufeff", "\u202f", "\u1680", "\u205f", "\u2060", "\u00ad"]
NUMBERS = ["0", "7", "42", "123", "1234", "12345", "1234567890", "3.14159", "1,000,000", "1e-5", "0xFF", "2024-01-31", "v1.2.3",
           "٣", "५", "１", "²³"]
CONTROLS = ["\0", "\x01", "\x07", "\x08", "\x1a", "\x1b[0m", "\x7f", "\x80", "\x9f", "\ufffd", "\ufffe", "\uffff", "\ue000",
            "\U000e0001", "\U0010ffff", "\u0378", "\u0301", "\u0300\u0301\u0327", "\u200d", "\ufe0f"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_start|>user\nhi<|im_end|>\n", "<|begin_of_text|>", "<|eot_id|>",
            "<|start_header_id|>user<|end_header_id|>\n\n", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
            "<｜Assistant｜>", "<|EOT|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
            "<｜fim▁hole｜>", "<|", "|>", "<｜", "｜>", "<|im_start", "<|im_end|", "<｜User|>", "< |im_end|>"]

FIXED = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", " \n", "\n ", " \n \n ", "a", " a", "  a", "   a", "a ", "a  ", "a\n", "\na",
    " \t\n\r", "a \n b", "a  \n  b", "a\n\n\nb", "a\r\nb\r\n", "\r\n\r\n", "a \t b", "x\u00a0y", "x\u00a0\u00a0y", "x\u3000y",
    "x\u180ey", "x \u180e y", "a\u180e\u180e b", "\u180e ", " \u180e", "x\u0085y", "x\u2028y", "x\u200by", "\ufeffx",
    "'s 't 're 've 'm 'll 'd", "'S 'T 'RE 'VE 'M 'LL 'D", "it's It'S don'T we'Re", "'ſ 'ſs it'ſ", "''s '''ll", "a's's", "'", "''", "n't",
    "’s I’m", "0123456789", "1 22 333 4444 55555 666666", "1234567890123456789012", "a1b2c3", "3.14 1,234 1e10", "１２３４５", "٠١٢٣٤٥",
    "½⅓²³¹", "ⅣⅤⅥ", "①②③", "一二三1四五", "4x4", "  12", "\n12\n", "Hello, world!", "Hello world", " Hello world ", "HELLO", "hElLo",
    "The quick brown fox jumps over the lazy dog.", "The café in Zürich — naïve façade.", "über Öl, Ärger, Straße", "ü", "ö", "ø", "þ",
    "ÿ õ ÷ û ý À ù Á þ ü ø ö ú", "Müller", "Mu\u0308ller", "Köln Ko\u0308ln", "élan e\u0301lan", "crème brûlée", "São Paulo, mañana",
    "Ça va?", "ñ n\u0303", "Å A\u030a \u212b", "Ω \u2126", "K \u212a", "ǆ Ǆ ǅ", "ﬀﬁﬂ", "ﷺ", "e\u0301\u0327", "e\u0327\u0301", "\u0344",
    "\u0340\u0341", "q\u0307\u0323", "q\u0323\u0307", "\u1e9b\u0323", "\u0958", "\u2adc", "\u1112\u1161\u11ab 한", "가\u11a8",
    "a\u0315\u0300\u05ae\u0062", "\u0301", " \u0301", "\n\u0301", "が か\u3099 は\u309a", "神\ufa19", "\ufa0e豈", "Tiếng Việt", "Tie\u0302\u0301ng Vie\u0323\u0302t",
    "中文分词很难", "汉字 漢字 かな カナ", "日本語、テスト。", "ﾃｽﾄ", "한국어 테스트", "中文English混合text", "数字123混合", "「引用」『二重』", "你好，世界！", "〇〻々",
    "\U00020000\U0002a6d6", "Русский текст", "ЁЖИК Ёжик", "Ελληνικά κείμενο", "Ἀρχιμήδης", "հայերեն", "ქართული ᲥᲐᲠᲗᲣᲚᲘ", "Ꭰꭰ ꮿ", "עִבְרִית", "عَرَبِيّ ١٢٣",
    "हिन्दी १२३", "ไทยไม่มีช่องว่าง", "မြန်မာ", "ខ្មែរ", "አማርኛ", "ᚠᚢᚦ", "𐐀𐐨", "𞤀𞤢", "𝒳𝓎 𝟙𝟚", "😀", "😀😃😄", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣2️⃣", "❤️❤",
    "a😀b", " 😀 ", "☺️ ok", "🧑🏿‍🚀!", "!!!", "...", "…", "!?!?", " !", "! ", "!a", "!A!", "a!b", "(a)", "[1]", "{\"k\": 1}", "<div class=\"x\">", "</p>",
    "$100", "€5", "50%", "a+b=c", "a == b", "x -> y", "x=>y", "C++", "#include <stdio.h>", "@user", "#tag", "a_b_c", "snake_case_name",
    "camelCaseName", "PascalCase", "SCREAMING_CASE", "kebab-case", "path/to/file.txt", "C:\\dir\\f", "https://example.com/a?b=c&d=e#f",
    "user@example.com", "192.168.0.1", "-1 +1 ±1", "a*b**c", "~/.bashrc", "`code`", "```\ncode\n```", "/* c */ // d", "'\"'\"", "\\n\\t\\\\",
    "\u2018q\u2019 \u201cq\u201d", "a—b–c-d", "·•‣", "¿Qué?", "¡Hola!", "§5 ¶", "™®©", "←↑→↓", "∀x∈ℝ: x²≥0", "∫∑∏√∞", "░▒▓", "┌─┐", "\u00ad", "so\u00adft",
    "def f(x):\n    return x ** 2\n\n\nclass A:\n\tpass\n", "int main() {\n\treturn 0;\n}\n", "if (a && b || !c) { d(); }", "for(int i=0;i<10;++i)",
    "SELECT * FROM t WHERE a='x';", "<?php echo $x; ?>", "    indented\n        more\n", "\tif\n\t\telse\n", "a;b;c", "x = [1,2,3]\n", "λ = lambda x: x",
    "\0", "a\0b", "\0\0\0", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f\x80\x9f", "\ufffd", "\uffff", "\ue000\uf8ff", "\U0010ffff", "\u0378\u0379",
    "\u200d", "\u200b\u200c", "\u202eabc", "\u2066a\u2069", "a\u2060b", "Ａｂｃ１２３！", "　全角　", "！＂＃", "ｱｲｳ", "…。、", "‘’‚‛“”„‟", "a‘b‟c",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc",
    " " * 40, " " * 41 + "x", "\n" * 20, "\t" * 20, " \n" * 20, "=" * 50, "-" * 80, "." * 33, "😀" * 20, "中" * 50, "é" * 40, "e\u0301" * 20,
    "1" * 50, "a " * 40, "!" * 40, "supercalifragilisticexpialidocious", "Donaudampfschifffahrtsgesellschaftskapitän", "antidisestablishmentarianism",
]


def corpus():
    rng = random.Random(20240131)
    texts = list(FIXED)
    texts += SPECIALS
    texts += [f"a {s} b{s}{s}c" for s in SPECIALS]
    texts += [w for w in WORDS] + [f" {w}{w} {w.upper()}" for w in WORDS]
    pools = [WORDS, WORDS, SYMBOLS, SPACES, SPACES, NUMBERS, CONTROLS]
    for _ in range(160):
        texts.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(2, 60))))
    for _ in range(40):  # whitespace and what adjoins it
        texts.append("".join(rng.choice(rng.choice([SPACES, SPACES, ["a", "1", "!", "é", "中"]])) for _ in range(24)))
    for _ in range(40):  # specials inside text
        texts.append("".join(rng.choice(rng.choice([SPECIALS, WORDS, SPACES, SYMBOLS])) for _ in range(16)))
    for _ in range(60):  # any characters at all
        chars = []
        while len(chars) < 40:
            c = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000), rng.randrange(0x10000)])
            # Characters of later Unicode versions than all libraries know are left out.
            if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn":
                chars.append(chr(c))
        texts.append("".join(chars))
    seen = set()
    return [t for t in texts if not (t in seen or seen.add(t))]


# --------------------------------------------------------------------------------------------------------- vocabularies


def read_gguf(path):
    """The metadata of a GGUF file."""
    data = pathlib.Path(path).read_bytes()
    pos = 0

    def take(fmt):
        nonlocal pos
        value = struct.unpack_from("<" + fmt, data, pos)
        pos += struct.calcsize("<" + fmt)
        return value[0]

    def value(kind):
        nonlocal pos
        if kind == 8:
            size = take("Q")
            pos += size
            return data[pos - size:pos].decode("utf-8")
        if kind == 9:
            kind, count = take("I"), take("Q")
            return [value(kind) for _ in range(count)]
        return take("BbHhIif?"[kind] if kind < 8 else {10: "Q", 11: "q", 12: "d"}[kind])

    assert data[:4] == b"GGUF"
    pos = 4
    take("I"), take("Q")
    count = take("Q")
    result = {}
    for _ in range(count):
        key = value(8)
        result[key] = value(take("I"))
    return result


def from_gguf(path, pre_tokenizer):
    meta = read_gguf(path)
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": types[i] == 3} for i, t in enumerate(tokens) if types[i] in (3, 4)]
    # The package numbers added tokens from the end of the vocabulary: those in front must be part of it.
    end = max(i for i, kind in enumerate(types) if kind == 1) + 1
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": byte_level(False),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {t: i for i, t in enumerate(tokens) if i < end},
                  "merges": meta["tokenizer.ggml.merges"]},
    }


def slim(tokenizer):
    """The first tokens only, without gaps between the ids; added tokens stay."""
    model = tokenizer["model"]
    by_id = sorted(model["vocab"].items(), key=lambda item: item[1])
    added = {t["content"] for t in tokenizer["added_tokens"]}
    kept = [text for i, (text, _) in enumerate(by_id) if i < SLIM_TOKENS or text in added or len(text) == 1]
    # Of 800 place holders a few are enough.
    extra = [t for t in tokenizer["added_tokens"] if "place▁holder" not in t["content"] and "reserved_special" not in t["content"]]
    kept = [t for t in kept if t not in added or any(t == e["content"] for e in extra)]
    vocab = {text: i for i, text in enumerate(kept)}
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    merges = [m for m in merges if m[0] in vocab and m[1] in vocab and m[0] + m[1] in vocab]
    if isinstance(model["merges"][0], str):
        merges = [" ".join(m) for m in merges]
    next_id = len(vocab)
    new_added = []
    for token in extra:
        token = dict(token)
        if token["content"] in vocab:
            token["id"] = vocab[token["content"]]
        else:
            token["id"], next_id = next_id, next_id + 1
        new_added.append(token)
    return {**tokenizer, "added_tokens": new_added, "model": {**model, "vocab": vocab, "merges": merges}}


# --------------------------------------------------------------------------------------------------------------- goldens


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    data = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (OUT / name).write_bytes(data)
    print(f"{name}: {len(text)} characters, {len(data)} bytes")


def golden(definition, texts, check_decode=True):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    rng = random.Random(7)
    size = tokenizer.get_vocab_size()
    decodes = []
    for _ in range(100 if check_decode else 0):
        random_ids = [rng.randrange(size if rng.random() < 0.3 else min(size, 400)) for _ in range(12)]
        decodes.append([random_ids, tokenizer.decode(random_ids, skip_special_tokens=True)])
    return {"ids": ids, "decodes": decodes}


# ------------------------------------------------------------------------------------------------------------- features


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(other)}}


def small(symbols, merges, added=(), **parts):
    """A tokenizer.json with these symbols and merges, and what is given besides."""
    vocab = {text: i for i, text in enumerate(symbols)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    for text in parts.pop("unreachable", ()):
        vocab.setdefault(text, len(vocab))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokens = [{"id": vocab.get(t["content"], len(vocab) + i), **flags, **t} for i, t in enumerate(added)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, **parts.pop("model", {}),
             "vocab": vocab, "merges": [list(m) for m in merges]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, **parts, "model": model}


def template(prefix, suffix):
    """TemplateProcessing with these (text, id) around a text."""
    def special(text):
        return {"SpecialToken": {"id": text, "type_id": 0}}
    body = [*(special(t) for t, _ in prefix), {"Sequence": {"id": "A", "type_id": 0}}, *(special(t) for t, _ in suffix)]
    return {"type": "TemplateProcessing", "single": body, "pair": [*body, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in (*prefix, *suffix)}}


def cases():
    """(name, tokenizer.json, alphabet of its random texts)"""
    byte_symbols = [byte_alphabet()[b] for b in range(256)]
    merges = [("a", "b"), ("ab", "c"), ("Ġ", "a"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("a", "a"), ("aa", "aa"), ("b", "c"), ("Ġa", "b"),
              ("Ã", "©"), ("e", "Ã©"), ("1", "2"), ("12", "3")]
    plain = {"pre_tokenizer": byte_level(True), "decoder": byte_level(False)}
    letters = ["a", "b", "c", "ab", "abc", " ", "  ", "    ", "\n", "é", "e\u0301", "1", "123", ".", "!", "_"]

    flags = [{"content": "<L>", "lstrip": True, "special": True}, {"content": "<R>", "rstrip": True, "special": True},
             {"content": "<LR>", "lstrip": True, "rstrip": True}, {"content": "<N>", "normalized": True},
             {"content": "word", "single_word": True}, {"content": "wo", "single_word": True, "normalized": True},
             {"content": "caf"}, {"content": "café", "normalized": True}, {"content": "e\u0301x"}, {"content": "<a>"},
             {"content": "<a>b"}, {"content": "<a>bc<"}]
    flag_letters = [f["content"] for f in flags] + letters + ["w", "<", ">", "\u00a0", "\u2003", "x", "cafe\u0301", "ñ"]
    yield "added", small(byte_symbols, merges, flags, **plain), flag_letters
    # (Not beside rstrip: the package then finds a token of spaces once more in the spaces that the token before it took.)
    yield "added_spaces", small(byte_symbols, merges, [{"content": " " * n} for n in (2, 3, 5, 8)], **plain), [*letters, " " * 7]
    yield "added_nfc", small(byte_symbols, merges, flags, normalizer={"type": "NFC"}, **plain), flag_letters
    yield "nfkc", small(byte_symbols, merges, flags, **plain, normalizer={
        "type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Replace", "pattern": {"String": "b"}, "content": "aa"}],
    }), [*flag_letters, "ﬁ", "①", "Ａ", "\u00a0", "ｶ\uff9e", "가", "\u1112\u1161"]
    yield "prefix_space", small(byte_symbols, merges, [{"content": "<s>", "special": True}, {"content": "</s>", "special": True}],
                                pre_tokenizer={**byte_level(True), "add_prefix_space": True}, decoder=byte_level(False),
                                post_processor=template([("<s>", 267)], [("</s>", 268)])), [*letters, "<s>", "</s>"]
    yield "ignore_merges", small(byte_symbols, merges, unreachable=["abca", "Ġcab", "cc", "aaaaa"], model={"ignore_merges": True},
                                 **plain), [*letters, "abca", " cab", "cc", "aaaaa"]
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            for name, pattern in (("string", {"String": "b"}), ("regex", {"Regex": "b+|1"}), ("empty", {"Regex": "b*|(?=1)"})):
                rule = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
                yield (f"{behavior}_{invert}_{name}", small(byte_symbols, merges, pre_tokenizer=sequence(rule, byte_level(False)),
                                                            decoder=byte_level(False)), letters)
        rule = {"type": "Punctuation", "behavior": behavior}
        yield (f"punctuation_{behavior}", small(byte_symbols, merges, decoder=byte_level(False), pre_tokenizer=sequence(
            rule, {"type": "Digits", "individual_digits": False}, byte_level(True))), [*letters, "“", "、", "$", "+", "٣", "½"])

    # As Llama 2 and Mistral have it.
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "c", "é", "中", "1", "2"]
    special = [{"content": t, "special": True} for t in ("<unk>", "<s>", "</s>")]
    spaces = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "▁"), ("▁▁", "▁▁"), ("1", "2"), ("b", "c"), ("é", "a"), ("▁", "▁a")]
    fallback = {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    meta_letters = [*letters, "中", "文", "😀", "<s>", "</s>", "▁", "\0", "2"]
    yield "llama2", small(pieces, spaces, special, model=fallback, post_processor=template([("<s>", 1)], []), normalizer={
        "type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
                          decoder={"type": "Sequence", "decoders": decoders}), meta_letters
    for scheme in ("first", "always", "never"):
        for split_it in (False, True):
            meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split_it}
            yield (f"metaspace_{scheme}_{split_it}", small(pieces, spaces, special, model=fallback, pre_tokenizer=meta, decoder={
                "type": "Sequence", "decoders": decoders[:3 if scheme == "never" else 4]}), meta_letters)
    for fuse in (False, True):
        for unk in (None, "<unk>"):
            yield (f"unk_{fuse}_{unk}", small(["<unk>", "a", "b", "c", " "], [("a", "b"), ("b", "c")], decoder=byte_level(False),
                                              model={"unk_token": unk, "fuse_unk": fuse}), letters)


def feature_cases():
    rng = random.Random(11)
    result = []
    for name, definition, alphabet in cases():
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
        texts = ["", *alphabet] + ["".join(rng.choices(alphabet, k=rng.randint(2, 30))) for _ in range(40)]
        entry = {"name": name, "tokenizer": definition, "texts": texts,
                 "ids": [tokenizer.encode(t, add_special_tokens=True).ids for t in texts]}
        entry["decoded"] = [tokenizer.decode(ids, skip_special_tokens=True) for ids in entry["ids"]]
        tokenizer.encode_special_tokens = True
        entry["ids_special_as_text"] = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        result.append(entry)
    return result


def unicode_cases():
    rng = random.Random(5)
    leads = [*range(0x20, 0x7F), *range(0x80, 0x100), *[0xC3, 0xE2, 0xE0, 0xED, 0xF0, 0xF4] * 20]
    decoded = []
    for _ in range(600):
        data = bytes(rng.choice(leads) if rng.random() < 0.5 else rng.choice([0x80, 0x90, 0x9F, 0xA0, 0xBF, 0x41])
                     for _ in range(rng.randint(1, 12)))
        decoded.append([data.hex(), data.decode("utf-8", errors="replace")])
    marks = ["\u0301", "\u0308", "\u0323", "\u0327", "\u0338", "\u0345", "\u0315", "\u3099", "\u05ae", "\u0653", "\u0344"]
    bases = [*"aeoA=<Zq", "é", "ǭ", "가", "각", "\u1100", "\u1161", "\u11a8", "か", "カ", "ﬁ", "①", "\u212b", "\u2126", "\u0958",
             "\ufb2c", "\uf900", "中", "𝐀", " ", "\u1e9b", "ｶ", "ﾞ", "\U0001d15e", "\u0f43", "\u2adc", "ا"]
    forms = {f: getattr(tokenizers.normalizers, f)() for f in ("NFC", "NFD", "NFKC", "NFKD")}
    texts = ["".join(rng.choice(rng.choice([marks, bases])) for _ in range(rng.randint(1, 12))) for _ in range(600)]
    return {"decoded": decoded, "texts": texts, "forms": {f: [n.normalize_str(t) for t in texts] for f, n in forms.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabs", type=pathlib.Path, required=True)
    parser.add_argument("--smollm2", type=pathlib.Path, required=True)
    parser.add_argument("--tiny-v3", type=pathlib.Path, required=True)
    args = parser.parse_args()
    assert tokenizers.__version__ == PINNED, tokenizers.__version__
    OUT.mkdir(parents=True, exist_ok=True)

    definitions = {name: json.loads(lzma.open(args.vocabs / name / "tokenizer.json.xz").read())
                   for name in ("deepseek_v3", "qwen3", "llama3")}
    for name, pre, path in (("gpt2", "gpt-2", args.vocabs / "gguf/gpt-2.gguf"),
                            ("deepseek_llm", "deepseek-llm", args.vocabs / "gguf/deepseek-llm.gguf"),
                            ("deepseek_coder", "deepseek-coder", args.vocabs / "gguf/deepseek-coder.gguf"),
                            ("smollm2", "smollm", args.smollm2)):
        definitions[name] = from_gguf(path, PRE_TOKENIZERS[pre])
    pre_tokenizers = dict(PRE_TOKENIZERS)
    for pre, name in (("deepseek-v3", "deepseek_v3"), ("qwen2", "qwen3"), ("llama-bpe", "llama3")):
        pre_tokenizers[pre] = definitions[name]["pre_tokenizer"]

    texts = corpus()
    write("corpus.json.xz", texts)
    splits = {}
    for name, declared in pre_tokenizers.items():
        carrier = {**definitions["gpt2"], "pre_tokenizer": declared}
        pre_tokenizer = tokenizers.Tokenizer.from_str(json.dumps(slim(carrier))).pre_tokenizer
        ends = [[end for _, (_, end) in pre_tokenizer.pre_tokenize_str(text)] for text in texts]
        splits[name] = {"pre_tokenizer": declared, "ends": ends}
    write("splits.json.xz", splits)

    write("cases.json.xz", feature_cases())
    write("unicode.json.xz", unicode_cases())

    write("vocab_tiny_v3.json.xz", json.loads(args.tiny_v3.read_text()))
    write("golden_tiny_v3.json.xz", golden(json.loads(args.tiny_v3.read_text()), texts))
    for name, definition in definitions.items():
        # There the package decodes the added letters as the bytes they stand for; we print the letter.
        check_decode = name != "deepseek_llm"
        small = slim(definition)
        write(f"vocab_{name}_slim.json.xz", small)
        write(f"golden_{name}_slim.json.xz", golden(small, texts, check_decode))
        write(f"golden_{name}.json.xz", golden(definition, texts, check_decode))


if __name__ == "__main__":
    main()
