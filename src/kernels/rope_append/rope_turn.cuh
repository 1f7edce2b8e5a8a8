// What the kernels of RopeAppend share. Products and sums are rounded one by one: the reference's bits.
#pragma once

#include "device/cuda/cuda_exec.h"
#include "kernels/common/cuda_batch.h"
#include "kernels/rope_append/rope_append.h"

namespace cachalot {

// --- rope_norm_append_sm80.cu: with q_norm_weight ---
CudaStatus RopeNormAppend(const CudaExec& exec, const CudaBatch& batch, const RopeAppendParams& params);

#ifdef __CUDACC__

// Turned by the angle, (a, b) is (a cos - b sin, b cos + a sin).
__device__ __forceinline__ float First(float a, float b, float cos, float sin) {
  return __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
}
__device__ __forceinline__ float Second(float a, float b, float cos, float sin) {
  return __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
}

#endif

}  // namespace cachalot
