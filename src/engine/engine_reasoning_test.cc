// Reasoning that is ended, and tokens that follow it: what is forced stands where it must, and the answer goes
// on as if it had been sampled, whatever was in flight.
#include <random>

#include "engine/engine_testing.h"
#include "sched/policy/policies.h"
#include "sched/scheduler_trace.h"

namespace cachalot {
namespace {

// What the fake model makes of it.
std::vector<int32_t> Expect(const FakeModel& model, const Request& request, int32_t choice) {
  SamplingConfig sampling = request.sampling;
  sampling.seed += static_cast<uint64_t>(choice);
  std::vector<int32_t> forced = request.reasoning.close_ids;
  forced.insert(forced.end(), request.reasoning.then_ids.begin(), request.reasoning.then_ids.end());
  std::vector<int32_t> tokens =
      model.Generate(request.prompt_ids, sampling, std::min(request.reasoning.budget, request.max_tokens));
  tokens.insert(tokens.end(), forced.begin(), forced.end());
  if (static_cast<int32_t>(tokens.size()) < request.max_tokens) {
    std::vector<int32_t> all = request.prompt_ids;
    all.insert(all.end(), tokens.begin(), tokens.end());
    const auto more = model.Generate(all, sampling, request.max_tokens - static_cast<int32_t>(tokens.size()));
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  tokens.resize(static_cast<size_t>(request.max_tokens));
  return tokens;
}

class EngineReasoningTest : public EngineTest {
 protected:
  struct Choices {
    std::vector<CollectedOutput> got;
    std::vector<int32_t> num_reasoning;
  };
  std::shared_ptr<Choices> Start(const Request& request) {
    auto choices = std::make_shared<Choices>();
    choices->got.resize(static_cast<size_t>(request.n));
    choices->num_reasoning.resize(static_cast<size_t>(request.n));
    const auto submitted = engine_->Submit(request, [choices](const RequestOutput& output) {
      choices->got[static_cast<size_t>(output.choice)].Take(output);
      choices->num_reasoning[static_cast<size_t>(output.choice)] = output.num_reasoning_tokens;
    });
    EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
    return choices;
  }
  void Check(const Choices& choices, const Request& request) {
    for (int32_t i = 0; i < request.n; ++i) {
      const CollectedOutput& got = choices.got[static_cast<size_t>(i)];
      EXPECT_TRUE(got.finished);
      EXPECT_STREQ(FinishReasonName(got.reason), "length");
      EXPECT_EQ(got.tokens, Expect(executor_->model(), request, i)) << "choice " << i;
      EXPECT_EQ(choices.num_reasoning[static_cast<size_t>(i)], std::min(request.reasoning.budget, request.max_tokens));
      EXPECT_EQ(got.logprobs.size(), request.num_top_logprobs >= 0 ? got.tokens.size() : 0u);
    }
  }
  static Request Limited(int32_t prompt, int32_t budget, int32_t max_tokens) {
    Request request = MakeRequest(Prompt(prompt), max_tokens);
    request.sampling.temperature = 1.0f;
    request.sampling.seed = 5;
    request.reasoning = {.inside = true, .budget = budget, .close_ids = {3, 26, 26}, .then_ids = {7}};
    return request;
  }
};

TEST_F(EngineReasoningTest, ItEndsWhereTheBudgetEnds) {
  for (const int32_t depth : {0, 1}) {
    for (const bool caching : {true, false}) {
      // With drafts, a step brings tokens from both sides of the end.
      ExecutorInfo info = Info(256, depth);
      info.device_drafts = DraftKind::kMtp;
      Create(info, {.prefill_chunk = 16,
                    .enable_prefix_caching = caching,
                    .drafts = depth == 0 ? DraftKind::kMtp : DraftKind::kNone,
                    .max_drafts = 5,
                    .adaptive_drafts = false});
      for (const int32_t n : {1, 3}) {
        for (const int32_t budget : {0, 1, 5, 16, 17, 40}) {
          for (const int32_t max_tokens : {1, 18, 40}) {
            SCOPED_TRACE(fmt::format("depth {}, n {}, budget {}, max_tokens {}", depth, n, budget, max_tokens));
            Request request = Limited(21, budget, max_tokens);
            request.n = n;
            request.num_top_logprobs = budget % 2 == 0 ? 1 : -1;
            const auto choices = Start(request);
            ASSERT_TRUE(engine_->RunUntilIdle().ok());
            Check(*choices, request);
            ExpectNothingHeld();
          }
        }
      }
    }
  }
}

TEST_F(EngineReasoningTest, WhatCannotBeForcedIsRefused) {
  Create(Info());
  Request request = Limited(5, 4, 9);
  request.reasoning.close_ids = {50};
  EXPECT_NE(SubmitError(request).find("token 50"), std::string::npos);
  request = Limited(5, 4, 9);
  request.all_logits = true;
  EXPECT_NE(SubmitError(request).find("logits"), std::string::npos);
}

TEST_F(EngineReasoningTest, ForcedTextCompletesStopStrings) {
  Create(Info());
  Request request = Limited(10, 4, 30);
  request.reasoning.close_ids = {38, 1, 2};  // END, and what nobody sees
  request.stop_strings = {"END"};
  const auto choices = Start(request);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_STREQ(FinishReasonName(choices->got[0].reason), "stop");
  EXPECT_EQ(choices->got[0].tokens.size(), 5u);
  EXPECT_EQ(choices->got[0].text.find("END"), std::string::npos);
}

TEST_F(EngineReasoningTest, ManyAtOnceInLittleMemory) {
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    ExecutorInfo info = Info(26, round % 2);
    for (KvGroupInfo& group : info.kv_groups) group.num_swap_blocks = 20;
    SchedulerTrace trace;
    info.device_drafts = DraftKind::kMtp;
    const DraftKind drafts = round % 4 == 0 ? DraftKind::kMtp : DraftKind::kNone;
    Create(info, {.prefill_chunk = 16,
                  .enable_prefix_caching = round % 3 != 0,
                  .preemption = round % 4 < 2 ? PreemptionMode::kRecompute : PreemptionMode::kSwap,
                  .drafts = drafts,
                  .trace = &trace});
    std::vector<std::pair<Request, std::shared_ptr<Choices>>> all;
    for (int i = 0; i < 12; ++i) {
      Request request = Limited(1 + static_cast<int32_t>(random() % 30), static_cast<int32_t>(random() % 20),
                                1 + static_cast<int32_t>(random() % 40));
      request.n = 1 + static_cast<int32_t>(random() % 2);
      request.sampling.seed = random();
      all.emplace_back(request, Start(request));
      for (uint32_t steps = random() % 4; steps > 0; --steps) ASSERT_TRUE(engine_->Step().ok());
    }
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    for (const auto& [request, choices] : all) Check(*choices, request);
    ExpectNothingHeld();

    SchedulerOptions options;
    options.prefill_chunk = 16;
    options.enable_prefix_caching = round % 3 != 0;
    options.preemption = round % 4 < 2 ? PreemptionMode::kRecompute : PreemptionMode::kSwap;
    options.max_batch_tokens = 512;
    options.drafts = drafts;
    auto policy = MakeSchedulingPolicy("fcfs");
    ASSERT_TRUE(policy.ok());
    const auto plans = ReplayTrace(trace, LimitsOf(info), options, std::move(*policy));
    EXPECT_TRUE(plans.ok()) << plans.status().ToString();
  }
}

}  // namespace
}  // namespace cachalot
