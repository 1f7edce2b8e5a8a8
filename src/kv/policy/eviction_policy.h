// EvictionPolicy: which of the cached blocks that nobody uses gives way. One file per policy beside this one.
// The prefix index offers leaves only (no cached block continues them), so a policy orders by usefulness and
// need not know the tree. Blocks are ids in [0, num_blocks); after construction nothing allocates.
#pragma once

#include <cstdint>
#include <memory>

namespace cachalot {

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // A sequence took the block over from the cache, or was the last to let go of it.
  virtual void Touch(int32_t block) = 0;
  // The block may be evicted now / may not any more.
  virtual void AddCandidate(int32_t block) = 0;
  virtual void RemoveCandidate(int32_t block) = 0;
  // The candidate to evict; there is at least one.
  virtual int32_t Victim() const = 0;
};

using MakeEvictionPolicy = std::unique_ptr<EvictionPolicy> (*)(int32_t num_blocks);

}  // namespace cachalot
