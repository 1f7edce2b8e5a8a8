// TokenEvent: what one step brought for a choice of a request; a RequestOutput that may be kept. Counts may be 0 where the
// last event's still hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace cachalot {

struct TokenEvent {
  int32_t choice = 0;   // of Request::n
  int64_t time_us = 0;  // steady clock
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<float> logprobs;
  std::vector<std::vector<TopLogprob>> top_logprobs;
  std::vector<float> prompt_logprobs;
  std::vector<TopLogprob> prompt_top_logprobs;
  int32_t num_prompt_computed = 0;
  int32_t num_cached_tokens = 0;
  int32_t num_reasoning_tokens = 0;
  int64_t queue_us = 0;
  bool finished = false;
  FinishReason finish_reason = FinishReason::kStop;
  Status error;
};

}  // namespace cachalot
