// ReasoningGuide: follows an answer through its reasoning, counts that reasoning's tokens, and says what must
// stand next: the end of the reasoning when its budget is used up, and what is to follow the reasoning.
// Invariant: what is asked for once is not asked for again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

// What a request wants of its reasoning.
struct ReasoningLimits {
  bool inside = false;             // the prompt has opened <think>
  int32_t budget = -1;             // tokens between the tags; -1: any number
  std::vector<int32_t> close_ids;  // forced when that many are there: a text with </think> in it
  std::vector<int32_t> then_ids;   // forced where the reasoning ends, with `inside`
};

class ReasoningGuide {
 public:
  explicit ReasoningGuide(ReasoningLimits limits);

  // The answer's next token, with the text that it completed.
  void Push(std::string_view text);
  // Tokens that must follow here; the answer then goes on behind them. Empty: none.
  std::span<const int32_t> forced() const;
  // They are about to be pushed.
  void BeginForced();
  // What follows the reasoning was, or is about to be.
  bool then_forced() const { return then_forced_; }

  // Without the tags.
  int32_t num_reasoning_tokens() const { return num_tokens_; }

 private:
  enum class Phase { kStart, kInside, kAnswer };

  void Look(std::string_view text);

  const ReasoningLimits limits_;
  Phase phase_ = Phase::kStart;
  std::string tail_;        // kStart: the text so far; kInside: what may be the beginning of </think>
  int32_t num_tokens_ = 0;
  int32_t tail_tokens_ = 0;  // of them, those that made the tail
  bool close_forced_ = false;
  bool then_due_ = false;
  bool then_forced_ = false;
};

}  // namespace cachalot
