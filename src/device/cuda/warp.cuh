// Reductions within a warp and a block. The order of summation is fixed by the lanes: the same bits on every run.
#pragma once

#include <cstdint>

namespace cachalot {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

template <typename T>
__device__ __forceinline__ T WarpSum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

__device__ __forceinline__ float WarpMax(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// Sum over a block of a multiple of 32 threads (at most 1024); every thread gets it. `scratch` [32]; may be used again
// after the next __syncthreads.
template <typename T>
__device__ __forceinline__ T BlockSum(T value, T* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  value = WarpSum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < num_warps ? scratch[lane] : T(0);
  return WarpSum(value);
}

// Sum of `value` over the threads before this one of a block of kThreads (a multiple of 32, at most 1024); *total over all.
// `scratch` [kThreads / 32]; may be the same at the next call.
template <int kThreads, typename T>
__device__ T BlockExclusiveScan(T value, T* total, T* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T upto = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const T lower = __shfl_up_sync(kAllLanes, upto, offset);
    if (lane >= offset) upto += lower;
  }
  __syncthreads();  // scratch may still be read from the last call
  if (lane == 31) scratch[warp] = upto;
  __syncthreads();
  T before = 0, sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += scratch[w];
    sum += scratch[w];
  }
  *total = sum;
  return before + upto - value;
}

}  // namespace cachalot
