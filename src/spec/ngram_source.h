// NgramSource: prompt look-up. The last tokens of a sequence are sought among its earlier ones, and what followed there is
// the draft: right wherever text repeats itself (quotations, code that is edited, lists, tool calls).
#pragma once

#include "spec/draft_source.h"

namespace cachalot {

class NgramSource final : public DraftSource {
 public:
  bool on_device() const override { return false; }
  // The place with the longest match of at least kMinMatch tokens; of several, the latest. A match of kMaxMatch tokens
  // ends the search. When the end of the sequence is reached, the draft goes on with itself: a loop continues.
  int32_t Propose(std::span<const int32_t> tokens, std::span<int32_t> out) const override;

  static constexpr int32_t kMinMatch = 2;
  static constexpr int32_t kMaxMatch = 12;
  static constexpr int32_t kMaxLookBack = 1 << 15;  // tokens: a search takes some 10 us for them
};

}  // namespace cachalot
