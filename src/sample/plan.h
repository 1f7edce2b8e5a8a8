// How a sequence wants its tokens drawn: what the scheduler hands to the runtime, and what requests carry.
// The order of the transformations is that of kernels/sample/sample.h.
#pragma once

#include <cstdint>
#include <vector>

namespace cachalot {

struct TokenBias {
  int32_t token_id = 0;
  float bias = 0.0f;
  bool operator==(const TokenBias&) const = default;
};

struct SamplingConfig {
  float temperature = 0.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  float repetition_penalty = 1.0f;  // 1: off
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  std::vector<TokenBias> logit_bias;
  // Never drawn at a position before this one: what would end an answer that is too short.
  std::vector<int32_t> suppressed_ids;
  int64_t suppressed_until = 0;

  bool operator==(const SamplingConfig&) const = default;
  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

}  // namespace cachalot
