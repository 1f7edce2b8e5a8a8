// Passes of one block over a row of logits, without sorting it. Sums of weights are integers (fixed point), so they do not
// depend on the order of summation: the same bits on every run. A NaN counts as -infinity.
//
// Bound: one SM reads the row from L2 in every pass, 4 bytes a token. Passes: the largest 1, a selection 2 (3 where more than
// kCandidates tokens share the threshold's first 11 bits, 2 more where equal tokens have to be parted), the draw 1: greedy 1,
// top-k with top-p 6.
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

inline constexpr int kSelectBits = 11;              // of a level: 11, 11, then the last 10
inline constexpr int kSelectBins = 1 << kSelectBits;
inline constexpr int kCandidates = 4096;            // tokens that a selection remembers between its levels, at most

struct SampleScratch {
  Fixed scan[kSampleWarps];
  Fixed segments[kSampleWarps];  // SumRow's
  unsigned long long best[kSampleWarps];
  double doubles[kSampleWarps];
  int32_t found;
  // Of SelectBest: sums of the tokens with the same digit, in halves.
  uint32_t low[kSelectBins], high[kSelectBins];
  uint32_t digit;
  Fixed need, ties;
  int32_t num_listed;  // may be more than have room
  int32_t listed[kCandidates];
};

// f(i, logit, present) for the row's tokens, every lane of a warp at a time; several loads are under way.
template <typename F>
__device__ __forceinline__ void ForTokens(const float* logits, int32_t vocab, const F& f) {
  constexpr int kBatch = 16;
  for (int32_t base = static_cast<int32_t>(threadIdx.x); base - static_cast<int32_t>(threadIdx.x) < vocab;
       base += kBatch * kSampleThreads) {
    float logit[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int32_t i = base + j * kSampleThreads;
      logit[j] = i < vocab ? logits[i] : -CUDART_INF_F;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int32_t i = base + j * kSampleThreads;
      f(i, logit[j], i < vocab);
    }
  }
}

// The first of the largest, for every thread; 0 when nothing is larger than -infinity.
__device__ __forceinline__ int32_t FindLargest(const float* logits, int32_t vocab, SampleScratch* scratch) {
  unsigned long long best = 0;
  ForTokens(logits, vocab, [&](int32_t i, float logit, bool present) {
    if (present) best = max(best, static_cast<unsigned long long>(LogitKey(logit)) << 32 | static_cast<uint32_t>(~i));
  });
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
  __device__ Segment(int32_t vocab, int warp) {
    const int32_t length = (vocab + kSampleThreads - 1) / kSampleThreads * 32;
    begin = min(vocab, warp * length);
    end = min(vocab, begin + length);
  }
};

// Sum of measure(i, logit) over the row, for every thread; leaves those of the segments in scratch.
template <typename Measure>
__device__ Fixed SumRow(const float* logits, int32_t vocab, const Measure& measure, SampleScratch* scratch) {
  constexpr int kBatch = 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Segment segment(vocab, warp);
  Fixed sum = 0;
  for (int32_t base = segment.begin + lane; base < segment.end; base += kBatch * 32) {
    float logit[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) logit[j] = base + j * 32 < segment.end ? logits[base + j * 32] : -CUDART_INF_F;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) sum += base + j * 32 < segment.end ? measure(base + j * 32, logit[j]) : 0;
  }
  sum = WarpSum(sum);
  __syncthreads();  // the last sums have been read
  if (lane == 0) scratch->segments[warp] = sum;
  __syncthreads();
  return WarpSum(scratch->segments[lane]);
}

// After SumRow of the same measure: the first id at which the sum over the ids up to it exceeds `target`, which is less than
// the sum of all. Every thread gets it.
template <typename Measure>
__device__ int32_t FindCrossing(const float* logits, int32_t vocab, const Measure& measure, Fixed target, SampleScratch* scratch) {
  const int lane = threadIdx.x % 32;
  Fixed upto = scratch->segments[lane];
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Fixed lower = __shfl_up_sync(kAllLanes, upto, offset);
    if (lane >= offset) upto += lower;
  }
  const int warp = __ffs(static_cast<int>(__ballot_sync(kAllLanes, upto > target))) - 1;
  const Fixed before_segment = __shfl_sync(kAllLanes, upto - scratch->segments[lane], warp);
  // All warps share that segment, each thread a few ids one after the other.
  const Segment segment(vocab, warp);
  const int32_t share = (segment.end - segment.begin + kSampleThreads - 1) / kSampleThreads;
  const int32_t begin = min(segment.end, segment.begin + static_cast<int32_t>(threadIdx.x) * share);
  const int32_t end = min(segment.end, begin + share);
  Fixed sum = 0, total = 0;
  for (int32_t i = begin; i < end; ++i) sum += measure(i, logits[i]);
  Fixed before = before_segment + BlockExclusiveScan<kSampleThreads>(sum, &total, scratch->scan);
  if (before <= target && before + sum > target) {  // one thread
    int32_t i = begin;
    for (; i + 1 < end; ++i) {
      before += measure(i, logits[i]);
      if (before > target) break;
    }
    scratch->found = i;
  }
  __syncthreads();
  return scratch->found;
}

