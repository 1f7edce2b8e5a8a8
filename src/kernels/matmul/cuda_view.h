// From the host's view of weights in device memory to what the backend's matmuls take.
#pragma once

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

// As RunCuda. The matmuls share the step's scratch, one after the other.
template <typename Params>
void RunCudaMatmul(const ExecContext& ctx, CudaStatus (*CudaBackend::*op)(const CudaExec&, const Params&),
                   const Params& params) {
  RunCuda(ctx, op, params);
}

}  // namespace cachalot
