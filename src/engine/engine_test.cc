#include "engine/engine.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "engine/engine_testing.h"
#include "support/heap_hook.h"

namespace cachalot {
namespace {

// Requests that together use everything.
std::vector<Request> Mixture() {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 12; ++i) {
    Request request = MakeRequest(Prompt(1 + (9 * i) % 70, i), i % 5 == 4 ? 0 : 10 + 3 * i);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.7f;
    request.sampling.seed = static_cast<uint64_t>(i);
    if (i % 3 == 1) request.sampling.frequency_penalty = 0.5f;
    if (i % 4 == 1) request.sampling.logit_bias = {{2, 3.0f}};
    request.num_top_logprobs = i % 4 - 1;
    request.prompt_logprobs = i % 3 == 0;
    request.num_prompt_top_logprobs = i % 5;
    request.all_logits = i % 4 == 2;
    request.mtp_logits = i % 6 == 3;
    if (request.max_tokens > 0 && i % 2 == 1) {
      for (int32_t id = 0; id < 20; ++id) request.stop_ids.push_back(id);
      request.min_tokens = request.max_tokens;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_F(EngineTest, AloneBatchedChunkedAndUnderPressureTheSame) {
  for (int32_t num_blocks : {256, 64, 30}) {
    for (int32_t chunk : {1, 7, 64, 512}) {
      for (int32_t depth : {0, 1}) {
        Create(Info(num_blocks, depth), {.max_batch_tokens = 100, .prefill_chunk = chunk});
        const std::vector<Request> requests = Mixture();
        std::vector<std::shared_ptr<CollectedOutput>> got;
        for (const Request& request : requests) got.push_back(Submit(request));
        ASSERT_TRUE(engine_->RunUntilIdle().ok());
        for (size_t i = 0; i < requests.size(); ++i) {
          SCOPED_TRACE(fmt::format("request {}, chunk {}, {} blocks", i, chunk, num_blocks));
          ExpectSame(*got[i], Expected(requests[i]));
        }
        if (num_blocks == 30) {
          EXPECT_GT(engine_->stats().preemptions, 0);
        }
        ExpectNothingHeld();
      }
    }
  }
  Create(Info());
  for (const Request& request : Mixture()) {
    const auto got = Submit(request);
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    ExpectSame(*got, Expected(request));
  }
}

TEST_F(EngineTest, MaxTokensZeroComputesThePromptOnly) {
  Create(Info(), {.prefill_chunk = 16});
  Request request = MakeRequest(Prompt(50), 0);
  request.prompt_logprobs = true;
  request.all_logits = true;
  const auto got = Submit(request);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  ExpectSame(*got, Expected(request));
  EXPECT_TRUE(got->tokens.empty());
  EXPECT_EQ(got->prompt_logprobs.size(), 49u);
  EXPECT_EQ(got->logits.size(), 50u * 50u);
  EXPECT_EQ(got->num_callbacks, 4) << "one for each chunk";
  EXPECT_EQ(engine_->stats().prompt_tokens, 50);
  EXPECT_EQ(engine_->stats().generated_tokens, 0);
}

TEST_F(EngineTest, StopIdsAreTokensWithoutText) {
  Create(Info());
  const auto plain = executor_->model().Generate(Prompt(5), {}, 30);
  Request request = MakeRequest(Prompt(5), 30);
  request.stop_ids = {plain[9]};
  const size_t end = static_cast<size_t>(std::find(plain.begin(), plain.end(), plain[9]) - plain.begin());
  const auto got = Submit(request);
  request.ignore_eos = true;
  const auto ignoring = Submit(request);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(got->reason, FinishReason::kStop);
  EXPECT_EQ(got->tokens,
            std::vector<int32_t>(plain.begin(), plain.begin() + static_cast<ptrdiff_t>(end) + 1));
  EXPECT_EQ(got->text, tokenizer_->Decode(std::span(plain).first(end)));
  EXPECT_EQ(ignoring->reason, FinishReason::kLength);
  EXPECT_EQ(ignoring->tokens, plain);
  EXPECT_EQ(ignoring->text, tokenizer_->Decode(plain));
}

TEST_F(EngineTest, StopStringsCutTheText) {
  Create(Info());
  const auto plain = executor_->model().Generate(Prompt(6), {}, 60);
  const std::string text = tokenizer_->Decode(plain);
  ASSERT_GT(text.size(), 20u);
  // Every piece of the text as a stop string: across tokens, inside tokens, at the end.
  for (size_t begin = 0; begin < text.size(); ++begin) {
    if ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) continue;
    for (size_t length : {1, 2, 5, 9}) {
      if (begin + length > text.size()) continue;
      Request request = MakeRequest(Prompt(6), 60);
      request.stop_strings = {"never in it", text.substr(begin, length)};
      const auto got = Submit(request);
      ASSERT_TRUE(engine_->RunUntilIdle().ok());
      EXPECT_EQ(got->text, text.substr(0, text.find(request.stop_strings[1])));
      EXPECT_EQ(got->reason, FinishReason::kStop);
      EXPECT_TRUE(std::equal(got->tokens.begin(), got->tokens.end(), plain.begin()));
    }
  }
  ExpectNothingHeld();
}

TEST_F(EngineTest, HeldBackTextComesWithTheEnd) {
  Create(Info());
  const auto plain = executor_->model().Generate(Prompt(6), {}, 25);
  const std::string text = tokenizer_->Decode(plain);
  Request request = MakeRequest(Prompt(6), 25);
  request.stop_strings = {text.substr(text.size() - 3) + "and more"};
  const auto got = Submit(request);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(got->text, text);
  EXPECT_EQ(got->reason, FinishReason::kLength);
}

TEST_F(EngineTest, AFullContextEndsWithLength) {
  Create(Info());
  const Request request = MakeRequest(Prompt(180), 1 << 30);
  const auto got = Submit(request);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(got->tokens.size(), 20u);
  ExpectSame(*got, Expected(request));
}

TEST_F(EngineTest, SubmitRefusesWhatCannotBeRight) {
  Create(Info());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto with = [](auto change) {
    Request request = MakeRequest(Prompt(3), 5);
    change(request);
    return request;
  };
  EXPECT_EQ(SubmitError(with([](Request&) {})), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.prompt_ids.clear(); })), "");
  EXPECT_EQ(SubmitError(with([](Request& r) { r.prompt_ids[1] = 50; })),
            "invalid_argument: prompt token 1 is 50: the vocabulary has 50");
  EXPECT_NE(SubmitError(with([](Request& r) { r.prompt_ids[0] = -1; })), "");
  EXPECT_EQ(SubmitError(MakeRequest(Prompt(201), 0)),
            "invalid_argument: the prompt has 201 tokens: the context holds 200");
  EXPECT_NE(SubmitError(MakeRequest(Prompt(200), 1)), "");
  EXPECT_EQ(SubmitError(MakeRequest(Prompt(200), 0)), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.max_tokens = -1; })), "");
  EXPECT_NE(SubmitError(with([&](Request& r) { r.sampling.temperature = nan; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.sampling.temperature = -1; })), "");
  EXPECT_EQ(SubmitError(with([](Request& r) { r.sampling.top_p = 1.5; })),
            "invalid_argument: top_p is 1.5: must be in 0..1");
  EXPECT_NE(SubmitError(with([](Request& r) { r.sampling.top_k = -1; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.sampling.repetition_penalty = 0; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.sampling.logit_bias = {{50, 1}}; })), "");
  EXPECT_NE(SubmitError(with([&](Request& r) { r.sampling.logit_bias = {{5, nan}}; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.sampling.logit_bias = {{5, 1}, {6, 1}, {5, 1}}; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.num_top_logprobs = -2; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.num_top_logprobs = 51; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.stop_strings = {"a", ""}; })), "");
  EXPECT_NE(SubmitError(with([](Request& r) { r.stop_strings = {"\xA4 tail"}; })), "");

  ExecutorInfo info = Info();
  info.max_logit_rows = 0;
  Create(info);
  EXPECT_NE(SubmitError(with([](Request& r) { r.all_logits = true; })).find("unsupported"),
            std::string::npos);

  EXPECT_FALSE(Engine::Create(executor_.get(), nullptr, {.max_batch_tokens = 0}).ok());
  engine_ = *Engine::Create(executor_.get(), nullptr, {});
  EXPECT_NE(SubmitError(with([](Request& r) { r.stop_strings = {"a"}; })), "");
  const auto got = Submit(MakeRequest(Prompt(3), 5));
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(got->text, "");
  EXPECT_EQ(got->tokens.size(), 5u);
}

