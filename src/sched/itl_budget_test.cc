#include "sched/itl_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "sched/scheduler_driver.h"

namespace cachalot {
namespace {

TEST(ItlBudget, WithoutATargetThereIsNoBound) {
  ItlBudget budget(0, 16, 512);
  budget.Observe({.prompt_tokens = 512, .decode_tokens = 1, .us = 1'000'000});
  EXPECT_EQ(budget.PromptTokens(), 512);
}

TEST(ItlBudget, LearnsWhatFits) {
  ItlBudget budget(/*target_us=*/50'000, /*min_tokens=*/16, /*max_tokens=*/2048);
  EXPECT_EQ(budget.PromptTokens(), 64) << "careful before anything is known";
  // A step costs 10 ms and 100 us a prompt token: 350 fit into 45 ms.
  for (int step = 0; step < 100; ++step)
    budget.Observe({.prompt_tokens = budget.PromptTokens(), .decode_tokens = 1, .us = 10'000 + 100 * budget.PromptTokens()});
  EXPECT_NEAR(budget.PromptTokens(), 350, 2);
  // Steps without prompts tell of the fixed part, and take nothing from what is known of the other.
  for (int step = 0; step < 500; ++step) budget.Observe({.prompt_tokens = 0, .decode_tokens = 1, .us = 10'000});
  for (int step = 0; step < 100; ++step) {
    budget.Observe({.prompt_tokens = budget.PromptTokens(), .decode_tokens = 1, .us = 10'000 + 100 * budget.PromptTokens()});
    EXPECT_LE(budget.PromptTokens(), 352);
  }
  EXPECT_NEAR(budget.PromptTokens(), 350, 2);
  // Twice as slow a token (longer contexts): it follows.
  for (int step = 0; step < 100; ++step)
    budget.Observe({.prompt_tokens = budget.PromptTokens(), .decode_tokens = 1, .us = 10'000 + 200 * budget.PromptTokens()});
  EXPECT_NEAR(budget.PromptTokens(), 175, 5);
  // One step that the machine spent elsewhere is soon forgotten.
  budget.Observe({.prompt_tokens = 175, .decode_tokens = 1, .us = 5'000'000});
  for (int step = 0; step < 150; ++step)
    budget.Observe({.prompt_tokens = budget.PromptTokens(), .decode_tokens = 1, .us = 10'000 + 200 * budget.PromptTokens()});
  EXPECT_NEAR(budget.PromptTokens(), 175, 5);
}

TEST(ItlBudget, PromptsAlwaysGetOn) {
  ItlBudget budget(1'000, 16, 2048);
  for (int step = 0; step < 10; ++step) budget.Observe({.prompt_tokens = 16, .decode_tokens = 1, .us = 100'000});
  EXPECT_EQ(budget.PromptTokens(), 16);
  ItlBudget small(1'000, 16, 4);
  EXPECT_EQ(small.PromptTokens(), 4);
}

TEST(ItlBudget, ByTheTimeOfStepsWithoutPrompts) {
  ItlBudget budget(0, 16, 512, /*ratio=*/2);
  EXPECT_EQ(budget.PromptTokens(), 512) << "nothing is known";
  budget.Observe({.prompt_tokens = 512, .decode_tokens = 1, .us = 40'000});
  EXPECT_EQ(budget.PromptTokens(), 512) << "nothing ran beside it";
  // A step costs 5 ms and 40 us a prompt token: 4 of 9 ms are theirs.
  for (int step = 0; step < 200; ++step) {
    budget.Observe({.prompt_tokens = 0, .decode_tokens = 1, .us = 5'000});
    budget.Observe({.prompt_tokens = budget.PromptTokens(), .decode_tokens = 1, .us = 5'000 + 40 * budget.PromptTokens()});
  }
  EXPECT_NEAR(budget.PromptTokens(), 100, 3);
  EXPECT_EQ(budget.PromptTokens(0, /*many=*/true), 512);
  // More streams: each step takes longer, and prompts get more of it.
  for (int step = 0; step < 200; ++step) {
    budget.Observe({.prompt_tokens = 0, .decode_tokens = 1, .us = 10'000});
    budget.Observe({.prompt_tokens = budget.PromptTokens(), .decode_tokens = 1, .us = 10'000 + 40 * budget.PromptTokens()});
  }
  EXPECT_NEAR(budget.PromptTokens(), 200, 5);
}

// A stream runs while long prompts arrive: with a target its tokens keep coming in time, and prompts that run
// beside nobody get whole steps.
TEST(Scheduler, FewPromptsTakeAsMuchOfAStepAsStreamsAndManyAllOfIt) {
  SchedulerLimits limits = TestLimits(4000);
  limits.max_step_tokens = 512;
  limits.max_context = 2000;
  SchedulerDriver driver(limits, {.max_batch_tokens = 512, .prefill_chunk = 512, .itl_percent = 200});
  driver.step_us = [](const StepPlan& plan) { return 5'000 + 40 * plan.num_tokens(); };
  driver.Add(TestSpec(TestPrompt(5), 300));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(driver.Step());
  int64_t last_us = driver.clock.NowUs();
  driver.Add(TestSpec(TestPrompt(1500), 1));
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(driver.Step());
    EXPECT_LE(driver.clock.NowUs() - last_us, 11'000);
    last_us = driver.clock.NowUs();
  }
  for (int i = 0; i < 3; ++i) driver.Add(TestSpec(TestPrompt(1500, i + 1), 1));
  ASSERT_TRUE(driver.Step());
  EXPECT_EQ(driver.plan.num_tokens(), 512);
  driver.Run();
}

TEST(Scheduler, PromptsDoNotSpoilTheLatencyOfRunningStreams) {
  SchedulerLimits limits = TestLimits(2000);
  limits.max_step_tokens = 512;
  limits.max_context = 2000;
  for (int32_t target_us : {0, 20'000}) {
    SchedulerDriver driver(limits,
                           {.max_batch_tokens = 512, .prefill_chunk = 512, .itl_target_us = target_us});
    driver.step_us = [](const StepPlan& plan) { return 5'000 + 100 * plan.num_tokens(); };
    const uint64_t alone = driver.Add(TestSpec(TestPrompt(512), 1));
    ASSERT_TRUE(driver.Step());
    EXPECT_EQ(driver.plan.num_tokens(), 512);
    ASSERT_EQ(driver.done.count(alone), 1u);
    const uint64_t stream = driver.Add(TestSpec(TestPrompt(5), 150));
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(driver.Step());
    int64_t worst_us = 0, last_us = driver.clock.NowUs();
    size_t num_tokens = driver.seq(stream).tokens.size();
    for (int i = 0; i < 100; ++i) {
      if (i % 25 == 0) driver.Add(TestSpec(TestPrompt(1500, i), 1));
      ASSERT_TRUE(driver.Step());
      ASSERT_EQ(driver.seq(stream).tokens.size(), ++num_tokens) << "a token in every step";
      worst_us = std::max(worst_us, driver.clock.NowUs() - last_us);
      last_us = driver.clock.NowUs();
    }
    if (target_us == 0)
      EXPECT_GT(worst_us, 50'000);
    else
      EXPECT_LE(worst_us, target_us);
    driver.Run();
  }
}

TEST(StreamPace, WhatTheSoonestShareOfTheTokensHad) {
  StreamPace pace(0.4);
  EXPECT_EQ(pace.multiple(), 1);
  for (int step = 0; step < 100; ++step) pace.Add(step % 2 == 0 ? 1 : 3, 16);
  EXPECT_EQ(pace.multiple(), 1) << "half of the tokens came as soon as they can";
  for (int step = 0; step < 100; ++step) pace.Add(3, 16);
  EXPECT_NEAR(pace.multiple(), 3, 0.1);
  EXPECT_LE(pace.multiple(), 3);
  for (int step = 0; step < 2000; ++step) pace.Add(0.5, 16);
  EXPECT_EQ(pace.multiple(), 1) << "only the last steps count, and nothing below 1";
  pace.Add(1e9, 1000'000);
  EXPECT_GT(pace.multiple(), 100);
  pace.Clear();
  EXPECT_EQ(pace.multiple(), 1);
}

// Tokens late in a long prompt cost more: that is known before they come.
TEST(ItlBudget, ByTheTokensInFront) {
  ItlBudget budget(0, 16, 512, 2);
  const auto observe = [&](int64_t context) {
    const int32_t tokens = budget.PromptTokens(context);
    budget.Observe({.prompt_tokens = 0, .decode_tokens = 16, .us = 5'000});
    budget.Observe({.prompt_tokens = tokens, .prompt_context = tokens * context, .decode_tokens = 16, .us = 5'000 + tokens * (20 + 10 * context / 1024)});
  };
  for (int prompt = 0; prompt < 4; ++prompt) {
    for (int64_t context = 0; context < 8192; context += 256) observe(context);
  }
  EXPECT_NEAR(budget.PromptTokens(0), 200, 30);
  EXPECT_NEAR(budget.PromptTokens(4096), 67, 10);
  EXPECT_NEAR(budget.PromptTokens(8192), 40, 6);
}

// A GPU with a model of 8B as the times of its steps were seen: microseconds.
struct GpuTimes {
  // That a step takes longer by for each 1,024 tokens in front of a prompt's, however few these are.
  static constexpr int64_t kContextUs = 1150;
  int64_t operator()(const StepPlan& plan) const {
    int64_t us = 4600, context = 0, tokens = 0;
    for (const PlanRow& row : plan.rows) {
      if (row.q_len == 1) {
        us += 20 + row.num_computed / 200;
      } else {
        tokens += row.q_len;
        context += int64_t{row.q_len} * (row.num_computed + row.q_len / 2);
      }
    }
    if (tokens <= 16) return us + (tokens > 0 ? 1200 : 0);
    return us + 1000 + 21 * tokens + kContextUs * context / tokens / 1024;
  }
};

struct Gaps {
  std::vector<std::pair<int64_t, int64_t>> of_steps;  // microseconds, tokens that came after them
  int64_t At(double share) {
    std::sort(of_steps.begin(), of_steps.end());
    int64_t total = 0, sum = 0;
    for (const auto& [us, tokens] : of_steps) total += tokens;
    for (const auto& [us, tokens] : of_steps) {
      if (static_cast<double>(sum += tokens) >= share * static_cast<double>(total)) return us;
    }
    return 0;
  }
};

// Lets a step happen and notes how long those waited that decode.
bool StepAndNote(SchedulerDriver* driver, Gaps* gaps) {
  const int64_t begin_us = driver->clock.NowUs(), before = driver->scheduler().counters().decode_tokens;
  if (!driver->Step()) return false;
  gaps->of_steps.emplace_back(driver->clock.NowUs() - begin_us, driver->scheduler().counters().decode_tokens - before);
  return true;
}

SchedulerLimits GpuLimits() {
  SchedulerLimits limits = TestLimits(0);
  limits.max_seqs = 64;
  limits.max_step_tokens = 512;
  limits.max_context = 8704;
  limits.kv_groups[0].block_tokens = 64;
  limits.kv_groups[0].num_blocks = 1200;
  return limits;
}

// 16 streams, and a prompt of 8,192 tokens every second: of all tokens of the streams 99 in 100 come within twice the median.
TEST(Scheduler, LongPromptsBesideStreamsKeepToTheRatio) {
  SchedulerDriver driver(GpuLimits(), {.max_batch_tokens = 512, .prefill_chunk = 512, .itl_percent = 200, .enable_prefix_caching = false});
  driver.step_us = GpuTimes{};
  for (int i = 0; i < 16; ++i) driver.Add(TestSpec(TestPrompt(128, i), 4000));
  Gaps gaps, unused;
  while (driver.clock.NowUs() < 500'000) ASSERT_TRUE(StepAndNote(&driver, &unused));
  int num_prompts = 0;
  while (driver.clock.NowUs() < 7'500'000) {
    if (driver.clock.NowUs() >= 500'000 + 1'000'000 * num_prompts) driver.Add(TestSpec(TestPrompt(8192, ++num_prompts), 1));
    ASSERT_TRUE(StepAndNote(&driver, &gaps));
    driver.plans.clear();
  }
  EXPECT_LE(gaps.At(0.99), 2 * gaps.At(0.5));
  EXPECT_GE(driver.done.size(), 2u) << "prompts get on";
}

// Prompts come all the time, and the median of the streams is a step with prompts: bounding those would help nobody.
TEST(Scheduler, UnderFullLoadTheRatioTakesNothing) {
  double tokens_per_second[2] = {};
  for (const bool bounded : {false, true}) {
    SchedulerDriver driver(GpuLimits(), {.max_batch_tokens = 512, .prefill_chunk = 512, .itl_percent = bounded ? 200 : 0, .enable_prefix_caching = false});
    driver.step_us = GpuTimes{};
    int num_added = 0;
    Gaps gaps;
    while (driver.clock.NowUs() < 8'000'000) {
      while (num_added - static_cast<int>(driver.done.size()) < 64) driver.Add(TestSpec(TestPrompt(512, ++num_added), 128));
      ASSERT_TRUE(StepAndNote(&driver, &gaps));
      driver.plans.clear();
    }
    tokens_per_second[bounded] = static_cast<double>(driver.scheduler().counters().sampled_tokens) / 8;
    if (bounded) {
      EXPECT_LE(gaps.At(0.99), 2 * gaps.At(0.5));
    }
  }
  EXPECT_GE(tokens_per_second[1], 0.95 * tokens_per_second[0]);
}

}  // namespace
}  // namespace cachalot
