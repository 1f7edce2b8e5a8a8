// BlockManager: the KV lifecycle over all groups. Each running sequence is known by its slot; the manager
// keeps its block tables, shares blocks between forks, and says what the device must do about it (BlockWrite,
// BlockCopy). With prefix caching, full blocks are known by what they hold (BlockKey), also after their last
// holder left, until their place is needed. Invariant: a block's reference count is the number of table
// entries that name it; a block that a step writes to has exactly one. After construction nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "kv/plan.h"

namespace cachalot {

// Whether a sequence can grow now.
enum class KvFit {
  kNow,
  kLater,  // blocks that only steps in flight still touch would suffice
  kNever,  // not unless somebody gives up blocks
};

// What one sequence alone in the pools can do.
struct KvSequenceLimits {
  int32_t max_tokens = 0;
  int32_t max_q_len = 0;  // tokens that it may add in one step
};

struct KvGroupUsage {
  int32_t num_blocks = 0;
  int32_t num_used = 0;
  int32_t num_pending = 0;
  int32_t num_cached = 0;  // free, but known by what they hold
  int32_t num_pinned = 0;
  int64_t unused_tokens =
      0;  // places for tokens in used blocks that hold none (a shared last block counts once a holder)
};

// What a block holds, as every tier names it.
struct TierBlock {
  int32_t group = 0;
  BlockKey key;
  BlockKey parent;  // of the block in front of it
  bool has_parent = false;
  bool operator==(const TierBlock&) const = default;
};

// A block that Publish made known.
struct PublishedBlock {
  TierBlock what;
  KeepTerms terms = {};
};

class BlockManager {
 public:
  // make_policy: of the cached blocks, which gives way? Null: no prefix caching. tenant_floor_percent: of
  // each pool, what a tenant keeps cached.
  BlockManager(std::vector<KvGroupInfo> groups, int32_t num_slots, int32_t max_seq_tokens,
               MakeEvictionPolicy make_policy = nullptr, int32_t tenant_floor_percent = 0);

  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  const KvGroupInfo& group(int32_t group) const { return groups_[static_cast<size_t>(group)]; }
  const BlockPool& pool(int32_t group) const { return pools_[static_cast<size_t>(group)]; }
  const BlockTable& table(int32_t slot, int32_t group) const;

  // Can `slot` grow to `num_tokens` tokens (in every group)?
  KvFit CanAllocate(int32_t slot, int32_t num_tokens) const;
  // Does so where that takes no block and copies none; false: nothing was done.
  bool GrowInPlace(int32_t slot, int32_t num_tokens);
  // Does so for step `step_id`, which writes positions [tokens it had, num_tokens). The last block, if partly
  // filled and shared, is replaced by a copy. CanAllocate must have said kNow.
  void Allocate(int32_t slot, int32_t num_tokens, uint64_t step_id, std::vector<BlockWrite>* writes,
                std::vector<BlockCopy>* copies);
  // `to`, which must be empty, becomes a second holder of the first num_tokens tokens that `from` has; in
  // windowed groups, of those that a token behind them reads.
  void Fork(int32_t from, int32_t to, int32_t num_tokens, std::vector<BlockWrite>* writes);
  // `from` still has all of them.
  bool CanFork(int32_t from, int32_t num_tokens) const;
  // Blocks of `group` that such a fork shares for good; a last one that is not full is copied when it is
  // written to.
  int32_t CountForked(int32_t group, int32_t num_tokens) const;

