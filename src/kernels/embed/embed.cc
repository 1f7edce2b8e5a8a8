// One row of the table a token: nothing but a decode, so the generic variant is the only one.
#include "kernels/embed/embed.h"

#include "kernels/common/cuda_step.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/matmul/cuda_view.h"

namespace cachalot {
namespace {

CudaEmbedParams OnGpu(const EmbedParams& params) {
  return {.token_ids = params.token_ids,
          .num_tokens = params.num_tokens,
          .table = CudaView(*params.table),
          .y = params.y,
          .y_stride = params.y_stride};
}

}  // namespace

void Embed(const ExecContext& ctx, const EmbedParams& params) {
  const PackedMatrix& table = *params.table;
  if (OnCuda(ctx)) {
    RunCuda(ctx, &CudaBackend::embed, OnGpu(params));
    return;
  }
  DCHECK(params.num_tokens <= 1 || params.y_stride >= table.k);
  ctx.pool->ParallelFor(params.num_tokens, [&](int64_t i, int) {
    const int32_t id = params.token_ids[i];
    CHECK(id >= 0 && id < table.n) << "token " << id << " of a vocabulary of " << table.n;
    DecodeRow(table, id, params.y + i * params.y_stride);
  });
}

bool EmbedNorms(const ExecContext& ctx, const EmbedNormsParams& params) {
  if (!OnCuda(ctx)) return false;
  CudaEmbedParams on_gpu = OnGpu(params.embed);
  on_gpu.norm = params.norm, on_gpu.hidden = params.hidden, on_gpu.hidden_rows = params.hidden_rows;
  on_gpu.front_norm = params.front_norm, on_gpu.hidden_norm = params.hidden_norm, on_gpu.eps = params.eps;
  if (const PackedMatrix* matrix = params.upcoming; matrix != nullptr && matrix->layout == PackLayout::kCuda) {
    on_gpu.upcoming = matrix->data, on_gpu.upcoming_bytes = matrix->n * CudaRowsOf(matrix->dtype, matrix->k).row_bytes;
  }
  const bool dry = ctx.cuda->backend == nullptr;  // nothing has a place then
  if ((on_gpu.norm == nullptr && !dry) || !EmbedTakesNorms(on_gpu)) return false;
  CudaHalfCopies& halves = ctx.cuda->halves;
  halves.Clear();
  if (ctx.cuda->exec.math != CudaMath::kF32) {
    on_gpu.y_half = halves.Begin(CudaHalfSource::kNorm, on_gpu.y, on_gpu.y_stride, on_gpu.num_tokens, 2 * on_gpu.table.k);
  }
  RunCudaTold(ctx, &CudaBackend::embed, on_gpu);
  return true;
}

}  // namespace cachalot
