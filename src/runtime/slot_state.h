// SlotState: what the runtime keeps of a sequence beside its KV blocks. A cache: rebuilt from a SlotSetup at any time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sample/sample.h"
#include "sched/plan.h"

namespace cachalot {

class SlotState {
 public:
  // history: the tokens that count for the penalties, the first num_prompt of them from the prompt.
  void Reset(const SamplingConfig& config, std::span<const int32_t> history, int32_t num_prompt, int32_t vocab_size);

  // Draws from logits (changed in place) the token that will stand at `position`.
  SampleRowResult Sample(const ExecContext& exec, float* logits, int32_t vocab_size, int64_t position,
                         int32_t num_top_logprobs, std::span<TokenLogprob> top);

  // `token_id` in place of the token that was sampled last: for benchmarks with a synthetic acceptance.
  void Replace(int32_t sampled, int32_t token_id);

  int32_t last_token() const { return last_token_; }

 private:
  void Count(int32_t token_id, bool in_prompt);

  SamplingParams sampling_;
  bool penalties_ = false;
  std::vector<LogitBias> bias_;
  size_t num_lasting_bias_ = 0;       // the others count before suppressed_until_ only
  int64_t suppressed_until_ = 0;
  std::vector<TokenCount> counts_;    // one entry per distinct token
  std::vector<int32_t> count_index_;  // [vocab] into counts_, -1: not seen; empty without penalties
  int32_t last_token_ = -1;
};

}  // namespace cachalot
