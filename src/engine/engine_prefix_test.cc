// What requests share through the prefix cache, and what they must not.
#include "base/fault.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace cachalot {
namespace {

TEST_F(EngineTest, ASecondRequestComputesOnlyWhatIsNew) {
  for (int32_t depth : {0, 1}) {
    Create(Info(256, depth));
    const Request first = MakeRequest(Prompt(50), 10);
    ExpectSame(*SubmitAndRun(first), Expected(first));
    // Pages of 8 tokens: 48 of 50 are known, and some of the answer.
    const auto again = SubmitAndRun(first);
    ExpectSame(*again, Expected(first));
    EXPECT_EQ(again->num_cached_tokens, 48);
    EXPECT_EQ(engine_->stats().cache_query_tokens, 100);
    EXPECT_EQ(engine_->stats().cache_hit_tokens, 48);
    EXPECT_EQ(engine_->stats().prompt_tokens, 52) << "computed";
    EXPECT_GT(engine_->stats().kv_blocks_cached[0], 12);

    // The next turn of a chat continues the answer.
    Request turn = MakeRequest(first.prompt_ids, 5);
    turn.prompt_ids.insert(turn.prompt_ids.end(), again->tokens.begin(), again->tokens.end());
    turn.prompt_ids.push_back(3);
    const auto got = SubmitAndRun(turn);
    ExpectSame(*got, Expected(turn));
    EXPECT_EQ(got->num_cached_tokens, 56) << "59 tokens are computed";
    ExpectNothingHeld();
  }
}

TEST_F(EngineTest, ThePromptsLastTokenIsAlwaysComputed) {
  Create(Info());
  const Request request = MakeRequest(Prompt(48), 4);
  SubmitAndRun(request);
  const auto again = SubmitAndRun(request);
  ExpectSame(*again, Expected(request));
  EXPECT_EQ(again->num_cached_tokens, 40);
}

TEST_F(EngineTest, TenantsShareNothing) {
  Create(Info());
  Request request = MakeRequest(Prompt(50), 4);
  request.cache_salt = "one";
  SubmitAndRun(request);
  EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 48);
  request.cache_salt = "another";
  EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 0);
  EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 48);
}

// Every policy gives the same answers. What it changes is how often prefixes are found.
TEST_F(EngineTest, CachePoliciesChangeNoAnswer) {
  for (const std::string policy : {"lru", "lfu", "lru-k", "arc", "s3-fifo", "w-tinylfu", "sieve"}) {
    Create(Info(12), {.kv_policy = policy});
    for (int32_t i = 0; i < 24; ++i) {
      const Request request = MakeRequest(Prompt(30, i % 5), 6);
      ExpectSame(*SubmitAndRun(request), Expected(request));
    }
    EXPECT_GT(engine_->stats().cache_evictions, 0) << policy;
    ExpectNothingHeld();
  }
}

TEST_F(EngineTest, PinsPrioritiesAndTimesToLive) {
  ManualClock clock;
  Create(Info(16), {.kv_policy = "lru", .clock = &clock});
  const auto found = [&](int32_t text) {
    const auto got = SubmitAndRun(MakeRequest(Prompt(30, text), 1));
    return got->num_cached_tokens;
  };
  found(1);
  EXPECT_EQ(engine_->PinPrefix(Prompt(30, 1), "", true), 24);
  EXPECT_EQ(engine_->PinPrefix(Prompt(30, 1), "other", true), 0);
  EXPECT_EQ(engine_->stats().kv_blocks_pinned[0], 6) << "of 4 tokens";
  for (int32_t text = 2; text < 8; ++text) found(text);
  EXPECT_EQ(found(1), 24);
  EXPECT_EQ(engine_->PinPrefix(Prompt(30, 1), "", false), 24);
  EXPECT_EQ(engine_->stats().kv_blocks_pinned[0], 0);
  engine_->FlushCache();
  EXPECT_EQ(engine_->stats().kv_blocks_cached[0], 0);
  EXPECT_EQ(found(1), 0);

  Request high = MakeRequest(Prompt(30, 2), 1);
  high.kv_priority = 1;
  high.kv_ttl_us = 1000;
  SubmitAndRun(high);
  for (int32_t text = 3; text < 8; ++text) found(text);
  EXPECT_EQ(SubmitAndRun(high)->num_cached_tokens, 24);
  clock.Advance(2000);
  for (int32_t text = 3; text < 8; ++text) found(text);
  EXPECT_EQ(SubmitAndRun(high)->num_cached_tokens, 0) << "it outlived its time";
  ExpectNothingHeld();
}