TEST_F(EngineTest, CancelWaitingRunningAndFromACallback) {
  ExecutorInfo info = Info();
  info.max_seqs = 2;
  Create(info);
  uint64_t running_id, waiting_id;
  const auto running = Submit(MakeRequest(Prompt(10), 50), &running_id);
  const auto other = Submit(MakeRequest(Prompt(10), 50));
  const auto waiting = Submit(MakeRequest(Prompt(10), 50), &waiting_id);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine_->Step().ok());
  engine_->Cancel(waiting_id);
  engine_->Cancel(waiting_id);
  engine_->Cancel(12345);
  EXPECT_FALSE(waiting->finished) << "callbacks come from Step";
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_EQ(waiting->reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting->num_callbacks, 1);
  engine_->Cancel(running_id);
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_TRUE(running->finished);
  EXPECT_EQ(running->reason, FinishReason::kCancelled);
  EXPECT_EQ(running->tokens.size(), 4u);
  EXPECT_EQ(running->text, tokenizer_->Decode(running->tokens)) << "nothing is held back";

  // A callback cancels its own request and submits another.
  CollectedOutput own;
  std::shared_ptr<CollectedOutput> next;
  auto id = engine_->Submit(MakeRequest(Prompt(4), 50), [&](const RequestOutput& output) {
    own.Take(output);
    if (own.tokens.size() == 3) {
      engine_->Cancel(output.request_id);
      next = Submit(MakeRequest(Prompt(7), 5));
    }
  });
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(own.reason, FinishReason::kCancelled);
  EXPECT_EQ(own.tokens.size(), 3u);
  EXPECT_EQ(next->tokens.size(), 5u);
  EXPECT_EQ(other->tokens.size(), 50u);
  ExpectNothingHeld();
}

