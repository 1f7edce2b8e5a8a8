// The KV tier on disk under an engine: a fake device whose answers depend on what its blocks hold.
#include <filesystem>

#include <unistd.h>

#include "base/fault.h"
#include "engine/engine_testing.h"
#include "engine/kv_tier.h"
#include "sched/fake_device.h"
#include "sched/policy/policies.h"
#include "sched/scheduler_trace.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

class EngineTierTest : public EngineTest {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / fmt::format("cachalot_engine_tier_{}", ::getpid());
    fs::remove_all(dir_);
  }
  void TearDown() override {
    engine_.reset();
    fs::remove_all(dir_);
  }
  // A new engine over a new device: as after a restart.
  void Restart(int32_t depth = 0, int32_t num_blocks = 256, SchedulerTrace* trace = nullptr) {
    engine_.reset();
    ExecutorInfo info = Info(num_blocks, depth);
    for (KvGroupInfo& group : info.kv_groups) group.block_bytes = group.block_tokens * FakeDevice::kCellBytes;
    info.kv_identity = identity_;
    info_ = info;
    EngineOptions options;
    options.kv_disk_dir = dir_.string();
    options.kv_disk_bytes = max_bytes_;
    options.clock = &clock_;  // a slow disk is waited for
    options.trace = trace;
    Create(info, options);
  }
  const KvTierStats& stats() { return engine_->stats().kv_disk; }

  fs::path dir_;
  int64_t max_bytes_ = 1 << 20;
  ManualClock clock_;
  std::string identity_ = "model-a";
  ExecutorInfo info_;
};

TEST_F(EngineTierTest, APrefixOutlivesTheProcess) {
  for (int32_t depth : {0, 1}) {
    fs::remove_all(dir_);
    Restart(depth);
    const Request request = MakeRequest(Prompt(50), 10);
    ExpectSame(*SubmitAndRun(request), Expected(request));
    EXPECT_EQ(stats().promotions, 0);
    Restart(depth);
    EXPECT_GT(stats().blocks, 12);
    const auto again = SubmitAndRun(request);
    ExpectSame(*again, Expected(request));
    EXPECT_EQ(again->num_cached_tokens, 48);
    EXPECT_EQ(engine_->stats().prompt_tokens, 2) << "computed";
    EXPECT_EQ(stats().promotions, 1);
    EXPECT_GE(stats().promoted_blocks, 12);
    EXPECT_EQ(stats().promoted_blocks, stats().read_blocks);
    // What came from the disk serves the next from memory.
    EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 48);
    EXPECT_EQ(stats().promotions, 1);
    ExpectNothingHeld();
  }
}

TEST_F(EngineTierTest, WhatGaveWayInMemoryComesBack) {
  Restart(0, 40);
  for (int32_t i = 0; i < 12; ++i) {
    const Request request = MakeRequest(Prompt(60, i), 10);
    ExpectSame(*SubmitAndRun(request), Expected(request));
  }
  EXPECT_GT(engine_->stats().cache_evictions, 100);
  for (int32_t i = 0; i < 12; ++i) {
    const Request request = MakeRequest(Prompt(60, i), 10);
    const auto got = SubmitAndRun(request);
    ExpectSame(*got, Expected(request));
    EXPECT_EQ(got->num_cached_tokens, 56) << i;
  }
  ExpectNothingHeld();
}

TEST_F(EngineTierTest, TenantsAndModelsShareNothing) {
  Restart();
  Request request = MakeRequest(Prompt(50), 4);
  request.cache_salt = "one";
  SubmitAndRun(request);
  Restart();
  request.cache_salt = "another";
  EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 0);
  request.cache_salt = "one";
  EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 48);
  identity_ = "model-b";
  Restart();
  EXPECT_EQ(stats().blocks, 0);
  EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 0);
}

TEST_F(EngineTierTest, AFlushReachesTheDisk) {
  Restart();
  const Request request = MakeRequest(Prompt(50), 4);
  SubmitAndRun(request);
  engine_->FlushCache();
  EXPECT_EQ(SubmitAndRun(MakeRequest(Prompt(50, 2), 4))->num_cached_tokens, 0);
  Restart();
  EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 0);
}

