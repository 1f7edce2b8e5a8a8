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

// As RunCuda; a dry run asks for the op's scratch, which the ops of a stream share, one after the other.
template <typename Params>
void RunCudaMatmul(const ExecContext& ctx, CudaStatus (*CudaBackend::*op)(const CudaExec&, const Params&),
                   int64_t (*CudaBackend::*scratch_bytes)(const Params&, int32_t), const Params& params) {
  CudaStep& step = *ctx.cuda;
  if (step.backend == nullptr) {
    step.scratch_bytes = std::max(step.scratch_bytes, (step.planner->*scratch_bytes)(params, step.exec.num_sms));
    return;
  }
  RunCuda(ctx, op, params);
}

}  // namespace cachalot
