// ItlBudget: how many prompt tokens a step may take beside running streams, so that their next tokens come in time. It learns
// what a step costs from those that were measured: a fixed part from steps without prompt tokens, and the rest per prompt
// token, by how far into its prompt that is (attention over 8,000 tokens takes longer than over 100). Where the estimate is
// wrong it still settles where steps take as long as they may, since both parts add up to what was measured.
// Deterministic in what it is told.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachalot {

// What was measured of a step.
struct ItlStep {
  int32_t prompt_tokens = 0;
  int64_t prompt_context = 0;  // the sum, over these, of the tokens in front of each
  int32_t decode_tokens = 0;
  int64_t us = 0;
};

// How long steps take that streams wait for, in multiples of one without prompts: that which the `share` of the tokens had
// that came soonest, of the last steps. Below a half it is no more than the streams' median.
class StreamPace {
 public:
  explicit StreamPace(double share);
  void Add(double multiple, int32_t tokens);
  void Clear();
  double multiple() const { return multiple_; }

 private:
  static constexpr size_t kSteps = 1024;
  static constexpr size_t kBuckets = 256;
  struct Entry {
    uint8_t bucket = 0;
    int32_t tokens = 0;
  };
  const double share_;
  std::array<double, kBuckets> edges_;           // lower ones, from 1 on
  std::array<int64_t, kBuckets> tokens_{};       // of the steps in each bucket
  std::vector<Entry> steps_;                     // a ring of kSteps
  size_t next_ = 0;
  int64_t total_ = 0;
  double multiple_ = 1;
};

class ItlBudget {
 public:
  // target_us 0: a step with prompts may take `ratio` times what streams see at the median, or somewhat below; ratio 0: no
  // bound. While most steps have no prompts in them that is `ratio` times one without. When prompts come so thick that most
  // have, the median is one with prompts, and the bound rises with it: the streams lose nothing by it that they still had.
  // Never less than min_tokens, so that prompts get on.
  ItlBudget(int64_t target_us, int32_t min_tokens, int32_t max_tokens, double ratio = 0);

  // context: tokens in front of those that come next. many: so many prompts want in that it is better to be through with
  // them; the ratio does not count then.
  int32_t PromptTokens(int64_t context = 0, bool many = false) const;
  void Observe(const ItlStep& step);

 private:
  void LearnPromptTokens(const ItlStep& step, double us);

  const double target_us_;
  const double ratio_;
  const int32_t min_tokens_;
  const int32_t max_tokens_;
  double fixed_us_ = 0;       // moving average; 0: nothing was measured yet
  StreamPace pace_;
  // Of the time per prompt token over its context: sums with weights that fade, and the line through them.
  double weight_ = 0, sum_x_ = 0, sum_xx_ = 0, sum_y_ = 0, sum_xy_ = 0;
  double mean_us_ = 0;        // per token
  double at_zero_us_ = 0;
  double slope_us_ = 0;       // per token and 1,024 tokens in front of it
};

}  // namespace cachalot
