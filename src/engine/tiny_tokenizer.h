// TinyTokenizer: fifty tokens for the fake model's vocabulary, for tests: single letters, pieces of words,
// parts of UTF-8 characters, and an end token (49).
#pragma once

#include <memory>
#include <string>

#include "tokenizer/tokenizer.h"

namespace cachalot {

inline constexpr int32_t kTinyEndToken = 49;

// Reads a tokenizer.json that it writes into `folder`.
Result<std::unique_ptr<Tokenizer>> TinyTokenizer(const std::string& folder);

}  // namespace cachalot
