// What a server asks of an engine: choices, deadlines, a bounded queue, policies, both ways of preemption,
// counters.
#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/request_stream.h"
#include "sched/policy/policies.h"
#include "sched/scheduler_trace.h"

namespace cachalot {
namespace {

// The choices of one request, apart.
struct CollectedChoices {
  std::vector<CollectedOutput> choices;
  static OutputCallback Into(std::shared_ptr<CollectedChoices> collected) {
    return [collected](const RequestOutput& output) {
      collected->choices.at(static_cast<size_t>(output.choice)).Take(output);
    };
  }
};

class EngineServingTest : public EngineTest {
 protected:
  std::shared_ptr<CollectedChoices> SubmitChoices(const Request& request, uint64_t* id = nullptr) {
    auto collected = std::make_shared<CollectedChoices>();
    collected->choices.resize(static_cast<size_t>(request.n));
    auto submitted = engine_->Submit(request, CollectedChoices::Into(collected));
    EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
    if (id != nullptr) *id = *submitted;
    return collected;
  }
  void ExpectChoices(const CollectedChoices& got, const Request& request) {
    for (int32_t i = 0; i < request.n; ++i) {
      SCOPED_TRACE(fmt::format("choice {}", i));
      Request own = request;
      own.sampling.seed += static_cast<uint64_t>(i);
      if (i > 0) own.prompt_logprobs = false;
      ExpectSame(got.choices[static_cast<size_t>(i)], Expected(own));
    }
  }
};

TEST_F(EngineServingTest, ChoicesShareThePrompt) {
  for (int32_t depth : {0, 1}) {
    for (bool caching : {true, false}) {
      Create(Info(256, depth), {.prefill_chunk = 16, .enable_prefix_caching = caching});
      Request request = MakeRequest(Prompt(61), 20);
      request.n = 4;
      request.sampling.temperature = 1.0f;
      request.sampling.seed = 9;
      request.num_top_logprobs = 1;
      request.prompt_logprobs = true;
      request.num_prompt_top_logprobs = 2;
      const auto got = SubmitChoices(request);
      ASSERT_TRUE(engine_->RunUntilIdle().ok());
      ExpectChoices(*got, request);
      EXPECT_NE(got->choices[0].tokens, got->choices[1].tokens);
      EXPECT_EQ(engine_->stats().prompt_tokens, 61 + 3) << "once, and its last token for each of the others";
      ExpectNothingHeld();
    }
  }
}

TEST_F(EngineServingTest, ChoicesOfOneTokenPromptsAndOfLogits) {
  Create(Info());
  Request one = MakeRequest({7}, 12), logits = MakeRequest(Prompt(20), 6);
  one.n = 3;
  one.sampling.temperature = 1.0f;
  logits.n = 2;
  logits.all_logits = true;
  const auto got_one = SubmitChoices(one), got_logits = SubmitChoices(logits);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  ExpectChoices(*got_one, one);
  ExpectChoices(*got_logits, logits);
}

// The first ends with its first token, before any other could share its blocks.
TEST_F(EngineServingTest, ChoicesOutliveTheFirst) {
  for (int32_t depth : {0, 1}) {
    Create(Info(256, depth));
    Request request = MakeRequest(Prompt(30), 1);
    request.n = 5;
    request.sampling.temperature = 1.0f;
    const auto got = SubmitChoices(request);
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    ExpectChoices(*got, request);
    ExpectNothingHeld();
  }
}

TEST_F(EngineServingTest, CancelEndsEveryChoice) {
  Create(Info());
  Request request = MakeRequest(Prompt(30), 100);
  request.n = 5;
  uint64_t id = 0;
  const auto got = SubmitChoices(request, &id);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine_->Step().ok());
  engine_->Cancel(id);
  ASSERT_TRUE(engine_->Step().ok());
  for (const CollectedOutput& choice : got->choices) EXPECT_EQ(choice.reason, FinishReason::kCancelled);
  ExpectNothingHeld();
}

TEST_F(EngineServingTest, ADeadlineEndsARequestWhereverItIs) {
  ManualClock clock;
  ExecutorInfo info = Info();
  info.max_seqs = 1;
  Create(info, {.clock = &clock});
  Request request = MakeRequest(Prompt(9), 100);
  request.deadline_us = 1000;
  const auto running = Submit(request);
  const auto waiting = Submit(request);
  request.deadline_us = 5000;
  const auto later = Submit(request);
  request.deadline_us = 0;
  const auto patient = Submit(request);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine_->Step().ok());
  clock.Advance(999);
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_FALSE(running->finished);
  clock.Advance(1);
  ASSERT_TRUE(engine_->Step().ok());
  for (const auto& missed : {running, waiting}) {
    EXPECT_TRUE(missed->finished);
    EXPECT_EQ(missed->reason, FinishReason::kError);
    EXPECT_EQ(missed->error.code(), StatusCode::kDeadline);
  }
  EXPECT_EQ(running->tokens.size(), 4u);
  clock.Advance(4000);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(later->error.code(), StatusCode::kDeadline);
  EXPECT_EQ(patient->tokens.size(), 100u);
}

