// The block pool with its prefix index under random use, against a model that looks at every block after
// every operation: allocate, share, publish, take over from the cache, let go (with steps in flight), evict,
// recall from a lower tier, pin, flush. 10^5 operations here; `make soak` runs 10^7.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "kv/block_pool.h"
#include "kv/policy/eviction_policies.h"

namespace cachalot {
namespace {

constexpr uint64_t kMaxInFlight = 3;

class PoolModel {
 public:
  PoolModel(uint64_t seed, int32_t num_blocks, std::string_view policy, int32_t tenant_floor)
      : rng_(seed),
        pool_(num_blocks, std::make_unique<PrefixIndex>(num_blocks, (*FindEvictionPolicy(policy))(num_blocks),
                                                        tenant_floor)),
        blocks_(static_cast<size_t>(num_blocks)) {}

  void Operate() {
    index().SetTime(now_us_ += Random(0, 2'000'000));
    const int what = Random(0, 99);
    if (what < 30) return Allocate();
    if (what < 40) return Share();
    if (what < 55) return Publish();
    if (what < 61) return TakeOver();
    if (what < 65) return Recall();
    if (what < 90) return LetGo();
    if (what < 96) return CompleteStep();
    if (what < 99) return Pin();
    if (Random(0, 200) == 0) Flush();
  }
  void Check() {
    int32_t num_used = 0, num_pending = 0, num_cached_free = 0, num_cached = 0, num_pinned = 0;
    for (size_t id = 0; id < blocks_.size(); ++id) {
      const Block& block = blocks_[id];
      ASSERT_EQ(pool_.refcount(static_cast<int32_t>(id)), block.holders);
      ASSERT_EQ(index().Contains(static_cast<int32_t>(id)), block.cached);
      const bool pending = block.holders == 0 && block.last_step > completed_;
      num_used += block.holders > 0 ? 1 : 0;
      num_pending += pending ? 1 : 0;
      num_cached += block.cached ? 1 : 0;
      num_cached_free += block.cached && block.holders == 0 && !pending ? 1 : 0;
      num_pinned += block.pinned ? 1 : 0;
    }
    ASSERT_EQ(pool_.num_used(), num_used);
    ASSERT_EQ(pool_.num_pending(), num_pending);
    ASSERT_EQ(pool_.num_cached_free(), num_cached_free);
    ASSERT_EQ(pool_.num_free(), pool_.num_blocks() - num_used - num_pending);
    ASSERT_EQ(index().num_cached(), num_cached);
    ASSERT_EQ(index().num_pinned(), num_pinned);
    ASSERT_EQ(keys_.size(), static_cast<size_t>(num_cached));
  }
  int64_t num_evictions() { return index().num_evictions(); }
  int64_t num_taken() const { return num_taken_; }
  int64_t num_recalled() const { return num_recalled_; }

 private:
  struct Block {
    int32_t holders = 0;
    uint64_t last_step = 0;
    bool cached = false, pinned = false, forgotten = false;
    uint64_t key = 0;
    int32_t parent = -1;
  };
  PrefixIndex& index() { return *pool_.index(); }
  Block& At(int32_t id) { return blocks_[static_cast<size_t>(id)]; }
  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  static BlockKey Key(uint64_t n) { return {n, 5}; }
  KeepTerms Terms() {
    return {.priority = Random(0, 5) == 0 ? Random(-2, 2) : 0,
            .ttl_us = Random(0, 5) == 0 ? Random(1, 60'000'000) : 0,
            .reuse_class = Random(0, kNumReuseClasses - 1),
            .tenant = Random(0, 2),
            .again = Random(0, 9) == 0};
  }
  // A random block of those that `wanted` accepts, or -1.
  template <typename Wanted>
  int32_t Any(Wanted wanted) {
    const auto start = static_cast<size_t>(Random(0, static_cast<int>(blocks_.size()) - 1));
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const size_t id = (start + i) % blocks_.size();
      if (wanted(blocks_[id])) return static_cast<int32_t>(id);
    }
    return -1;
  }
  void Forget(Block* block) {
    keys_.erase(block->key);
    block->cached = block->pinned = false;
    block->parent = -1;
  }

