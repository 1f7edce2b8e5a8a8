// The prefix cache of BlockManager: what is found, taken over and given up, over groups of different kinds.
#include <gtest/gtest.h>

#include <random>

#include "kv/block_manager.h"
#include "kv/policy/lru.h"

namespace cachalot {
namespace {

KvGroupInfo Group(int32_t num_blocks, int32_t block_tokens, int32_t window = 0) {
  return {.name = "g",
          .block_tokens = block_tokens,
          .num_blocks = num_blocks,
          .window = window,
          .block_bytes = 1};
}

std::vector<BlockKey> Keys(const std::vector<int32_t>& tokens, int32_t page_tokens) {
  std::vector<BlockKey> keys;
  BlockKey parent = RootKey("model", "");
  for (size_t end = static_cast<size_t>(page_tokens); end <= tokens.size();
       end += static_cast<size_t>(page_tokens)) {
    parent = ChildKey(parent, std::span(tokens).subspan(end - static_cast<size_t>(page_tokens),
                                                        static_cast<size_t>(page_tokens)));
    keys.push_back(parent);
  }
  return keys;
}

struct Cache {
  explicit Cache(std::vector<KvGroupInfo> groups) : manager(std::move(groups), 4, 200, MakeLruPolicy) {}
  // `slot` computes tokens, in steps of `chunk`, and publishes its pages.
  void Compute(int32_t slot, const std::vector<int32_t>& tokens, int32_t chunk = 1000) {
    const auto keys = Keys(tokens, manager.page_tokens());
    const auto total = static_cast<int32_t>(tokens.size());
    for (int32_t end = 0, begin = 0; begin < total; begin = end) {
      end = std::min(total, begin + chunk);
      ++step;
      ASSERT_EQ(manager.CanAllocate(slot, end), KvFit::kNow);
      manager.Allocate(slot, end, step, &writes, &copies);
      const auto first = static_cast<size_t>(begin / manager.page_tokens());
      manager.Publish(slot, std::span(keys).first(static_cast<size_t>(end / manager.page_tokens())), first);
      manager.DropBehindWindow(slot, end, step);
      manager.Release(step);
    }
  }
  int32_t Find(const std::vector<int32_t>& tokens, int32_t most) {
    return manager.FindPrefix(Keys(tokens, manager.page_tokens()), most);
  }

  BlockManager manager;
  uint64_t step = 0;
  std::vector<BlockWrite> writes;
  std::vector<BlockCopy> copies;
};

std::vector<int32_t> Text(int32_t length, int32_t start = 0) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < length; ++i) tokens.push_back(start + i);
  return tokens;
}

// A fork that holds the beginning of a block which its parent completes and publishes, and then leaves: what it writes
// there goes into a copy.
TEST(PrefixCache, AForkDoesNotWriteIntoWhatIsKnown) {
  Cache cache({Group(10, 4)});
  const auto text = Text(8);
  cache.Compute(0, text);
  cache.manager.Fork(0, 1, 6, &cache.writes);
  cache.manager.Free(0, cache.step);
  cache.manager.Release(cache.step);
  cache.copies.clear();
  ASSERT_EQ(cache.manager.CanAllocate(1, 7), KvFit::kNow);
  EXPECT_FALSE(cache.manager.GrowInPlace(1, 7));
  cache.manager.Allocate(1, 7, ++cache.step, &cache.writes, &cache.copies);
  EXPECT_EQ(cache.copies.size(), 1u);
  EXPECT_EQ(cache.Find(text, 8), 8) << "the parent's pages are still found";
}

TEST(PrefixCache, FindsWholePagesOfWhatIsComputed) {
  Cache cache({Group(20, 4)});
  cache.Compute(0, Text(11));
  EXPECT_EQ(cache.Find(Text(11), 11), 8);
  EXPECT_EQ(cache.Find(Text(11), 7), 4);
  EXPECT_EQ(cache.Find(Text(30), 30), 8);
  EXPECT_EQ(cache.Find(Text(30, 1), 30), 0);
  std::vector<int32_t> other = Text(12);
  other[5] = 77;
  EXPECT_EQ(cache.Find(other, 12), 4);

  cache.writes.clear();
  EXPECT_EQ(cache.manager.CountHeld(0, Keys(Text(8), 4), 8), 2);
  cache.manager.TakePrefix(1, Keys(Text(8), 4), 8, &cache.writes);
  EXPECT_EQ(cache.writes.size(), 2u);
  EXPECT_EQ(cache.manager.pool(0).refcount(0), 2);
  cache.manager.Free(0, cache.step);
  cache.manager.Free(1, cache.step);
  EXPECT_EQ(cache.manager.Usage(0).num_used, 0);
  EXPECT_EQ(cache.manager.Usage(0).num_cached, 2);
  EXPECT_EQ(cache.manager.CountHeld(0, Keys(Text(8), 4), 8), 0);
  EXPECT_EQ(cache.Find(Text(11), 11), 8) << "it stays when nobody holds it";
}

