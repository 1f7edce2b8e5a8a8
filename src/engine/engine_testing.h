// EngineTest: an engine over a fake executor, and requests for it: for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/collected_output.h"
#include "engine/fake_executor.h"
#include "engine/tiny_tokenizer.h"

namespace cachalot {

inline ExecutorInfo Info(int32_t num_blocks = 256, int32_t depth = 0) {
  return {
      .max_seqs = 8,
      .max_step_tokens = 128,
      .max_context = 200,
      .vocab_size = 50,
      .depth = depth,
      .max_logit_rows = 32,
      .kv_groups = {
          {.name = "full", .block_tokens = 4, .num_blocks = num_blocks, .window = 0, .block_bytes = 1},
          {.name = "window", .block_tokens = 8, .num_blocks = num_blocks, .window = 20, .block_bytes = 1}}};
}

inline std::vector<int32_t> Prompt(int32_t length, int32_t start = 1) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back((start + 7 * i) % 49);
  return prompt;
}

inline Request MakeRequest(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.prompt_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto tokenizer = TinyTokenizer(::testing::TempDir() + "/cachalot_engine_testing");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    tokenizer_ = tokenizer->release();
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  void Create(const ExecutorInfo& info, EngineOptions options = {}) {
    executor_ = std::make_unique<FakeExecutor>(info);
    auto engine = Engine::Create(executor_.get(), tokenizer_, options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(*engine);
  }

  std::shared_ptr<CollectedOutput> Submit(Request request, uint64_t* id = nullptr) {
    auto collected = std::make_shared<CollectedOutput>();
    auto submitted = engine_->Submit(std::move(request), CollectedOutput::Into(collected));
    EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
    if (id != nullptr) *id = *submitted;
    return collected;
  }

  std::shared_ptr<CollectedOutput> SubmitAndRun(Request request) {
    auto collected = Submit(std::move(request));
    EXPECT_TRUE(engine_->RunUntilIdle().ok());
    return collected;
  }

  std::string SubmitError(Request request) {
    auto submitted = engine_->Submit(std::move(request), [](const RequestOutput&) {});
    return submitted.ok() ? "" : submitted.status().ToString();
  }

  void ExpectNothingHeld() {
    EXPECT_FALSE(engine_->HasWork());
    EXPECT_EQ(engine_->stats().running, 0);
    EXPECT_EQ(engine_->stats().waiting, 0);
    for (int32_t used : engine_->stats().kv_blocks_used) EXPECT_EQ(used, 0);
  }

  CollectedOutput Expected(const Request& request) {
    return ExpectedOutput(executor_->model(), request, executor_->info().max_context);
  }

  static inline Tokenizer* tokenizer_ = nullptr;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace cachalot
