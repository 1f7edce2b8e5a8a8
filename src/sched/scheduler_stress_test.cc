// Random arrivals, cancellations and memory pressure, by thousands.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "sched/scheduler_driver.h"

namespace cachalot {
namespace {

// Every output equals the undisturbed one (or a prefix of it, when
// cancelled), every block comes back, and everybody finishes.
TEST(SchedulerStress, RandomTraffic) {
  int64_t recomputes = 0, swaps = 0, forks = 0, hits = 0, rows = 0, drafts = 0, accepted = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 rng(seed);
    const auto random = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
    SchedulerLimits limits = TestLimits(random(8, 24));
    limits.max_seqs = random(1, 8);
    limits.max_context = random(24, 60);
    limits.max_logit_rows = random(1, 6);
    limits.depth = random(0, 1);
    if (seed % 2 == 0) {
      limits.kv_groups.push_back({.name = "window",
                                  .block_tokens = random(1, 8),
                                  .num_blocks = random(4, 12),
                                  .window = random(1, 12),
                                  .block_bytes = 1});
    }
    if (seed % 5 == 0) {
      // The first blocks lie elsewhere.
      KvGroupInfo& behind = limits.kv_groups[0];
      KvGroupInfo first = behind;
      first.name = "first";
      first.num_blocks = random(2, 10);
      first.end_token = behind.first_token = behind.block_tokens * random(1, 2);
      limits.kv_groups.push_back(first);
    }
    SchedulerOptions options{.max_batch_tokens = random(1, 40),
                             .prefill_chunk = random(1, 40),
                             .reserve_blocks_per_seq = random(0, 1)};
    options.enable_prefix_caching = random(0, 2) > 0;
    options.await_prefix_tokens = random(1, 40);
    options.preemption = random(0, 1) == 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    for (KvGroupInfo& group : limits.kv_groups) group.num_swap_blocks = random(0, 30);
    if (seed % 3 != 0) {
      options.drafts = seed % 3 == 1 ? DraftKind::kMtp : DraftKind::kNgram;
      limits.device_drafts = DraftKind::kMtp;
      limits.draft_context = random(0, 1) * 8;
      options.max_drafts = random(1, 6);
      options.adaptive_drafts = random(0, 3) == 0;
    }
    if (random(0, 1) == 0) options.itl_target_us = random(1, 2000);
    const char* policy = std::array{"fcfs", "priority", "fair"}[static_cast<size_t>(random(0, 2))];
    SchedulerDriver driver(limits, options, policy);
    SchedulerTrace trace;
    driver.scheduler().RecordTo(&trace);
    driver.step_us = [](const StepPlan& plan) { return 100 + 20 * plan.num_tokens(); };
    std::map<uint64_t, std::vector<int32_t>> expected;
    std::map<uint64_t, bool> cancelled;
    const int32_t room = driver.scheduler().max_seq_tokens();
    for (int step = 0; step < 150 && !HasFailure(); ++step) {
      while (random(0, 2) == 0) {
        SequenceSpec spec = TestSpec(TestPrompt(random(1, std::min(room, 25)), random(0, 4)), random(0, 30));
        if (static_cast<int32_t>(spec.prompt_ids.size()) == room) spec.max_tokens = 0;
        spec.priority = random(0, 2);
        spec.tenant = std::string(random(0, 2) == 0 ? "a" : "b");
        spec.sampling.temperature = static_cast<float>(random(0, 1));
        spec.sampling.seed = rng();
        spec.sampling.presence_penalty = static_cast<float>(random(0, 1));
        spec.all_logits = random(0, 3) == 0;
        spec.mtp_logits = random(0, 5) == 0;
        spec.prompt_logprobs = random(0, 3) == 0;
        if (random(0, 3) == 0) spec.stop_ids = {random(0, 49)};
        const int32_t generates =
            std::min(spec.max_tokens, room - static_cast<int32_t>(spec.prompt_ids.size()));
        const auto tokens = driver.model().Generate(spec.prompt_ids, spec.sampling, generates, spec.stop_ids);
        const uint64_t id = driver.Add(spec);
        expected[id] = tokens;
        if (spec.wants_logits() || spec.prompt_logprobs || random(0, 2) > 0) continue;
        // Other answers to the same prompt.
        for (int n = random(1, 3); n > 0; --n) {
          spec.sampling.seed = rng();
          const auto other =
              driver.model().Generate(spec.prompt_ids, spec.sampling, generates, spec.stop_ids);
          expected[driver.Add(spec, id)] = other;
          ++forks;
        }
      }
      if (random(0, 4) == 0 && !driver.LiveIds().empty()) {
        const auto ids = driver.LiveIds();
        const uint64_t id = ids[static_cast<size_t>(random(0, static_cast<int>(ids.size()) - 1))];
        cancelled[id] = true;
        driver.Remove(id);
      }
      driver.Step();
      rows += static_cast<int64_t>(driver.plan.rows.size());
    }
    driver.Run();
    for (const auto& [id, tokens] : expected) {
      const auto& got = driver.done[id];
      if (cancelled[id]) {
        ASSERT_LE(got.size(), tokens.size());
        ASSERT_TRUE(std::equal(got.begin(), got.end(), tokens.begin()))
            << "seed " << seed << ", sequence " << id;
      } else {
        ASSERT_EQ(got, tokens) << "seed " << seed << ", sequence " << id;
      }
    }
    recomputes += driver.scheduler().counters().recomputes;
    swaps += driver.scheduler().counters().swaps;
    hits += driver.scheduler().counters().cache_hit_tokens;
    drafts += driver.scheduler().counters().draft_tokens;
    accepted += driver.scheduler().counters().accepted_tokens;
    const auto replayed = ReplayTrace(trace, limits, options, *MakeSchedulingPolicy(policy));
    ASSERT_TRUE(replayed.ok() && *replayed == driver.plans) << "seed " << seed;
  }
  EXPECT_GT(recomputes, 1000);
  EXPECT_GT(swaps, 400);
  EXPECT_GT(forks, 1000);
  EXPECT_GT(hits, 3000);
  EXPECT_GT(rows, 30000);
  EXPECT_GT(drafts, 5000);
  EXPECT_GT(accepted, 2000);
}

}  // namespace
}  // namespace cachalot
