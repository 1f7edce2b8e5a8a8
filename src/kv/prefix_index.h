// PrefixIndex: which full blocks of one KV group are cached, by key, and which of them nobody uses ("idle"),
// in the order in which they give way. Invariants: a key names at most one block; a block with a cached child
// (a block whose sequence holds it in front) is never evicted before that child. Before the policy is asked,
// what has outlived its time and what has low priority goes; after all that it knows, high priority, then
// pins: nothing is kept at the price of a request that could not run. After construction nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/block_key.h"
#include "kv/policy/block_heap.h"
#include "kv/policy/eviction_policy.h"
#include "kv/tenant_floors.h"

namespace cachalot {

// How long a request wants its blocks kept. Of several who use a block, the most lenient counts.
struct KeepTerms {
  int32_t priority = 0;     // lower goes first; 0: as the policy says
  int64_t ttl_us = 0;       // after the last use; 0: no limit. What has outlived it goes first of all
  int32_t reuse_class = 0;  // in [0, kNumReuseClasses)
  int32_t tenant = 0;       // in [0, kMaxKvTenants); of the first who filled the block
  bool again = false;       // the request was counted before, and was preempted
};

class PrefixIndex {
 public:
  // tenant_floor: blocks that each tenant keeps of what it used last, as long as another has more than that.
  PrefixIndex(int32_t num_blocks, std::unique_ptr<EvictionPolicy> policy, int32_t tenant_floor = 0);

  // The block that holds what `key` names, or -1.
  int32_t Find(const BlockKey& key) const;
  bool Contains(int32_t block) const { return entries_[static_cast<size_t>(block)].cached; }
  bool IsIdle(int32_t block) const { return entries_[static_cast<size_t>(block)].idle; }
  int32_t num_cached() const { return num_cached_; }
  int32_t num_idle() const { return num_idle_; }
  int32_t num_pinned() const { return num_pinned_; }
  int64_t num_evictions() const { return num_evictions_; }

  void SetTime(int64_t now_us);
  // `block`, which is in use and not cached, holds what `key` names. parent: the cached block in front of it
  // in the same table, or -1. False: another block is known under that key, and this one stays unknown; using
  // it counts as using the other.
  bool Insert(int32_t block, const BlockKey& key, int32_t parent, const KeepTerms& terms = {});
  // Another request uses the cached `block`.
  void Reference(int32_t block, const KeepTerms& terms = {});
  // The last holder of `block` let go of it. It is cached, or Insert said false of it.
  void Release(int32_t block);
  // A pinned block goes after all others.
  void SetPinned(int32_t block, bool pinned);
  // Nobody uses it now / somebody does again.
  void SetIdle(int32_t block);
  void SetBusy(int32_t block);
  // `block`, which is not cached, is nobody's: nothing is known of it any more.
  void Reset(int32_t block) { At(block) = {}; }
  // There is an idle block with no cached child. Where whoever holds a block holds all in front of it too, each idle
  // block has or is one.
  bool CanEvict() const {
    return num_of_policy_ > 0 || !below_.empty() || !above_.empty() || floors_.Yield() >= 0;
  }
  // Forgets an idle block, which is the caller's then. CanEvict has said yes.
  int32_t Evict();
  // Forgets everything, what is in use too. What is in use then may be inserted again, but without a parent:
  // not everybody who holds it need hold the block that a table has in front of it.
  void Clear();

 private:
  struct Entry {
    BlockKey key;
    int32_t next = -1;  // in its bucket
    int32_t parent = -1;
    int32_t num_children = 0;
    int32_t stands_for = -1;  // not cached: the block that was known under `key` already
    int32_t priority = 0;
    int32_t tenant = 0;
    int64_t ttl_us = 0;
    int64_t last_use_us = 0;
    bool cached = false;
    bool idle = false;
    bool pinned = false;
    bool forgotten = false;  // Clear found it in use
  };
  // Candidates that are none of the policy's, in order: by priority, then by use.
  using Rank = std::pair<int64_t, uint64_t>;
  Entry& At(int32_t block) { return entries_[static_cast<size_t>(block)]; }
  int32_t& Bucket(const BlockKey& key) { return buckets_[key.low & (buckets_.size() - 1)]; }
  bool IsCandidate(int32_t block) const {
    const Entry& entry = entries_[static_cast<size_t>(block)];
    return entry.idle && entry.num_children == 0;
  }
  void AddCandidate(int32_t block);
  void RemoveCandidate(int32_t block);
  int32_t Victim();
  void Unlink(int32_t block);

  std::vector<Entry> entries_;    // [blocks]
  std::vector<int32_t> buckets_;  // a power of two of them; -1: empty
  const std::unique_ptr<EvictionPolicy> policy_;
  TenantFloors floors_;
  int32_t num_of_policy_ = 0;  // candidates that it orders
  BlockHeap<Rank> below_;      // lower than normal priority
  BlockHeap<Rank> above_;      // higher, or pinned
  BlockHeap<int64_t> expiry_;  // of all candidates that may outlive their time, when they do
  int64_t now_us_ = 0;
  uint64_t clock_ = 0;
  int32_t num_pinned_ = 0;
  int32_t num_cached_ = 0;
  int32_t num_idle_ = 0;
  int64_t num_evictions_ = 0;
};

}  // namespace cachalot