TEST_F(EngineTest, WithoutPrefixCachingNothingIsShared) {
  Create(Info(), {.enable_prefix_caching = false});
  const Request request = MakeRequest(Prompt(50), 4);
  for (int i = 0; i < 2; ++i) {
    const auto got = SubmitAndRun(request);
    ExpectSame(*got, Expected(request));
    EXPECT_EQ(got->num_cached_tokens, 0);
  }
  EXPECT_EQ(engine_->stats().cache_hit_tokens, 0);
}

// Whoever wants something of every position computes every position, and then serves the others.
TEST_F(EngineTest, WhatIsWantedFromEveryPositionIsComputed) {
  Create(Info());
  const Request plain = MakeRequest(Prompt(50), 6);
  SubmitAndRun(plain);
  for (int what = 0; what < 3; ++what) {
    Request request = plain;
    (what == 0 ? request.prompt_logprobs : what == 1 ? request.all_logits : request.mtp_logits) = true;
    const auto got = SubmitAndRun(request);
    ExpectSame(*got, Expected(request));
    EXPECT_EQ(got->num_cached_tokens, 0) << what;
  }
  EXPECT_EQ(SubmitAndRun(plain)->num_cached_tokens, 48);
}

TEST_F(EngineTest, RequestsThatRunTogetherShare) {
  Create(Info());
  const Request first = MakeRequest(Prompt(60), 40);
  const auto a = Submit(first);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine_->Step().ok());
  const int32_t used = engine_->stats().kv_blocks_used[0];
  const auto b = Submit(first);
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_LE(engine_->stats().kv_blocks_used[0], used + 3) << "56 tokens are held together";
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  ExpectSame(*a, Expected(first));
  ExpectSame(*b, Expected(first));
  EXPECT_EQ(b->num_cached_tokens, 56);
}

TEST_F(EngineTest, AFullCacheServesAndForgetsTheOldest) {
  ExecutorInfo info = Info(40);  // of the full group: 160 tokens
  Create(info);
  for (int32_t i = 0; i < 12; ++i) {
    const Request request = MakeRequest(Prompt(60, i), 10);
    ExpectSame(*SubmitAndRun(request), Expected(request));
  }
  EXPECT_GT(engine_->stats().cache_evictions, 100);
  EXPECT_EQ(SubmitAndRun(MakeRequest(Prompt(60, 11), 10))->num_cached_tokens, 56);
  EXPECT_EQ(SubmitAndRun(MakeRequest(Prompt(60, 0), 10))->num_cached_tokens, 0);
  ExpectNothingHeld();
}

// What a device held before an error is not there after it.
TEST_F(EngineTest, ARecoveryForgetsTheCache) {
  Create(Info());
  const Request request = MakeRequest(Prompt(50), 10);
  SubmitAndRun(request);
  {
    ScopedFault fault("device.op");
    EXPECT_EQ(SubmitAndRun(request)->reason, FinishReason::kError);
  }
  EXPECT_EQ(engine_->stats().kv_blocks_cached[0], 0);
  const auto got = SubmitAndRun(request);
  ExpectSame(*got, Expected(request));
  EXPECT_EQ(got->num_cached_tokens, 0);
}

TEST_F(EngineTest, APreemptedRequestFindsWhatItComputed) {
  for (int32_t depth : {0, 1}) {
    Create(Info(32, depth));
    std::vector<Request> requests;
    std::vector<std::shared_ptr<CollectedOutput>> got;
    for (int32_t i = 0; i < 4; ++i) {
      requests.push_back(MakeRequest(Prompt(20, i), 60));
      requests.back().all_logits = i == 3;
      got.push_back(Submit(requests.back()));
    }
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    EXPECT_GT(engine_->stats().preemptions, 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      ExpectSame(*got[i], Expected(requests[i]));
      EXPECT_EQ(got[i]->num_cached_tokens, 0) << "counted at the first admission only";
    }
  }
}

}  // namespace
}  // namespace cachalot
