// A vocabulary as data, and generated ones: real special tokens at their real ids, every byte, and made-up
// words joined by merges, in the size of the model that they stand in for. Invariant of a generated one:
// encoding the text of any word gives exactly that word's id.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "formats/gguf_value.h"
#include "weights/dummy/dummy_spec.h"

namespace cachalot {

// GGUF's numbers for tokenizer.ggml.token_type.
enum class TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5 };

// Byte-level BPE ("gpt2").
struct VocabTable {
  std::string pre;                  // tokenizer.ggml.pre
  std::vector<std::string> tokens;  // normal ones in GPT-2's alphabet
  std::vector<int32_t> types;       // TokenType
  std::vector<std::string> merges;  // "left right", by rank
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  int32_t eot_id = -1;
  int32_t pad_id = -1;
  int32_t unk_id = -1;
  bool add_bos = false;
  std::string chat_template;
};

struct VocabIds {
  int32_t bos = -1;
  int32_t eos = -1;
};
// Without making the vocabulary.
VocabIds DummyVocabIds(const DummySpec& spec);

// spec.vocab_size tokens.
VocabTable MakeDummyVocab(const DummySpec& spec);

// Gives ids without a token an unused one, and adds such until there are vocab_size tokens.
void PadVocab(int32_t vocab_size, VocabTable* vocab);

// The tokenizer.* metadata of a GGUF file.
std::vector<GgufEntry> VocabMetadata(const VocabTable& vocab);

// A vocabulary-only GGUF file in memory, for Tokenizer::FromGguf.
Result<std::shared_ptr<const GgufFile>> MakeDummyVocabFile(const DummySpec& spec);

// The byte as GPT-2 spells it: itself when printable, else one of the code points from U+0100 on; UTF-8.
std::string ByteSpelling(uint8_t byte);

}  // namespace cachalot
