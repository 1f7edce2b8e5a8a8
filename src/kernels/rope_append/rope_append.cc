#include "kernels/rope_append/rope_append.h"

#include <algorithm>

#include "kernels/common/cuda_step.h"
#include "kernels/common/dispatch.h"
#include "kernels/rope_append/rope_append_variants.h"
#include "quant/kv_format.h"

namespace cachalot {
namespace {

constexpr KernelVariant<RopeAppendParams> kVariants[] = {
    {Isa::kAvx2, nullptr, &RopeAppendAvx2},
    {Isa::kRef, nullptr, &RopeAppendRef},
};

}  // namespace

bool RopeAppendFuses(const ExecContext& ctx) {
  return OnCuda(ctx) && (ctx.cuda->backend == nullptr || ctx.cuda->backend->rope_append_fuses());
}

void RopeAppend(const ExecContext& ctx, const RopeAppendParams& params) {
  const int32_t end = params.rope_dim;
  CHECK(end >= 0 && end % 2 == 0) << "rope_dim " << end;
  CHECK(params.k_rope_offset >= 0 && params.k_rope_offset + end <= params.kv.k_dim)
      << "rope at " << params.k_rope_offset << " + " << end << " of a key of " << params.kv.k_dim;
  CHECK(params.kv.block_tokens > 0);
  CHECK(params.kv.planes == nullptr || std::max(params.kv.k_dim, params.kv.v_dim) <= kMaxKvDim) << "a quantised key of " << params.kv.k_dim;
  for (const SeqSpan& span : params.spans) {
    CHECK(span.q_len >= 0 && span.kv_len >= span.q_len)
        << "span q_len " << span.q_len << " kv_len " << span.kv_len;
  }
  if (OnCuda(ctx)) {
    RunCuda(ctx, [&](const CudaBackend& cuda, const CudaExec& exec) { return cuda.rope_append(exec, ctx.cuda->batch, params); });
    return;
  }
  CHECK(params.k_norm_weight == nullptr && params.q_copy == nullptr && params.q_norm_weight == nullptr);
  RunVariant(kVariants, ctx, params);
}

}  // namespace cachalot