TEST_F(EngineServingTest, ABoundedQueueRefusesWhatIsTooMuch) {
  ExecutorInfo info = Info();
  info.max_seqs = 1;
  Create(info, {.max_waiting = 2});
  Submit(MakeRequest(Prompt(9), 5));
  ASSERT_TRUE(engine_->Step().ok());
  Submit(MakeRequest(Prompt(9), 5));
  Submit(MakeRequest(Prompt(9), 5));
  EXPECT_EQ(SubmitError(MakeRequest(Prompt(9), 5)), "exhausted: 2 requests wait already, and at most 2 may");
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(SubmitError(MakeRequest(Prompt(9), 5)), "");
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
}

TEST_F(EngineServingTest, BothWaysOfPreemptionGiveTheSame) {
  for (int32_t depth : {0, 1}) {
    for (PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
      ExecutorInfo info = Info(40, depth);
      for (KvGroupInfo& group : info.kv_groups) group.num_swap_blocks = 30;
      Create(info, {.enable_prefix_caching = false, .preemption = mode});
      std::vector<Request> requests;
      std::vector<std::shared_ptr<CollectedOutput>> got;
      for (int32_t i = 0; i < 8; ++i) {
        requests.push_back(MakeRequest(Prompt(20 + i, i), 60));
        requests.back().sampling = {.temperature = 1.0f,
                                    .frequency_penalty = 0.1f,
                                    .seed = static_cast<uint64_t>(i),
                                    .logit_bias = {},
                                    .suppressed_ids = {}};
        requests.back().mtp_logits = i == 5;
        got.push_back(Submit(requests.back()));
      }
      ASSERT_TRUE(engine_->RunUntilIdle().ok());
      for (size_t i = 0; i < requests.size(); ++i) ExpectSame(*got[i], Expected(requests[i]));
      const EngineStats& stats = engine_->stats();
      EXPECT_EQ(stats.preemptions, stats.recompute_preemptions + stats.swap_preemptions);
      EXPECT_EQ(stats.swap_preemptions > 0, mode == PreemptionMode::kSwap);
      if (mode == PreemptionMode::kRecompute) {
        EXPECT_GT(stats.recompute_preemptions, 0);
      }
      ExpectNothingHeld();
    }
  }
}

TEST_F(EngineServingTest, ThePolicyIsChosenByName) {
  ExecutorInfo info = Info();
  info.max_seqs = 1;
  Create(info, {.policy = "priority"});
  Request low = MakeRequest(Prompt(9), 50), high = MakeRequest(Prompt(5), 10);
  low.priority = 3;
  const auto got_low = Submit(low);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine_->Step().ok());
  const auto got_high = Submit(high);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(engine_->Step().ok());
  EXPECT_TRUE(got_high->finished);
  EXPECT_FALSE(got_low->finished);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  ExpectSame(*got_low, Expected(low));
  EXPECT_FALSE(Engine::Create(executor_.get(), nullptr, {.policy = "lifo"}).ok());
  EXPECT_FALSE(Engine::Create(executor_.get(), nullptr, {.itl_target_ms = -1}).ok());
  EXPECT_FALSE(Engine::Create(executor_.get(), nullptr, {.kv_policy = "clock"}).ok());
  EXPECT_FALSE(Engine::Create(executor_.get(), nullptr, {.itl_target_ms = std::nan("")}).ok());
  EXPECT_FALSE(Engine::Create(executor_.get(), nullptr, {.max_waiting = -1}).ok());
}

