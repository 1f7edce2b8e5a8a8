// The pre-tokenizers that GGUF files name by tokenizer.ggml.pre.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace cachalot {

struct GgufPreTokenizer {
  std::string_view names;                    // separated by spaces
  std::span<const std::string_view> splits;  // regular expressions, each match a piece of its own
  bool nfc = false;                          // the original tokenizer normalizes (llama.cpp does not)
  bool ignore_merges = false;                // a piece that is a token is taken whole
  bool add_bos = false;                      // unless the file says otherwise
};

std::span<const GgufPreTokenizer> AllGgufPreTokenizers();
// kUnsupported, naming the known ones, for an unknown name.
Result<const GgufPreTokenizer*> FindGgufPreTokenizer(std::string_view name);

}  // namespace cachalot