TEST(PrefixCache, FullOfCachedBlocksItStillServes) {
  Cache cache({Group(6, 4)});
  cache.Compute(0, Text(24));
  cache.manager.Free(0, cache.step);
  EXPECT_EQ(cache.manager.Usage(0).num_cached, 6);
  cache.Compute(1, Text(10, 100));
  EXPECT_EQ(cache.Find(Text(24), 24), 12) << "the end of the text went first";
  EXPECT_EQ(cache.manager.num_evictions(), 3);
  cache.manager.Free(1, cache.step);
  cache.manager.ForgetCached();
  EXPECT_EQ(cache.Find(Text(24), 24), 0);
  EXPECT_EQ(cache.manager.pool(0).num_free(), 6);
}

TEST(PrefixCache, APageIsWholeInEveryGroup) {
  Cache cache({Group(40, 4), Group(40, 6)});
  EXPECT_EQ(cache.manager.page_tokens(), 12);
  cache.Compute(0, Text(30));
  EXPECT_EQ(cache.Find(Text(30), 29), 24);
  cache.writes.clear();
  cache.manager.TakePrefix(1, Keys(Text(24), 12), 24, &cache.writes);
  EXPECT_EQ(cache.writes.size(), 6u + 4u);
  EXPECT_EQ(cache.manager.table(1, 0).blocks,
            std::vector<int32_t>(cache.manager.table(0, 0).blocks.begin(),
                                 cache.manager.table(0, 0).blocks.begin() + 6));
}

TEST(PrefixCache, AWindowNeedsOnlyItsLastBlocks) {
  Cache cache({Group(40, 4), Group(8, 4, /*window=*/6)});
  cache.Compute(0, Text(40), /*chunk=*/4);
  cache.manager.Free(0, cache.step);
  // A pool of 8 holds the last blocks of the window group; all of the other's.
  EXPECT_EQ(cache.Find(Text(40), 40), 40);
  EXPECT_EQ(cache.Find(Text(40), 39), 36);
  cache.writes.clear();
  cache.manager.TakePrefix(1, Keys(Text(36), 4), 36, &cache.writes);
  const BlockTable& windowed = cache.manager.table(1, 1);
  EXPECT_EQ(windowed.num_dropped, 7) << "position 36 reads 31 to 36";
  EXPECT_EQ(windowed.num_held(), 2);
  EXPECT_EQ(cache.manager.table(1, 0).num_held(), 9);
  // What the window group gave up is no loss for what ends later, but shorter prefixes are gone.
  Cache small({Group(40, 4), Group(3, 4, /*window=*/6)});
  small.Compute(0, Text(40), /*chunk=*/1);
  EXPECT_EQ(small.Find(Text(40), 40), 40);
  EXPECT_EQ(small.Find(Text(24), 24), 0);
}

TEST(PrefixCache, TheSameTextComputedTwiceIsKnownOnce) {
  Cache cache({Group(20, 4)});
  cache.Compute(0, Text(9));
  cache.Compute(1, Text(14));
  EXPECT_EQ(cache.Find(Text(14), 14), 12);
  cache.manager.Free(0, cache.step);
  EXPECT_EQ(cache.manager.Usage(0).num_cached, 2);
  cache.manager.Free(1, cache.step);
  EXPECT_EQ(cache.manager.Usage(0).num_cached, 3);
  EXPECT_EQ(cache.manager.pool(0).num_free(), 20);
  EXPECT_EQ(cache.Find(Text(14), 14), 12);
}

TEST(PrefixCache, ComputingItAgainKeepsIt) {
  Cache cache({Group(6, 4)});
  cache.Compute(0, Text(8));
  cache.manager.Free(0, cache.step);
  cache.Compute(1, Text(8, 100));
  cache.manager.Free(1, cache.step);
  cache.Compute(2, Text(8));  // not taken over, as when it was admitted beside the first
  cache.manager.Free(2, cache.step);
  cache.Compute(3, Text(16, 200));
  EXPECT_EQ(cache.Find(Text(8), 8), 8);
  EXPECT_EQ(cache.Find(Text(8, 100), 8), 0) << "used less recently";
}