// The whole warp: adds each lane's value to its bin. Where all have the same one (masked rows, equal logits) they add once.
__device__ __forceinline__ void AddToBins(SampleScratch* scratch, uint32_t bin, Fixed value) {
  const auto add = [&](Fixed what) {
    const auto low = static_cast<uint32_t>(what);
    const uint32_t before = atomicAdd(&scratch->low[bin], low);
    const uint32_t high = static_cast<uint32_t>(what >> 32) + (before + low < before ? 1 : 0);
    if (high != 0) atomicAdd(&scratch->high[bin], high);
  };
  const uint32_t some = __ballot_sync(kAllLanes, value != 0);
  if (some == 0) return;
  const int first = __ffs(static_cast<int>(some)) - 1;
  const uint32_t bin_of_first = __shfl_sync(kAllLanes, bin, first);
  if (__all_sync(kAllLanes, value == 0 || bin == bin_of_first)) {
    const Fixed sum = WarpSum(value);
    if (static_cast<int>(threadIdx.x % 32) == first) add(sum);
  } else if (value != 0) {
    add(value);
  }
}

// The largest digit that the tokens with it and those with larger ones reach `need` with, from the bins: into scratch, with
// what of `need` the larger ones left and the digit's own sum. At the first level the need is known once the total is.
template <typename Need>
__device__ __forceinline__ void FindDigit(bool first_level, const Need& need_of, SampleScratch* scratch) {
  static_assert(kSelectBins == 2 * kSampleThreads);
  const auto upper = static_cast<uint32_t>(kSelectBins - 1 - 2 * threadIdx.x), lower = upper - 1;
  const Fixed of_upper = static_cast<Fixed>(scratch->high[upper]) << 32 | scratch->low[upper];
  const Fixed of_lower = static_cast<Fixed>(scratch->high[lower]) << 32 | scratch->low[lower];
  Fixed need = scratch->need, total = 0;
  const Fixed before = BlockExclusiveScan<kSampleThreads>(of_upper + of_lower, &total, scratch->scan);
  if (first_level) need = need_of(total);
  if (before >= need || before + of_upper + of_lower < need) return;  // all but one thread
  const bool is_upper = before + of_upper >= need;
  scratch->digit = is_upper ? upper : lower;
  scratch->need = need - before - (is_upper ? 0 : of_upper);
  scratch->ties = is_upper ? of_upper : of_lower;
}

// The fewest of the best tokens (lower ids first among equals) whose measures add up to need_of(the sum over the row) or more;
// 0 < need <= that sum. measure(i, key, logit) must be the same for equal keys, or 0.
template <typename Measure, typename Need>
__device__ KeptTokens SelectBest(const float* logits, int32_t vocab, const Measure& measure, const Need& need_of,
                                 SampleScratch* scratch) {
  uint32_t prefix = 0;
  int shift = 32;
  for (int level = 0; level < 3; ++level) {
    const int bits = min(kSelectBits, shift);
    shift -= bits;
    __syncthreads();  // the last bins have been read
    for (int bin = static_cast<int>(threadIdx.x); bin < kSelectBins; bin += kSampleThreads) scratch->low[bin] = scratch->high[bin] = 0;
    if (threadIdx.x == 0 && level == 1) scratch->num_listed = 0;
    __syncthreads();
    const auto take = [&](int32_t i, float logit, bool present) {
      const uint32_t key = LogitKey(logit);
      const bool candidate = present && (level == 0 || key >> (shift + bits) == prefix);
      const Fixed value = candidate ? measure(i, key, logit) : 0;
      AddToBins(scratch, key >> shift & ((1u << bits) - 1), value);
      if (level != 1) return;
      const uint32_t some = __ballot_sync(kAllLanes, value != 0);
      if (some == 0) return;
      int32_t at = 0;
      if (threadIdx.x % 32 == 0) at = atomicAdd(&scratch->num_listed, __popc(some));
      at = __shfl_sync(kAllLanes, at, 0) + __popc(some & ((1u << threadIdx.x % 32) - 1));
      if (value != 0 && at < kCandidates) scratch->listed[at] = i;
    };
    const int32_t num_listed = level == 2 ? scratch->num_listed : kCandidates + 1;
    if (num_listed > kCandidates) {
      ForTokens(logits, vocab, take);
    } else {
      for (int32_t base = 0; base < num_listed; base += kSampleThreads) {
        const int32_t at = base + static_cast<int32_t>(threadIdx.x);
        const int32_t i = at < num_listed ? scratch->listed[at] : 0;
        take(i, logits[i], at < num_listed);
      }
    }
    __syncthreads();
    FindDigit(level == 0, need_of, scratch);
    __syncthreads();
    prefix = prefix << bits | scratch->digit;
  }
  const Fixed need = scratch->need;
  if (need >= scratch->ties) return {prefix, vocab};
  // A part of the ties: the first ones whose measures reach what is still needed.
  const auto tie = [&](int32_t i, float logit) -> Fixed {
    const uint32_t key = LogitKey(logit);
    return key == prefix ? measure(i, key, logit) : 0;
  };
  SumRow(logits, vocab, tie, scratch);
  return {prefix, FindCrossing(logits, vocab, tie, need - 1, scratch)};
}

}  // namespace cachalot
