#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sched/scheduler_driver.h"

namespace cachalot {
namespace {

TEST(Scheduler, DecodesFirstThenPromptsThenNewcomers) {
  SchedulerOptions options{.max_batch_tokens = 10, .prefill_chunk = 8};
  SchedulerDriver driver(TestLimits(), options);
  const uint64_t a = driver.Add(TestSpec(TestPrompt(3), 20));
  driver.Step();
  const uint64_t b = driver.Add(TestSpec(TestPrompt(20), 5));
  const uint64_t c = driver.Add(TestSpec(TestPrompt(2), 5));
  driver.Step();
  // a decodes (1), b gets its chunk (8), c what is left (1).
  ASSERT_EQ(driver.plan.rows.size(), 3u);
  EXPECT_EQ(driver.plan.rows[0].slot, driver.seq(a).slot);
  EXPECT_EQ(driver.plan.rows[0].token_begin, -1) << "decode rows take the runtime's last token";
  EXPECT_EQ(driver.plan.rows[1].slot, driver.seq(b).slot);
  EXPECT_EQ(driver.plan.rows[1].q_len, 8);
  EXPECT_EQ(driver.plan.rows[1].outputs, 0u);
  EXPECT_EQ(driver.plan.rows[1].next_token, driver.seq(b).tokens[8]);
  EXPECT_EQ(driver.plan.rows[2].slot, driver.seq(c).slot);
  EXPECT_EQ(driver.plan.rows[2].q_len, 1);
  EXPECT_EQ(driver.plan.setups.size(), 2u);
  driver.Step();
  // a (1), then the prompts that run, in order: b (8), c (1).
  ASSERT_EQ(driver.plan.rows.size(), 3u);
  EXPECT_EQ(driver.plan.rows[1].num_computed, 8);
  EXPECT_EQ(driver.plan.rows[2].outputs, kOutputSample);
  EXPECT_TRUE(driver.plan.setups.empty());
  driver.Run();
  EXPECT_EQ(driver.done[a], driver.model().Generate(TestPrompt(3), {}, 20));
  EXPECT_EQ(driver.done[b], driver.model().Generate(TestPrompt(20), {}, 5));
}

TEST(Scheduler, ChunksAndBudgetsChangeNothing) {
  for (int32_t chunk : {1, 7, 64, 512}) {
    for (int32_t budget : {1, 5, 64}) {
      SchedulerDriver driver(TestLimits(), {.max_batch_tokens = budget, .prefill_chunk = chunk});
      std::map<uint64_t, std::vector<int32_t>> expected;
      for (int32_t length : {1, 2, 17, 33, 100}) {
        SequenceSpec spec = TestSpec(TestPrompt(length, length), 9);
        spec.sampling.temperature = 0.5f;
        spec.sampling.seed = static_cast<uint64_t>(length);
        const auto tokens = driver.model().Generate(spec.prompt_ids, spec.sampling, 9);
        expected[driver.Add(std::move(spec))] = tokens;
      }
      driver.Run();
      EXPECT_EQ(driver.done, expected) << "chunk " << chunk << ", budget " << budget;
    }
  }
}

TEST(Scheduler, LowerPriorityNumberRunsFirst) {
  SchedulerLimits limits = TestLimits();
  limits.max_seqs = 1;
  SchedulerDriver driver(limits);
  std::vector<uint64_t> ids;
  for (int32_t priority : {2, 1, 0, 1}) {
    SequenceSpec spec = TestSpec(TestPrompt(4), 3);
    spec.priority = priority;
    ids.push_back(driver.Add(std::move(spec)));
  }
  std::vector<uint64_t> order;
  while (driver.Step()) {
    for (const auto& [id, tokens] : driver.done) {
      if (std::find(order.begin(), order.end(), id) == order.end()) order.push_back(id);
    }
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{ids[2], ids[1], ids[3], ids[0]}));
}

TEST(Scheduler, ATightBudgetServesDecodesFirst) {
  SchedulerDriver driver(TestLimits(), {.max_batch_tokens = 6, .prefill_chunk = 6});
  for (int i = 0; i < 2; ++i) {
    SequenceSpec spec = TestSpec(TestPrompt(2, i), 12);
    spec.priority = 1;
    driver.Add(std::move(spec));
  }
  ASSERT_TRUE(driver.Step());
  const uint64_t prompt =
      driver.Add(TestSpec(TestPrompt(30), 5));  // before both in the policy's order, and yet
  for (int step = 1; step <= 3; ++step) {
    ASSERT_TRUE(driver.Step());
    ASSERT_EQ(driver.plan.rows.size(), 3u);
    EXPECT_EQ(driver.plan.rows[0].token_begin, -1);
    EXPECT_EQ(driver.plan.rows[1].token_begin, -1);
    EXPECT_EQ(driver.plan.rows[2].q_len, 4);
    EXPECT_EQ(driver.seq(prompt).num_computed, 4 * step);
  }
  driver.Run();
}

TEST(Scheduler, PreemptsTheYoungestOfTheLowestPriority) {
  // Four sequences of 2 blocks fill the pool; the first needs its third block before the others do.
  SchedulerDriver driver(TestLimits(8), {.reserve_blocks_per_seq = 0});
  std::vector<uint64_t> ids;
  for (int32_t priority : {0, 1, 0, 1}) {
    SequenceSpec spec = TestSpec(TestPrompt(ids.empty() ? 8 : 5, static_cast<int32_t>(ids.size())), 12);
    spec.priority = priority;
    ids.push_back(driver.Add(std::move(spec)));
  }
  ASSERT_TRUE(driver.Step());
  ASSERT_EQ(driver.scheduler().num_running(), 4);
  ASSERT_TRUE(driver.Step());
  EXPECT_EQ(driver.scheduler().num_preemptions(), 1);
  EXPECT_EQ(driver.seq(ids[3]).state, SequenceState::kWaiting);
  EXPECT_EQ(driver.seq(ids[3]).num_computed, 0);
  EXPECT_EQ(driver.seq(ids[3]).num_generated(), 1) << "its token stays";
  EXPECT_EQ(driver.seq(ids[1]).state, SequenceState::kRunning);
  driver.Run();
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto prompt = TestPrompt(i == 0 ? 8 : 5, static_cast<int32_t>(i));
    EXPECT_EQ(driver.done[ids[i]], driver.model().Generate(prompt, {}, 12));
  }
}

