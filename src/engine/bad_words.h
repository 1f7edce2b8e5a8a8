// BadWords: token sequences that an answer must not contain. What has been drawn is looked at by the host; a token that
// completes one is taken back, and its place is drawn anew without any that would complete one there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cachalot {

class BadWords {
 public:
  BadWords() = default;
  // Of at least two tokens each: single ones are kept from being drawn at all.
  explicit BadWords(std::vector<std::vector<int32_t>> words) : words_(std::move(words)) {}

  bool empty() const { return words_.empty(); }
  // Whether the answer's last token completes one.
  bool Completed(std::span<const int32_t> answer) const;
  // The tokens that would complete one behind the answer, each once, ascending.
  std::vector<int32_t> Banned(std::span<const int32_t> answer) const;

 private:
  std::vector<std::vector<int32_t>> words_;
};

}  // namespace cachalot
