#include "sched/scheduler_trace.h"

#include <gtest/gtest.h>

#include "sched/scheduler_driver.h"

namespace cachalot {
namespace {

TEST(SchedulerTrace, ReplaysEveryPlan) {
  SchedulerLimits limits = TestLimits(12);
  const SchedulerOptions options{.max_batch_tokens = 32, .itl_target_us = 500, .min_prompt_tokens = 2};
  SchedulerDriver driver(limits, options, "fair");
  SchedulerTrace trace;
  driver.scheduler().RecordTo(&trace);
  driver.step_us = [](const StepPlan& plan) { return 100 + 37 * plan.num_tokens(); };
  for (int32_t i = 0; i < 10; ++i) {
    SequenceSpec spec = TestSpec(TestPrompt(3 + 2 * i, i), 12);
    spec.tenant = std::string(i % 3 == 0 ? "a" : "b");
    driver.Add(std::move(spec));
    driver.Step();
  }
  driver.Remove(driver.LiveIds().back());
  driver.Run();
  const auto replayed = ReplayTrace(trace, limits, options, *MakeSchedulingPolicy("fair"));
  ASSERT_TRUE(replayed.ok()) << replayed.status().ToString();
  ASSERT_EQ(replayed->size(), driver.plans.size());
  for (size_t i = 0; i < replayed->size(); ++i) ASSERT_EQ((*replayed)[i], driver.plans[i]) << i;
  // The clock is part of it: with other times the budget learns something else.
  for (SchedulerEvent& event : trace.events) event.now_us *= 3;
  const auto other = ReplayTrace(trace, limits, options, *MakeSchedulingPolicy("fair"));
  EXPECT_NE(other.status().message().find("the result is not that of step"), std::string::npos)
      << other.status().ToString();
}

TEST(SchedulerTrace, WhatCannotHaveHappenedIsRefused) {
  const auto replay = [](const SchedulerTrace& trace) {
    return ReplayTrace(trace, TestLimits(), {}, *MakeSchedulingPolicy("fcfs")).status().message();
  };
  const Sequence good(3, TestSpec({1}, 1)), empty(4, TestSpec({}, 1));
  SchedulerTrace trace;
  trace.Added(good, 0, nullptr);
  EXPECT_EQ(replay(trace), "");
  trace.Removed(empty);
  EXPECT_EQ(replay(trace), "event 1: sequence 4 is not there");
  trace.events.clear();
  trace.Committed({}, 5);
  EXPECT_EQ(replay(trace), "event 0: a result, and no step is in flight");
  trace.events.clear();
  trace.Added(empty, 0, nullptr);
  EXPECT_NE(replay(trace), "");
}

}  // namespace
}  // namespace cachalot
