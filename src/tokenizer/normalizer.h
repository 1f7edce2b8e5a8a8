// Normalizer: what is done to a text before it is tokenized: Unicode normal forms, literal replacements, a
// prefix. Invariant: bytes that are not valid UTF-8 pass through unchanged; time is O(n log n).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
  bool empty() const { return steps_.empty(); }

  // The normalized text, in *storage if it differs. With `origin`, where its bytes came from.
  std::string_view Apply(std::string_view text, std::string* storage, TextOrigin* origin) const;

 private:
  struct Step {
    enum Kind { kForm, kReplace, kPrepend };
    Kind kind;
    NormalForm form;
    std::string from;
    std::string to;
  };
  std::vector<Step> steps_;
};

}  // namespace cachalot
