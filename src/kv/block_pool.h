// BlockPool: which blocks of one KV group are free, and how many holders each of the others has. Ids only, no
// memory. Invariant: a block is handed out again only after the last step that touches it has completed;
// every block is free, pending (unreferenced, but a step in flight touches it) or used. All operations are
// O(1), Release is O(1) for each block that it looks at, and none allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachalot {

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_pending() const { return static_cast<int32_t>(pending_.size()); }
  int32_t num_used() const { return num_blocks() - num_free() - num_pending(); }
  int32_t refcount(int32_t block) const { return blocks_[static_cast<size_t>(block)].refcount; }

  // A free block with one reference. There must be one.
  int32_t Allocate();
  void Ref(int32_t block);
  // Gives one reference back; `last_step` is the newest step in which its holder touched the block.
  void Unref(int32_t block, uint64_t last_step);
  // All steps up to `completed_step` are done: what only they touched becomes free.
  void Release(uint64_t completed_step);

 private:
  struct Block {
    int32_t refcount = 0;
    uint64_t last_step = 0;  // the newest over all holders that gave it back
  };

  uint64_t completed_step_ = 0;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // a stack: the block freed last is likely to be in some cache
  std::vector<int32_t> pending_;
};

}  // namespace cachalot