TEST_F(EngineServingTest, RefusesWhatCannotBeMeant) {
  Create(Info());
  const auto with = [](auto change) {
    Request request = MakeRequest(Prompt(3), 5);
    change(request);
    return request;
  };
  EXPECT_EQ(SubmitError(with([](Request& r) { r.n = 0; })), "invalid_argument: n is 0: must be in 1..1024");
  EXPECT_NE(SubmitError(with([](Request& r) { r.n = 1025; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.tenant_weight = 0; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.tenant_weight = std::nan(""); })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.deadline_us = -1; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.kv_ttl_us = -1; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.kv_class = 4; })), "");
}

// With the trace of a run its schedule can be made again, without a model.
TEST_F(EngineServingTest, AScheduleReplaysFromItsTrace) {
  ManualClock clock;
  SchedulerTrace trace;
  const ExecutorInfo info = Info(40, /*depth=*/1);
  Create(info, {.policy = "fair", .itl_target_ms = 5, .clock = &clock, .trace = &trace});
  for (int32_t i = 0; i < 10; ++i) {
    Request request = MakeRequest(Prompt(20 + i, i % 3), 30);
    request.tenant = std::string(i % 2 == 0 ? "a" : "b");
    request.n = 1 + i % 3;
    SubmitChoices(request);
    clock.Advance(700 + 100 * i);
    ASSERT_TRUE(engine_->Step().ok());
  }
  while (engine_->HasWork()) {
    clock.Advance(900);
    ASSERT_TRUE(engine_->Step().ok());
  }
  const SchedulerLimits limits = LimitsOf(info);
  const auto plans = ReplayTrace(trace, limits, {.itl_target_us = 5000}, *MakeSchedulingPolicy("fair"));
  ASSERT_TRUE(plans.ok()) << plans.status().ToString();
  const auto num_steps =
      std::count_if(plans->begin(), plans->end(), [](const StepPlan& plan) { return !plan.empty(); });
  EXPECT_EQ(static_cast<uint64_t>(num_steps), engine_->stats().steps);
}

TEST_F(EngineServingTest, CountsWhatAServerShows) {
  ManualClock clock;
  ExecutorInfo info = Info();
  info.max_seqs = 2;
  Create(info, {.clock = &clock});
  const auto a = Submit(MakeRequest(Prompt(40), 4));
  const auto b = Submit(MakeRequest(Prompt(30, 5), 2));
  const auto c = Submit(MakeRequest(Prompt(20, 9), 2));
  clock.Advance(100);
  ASSERT_TRUE(engine_->Step().ok());
  const EngineStats& stats = engine_->stats();
  EXPECT_EQ(stats.running, 2);
  EXPECT_EQ(stats.waiting, 1);
  EXPECT_EQ(stats.step_prompt_tokens, 70);
  EXPECT_EQ(stats.step_decode_tokens, 0);
  EXPECT_EQ(stats.admitted, 2);
  EXPECT_EQ(stats.queue_us, 200);
  EXPECT_EQ(stats.kv_blocks_used[0], 10 + 8);
  EXPECT_EQ(stats.kv_unused_tokens[0], 2) << "40 and 30 tokens in blocks of 4";
  clock.Advance(50);
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_EQ(stats.step_prompt_tokens, 0);
  EXPECT_EQ(stats.step_decode_tokens, 2);
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_EQ(stats.step_prompt_tokens, 20);
  EXPECT_EQ(stats.step_decode_tokens, 1);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(stats.admitted, 3);
  EXPECT_EQ(stats.queue_us, 350);
  EXPECT_EQ(a->queue_us, 100);
  EXPECT_EQ(c->queue_us, 150);
  EXPECT_EQ(stats.cache_query_tokens, 90);
}

