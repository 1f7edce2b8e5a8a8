#include "engine/bad_words.h"

#include <algorithm>

namespace cachalot {
namespace {

bool EndsWith(std::span<const int32_t> tokens, std::span<const int32_t> end) {
  return tokens.size() >= end.size() && std::equal(end.begin(), end.end(), tokens.end() - static_cast<int64_t>(end.size()));
}

}  // namespace

bool BadWords::Completed(std::span<const int32_t> answer) const {
  return std::any_of(words_.begin(), words_.end(), [&](const auto& word) { return EndsWith(answer, word); });
}

std::vector<int32_t> BadWords::Banned(std::span<const int32_t> answer) const {
  std::vector<int32_t> banned;
  for (const auto& word : words_) {
    if (EndsWith(answer, std::span(word).first(word.size() - 1))) banned.push_back(word.back());
  }
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  return banned;
}

}  // namespace cachalot