  void Allocate() {
    if (pool_.num_free() == 0) return;
    const bool has_blank = std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& b) {
      return b.holders == 0 && !b.cached && b.last_step <= completed_;
    });
    const int32_t id = last_allocated_ = pool_.Allocate();
    Block& block = At(id);
    ASSERT_EQ(block.holders, 0) << "block " << id << " is held";
    ASSERT_LE(block.last_step, completed_) << "a step in flight touches block " << id;
    ASSERT_EQ(block.cached, !has_blank) << "what holds nothing goes first";
    if (block.cached) {
      for (const Block& other : blocks_)
        ASSERT_FALSE(other.cached && other.parent == id) << "its child is cached";
      if (block.pinned) {
        for (size_t i = 0; i < blocks_.size(); ++i) {
          const Block& other = blocks_[i];
          const bool leaf = std::none_of(blocks_.begin(), blocks_.end(), [&](const Block& child) {
            return child.cached && child.parent == static_cast<int32_t>(i);
          });
          ASSERT_FALSE(other.cached && other.holders == 0 && other.last_step <= completed_ && leaf &&
                       !other.pinned)
              << "pins go last";
        }
      }
      Forget(&block);
    }
    block.holders = 1;
    block.last_step = 0;
    block.forgotten = false;
  }
  void Share() {
    const int32_t id = Any([](const Block& b) { return b.holders > 0; });
    if (id < 0) return;
    HoldChain(id);
  }
  void Publish() {
    const int32_t id = Any([](const Block& b) { return b.holders > 0 && !b.cached; });
    if (id < 0) return;
    // Whoever holds the child holds what stands in front of it: it gets the child's holders too.
    int32_t parent = Random(0, 2) == 0 ? -1 : Any([](const Block& b) { return b.holders > 0 && b.cached; });
    // Somebody else let go of it alone.
    if (At(id).last_step > completed_) parent = -1;
    const auto key = static_cast<uint64_t>(Random(0, 3 * static_cast<int>(blocks_.size())));
    const bool known = keys_.count(key) == 1;
    ASSERT_EQ(index().Insert(id, Key(key), parent, Terms()), !known);
    if (known) return;
    keys_[key] = id;
    At(id).cached = true;
    At(id).key = key;
    if (At(id).forgotten) parent = -1;
    At(id).parent = parent;
    if (parent < 0) return;
    for (int32_t i = 0; i < At(id).holders; ++i) HoldChain(parent);
  }
  // A table that holds a block holds all that stands in front of it.
  void HoldChain(int32_t id) {
    for (; id >= 0; id = At(id).parent) {
      if (At(id).holders > 0)
        pool_.Ref(id);
      else
        pool_.RefCached(id, Terms());
      ++At(id).holders;
    }
  }
  void TakeOver() {
    const auto key = static_cast<uint64_t>(Random(0, 3 * static_cast<int>(blocks_.size())));
    const int32_t found = index().Find(Key(key));
    const auto known = keys_.find(key);
    ASSERT_EQ(found, known == keys_.end() ? -1 : known->second);
    if (found < 0) return;
    ++num_taken_;
    // From the first on, as a table is filled.
    std::vector<int32_t> chain;
    for (int32_t id = found; id >= 0; id = At(id).parent) chain.push_back(id);
    for (; !chain.empty(); chain.pop_back()) {
      pool_.RefCached(chain.back(), Terms());
      ++At(chain.back()).holders;
    }
  }
  // As BlockManager::Restore has it: a free block becomes a cached one behind one that is held meanwhile.
  void Recall() {
    const auto key = static_cast<uint64_t>(Random(0, 3 * static_cast<int>(blocks_.size())));
    if (keys_.count(key) == 1 || !pool_.CanAllocate()) return;
    const int32_t parent = Random(0, 2) == 0 ? -1 : Any([](const Block& b) { return b.cached; });
    if (parent >= 0) {
      KeepTerms again = Terms();
      again.again = true;
      pool_.RefCached(parent, again);
      ++At(parent).holders;
    }
    bool can_allocate = false;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      const bool leaf = std::none_of(blocks_.begin(), blocks_.end(), [&](const Block& child) {
        return child.cached && child.parent == static_cast<int32_t>(i);
      });
      can_allocate |= block.holders == 0 && block.last_step <= completed_ && leaf;
    }
    ASSERT_EQ(pool_.CanAllocate(), can_allocate);
    if (can_allocate) {
      Allocate();
      const int32_t id = last_allocated_;
      ASSERT_NE(id, parent);
      ASSERT_TRUE(index().Insert(id, Key(key), parent, Terms()));
      keys_[key] = id;
      At(id).cached = true;
      At(id).key = key;
      At(id).parent = parent;
      pool_.Unref(id, 0);
      --At(id).holders;
      ++num_recalled_;
    }
    if (parent < 0) return;
    pool_.Unref(parent, 0);
    --At(parent).holders;
  }
  void LetGo() {
    const int32_t held = Any([](const Block& b) { return b.holders > 0; });
    if (held < 0) return;
    // From the last on. Only a block that no child's holder needs may be let go of.
    int32_t id = held;
    for (bool deeper = true; deeper;) {
      deeper = false;
      for (size_t i = 0; i < blocks_.size() && !deeper; ++i) {
        if (!blocks_[i].cached || blocks_[i].parent != id || blocks_[i].holders == 0) continue;
        id = static_cast<int32_t>(i);
        deeper = true;
      }
    }
    const uint64_t last_step = completed_ + static_cast<uint64_t>(Random(0, static_cast<int>(kMaxInFlight)));
    for (; id >= 0; id = At(id).cached ? At(id).parent : -1) {
      Block& block = At(id);
      pool_.Unref(id, last_step);
      block.last_step = std::max(block.last_step, last_step);
      --block.holders;
      if (!block.cached) break;
    }
  }
  void CompleteStep() { pool_.Release(completed_ += static_cast<uint64_t>(Random(1, 2))); }
  void Pin() {
    const int32_t id = Any([](const Block& b) { return b.cached; });
    if (id < 0) return;
    At(id).pinned = Random(0, 2) == 0;
    index().SetPinned(id, At(id).pinned);
  }
  void Flush() {
    pool_.ForgetCached();
    for (Block& block : blocks_) {
      if (!block.cached) continue;
      Forget(&block);
      block.forgotten |= block.holders > 0 || block.last_step > completed_;
    }
  }

  std::mt19937_64 rng_;
  BlockPool pool_;
  std::vector<Block> blocks_;
  std::map<uint64_t, int32_t> keys_;
  uint64_t completed_ = 0;
  int64_t now_us_ = 0;
  int64_t num_taken_ = 0, num_recalled_ = 0;
  int32_t last_allocated_ = -1;
};

