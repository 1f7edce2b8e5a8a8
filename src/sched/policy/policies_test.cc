#include "sched/policy/policies.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sched/scheduler_driver.h"

namespace cachalot {
namespace {

// The order in which sequences end.
std::vector<uint64_t> Order(SchedulerDriver* driver) {
  std::vector<uint64_t> order;
  for (bool more = true; more;) {
    more = driver->Step();
    for (const auto& [id, tokens] : driver->done) {
      if (std::find(order.begin(), order.end(), id) == order.end()) order.push_back(id);
    }
  }
  return order;
}

SequenceSpec Spec(int32_t priority, const std::string& tenant = "", double weight = 1) {
  SequenceSpec spec = TestSpec(TestPrompt(4), 4);
  spec.priority = priority;
  spec.tenant = tenant;
  spec.tenant_weight = weight;
  return spec;
}

SchedulerLimits OneAtATime() {
  SchedulerLimits limits = TestLimits();
  limits.max_seqs = 1;
  return limits;
}

TEST(Policies, AreKnownByName) {
  for (const char* name : {"fcfs", "priority", "fair"}) EXPECT_TRUE(MakeSchedulingPolicy(name).ok());
  EXPECT_EQ(MakeSchedulingPolicy("lifo").status().message(),
            "scheduling policy 'lifo' is none of fcfs, priority, fair");
}

// Better requests keep coming: a worse one is served all the same.
TEST(Policies, PriorityIsWorthSomeWaitingAndNoMore) {
  for (const char* name : {"fcfs", "fair"}) {
    const auto policy = MakeSchedulingPolicy(name).value();
    Sequence worse(1, Spec(2));
    policy->OnAdd(&worse);
    bool passed = false;
    for (uint64_t i = 0; i < 100'000 && !passed; ++i) {
      Sequence better(2 + i, Spec(-2));
      better.added_us = static_cast<int64_t>(i) * 1'000'000;
      better.num_prompt = 1000;
      better.tokens.resize(1010);  // what it has had when it leaves
      better.max_total = 1010;
      policy->OnAdd(&better);
      passed = !policy->Before(better, worse);
      EXPECT_TRUE(i > 10 || !passed) << name;
      policy->OnAdmit(better);
      policy->OnRemove(better);
    }
    EXPECT_TRUE(passed) << name;
  }
}

TEST(PriorityPolicy, ANewcomerTakesThePlaceOfALowerOne) {
  for (const char* policy : {"fcfs", "priority"}) {
    SchedulerDriver driver(OneAtATime(), {}, policy);
    const uint64_t low = driver.Add(Spec(5));
    ASSERT_TRUE(driver.Step());
    const uint64_t same = driver.Add(Spec(5)), high = driver.Add(Spec(1));
    const auto order = Order(&driver);
    if (std::string_view(policy) == "fcfs") {
      EXPECT_EQ(order, (std::vector<uint64_t>{low, high, same}));
      EXPECT_EQ(driver.scheduler().num_preemptions(), 0);
    } else {
      EXPECT_EQ(order, (std::vector<uint64_t>{high, low, same}));
      EXPECT_EQ(driver.scheduler().num_preemptions(), 1);
    }
    EXPECT_EQ(driver.done[low], driver.model().Generate(TestPrompt(4), {}, 4));
  }
}

TEST(PriorityPolicy, DisplacesForMemoryAndNoMoreThanNeeded) {
  for (int32_t depth : {0, 1}) {
    SchedulerLimits limits = TestLimits(/*num_blocks=*/12);
    limits.depth = depth;
    SchedulerDriver driver(limits, {.reserve_blocks_per_seq = 0}, "priority");
    for (int32_t i = 0; i < 4; ++i) {
      SequenceSpec spec = TestSpec(TestPrompt(9, i), 3);  // three blocks each
      spec.priority = 5;
      driver.Add(std::move(spec));
    }
    ASSERT_TRUE(driver.Step());
    ASSERT_EQ(driver.scheduler().num_running(), 4);
    SequenceSpec spec = TestSpec(TestPrompt(20, 7), 2);  // five blocks and more
    spec.priority = 1;
    driver.Add(std::move(spec));
    ASSERT_TRUE(driver.Step());
    EXPECT_EQ(driver.scheduler().num_preemptions(), 2);
    driver.Run();
  }
}

TEST(PriorityPolicy, AnEarlierDeadlineGoesFirst) {
  SchedulerDriver driver(OneAtATime(), {}, "priority");
  driver.Add(Spec(0));
  ASSERT_TRUE(driver.Step());
  SequenceSpec soon = Spec(0), late = Spec(0);
  soon.deadline_us = 1000;
  late.deadline_us = 2000;
  const uint64_t never = driver.Add(Spec(0)), second = driver.Add(late), first = driver.Add(soon);
  const auto order = Order(&driver);
  EXPECT_EQ(std::vector<uint64_t>(order.begin() + 1, order.end()),
            (std::vector<uint64_t>{first, second, never}));
  EXPECT_EQ(driver.scheduler().num_preemptions(), 0);
}

TEST(FairPolicy, AFloodOfOneTenantDelaysNoOther) {
  SchedulerDriver driver(OneAtATime(), {}, "fair");
  std::vector<uint64_t> flood;
  for (int i = 0; i < 6; ++i) flood.push_back(driver.Add(Spec(0, "many")));
  ASSERT_TRUE(driver.Step());
  const uint64_t a = driver.Add(Spec(0, "few")), b = driver.Add(Spec(0, "few"));
  const auto order = Order(&driver);
  EXPECT_EQ(std::vector<uint64_t>(order.begin(), order.begin() + 5),
            (std::vector<uint64_t>{flood[0], a, flood[1], b, flood[2]}));
}

TEST(FairPolicy, WeightsAreShares) {
  SchedulerDriver driver(OneAtATime(), {}, "fair");
  std::map<uint64_t, std::string> owner;
  for (int i = 0; i < 30; ++i) {
    owner[driver.Add(Spec(0, "light", 1))] = "light";
    owner[driver.Add(Spec(0, "heavy", 3))] = "heavy";
  }
  const auto order = Order(&driver);
  int heavy = 0;
  for (int i = 0; i < 32; ++i) heavy += owner[order[static_cast<size_t>(i)]] == "heavy";
  EXPECT_NEAR(heavy, 24, 1);
}

// Guessed work is set right: whoever asks for much and takes little loses nothing by it.
TEST(FairPolicy, CountsWhatWasReallyGenerated) {
  SchedulerDriver driver(OneAtATime(), {}, "fair");
  const auto plain = driver.model().Generate(TestPrompt(4), {}, 1);
  std::map<uint64_t, std::string> owner;
  const auto add = [&](const char* tenant) {
    SequenceSpec spec = Spec(0, tenant);
    if (std::string_view(tenant) == "brief") {
      spec.max_tokens = 100;
      spec.stop_ids = {plain[0]};  // ends with the first token
    }
    owner[driver.Add(std::move(spec))] = tenant;
  };
  add("brief");
  add("usual");
  int brief = 0, usual = 0;
  for (int done = 0; done < 40;) {
    ASSERT_TRUE(driver.Step());
    const auto ended = static_cast<int>(driver.done.size());
    for (; done < ended; ++done) {
      (owner[std::next(driver.done.begin(), done)->first] == "brief" ? brief : usual) += 1;
    }
    // Each tenant always has two waiting.
    std::map<std::string, int> live;
    for (uint64_t id : driver.LiveIds()) ++live[owner[id]];
    for (const char* tenant : {"brief", "usual"}) {
      if (live[tenant] < 2) add(tenant);
    }
  }
  // 5 tokens against 8: more of the brief ones.
  EXPECT_GT(brief, usual);
  driver.Run();
}

TEST(FairPolicy, AnIdleTenantSavesNothingUp) {
  SchedulerDriver driver(OneAtATime(), {}, "fair");
  for (int i = 0; i < 20; ++i) driver.Add(Spec(0, "busy"));
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(driver.Step());
  std::vector<uint64_t> late;
  for (int i = 0; i < 5; ++i) late.push_back(driver.Add(Spec(0, "late")));
  std::map<uint64_t, bool> is_late;
  for (uint64_t id : late) is_late[id] = true;
  const size_t ended = driver.done.size();
  const auto order = Order(&driver);
  int in_front = 0;
  for (size_t i = ended; i < ended + 4; ++i) in_front += is_late[order[i]];
  EXPECT_LE(in_front, 3) << "they alternate from now on";
  EXPECT_GE(in_front, 1);
}

}  // namespace
}  // namespace cachalot