TEST(Scheduler, PreemptionChangesNoToken) {
  SamplingConfig sampling{
      .temperature = 1.0f, .repetition_penalty = 1.1f, .seed = 5, .logit_bias = {{3, 1.5f}}, .suppressed_ids = {}};
  for (int32_t num_blocks : {11, 13, 20}) {
    SchedulerDriver driver(TestLimits(num_blocks),
                           {.max_batch_tokens = 16, .prefill_chunk = 5, .reserve_blocks_per_seq = 0});
    std::map<uint64_t, std::vector<int32_t>> expected;
    for (int32_t i = 0; i < 12; ++i) {
      SequenceSpec spec = TestSpec(TestPrompt(3 + i, i), 30 - i);
      spec.sampling = sampling;
      const auto tokens = driver.model().Generate(spec.prompt_ids, sampling, spec.max_tokens);
      expected[driver.Add(std::move(spec))] = tokens;
    }
    driver.Run();
    EXPECT_GT(driver.scheduler().num_preemptions(), 3) << num_blocks;
    EXPECT_EQ(driver.done, expected) << num_blocks;
  }
}

TEST(Scheduler, WindowGroupsHoldOnlyTheirWindow) {
  SchedulerLimits limits = TestLimits(40);
  limits.kv_groups.push_back(
      {.name = "window", .block_tokens = 4, .num_blocks = 5, .window = 9, .block_bytes = 1});
  limits.max_context = 120;
  SchedulerDriver driver(limits, {.prefill_chunk = 64});
  const uint64_t a = driver.Add(TestSpec(TestPrompt(60), 50));
  int32_t most = 0;
  while (driver.Step()) most = std::max(most, driver.scheduler().blocks().pool(1).num_used());
  EXPECT_LE(most, 5);
  EXPECT_EQ(driver.done[a], driver.model().Generate(TestPrompt(60), {}, 50));
}

