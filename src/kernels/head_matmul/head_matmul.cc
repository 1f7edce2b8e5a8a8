#include "kernels/head_matmul/head_matmul.h"

#include <cstring>

#include "kernels/common/cuda_step.h"
#include "kernels/common/parallel.h"
#include "kernels/matmul/cuda_view.h"
#include "kernels/matmul/matmul.h"

namespace cachalot {

void HeadMatmul(const ExecContext& ctx, const HeadMatmulParams& params) {
  if (params.m == 0) return;
  const HeadMatrices& weights = *params.weights;
  if (OnCuda(ctx)) {
    ctx.cuda->halves.Overwritten(params.y, (((params.m - 1) * params.y_stride + (weights.num_heads - 1) * params.y_head_stride +
                                             weights.n) * static_cast<int64_t>(sizeof(float))));
    CudaHalfRows y_half;
    constexpr int64_t kLeastCopiedRows = 2, kMostCopiedRows = 4;  // the decode kernel's
    if (params.m >= kLeastCopiedRows && params.m <= kMostCopiedRows && params.y_head_stride == weights.n && ctx.cuda->exec.math != CudaMath::kF32) {
      y_half = ctx.cuda->halves.Begin(CudaHalfSource::kHeads, params.y, params.y_stride, params.m, int64_t{weights.num_heads} * weights.n);
    }
    RunCudaMatmul(ctx, &CudaBackend::head_matmul, &CudaBackend::head_matmul_workspace_bytes,
                  CudaHeadMatmulParams{.x = params.x,
                                       .x_stride = params.x_stride,
                                       .x_head_stride = params.x_head_stride,
                                       .m = params.m,
                                       .num_heads = weights.num_heads,
                                       .n = weights.n,
                                       .weight = CudaView(weights.matrices.front()),
                                       .y = params.y,
                                       .y_stride = params.y_stride,
                                       .y_head_stride = params.y_head_stride,
                                       .y_half = y_half});
    return;
  }
  WorkspaceScope scope(ctx.workspace);
  auto* groups = ctx.workspace->Take<MatmulGroup>(weights.num_heads);
  for (int32_t h = 0; h < weights.num_heads; ++h) {
    groups[h] = MatmulGroup{.weight = &weights.matrices[static_cast<size_t>(h)],
                            .m = params.m,
                            .x = params.x + h * params.x_head_stride,
                            .x_stride = params.x_stride,
                            .y = params.y + h * params.y_head_stride,
                            .y_stride = params.y_stride};
  }
  GroupedMatmul(ctx, {.groups = {groups, static_cast<size_t>(weights.num_heads)}});
}

int64_t HeadMatmulWorkspaceBytes(int64_t max_rows, int32_t num_heads, int64_t k, int num_threads) {
  return Workspace::Padded(num_heads * static_cast<int64_t>(sizeof(MatmulGroup))) +
         MatmulWorkspaceBytes(max_rows * num_heads, k, num_threads);
}

void CopyHeads(const ExecContext& ctx, const CopyHeadsParams& params) {
  if (params.m == 0) return;
  if (OnCuda(ctx)) {
    RunCuda(ctx, &CudaBackend::copy_heads, params);
    return;
  }
  ParallelRanges(ctx, params.m, 0.25 * params.num_heads * params.dim, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      for (int32_t h = 0; h < params.num_heads; ++h) {
        std::memcpy(params.y + i * params.y_stride + h * params.y_head_stride,
                    params.x + i * params.x_stride + h * params.x_head_stride, sizeof(float) * params.dim);
      }
    }
  });
}

}  // namespace cachalot
