#include "runtime/slot_state.h"

#include <limits>

namespace cachalot {

void SlotState::Reset(const SamplingConfig& config, std::span<const int32_t> history, int32_t num_prompt,
                      int32_t vocab_size) {
  sampling_ = {.temperature = config.temperature,
               .top_k = config.top_k,
               .top_p = config.top_p,
               .min_p = config.min_p,
               .repetition_penalty = config.repetition_penalty,
               .presence_penalty = config.presence_penalty,
               .frequency_penalty = config.frequency_penalty,
               .seed = config.seed};
  bias_.clear();
  for (const TokenBias& bias : config.logit_bias) bias_.push_back({bias.token_id, bias.bias});
  num_lasting_bias_ = bias_.size();
  suppressed_until_ = config.suppressed_until;
  for (const int32_t id : config.suppressed_ids) bias_.push_back({id, -std::numeric_limits<float>::infinity()});
  counts_.clear();
  penalties_ = config.has_penalties();
  if (penalties_) {
    count_index_.assign(static_cast<size_t>(vocab_size), -1);
    for (size_t i = 0; i < history.size(); ++i) Count(history[i], static_cast<int32_t>(i) < num_prompt);
  }
  last_token_ = history.empty() ? -1 : history.back();
}

void SlotState::Count(int32_t token_id, bool in_prompt) {
  int32_t& index = count_index_[static_cast<size_t>(token_id)];
  if (index < 0) {
    index = static_cast<int32_t>(counts_.size());
    counts_.push_back({.token_id = token_id});
  }
  (in_prompt ? counts_[index].in_prompt : counts_[index].in_output) += 1;
}

void SlotState::Replace(int32_t sampled, int32_t token_id) {
  if (penalties_) {
    --counts_[static_cast<size_t>(count_index_[static_cast<size_t>(sampled)])].in_output;
    Count(token_id, /*in_prompt=*/false);
  }
  last_token_ = token_id;
}

SampleRowResult SlotState::Sample(const ExecContext& exec, float* logits, int32_t vocab_size, int64_t position,
                                  int32_t num_top_logprobs, std::span<TokenLogprob> top) {
  const SampleRowResult result = SampleRow(exec,
                                           {.logits = logits,
                                            .vocab = vocab_size,
                                            .sampling = sampling_,
                                            .bias = std::span<const LogitBias>(bias_).first(
                                                position < suppressed_until_ ? bias_.size() : num_lasting_bias_),
                                            .counts = counts_,
                                            .position = position,
                                            .num_top_logprobs = num_top_logprobs},
                                           top);
  if (penalties_) Count(result.token_id, /*in_prompt=*/false);
  last_token_ = result.token_id;
  return result;
}

}  // namespace cachalot
