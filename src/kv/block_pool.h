// BlockPool: which blocks of one KV group are free, and how many holders each of the others has. Ids only, no
// memory. Invariant: a block is handed out again only after the last step that touches it has completed;
// every block is free, pending (unreferenced, but a step in flight touches it) or used. With a prefix index,
// free blocks that hold something known stay findable until they are handed out, after all others. Release is
// O(1) for each block that it looks at, everything else O(1), or O(log n) with an index, and nothing
// allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/prefix_index.h"

namespace cachalot {

class BlockPool {
 public:
  // index may be null: nothing is cached.
  explicit BlockPool(int32_t num_blocks, std::unique_ptr<PrefixIndex> index = nullptr);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()) + num_cached_free(); }
  int32_t num_cached_free() const { return index_ == nullptr ? 0 : index_->num_idle(); }
  int32_t num_pending() const { return num_pending_; }
  int32_t num_used() const { return num_blocks() - num_free() - num_pending(); }
  int32_t refcount(int32_t block) const { return blocks_[static_cast<size_t>(block)].refcount; }
  PrefixIndex* index() { return index_.get(); }
  const PrefixIndex* index() const { return index_.get(); }

  // There is a free block that can be had now; where somebody holds a block without those in front of it, none of those
  // can.
  bool CanAllocate() const { return !free_.empty() || (index_ != nullptr && index_->CanEvict()); }
  // A free block with one reference. There must be one.
  int32_t Allocate();
  // Another reference to a block that somebody holds.
  void Ref(int32_t block);
  // A reference to a block that the index knows, held or not.
  void RefCached(int32_t block, const KeepTerms& terms = {});
  // Gives one reference back; `last_step` is the newest step in which its holder touched the block.
  void Unref(int32_t block, uint64_t last_step);
  // All steps up to `completed_step` are done: what only they touched becomes free.
  void Release(uint64_t completed_step);
  // Nothing holds anything known; what is in use stays in use.
  void ForgetCached();

 private:
  struct Block {
    int32_t refcount = 0;
    uint64_t last_step = 0;  // the newest over all holders that gave it back
    bool is_listed = false;  // in pending_
  };
  void Retire(int32_t block);

  uint64_t completed_step_ = 0;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;     // a stack: the block freed last is likely to be in some cache
  std::vector<int32_t> pending_;  // and blocks that were taken from the cache while they were pending
  int32_t num_pending_ = 0;
  std::unique_ptr<PrefixIndex> index_;
};

}  // namespace cachalot
