#include "kv/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot {

BlockPool::BlockPool(int32_t num_blocks) {
  CHECK(num_blocks >= 0) << num_blocks;
  blocks_.resize(static_cast<size_t>(num_blocks));
  pending_.reserve(static_cast<size_t>(num_blocks));
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t BlockPool::Allocate() {
  CHECK(!free_.empty()) << "allocation from a pool without a free block";
  const int32_t id = free_.back();
  free_.pop_back();
  Block& block = blocks_[static_cast<size_t>(id)];
  block.refcount = 1;
  block.last_step = 0;
  return id;
}

void BlockPool::Ref(int32_t id) {
  CHECK(id >= 0 && id < num_blocks() && refcount(id) > 0)
      << "reference to block " << id << ", which nobody holds";
  ++blocks_[static_cast<size_t>(id)].refcount;
}

void BlockPool::Unref(int32_t id, uint64_t last_step) {
  CHECK(id >= 0 && id < num_blocks() && refcount(id) > 0) << "double free of block " << id;
  Block& block = blocks_[static_cast<size_t>(id)];
  block.last_step = std::max(block.last_step, last_step);
  if (--block.refcount > 0) return;
  (block.last_step <= completed_step_ ? free_ : pending_).push_back(id);
}

void BlockPool::Release(uint64_t completed_step) {
  CHECK(completed_step >= completed_step_) << completed_step << " after " << completed_step_;
  completed_step_ = completed_step;
  for (size_t i = 0; i < pending_.size();) {
    const int32_t id = pending_[i];
    if (blocks_[static_cast<size_t>(id)].last_step > completed_step) {
      ++i;
      continue;
    }
    free_.push_back(id);
    pending_[i] = pending_.back();
    pending_.pop_back();
  }
}

}  // namespace cachalot
