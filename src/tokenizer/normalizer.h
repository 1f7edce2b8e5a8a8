// Normalizer: what is done to a text before it is tokenized: Unicode normal forms, literal replacements, a
// prefix. Invariant: bytes that are not valid UTF-8 pass through unchanged; time is O(n log n).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/charsmap.h"

namespace cachalot {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// For each byte of a normalized text, and for its end, the offset of the byte it came from. Empty: each from
// its own.
using TextOrigin = std::vector<int64_t>;

class Normalizer {
 public:
  void AddForm(NormalForm form) { steps_.push_back({Step::kForm, form, "", ""}); }
  void AddReplace(std::string from, std::string to) {
    steps_.push_back({Step::kReplace, NormalForm::kNfc, std::move(from), std::move(to)});
  }
  void AddPrepend(std::string prefix) {
    steps_.push_back({Step::kPrepend, NormalForm::kNfc, "", std::move(prefix)});
  }
  // SentencePiece's table: the longest match at each place is replaced.
  void AddCharsmap(Charsmap map) {
    steps_.push_back(
        {Step::kCharsmap, NormalForm::kNfc, "", "", std::make_shared<const Charsmap>(std::move(map))});
  }
  // The same table as `tokenizers` reads it: each grapheme of fewer than 6 bytes, else each character, becomes what its
  // shortest beginning in the table becomes.
  void AddGraphemeCharsmap(Charsmap map) {
    steps_.push_back(
        {Step::kGraphemeCharsmap, NormalForm::kNfc, "", "", std::make_shared<const Charsmap>(std::move(map))});
  }
  // Two spaces or more become this text.
  void AddSpaceRuns(std::string to) { steps_.push_back({Step::kSpaceRuns, NormalForm::kNfc, "", std::move(to)}); }
  // White space at the ends goes.
  void AddStrip(bool left, bool right) {
    steps_.push_back({Step::kStrip, NormalForm::kNfc, left ? "l" : "", right ? "r" : ""});
  }
  // Runs of spaces become one, those at the ends none.
  void AddSqueeze() { steps_.push_back({Step::kSqueeze, NormalForm::kNfc, "", ""}); }
  bool empty() const { return steps_.empty(); }
  // What GGUF files have a key for.
  bool prepends() const { return Has(Step::kPrepend); }
  bool squeezes() const { return Has(Step::kSqueeze); }
  bool has_form() const { return Has(Step::kForm); }
  const Charsmap* charsmap() const;  // null: none

  // The normalized text, in *storage if it differs. With `origin`, where its bytes came from.
  std::string_view Apply(std::string_view text, std::string* storage, TextOrigin* origin) const;

 private:
  struct Step {
    enum Kind { kForm, kReplace, kPrepend, kCharsmap, kGraphemeCharsmap, kSpaceRuns, kStrip, kSqueeze };
    Kind kind;
    NormalForm form;
    std::string from;
    std::string to;
    std::shared_ptr<const Charsmap> charsmap = nullptr;
  };
  bool Has(Step::Kind kind) const {
    return std::any_of(steps_.begin(), steps_.end(), [kind](const Step& step) { return step.kind == kind; });
  }
  std::vector<Step> steps_;
};

inline const Charsmap* Normalizer::charsmap() const {
  for (const Step& step : steps_) {
    if (step.charsmap != nullptr) return step.charsmap.get();
  }
  return nullptr;
}

}  // namespace cachalot
