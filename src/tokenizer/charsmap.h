// A SentencePiece file's table of replacements ("nmt_nfkc" and the like): a double array of 32-bit units
// whose leaves are offsets into a list of texts, each ended by a zero byte. Invariant: whatever the bytes
// are, no look-up reads beyond them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace cachalot {

class Charsmap {
 public:
  // The bytes of NormalizerSpec.precompiled_charsmap: the array's size in bytes (32 bits), the array, the
  // texts.
  static Result<Charsmap> Parse(std::string_view bytes);

  // The same bytes again.
  std::string Bytes() const;

  struct Match {
    size_t size = 0;  // bytes of the text; 0: no match
    std::string_view replacement;
  };
  // The longest beginning of `text` that the table has.
  Match Longest(std::string_view text) const { return Find(text, /*shortest=*/false); }
  Match Shortest(std::string_view text) const { return Find(text, /*shortest=*/true); }

 private:
  Match Find(std::string_view text, bool shortest) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace cachalot
