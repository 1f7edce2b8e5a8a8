// The definition of Attention: per query row, softmax over the visible tokens in the
// order of their positions. Scores are F32 dot products summed in double; they are
// computed twice so that the scratch stays small.
#include <cmath>
#include <limits>

#include "kernels/attention/attention_variants.h"
#include "kernels/common/kv_value.h"

namespace cachalot {
namespace {

template <typename T>
float Score(const AttentionParams& params, const float* q, int64_t slot, int64_t kv_head, int64_t position) {
  const PagedKv& kv = params.kv;
  const T* k = reinterpret_cast<const T*>(kv.Block(slot, position)) + kv_head * kv.k_head_stride +
               position % kv.block_tokens * kv.k_dim;
  double dot = 0;
  for (int32_t i = 0; i < kv.k_dim; ++i) dot += double{q[i]} * ToF32(k[i]);
  return static_cast<float>(dot) * params.scale;
}

template <typename T>
void AttendRow(const AttentionParams& params, const SeqSpan& span, int64_t row, int64_t head, double* acc) {
  const PagedKv& kv = params.kv;
  const int64_t kv_head = head / (params.num_q_heads / kv.num_kv_heads);
  const float* q = params.q + (span.q_begin + row) * params.q_token_stride + head * params.q_head_stride;
  float* out = params.out + (span.q_begin + row) * params.out_token_stride + head * params.out_head_stride;
  const KvRange range = VisibleRange(int64_t{span.kv_len} - span.q_len + row, params.window);

  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t t = range.begin; t < range.end; ++t) {
    largest = std::max(largest, Score<T>(params, q, span.slot, kv_head, t));
  }
  double sum = 0;
  std::fill_n(acc, kv.v_dim, 0.0);
  for (int64_t t = range.begin; t < range.end; ++t) {
    const double p = std::exp(Score<T>(params, q, span.slot, kv_head, t) - largest);
    const T* v = reinterpret_cast<const T*>(kv.Block(span.slot, t)) + kv.v_offset +
                 kv_head * kv.v_head_stride + t % kv.block_tokens * kv.v_token_stride;
    sum += p;
    for (int32_t i = 0; i < kv.v_dim; ++i) acc[i] += p * ToF32(v[i]);
  }
  for (int32_t i = 0; i < kv.v_dim; ++i) out[i] = static_cast<float>(acc[i] / sum);
}

}  // namespace

void AttentionRef(const ExecContext& ctx, const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  const WorkspaceScope scope(ctx.workspace);
  const int64_t acc_stride = Workspace::Padded(kv.v_dim * int64_t{sizeof(double)}) / int64_t{sizeof(double)};
  double* const acc = ctx.workspace->Take<double>(acc_stride * ctx.pool->num_threads());
  for (const SeqSpan& span : params.spans) {
    ctx.pool->ParallelFor(int64_t{span.q_len} * params.num_q_heads, [&](int64_t item, int thread_idx) {
      const int64_t row = item / params.num_q_heads, head = item % params.num_q_heads;
      double* const mine = acc + thread_idx * acc_stride;
      if (kv.planes != nullptr) {
        AttendCodesRow(params, span, row, head, mine);
      } else {
        WithKvType(kv.dtype, [&](auto type) { AttendRow<decltype(type)>(params, span, row, head, mine); });
      }
      const KvRange range = VisibleRange(int64_t{span.kv_len} - span.q_len + row, params.window);
      CountKvBytes(ctx, kv, range.end - range.begin);
    });
  }
}

}  // namespace cachalot
