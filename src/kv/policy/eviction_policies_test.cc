// All cache policies: victim by victim against naive ones under random use, and short sequences by hand.
#include "kv/policy/eviction_policies.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "kv/policy/belady.h"
#include "kv/policy/ghost_list.h"
#include "kv/policy/naive_policies.h"

namespace cachalot {
namespace {

constexpr LruKOptions kFourClasses{.tau_s = {10, 10, 40, 3}};

std::unique_ptr<EvictionPolicy> Make(const std::string& name, int32_t num_blocks,
                                     const LruKOptions& lru_k = {}) {
  const auto make = FindEvictionPolicy(name, lru_k);
  EXPECT_TRUE(make.ok()) << make.status().ToString();
  return (*make)(num_blocks);
}

std::unique_ptr<EvictionPolicy> MakeNaive(const std::string& name, int32_t num_blocks) {
  if (name == "lru") return std::make_unique<NaiveLru>(num_blocks);
  if (name == "lfu") return std::make_unique<NaiveLfu>(num_blocks);
  if (name == "arc") return std::make_unique<NaiveArc>(num_blocks);
  if (name == "s3-fifo") return std::make_unique<NaiveS3Fifo>(num_blocks);
  if (name == "w-tinylfu") return std::make_unique<NaiveWTinyLfu>(num_blocks);
  if (name == "sieve") return std::make_unique<NaiveSieve>(num_blocks);
  return std::make_unique<NaiveLruK>(
      num_blocks, std::vector<double>(kFourClasses.tau_s.begin(), kFourClasses.tau_s.end()));
}

class EveryPolicy : public testing::TestWithParam<std::string> {};

// What a cache does to a policy, in random order, with popular keys and others, also while blocks are in use.
TEST_P(EveryPolicy, EqualsItsNaiveModel) {
  int64_t num_evicted = 0, num_returned = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 rng(seed);
    const auto random = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
    const int32_t n = seed == 1 ? 1 : random(2, 150);
    const auto policy = Make(GetParam(), n, kFourClasses), naive = MakeNaive(GetParam(), n);
    struct Block {
      uint64_t key = 0;
      bool resident = false, candidate = false;
    };
    std::vector<Block> blocks(static_cast<size_t>(n));
    std::set<uint64_t> gone;
    int64_t now_us = 0;
    const auto both = [&](auto call) {
      call(policy.get());
      call(naive.get());
    };
    const auto set_candidate = [&](int32_t id, bool candidate) {
      Block& block = blocks[static_cast<size_t>(id)];
      if (block.candidate == candidate) return;
      block.candidate = candidate;
      both([&](EvictionPolicy* p) { candidate ? p->AddCandidate(id) : p->RemoveCandidate(id); });
    };
    for (int op = 0; op < 4000; ++op) {
      if (random(0, 9) == 0) now_us += random(0, 100'000);  // 20 s in all: some time constants
      both([&](EvictionPolicy* p) { p->SetTime(now_us); });
      const auto empty =
          std::find_if(blocks.begin(), blocks.end(), [](const Block& b) { return !b.resident; });
      const auto id = static_cast<int32_t>(empty != blocks.end() && random(0, 2) == 0 ? empty - blocks.begin()
                                                                                      : random(0, n - 1));
      Block& block = blocks[static_cast<size_t>(id)];
      const bool full = empty == blocks.end();
      const bool any = std::any_of(blocks.begin(), blocks.end(), [](const Block& b) { return b.candidate; });
      const int what = random(0, 99);
      if (!block.resident) {
        block.key = static_cast<uint64_t>(random(0, 3) == 0 ? random(0, n / 2) : random(0, 6 * n));
        num_returned += gone.count(block.key) == 1 ? 1 : 0;
        block.resident = true;
        const int32_t reuse_class = random(0, 3);
        both([&](EvictionPolicy* p) { p->Insert(id, block.key, reuse_class); });
        if (random(0, 3) > 0) set_candidate(id, true);
      } else if (what < 35) {
        both([&](EvictionPolicy* p) { p->Reference(id); });
      } else if (what < 50) {
        both([&](EvictionPolicy* p) { p->Release(id); });
      } else if (what < 65) {
        set_candidate(id, !block.candidate);
      } else if (what == 65) {
        set_candidate(id, false);
        both([&](EvictionPolicy* p) { p->Erase(id, /*evicted=*/false); });
        block.resident = false;
      } else if (full && any) {
        const int32_t victim = policy->Victim();
        ASSERT_EQ(victim, naive->Victim()) << GetParam() << " seed " << seed << " op " << op;
        ASSERT_TRUE(blocks[static_cast<size_t>(victim)].candidate);
        gone.insert(blocks[static_cast<size_t>(victim)].key);
        set_candidate(victim, false);
        both([&](EvictionPolicy* p) { p->Erase(victim, /*evicted=*/true); });
        blocks[static_cast<size_t>(victim)].resident = false;
        ++num_evicted;
      }
    }
  }
  EXPECT_GT(num_evicted, 3000);
  EXPECT_GT(num_returned, 1000);
}

INSTANTIATE_TEST_SUITE_P(All, EveryPolicy,
                         testing::ValuesIn(std::vector<std::string>(EvictionPolicyNames().begin(),
                                                                    EvictionPolicyNames().end())),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(EvictionPolicies, ATableOfNames) {
  EXPECT_EQ(EvictionPolicyNames().size(), 7u);
  EXPECT_EQ(FindEvictionPolicy("clock").status().message(),
            "cache policy 'clock' is none of lru, lfu, lru-k, arc, s3-fifo, w-tinylfu, sieve");
  EXPECT_FALSE(FindEvictionPolicy("lru-k", {.tau_s = {600, 600, 0, 600}}).ok());
}

// A cache of letters, all of them candidates at all times. Use() returns what gave way, or '-'.
struct Letters {
  Letters(const std::string& name, int32_t size, const LruKOptions& lru_k = {})
      : policy(Make(name, size, lru_k)), held(static_cast<size_t>(size), 0) {}
  char Use(char letter, double at_s = 0) {
    policy->SetTime(static_cast<int64_t>(at_s * 1e6));
    const auto at = [&](char wanted) {
      return static_cast<int32_t>(std::find(held.begin(), held.end(), wanted) - held.begin());
    };
    if (at(letter) < static_cast<int32_t>(held.size())) {
      policy->Reference(at(letter));
      return '-';
    }
    int32_t block = at(0);
    char gone = '-';
    if (block == static_cast<int32_t>(held.size())) {
      block = policy->Victim();
      policy->RemoveCandidate(block);
      policy->Erase(block, true);
      gone = held[static_cast<size_t>(block)];
    }
    held[static_cast<size_t>(block)] = letter;
    policy->Insert(block, static_cast<uint64_t>(letter), 0);
    policy->AddCandidate(block);
    return gone;
  }
  std::string Use(const std::string& letters) {
    std::string gone;
    for (char letter : letters) gone += Use(letter);
    return gone;
  }
  std::unique_ptr<EvictionPolicy> policy;
  std::string held;
};

TEST(EvictionPolicies, ByHand) {
  EXPECT_EQ(Letters("lru", 3).Use("abcadb"), "----bc");
  EXPECT_EQ(Letters("lfu", 3).Use("aabbcdef"), "-----cde") << "what is asked for once never pushes out a, b";
  // a and b are marked, and spared once; c goes, and the hand comes round to them.
  EXPECT_EQ(Letters("sieve", 3).Use("abcabdefg"), "-----cabd");
  // a has two references in the small queue (of one block), so it moves on; b to j go in order.
  EXPECT_EQ(Letters("s3-fifo", 4).Use("aaabcdefb"), "------bcd") << "b came back and is in the main queue";
  // a again: two lists, {b, c, d} once and {a} twice; those seen once give way, until b comes back.
  EXPECT_EQ(Letters("arc", 3).Use("aabcdb"), "----bc");
  EXPECT_EQ(Letters("w-tinylfu", 3).Use("aabbcdc"), "-----cd") << "one reference does not beat two";
}

TEST(EvictionPolicies, LruKByHand) {
  // tau 10 s. a is used at 0 and 1, b at 5. At 6: a is worth e^-0.6 + e^-0.5 = 1.155, b e^-0.1 = 0.905.
  Letters two("lru-k", 2, {.tau_s = {10, 10, 10, 10}});
  two.Use('a', 0);
  two.Use('a', 1);
  two.Use('b', 5);
  EXPECT_EQ(two.Use('c', 6), 'b');
  // b is remembered at 5: at 7 it is worth 1 + e^-0.2; c 0.905 went for it.
  EXPECT_EQ(two.Use('b', 7), 'c');
  // At 8: a 0.946, b 1.724. Popular once is not for ever: at 60 d is worth more than a and b.
  EXPECT_EQ(two.Use('d', 8), 'a');
  EXPECT_EQ(two.Use('a', 60), 'd');
  EXPECT_EQ(two.Use('e', 60), 'b');
}

TEST(EvictionPolicies, ClassesOfRequestsDecayAtTheirOwnRate) {
  const auto policy = Make("lru-k", 2, {.tau_s = {10, 100, 10, 10}});
  policy->Insert(0, 1, /*reuse_class=*/0);
  policy->Insert(1, 2, /*reuse_class=*/1);
  policy->SetTime(20'000'000);
  policy->Reference(0);
  policy->AddCandidate(0);
  policy->AddCandidate(1);
  EXPECT_EQ(policy->Victim(), 1) << "1.14 against 0.82";
  policy->SetTime(40'000'000);
  EXPECT_EQ(policy->Victim(), 0) << "0.154 against 0.67";
}

TEST(EvictionPolicies, BeladyKnows) {
  BeladyPolicy policy(3);
  const int64_t next[] = {7, 9, 8};
  for (int32_t block : {0, 1, 2}) {
    policy.SetNextUse(next[block]);
    policy.Insert(block, static_cast<uint64_t>(block), 0);
    policy.AddCandidate(block);
  }
  EXPECT_EQ(policy.Victim(), 1);
  policy.SetNextUse(3);
  policy.Reference(1);
  EXPECT_EQ(policy.Victim(), 2);
}

TEST(GhostList, AgainstADeque) {
  std::mt19937_64 rng(3);
  GhostList<int> ghosts(20);
  std::deque<std::pair<uint64_t, int>> model;
  const auto find = [&](uint64_t key) {
    return std::find_if(model.begin(), model.end(), [&](const auto& entry) { return entry.first == key; });
  };
  for (int i = 0; i < 20000; ++i) {
    const uint64_t key = rng() % 60;
    if (rng() % 3 == 0) {
      const auto found = find(key);
      const auto taken = ghosts.Take(key);
      ASSERT_EQ(taken.has_value(), found != model.end());
      if (found == model.end()) continue;
      ASSERT_EQ(*taken, found->second);
      model.erase(found);
    } else if (rng() % 9 == 0) {
      if (model.empty()) continue;
      ghosts.PopOldest();
      model.pop_front();
    } else {
      ghosts.Insert(key, i);
      const auto found = find(key);
      if (found != model.end()) model.erase(found);
      model.emplace_back(key, i);
      if (model.size() > 20) model.pop_front();
    }
    ASSERT_EQ(ghosts.size(), static_cast<int64_t>(model.size()));
  }
}

TEST(FrequencySketch, CountsAndForgets) {
  FrequencySketch sketch(64);
  for (int i = 0; i < 9; ++i) sketch.Add(5);
  EXPECT_EQ(sketch.Estimate(5), 9);
  EXPECT_EQ(sketch.Estimate(6), 0);
  for (int i = 0; i < 40; ++i) sketch.Add(7);
  EXPECT_EQ(sketch.Estimate(7), 15) << "the highest count";
  for (uint64_t i = 0; i < 640; ++i) sketch.Add(1000 + i);
  EXPECT_LE(sketch.Estimate(7), 9) << "halved";
}

}  // namespace
}  // namespace cachalot
