#include "sched/itl_budget.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sched/scheduler_driver.h"

namespace cachalot {
namespace {

TEST(ItlBudget, WithoutATargetThereIsNoBound) {
  ItlBudget budget(0, 16, 512);
  budget.Observe(512, 1'000'000);
  EXPECT_EQ(budget.PromptTokens(), 512);
}

TEST(ItlBudget, LearnsWhatFits) {
  ItlBudget budget(/*target_us=*/50'000, /*min_tokens=*/16, /*max_tokens=*/2048);
  EXPECT_EQ(budget.PromptTokens(), 64) << "careful before anything is known";
  // A step costs 10 ms and 100 us a prompt token: 350 fit into 45 ms.
  for (int step = 0; step < 100; ++step)
    budget.Observe(budget.PromptTokens(), 10'000 + 100 * budget.PromptTokens());
  EXPECT_NEAR(budget.PromptTokens(), 350, 2);
  // Steps without prompts tell of the fixed part, and take nothing from what is known of the other.
  for (int step = 0; step < 500; ++step) budget.Observe(0, 10'000);
  for (int step = 0; step < 100; ++step) {
    budget.Observe(budget.PromptTokens(), 10'000 + 100 * budget.PromptTokens());
    EXPECT_LE(budget.PromptTokens(), 352);
  }
  EXPECT_NEAR(budget.PromptTokens(), 350, 2);
  // Twice as slow a token (longer contexts): it follows.
  for (int step = 0; step < 100; ++step)
    budget.Observe(budget.PromptTokens(), 10'000 + 200 * budget.PromptTokens());
  EXPECT_NEAR(budget.PromptTokens(), 175, 5);
  // One step that the machine spent elsewhere is soon forgotten.
  budget.Observe(175, 5'000'000);
  for (int step = 0; step < 150; ++step)
    budget.Observe(budget.PromptTokens(), 10'000 + 200 * budget.PromptTokens());
  EXPECT_NEAR(budget.PromptTokens(), 175, 5);
}

TEST(ItlBudget, PromptsAlwaysGetOn) {
  ItlBudget budget(1'000, 16, 2048);
  for (int step = 0; step < 10; ++step) budget.Observe(16, 100'000);
  EXPECT_EQ(budget.PromptTokens(), 16);
  ItlBudget small(1'000, 16, 4);
  EXPECT_EQ(small.PromptTokens(), 4);
}

TEST(ItlBudget, ByTheTimeOfStepsWithoutPrompts) {
  ItlBudget budget(0, 16, 512, /*ratio=*/2);
  EXPECT_EQ(budget.PromptTokens(), 512) << "nothing is known";
  budget.Observe(512, 40'000);
  EXPECT_EQ(budget.PromptTokens(), 512) << "nothing ran beside it";
  // A step costs 5 ms and 40 us a prompt token: 4 of 9 ms are theirs.
  for (int step = 0; step < 200; ++step) {
    budget.Observe(0, 5'000);
    budget.Observe(budget.PromptTokens(), 5'000 + 40 * budget.PromptTokens());
  }
  EXPECT_NEAR(budget.PromptTokens(), 100, 2);
  EXPECT_EQ(budget.PromptTokens(/*many=*/true), 512);
  // More streams: each step takes longer, and prompts get more of it.
  for (int step = 0; step < 200; ++step) {
    budget.Observe(0, 10'000);
    budget.Observe(budget.PromptTokens(), 10'000 + 40 * budget.PromptTokens());
  }
  EXPECT_NEAR(budget.PromptTokens(), 200, 4);
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

}  // namespace
}  // namespace cachalot
