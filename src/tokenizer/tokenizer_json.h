// tokenizer.json as data: the vocabulary and the merges, which make up nearly all of it, in flat arrays; the
// rest as JSON. Building all of it as JSON values would take most of the time a model needs to start.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct TokenizerJson {
  struct Token {
    uint32_t begin = 0;
    uint32_t size = 0;
    int64_t id = 0;
  };
  struct Merge {
    uint32_t begin = 0;
    uint32_t left_size = 0;
    uint32_t right_size = 0;
  };

  std::string arena;
  std::vector<Token> vocab;   // model.vocab: an object of ids, or a list of [text, score] (Unigram)
  std::vector<float> scores;  // of a list
  std::vector<Merge> merges;  // model.merges, given as "a b" or as ["a", "b"]
  bool has_vocab_list = false;
  nlohmann::json rest;        // everything else

  std::string_view Text(const Token& token) const {
    return std::string_view(arena).substr(token.begin, token.size);
  }
  std::string_view Left(const Merge& merge) const {
    return std::string_view(arena).substr(merge.begin, merge.left_size);
  }
  std::string_view Right(const Merge& merge) const {
    return std::string_view(arena).substr(merge.begin + merge.left_size, merge.right_size);
  }
};

// `place` starts every error message.
Result<TokenizerJson> ParseTokenizerJson(std::string_view text, std::string_view place);

}  // namespace cachalot