  // The host has places for all that `slot` holds.
  bool CanSwapOut(int32_t slot) const;
  // Moves it there in step `step_id`, and frees the slot.
  void SwapOut(int32_t slot, uint64_t step_id, SwappedTables* swapped, std::vector<BlockMove>* moves);
  // And back into `slot`, which must be empty; CanAdmit has seen to the memory.
  void SwapIn(int32_t slot, uint64_t step_id, SwappedTables* swapped, std::vector<BlockWrite>* writes,
              std::vector<BlockMove>* moves);
  // As Truncate, for what is on the host.
  void TruncateSwapped(SwappedTables* swapped, int32_t num_tokens, uint64_t last_step);
  // Gives the places up; `last_step` is the step that moved something there.
  void DropSwapped(SwappedTables* swapped, uint64_t last_step);
  const BlockPool& swap_pool(int32_t group) const { return swap_pools_[static_cast<size_t>(group)]; }
  // A prefix is a number of pages: the smallest piece that is a number of whole blocks in every group.
  // page_keys[i] names page i of a sequence.
  int32_t page_tokens() const { return page_tokens_; }
  // The longest cached prefix of at most `max_tokens` tokens: every group has all of it that a sequence
  // standing there would read.
  int32_t FindPrefix(std::span<const BlockKey> page_keys, int32_t max_tokens) const;
  // Of those blocks, the ones in `group` that are not free now: taking the prefix over costs one block less
  // for each.
  int32_t CountHeld(int32_t group, std::span<const BlockKey> page_keys, int32_t num_tokens) const;
  // `slot`, which must be empty, becomes a holder of the prefix that FindPrefix found.
  void TakePrefix(int32_t slot, std::span<const BlockKey> page_keys, int32_t num_tokens,
                  std::vector<BlockWrite>* writes, const KeepTerms& terms = {});
  // Pages [first_page, page_keys.size()) of `slot` are computed, in steps that are committed.
  void Publish(int32_t slot, std::span<const BlockKey> page_keys, size_t first_page,
               const KeepTerms& terms = {});
  // What Publish makes known is appended to it from now on (null: no more).
  void ReportPublished(std::vector<PublishedBlock>* published) { published_ = published; }
  // As FindPrefix, if what `elsewhere` says yes to were cached too.
  using ElsewhereHas = std::function<bool(int32_t group, const BlockKey& key)>;
  int32_t FindPrefixWith(std::span<const BlockKey> page_keys, int32_t max_tokens, const ElsewhereHas& elsewhere) const;
  // The blocks of a prefix that a sequence standing behind it would read, each behind the one that it stands on.
  void ListPrefix(std::span<const BlockKey> page_keys, int32_t num_tokens, std::vector<TierBlock>* blocks) const;
  // A free block becomes a cached one that holds what `wanted` names; whoever reads it reads what the caller fills it with. kNoBlock: it is
  // cached already, there is no free block, or the one in front of it is not cached.
  int32_t Restore(const TierBlock& wanted, const KeepTerms& terms);
  // The cached ones of these pages, from the first on, go after all others / no longer do. A pin is refused
  // where it would be the larger half of a pool. Returns the tokens of the pages that are as wanted now.
  int32_t SetPinned(std::span<const BlockKey> page_keys, bool pinned);
  // Nothing is found any more. Whoever holds blocks keeps them.
  void ForgetCached();
  // The time that policies see.
  void SetTime(int64_t now_us);
  int64_t num_evictions() const;

  // Only the first `num_tokens` tokens stay; blocks behind them are given back. `last_step` is the newest step with a row
  // of this slot. What fell out of windows was behind none of those tokens.
  void Truncate(int32_t slot, int32_t num_tokens, uint64_t last_step);
  // Gives everything back; `last_step` is the newest step with a row of this slot.
  void Free(int32_t slot, uint64_t last_step);
  // `num_computed` tokens are in the cache: blocks that no later token reads are given back.
  void DropBehindWindow(int32_t slot, int32_t num_computed, uint64_t last_step);
  // All steps up to `completed_step` are committed.
  void Release(uint64_t completed_step);

  // The most blocks that a sequence holds at once on its way to `num_tokens` tokens, by at most `max_q_len` a
  // step.
  int32_t PeakBlocks(int32_t group, int32_t num_tokens, int32_t max_q_len) const;
  // With steps of at most `max_q_len`; small windowed pools may ask for shorter ones.
  KvSequenceLimits SequenceLimits(int32_t max_q_len) const;
  KvGroupUsage Usage(int32_t group) const;

 private:
  BlockTable& Table(int32_t slot, int32_t group);
  template <typename Has>
  int32_t LongestPrefix(std::span<const BlockKey> page_keys, int32_t max_tokens, const Has& has) const;
  template <typename Has>
  bool HasPage(int32_t group, std::span<const BlockKey> page_keys, int32_t page, const Has& has) const;
  TierBlock NameBlock(int32_t group, std::span<const BlockKey> page_keys, int32_t at) const;
  int32_t FirstRead(int32_t group, int32_t position) const;
  // Of a table of num_tokens tokens: its entries, and the first that a token behind them reads.
  int32_t NumEntries(int32_t group, int32_t num_tokens) const;
  int32_t FirstEntry(int32_t group, int32_t num_tokens) const;
  void DropLast(int32_t group, BlockTable* table, BlockPool* pool, uint64_t last_step) const;
  bool NeedsCopy(const BlockTable& table, int32_t group, int32_t num_tokens) const;

  std::vector<KvGroupInfo> groups_;
  std::vector<BlockPool> pools_;       // [groups]
  std::vector<BlockPool> swap_pools_;  // [groups] on the host
  std::vector<BlockTable> tables_;     // [slots, groups]
  int32_t max_seq_tokens_ = 0;
  int32_t page_tokens_ = 1;
  std::vector<PublishedBlock>* published_ = nullptr;
};

}  // namespace cachalot
