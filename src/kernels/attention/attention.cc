#include "kernels/attention/attention.h"

#include <algorithm>

#include "kernels/attention/attention_tap.h"
#include "kernels/attention/attention_variants.h"
#include "kernels/common/cuda_step.h"
#include "kernels/common/dispatch.h"

namespace cachalot {
namespace internal {
std::atomic<AttentionTap*> g_attention_tap{nullptr};
}  // namespace internal

namespace {

constexpr KernelVariant<AttentionParams> kVariants[] = {
    {Isa::kAvx2, &AttentionAvx2Covers, &AttentionAvx2},
    {Isa::kRef, nullptr, &AttentionRef},
};

void Validate(const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  CHECK(kv.num_kv_heads > 0 && params.num_q_heads > 0 && params.num_q_heads % kv.num_kv_heads == 0)
      << params.num_q_heads << " query heads over " << kv.num_kv_heads << " KV heads";
  CHECK(kv.k_dim > 0 && kv.v_dim > 0 && kv.block_tokens > 0 && params.window >= 0)
      << "k_dim " << kv.k_dim << " v_dim " << kv.v_dim << " block " << kv.block_tokens << " window "
      << params.window;
  CHECK(kv.planes == nullptr || std::max(kv.k_dim, kv.v_dim) <= kMaxKvDim) << "a quantised key of " << kv.k_dim;
  CHECK(kv.sink_tokens == 0 ||
        (kv.planes != nullptr && kv.sinks->planes != nullptr && kv.sinks->block_tokens == kv.block_tokens && params.window == 0 &&
         kv.sink_tokens % kv.block_tokens == 0 && kv.sink_tokens % 8 == 0))
      << kv.sink_tokens << " sinks, blocks of " << kv.block_tokens;
  for (const SeqSpan& span : params.spans) {
    CHECK(span.q_len >= 0 && span.kv_len >= span.q_len)
        << "span q_len " << span.q_len << " kv_len " << span.kv_len;
  }
}

int64_t RefWorkspaceBytes(int num_threads, int32_t v_dim) {
  return num_threads * Workspace::Padded(v_dim * int64_t{sizeof(double)});
}

}  // namespace

void Attention(const ExecContext& ctx, const AttentionParams& params) {
  Validate(params);
  if (OnCuda(ctx)) {
    const CudaAttentionShape shape = {.num_q_heads = params.num_q_heads,
                                      .num_kv_heads = params.kv.num_kv_heads,
                                      .k_dim = params.kv.k_dim,
                                      .v_dim = params.kv.v_dim,
                                      .window = params.window};
    AttentionParams on_gpu = params;
    CudaStep& step = *ctx.cuda;
    step.halves.Clear();
    const CudaAttentionBatch* entry = step.FindAttention(shape);
    const bool every_row = entry == nullptr || entry->batch.spans == step.batch.spans;  // not a part, as in expanded MLA
    if (every_row && params.out_head_stride == params.kv.v_dim && params.kv.k_dim == params.kv.v_dim) {
      on_gpu.out_half = step.halves.Begin(CudaHalfSource::kAttention, params.out, params.out_token_stride, step.batch.num_rows,
                                          int64_t{params.num_q_heads} * params.kv.v_dim);
    }
    RunCudaTold(ctx, [&](const CudaBackend& cuda, const CudaExec& exec) {
      CHECK(entry != nullptr) << "no schedule for attention of " << shape.num_q_heads << " heads, " << shape.k_dim;
      return cuda.attention(exec, entry->batch, entry->plan, on_gpu);
    });
    return;
  }
  if (AttentionTap* tap = internal::g_attention_tap.load(std::memory_order_relaxed)) tap->OnAttention(ctx, params);
  RunVariant(kVariants, ctx, params);
}

int64_t AttentionWorkspaceBytes(int num_threads, int32_t num_q_heads, int32_t num_kv_heads, int32_t k_dim,
                                int32_t v_dim) {
  return std::max(RefWorkspaceBytes(num_threads, v_dim),
                  AttentionAvx2WorkspaceBytes(num_threads, k_dim, v_dim));
}

}  // namespace cachalot
