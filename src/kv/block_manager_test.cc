#include "kv/block_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

namespace cachalot {
namespace {

KvGroupInfo Group(int32_t num_blocks, int32_t block_tokens, int32_t window = 0) {
  return {.name = "g",
          .block_tokens = block_tokens,
          .num_blocks = num_blocks,
          .window = window,
          .block_bytes = 1};
}

struct Plan {
  std::vector<BlockWrite> writes;
  std::vector<BlockCopy> copies;
};

TEST(BlockManager, GrowsByWholeBlocksInEveryGroup) {
  BlockManager manager({Group(4, 4), Group(9, 2)}, 2, 16);
  Plan plan;
  EXPECT_EQ(manager.CanAllocate(1, 5), KvFit::kNow);
  manager.Allocate(1, 5, 1, &plan.writes, &plan.copies);
  EXPECT_EQ(plan.writes.size(), 2u + 3u);
  EXPECT_EQ(plan.writes[0].slot, 1);
  EXPECT_EQ(manager.table(1, 0).num_held(), 2);
  EXPECT_EQ(manager.table(1, 1).num_held(), 3);
  manager.Allocate(1, 6, 2, &plan.writes, &plan.copies);
  EXPECT_EQ(plan.writes.size(), 5u) << "six tokens fit into the blocks of five";
  EXPECT_EQ(manager.Usage(0).unused_tokens, 2);
  EXPECT_EQ(manager.Usage(1).unused_tokens, 0);
  EXPECT_EQ(manager.CanAllocate(0, 8), KvFit::kNow);
  EXPECT_EQ(manager.CanAllocate(0, 9), KvFit::kNever) << "three blocks of group 0 are wanted, two are free";
  EXPECT_TRUE(plan.copies.empty());
}

TEST(BlockManager, FreedBlocksWaitForTheStepInFlight) {
  BlockManager manager({Group(2, 4)}, 2, 8);
  Plan plan;
  manager.Allocate(0, 8, 1, &plan.writes, &plan.copies);
  manager.Free(0, 1);
  EXPECT_EQ(manager.CanAllocate(1, 8), KvFit::kLater);
  EXPECT_EQ(manager.Usage(0).num_pending, 2);
  manager.Release(1);
  EXPECT_EQ(manager.CanAllocate(1, 8), KvFit::kNow);
}

TEST(BlockManager, TruncatesToWhatIsKept) {
  BlockManager manager({Group(6, 4), Group(6, 2, /*window=*/4)}, 2, 20);
  Plan plan;
  manager.Allocate(0, 9, 1, &plan.writes, &plan.copies);
  manager.DropBehindWindow(0, 5, 1);
  EXPECT_EQ(manager.table(0, 1).num_dropped, 1);
  manager.Truncate(0, 9, 1);
  EXPECT_EQ(manager.table(0, 0).num_held(), 3);
  manager.Truncate(0, 6, 1);
  EXPECT_EQ(manager.table(0, 0).num_tokens, 6);
  EXPECT_EQ(manager.table(0, 0).num_held(), 2);
  EXPECT_EQ(manager.table(0, 1).num_held(), 2);
  EXPECT_EQ(manager.pool(0).num_pending(), 1) << "the step may still write there";
  manager.Release(1);
  EXPECT_EQ(manager.pool(0).num_free(), 4);
  plan.writes.clear();
  manager.Allocate(0, 9, 2, &plan.writes, &plan.copies);
  EXPECT_EQ(plan.writes.size(), 1u + 2u) << "the table's entries behind the cut are written anew";
  manager.Truncate(0, 8, 2);
  manager.Fork(0, 1, 8, &plan.writes);
  manager.Truncate(0, 5, 2);
  EXPECT_EQ(manager.table(1, 0).num_held(), 2) << "the other holder keeps its blocks";
  EXPECT_EQ(manager.pool(0).refcount(manager.table(1, 0).blocks[1]), 2);
}

TEST(BlockManager, ForksShareUntilOneWrites) {
  BlockManager manager({Group(4, 4)}, 3, 16);
  Plan plan;
  manager.Allocate(0, 6, 1, &plan.writes, &plan.copies);
  plan.writes.clear();
  manager.Fork(0, 1, manager.table(0, 0).num_tokens, &plan.writes);
  EXPECT_EQ(plan.writes.size(), 2u);
  EXPECT_EQ(manager.pool(0).num_used(), 2);
  EXPECT_EQ(manager.pool(0).refcount(1), 2);

  plan.writes.clear();
  manager.Allocate(1, 7, 2, &plan.writes, &plan.copies);
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.copies[0].from_block, 1);
  EXPECT_EQ(plan.copies[0].to_block, 2);
  ASSERT_EQ(plan.writes.size(), 1u);
  EXPECT_EQ(plan.writes[0].index, 1);
  EXPECT_EQ(plan.writes[0].block_id, 2);
  // The parent is alone with its block again and writes in place.
  manager.Allocate(0, 7, 2, &plan.writes, &plan.copies);
  EXPECT_EQ(plan.copies.size(), 1u);
  // The source of the copy is read by step 2: not to be had before it is done, even by this step's plan.
  manager.Free(0, 1);
  EXPECT_EQ(manager.pool(0).num_pending(), 1);
  manager.Release(2);
  EXPECT_EQ(manager.pool(0).num_pending(), 0);
  EXPECT_EQ(manager.pool(0).refcount(0), 1) << "the full block is still shared knowledge of the child";
}

TEST(BlockManager, GrowsInPlaceWhereNoBlockIsNeededOrShared) {
  BlockManager manager({Group(8, 4), Group(8, 8)}, 2, 32);
  Plan plan;
  EXPECT_FALSE(manager.GrowInPlace(0, 1));
  manager.Allocate(0, 5, 1, &plan.writes, &plan.copies);
  EXPECT_TRUE(manager.GrowInPlace(0, 8));
  EXPECT_EQ(manager.table(0, 0).num_tokens, 8);
  EXPECT_EQ(manager.table(0, 1).num_tokens, 8);
  EXPECT_FALSE(manager.GrowInPlace(0, 9));
  EXPECT_EQ(manager.table(0, 1).num_tokens, 8) << "nothing or all";
  manager.Allocate(0, 9, 2, &plan.writes, &plan.copies);
  EXPECT_TRUE(manager.GrowInPlace(0, 10));
  manager.Fork(0, 1, 10, &plan.writes);
  EXPECT_FALSE(manager.GrowInPlace(0, 11)) << "both would write to one block";
  EXPECT_FALSE(manager.GrowInPlace(1, 11));
  manager.Allocate(1, 11, 3, &plan.writes, &plan.copies);
  EXPECT_EQ(plan.copies.size(), 2u);
  manager.Allocate(0, 17, 3, &plan.writes, &plan.copies);
  EXPECT_TRUE(manager.GrowInPlace(0, 18)) << "a block of its own";
  EXPECT_EQ(manager.pool(0).refcount(manager.table(0, 0).blocks.back()), 1);
}

TEST(BlockManager, ForkAtABlockBoundaryCopiesNothing) {
  BlockManager manager({Group(4, 4)}, 2, 16);
  Plan plan;
  manager.Allocate(0, 8, 1, &plan.writes, &plan.copies);
  manager.Fork(0, 1, manager.table(0, 0).num_tokens, &plan.writes);
  manager.Allocate(1, 9, 2, &plan.writes, &plan.copies);
  manager.Allocate(0, 9, 2, &plan.writes, &plan.copies);
  EXPECT_TRUE(plan.copies.empty());
  EXPECT_EQ(manager.pool(0).num_used(), 4);
}

TEST(BlockManager, CopyOnWriteCountsInCanAllocate) {
  BlockManager manager({Group(2, 4)}, 2, 16);
  Plan plan;
  manager.Allocate(0, 6, 1, &plan.writes, &plan.copies);
  manager.Fork(0, 1, manager.table(0, 0).num_tokens, &plan.writes);
  EXPECT_EQ(manager.CanAllocate(1, 6), KvFit::kNow);
  EXPECT_EQ(manager.CanAllocate(1, 7), KvFit::kNever);
}

TEST(BlockManager, WindowsKeepTheIndexAndFreeTheBlock) {
  BlockManager manager({Group(8, 4, /*window=*/6), Group(8, 4)}, 1, 64);
  Plan plan;
  manager.Allocate(0, 10, 1, &plan.writes, &plan.copies);
  manager.DropBehindWindow(0, 9, 1);  // position 9 reads 4 … 9
  EXPECT_EQ(manager.table(0, 0).blocks[0], kNoBlock);
  EXPECT_EQ(manager.table(0, 0).num_held(), 2);
  EXPECT_EQ(manager.table(0, 1).num_held(), 3) << "no window, no dropping";
  EXPECT_EQ(manager.pool(0).num_pending(), 1);
  manager.Release(1);
  EXPECT_EQ(manager.pool(0).num_free(), 6);
  manager.DropBehindWindow(0, 9, 2);  // again: nothing more
  EXPECT_EQ(manager.table(0, 0).num_held(), 2);
  manager.Free(0, 1);
  EXPECT_EQ(manager.pool(0).num_free(), 8);
}

TEST(BlockManager, ForksOfAWindowTakeWhatIsRead) {
  BlockManager manager({Group(10, 4), Group(10, 4, /*window=*/5)}, 3, 40);
  Plan plan;
  manager.Allocate(0, 22, 1, &plan.writes, &plan.copies);
  EXPECT_TRUE(manager.CanFork(0, 21));
  EXPECT_FALSE(manager.CanFork(0, 23));
  manager.DropBehindWindow(0, 22, 1);
  EXPECT_TRUE(manager.CanFork(0, 21)) << "position 21 reads from 17";
  EXPECT_FALSE(manager.CanFork(0, 12)) << "position 12 reads from 8, which is dropped";
  EXPECT_EQ(manager.CountForked(0, 21), 5);
  EXPECT_EQ(manager.CountForked(1, 21), 1);
  plan.writes.clear();
  manager.Fork(0, 1, 21, &plan.writes);
  EXPECT_EQ(manager.table(1, 1).num_dropped, 4);
  EXPECT_EQ(plan.writes.size(), 6u + 2u);
  // In the same step it writes on: its copy of the last block, and no entry twice.
  manager.Allocate(1, 22, 2, &plan.writes, &plan.copies);
  EXPECT_EQ(plan.copies.size(), 2u);
  EXPECT_EQ(plan.writes.size(), 6u + 2u);
  EXPECT_EQ(plan.writes[5].block_id, plan.copies[0].to_block);
}

TEST(BlockManager, SwapsOutAndIn) {
  std::vector<KvGroupInfo> groups = {Group(6, 4), Group(6, 4, /*window=*/5)};
  groups[0].num_swap_blocks = 5;
  groups[1].num_swap_blocks = 2;
  BlockManager manager(groups, 2, 24);
  Plan plan;
  std::vector<BlockMove> outs, ins;
  manager.Allocate(0, 18, 1, &plan.writes, &plan.copies);
  EXPECT_FALSE(manager.CanSwapOut(0)) << "five blocks of the window group are held, two fit on the host";
  manager.DropBehindWindow(0, 18, 1);
  manager.Release(1);
  ASSERT_TRUE(manager.CanSwapOut(0));
  const std::vector<int32_t> before = manager.table(0, 0).blocks;
  SwappedTables swapped;
  manager.SwapOut(0, 2, &swapped, &outs);
  ASSERT_EQ(outs.size(), 5u + 2u);
  EXPECT_EQ(outs[0].device_block, before[0]);
  EXPECT_EQ(manager.pool(0).num_pending(), 5) << "the step that moves them reads them";
  EXPECT_EQ(manager.swap_pool(0).num_free(), 0);
  manager.Release(2);
  EXPECT_EQ(manager.pool(0).num_free(), 6);

  plan.writes.clear();
  manager.SwapIn(1, 3, &swapped, &plan.writes, &ins);
  EXPECT_TRUE(swapped.empty());
  ASSERT_EQ(ins.size(), 7u);
  EXPECT_EQ(plan.writes.size(), 7u);
  for (size_t i = 0; i < ins.size(); ++i) EXPECT_EQ(ins[i].host_block, outs[i].host_block);
  EXPECT_EQ(manager.table(1, 0).num_tokens, 18);
  EXPECT_EQ(manager.table(1, 1).num_dropped, 3);
  EXPECT_EQ(manager.swap_pool(0).num_pending(), 5) << "and so does the step that moves them back";
  manager.Release(3);
  EXPECT_EQ(manager.swap_pool(0).num_free(), 5);
  EXPECT_EQ(manager.swap_pool(1).num_free(), 2);
}

// PeakBlocks and SequenceLimits against a run of every chunk size: never too few, and for a window not more
// than one block too many.
TEST(BlockManager, PeakBlocksBoundsEveryRun) {
  for (int32_t block_tokens : {1, 3, 4, 16}) {
    for (int32_t window : {0, 1, 2, 5, 16, 17, 40}) {
      for (int32_t chunk : {1, 2, 7, 16, 50}) {
        const int32_t total = 100;
        BlockManager manager({Group(100, block_tokens, window)}, 1, total);
        Plan plan;
        int32_t most = 0;
        for (int32_t computed = 0; computed < total;) {
          const int32_t end = std::min(total, computed + chunk);
          manager.Allocate(0, end, 1, &plan.writes, &plan.copies);
          most = std::max(most, manager.table(0, 0).num_held());
          computed = end;
          manager.DropBehindWindow(0, computed, 1);
        }
        const int32_t peak = manager.PeakBlocks(0, total, chunk);
        EXPECT_LE(most, peak) << block_tokens << " " << window << " " << chunk;
        EXPECT_GE(most + 1, peak) << block_tokens << " " << window << " " << chunk;
      }
    }
  }
}

TEST(BlockManager, SequenceLimitsAreWhatFits) {
  for (int32_t num_blocks : {1, 2, 3, 5, 9}) {
    for (int32_t window : {0, 1, 7, 8, 9, 30}) {
      const int32_t block_tokens = 4, max_tokens = 100;
      BlockManager manager({Group(num_blocks, block_tokens, window)}, 1, max_tokens);
      const KvSequenceLimits limits = manager.SequenceLimits(16);
      EXPECT_GE(limits.max_q_len, 1);
      EXPECT_LE(limits.max_q_len, 16);
      EXPECT_GE(limits.max_tokens, std::min(max_tokens, num_blocks * block_tokens));
      EXPECT_LE(manager.PeakBlocks(0, limits.max_tokens, limits.max_q_len), num_blocks)
          << num_blocks << " " << window;
      if (limits.max_q_len < 16) {
        EXPECT_GT(manager.PeakBlocks(0, limits.max_tokens, limits.max_q_len + 1), num_blocks);
      }
    }
  }
}

// The device in miniature: block tables, and what lies in the blocks. Each sequence's tokens are random
// numbers; reading them back through the tables finds any block that was reused, shared or copied wrongly.
class Stress {
 public:
  static constexpr int kSlots = 6, kMaxTokens = 60;

