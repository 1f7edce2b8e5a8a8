// What the kernels of RopeAppend share. Products and sums are rounded one by one: the reference's bits.
#pragma once

#include "device/cuda/cuda_exec.h"
#include "kernels/common/cuda_batch.h"
#include "kernels/rope_append/rope_append.h"
#ifdef __CUDACC__
#include "device/cuda/norm_sum.cuh"
#endif

namespace cachalot {

// --- rope_norm_append_sm80.cu: with q_norm_weight ---
CudaStatus RopeNormAppend(const CudaExec& exec, const CudaBatch& batch, const RopeAppendParams& params);
// --- rope_append_codes_sm80.cu: into a quantised cache ---
CudaStatus RopeAppendCodes(const CudaExec& exec, const CudaBatch& batch, const RopeAppendParams& params);

#ifdef __CUDACC__

// x [dim] normed into `out`; the whole warp calls it.
__device__ __forceinline__ void NormHead(const float* x, const float* weight, int dim, float eps, bool aligned, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
  if (aligned) {
    for (int at = lane; at < dim / 4; at += 32) sum += SquareSum(reinterpret_cast<const float4*>(x)[at]);
  } else {
    for (int i = lane; i < dim; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
  }
  const float inverse = InverseRms(WarpSum(sum), dim, eps);
  for (int i = lane; i < dim; i += 32) out[i] = x[i] * inverse * weight[i];
  __syncwarp();
}

// Of k's values in front of the rope, for the whole warp.
__device__ __forceinline__ float KeyNorm(const RopeAppendParams& p, const float* k) {
  const int lane = static_cast<int>(threadIdx.x) % 32, dim = p.k_rope_offset;
  float sum = 0;
  if (dim % 4 == 0 && p.k_token_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.k) % 16 == 0) {
    for (int at = lane; at < dim / 4; at += 32) sum += SquareSum(reinterpret_cast<const float4*>(k)[at]);
  } else {
    for (int i = lane; i < dim; i += 32) sum = __fmaf_rn(k[i], k[i], sum);
  }
  return InverseRms(WarpSum(sum), dim, p.k_norm_eps);
}

// Turned by the angle, (a, b) is (a cos - b sin, b cos + a sin).
__device__ __forceinline__ float First(float a, float b, float cos, float sin) {
  return __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
}
__device__ __forceinline__ float Second(float a, float b, float cos, float sin) {
  return __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
}

#endif

}  // namespace cachalot