TEST(Scheduler, RefusesWhatCanNeverFit) {
  SchedulerDriver driver(TestLimits(/*num_blocks=*/10));  // 40 tokens, in a context of 128
  const Scheduler& scheduler = driver.scheduler();
  EXPECT_EQ(scheduler.max_seq_tokens(), 40);
  EXPECT_EQ(scheduler.CanAdd(TestSpec(TestPrompt(41), 0)).message(),
            "the prompt has 41 tokens: the KV cache holds 40");
  EXPECT_FALSE(scheduler.CanAdd(TestSpec(TestPrompt(40), 1)).ok());
  EXPECT_TRUE(scheduler.CanAdd(TestSpec(TestPrompt(40), 0)).ok());
  EXPECT_FALSE(scheduler.CanAdd(TestSpec({}, 1)).ok());
  EXPECT_FALSE(scheduler.CanAdd(TestSpec({1}, -1)).ok());
  // What may grow without end is cut at the room there is.
  const uint64_t full = driver.Add(TestSpec(TestPrompt(10), 1000000));
  const uint64_t prompt_only = driver.Add(TestSpec(TestPrompt(40), 0));
  driver.Run();
  EXPECT_EQ(driver.done[full].size(), 30u);
  EXPECT_TRUE(driver.done[prompt_only].empty());
}

TEST(Scheduler, LogitRowsAreSharedAndNobodyStarves) {
  SchedulerLimits limits = TestLimits();
  limits.max_logit_rows = 3;
  SchedulerDriver driver(limits);
  std::map<uint64_t, std::vector<int32_t>> expected;
  for (int32_t i = 0; i < 6; ++i) {
    SequenceSpec spec = TestSpec(TestPrompt(10 + i, i), 8);
    (i % 2 == 0 ? spec.all_logits : spec.mtp_logits) = true;
    const auto tokens = driver.model().Generate(spec.prompt_ids, {}, 8);
    expected[driver.Add(std::move(spec))] = tokens;
  }
  driver.Run();  // the device checks the limit
  EXPECT_EQ(driver.done, expected);
}

TEST(Scheduler, EndsAtAStopTokenOrABadOne) {
  SchedulerDriver driver(TestLimits());
  const auto plain = driver.model().Generate(TestPrompt(5), {}, 20);
  SequenceSpec spec = TestSpec(TestPrompt(5), 20);
  spec.stop_ids = {plain[7], 1000};
  const uint64_t id = driver.Add(std::move(spec));
  driver.Run();
  EXPECT_EQ(driver.done[id], driver.model().Generate(TestPrompt(5), {}, 20, std::vector<int32_t>{plain[7]}));

  auto scheduler = *Scheduler::Create(TestLimits(), {}, *MakeSchedulingPolicy("fcfs"));
  Sequence seq(1, TestSpec({1}, 5));
  scheduler->Add(&seq);
  StepPlan plan;
  scheduler->Plan(&plan);
  StepResult result;
  result.step_id = plan.step_id;
  result.rows.push_back({.slot = plan.rows[0].slot, .num_computed = 1, .sampled_token = -1});
  EXPECT_EQ(scheduler->Commit(result)[0].end, SequenceEnd::kBadToken);
  scheduler->Remove(&seq);
}

TEST(Scheduler, AnAbandonedStepFreesEverything) {
  auto scheduler = *Scheduler::Create(TestLimits(), {}, *MakeSchedulingPolicy("fcfs"));
  Sequence a(1, TestSpec(TestPrompt(30), 5)), b(2, TestSpec(TestPrompt(9), 5));
  scheduler->Add(&a);
  scheduler->Add(&b);
  StepPlan plan;
  scheduler->Plan(&plan);
  ASSERT_EQ(plan.rows.size(), 2u);
  const auto lost = scheduler->Abandon();
  ASSERT_EQ(lost.size(), 2u);
  for (Sequence* seq : lost) scheduler->Remove(seq);
  EXPECT_EQ(scheduler->blocks().pool(0).num_free(), 64);
  EXPECT_EQ(scheduler->num_running() + scheduler->num_waiting(), 0);
  scheduler->Plan(&plan);
  EXPECT_TRUE(plan.rows.empty());
}

