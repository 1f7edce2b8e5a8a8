// What the tensor-core attention kernels share: numbers that keep about twice the bits of the cache's 16-bit type, as a
// rounded value and the rounded rest.
//
// Why: of a row that sees few tokens, the rounding of its query to BF16 moves the scores, and so the output, by more than
// half a percent; the rounding of the weights adds about half as much. Over many tokens both average out.
#pragma once

#include <cstdint>

#include "device/cuda/tensor_core.cuh"
#include "device/cuda/value.cuh"
#include "kernels/attention/attention_split.cuh"

namespace cachalot {

__device__ __forceinline__ float2 Unpack2(uint32_t pair, __nv_bfloat16) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ __forceinline__ float2 Unpack2(uint32_t pair, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// What is left of two values once Pack2 has rounded them to `high`.
template <typename T>
__device__ __forceinline__ uint32_t PackRest2(float a, float b, uint32_t high, T) {
  const float2 rounded = Unpack2(high, T{});
  return Pack2(a - rounded.x, b - rounded.y, T{});
}

// A score from its two sums. An infinite one stands alone: the rest of the query says nothing about it.
__device__ __forceinline__ float AddScoreRest(float score, float rest) {
  return fabsf(score) < CUDART_INF_F ? score + rest : score;
}

__device__ __forceinline__ void StoreShared32(uint32_t shared, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(shared), "r"(value) : "memory");
}

// The queries of a tile's rows, scaled for softmax in base 2, as a tile of kRows x kDim values at `high` and, where kRest,
// their rests at `rest`. All threads; `rows` [kRows] has been written.
template <typename T, int kRows, int kDim, int kThreads, bool kHigh, bool kRest>
__device__ __forceinline__ void StoreQueries(const AttentionParams& p, const TileRow* rows, uint32_t high,
                                             uint32_t rest) {
  constexpr int kPairs = kRows * kDim / 2;
  constexpr int kBatch = 8;  // loads under way at a time
  const float scale = p.scale * kLog2E;
  for (int first = static_cast<int>(threadIdx.x); first < kPairs; first += kBatch * kThreads) {
    float2 q[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kThreads;
      q[i] = {0, 0};
      if (at >= kPairs) continue;
      const TileRow row = rows[at / (kDim / 2)];
      if (row.position < 0) continue;
      const float* from = p.q + row.row * p.q_token_stride + row.head * p.q_head_stride + at % (kDim / 2) * 2;
      q[i] = {from[0], from[1]};
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kThreads;
      if (at >= kPairs) continue;
      const int row = at / (kDim / 2), pair = at % (kDim / 2);
      const uint32_t offset = Swizzled<kDim * 2>(row, pair / 4) + pair % 4 * 4;
      const float a = q[i].x * scale, b = q[i].y * scale;
      const uint32_t rounded = Pack2(a, b, T{});
      if constexpr (kHigh) StoreShared32(high + offset, rounded);
      if constexpr (kRest) StoreShared32(rest + offset, PackRest2(a, b, rounded, T{}));
    }
  }
}

}  // namespace cachalot
