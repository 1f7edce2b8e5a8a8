// SchedulerDriver: a scheduler with a fake device below it and the owner of the sequences above it, for
// tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "sched/fake_device.h"
#include "sched/policy/policies.h"
#include "sched/scheduler.h"

namespace cachalot {

inline SchedulerLimits TestLimits(int32_t num_blocks = 64) {
  return {.max_seqs = 8,
          .max_step_tokens = 64,
          .max_context = 128,
          .vocab_size = 50,
          .max_logit_rows = 16,
          .kv_groups = {
              {.name = "full", .block_tokens = 4, .num_blocks = num_blocks, .window = 0, .block_bytes = 1}}};
}

inline SequenceSpec TestSpec(std::vector<int32_t> prompt, int32_t max_tokens) {
  SequenceSpec spec;
  spec.prompt_ids = std::move(prompt);
  spec.max_tokens = max_tokens;
  return spec;
}

inline std::vector<int32_t> TestPrompt(int32_t length, int32_t start = 1) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back((start + 7 * i) % 50);
  return prompt;
}

class SchedulerDriver {
 public:
  explicit SchedulerDriver(SchedulerLimits limits, SchedulerOptions options = {},
                           std::string_view policy = "fcfs")
      : limits_(limits), device_(limits) {
    auto scheduler = Scheduler::Create(limits, options, *MakeSchedulingPolicy(policy));
    EXPECT_TRUE(scheduler.ok()) << scheduler.status().ToString();
    scheduler_ = std::move(*scheduler);
    budget_ = std::min(options.max_batch_tokens, limits.max_step_tokens);
  }

  uint64_t Add(SequenceSpec spec, uint64_t fork_of = 0) {
    const uint64_t id = ++last_id_;
    auto seq = std::make_unique<Sequence>(id, std::move(spec));
    scheduler_->Add(seq.get(), clock.NowUs(), fork_of == 0 ? nullptr : live_.at(fork_of).get());
    live_.emplace(id, std::move(seq));
    return id;
  }

  // False: nothing was planned.
  bool Step() {
    if (scheduler_->AwaitsTokens()) Collect();
    scheduler_->Plan(&plan, clock.NowUs());
    plans.push_back(plan);
    EXPECT_LE(plan.num_tokens(), budget_);
    if (!plan.empty()) {
      results_.emplace_back();
      const Status status = device_.Run(plan, &results_.back());
      EXPECT_TRUE(status.ok()) << status.ToString();
      if (!status.ok()) return false;
    }
    const bool full = scheduler_->num_in_flight() > limits_.depth;
    if (full || (plan.empty() && scheduler_->num_in_flight() > 0)) {
      Collect();
    } else if (plan.empty()) {
      return false;
    }
    CheckBlocks();
    return true;
  }

  int Run(int max_steps = 10000) {
    int steps = 0;
    while (steps < max_steps && Step()) ++steps;
    EXPECT_TRUE(live_.empty()) << live_.size() << " sequences did not end in " << steps << " steps";
    for (int32_t g = 0; g < scheduler_->blocks().num_groups(); ++g) {
      EXPECT_EQ(scheduler_->blocks().pool(g).num_used(), 0);
      EXPECT_EQ(scheduler_->blocks().pool(g).num_pending(), 0);
      EXPECT_EQ(scheduler_->blocks().swap_pool(g).num_free(),
                limits_.kv_groups[static_cast<size_t>(g)].num_swap_blocks);
    }
    return steps;
  }

  void Remove(uint64_t id) {
    Sequence* seq = live_.at(id).get();
    scheduler_->Remove(seq);
    done[id] = {seq->tokens.begin() + seq->num_prompt, seq->tokens.end()};
    live_.erase(id);
  }

  // The pool knows exactly who holds what.
  void CheckBlocks() {
    const BlockManager& blocks = scheduler_->blocks();
    for (int32_t g = 0; g < blocks.num_groups(); ++g) {
      std::vector<int32_t> holders(static_cast<size_t>(blocks.pool(g).num_blocks()), 0);
      for (int32_t slot = 0; slot < limits_.max_seqs; ++slot) {
        for (int32_t block : blocks.table(slot, g).blocks) {
          if (block != kNoBlock) ++holders[static_cast<size_t>(block)];
        }
      }
      int32_t held = 0;
      for (int32_t block = 0; block < blocks.pool(g).num_blocks(); ++block) {
        ASSERT_EQ(blocks.pool(g).refcount(block), holders[static_cast<size_t>(block)]);
        held += holders[static_cast<size_t>(block)] > 0 ? 1 : 0;
      }
      ASSERT_EQ(held, blocks.pool(g).num_used());
    }
  }

  Scheduler& scheduler() { return *scheduler_; }
  const FakeModel& model() const { return device_.model(); }
  Sequence& seq(uint64_t id) { return *live_.at(id); }
  std::vector<uint64_t> LiveIds() const {
    std::vector<uint64_t> ids;
    for (const auto& [id, seq] : live_) ids.push_back(id);
    return ids;
  }

  StepPlan plan;
  std::vector<StepPlan> plans;  // all of them
  ManualClock clock;
  std::function<int64_t(const StepPlan&)> step_us;  // how long a step takes
  std::map<uint64_t, std::vector<int32_t>> done;

 private:
  // The oldest step in flight.
  void Collect() {
    device_.Completed(results_.front().step_id);
    clock.Advance(step_us ? step_us(plan) : 1);
    for (const ScheduledRow& row : scheduler_->Commit(results_.front(), clock.NowUs())) {
      if (row.end != SequenceEnd::kNone) Remove(row.seq->id);
    }
    results_.pop_front();
  }

  SchedulerLimits limits_;
  FakeDevice device_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<uint64_t, std::unique_ptr<Sequence>> live_;
  std::deque<StepResult> results_;  // of the steps in flight
  uint64_t last_id_ = 0;
  int32_t budget_ = 0;
};

}  // namespace cachalot
