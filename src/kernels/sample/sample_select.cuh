// Passes of one block over a row of logits, without sorting it. Sums of weights are integers (fixed point), so they do not
// depend on the order of summation: the same bits on every run. A NaN counts as -infinity.
#pragma once

#include <math_constants.h>

#include <cstdint>

#include "device/cuda/warp.cuh"

namespace cachalot {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kSampleWarps = kSampleThreads / 32;
using Fixed = unsigned long long;
inline constexpr float kFixedOne = 0x1p40f;

// Orders logits: larger ones have larger keys, equal ones equal keys. No key is 0.
__device__ __forceinline__ uint32_t LogitKey(float logit) {
  if (isnan(logit)) logit = -CUDART_INF_F;
  const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
inline constexpr uint32_t kLowestKey = 0x007fffffu;  // of -infinity

// exp((logit - largest) * inverse_temperature), 1 for the largest itself (also when it is infinite).
struct WeightOf {
  float largest;
  float inverse_temperature;
  __device__ __forceinline__ float operator()(float logit) const {
    if (logit == largest) return 1.0f;
    return isnan(logit) ? 0.0f : expf(__fmul_rn(__fsub_rn(logit, largest), inverse_temperature));
  }
  __device__ __forceinline__ Fixed InFixed(float logit) const {
    return __float2ull_rn(__fmul_rn((*this)(logit), kFixedOne));
  }
};

// Which tokens are left: those with a key above `key`, and those equal to it up to id `last_tie`.
struct KeptTokens {
  uint32_t key = 0;
  int32_t last_tie = -1;
  __device__ __forceinline__ bool Has(uint32_t other, int32_t id) const {
    return other > key || (other == key && id <= last_tie);
  }
};

struct SampleScratch {
  Fixed sums[kSampleWarps][4];
  unsigned long long best[kSampleWarps];
  double doubles[kSampleWarps];
  int32_t found;
};

// Sums of up to four values over the block, for every thread.
template <int kCount>
__device__ __forceinline__ void BlockSums(Fixed (&values)[kCount], SampleScratch* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // the last sums have been read
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = WarpSum(values[i]);
    if (lane == 0) scratch->sums[warp][i] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = WarpSum(scratch->sums[lane][i]);
}

// The first of the largest, for every thread; 0 when nothing is larger than -infinity.
__device__ __forceinline__ int32_t FindLargest(const float* logits, int32_t vocab, SampleScratch* scratch) {
  unsigned long long best = 0;
  for (int32_t i = threadIdx.x; i < vocab; i += kSampleThreads) {
    best = max(best, static_cast<unsigned long long>(LogitKey(logits[i])) << 32 | static_cast<uint32_t>(~i));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch->best[threadIdx.x / 32] = best;
  __syncthreads();
  best = scratch->best[threadIdx.x % 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, offset));
  return static_cast<int32_t>(~static_cast<uint32_t>(best));
}

// A warp's part of the row: consecutive ids.
struct Segment {
  int32_t begin;
  int32_t end;
  __device__ explicit Segment(int32_t vocab) {
    const int32_t length = (vocab + kSampleThreads - 1) / kSampleThreads * 32;
    begin = min(vocab, static_cast<int32_t>(threadIdx.x / 32) * length);
    end = min(vocab, begin + length);
  }
};

// The first id at which the sum of measure(i) over the ids up to it exceeds `target`; measure of the whole row must. Every
// thread gets it.
template <typename Measure>
__device__ int32_t FindCrossing(int32_t vocab, const Measure& measure, Fixed segment_sum, Fixed target,
                                SampleScratch* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  if (lane == 0) scratch->sums[warp][0] = segment_sum;
  __syncthreads();
  Fixed before = 0;
  for (int w = 0; w < warp; ++w) before += scratch->sums[w][0];
  if (before <= target && before + segment_sum > target) {  // one warp
    const Segment segment(vocab);
    for (int32_t base = segment.begin; base < segment.end; base += 32) {
      const int32_t i = base + lane;
      Fixed upto = i < segment.end ? measure(i) : 0;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const Fixed lower = __shfl_up_sync(kAllLanes, upto, offset);
        if (lane >= offset) upto += lower;
      }
      const uint32_t beyond = __ballot_sync(kAllLanes, before + upto > target);
      if (beyond != 0) {
        if (lane == 0) scratch->found = base + __ffs(static_cast<int>(beyond)) - 1;
        break;
      }
      before += __shfl_sync(kAllLanes, upto, 31);
    }
  }
  __syncthreads();
  return scratch->found;
}

// Sum of measure over a warp's segment; every lane gets it.
template <typename Measure>
__device__ __forceinline__ Fixed SegmentSum(int32_t vocab, const Measure& measure) {
  const Segment segment(vocab);
  Fixed sum = 0;
  for (int32_t i = segment.begin + static_cast<int32_t>(threadIdx.x % 32); i < segment.end; i += 32) sum += measure(i);
  return WarpSum(sum);
}

// The fewest of the best tokens (lower ids first among equals) whose measures add up to `need` or more; 0 < need <= the sum
// over the row. measure(i, key) must be the same for equal keys, or 0.
// Two bits of the threshold's key a pass.
template <typename Measure>
__device__ KeptTokens SelectBest(const float* logits, int32_t vocab, const Measure& measure, Fixed need,
                                 SampleScratch* scratch) {
  uint32_t prefix = 0;
  Fixed ties = 0;  // sum over the tokens that equal the prefix so far
  for (int shift = 30; shift >= 0; shift -= 2) {
    Fixed sums[4] = {0, 0, 0, 0};
    for (int32_t i = threadIdx.x; i < vocab; i += kSampleThreads) {
      const uint32_t key = LogitKey(logits[i]);
      if (static_cast<uint64_t>(key) >> (shift + 2) != prefix) continue;
      const uint32_t digit = key >> shift & 3;
      const Fixed value = measure(i, key);
      sums[0] += digit == 0 ? value : 0;
      sums[1] += digit == 1 ? value : 0;
      sums[2] += digit == 2 ? value : 0;
      sums[3] += digit == 3 ? value : 0;
    }
    BlockSums(sums, scratch);
    uint32_t digit = 3;
    ties = sums[3];
    if (need > ties) {
      need -= ties, ties = sums[2], digit = 2;
      if (need > ties) {
        need -= ties, ties = sums[1], digit = 1;
        if (need > ties) need -= ties, ties = sums[0], digit = 0;
      }
    }
    prefix = prefix << 2 | digit;
  }
  if (need >= ties) return {prefix, vocab};
  // A part of the ties: the first ones whose measures reach what is still needed.
  const auto tie = [&](int32_t i) -> Fixed {
    const uint32_t key = LogitKey(logits[i]);
    return key == prefix ? measure(i, key) : 0;
  };
  return {prefix, FindCrossing(vocab, tie, SegmentSum(vocab, tie), need - 1, scratch)};
}

}  // namespace cachalot
