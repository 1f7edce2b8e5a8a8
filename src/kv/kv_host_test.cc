// KV blocks in the host's memory: ids, keys, holders, who gives way.
#include "kv/kv_host.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kv/policy/eviction_policies.h"

namespace cachalot {
namespace {

BlockKey Key(uint64_t n) { return {n * 0x9e3779b97f4a7c15u, n}; }

class KvHostTest : public ::testing::Test {
 protected:
  void Make(int32_t num_blocks, std::string_view policy = "lru") {
    groups_ = {{.name = "a", .num_blocks = num_blocks, .block_bytes = 24}, {.name = "b", .num_blocks = num_blocks, .block_bytes = 8}};
    memory_.assign(static_cast<size_t>(KvHost::SumBytes(groups_)), {});
    host_ = std::make_unique<KvHost>(groups_, memory_, *FindEvictionPolicy(policy));
  }
  static TierBlock Name(int32_t group, uint64_t n) {
    return {.group = group, .key = Key(n), .parent = Key(n - 1), .has_parent = n % 10 != 0};
  }
  // Filled and let go of.
  bool Put(int32_t group, uint64_t n) {
    const int32_t block = host_->Take(group);
    if (block == kNoBlock) return false;
    std::memcpy(host_->Bytes(group, block).data(), &n, sizeof(n));
    host_->Fill(group, block, Name(group, n), {});
    host_->Release(group, block);
    return true;
  }
  // Whether it is there; what is there must be right.
  bool Has(int32_t group, uint64_t n) {
    const int32_t block = host_->Find(group, Key(n));
    if (block == kNoBlock) return false;
    uint64_t content = 0;
    std::memcpy(&content, host_->Bytes(group, block).data(), sizeof(content));
    EXPECT_EQ(content, n);
    return true;
  }

