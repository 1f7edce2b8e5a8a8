#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace cachalot {

PrefixIndex::PrefixIndex(int32_t num_blocks, std::unique_ptr<EvictionPolicy> policy)
    : entries_(static_cast<size_t>(num_blocks)),
      buckets_(std::bit_ceil(static_cast<size_t>(std::max(1, num_blocks))), -1),
      policy_(std::move(policy)) {}

int32_t PrefixIndex::Find(const BlockKey& key) const {
  int32_t block = buckets_[key.low & (buckets_.size() - 1)];
  while (block >= 0 && entries_[static_cast<size_t>(block)].key != key) {
    block = entries_[static_cast<size_t>(block)].next;
  }
  return block;
}

bool PrefixIndex::Insert(int32_t block, const BlockKey& key, int32_t parent) {
  CHECK(!At(block).cached) << "block " << block << " is cached already";
  if (Find(key) >= 0) return false;
  int32_t& bucket = Bucket(key);
  At(block) = {.key = key, .next = bucket, .parent = parent, .cached = true};
  bucket = block;
  ++num_cached_;
  if (parent >= 0) {
    CHECK(At(parent).cached && !At(parent).idle)
        << "block " << parent << " in front of " << block << " is not held";
    ++At(parent).num_children;
  }
  return true;
}

void PrefixIndex::SetIdle(int32_t block) {
  CHECK(At(block).cached && !At(block).idle) << "block " << block;
  At(block).idle = true;
  ++num_idle_;
  if (At(block).num_children == 0) policy_->AddCandidate(block);
}

void PrefixIndex::SetBusy(int32_t block) {
  CHECK(At(block).idle) << "block " << block;
  At(block).idle = false;
  --num_idle_;
  if (At(block).num_children == 0) policy_->RemoveCandidate(block);
}

int32_t PrefixIndex::Evict() {
  const int32_t block = policy_->Victim();
  const int32_t parent = At(block).parent;
  SetBusy(block);
  Unlink(block);
  ++num_evictions_;
  if (parent >= 0 && --At(parent).num_children == 0 && At(parent).idle) policy_->AddCandidate(parent);
  return block;
}

void PrefixIndex::Unlink(int32_t block) {
  int32_t* link = &Bucket(At(block).key);
  while (*link != block) link = &At(*link).next;
  *link = At(block).next;
  At(block) = {};
  --num_cached_;
}

void PrefixIndex::Clear() {
  for (int32_t block = 0; block < static_cast<int32_t>(entries_.size()); ++block) {
    if (At(block).idle && At(block).num_children == 0) policy_->RemoveCandidate(block);
  }
  std::fill(entries_.begin(), entries_.end(), Entry{});
  std::fill(buckets_.begin(), buckets_.end(), -1);
  num_cached_ = 0;
  num_idle_ = 0;
}

}  // namespace cachalot