TEST(PrefixCache, PinnedPagesGoLast) {
  Cache cache({Group(4, 4), Group(8, 2)});
  const auto keys = Keys(Text(8), 4), others = Keys(Text(4, 100), 4);
  EXPECT_EQ(cache.manager.SetPinned(keys, true), 0) << "not computed yet";
  cache.Compute(0, Text(8));
  EXPECT_EQ(cache.manager.SetPinned(keys, true), 8);
  EXPECT_EQ(cache.manager.Usage(0).num_pinned, 2);
  EXPECT_EQ(cache.manager.Usage(1).num_pinned, 4);
  cache.Compute(1, Text(4, 100));
  EXPECT_EQ(cache.manager.SetPinned(others, true), 0) << "half of the pool is pinned";
  EXPECT_EQ(cache.manager.SetPinned(std::span(keys).subspan(1), false), 4);
  cache.manager.Free(1, cache.step);
  cache.manager.Free(0, cache.step);
  cache.Compute(2, Text(12, 200));
  EXPECT_EQ(cache.Find(Text(8), 8), 4);
  cache.manager.Free(2, cache.step);
  cache.Compute(3, Text(16, 300));
  EXPECT_EQ(cache.Find(Text(8), 8), 0) << "no request fails for a pin";
  EXPECT_EQ(cache.manager.Usage(0).num_pinned, 0);
}

// Random sequences over few texts against a naive model: all that is found was published, in every group,
// under the table entries that a sequence standing there would read.
TEST(PrefixCache, RandomTrafficAgainstANaiveModel) {
  int64_t taken = 0, evictions = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 rng(seed);
    const auto random = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
    Cache cache({Group(random(30, 60), 4), Group(random(30, 60), random(0, 1) == 0 ? 2 : 4, random(1, 20))});
    // What each block holds: the text and its first position.
    std::vector<std::vector<std::pair<int32_t, int32_t>>> holds(2);
    for (int g = 0; g < 2; ++g) holds[size_t(g)].resize(size_t(cache.manager.group(g).num_blocks), {-1, -1});
    const auto text = [](int32_t which) { return Text(60, 1000 * which); };
    int32_t length[4] = {}, which[4] = {};
    for (int op = 0; op < 600; ++op) {
      const int32_t slot = random(0, 3);
      if (length[slot] == 0) {
        which[slot] = random(0, 5);
        const auto keys = Keys(text(which[slot]), 4);
        const int32_t found = cache.manager.FindPrefix(keys, random(0, 60));
        cache.manager.TakePrefix(slot, keys, found, &cache.writes);
        length[slot] = found;
        taken += found;
        for (int g = 0; g < 2; ++g) {
          const BlockTable& table = cache.manager.table(slot, g);
          for (int32_t i = table.num_dropped; i < table.num_entries(); ++i) {
            ASSERT_EQ(holds[size_t(g)][size_t(table.blocks[size_t(i)])],
                      (std::pair{which[slot], i * cache.manager.group(g).block_tokens}));
          }
        }
      } else if (random(0, 4) == 0) {
        cache.manager.Free(slot, cache.step);
        length[slot] = 0;
        continue;
      }
      const int32_t end = std::min(60, length[slot] + random(1, 9));
      if (end == length[slot] || cache.manager.CanAllocate(slot, end) != KvFit::kNow) continue;
      ++cache.step;
      cache.manager.Allocate(slot, end, cache.step, &cache.writes, &cache.copies);
      for (int g = 0; g < 2; ++g) {
        const BlockTable& table = cache.manager.table(slot, g);
        for (int32_t i = length[slot] / cache.manager.group(g).block_tokens; i < table.num_entries(); ++i) {
          holds[size_t(g)][size_t(table.blocks[size_t(i)])] = {which[slot],
                                                               i * cache.manager.group(g).block_tokens};
        }
      }
      cache.manager.Publish(slot,
                            std::span<const BlockKey>(Keys(text(which[slot]), 4)).first(size_t(end / 4)),
                            size_t(length[slot] / 4));
      length[slot] = end;
      cache.manager.DropBehindWindow(slot, end, cache.step);
      if (random(0, 1) == 0) cache.manager.Release(cache.step);
      for (int g = 0; g < 2; ++g) {
        const KvGroupUsage usage = cache.manager.Usage(g);
        ASSERT_EQ(usage.num_used + usage.num_pending + cache.manager.pool(g).num_free(), usage.num_blocks);
        ASSERT_LE(usage.num_cached, cache.manager.pool(g).num_free());
      }
    }
    evictions += cache.manager.num_evictions();
    for (int32_t slot = 0; slot < 4; ++slot) cache.manager.Free(slot, cache.step);
    cache.manager.Release(cache.step);
    for (int g = 0; g < 2; ++g) EXPECT_EQ(cache.manager.Usage(g).num_used, 0);
  }
  EXPECT_GT(taken, 3000);
  EXPECT_GT(evictions, 2000);
}

}  // namespace
}  // namespace cachalot
