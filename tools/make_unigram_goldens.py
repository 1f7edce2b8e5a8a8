#!/usr/bin/env python3
"""Makes tests/data/tokenizer/unigram.json.xz: Unigram models as tokenizer.json, and what the `tokenizers` package makes of texts.

    pip install tokenizers==0.23.3 sentencepiece==0.2.1 protobuf
    tools/make_unigram_goldens.py tests/data/tokenizer/spm.json.xz OUT.json.xz

The models are those of spm.json.xz (tools/make_spm_goldens.py), in the forms that converters give them: T5's and
XLM-RoBERTa's (a precompiled table of replacements, runs of spaces squeezed), and one with bytes to fall back to.
"""
import base64
import json
import lzma
import sys

import sentencepiece.sentencepiece_model_pb2 as spm
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PINNED = "0.23.3"


def build(proto, byte_fallback, normalizer, prepend_scheme):
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=proto.trainer_spec.unk_id, byte_fallback=byte_fallback))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=prepend_scheme)
    parts = [decoders.Metaspace(replacement="\u2581", prepend_scheme=prepend_scheme)]
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), *parts]) if byte_fallback else parts[0]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def main():
    assert tokenizers.__version__ == PINNED, tokenizers.__version__
    with lzma.open(sys.argv[1], "rt", encoding="utf-8") as file:
        goldens = json.load(file)
    protos = {}
    for name in ("unigram", "nfkc"):
        protos[name] = spm.ModelProto()
        protos[name].ParseFromString(base64.b64decode(goldens["models"][name]["model"]))
    table = protos["nfkc"].normalizer_spec.precompiled_charsmap
    squeeze = normalizers.Replace(Regex(" {2,}"), " ")
    cases = {
        "bytes": build(protos["unigram"], True, None, "always"),
        "xlm": build(protos["nfkc"], False, normalizers.Sequence([normalizers.Precompiled(table), squeeze]), "always"),
        "t5": build(protos["nfkc"], False, normalizers.Sequence(
            [normalizers.Precompiled(table), normalizers.Strip(left=False, right=True), squeeze]), "first"),
    }
    texts = goldens["texts"] + ["  two  spaces   \u3000 wide ", "e\u0301\u0327 a\u0308\u0304\u0301x", "\ufb01\u00bd\u2460\u00a0\u200b\u200dz",
                                "\U0001F468\u200d\U0001F469\u200d\U0001F467 \u0915\u094d\u0937\u093f", "\r\n\t\x07 \ufeff", "\u1100\u1161\u11a8 \uac01",
                                "</s> <s>x</s>"]
    out = {"texts": texts, "cases": {}}
    for name, tokenizer in cases.items():
        form = json.loads(tokenizer.to_str())
        out["cases"][name] = {"tokenizer": form, "ids": [tokenizer.encode(text).ids for text in texts],
                              "decoded": [tokenizer.decode(tokenizer.encode(text).ids) for text in texts]}
    with lzma.open(sys.argv[2], "wt", encoding="utf-8", preset=9) as file:
        json.dump(out, file, ensure_ascii=True)


if __name__ == "__main__":
    main()