TEST_F(EngineTest, StatsCountEachTokenOnce) {
  Create(Info(30), {.prefill_chunk = 16});
  for (int32_t i = 0; i < 8; ++i) Submit(MakeRequest(Prompt(20, i), 20));
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_GT(engine_->stats().preemptions, 0);
  EXPECT_EQ(engine_->stats().prompt_tokens, 160);
  EXPECT_EQ(engine_->stats().generated_tokens, 160);
  EXPECT_GT(engine_->stats().steps, 20u);
}

TEST_F(EngineTest, ADecodeStepAllocatesNothing) {
  for (int32_t depth : {0, 1}) {
    ExecutorInfo info = Info(1000, depth);
    info.max_context = 400;
    Create(info);
    int64_t num_tokens = 0;
    for (int32_t i = 0; i < 8; ++i) {
      Request request = MakeRequest(Prompt(10 + i, i), 300);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      request.num_top_logprobs = i % 4 - 1;
      request.all_logits = i == 5;
      request.stop_strings = {"a text that never comes", "nor this"};
      ASSERT_TRUE(engine_
                      ->Submit(std::move(request),
                               [&](const RequestOutput& output) {
                                 num_tokens += static_cast<int64_t>(output.token_ids.size());
                               })
                      .ok());
    }
    for (int step = 0; step < 20; ++step) ASSERT_TRUE(engine_->Step().ok());
    num_tokens = 0;
    const HeapCounter heap;
    bool ok = true;
    for (int step = 0; step < 250; ++step) ok &= engine_->Step().ok();
    EXPECT_EQ(heap.count(), 0);
    EXPECT_TRUE(ok);
    EXPECT_EQ(num_tokens, 8 * 250);
    // The counter counts.
    const HeapCounter check;
    const auto one = std::make_unique<int>(1);
    EXPECT_EQ(check.count(), 1);
  }
}

}  // namespace
}  // namespace cachalot