  explicit Stress(uint64_t seed)
      : rng_(seed),
        groups_{Group(26, 4), Group(14, 8, 12), Group(60, 1, 3)},
        manager_(groups_, kSlots, kMaxTokens) {
    for (const auto& group : groups_)
      content_.emplace_back(size_t(group.num_blocks * group.block_tokens), 0u);
    tables_.resize(kSlots,
                   std::vector<std::vector<int32_t>>(groups_.size(), std::vector<int32_t>(kMaxTokens, -1)));
    tokens_.resize(kSlots);
    last_step_.resize(kSlots, 0);
  }

  // One step of several sequences; the previous step is committed only afterwards (depth 1).
  void Step() {
    ++step_;
    auto& touched = touched_[step_ % 2];
    touched.clear();
    for (int slot = 0; slot < kSlots; ++slot) {
      const int action = Random(0, 9);
      if (action == 0) {
        manager_.Free(slot, last_step_[size_t(slot)]);
        tokens_[size_t(slot)].clear();
      } else if (action == 1) {
        const int other = Random(0, kSlots - 1);
        if (tokens_[size_t(slot)].empty() && last_step_[size_t(other)] < step_) {
          writes_.clear();
          manager_.Fork(other, slot, int(tokens_[size_t(other)].size()), &writes_);
          Apply();
          tokens_[size_t(slot)] = tokens_[size_t(other)];
        }
      } else {
        Grow(slot);
      }
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      manager_.DropBehindWindow(slot, int(tokens_[size_t(slot)].size()), last_step_[size_t(slot)]);
    }
    manager_.Release(step_ - 1);
    CheckCounts();
  }

