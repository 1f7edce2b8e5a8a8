#!/usr/bin/env python3
"""Makes tests/data/tokenizer/spm.json.xz: small SentencePiece models and what the `sentencepiece` package makes of texts.

    pip install sentencepiece==0.2.3
    make_spm_goldens.py CORPUS.json.xz TEXT.txt.xz OUT.json.xz

CORPUS holds the nasty texts (make_tokenizer_goldens.py), TEXT what the models are trained on. For each model: its file
(base64), and for each text its ids and their text. Texts with characters that have no UTF-8 form are left out.
"""
import base64
import io
import json
import lzma
import sys

import sentencepiece

COMMON = dict(vocab_size=700, hard_vocab_limit=False, num_threads=1, max_sentence_length=100000,
              character_coverage=0.9995, allow_whitespace_only_pieces=True, split_digits=True)
BPE = dict(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False)
MODELS = {
    "bytes": dict(BPE, byte_fallback=True),
    "unk": dict(BPE, byte_fallback=False, add_dummy_prefix=False),
    "user": dict(BPE, byte_fallback=True, user_defined_symbols=["<sep>", "ing", "\u2581\u2581\u2581"]),
    "unigram": dict(model_type="unigram", byte_fallback=True, normalization_rule_name="identity",
                    remove_extra_whitespaces=False),
    "nfkc": dict(model_type="unigram", normalization_rule_name="nmt_nfkc"),
}


def main():
    with lzma.open(sys.argv[1], "rt", encoding="utf-8") as file:
        texts = json.load(file)
    with lzma.open(sys.argv[2], "rt", encoding="utf-8") as file:
        lines = [line for line in file.read().split("\n") if line][:1500]
    lines += ["grüße aus köln", "les élèves étaient là", "добрый вечер", "こんにちは世界", "emoji 🙂🙃"] * 3

    def keep(text):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return False
        return "\0" not in text and len(text) <= 2000

    texts = [text for text in texts if keep(text)]
    out = {"texts": texts, "models": {}}
    for name, options in MODELS.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **COMMON, **options)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        ids = [processor.encode(text) for text in texts]
        out["models"][name] = {"model": base64.b64encode(model.getvalue()).decode(), "ids": ids,
                               "decoded": [processor.decode(i) for i in ids]}
    with lzma.open(sys.argv[3], "wt", encoding="utf-8", preset=9) as file:
        json.dump(out, file, ensure_ascii=True)


if __name__ == "__main__":
    main()
