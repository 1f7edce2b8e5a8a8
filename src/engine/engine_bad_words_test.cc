// Bad words: what an answer must not contain is drawn anew in its place, so that the answer is the one that a sampler would give
// which never offers it; whatever was in flight, preempted, drafted, or shared.
#include <algorithm>
#include <limits>
#include <random>

#include "engine/bad_words.h"
#include "engine/engine_testing.h"
#include "sched/policy/policies.h"
#include "sched/scheduler_trace.h"

namespace cachalot {
namespace {

class EngineBadWordsTest : public EngineTest {
 protected:
  CollectedOutput ExpectedWithout(const Request& request) {
    std::vector<std::vector<int32_t>> longer;
    Request plain = request;
    plain.bad_words.clear();
    SamplingConfig sampling = request.sampling;
    for (const auto& word : request.bad_words) {
      const TokenBias never = {word[0], -std::numeric_limits<float>::infinity()};
      const auto& bias = sampling.logit_bias;
      if (word.size() > 1) longer.push_back(word);
      else if (std::find(bias.begin(), bias.end(), never) == bias.end()) sampling.logit_bias.push_back(never);
    }
    if (request.min_tokens > 0) {
      sampling.suppressed_ids = request.stop_ids;
      sampling.suppressed_until = static_cast<int32_t>(request.prompt_ids.size()) + request.min_tokens;
    }
    const BadWords words(longer);
    CollectedOutput out;
    const int32_t room = executor_->info().max_context - static_cast<int32_t>(request.prompt_ids.size());
    out.tokens = executor_->model().Generate(request.prompt_ids, sampling, std::min(request.max_tokens, room), request.stop_ids,
                                             [&](std::span<const int32_t> answer) { return words.Banned(answer); });
    return out;
  }
  // Words that the answer would have, so that there is something to take back.
  void AddWords(Request* request, std::mt19937* random) {
    for (int i = 0; i < 8; ++i) {
      const std::vector<int32_t> answer = ExpectedWithout(*request).tokens;
      const size_t length = std::min<size_t>(i == 0 ? 1 : 2 + (*random)() % 3, answer.size());
      const size_t begin = (*random)() % (answer.size() - length + 1);
      request->bad_words.emplace_back(answer.begin() + static_cast<int64_t>(begin), answer.begin() + static_cast<int64_t>(begin + length));
    }
  }
  static bool Contains(const std::vector<int32_t>& answer, const std::vector<int32_t>& word) {
    return std::search(answer.begin(), answer.end(), word.begin(), word.end()) != answer.end();
  }
};

TEST(BadWords, WhatWouldComplete) {
  const BadWords words({{1, 2}, {3, 1, 2}, {3, 1, 4}, {5, 5}});
  const std::vector<int32_t> answer = {3, 1};
  EXPECT_EQ(words.Banned(answer), (std::vector<int32_t>{2, 4}));
  EXPECT_FALSE(words.Completed(answer));
  EXPECT_TRUE(words.Completed(std::vector<int32_t>{1, 2}));
  EXPECT_FALSE(words.Completed(std::vector<int32_t>{2}));
  EXPECT_TRUE(words.Banned({}).empty());
  EXPECT_EQ(words.Banned(std::vector<int32_t>{5}), std::vector<int32_t>{5});
}

TEST_F(EngineBadWordsTest, AnswersAreWithoutThem) {
  std::mt19937 random(5);
  for (const int32_t depth : {0, 1}) {
    for (const bool caching : {true, false}) {
      Create(Info(256, depth), {.prefill_chunk = 16, .enable_prefix_caching = caching});
      std::vector<std::pair<Request, std::shared_ptr<CollectedOutput>>> asked;
      for (int i = 0; i < 24; ++i) {
        Request request = MakeRequest(Prompt(1 + static_cast<int32_t>(random() % 40), i), 1 + static_cast<int32_t>(random() % 60));
        if (random() % 2) request.sampling.temperature = 1.0f;
        request.sampling.seed = random();
        if (random() % 3 == 0) request.sampling.frequency_penalty = 0.5f;
        if (random() % 2) request.num_top_logprobs = 2;
        if (random() % 3 == 0) request.prompt_logprobs = request.prompt_ids.size() > 1;
        if (random() % 2) request.stop_ids = {7, 8};
        if (random() % 2) request.min_tokens = request.max_tokens / 2;
        AddWords(&request, &random);
        asked.emplace_back(request, Submit(request));
      }
      ASSERT_TRUE(engine_->RunUntilIdle().ok());
      for (const auto& [request, got] : asked) {
        EXPECT_TRUE(got->finished);
        EXPECT_EQ(got->tokens, ExpectedWithout(request).tokens);
        for (const auto& word : request.bad_words) EXPECT_FALSE(Contains(got->tokens, word));
        EXPECT_EQ(got->logprobs.size(), request.num_top_logprobs >= 0 ? got->tokens.size() : 0u);
        EXPECT_EQ(got->prompt_logprobs.size(), request.prompt_logprobs ? request.prompt_ids.size() - 1 : 0u);
      }
      EXPECT_GT(engine_->stats().retaken_tokens, 20);
      ExpectNothingHeld();
    }
  }
}

// Little memory, both ways of preemption, several choices, drafts, and the same plans from the trace.
TEST_F(EngineBadWordsTest, UnderPressure) {
  std::mt19937 random(9);
  for (const auto preemption : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    for (const int32_t depth : {0, 1}) {
      SchedulerTrace trace;
      ExecutorInfo info = Info(26, depth);
      for (auto& group : info.kv_groups) group.num_swap_blocks = 40;
      EngineOptions options{.prefill_chunk = 16, .preemption = preemption, .trace = &trace};
      options.drafts = DraftKind::kNgram;
      Create(info, options);
      std::vector<std::pair<Request, std::shared_ptr<std::vector<CollectedOutput>>>> asked;
      for (int i = 0; i < 12; ++i) {
        Request request = MakeRequest(Prompt(5 + i, 3), 20 + i);
        request.sampling.temperature = i % 2 ? 1.0f : 0.0f;
        request.n = 1 + i % 3;
        AddWords(&request, &random);
        auto got = std::make_shared<std::vector<CollectedOutput>>(static_cast<size_t>(request.n));
        ASSERT_TRUE(engine_->Submit(request, [got](const RequestOutput& output) { got->at(static_cast<size_t>(output.choice)).Take(output); }).ok());
        asked.emplace_back(request, got);
      }
      ASSERT_TRUE(engine_->RunUntilIdle().ok());
      for (auto& [request, got] : asked) {
        for (const CollectedOutput& choice : *got) {
          EXPECT_EQ(choice.tokens, ExpectedWithout(request).tokens);
          ++request.sampling.seed;
        }
      }
      EXPECT_GT(engine_->stats().preemptions, 0);
      ExpectNothingHeld();
      SchedulerOptions scheduling{.max_batch_tokens = options.max_batch_tokens, .prefill_chunk = 16, .preemption = preemption,
                                  .drafts = options.drafts, .max_drafts = options.max_drafts};
      const auto plans = ReplayTrace(trace, LimitsOf(info), scheduling, std::move(*MakeSchedulingPolicy("fcfs")));
      ASSERT_TRUE(plans.ok()) << plans.status().ToString();
      const size_t num_steps = static_cast<size_t>(std::count_if(plans->begin(), plans->end(), [](const StepPlan& plan) { return !plan.empty(); }));
      EXPECT_EQ(num_steps, engine_->stats().steps);
    }
  }
}

TEST_F(EngineBadWordsTest, WhatIsRefused) {
  Create(Info());
  Request request = MakeRequest({1, 2}, 4);
  request.bad_words = {{}};
  EXPECT_NE(SubmitError(request).find("bad word 0"), std::string::npos);
  request.bad_words = {{1}, {2, 50}};
  EXPECT_NE(SubmitError(request).find("50"), std::string::npos);
  request.bad_words = {{2, 3}};
  request.all_logits = true;
  EXPECT_NE(SubmitError(request).find("logits"), std::string::npos);
  request = MakeRequest({1, 2}, 4);
  request.bad_words.assign(1001, {1, 2});
  EXPECT_NE(SubmitError(request).find("1000"), std::string::npos);
}

}  // namespace
}  // namespace cachalot