  std::vector<KvGroupInfo> groups_;
  std::vector<std::byte> memory_;
  std::unique_ptr<KvHost> host_;
};

TEST_F(KvHostTest, FindsWhatIsFilledAndNothingElse) {
  Make(4);
  const int32_t block = host_->Take(0);
  EXPECT_EQ(host_->Find(0, Key(1)), kNoBlock) << "taken, not filled";
  host_->Fill(0, block, Name(0, 1), {});
  EXPECT_EQ(host_->Find(0, Key(1)), block);
  EXPECT_EQ(host_->Find(1, Key(1)), kNoBlock) << "of another group";
  host_->Release(0, block);
  EXPECT_EQ(host_->Find(0, Key(1)), block);
  // What was taken and not filled is nobody's again.
  for (int32_t i = 0; i < 20; ++i) host_->Release(1, host_->Take(1));
  EXPECT_EQ(host_->num_cached(), 1);
  // The same twice, as when two copies of it were under way: one is known.
  ASSERT_TRUE(Put(0, 7));
  ASSERT_TRUE(Put(0, 7));
  EXPECT_TRUE(Has(0, 7));
  EXPECT_EQ(host_->num_cached(), 2);
}

TEST_F(KvHostTest, WhatIsHeldStays) {
  Make(4);
  std::vector<int32_t> held;
  for (uint64_t n = 0; n < 4; ++n) {
    held.push_back(host_->Take(0));
    std::memcpy(host_->Bytes(0, held.back()).data(), &n, sizeof(n));
    if (n < 3) host_->Fill(0, held.back(), Name(0, n), {});
  }
  EXPECT_FALSE(Put(0, 100)) << "all are held";
  EXPECT_TRUE(Put(1, 100)) << "the other group has places of its own";
  host_->Release(0, held[2]);
  host_->Hold(0, held[2], {});  // somebody else
  EXPECT_FALSE(Put(0, 100));
  host_->Release(0, held[2]);
  EXPECT_TRUE(Put(0, 100));
  EXPECT_FALSE(Has(0, 2)) << "gave way";
  EXPECT_TRUE(Has(0, 0));
  EXPECT_EQ(host_->num_evictions(), 1);
}

TEST_F(KvHostTest, TheEndOfATextGivesWayFirst) {
  Make(10);
  for (uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(Put(0, n));
  for (uint64_t n = 20; n < 24; ++n) ASSERT_TRUE(Put(0, n));
  for (uint64_t n = 0; n < 6; ++n) EXPECT_TRUE(Has(0, n)) << n;
  for (uint64_t n = 6; n < 10; ++n) EXPECT_FALSE(Has(0, n)) << n;
  // A block whose parent is elsewhere goes on its own.
  ASSERT_TRUE(Put(0, 55));
  EXPECT_TRUE(Has(0, 55));
}

TEST_F(KvHostTest, ForgetsAndGoesOn) {
  Make(4);
  const int32_t filled = host_->Take(0), taken = host_->Take(0);
  host_->Fill(0, filled, Name(0, 1), {});
  ASSERT_TRUE(Put(0, 2));
  host_->Forget();
  EXPECT_EQ(host_->num_cached(), 0);
  EXPECT_FALSE(Has(0, 1));
  for (uint64_t n = 10; n < 12; ++n) ASSERT_TRUE(Put(0, n));
  EXPECT_TRUE(Has(0, 10) && Has(0, 11)) << "held ones were given away";
  host_->Release(0, filled);
  host_->Release(0, taken);
  for (uint64_t n = 12; n < 14; ++n) ASSERT_TRUE(Put(0, n));
  for (uint64_t n = 10; n < 14; ++n) EXPECT_TRUE(Has(0, n)) << n;
}

// Against a list of who holds what.
TEST_F(KvHostTest, RandomUse) {
  for (const std::string_view policy : EvictionPolicyNames()) {
    SCOPED_TRACE(policy);
    Make(32, policy);
    std::mt19937 rng(5);
    std::vector<std::pair<int32_t, uint64_t>> held;  // block, content; ~0: none
    int64_t now_us = 0;
    for (int32_t i = 0; i < 20'000; ++i) {
      host_->SetTime(now_us += rng() % 10'000);
      const uint64_t n = rng() % 200;
      const size_t at = held.empty() ? 0 : rng() % held.size();
      switch (rng() % 5) {
        case 0:
          if (const int32_t block = host_->Take(0); block != kNoBlock) {
            for (const auto& other : held) ASSERT_NE(other.first, block);
            held.emplace_back(block, ~uint64_t{0});
          } else {
            ASSERT_FALSE(held.empty()) << "what nobody holds gives way";
          }
          break;
        case 1:
          if (const int32_t block = host_->Find(0, Key(n)); block != kNoBlock && held.size() < 60) {
            host_->Hold(0, block, {});
            held.emplace_back(block, n);
          }
          break;
        case 2:
          if (!held.empty() && held[at].second == ~uint64_t{0}) {
            std::memcpy(host_->Bytes(0, held[at].first).data(), &n, sizeof(n));
            host_->Fill(0, held[at].first, Name(0, n), {});
            held[at].second = n;
          }
          break;
        default:
          if (held.empty()) break;
          host_->Release(0, held[at].first);
          held.erase(held.begin() + static_cast<ptrdiff_t>(at));
      }
      if (rng() % 4000 == 0) host_->Forget();
      Has(0, n);
      for (const auto& [block, content] : held) {
        if (content == ~uint64_t{0}) continue;
        uint64_t now = 0;
        std::memcpy(&now, host_->Bytes(0, block).data(), sizeof(now));
        ASSERT_EQ(now, content) << "a held block changed";
      }
    }
    EXPECT_GT(host_->num_evictions(), 500);
  }
}

TEST(KvHost, SharesASizeAsThePoolsDo) {
  const std::vector<KvGroupInfo> pools = {{.name = "full", .num_blocks = 1000, .block_bytes = 3000},
                                          {.name = "sinks", .num_blocks = 10, .block_bytes = 1000}};
  const auto groups = KvHost::GroupsOf(pools, 2 * KvHost::SumBytes(pools));
  EXPECT_EQ(groups[0].num_blocks, 2000);
  EXPECT_EQ(groups[1].num_blocks, 20);
  EXPECT_LE(KvHost::SumBytes(KvHost::GroupsOf(pools, 1'000'000)), 1'000'000);
}

}  // namespace
}  // namespace cachalot
