// Belady's rule: what is used again last goes first. It knows the future, so it lives in the simulator only:
// the ceiling for all others.
#pragma once

#include "kv/policy/block_heap.h"
#include "kv/policy/eviction_policy.h"

namespace cachalot {

class BeladyPolicy final : public EvictionPolicy {
 public:
  explicit BeladyPolicy(int32_t num_blocks);
  // When what is inserted or referenced next will be used again; larger is later.
  void SetNextUse(int64_t next_use) { next_use_ = next_use; }

  void Insert(int32_t block, uint64_t key, int32_t reuse_class) override;
  void Reference(int32_t block) override;
  void Release(int32_t block) override;
  void Erase(int32_t block, bool evicted) override {}
  void AddCandidate(int32_t block) override;
  void RemoveCandidate(int32_t block) override;
  int32_t Victim() override { return candidates_.Least(); }

 private:
  using Order = std::pair<int64_t, uint64_t>;  // -next use, then who was let go of first
  int64_t next_use_ = 0;
  uint64_t clock_ = 0;
  std::vector<Order> orders_;
  BlockHeap<Order> candidates_;
};

}  // namespace cachalot
