// The KV tiers under an engine: what comes back, when, and what it costs.
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/fault.h"
#include "engine/engine_tier_testing.h"
#include "engine/kv_tier.h"
#include "sched/policy/policies.h"
#include "sched/scheduler_trace.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

TEST_F(EngineTierTest, APrefixOutlivesTheProcess) {
  for (int32_t depth : {0, 1, 2, 3}) {
    on_device_ = depth >= 2;
    depth %= 2;
    engine_.reset();
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

TEST_F(EngineTierTest, WhatGaveWayInMemoryComesBackFromTheDisk) {
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

TEST_F(EngineTierTest, WhatGaveWayOnTheDeviceComesBackFromTheHost) {
  has_disk_ = false;
  on_device_ = true;
  host_blocks_ = 300;
  for (const int32_t depth : {0, 1}) {
    Restart(depth, 40);
    for (int32_t round = 0; round < 2; ++round) {
      for (int32_t i = 0; i < 12; ++i) {
        const Request request = MakeRequest(Prompt(58, i), 10);
        const auto got = SubmitAndRun(request);
        ExpectSame(*got, Expected(request));
        if (round == 1) {
          EXPECT_EQ(got->num_cached_tokens, 56) << i;
        }
      }
    }
    EXPECT_GT(engine_->stats().cache_evictions, 100);
    EXPECT_FALSE(stats().present);
    EXPECT_TRUE(host().present);
    EXPECT_GE(host().promotions, 11);
    EXPECT_EQ(host().promoted_blocks, host().hit_blocks);
    EXPECT_GT(host().blocks, 150);
    EXPECT_LE(host().bytes, host().max_bytes);
    EXPECT_EQ(host().evicted_blocks, 0);
    ExpectNothingHeld();
  }
}

// The host's memory has a third of what is asked for, the disk all of it.
TEST_F(EngineTierTest, TheHostAndTheDiskTogether) {
  on_device_ = true;
  host_blocks_ = 60;
  for (const int32_t depth : {0, 1}) {
    engine_.reset();
    fs::remove_all(dir_);
    for (int32_t process = 0; process < 2; ++process) {
      Restart(depth, 40);
      for (int32_t i = 0; i < 36; ++i) {
        const Request request = MakeRequest(Prompt(58, i % 3 == 2 ? 1 : (5 * i) % 12), 10);  // one of them often
        ExpectSame(*SubmitAndRun(request), Expected(request));
      }
      EXPECT_GT(host().promoted_blocks, 0);
      EXPECT_GT(host().evicted_blocks, 0);
      EXPECT_GT(stats().promoted_blocks, 0) << "from the disk";
      ExpectNothingHeld();
    }
  }
}

TEST_F(EngineTierTest, WhatAPreemptedRequestLostComesBack) {
  has_disk_ = false;
  on_device_ = true;
  host_blocks_ = 300;
  for (const int32_t depth : {0, 1}) {
    Restart(depth, 40);
    std::vector<Request> requests;
    std::vector<std::shared_ptr<CollectedOutput>> got;
    for (int32_t i = 0; i < 6; ++i) {
      requests.push_back(MakeRequest(Prompt(30 + i, i), 70));
      got.push_back(Submit(requests.back()));
    }
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    for (size_t i = 0; i < got.size(); ++i) ExpectSame(*got[i], Expected(requests[i]));
    EXPECT_GT(engine_->stats().preemptions, 0);
    EXPECT_GT(host().promoted_blocks, 0);
    ExpectNothingHeld();
  }
}

TEST_F(EngineTierTest, ComputesWhereCopyingIsSlower) {
  has_disk_ = false;
  on_device_ = true;
  host_blocks_ = 300;
  Restart(0, 40);
  executor_->SetStepTime(100);  // 60 tokens in it
  for (int32_t i = 0; i < 12; ++i) SubmitAndRun(MakeRequest(Prompt(60, i), 10));
  executor_->SetTransferRate(1e6);  // a block of 96 bytes in 96 us
  const Request request = MakeRequest(Prompt(60, 0), 10);
  ExpectSame(*SubmitAndRun(request), Expected(request));
  EXPECT_EQ(host().declined, 1);
  EXPECT_EQ(host().promotions, 0);
  executor_->SetTransferRate(1e9);
  const auto got = SubmitAndRun(MakeRequest(Prompt(60, 1), 10));
  EXPECT_EQ(got->num_cached_tokens, 56);
  EXPECT_EQ(host().promotions, 1);
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

// What was read and not yet taken does not come back.
TEST_F(EngineTierTest, AFlushReachesReads) {
  on_device_ = true;
  host_blocks_ = 100;
  Restart();
  const Request request = MakeRequest(Prompt(50), 4);
  SubmitAndRun(request);
  Restart();
  Submit(request);
  ASSERT_TRUE(engine_->Step().ok());                            // begins to read
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // by now it may have been read, or not
  engine_->FlushCache();
  engine_->Cancel(1);  // so that nothing is computed
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_EQ(host().blocks, 0);
}

TEST_F(EngineTierTest, AFlushReachesTheHost) {
  on_device_ = true;
  host_blocks_ = 200;
  for (const int32_t num_steps : {0, 1, 2, 3, 1000}) {  // while blocks are on their way
    engine_.reset();
    fs::remove_all(dir_);
    Restart(1);
    const Request request = MakeRequest(Prompt(50), 4);
    const auto got = Submit(request);
    for (int32_t i = 0; i < num_steps && engine_->HasWork(); ++i) ASSERT_TRUE(engine_->Step().ok());
    engine_->FlushCache();
    EXPECT_EQ(host().blocks, 0);
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    ExpectSame(*got, Expected(request));
    engine_->FlushCache();
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    EXPECT_EQ(host().blocks, 0);
    EXPECT_EQ(SubmitAndRun(request)->num_cached_tokens, 0);
  }
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
  EngineOptions host;
  host.kv_host_bytes = 1 << 20;
  const auto on_cpu = Engine::Create(&other, nullptr, host);
  ASSERT_FALSE(on_cpu.ok());
  EXPECT_NE(on_cpu.status().message().find("on the CPU"), std::string::npos) << on_cpu.status().ToString();
  info_.kv_on_device = true;
  FakeExecutor device(info_);
  EXPECT_TRUE(Engine::Create(&device, nullptr, host).ok());
  host.enable_prefix_caching = false;
  EXPECT_FALSE(Engine::Create(&device, nullptr, host).ok());
  host.enable_prefix_caching = true;
  host.kv_host_bytes = 1000;
  const auto small = Engine::Create(&device, nullptr, host);
  ASSERT_FALSE(small.ok());
  EXPECT_NE(small.status().message().find("at least"), std::string::npos) << small.status().ToString();
}

// What the host copies itself is in front of a step, and everybody waits for it.
TEST_F(EngineTierTest, TheHostCopiesLittleInFrontOfAStep) {
  constexpr int64_t kMost = 8 << 20;
  has_disk_ = false;
  on_device_ = on_both_sides_ = true;
  host_blocks_ = 100;
  for (const int32_t depth : {0, 1}) {
    Restart(depth, 80);
    const Request beside = MakeRequest(Prompt(20, 30), 175);
    const auto runs = Submit(beside);
    for (int32_t round = 0; round < 2; ++round) {
      for (int32_t i = 0; i < 4; ++i) {
        const Request request = MakeRequest(Prompt(98, i), 10);
        const auto got = Submit(request);
        while (!got->finished) ASSERT_TRUE(engine_->Step().ok());
        ExpectSame(*got, Expected(request));
      }
    }
    const int64_t num_promoted = host().promoted_blocks;
    ASSERT_FALSE(runs->finished);
    EXPECT_GT(num_promoted, 10);
    EXPECT_EQ(executor_->max_host_bytes(), kMost) << "a prompt has 25 MB";
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    ExpectSame(*runs, Expected(beside));
  }
}

TEST_F(EngineTierTest, WhatIsGivenUpCountsWhereItLies) {
  has_disk_ = false;
  on_device_ = on_both_sides_ = true;
  host_blocks_ = 100;
  Restart(0, 40);
  const Request request = MakeRequest(Prompt(100), 4);
  for (const int32_t start : {1, 3, 5}) SubmitAndRun(MakeRequest(Prompt(100, start), 4));
  const Request beside = MakeRequest(Prompt(20, 30), 50);
  const auto runs = Submit(beside);
  for (int32_t i = 0; i < 3; ++i) ASSERT_TRUE(engine_->Step().ok());
  const auto got = Submit(request);
  ASSERT_TRUE(engine_->Step().ok());  // a third of it is copied
  EXPECT_EQ(host().promotions, 1);
  EXPECT_EQ(host().given_up, 0);
  clock_.Advance(10'000'000);
  ASSERT_TRUE(engine_->RunUntilIdle().ok());
  EXPECT_EQ(host().given_up, 1);
  ExpectSame(*got, Expected(request));
  EXPECT_GT(got->num_cached_tokens, 0) << "with what has come it goes on";
  ExpectSame(*runs, Expected(beside));
  ExpectNothingHeld();
}

TEST_F(EngineTierTest, WhatGivesWayBeforeItIsSavedIsCounted) {
  on_device_ = true;
  host_blocks_ = 16;  // fewer than a step makes known
  for (const bool disk : {false, true}) {
    has_disk_ = disk;
    Restart(0, 40);
    Submit(MakeRequest(Prompt(100), 1));
    ASSERT_TRUE(engine_->Step().ok());
    Submit(MakeRequest(Prompt(120, 3), 1));  // takes their places
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    EXPECT_GT(host().refused_blocks, 0);
    if (!disk) {
      EXPECT_EQ(stats().refused_blocks, 0);
      continue;
    }
    // And what gave way in the host's memory while the disk was behind; what the disk has already is not written again.
    EXPECT_GE(stats().refused_blocks, host().refused_blocks);
    EXPECT_GT(stats().written_blocks, 0);
    EXPECT_LE(stats().written_blocks + stats().refused_blocks, host().written_blocks + host().refused_blocks);
  }
}

// A disk that is behind wakes who waits for it; nobody looks after it all the time.
TEST_F(EngineTierTest, WaitsForASlowDiskAsleep) {
  const ScopedFault slow("kvdisk.slow", 0, 1000);
  Restart(0, 40);
  std::vector<std::shared_ptr<CollectedOutput>> got;
  for (int32_t i = 0; i < 3; ++i) got.push_back(Submit(MakeRequest(Prompt(60, i), 10)));
  int64_t num_steps = 0;
  for (; engine_->HasWork(); ++num_steps) ASSERT_TRUE(engine_->Step().ok());
  for (int32_t i = 0; i < 3; ++i) ExpectSame(*got[static_cast<size_t>(i)], Expected(MakeRequest(Prompt(60, i), 10)));
  EXPECT_GT(stats().written_blocks, 10);
  EXPECT_LT(num_steps, 300) << "thousands, where each waits 0.1 ms";
}

// At the end only what outlives the process is worth waiting for,
TEST_F(EngineTierTest, NothingIsSavedInAMemoryThatGoes) {
  on_device_ = true;
  host_blocks_ = 300;
  for (const bool disk : {false, true}) {
    has_disk_ = disk;
    Restart();
    Submit(MakeRequest(Prompt(100), 50));
    ASSERT_TRUE(engine_->Step().ok());
    const int64_t before = executor_->num_transfers();
    engine_.reset();
    EXPECT_EQ(executor_->num_transfers() > before, disk);
  }
}

// and not for ever: 20 ms a block are 8 s.
TEST_F(EngineTierTest, ASlowDiskDoesNotHoldTheEnd) {
  Restart(0, 1024);
  for (int32_t i = 0; i < 16; ++i) SubmitAndRun(MakeRequest(Prompt(100, i), 1));
  const int64_t num_blocks = stats().blocks;
  EXPECT_GT(num_blocks, 400);
  engine_.reset();
  fs::remove_all(dir_);
  {
    const ScopedFault slow("kvdisk.slow", 0, 1000);
    Restart(0, 1024);
    for (int32_t i = 0; i < 16; ++i) SubmitAndRun(MakeRequest(Prompt(100, i), 1));
    EXPECT_EQ(stats().blocks, num_blocks) << "queued";
    engine_.reset();
  }
  Restart(0, 1024);
  EXPECT_GT(stats().blocks, 0);
  EXPECT_LT(stats().blocks, num_blocks);
}

TEST(KvTier, ReadsWhereThatIsFaster) {
  const ReadOrCompute slow{.read_bytes = 100'000'000, .bytes_per_second = 50e6, .compute_tokens = 1000, .tokens_per_second = 500};
  EXPECT_FALSE(IsWorthReading(slow)) << "2 s against 2 s";
  EXPECT_EQ(PatienceUs(slow), 1'000'000);
  ReadOrCompute fast = slow;
  fast.bytes_per_second = 200e6;
  EXPECT_TRUE(IsWorthReading(fast));
  ReadOrCompute copied = fast;
  copied.copy_bytes = 100'000'000;
  copied.copy_bytes_per_second = 90e6;
  EXPECT_FALSE(IsWorthReading(copied)) << "0.5 s to read, 1.1 s to copy, and 1 s may be taken";
  copied.copy_bytes_per_second = 110e6;
  EXPECT_TRUE(IsWorthReading(copied)) << "copied while others are read";
  for (double ReadOrCompute::*rate : {&ReadOrCompute::bytes_per_second, &ReadOrCompute::tokens_per_second}) {
    ReadOrCompute unknown = slow;
    unknown.*rate = 0;
    EXPECT_TRUE(IsWorthReading(unknown)) << "it is tried";
  }
}

}  // namespace
}  // namespace cachalot
