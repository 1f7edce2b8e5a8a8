// One row of the table a token: nothing but a decode, so the generic variant is the only one.
#include "kernels/embed/embed.h"

#include "kernels/common/cuda_step.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/matmul/cuda_view.h"

namespace cachalot {

void Embed(const ExecContext& ctx, const EmbedParams& params) {
  const PackedMatrix& table = *params.table;
  if (OnCuda(ctx)) {
    RunCuda(ctx, &CudaBackend::embed,
            CudaEmbedParams{.token_ids = params.token_ids,
                            .num_tokens = params.num_tokens,
                            .table = CudaView(table),
                            .y = params.y,
                            .y_stride = params.y_stride});
    return;
  }
  DCHECK(params.num_tokens <= 1 || params.y_stride >= table.k);
  ctx.pool->ParallelFor(params.num_tokens, [&](int64_t i, int) {
    const int32_t id = params.token_ids[i];
    CHECK(id >= 0 && id < table.n) << "token " << id << " of a vocabulary of " << table.n;
    DecodeRow(table, id, params.y + i * params.y_stride);
  });
}

}  // namespace cachalot
