// Random arrivals, cancellations and memory pressure, by thousands.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "sched/scheduler_driver.h"

namespace cachalot {
namespace {

// Every output equals the undisturbed one (or a prefix of it, when
// cancelled), every block comes back, and everybody finishes.
TEST(SchedulerStress, RandomTraffic) {
  int64_t preemptions = 0, rows = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
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
    SchedulerOptions options{.max_batch_tokens = random(1, 40),
                             .prefill_chunk = random(1, 40),
                             .reserve_blocks_per_seq = random(0, 1)};
    SchedulerDriver driver(limits, options);
    std::map<uint64_t, std::vector<int32_t>> expected;
    std::map<uint64_t, bool> cancelled;
    const int32_t room = driver.scheduler().max_seq_tokens();
    for (int step = 0; step < 150 && !HasFailure(); ++step) {
      while (random(0, 2) == 0) {
        SequenceSpec spec = TestSpec(TestPrompt(random(1, std::min(room, 25)), random(0, 4)), random(0, 30));
        if (static_cast<int32_t>(spec.prompt_ids.size()) == room) spec.max_tokens = 0;
        spec.priority = random(0, 2);
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
        expected[driver.Add(std::move(spec))] = tokens;
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
    preemptions += driver.scheduler().num_preemptions();
  }
  EXPECT_GT(preemptions, 1500);
  EXPECT_GT(rows, 50000);
}

}  // namespace
}  // namespace cachalot