// What is left out of the outputs can be made of their tokens: the same text, with and without preemptions, speculation, bad words.
TEST_F(EngineServingTest, TextCanBeMadeElsewhere) {
  for (const int32_t depth : {0, 1}) {
    for (const int32_t num_blocks : {256, 24}) {
      for (const DraftKind drafts : {DraftKind::kNone, DraftKind::kNgram}) {
        std::vector<std::shared_ptr<CollectedChoices>> with_text;
        for (const bool text : {true, false}) {
          Create(Info(num_blocks, depth), {.prefill_chunk = 16, .drafts = drafts, .adaptive_drafts = false});
          std::vector<std::shared_ptr<CollectedChoices>> got;
          std::vector<std::vector<RequestStream>> streams;
          for (int32_t i = 0; i < 4; ++i) {
            Request request = MakeRequest(Prompt(20 + i, 3 * i), 30);
            request.text = text;
            request.n = 1 + i % 2;
            request.sampling.temperature = 1.0f;
            request.sampling.seed = static_cast<uint64_t>(i);
            request.stop_ids = {kTinyEndToken};
            request.include_stop = i == 1;
            if (i == 2) request.bad_words = {{1, 2}, {7, 8}};
            if (i == 3) request.num_top_logprobs = 1;
            if (text) {
              got.push_back(SubmitChoices(request));
              continue;
            }
            std::vector<RequestStream> own;
            for (int32_t c = 0; c < request.n; ++c) own.push_back(MakeStream(request, tokenizer_));
            streams.push_back(std::move(own));
            auto collected = std::make_shared<CollectedChoices>();
            collected->choices.resize(static_cast<size_t>(request.n));
            ASSERT_TRUE(engine_->Submit(request, [&streams, collected, i](const RequestOutput& output) {
              EXPECT_EQ(output.text, "");
              auto& choice = collected->choices.at(static_cast<size_t>(output.choice));
              choice.Take(output);
              RequestStream& stream = streams[static_cast<size_t>(i)][static_cast<size_t>(output.choice)];
              stream.BeginStep();
              for (size_t t = 0; t < output.token_ids.size(); ++t) {
                stream.Take(output.token_ids[t], output.finished && output.finish_reason == FinishReason::kStop && t + 1 == output.token_ids.size());
              }
              if (output.finished) stream.Finish();
              choice.text += stream.text();
            }).ok());
            got.push_back(collected);
          }
          ASSERT_TRUE(engine_->RunUntilIdle().ok());
          ExpectNothingHeld();
          if (text) with_text = got;
          for (size_t i = 0; i < got.size(); ++i) {
            for (size_t c = 0; c < got[i]->choices.size(); ++c) {
              ExpectSame(got[i]->choices[c], with_text[i]->choices[c]);
              EXPECT_EQ(got[i]->choices[c].text, with_text[i]->choices[c].text);
              EXPECT_EQ(got[i]->choices[c].num_cached_tokens, with_text[i]->choices[c].num_cached_tokens);
              EXPECT_NE(got[i]->choices[c].text, "");
            }
          }
        }
      }
    }
  }
}

TEST_F(EngineServingTest, WhatHangsOnTheTextNeedsIt) {
  Create(Info());
  const auto refused = [this](auto change) {
    Request request = MakeRequest(Prompt(5), 5);
    request.text = false;
    change(&request);
    return SubmitError(std::move(request));
  };
  EXPECT_EQ(refused([](Request*) {}), "");
  const char* why = "invalid_argument: an answer without text cannot end at stop strings, limit its reasoning or be a call";
  EXPECT_EQ(refused([](Request* r) { r->stop_strings = {"a"}; }), why);
  EXPECT_EQ(refused([](Request* r) { r->reasoning.budget = 3, r->reasoning.close_ids = {3}; }), why);
  EXPECT_EQ(refused([](Request* r) { r->reasoning.inside = true, r->reasoning.then_ids = {3}; }), why);
  EXPECT_EQ(refused([](Request* r) { r->call.on = true, r->call.in_prompt = true; }), why);
}

}  // namespace
}  // namespace cachalot
