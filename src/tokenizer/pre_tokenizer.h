// PreTokenizer: cuts a text into the pieces that byte pair encoding works on, by a list of splits. Each split
// is applied to every piece the ones before it left, whether an earlier split matched it or not, and sees
// nothing beyond that piece. Invariant: immutable after set-up; pieces come in the order of the text and do
// not overlap.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/split_regex.h"

namespace cachalot {

// What becomes of a match: a piece of its own, nothing, or a part of the text before, after, or of adjoining
// matches.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct TextPiece {
  size_t begin = 0;
  size_t end = 0;
};

class PreTokenizer {
 public:
  static constexpr int kMaxSplits = 32;

  Status AddRegex(std::string_view pattern, SplitBehavior behavior, bool invert = false);
  Status AddLiteral(std::string_view text, SplitBehavior behavior, bool invert = false);

  // A text that does not begin with `prefix` gets it, after spaces were replaced. At the start of the whole
  // text only, or of each stretch between added tokens. kUnsupported once there are splits: it would have to
  // be done to each piece.
  Status SetPrefix(std::string prefix, bool whole_text_only);
  // Every space becomes this text. kUnsupported once there are splits or a prefix.
  Status SetSpace(std::string replacement);

  bool has_prefix() const { return !prefix_.empty(); }
  // The text with prefix and replaced spaces, in *storage if anything changes.
  std::string_view Prepare(std::string_view text, bool at_start, std::string* storage) const;

  // The text must be valid UTF-8. Empty pieces are left out.
  Status Split(std::string_view text, RegexScratch* scratch, std::vector<TextPiece>* pieces) const;

 private:
  struct Step {
    std::unique_ptr<SplitRegex> regex;  // null: literal
    std::string literal;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };
  struct Span {
    size_t begin = 0;
    size_t end = 0;
    bool match = false;
  };

  Status Add(Step step);
  static Status FindSpans(const Step& step, std::string_view text, RegexScratch* scratch,
                          std::vector<Span>* spans);
  static void Merge(SplitBehavior behavior, std::vector<Span>* spans);

  std::vector<Step> steps_;
  std::string prefix_;
  bool prefix_whole_text_only_ = false;
  std::string space_;  // empty: spaces stay
};

}  // namespace cachalot
