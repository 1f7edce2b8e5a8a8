// The arithmetic of RmsNorm for rows of more than kNormLeastDim values, so that who normalises on the way gets the same bits: the
// squares are summed by kNormWarps warps, each its float4s, and the warps' sums by another.
#pragma once

#include "device/cuda/warp.cuh"

namespace cachalot {

inline constexpr int kNormWarps = 8;
inline constexpr int kNormLeastDim = 513;  // shorter rows: a warp alone

__device__ __forceinline__ float InverseRms(float sum, int64_t dim, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(dim)) + eps));
}

__device__ __forceinline__ float SquareSum(float4 v) {
  return __fadd_rn(__fmaf_rn(v.x, v.x, __fmul_rn(v.y, v.y)), __fmaf_rn(v.z, v.z, __fmul_rn(v.w, v.w)));
}

__device__ __forceinline__ float4 ScaledByNorm(float4 v, float inverse, float4 w) {
  return {v.x * inverse * w.x, v.y * inverse * w.y, v.z * inverse * w.z, v.w * inverse * w.w};
}

// A norm's weight on its way to L2, by all threads of a block: before it waits for kernels in front, since weights do not change.
__device__ __forceinline__ void PrefetchNormWeight(const float* weight, int dim) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 32; i < dim; i += static_cast<int>(blockDim.x) * 32) {  // 128 bytes each
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(weight + i));
  }
}

// The part of thread `t` < 32 * kNormWarps and its warp: the whole warp calls it. All loads of 8192 values are under way at once.
__device__ __forceinline__ float NormWarpSum(const float4* x, int vectors, int t) {
  constexpr int kBatch = 8, kStep = kNormWarps * 32;
  float sum = 0;
#pragma unroll 1
  for (int base = t; base < vectors; base += kBatch * kStep) {
    float4 v[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (base + j * kStep < vectors) v[j] = x[base + j * kStep];
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (base + j * kStep < vectors) sum += SquareSum(v[j]);
    }
  }
  return WarpSum(sum);
}

}  // namespace cachalot
