// BlockManager: the KV lifecycle over all groups. Each running sequence is known by its slot; the manager
// keeps its block tables, shares blocks between forks, and says what the device must do about it (BlockWrite,
// BlockCopy). Invariant: a block's reference count is the number of table entries that name it; a block that
// a step writes to has exactly one. After construction nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
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
  int64_t unused_tokens =
      0;  // places for tokens in used blocks that hold none (a shared last block counts once a holder)
};

class BlockManager {
 public:
  BlockManager(std::vector<KvGroupInfo> groups, int32_t num_slots, int32_t max_seq_tokens);

  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  const KvGroupInfo& group(int32_t group) const { return groups_[static_cast<size_t>(group)]; }
  const BlockPool& pool(int32_t group) const { return pools_[static_cast<size_t>(group)]; }
  const BlockTable& table(int32_t slot, int32_t group) const;

  // Can `slot` grow to `num_tokens` tokens (in every group)?
  KvFit CanAllocate(int32_t slot, int32_t num_tokens) const;
  // Does so for step `step_id`, which writes positions [tokens it had, num_tokens). The last block, if partly
  // filled and shared, is replaced by a copy. CanAllocate must have said kNow.
  void Allocate(int32_t slot, int32_t num_tokens, uint64_t step_id, std::vector<BlockWrite>* writes,
                std::vector<BlockCopy>* copies);
  // `to`, which must be empty, becomes a second holder of everything that `from` has.
  void Fork(int32_t from, int32_t to, std::vector<BlockWrite>* writes);
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
  bool NeedsCopy(const BlockTable& table, int32_t group, int32_t num_tokens) const;

  std::vector<KvGroupInfo> groups_;
  std::vector<BlockPool> pools_;    // [groups]
  std::vector<BlockTable> tables_;  // [slots, groups]
  int32_t max_seq_tokens_ = 0;
};

}  // namespace cachalot
