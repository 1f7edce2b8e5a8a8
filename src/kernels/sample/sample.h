// From logits to a token, on the device: penalties, bias, temperature, truncation, one draw; and
// log-probabilities.
//
// Order (as vLLM and OpenAI document it): logit_bias, then penalties over the tokens seen, temperature,
// top-k, top-p, min-p (both on the softmax at that temperature), draw. temperature 0 is greedy: the first of
// the largest.
#pragma once

#include <cstdint>
#include <span>

#include "device/exec_context.h"

namespace cachalot {

struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  float repetition_penalty =
      1.0f;  // over prompt and output tokens (Keskar et al. 2019): > 0 divides, < 0 multiplies
  float presence_penalty = 0.0f;   // over output tokens, once per distinct token
  float frequency_penalty = 0.0f;  // over output tokens, per occurrence
  uint64_t seed = 0;
};

struct LogitBias {
  int32_t token_id = 0;
  float bias = 0.0f;
};

// How often the sequence holds a token: for the penalties. Kept by the runtime, at most one entry per token.
struct TokenCount {
  int32_t token_id = 0;
  int32_t in_prompt = 0;
  int32_t in_output = 0;
};

struct TokenLogprob {
  int32_t token_id = -1;
  float logprob = 0.0f;
};

struct SampleRowParams {
  float* logits = nullptr;  // [vocab]; changed in place (bias and penalties)
  int32_t vocab = 0;
  SamplingParams sampling = {};
  std::span<const LogitBias> bias = {};
  std::span<const TokenCount> counts = {};
  int64_t position = 0;  // the draw is a function of (seed, position) alone
  int32_t num_top_logprobs =
      -1;  // -1: none; n >= 0: the chosen token's and the n best, of the unmodified logits
};

struct SampleRowResult {
  int32_t token_id = -1;
  float logprob = 0.0f;
};

// top [num_top_logprobs] is filled best first when asked for (token_id -1 where no logit above -infinity is
// left). Takes SampleWorkspaceBytes(vocab) of scratch and does not use the pool: rows may run side by side,
// each with a workspace of its own. A NaN logit counts as -infinity; without any logit above that, the token
// is 0.
SampleRowResult SampleRow(const ExecContext& ctx, const SampleRowParams& params, std::span<TokenLogprob> top);
int64_t SampleWorkspaceBytes(int32_t vocab);

// log softmax(logits)[token_id]; and the `top.size()` best, best first.
float LogprobOf(std::span<const float> logits, int32_t token_id);
void TopLogprobs(std::span<const float> logits, std::span<TokenLogprob> top);

// Uniform in [0, 1): a counter-based generator (splitmix-style mix of seed and position), the same on every
// device.
double UniformAt(uint64_t seed, int64_t position);

}  // namespace cachalot
