// Where the matmuls' kernels put SwiGLU of their sums.
#pragma once

#include "device/cuda/clamped_half.cuh"
#include "device/cuda/swiglu_value.cuh"
#include "kernels/matmul/matmul_problem.cuh"

namespace cachalot {

// Row m of y, and its F16 copy where there is one.
__device__ __forceinline__ void StoreGluValue(const MatmulProblem& p, float* y, int64_t m, int n, float value) {
  y[m * p.y_stride + n] = value;
  if (p.y_half.data != nullptr) static_cast<uint16_t*>(p.y_half.data)[m * p.y_half.stride + n] = ClampedHalf(value);
}

}  // namespace cachalot
