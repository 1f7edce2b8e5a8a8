// SwiGLU (Shazeer 2020): y = silu(gate) · up, silu(x) = x / (1 + exp(-x)).
#pragma once

#include <cstdint>

#include "device/exec_context.h"
#include "kernels/common/cuda_half_copies.h"

namespace cachalot {

struct SwiGluParams {
  const float* gate = nullptr;  // [m, dim], row stride x_stride
  const float* up = nullptr;    // [m, dim], row stride x_stride
  int64_t x_stride = 0;
  int64_t m = 0;
  int64_t dim = 0;
  float* y = nullptr;  // [m, dim], row stride y_stride; may be gate itself
  int64_t y_stride = 0;
  CudaHalfRows y_half = {};  // GPU: y as F16 too; the op sees to it
};

void SwiGlu(const ExecContext& ctx, const SwiGluParams& params);

}  // namespace cachalot
