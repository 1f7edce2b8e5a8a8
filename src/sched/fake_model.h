// FakeModel: a "language model" made of hashes, for tests. The next token depends on every token that real
// attention would read, on seed and position, on the bias and on the tokens counted for penalties, so that
// whatever the policy tower gets wrong gives a different text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "sample/plan.h"

namespace cachalot {

// How often a token stands in the prompt and in the output: what penalties see.
struct FakeCounts {
  int32_t in_prompt = 0;
  int32_t in_output = 0;
};
using FakeHistory = std::map<int32_t, FakeCounts>;

struct FakeModel {
  int32_t vocab_size = 50;
  // What each KV group shows to a token at `position`.
  struct Seen {
    int32_t window = 0;  // 0: none
    int32_t first_token = 0, end_token = std::numeric_limits<int32_t>::max();
    int32_t First(int32_t position) const { return std::max(first_token, window > 0 ? position - window + 1 : 0); }
    int32_t End(int32_t position) const { return std::min(position + 1, end_token); }
  };
  std::vector<Seen> groups;

  // What the KV cache holds for a token.
  static uint64_t KvValue(int32_t token, int32_t position);
  // Attention over values, in order of position.
  static uint64_t Attend(uint64_t state, uint64_t kv_value);
  // The hidden state at `position` of a sequence of which `tokens` are the first.
  uint64_t Hidden(std::span<const int32_t> tokens, int32_t position) const;

  int32_t Sample(uint64_t hidden, const SamplingConfig& sampling, int32_t position,
                 const FakeHistory& history) const;
  float Logit(uint64_t hidden, int32_t token) const;
  float MtpLogit(uint64_t hidden, int32_t next_token, int32_t token) const;
  float Logprob(uint64_t hidden, int32_t token) const;
  int32_t TopToken(uint64_t hidden, int32_t rank) const;

  // What a sequence generates when nothing disturbs it. `banned`: tokens that must not follow an answer.
  using Banned = std::function<std::vector<int32_t>(std::span<const int32_t> answer)>;
  std::vector<int32_t> Generate(std::vector<int32_t> prompt, const SamplingConfig& sampling, int32_t max_tokens,
                                std::span<const int32_t> stop_ids = {}, const Banned& banned = nullptr) const;
};

}  // namespace cachalot
