#include "kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cachalot {

BlockPool::BlockPool(int32_t num_blocks, std::unique_ptr<PrefixIndex> index) : index_(std::move(index)) {
  CHECK(num_blocks >= 0) << num_blocks;
  blocks_.resize(static_cast<size_t>(num_blocks));
  pending_.reserve(static_cast<size_t>(num_blocks));
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t BlockPool::Allocate() {
  CHECK(num_free() > 0) << "allocation from a pool without a free block";
  int32_t id = 0;
  if (free_.empty()) {
    id = index_->Evict();
  } else {
    id = free_.back();
    free_.pop_back();
  }
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

void BlockPool::RefCached(int32_t id, const KeepTerms& terms) {
  CHECK(index_ != nullptr && index_->Contains(id)) << "block " << id << " is not cached";
  if (++blocks_[static_cast<size_t>(id)].refcount == 1) {
    if (index_->IsIdle(id))
      index_->SetBusy(id);
    else
      --num_pending_;
  }
  index_->Reference(id, terms);
}

void BlockPool::Unref(int32_t id, uint64_t last_step) {
  CHECK(id >= 0 && id < num_blocks() && refcount(id) > 0) << "double free of block " << id;
  Block& block = blocks_[static_cast<size_t>(id)];
  block.last_step = std::max(block.last_step, last_step);
  if (--block.refcount > 0) return;
  if (index_ != nullptr) index_->Release(id);
  if (block.last_step <= completed_step_) {
    Retire(id);
    return;
  }
  ++num_pending_;
  if (!block.is_listed) pending_.push_back(id);
  block.is_listed = true;
}

void BlockPool::Release(uint64_t completed_step) {
  CHECK(completed_step >= completed_step_) << completed_step << " after " << completed_step_;
  completed_step_ = completed_step;
  for (size_t i = 0; i < pending_.size();) {
    const int32_t id = pending_[i];
    Block& block = blocks_[static_cast<size_t>(id)];
    const bool is_pending = block.refcount == 0;
    if (is_pending && block.last_step > completed_step) {
      ++i;
      continue;
    }
    block.is_listed = false;
    pending_[i] = pending_.back();
    pending_.pop_back();
    if (!is_pending) continue;
    --num_pending_;
    Retire(id);
  }
}

void BlockPool::Retire(int32_t id) {
  if (index_ != nullptr && index_->Contains(id)) {
    index_->SetIdle(id);
    return;
  }
  if (index_ != nullptr) index_->Reset(id);
  free_.push_back(id);
}

void BlockPool::ForgetCached() {
  if (index_ == nullptr) return;
  for (int32_t id = num_blocks() - 1; id >= 0; --id) {
    if (index_->IsIdle(id)) free_.push_back(id);
  }
  index_->Clear();
}

}  // namespace cachalot
