// One draw from weights by inverting their cumulative distribution in the order of the indices: internal to
// the op's folder.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cachalot {

inline constexpr int32_t kDrawBlock = 1024;
inline int64_t DrawScratchDoubles(int32_t count) {
  return count / kDrawBlock + 1;
}

// The index in whose part of [0, total weight) the uniform number falls; never one without weight. Weights
// below `least` do not count. At least one weight must be positive. block_sums: DrawScratchDoubles(count) of
// scratch.
//
// Sums are in double: first those of blocks, so that only one block is walked through.
inline int32_t DrawIndex(const float* weights, int32_t count, float least, double uniform,
                         double* block_sums) {
  const auto counted = [&](int32_t i) { return weights[i] >= least ? double{weights[i]} : 0.0; };
  const int32_t num_blocks = (count + kDrawBlock - 1) / kDrawBlock;
  double total = 0;
  for (int32_t block = 0; block < num_blocks; ++block) {
    double parts[4] = {};
    const int32_t begin = block * kDrawBlock, end = std::min(begin + kDrawBlock, count);
    int32_t i = begin;
    for (; i + 4 <= end; i += 4) {
      for (int32_t j = 0; j < 4; ++j) parts[j] += counted(i + j);
    }
    for (; i < end; ++i) parts[0] += counted(i);
    block_sums[block] = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    total += block_sums[block];
  }
  const double target = uniform * total;
  // The block with the target; the last one with any weight takes what rounding leaves over.
  int32_t chosen = 0;
  double sum = 0, before = 0;
  for (int32_t block = 0; block < num_blocks; ++block) {
    if (block_sums[block] == 0) continue;
    chosen = block;
    before = sum;
    sum += block_sums[block];
    if (sum > target) break;
  }
  int32_t last = 0;
  sum = before;
  for (int32_t i = chosen * kDrawBlock; i < std::min((chosen + 1) * kDrawBlock, count); ++i) {
    if (counted(i) == 0) continue;
    last = i;
    sum += counted(i);
    if (sum > target) break;
  }
  return last;
}

}  // namespace cachalot
