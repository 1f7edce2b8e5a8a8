// EvictionPolicy: which of the cached blocks that nobody uses gives way. One file per policy beside this one;
// policies.h is their table. The prefix index offers leaves only (no cached block continues them) and keeps
// pins, priorities and floors to itself, so a policy orders by usefulness and need not know the tree.
// Invariants: blocks are ids in [0, num_blocks); a candidate is resident (inserted and not erased); time is
// what SetTime said last; after construction nothing allocates; every call is O(log n), over many calls where
// a policy gives second chances.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace cachalot {

inline constexpr int32_t kNumReuseClasses = 4;  // kinds of requests that may be reused at different intervals

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void SetTime(int64_t now_us) {}
  // A request filled `block` with what `key` names: its first reference since it is resident.
  virtual void Insert(int32_t block, uint64_t key, int32_t reuse_class) = 0;
  // Another request uses what it holds: at most once a request.
  virtual void Reference(int32_t block) = 0;
  // The last who used it let go. A sequence lets go of its blocks from the last to the first, so that among
  // those let go at once the end of the text is the oldest.
  virtual void Release(int32_t block) {}
  // It is resident no more. evicted: it gave way, and may be remembered; otherwise its content is void.
  virtual void Erase(int32_t block, bool evicted) = 0;
  // The block may be evicted now / may not any more.
  virtual void AddCandidate(int32_t block) = 0;
  virtual void RemoveCandidate(int32_t block) = 0;
  // The candidate to evict; there is at least one. It stays a candidate.
  virtual int32_t Victim() = 0;
};

using MakeEvictionPolicy = std::function<std::unique_ptr<EvictionPolicy>(int32_t num_blocks)>;

}  // namespace cachalot
