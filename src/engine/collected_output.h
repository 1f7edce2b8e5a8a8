// CollectedOutput: everything that a request's callbacks brought, and what an undisturbed model would bring:
// for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "sched/fake_model.h"

namespace cachalot {

struct CollectedOutput {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<float> logprobs;
  std::vector<std::vector<int32_t>> top_tokens;
  std::vector<float> prompt_logprobs;
  std::vector<int32_t> prompt_top_tokens;
  std::vector<float> logits;
  std::vector<float> mtp_logits;
  int32_t num_prompt_computed = 0;
  int32_t num_cached_tokens = 0;
  int64_t queue_us = 0;
  bool finished = false;
  FinishReason reason = FinishReason::kError;
  Status error;
  int num_callbacks = 0;

  void Take(const RequestOutput& output) {
    ASSERT_FALSE(finished) << "an output after the last one of request " << output.request_id;
    ++num_callbacks;
    tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
    text += output.text;
    logprobs.insert(logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    ASSERT_EQ(output.logprobs.size(), output.top_logprobs.size());
    for (const auto& top : output.top_logprobs) {
      top_tokens.emplace_back();
      for (const TopLogprob& entry : top) top_tokens.back().push_back(entry.token_id);
    }
    prompt_logprobs.insert(prompt_logprobs.end(), output.prompt_logprobs.begin(),
                           output.prompt_logprobs.end());
    for (const TopLogprob& entry : output.prompt_top_logprobs) prompt_top_tokens.push_back(entry.token_id);
    logits.insert(logits.end(), output.logits.begin(), output.logits.end());
    mtp_logits.insert(mtp_logits.end(), output.mtp_logits.begin(), output.mtp_logits.end());
    ASSERT_GE(output.num_prompt_computed, num_prompt_computed) << "progress goes one way";
    num_prompt_computed = output.num_prompt_computed;
    num_cached_tokens = output.num_cached_tokens;
    queue_us = output.queue_us;
    finished = output.finished;
    reason = output.finish_reason;
    error = output.error;
  }
  // The collector keeps it alive.
  static OutputCallback Into(std::shared_ptr<CollectedOutput> collected) {
    return [collected](const RequestOutput& output) { collected->Take(output); };
  }
};

// What `request` brings without stop strings, when `room` tokens fit into the context.
inline CollectedOutput ExpectedOutput(const FakeModel& model, const Request& request, int32_t room) {
  CollectedOutput out;
  const int32_t num_prompt = static_cast<int32_t>(request.prompt_ids.size());
  const int32_t max_tokens = std::min(request.max_tokens, room - num_prompt);
  const std::vector<int32_t> no_stops;
  SamplingConfig sampling = request.sampling;
  if (request.min_tokens > 0 && !request.ignore_eos) {
    sampling.suppressed_ids = request.stop_ids;
    sampling.suppressed_until = num_prompt + request.min_tokens;
  }
  out.tokens = model.Generate(request.prompt_ids, sampling, max_tokens,
                              request.ignore_eos ? no_stops : request.stop_ids);
  out.reason = FinishReason::kLength;
  if (!out.tokens.empty() && !request.ignore_eos) {
    for (int32_t stop : request.stop_ids) {
      if (stop == out.tokens.back()) out.reason = FinishReason::kStop;
    }
  }
  std::vector<int32_t> all = request.prompt_ids;
  all.insert(all.end(), out.tokens.begin(), out.tokens.end());
  // The last token that is generated is never computed.
  const int32_t num_computed = static_cast<int32_t>(all.size()) - (out.tokens.empty() ? 0 : 1);
  for (int32_t p = 0; p < num_computed; ++p) {
    const uint64_t hidden = model.Hidden(all, p);
    if (request.all_logits) {
      for (int32_t t = 0; t < model.vocab_size; ++t) out.logits.push_back(model.Logit(hidden, t));
    }
    if (request.mtp_logits && p + 1 < num_computed) {
      for (int32_t t = 0; t < model.vocab_size; ++t) {
        out.mtp_logits.push_back(model.MtpLogit(hidden, all[static_cast<size_t>(p + 1)], t));
      }
    }
    if (request.prompt_logprobs && p + 1 < num_prompt) {
      out.prompt_logprobs.push_back(model.Logprob(hidden, all[static_cast<size_t>(p + 1)]));
      for (int32_t i = 0; i < request.num_prompt_top_logprobs; ++i)
        out.prompt_top_tokens.push_back(model.TopToken(hidden, i));
    }
    if (request.num_top_logprobs >= 0 && p >= num_prompt - 1 && p + 1 < static_cast<int32_t>(all.size())) {
      out.logprobs.push_back(model.Logprob(hidden, all[static_cast<size_t>(p + 1)]));
      out.top_tokens.emplace_back();
      for (int32_t i = 0; i < request.num_top_logprobs; ++i)
        out.top_tokens.back().push_back(model.TopToken(hidden, i));
    }
  }
  out.num_prompt_computed = num_prompt;
  out.finished = true;
  return out;
}

inline void ExpectSame(const CollectedOutput& got, const CollectedOutput& want) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.logprobs, want.logprobs);
  EXPECT_EQ(got.top_tokens, want.top_tokens);
  EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs);
  EXPECT_EQ(got.prompt_top_tokens, want.prompt_top_tokens);
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(got.mtp_logits, want.mtp_logits);
  EXPECT_EQ(got.num_prompt_computed, want.num_prompt_computed);
  EXPECT_EQ(got.finished, want.finished);
  EXPECT_STREQ(FinishReasonName(got.reason), FinishReasonName(want.reason));
}

}  // namespace cachalot
