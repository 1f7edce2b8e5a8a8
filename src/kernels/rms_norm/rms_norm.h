// RMSNorm (Zhang & Sennrich 2019): y = x / sqrt(mean(x²) + eps) · weight, over the last dimension.
#pragma once

#include <cstdint>

#include "device/exec_context.h"
#include "kernels/common/cuda_half_copies.h"

namespace cachalot {

struct RmsNormParams {
  const float* x = nullptr;  // [num_tokens, num_heads, dim], strides token_stride_x, head_stride_x
  int64_t token_stride_x = 0;
  int64_t head_stride_x = 0;
  int64_t num_tokens = 0;
  int64_t num_heads = 1;  // > 1: each head of a row is normalised on its own (QK norm), by the same weight
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim]
  float eps = 1e-6f;
  float* y = nullptr;  // same shape; may be x itself
  int64_t token_stride_y = 0;
  int64_t head_stride_y = 0;
  const int32_t* x_rows = nullptr;  // GPU, or null: x of token t is row x_rows[t]; -1: y stays as it was
  CudaHalfRows y_half = {};  // GPU, one head: y as F16 too; the op sees to it
};

void RmsNorm(const ExecContext& ctx, const RmsNormParams& params);

}  // namespace cachalot
