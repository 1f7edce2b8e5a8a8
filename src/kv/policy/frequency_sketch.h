// FrequencySketch: about how often each of many keys was seen lately: a count-min sketch of four rows with
// counters up to 15, all halved after ten times as many additions as it is wide.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachalot {

class FrequencySketch {
 public:
  explicit FrequencySketch(int32_t num_keys)
      : width_(std::bit_ceil(static_cast<size_t>(std::max(16, num_keys)))), counters_(kRows * width_, 0) {}

  void Add(uint64_t key) {
    for (size_t row = 0; row < kRows; ++row) {
      uint8_t& counter = counters_[Place(key, row)];
      if (counter < kMaxCount) ++counter;
    }
    if (++num_added_ < 10 * width_) return;
    for (uint8_t& counter : counters_) counter /= 2;
    num_added_ /= 2;
  }
  int32_t Estimate(uint64_t key) const {
    uint8_t least = kMaxCount;
    for (size_t row = 0; row < kRows; ++row) least = std::min(least, counters_[Place(key, row)]);
    return least;
  }

 private:
  static constexpr size_t kRows = 4;
  static constexpr uint8_t kMaxCount = 15;
  static constexpr uint64_t kMixers[kRows] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u,
                                              0xd6e8feb86659fd93u};
  size_t Place(uint64_t key, size_t row) const {
    const uint64_t mixed = (key ^ (key >> 32)) * kMixers[row];
    return row * width_ + ((mixed >> 32) & (width_ - 1));
  }

  const size_t width_;
  std::vector<uint8_t> counters_;  // [rows, width]
  uint64_t num_added_ = 0;
};

}  // namespace cachalot
