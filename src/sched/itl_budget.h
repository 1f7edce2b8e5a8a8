// ItlBudget: how many prompt tokens a step may take beside running streams, so that their next tokens come in
// time. It learns what a step costs from those that were measured: a fixed part from steps without prompt
// tokens, and the rest per prompt token. Where the estimate is wrong it still settles where steps take as
// long as they may, since there both parts add up to what was measured. Deterministic in what it is told.
#pragma once

#include <cstdint>

namespace cachalot {

class ItlBudget {
 public:
  // target_us 0: a step with prompts may take `ratio` times one without, as far as that is known; ratio 0: no bound. Never
  // less than min_tokens, so that prompts get on.
  ItlBudget(int64_t target_us, int32_t min_tokens, int32_t max_tokens, double ratio = 0);

  // many: so many prompts want in that it is better to be through with them. The ratio does not count then.
  int32_t PromptTokens(bool many = false) const;
  // A step with so many prompt tokens took so long.
  void Observe(int32_t prompt_tokens, int64_t step_us);

 private:
  const double target_us_;
  const double ratio_;
  const int32_t min_tokens_;
  const int32_t max_tokens_;
  double fixed_us_ = 0;  // moving averages; 0: nothing was measured yet
  double per_token_us_ = 0;
};

}  // namespace cachalot