// Many at once, with what is cancelled, what wants all positions, and a disk whose reads and writes fail now and then:
// every answer is right.
TEST_F(EngineTierTest, TroubleChangesNoAnswer) {
  for (int32_t round = 0; round < 12; ++round) {
    const int32_t depth = round % 2;
    Restart(depth, 48);
    ScopedFault reads("kvdisk.read", 5 + round, 2, /*again=*/true);
    ScopedFault writes(round % 3 == 0 ? "kvdisk.torn" : "kvdisk.write", 40, 1);
    std::vector<Request> requests;
    std::vector<std::shared_ptr<CollectedOutput>> got;
    std::vector<uint64_t> ids(10);
    for (int32_t i = 0; i < 10; ++i) {
      requests.push_back(MakeRequest(Prompt(30 + i, (i * round) % 5), 12));
      requests.back().prompt_logprobs = i == 3;
      got.push_back(Submit(requests.back(), &ids[static_cast<size_t>(i)]));
      if (i % 4 == 0) {
        ASSERT_TRUE(engine_->Step().ok());
      }
      if (i == 6) engine_->Cancel(ids[5]);
    }
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i != 5) ExpectSame(*got[i], Expected(requests[i]));
    }
    ExpectNothingHeld();
  }
}

TEST_F(EngineTierTest, AnErrorOfTheDeviceLeavesTheDisk) {
  Restart();
  const Request request = MakeRequest(Prompt(50), 10);
  SubmitAndRun(request);
  Restart();
  {
    ScopedFault fault("device.op");
    EXPECT_EQ(SubmitAndRun(request)->reason, FinishReason::kError);
  }
  const auto got = SubmitAndRun(request);
  ExpectSame(*got, Expected(request));
  EXPECT_EQ(got->num_cached_tokens, 48);
}

TEST_F(EngineTierTest, ReplaysToTheSamePlans) {
  Restart();
  for (int32_t i = 0; i < 4; ++i) SubmitAndRun(MakeRequest(Prompt(60, i), 10));
  SchedulerTrace trace;
  Restart(0, 40, &trace);
  for (int32_t i = 0; i < 6; ++i) Submit(MakeRequest(Prompt(60, i % 4), 10));
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_GT(stats().promoted_blocks, 0);
  auto policy = MakeSchedulingPolicy("fcfs");
  ASSERT_TRUE(policy.ok());
  SchedulerOptions options;
  const auto plans = ReplayTrace(trace, LimitsOf(info_), options, std::move(*policy));
  ASSERT_TRUE(plans.ok()) << plans.status().ToString();
  int64_t num_tokens = 0;
  for (const StepPlan& plan : *plans) num_tokens += plan.num_tokens();
  EXPECT_GT(num_tokens, 0);
}

TEST_F(EngineTierTest, RefusesWhatCannotWork) {
  Restart();
  FakeExecutor other(info_);
  EngineOptions options;
  options.kv_disk_dir = (dir_ / "2").string();
  options.kv_disk_bytes = 1 << 20;
  options.enable_prefix_caching = false;
  EXPECT_FALSE(Engine::Create(&other, nullptr, options).ok());
  options.enable_prefix_caching = true;
  options.kv_disk_dir = dir_.string();
  EXPECT_FALSE(Engine::Create(&other, nullptr, options).ok()) << "another engine is there";
}

TEST(KvTier, ReadsWhereThatIsFaster) {
  const ReadOrCompute slow{.read_bytes = 100'000'000, .bytes_per_second = 50e6, .compute_tokens = 1000, .tokens_per_second = 500};
  EXPECT_FALSE(IsWorthReading(slow)) << "2 s against 2 s";
  EXPECT_EQ(PatienceUs(slow), 1'000'000);
  ReadOrCompute fast = slow;
  fast.bytes_per_second = 200e6;
  EXPECT_TRUE(IsWorthReading(fast));
  for (double ReadOrCompute::*rate : {&ReadOrCompute::bytes_per_second, &ReadOrCompute::tokens_per_second}) {
    ReadOrCompute unknown = slow;
    unknown.*rate = 0;
    EXPECT_TRUE(IsWorthReading(unknown)) << "it is tried";
  }
}

}  // namespace
}  // namespace cachalot
