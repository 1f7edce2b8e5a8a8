// PrefixIndex: which full blocks of one KV group are cached, by key, and which of them nobody uses ("idle"),
// in the order in which they give way. Invariants: a key names at most one block; a block with a cached child
// (a block whose sequence holds it in front) is never evicted before that child. After construction nothing
// allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/block_key.h"
#include "kv/policy/eviction_policy.h"

namespace cachalot {

class PrefixIndex {
 public:
  PrefixIndex(int32_t num_blocks, std::unique_ptr<EvictionPolicy> policy);

  // The block that holds what `key` names, or -1.
  int32_t Find(const BlockKey& key) const;
  bool Contains(int32_t block) const { return entries_[static_cast<size_t>(block)].cached; }
  bool IsIdle(int32_t block) const { return entries_[static_cast<size_t>(block)].idle; }
  int32_t num_cached() const { return num_cached_; }
  int32_t num_idle() const { return num_idle_; }
  int64_t num_evictions() const { return num_evictions_; }

  // `block`, which is in use and not cached, holds what `key` names. parent: the cached block in front of it
  // in the same table, or -1. False: another block is known under that key, and this one stays unknown.
  bool Insert(int32_t block, const BlockKey& key, int32_t parent);
  void Touch(int32_t block) { policy_->Touch(block); }
  // Nobody uses it now / somebody does again.
  void SetIdle(int32_t block);
  void SetBusy(int32_t block);
  // Forgets an idle block, which is the caller's then. There must be one.
  int32_t Evict();
  // Forgets everything, as after a reset of the device.
  void Clear();

 private:
  struct Entry {
    BlockKey key;
    int32_t next = -1;  // in its bucket
    int32_t parent = -1;
    int32_t num_children = 0;
    bool cached = false;
    bool idle = false;
  };
  Entry& At(int32_t block) { return entries_[static_cast<size_t>(block)]; }
  int32_t& Bucket(const BlockKey& key) { return buckets_[key.low & (buckets_.size() - 1)]; }
  void Unlink(int32_t block);

  std::vector<Entry> entries_;    // [blocks]
  std::vector<int32_t> buckets_;  // a power of two of them; -1: empty
  const std::unique_ptr<EvictionPolicy> policy_;
  int32_t num_cached_ = 0;
  int32_t num_idle_ = 0;
  int64_t num_evictions_ = 0;
};

}  // namespace cachalot
