// StopMatcher: finds the first stop string in a text that arrives in pieces.
// The match that ends first wins, of those that end together the longest: so what comes out does not depend
// on where the pieces were cut. Text that may still become part of a match is held back. Invariant: what came
// out is never a part of a match, and of the text nothing is lost but the match and what follows.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

class StopMatcher {
 public:
  // None of them may be empty.
  // with_match: what comes out ends behind the match, not before it.
  explicit StopMatcher(std::vector<std::string> stop_strings, bool with_match = false);

  // Appends to `out` what is now decided. True: a stop string is complete, and `out` ends there.
  bool Push(std::string_view text, std::string* out);
  // The text ends here: what was held back is no match.
  void Finish(std::string* out);

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // [i]: the longest proper prefix of text[0, i] that is also a suffix of it
    size_t matched = 0;            // the longest prefix of `text` with which the text so far ends
  };

  std::vector<Pattern> patterns_;
  bool with_match_ = false;
  std::string held_;  // as long as the longest `matched`
};

}  // namespace cachalot
