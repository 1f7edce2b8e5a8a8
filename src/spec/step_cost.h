// StepCost: how long a step of a size takes, learned from steps that were measured. Exact up to a size of 16, in ranges a
// quarter wide above. All sizes get slower together as contexts grow, and faster when short ones begin: that is one
// level for all, which follows steps of a size that was just measured, so that sizes can be compared though they were measured
// at different times. Where contexts are others than in the step before, the level is taken from the first step of a size
// that is known. Invariant: what was never measured costs no more than the nearest smaller size that was, so that it is tried
// (or, where a size that is tried has to be prepared for long, as much more as from a smaller one to that); what was not
// measured for long is forgotten.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cachalot {

class StepCost {
 public:
  static constexpr int32_t kNumExact = 16;
  static constexpr int32_t kNumBuckets = 48;  // the last holds everything above some 20,000
  static constexpr int64_t kForgetAfter = 2048;

  explicit StepCost(bool goes_on = false) : goes_on_(goes_on) {}
  // context: cached tokens of a sequence, on average. False: nothing can be learned of a size that was never measured, in contexts
  // that are others than before.
  bool Observe(int32_t size, double us, int64_t context = 0);
  // 0: nothing is known at all.
  double Estimate(int32_t size) const;
  // The last observation was in other contexts than those before it.
  bool moved() const { return moved_; }
  // How often this size was measured, of late.
  int32_t count(int32_t size) const;

 private:
  struct Bucket {
    double us = 0;      // at level 1
    double size = 0;  // where in its range it was measured
    int32_t count = 0;
    int64_t last = 0;
  };
  double AtLevel(int32_t size) const;
  static size_t IndexOf(int32_t size);
  void FollowLevel(size_t i, double part, bool elsewhere);
  bool Knows(size_t i) const { return buckets_[i].count > 0 && now_ - buckets_[i].last < kForgetAfter; }

  double Beyond(size_t i, double size) const;

  const bool goes_on_;  // sizes that were never measured are thought to
  std::array<Bucket, kNumBuckets> buckets_;
  int64_t now_ = 0;  // observations so far
  double level_ = 1;
  int32_t num_at_level_ = 0;     // observations since contexts were others
  int64_t context_ = 0;          // of the last
  bool moved_ = false;
  size_t newest_ = kNumBuckets;  // the bucket that was measured last
};

}  // namespace cachalot