void Stress(int64_t num_operations) {
  int64_t num_evictions = 0, num_taken = 0, num_recalled = 0;
  const int64_t rounds = 4 * static_cast<int64_t>(EvictionPolicyNames().size());
  for (int64_t round = 0; round < rounds; ++round) {
    const std::string_view policy =
        EvictionPolicyNames()[static_cast<size_t>(round) % EvictionPolicyNames().size()];
    PoolModel model(static_cast<uint64_t>(round + 1), static_cast<int32_t>(4 + round % 5 * 9), policy,
                    static_cast<int32_t>(round % 3));
    for (int64_t i = 0; i < num_operations / rounds; ++i) {
      model.Operate();
      model.Check();
      if (testing::Test::HasFatalFailure()) FAIL() << policy << ", round " << round << ", operation " << i;
    }
    num_evictions += model.num_evictions();
    num_taken += model.num_taken();
    num_recalled += model.num_recalled();
  }
  EXPECT_GT(num_evictions, num_operations / 50);
  EXPECT_GT(num_taken, num_operations / 100);
  EXPECT_GT(num_recalled, num_operations / 200);
}

TEST(BlockPoolStress, AgainstANaiveModel) {
  Stress(100'000);
}

// For `make soak`.
TEST(BlockPoolStress, DISABLED_TenMillionOperations) {
  Stress(10'000'000);
}

}  // namespace
}  // namespace cachalot
