// KvHost: KV blocks in the host's memory, between the prefix cache and the disk. Ids, keys and who gives way, with an eviction
// policy of its own; the memory is the owner's, and so is every copy.
// Invariants: what Find finds is filled, and stays as it is while it is held. A block that is held is not given to others: what
// is copied or written from or into it holds it for so long. After construction nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_manager.h"

namespace cachalot {

class KvHost {
 public:
  // groups: num_blocks and block_bytes are the host's. memory: SumBytes(groups).
  KvHost(std::vector<KvGroupInfo> groups, std::span<std::byte> memory, const MakeEvictionPolicy& make_policy);
  static int64_t SumBytes(std::span<const KvGroupInfo> groups);
  // The groups of a pool of at most `size_bytes`, which holds of each the same share of what `groups` hold.
  static std::vector<KvGroupInfo> GroupsOf(std::vector<KvGroupInfo> groups, int64_t size_bytes);

  std::span<std::byte> Bytes(int32_t group, int32_t block) const;
  // kNoBlock: it is not there.
  int32_t Find(int32_t group, const BlockKey& key) const { return pool(group).index()->Find(key); }
  // A block of no content, held. kNoBlock: all are held.
  int32_t Take(int32_t group);
  // Take would give one that holds nothing.
  bool HasEmpty(int32_t group) const { return pool(group).num_free() > pool(group).num_cached_free(); }
  int32_t num_blocks(int32_t group) const { return pool(group).num_blocks(); }
  // The held block, which Take gave, holds what `what` names from now on.
  void Fill(int32_t group, int32_t block, const TierBlock& what, const KeepTerms& terms);
  // One more holds the block, which Find found.
  void Hold(int32_t group, int32_t block, const KeepTerms& terms) { pools_[static_cast<size_t>(group)].RefCached(block, terms); }
  void Release(int32_t group, int32_t block) { pools_[static_cast<size_t>(group)].Unref(block, 0); }
  // Nothing is found any more. Who holds blocks keeps them.
  void Forget();
  void SetTime(int64_t now_us);

  int64_t size_bytes() const { return static_cast<int64_t>(memory_.size()); }
  int64_t num_cached() const;
  int64_t cached_bytes() const;
  int64_t num_evictions() const;

 private:
  const BlockPool& pool(int32_t group) const { return pools_[static_cast<size_t>(group)]; }

  const std::vector<KvGroupInfo> groups_;
  const std::span<std::byte> memory_;
  std::vector<BlockPool> pools_;     // [groups]
  std::vector<std::byte*> begins_;   // [groups] of their memory
};

}  // namespace cachalot