TEST(Scheduler, KnobsAndLimitsAreChecked) {
  const auto error = [](SchedulerLimits limits, SchedulerOptions options) {
    return CheckSchedulerOptions(limits, options).message();
  };
  EXPECT_EQ(error(TestLimits(), {}), "");
  EXPECT_EQ(error(TestLimits(), {.max_batch_tokens = 0}),
            "max_batch_tokens is 0 tokens: must be in 1..1048576");
  EXPECT_EQ(error(TestLimits(), {.prefill_chunk = -3}), "prefill_chunk is -3 tokens: must be in 1..1048576");
  EXPECT_NE(error(TestLimits(0), {}), "");
  SchedulerLimits limits = TestLimits();
  limits.max_seqs = 0;
  EXPECT_EQ(error(limits, {}), "the executor's max_seqs is 0: must be at least 1");
}

// At depth 1 the plan counts on the step in flight without knowing what it brings.
TEST(Scheduler, PlansAheadOfTheStepInFlight) {
  SchedulerLimits limits = TestLimits();
  limits.depth = 1;
  auto scheduler = *Scheduler::Create(limits, {}, *MakeSchedulingPolicy("fcfs"));
  FakeDevice device(limits);
  Sequence a(1, TestSpec(TestPrompt(4), 3)), b(2, TestSpec(TestPrompt(6), 20));
  scheduler->Add(&a);
  StepPlan first, second;
  StepResult first_result, second_result;
  scheduler->Plan(&first);
  ASSERT_TRUE(device.Run(first, &first_result).ok());
  scheduler->Add(&b);
  scheduler->Plan(&second);
  ASSERT_TRUE(device.Run(second, &second_result).ok());
  ASSERT_EQ(second.rows.size(), 2u);
  EXPECT_EQ(second.rows[0].token_begin, -1) << "only the device knows the token";
  EXPECT_EQ(second.rows[0].num_computed, 4);
  EXPECT_EQ(scheduler->blocks().table(a.slot, 0).num_tokens, 5);
  EXPECT_EQ(a.num_tokens(), 4);
  EXPECT_EQ(a.num_total(), 6) << "two tokens are on their way";

  // It leaves while the second step is in flight: that row is nobody's, and its blocks wait.
  scheduler->Commit(first_result);
  EXPECT_EQ(a.num_tokens(), 5);
  scheduler->Remove(&a);
  EXPECT_EQ(scheduler->blocks().pool(0).num_pending(), 2);
  const auto rows = scheduler->Commit(second_result);
  EXPECT_EQ(rows[0].seq, nullptr);
  EXPECT_EQ(rows[1].seq, &b);
  EXPECT_EQ(scheduler->blocks().pool(0).num_pending(), 0);
  scheduler->Remove(&b);
}

TEST(Scheduler, PlansNothingBeyondMaxTokensOrTheContext) {
  for (int32_t depth : {0, 1}) {
    SchedulerLimits limits = TestLimits();
    limits.depth = depth;
    SchedulerDriver driver(limits);
    const uint64_t one = driver.Add(TestSpec(TestPrompt(9), 1));
    const uint64_t full = driver.Add(TestSpec(TestPrompt(120), 1000));
    int64_t num_tokens = 0;
    while (driver.Step()) num_tokens += driver.plan.num_tokens();
    EXPECT_EQ(num_tokens, 9 + 127);
    EXPECT_EQ(driver.done[one].size(), 1u);
    EXPECT_EQ(driver.done[full].size(), 8u);
  }
}

SchedulerLimits DraftingLimits(int32_t num_blocks = 64) {
  SchedulerLimits limits = TestLimits(num_blocks);
  limits.device_drafts = DraftKind::kMtp;
  return limits;
}

