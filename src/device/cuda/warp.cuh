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

}  // namespace cachalot
