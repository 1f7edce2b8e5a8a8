// Tokenizer: text to token ids and back, from a GGUF file or a Hugging Face folder. Byte-level BPE and BPE
// with byte fallback; what a file declares beyond that is a kUnsupported error naming it. Invariant:
// immutable after loading, so every const method may be called from any number of threads. Text need not be
// valid UTF-8: its bytes are encoded as they are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace cachalot {

class GgufFile;
class TokenizerImpl;

struct EncodeOptions {
  // BOS/EOS as the model's settings say.
  bool add_special = true;
  // The text of control tokens becomes those tokens. False: it is encoded like any other text.
  bool parse_special = true;
  // Sorted or not, byte ranges [begin, end) of the text that came from a user: no control token is matched
  // that overlaps one of them. Added tokens that are plain text (a letter, a run of spaces) are matched
  // everywhere.
  std::span<const std::pair<int64_t, int64_t>> user_ranges = {};
};

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  // tokenizer.json, with tokenizer_config.json, generation_config.json, config.json and chat_template.jinja
  // where present.
  static Result<std::unique_ptr<Tokenizer>> FromFolder(const std::string& folder);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Valid UTF-8, equal to the concatenated output of a StreamDecoder. Ids outside the vocabulary give
  // nothing.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = true) const;

  // The bytes of one token as they appear in text (special tokens: their text); "" outside the vocabulary.
  std::string_view TokenBytes(int32_t id) const;
  // Hidden from a user's output: control tokens and everything that ends a generation.
  bool IsSpecial(int32_t id) const;
  // Steers the model, so text of a user never becomes it: special tokens, and markers such as <｜User｜> or
  // <tool_call> that a vocabulary calls ordinary.
  bool IsControl(int32_t id) const;

  int32_t vocab_size() const;
  // -1: none.
  int32_t bos_id() const;
  int32_t eos_id() const;
  int32_t pad_id() const;
  // All ids that end a generation, ascending: EOS, those of generation_config.json, and the well-known end
  // texts.
  std::span<const int32_t> stop_ids() const;
  bool add_bos() const;
  // By the exact text in the vocabulary ("Ġthe" for a byte-level one).
  std::optional<int32_t> FindToken(std::string_view text) const;

  // The model's (default) template, "" if none.
  const std::string& chat_template() const;
  // Further templates by name ("tool_use", "rag", …).
  const std::map<std::string, std::string>& named_chat_templates() const;
  // "" if none.
  const std::string& bos_text() const;
  const std::string& eos_text() const;
  // "gpt2/qwen2", "tokenizer.json/BPE": for inspect.
  const std::string& description() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<TokenizerImpl> impl);
  std::unique_ptr<TokenizerImpl> impl_;
};

// Streaming detokenizer: text comes out as soon as it is complete and never splits a UTF-8 character. Invalid
// bytes become U+FFFD exactly as Python's bytes.decode("utf-8", errors="replace") would have it. The
// tokenizer must outlive it.
class StreamDecoder {
 public:
  // shown_ids: special tokens that are not skipped.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true,
                         std::vector<int32_t> shown_ids = {});

  // Text that is now complete; an incomplete character is held back.
  std::string Push(int32_t id);
  // What was held back; afterwards the decoder starts anew.
  std::string Finish();
  // A character has begun.
  bool pending() const { return !pending_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<int32_t> shown_ids_;  // a few
  bool at_start_ = true;
  std::string pending_;  // at most three bytes: the beginning of a character
};

}  // namespace cachalot
