#include "spec/step_cost.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace cachalot {
namespace {

constexpr double kLeastWeight = 0.1;  // of a new measurement
constexpr double kLevelWeight = 0.2;  // for the level, where the size is that of the step before,
constexpr double kOtherWeight = 0.05;  // and where it is not
constexpr double kOutlier = 3.0;      // something else had the machine
constexpr int64_t kNearby = 16;       // tokens by which contexts may have grown unseen

}  // namespace

size_t StepCost::IndexOf(int32_t size) {
  const int32_t n = std::max(1, size);
  if (n <= kNumExact) return static_cast<size_t>(n - 1);
  const double above = std::log(static_cast<double>(n) / kNumExact) / std::log(1.25);
  return static_cast<size_t>(std::min(kNumBuckets - 1, kNumExact + static_cast<int32_t>(above)));
}

bool StepCost::Observe(int32_t size, double us, int64_t context) {
  ++now_;
  const size_t i = IndexOf(size);
  Bucket& bucket = buckets_[i];
  if (!Knows(i)) bucket = {};
  const bool first = newest_ == kNumBuckets;
  const bool elsewhere = !first && std::abs(context - context_) > context_ / 4 + kNearby;
  moved_ = elsewhere;
  if (elsewhere) {
    if (bucket.count == 0) return false;  // and the next is elsewhere still
    num_at_level_ = 0;
  } else if (bucket.count >= 3) {
    us = std::min(us, kOutlier * bucket.us * level_);
  }
  if (elsewhere || bucket.count >= 3) FollowLevel(i, us / std::max(1.0, bucket.us * level_), elsewhere);
  context_ = context;
  ++bucket.count;
  const double weight = std::max(kLeastWeight, 1.0 / bucket.count);
  // Of the same size again there is nothing to learn but the level.
  if (!elsewhere && (bucket.count <= 3 || i != newest_)) bucket.us += (us / level_ - bucket.us) * weight;
  newest_ = i;
  bucket.size += (size - bucket.size) * weight;
  bucket.last = now_;
  return true;
}

// Steps take `part` of what they were thought to.
void StepCost::FollowLevel(size_t i, double part, bool elsewhere) {
  part = elsewhere ? std::clamp(part, 0.1, 10.0) : std::clamp(part, 0.5, 1.5);
  const double weight = elsewhere || i == newest_ ? std::max(kLevelWeight, 1.0 / ++num_at_level_) : kOtherWeight;
  level_ = std::clamp(level_ * (1 + (part - 1) * weight), 1e-3, 1e3);
}

double StepCost::Estimate(int32_t size) const { return level_ * AtLevel(size); }

double StepCost::AtLevel(int32_t size) const {
  const size_t i = IndexOf(size);
  const Bucket* below = nullptr;
  const Bucket* above = nullptr;
  for (size_t j = i + 1; j-- > 0 && below == nullptr;) {
    if (Knows(j) && buckets_[j].size <= size) below = &buckets_[j];
  }
  for (size_t j = i; j < buckets_.size() && above == nullptr; ++j) {
    if (Knows(j) && buckets_[j].size > size) above = &buckets_[j];
  }
  if (below == nullptr) return above == nullptr ? 0.0 : above->us;
  if (above == nullptr && goes_on_) return Beyond(static_cast<size_t>(below - buckets_.data()), size);
  if (above == nullptr || above->us < below->us) return below->us;
  const double part = (size - below->size) / (above->size - below->size);
  return below->us + part * (above->us - below->us);
}

// More than the largest that was measured, which is in bucket i.
double StepCost::Beyond(size_t i, double size) const {
  const Bucket& last = buckets_[i];
  for (size_t j = i; j-- > 0;) {
    if (!Knows(j)) continue;
    const double slope = std::max(0.0, last.us - buckets_[j].us) / (last.size - buckets_[j].size);
    return last.us + slope * (size - last.size);
  }
  return last.us;
}

int32_t StepCost::count(int32_t size) const {
  const size_t i = IndexOf(size);
  return Knows(i) ? buckets_[i].count : 0;
}

}  // namespace cachalot
