// What errors of the executor do to requests, at both depths.
#include "base/fault.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace cachalot {
namespace {

TEST_F(EngineTest, AFailedStepEndsItsRequestsAndNoOthers) {
  for (int32_t depth : {0, 1}) {
    for (const char* point : {"device.op", "device.collect"}) {
      ExecutorInfo info = Info(256, depth);
      info.max_seqs = 2;
      Create(info);
      const auto a = Submit(MakeRequest(Prompt(5), 20));
      const auto b = Submit(MakeRequest(Prompt(150), 20));
      const auto waiting = Submit(MakeRequest(Prompt(9), 20));
      ASSERT_TRUE(engine_->Step().ok());
      {
        ScopedFault fault(point);
        ASSERT_TRUE(engine_->Step().ok());
      }
      for (const auto& failed : {a, b}) {
        EXPECT_TRUE(failed->finished);
        EXPECT_EQ(failed->reason, FinishReason::kError);
        EXPECT_EQ(failed->error.code(), StatusCode::kDeviceError);
      }
      EXPECT_EQ(a->tokens.size(), depth == 0 ? 1u : 0u);
      EXPECT_EQ(engine_->stats().recoveries, 1);
      ASSERT_TRUE(engine_->RunUntilIdle().ok());
      ExpectSame(*waiting, Expected(MakeRequest(Prompt(9), 20)));
      ExpectNothingHeld();
    }
  }
}

// What had no row in the failed step lost its KV cache too, and nothing else.
TEST_F(EngineTest, AfterARecoveryRunningRequestsAreComputedAnew) {
  ExecutorInfo info = Info();
  info.max_logit_rows = 2;
  Create(info, {.max_batch_tokens = 3});
  const auto decoding = Submit(MakeRequest(Prompt(2), 30));
  ASSERT_TRUE(engine_->Step().ok());
  // Three tokens a step: two prompts with logits fill it, and the third has no row.
  std::vector<std::shared_ptr<CollectedOutput>> others;
  for (int32_t i = 0; i < 3; ++i) others.push_back(Submit(MakeRequest(Prompt(20, i), 4)));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine_->Step().ok());
  {
    ScopedFault fault("device.op");
    ASSERT_TRUE(engine_->Step().ok());
  }
  EXPECT_EQ(decoding->reason, FinishReason::kError);
  EXPECT_EQ(decoding->tokens.size(), 6u);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  int num_same = 0;
  for (int32_t i = 0; i < 3; ++i) {
    const auto& got = *others[static_cast<size_t>(i)];
    if (got.reason == FinishReason::kError) continue;
    ExpectSame(got, Expected(MakeRequest(Prompt(20, i), 4)));
    ++num_same;
  }
  EXPECT_EQ(num_same, 2);
  EXPECT_EQ(engine_->stats().recoveries, 1);
  ExpectNothingHeld();
}

TEST_F(EngineTest, WithoutARecoveryEverythingFailsAndTheNextRequestTriesAgain) {
  for (int32_t depth : {0, 1}) {
    ExecutorInfo info = Info(256, depth);
    info.max_seqs = 1;
    Create(info);
    const auto running = Submit(MakeRequest(Prompt(5), 20));
    const auto waiting = Submit(MakeRequest(Prompt(9), 20));
    ASSERT_TRUE(engine_->Step().ok());
    {
      ScopedFault recover("device.recover", 0, 2);
      {
        ScopedFault fault("device.op");
        ASSERT_TRUE(engine_->Step().ok());
      }
      EXPECT_EQ(running->error.message().find("recovering"), std::string::npos) << running->error.ToString();
      EXPECT_NE(waiting->error.message().find("recovering"), std::string::npos) << waiting->error.ToString();
      EXPECT_FALSE(engine_->HasWork());
      const auto in_vain = Submit(MakeRequest(Prompt(9), 20));
      ASSERT_TRUE(engine_->Step().ok());
      EXPECT_EQ(in_vain->reason, FinishReason::kError);
    }
    EXPECT_EQ(engine_->stats().recoveries, 0);
    const auto next = Submit(MakeRequest(Prompt(9), 20));
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    ExpectSame(*next, Expected(MakeRequest(Prompt(9), 20)));
    EXPECT_EQ(engine_->stats().recoveries, 1);
  }
}

TEST_F(EngineTest, ASecondFaultRightAfterARecoveryFailsEverything) {
  ExecutorInfo info = Info(256, 1);
  info.max_seqs = 1;
  Create(info);
  std::vector<std::shared_ptr<CollectedOutput>> all;
  for (int32_t i = 0; i < 4; ++i) all.push_back(Submit(MakeRequest(Prompt(5, i), 20)));
  {
    ScopedFault fault("device.collect", 0, 2);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine_->Step().ok());
  }
  for (const auto& got : all) EXPECT_EQ(got->reason, FinishReason::kError);
  EXPECT_EQ(engine_->stats().recoveries, 2);
  const auto next = Submit(MakeRequest(Prompt(9), 20));
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  ExpectSame(*next, Expected(MakeRequest(Prompt(9), 20)));
}

}  // namespace
}  // namespace cachalot