TEST(Scheduler, DraftsNeverReachBeyondTheEnd) {
  for (const auto& [kind, depth] : {std::pair(DraftKind::kMtp, 0), {DraftKind::kMtp, 1}, {DraftKind::kNgram, 0}, {DraftKind::kNgram, 1}}) {
    SchedulerLimits limits = DraftingLimits();
    limits.depth = depth;
    SchedulerDriver driver(limits, {.drafts = kind, .max_drafts = 6, .adaptive_drafts = false});
    std::map<uint64_t, std::vector<int32_t>> expected;
    for (const int32_t max_tokens : {1, 2, 3, 20, 1000}) {
      const auto prompt = TestPrompt(115 - max_tokens % 1000, max_tokens);
      const auto tokens = driver.model().Generate(prompt, {}, std::min(max_tokens, 128 - static_cast<int32_t>(prompt.size())));
      expected[driver.Add(TestSpec(prompt, max_tokens))] = tokens;
    }
    driver.Run();  // the device checks each row
    EXPECT_EQ(driver.done, expected);
    const SchedulerCounters& counters = driver.scheduler().counters();
    EXPECT_EQ(counters.sampled_tokens, 1 + 2 + 3 + 20 + 13);
    EXPECT_EQ(counters.sampled_tokens, counters.sampling_rows + counters.accepted_tokens);
    if (kind == DraftKind::kMtp) {
      EXPECT_GT(counters.accepted_tokens, 10);
    }
  }
}

// Steps are planned ahead as long as the host has nothing to draft, and what it drafts continues tokens that it knows.
TEST(Scheduler, DraftsOfTheHostWaitForTokensWhereThereAreAny) {
  SchedulerLimits limits = TestLimits();
  limits.depth = 1;
  for (const bool repeats : {false, true}) {
    SchedulerDriver driver(limits, {.drafts = DraftKind::kNgram, .max_drafts = 3, .adaptive_drafts = false});
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 40; ++i) prompt.push_back(repeats ? i % 4 : i);
    driver.Add(TestSpec(prompt, 2));
    driver.Step();
    EXPECT_EQ(driver.scheduler().num_in_flight(), 1);
    EXPECT_EQ(driver.scheduler().AwaitsTokens(), false) << "nothing more is drawn than the last token";
    driver.Run();
    driver.Add(TestSpec(prompt, 20));
    driver.Step();
    EXPECT_EQ(driver.scheduler().AwaitsTokens(), repeats);
    driver.Run();
  }
  // A prompt whose first two answered tokens stood behind its last one before: with the first the host sees that there is
  // something to draft, and behind the second it does.
  SchedulerDriver driver(limits, {.drafts = DraftKind::kNgram, .max_drafts = 3, .adaptive_drafts = false});
  std::vector<int32_t> prompt = {1, 0, 0, 0, 0, 1};
  for (auto answer = driver.model().Generate(prompt, {}, 2); answer[0] != prompt[1] || answer[1] != prompt[2];
       answer = driver.model().Generate(prompt, {}, 2)) {
    for (size_t digit = 1; digit < 5 && ++prompt[digit] == limits.vocab_size; ++digit) prompt[digit] = 0;
  }
  const auto tokens = driver.model().Generate(prompt, {}, 20);
  const uint64_t id = driver.Add(TestSpec(prompt, 20));
  driver.Run();
  EXPECT_EQ(driver.done[id], tokens);
  EXPECT_GT(driver.scheduler().counters().draft_tokens, 0);
}

// What the undisturbed ones just hold is enough with drafts too.
TEST(Scheduler, DraftsPreemptNobody) {
  SchedulerDriver driver(DraftingLimits(/*num_blocks=*/20),
                         {.reserve_blocks_per_seq = 0, .drafts = DraftKind::kMtp, .max_drafts = 6, .adaptive_drafts = false});
  std::map<uint64_t, std::vector<int32_t>> expected;
  for (int32_t i = 0; i < 2; ++i) {
    const auto tokens = driver.model().Generate(TestPrompt(10, i), {}, 30);
    expected[driver.Add(TestSpec(TestPrompt(10, i), 30))] = tokens;
  }
  driver.Run();
  EXPECT_EQ(driver.done, expected);
  EXPECT_EQ(driver.scheduler().num_preemptions(), 0);
  EXPECT_GT(driver.scheduler().counters().accepted_tokens, 10);
}

