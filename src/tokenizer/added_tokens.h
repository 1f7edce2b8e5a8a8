// AddedTokens: finds the texts of added tokens (control tokens, markers, user-defined letters) in a text,
// before anything else is done to it. The leftmost match counts, and of those the longest. Invariant:
// immutable after set-up; a control token is never matched where it overlaps what a user wrote.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/normalizer.h"

namespace cachalot {

struct AddedToken {
  int32_t id = -1;
  std::string text;
  bool special = false;      // hidden from a user's output
  bool control = false;      // never made from a user's text
  bool in_model = false;     // also of the model's own vocabulary: merges may give it
  bool normalized = false;   // matched in the normalized text
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool single_word = false;  // not inside a word
};

// Byte ranges of a text, made disjoint and ascending.
class UserRanges {
 public:
  UserRanges() = default;
  explicit UserRanges(std::span<const std::pair<int64_t, int64_t>> ranges);
  bool Overlap(int64_t begin, int64_t end) const;
  bool empty() const { return ranges_.empty(); }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;
};

struct AddedTokenMatch {
  int32_t id = -1;
  size_t begin = 0;
  size_t end = 0;
};

class AddedTokens {
 public:
  // A place in a text costs as many steps as the longest token has bytes.
  static constexpr size_t kMaxTokenBytes = 512;

  // kUnsupported for a text that is too long. An empty text is left out; of equal texts the first counts.
  Status Add(AddedToken token);
  bool empty() const { return tokens_.empty(); }

  // All matches, in the order of the text. Control tokens only with `parse_special`, and never over `user`,
  // which speaks of the original text: there this text begins at `base`, and its bytes come from base +
  // origin.
  std::vector<AddedTokenMatch> FindAll(std::string_view text, bool parse_special, const UserRanges& user,
                                       const TextOrigin& origin, int64_t base) const;

 private:
  struct Node {
    uint8_t byte = 0;
    int32_t token = -1;  // into tokens_
    int32_t first_child = -1;
    int32_t next_sibling = -1;
  };

  int32_t Child(int32_t node, uint8_t byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;                     // a trie over bytes
  std::array<int32_t, 256> roots_ = NoRoots();  // by the first byte

  static std::array<int32_t, 256> NoRoots() {
    std::array<int32_t, 256> roots;
    roots.fill(-1);
    return roots;
  }
};

}  // namespace cachalot
