// From the host's view of weights in device memory to what the backend's matmuls take.
#pragma once

#include <algorithm>

#include "kernels/common/cuda_step.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/matmul/packed_matrix.h"

namespace cachalot {

inline CudaMatrix CudaView(const PackedMatrix& matrix) {
  DCHECK(matrix.layout == PackLayout::kCuda);
  return {.dtype = matrix.dtype,
          .n = matrix.n,
          .k = matrix.k,
          .data = matrix.data,
          .block_scales = matrix.block_scales,
          .block_scale_rows = matrix.block_scale_rows};
}

// x [m, k] as F16, where a copy is known and the kernels of this weight may want it (matmul_sm80.cu).
inline CudaHalfRows FindHalf(const ExecContext& ctx, const CudaMatrix& weight, const float* x, int64_t x_stride, int64_t m) {
  constexpr int64_t kLeastRows = 9, kLeastRowsOfCodes = 129;
  if (ctx.cuda->exec.math == CudaMath::kF32 || weight.dtype == DType::kF32 || weight.dtype == DType::kBF16) return {};
  // The decode kernel's blocks each read all of x: several long rows.
  constexpr int64_t kLeastFewRows = 2, kMostFewRows = 4, kLongRow = 8192;
  if (weight.dtype == DType::kFP8E4M3 && weight.k >= kLongRow && m <= kMostFewRows) {
    return ctx.cuda->halves.Find(x, x_stride, m, weight.k, kLeastFewRows);
  }
  return ctx.cuda->halves.Find(x, x_stride, m, weight.k, weight.dtype == DType::kF16 ? kLeastRows : kLeastRowsOfCodes);
}

// As RunCudaTold; a dry run asks for the op's scratch, which the ops of a stream share, one after the other.
template <typename Params>
void RunCudaMatmul(const ExecContext& ctx, CudaStatus (*CudaBackend::*op)(const CudaExec&, const Params&),
                   int64_t (*CudaBackend::*scratch_bytes)(const Params&, int32_t), const Params& params) {
  CudaStep& step = *ctx.cuda;
  if (step.backend == nullptr) {
    step.scratch_bytes = std::max(step.scratch_bytes, (step.planner->*scratch_bytes)(params, step.exec.num_sms));
    return;
  }
  RunCudaTold(ctx, op, params);
}

}  // namespace cachalot
