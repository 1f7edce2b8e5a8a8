#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kv/block_pool.h"
#include "kv/policy/block_heap.h"
#include "kv/policy/lru.h"

namespace cachalot {
namespace {

BlockKey Key(uint64_t n) {
  return {n, 1};
}

TEST(BlockKey, CoversEverythingInFront) {
  const std::vector<int32_t> a = {1, 2, 3, 4}, b = {1, 2, 3, 5};
  const BlockKey root = RootKey("weights", "tenant");
  EXPECT_EQ(ChildKey(root, a), ChildKey(RootKey("weights", "tenant"), a));
  EXPECT_NE(ChildKey(root, a), ChildKey(root, b));
  EXPECT_NE(ChildKey(ChildKey(root, a), b), ChildKey(ChildKey(root, b), b));
  EXPECT_NE(ChildKey(root, std::span(a).first(3)), ChildKey(root, a));
  EXPECT_NE(root, RootKey("weights", "another"));
  EXPECT_NE(root, RootKey("other weights", "tenant"));
  EXPECT_NE(RootKey("ab", "c"), RootKey("a", "bc"));
  EXPECT_NE(KeyInPage(root, 0), KeyInPage(root, 1));
}

TEST(BlockHeap, AgainstASet) {
  std::mt19937_64 rng(7);
  BlockHeap<uint64_t> heap(60);
  std::set<std::pair<uint64_t, int32_t>> model;
  std::map<int32_t, uint64_t> keys;
  for (int i = 0; i < 20000; ++i) {
    const auto block = static_cast<int32_t>(rng() % 60);
    ASSERT_EQ(heap.Contains(block), keys.count(block) == 1);
    if (heap.Contains(block)) {
      heap.Remove(block);
      model.erase({keys.at(block), block});
      keys.erase(block);
    } else {
      const uint64_t key = rng() % 20;
      heap.Insert(block, key);
      model.insert({key, block});
      keys[block] = key;
    }
    ASSERT_EQ(heap.empty(), model.empty());
    if (!model.empty()) {
      ASSERT_EQ(heap.Least(), model.begin()->second);
    }
  }
}

TEST(PrefixIndex, AKeyNamesOneBlock) {
  PrefixIndex index(4, MakeLruPolicy(4));
  EXPECT_EQ(index.Find(Key(1)), -1);
  EXPECT_TRUE(index.Insert(2, Key(1), -1));
  EXPECT_FALSE(index.Insert(3, Key(1), -1)) << "a second block with the same content stays unknown";
  EXPECT_EQ(index.Find(Key(1)), 2);
  EXPECT_TRUE(index.Insert(3, Key(5), 2)) << "keys 1 and 5 share a bucket";
  EXPECT_EQ(index.Find(Key(5)), 3);
  EXPECT_EQ(index.Find(Key(9)), -1);
  EXPECT_EQ(index.num_cached(), 2);
  index.Clear();
  EXPECT_EQ(index.Find(Key(1)), -1);
  EXPECT_EQ(index.num_cached(), 0);
}

TEST(PrefixIndex, LeavesGoFirstThenWhatWasUsedLeastRecently) {
  // 0 - 1 - 2 and 0 - 3; 4 stands alone.
  PrefixIndex index(5, MakeLruPolicy(5));
  index.Insert(0, Key(0), -1);
  index.Insert(1, Key(1), 0);
  index.Insert(2, Key(2), 1);
  index.Insert(3, Key(3), 0);
  index.Insert(4, Key(4), -1);
  for (int32_t block : {0, 1, 4, 2, 3}) {
    index.Release(block);
    index.SetIdle(block);
  }
  std::vector<int32_t> order;
  while (index.num_idle() > 0) order.push_back(index.Evict());
  EXPECT_EQ(order, (std::vector<int32_t>{4, 2, 1, 3, 0}))
      << "0 and 1 are the oldest, and others stand on them";
  EXPECT_EQ(index.num_evictions(), 5);
}

TEST(PrefixIndex, WhatIsInUseStays) {
  PrefixIndex index(3, MakeLruPolicy(3));
  for (int32_t block : {0, 1, 2}) {
    index.Insert(block, Key(static_cast<uint64_t>(block)), -1);
    index.Release(block);
    index.SetIdle(block);
  }
  index.SetBusy(0);
  EXPECT_EQ(index.Evict(), 1);
  index.Release(0);
  index.SetIdle(0);
  EXPECT_EQ(index.Evict(), 2);
  EXPECT_EQ(index.Evict(), 0);
}

// Six blocks that stand alone, used in this order, all idle.
struct Six {
  explicit Six(std::vector<KeepTerms> terms = std::vector<KeepTerms>(6)) {
    for (int32_t block = 0; block < 6; ++block) {
      index.Insert(block, Key(static_cast<uint64_t>(block)), -1, terms[static_cast<size_t>(block)]);
      index.Release(block);
      index.SetIdle(block);
    }
  }
  std::vector<int32_t> EvictAll() {
    std::vector<int32_t> order;
    while (index.num_idle() > 0) order.push_back(index.Evict());
    return order;
  }
  PrefixIndex index{6, MakeLruPolicy(6)};
};

TEST(PrefixIndex, PrioritiesStandAroundThePolicy) {
  Six six({{.priority = 2}, {}, {.priority = 1}, {.priority = -1}, {.priority = -5}, {}});
  six.index.SetPinned(1, true);
  EXPECT_EQ(six.index.num_pinned(), 1);
  EXPECT_EQ(six.EvictAll(), (std::vector<int32_t>{4, 3, 5, 2, 0, 1}))
      << "pins go too, when nothing else is left";
  EXPECT_EQ(six.index.num_pinned(), 0);
  Six again;
  again.index.SetPinned(0, true);
  again.index.SetPinned(0, false);
  again.index.Reference(1, {.priority = 7});
  again.index.Reference(2, {.priority = -7});
  EXPECT_EQ(again.EvictAll(), (std::vector<int32_t>{0, 3, 4, 5, 2, 1}))
      << "the highest of all who used it counts";
}

TEST(PrefixIndex, WhatOutlivedItsTimeGoesFirst) {
  Six six(
      {{}, {.ttl_us = 50}, {.ttl_us = 10}, {.priority = 3, .ttl_us = 20}, {.priority = -1}, {.ttl_us = 10}});
  six.index.SetTime(9);
  EXPECT_EQ(six.index.Evict(), 4) << "nothing has";
  six.index.Reference(5);
  six.index.SetTime(25);
  EXPECT_EQ(six.EvictAll(), (std::vector<int32_t>{2, 3, 0, 1, 5})) << "another request wanted 5 for good";
  Six longest({{.ttl_us = 5}, {}, {}, {}, {}, {}});
  longest.index.Reference(0, {.ttl_us = INT64_MAX});
  longest.index.SetTime(INT64_MAX / 8);
  EXPECT_EQ(longest.EvictAll().back(), 0);
}

TEST(PrefixIndex, EachTenantKeepsItsFloor) {
  PrefixIndex index(6, MakeLruPolicy(6), /*tenant_floor=*/2);
  const auto add = [&](int32_t block, uint64_t key, int32_t tenant) {
    index.Insert(block, Key(key), -1, {.tenant = tenant});
    index.Release(block);
    index.SetIdle(block);
  };
  for (int32_t block : {0, 1, 2}) add(block, static_cast<uint64_t>(block), 1);
  for (int32_t block : {3, 4, 5}) add(block, static_cast<uint64_t>(block), 2);
  EXPECT_EQ(index.Evict(), 0) << "the oldest, of three";
  add(0, 10, 2);
  EXPECT_EQ(index.Evict(), 3) << "tenant 1 has two left";
  EXPECT_EQ(index.Evict(), 4);
  // Tenant 1 rises above its floor again: what was put aside may go.
  add(3, 11, 1);
  EXPECT_EQ(index.Evict(), 1);
  index.SetBusy(2);
  index.SetIdle(2);
  EXPECT_EQ(index.num_idle(), 4);
  // All stand at the floor. Somebody must give: of those with most, what was put aside first.
  EXPECT_EQ(index.Evict(), 2);
  EXPECT_EQ(index.Evict(), 5);
  std::set<int32_t> rest;
  while (index.num_idle() > 0) rest.insert(index.Evict());
  EXPECT_EQ(rest, (std::set<int32_t>{0, 3}));
}

TEST(PrefixIndex, ADuplicateRefreshesWhatItStandsFor) {
  PrefixIndex index(4, MakeLruPolicy(4));
  for (int32_t block : {0, 1}) {
    index.Insert(block, Key(static_cast<uint64_t>(block)), -1);
    index.Release(block);
    index.SetIdle(block);
  }
  EXPECT_FALSE(index.Insert(2, Key(0), -1));
  index.Release(1);
  index.Release(2);  // holds what 0 holds
  EXPECT_EQ(index.Evict(), 1);
  EXPECT_FALSE(index.Insert(2, Key(0), -1));
  EXPECT_EQ(index.Evict(), 0);
  index.Release(2);  // 0 is gone: nothing to refresh
  EXPECT_EQ(index.num_cached(), 0);
}

TEST(PrefixIndex, ForgetsWhatIsInUseToo) {
  BlockPool pool(3, std::make_unique<PrefixIndex>(3, MakeLruPolicy(3)));
  for (int32_t block : {0, 1, 2}) {
    pool.Allocate();
    pool.index()->Insert(block, Key(static_cast<uint64_t>(block)), block - 1);
  }
  pool.index()->SetPinned(0, true);
  pool.Unref(2, 1);
  pool.Unref(1, 0);
  EXPECT_EQ(pool.num_free(), 1);
  pool.ForgetCached();
  EXPECT_EQ(pool.index()->num_cached(), 0);
  EXPECT_EQ(pool.index()->num_pinned(), 0);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_pending(), 1);
  pool.Release(1);
  pool.Unref(0, 1);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.num_cached_free(), 0);
}

TEST(BlockPool, CachedBlocksCountAsFreeAndAreTakenLast) {
  BlockPool pool(3, std::make_unique<PrefixIndex>(3, MakeLruPolicy(3)));
  for (int32_t block : {0, 1, 2}) EXPECT_EQ(pool.Allocate(), block);
  pool.index()->Insert(0, Key(0), -1);
  pool.index()->Insert(1, Key(1), 0);
  for (int32_t block : {1, 0, 2}) pool.Unref(block, 4);
  EXPECT_EQ(pool.num_pending(), 3);
  pool.RefCached(0);  // while it is pending
  EXPECT_EQ(pool.num_pending(), 2);
  pool.Unref(0, 4);
  pool.RefCached(0);
  pool.Release(4);
  EXPECT_EQ(pool.num_pending(), 0);
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_cached_free(), 1);
  pool.Unref(0, 4);
  EXPECT_EQ(pool.Allocate(), 2) << "what holds nothing goes first";
  EXPECT_EQ(pool.Allocate(), 1);
  EXPECT_EQ(pool.index()->Find(Key(1)), -1);
  EXPECT_EQ(pool.index()->Find(Key(0)), 0);
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.index()->Find(Key(0)), -1);
}

}  // namespace
}  // namespace cachalot