  int64_t num_grown() const { return num_grown_; }
  int64_t num_copies() const { return num_copies_; }
  int64_t num_refused() const { return num_refused_; }

  void FreeAll() {
    for (int slot = 0; slot < kSlots; ++slot) manager_.Free(slot, step_);
    manager_.Release(step_);
    for (int g = 0; g < manager_.num_groups(); ++g) {
      EXPECT_EQ(manager_.pool(g).num_free(), groups_[size_t(g)].num_blocks);
    }
  }

 private:
  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }

  void Grow(int slot) {
    auto& tokens = tokens_[size_t(slot)];
    const int before = int(tokens.size());
    const int count = std::min(kMaxTokens - before, Random(1, Random(0, 3) == 0 ? 9 : 1));
    if (count == 0) return;
    if (manager_.CanAllocate(slot, before + count) != KvFit::kNow) {
      ++num_refused_;
      return;
    }
    ++num_grown_;
    writes_.clear();
    copies_.clear();
    manager_.Allocate(slot, before + count, step_, &writes_, &copies_);
    last_step_[size_t(slot)] = step_;
    for (const BlockCopy& copy : copies_) {
      ++num_copies_;
      const int bt = groups_[size_t(copy.group)].block_tokens;
      auto& data = content_[size_t(copy.group)];
      std::copy_n(data.begin() + copy.from_block * bt, bt, data.begin() + copy.to_block * bt);
      touched_[step_ % 2].insert({copy.group, copy.from_block});
    }
    for (const BlockWrite& write : writes_) {
      ASSERT_FALSE(touched_[(step_ + 1) % 2].count({write.group, write.block_id}))
          << "a step in flight touches it";
      ASSERT_FALSE(touched_[step_ % 2].count({write.group, write.block_id}))
          << "this step touches it already";
    }
    Apply();
    for (int i = 0; i < count; ++i) tokens.push_back(uint32_t(rng_()));
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int bt = groups_[g].block_tokens, window = groups_[g].window;
      for (int pos = before; pos < before + count; ++pos) {
        content_[g][size_t(tables_[size_t(slot)][g][size_t(pos / bt)] * bt + pos % bt)] = tokens[size_t(pos)];
      }
      const int first = window > 0 ? std::max(0, before - window + 1) : 0;
      for (int pos = first; pos < before + count; ++pos) {
        const int block = tables_[size_t(slot)][g][size_t(pos / bt)];
        ASSERT_EQ(content_[g][size_t(block * bt + pos % bt)], tokens[size_t(pos)])
            << "group " << g << " at " << pos;
        touched_[step_ % 2].insert({int(g), block});
      }
    }
  }

  void Apply() {
    for (const BlockWrite& write : writes_) {
      tables_[size_t(write.slot)][size_t(write.group)][size_t(write.index)] = write.block_id;
    }
  }

  void CheckCounts() {
    for (int g = 0; g < manager_.num_groups(); ++g) {
      std::vector<int> refs(size_t(groups_[size_t(g)].num_blocks), 0);
      for (int slot = 0; slot < kSlots; ++slot) {
        for (int32_t block : manager_.table(slot, g).blocks) {
          if (block != kNoBlock) ++refs[size_t(block)];
        }
      }
      int used = 0;
      for (size_t block = 0; block < refs.size(); ++block) {
        ASSERT_EQ(manager_.pool(g).refcount(int32_t(block)), refs[block]);
        used += refs[block] > 0;
      }
      ASSERT_EQ(manager_.pool(g).num_used(), used);
    }
  }

  std::mt19937_64 rng_;
  std::vector<KvGroupInfo> groups_;
  BlockManager manager_;
  std::vector<std::vector<uint32_t>> content_;             // [group][block * block_tokens + place]
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // [slot][group][index]
  std::vector<std::vector<uint32_t>> tokens_;              // [slot]: what must be read back
  std::vector<uint64_t> last_step_;
  std::set<std::pair<int, int>> touched_[2];  // (group, block) by this step and the one in flight
  std::vector<BlockWrite> writes_;
  std::vector<BlockCopy> copies_;
  uint64_t step_ = 0;
  int64_t num_grown_ = 0, num_copies_ = 0, num_refused_ = 0;
};

TEST(BlockManager, RandomStressAgainstNaiveModel) {
  int64_t grown = 0, copies = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Stress stress(seed);
    for (int step = 0; step < 1700 && !::testing::Test::HasFatalFailure(); ++step) stress.Step();
    stress.FreeAll();
    grown += stress.num_grown();
    copies += stress.num_copies();
    refused += stress.num_refused();
  }
  // All paths were walked: 10 x 1700 x 6 operations.
  EXPECT_GT(grown, 30000);
  EXPECT_GT(copies, 300);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace cachalot