TEST(Scheduler, DraftsLeavePromptsTheirBudget) {
  SchedulerDriver driver(DraftingLimits(), {.max_batch_tokens = 10, .drafts = DraftKind::kMtp, .max_drafts = 6, .adaptive_drafts = false});
  for (int32_t i = 0; i < 3; ++i) driver.Add(TestSpec(TestPrompt(3, i), 60));
  for (int i = 0; i < 4; ++i) driver.Step();
  const uint64_t late = driver.Add(TestSpec(TestPrompt(20, 7), 1));
  int steps = 0;
  while (driver.done.count(late) == 0 && driver.Step()) ++steps;
  EXPECT_LE(steps, 6) << "at least 4 tokens of its prompt in each step";
  driver.Run();
}

TEST(Scheduler, DraftsMustBePossible) {
  const auto error = [](SchedulerLimits limits, SchedulerOptions options) {
    return CheckSchedulerOptions(limits, options).message();
  };
  EXPECT_EQ(error(DraftingLimits(), {.drafts = DraftKind::kMtp}), "");
  EXPECT_EQ(error(TestLimits(), {.drafts = DraftKind::kNgram}), "");
  EXPECT_EQ(error(TestLimits(), {.drafts = DraftKind::kMtp}), "drafts 'mtp': the executor was set up for 'none'");
  EXPECT_EQ(error(TestLimits(), {.max_drafts = 17}), "max_drafts is 17 tokens: must be in 1..16");
  SchedulerLimits ahead = TestLimits();
  ahead.depth = 1;
  ahead.device_drafts = DraftKind::kMtp;
  EXPECT_EQ(error(ahead, {.drafts = DraftKind::kMtp}), "");
  EXPECT_EQ(error(ahead, {.drafts = DraftKind::kNgram}), "");
}

// Many requests with one long beginning that come together: it is computed once.
TEST(Scheduler, NewcomersWaitForAPrefixThatIsBeingComputed) {
  for (int32_t depth : {0, 1}) {
    SchedulerLimits limits = TestLimits(400);
    limits.max_step_tokens = 512;
    limits.max_context = 800;
    limits.depth = depth;
    SchedulerDriver driver(limits, {.await_prefix_tokens = 64});
    std::map<uint64_t, std::vector<int32_t>> expected;
    for (int32_t i = 0; i < 5; ++i) {
      std::vector<int32_t> prompt = TestPrompt(i == 4 ? 60 : 300);
      prompt.push_back(i);
      const auto tokens = driver.model().Generate(prompt, {}, 5);
      expected[driver.Add(TestSpec(prompt, 5))] = tokens;
    }
    const uint64_t other = driver.Add(TestSpec(TestPrompt(20, 3), 5));
    expected[other] = driver.model().Generate(TestPrompt(20, 3), {}, 5);
    ASSERT_TRUE(driver.Step());
    EXPECT_EQ(driver.scheduler().num_running(), 3)
        << "the first, one with little in common, and one with nothing";
    EXPECT_EQ(driver.seq(other).state, SequenceState::kRunning);
    driver.Run();
    EXPECT_EQ(driver.done, expected);
    EXPECT_EQ(driver.scheduler().counters().prompt_tokens, 301 + 3 * 1 + 61 + 20);
    EXPECT_EQ(driver.scheduler().counters().cache_hit_tokens, 3 * 300);
  }
}

TEST(Scheduler, TheSameCallsGiveTheSamePlans) {
  SchedulerDriver first(TestLimits(12)), second(TestLimits(12));
  for (SchedulerDriver* driver : {&first, &second}) {
    for (int32_t i = 0; i < 10; ++i) driver->Add(TestSpec(TestPrompt(3 + i, i), 20));
  }
  for (bool more = true; more;) {
    more = first.Step();
    ASSERT_EQ(second.Step(), more);
    ASSERT_EQ(first.plan, second.plan);
  }
}

}  // namespace
}  // namespace cachalot
