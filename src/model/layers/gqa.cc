#include "model/layers/gqa.h"

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"

namespace cachalot {

Result<GqaLayer> GqaLayer::Build(WeightReader* reader, const ModelSpec& spec, int32_t layer) {
  const AttentionSpec& attention = spec.attention;
  const int64_t q_width = int64_t{attention.num_q_heads} * attention.head_dim;
  const int64_t kv_width = int64_t{attention.num_kv_heads} * attention.head_dim;
  GqaLayer out;
  const RowsOf qkv[] = {{{TensorRole::kQ, layer}, q_width}, {{TensorRole::kK, layer}, kv_width}, {{TensorRole::kV, layer}, kv_width}};
  const WeightRef biases[] = {{TensorRole::kQBias, layer}, {TensorRole::kKBias, layer}, {TensorRole::kVBias, layer}};
  ASSIGN_OR_RETURN(out.qkv_, Linear::Build(reader, qkv, attention.qkv_bias ? std::span(biases) : std::span<const WeightRef>(),
                                           spec.hidden_size));
  const RowsOf o[] = {{{TensorRole::kO, layer}, spec.hidden_size}};
  ASSIGN_OR_RETURN(out.o_, Linear::Build(reader, o, {}, q_width));
  if (attention.qk_norm) {
    ASSIGN_OR_RETURN(out.q_norm_, reader->Vector({TensorRole::kQNorm, layer}, attention.head_dim));
    ASSIGN_OR_RETURN(out.k_norm_, reader->Vector({TensorRole::kKNorm, layer}, attention.head_dim));
  }
  return out;
}

void GqaLayer::Run(const ForwardContext& fwd, const ModelSpec& spec, int32_t window, const PagedKv& kv, NormedInput* input,
                   float* residual) const {
  const AttentionSpec& attention = spec.attention;
  const int64_t dim = attention.head_dim;
  const int64_t q_width = attention.num_q_heads * dim;
  const int64_t kv_width = attention.num_kv_heads * dim;
  const int64_t width = q_width + 2 * kv_width;
  WorkspaceScope scope(fwd.exec.workspace);
  float* qkv = fwd.exec.workspace->Take<float>(fwd.num_tokens * width);
  float* out = fwd.exec.workspace->Take<float>(fwd.num_tokens * q_width);
  float* q = qkv;
  float* k = qkv + q_width;
  float* v = k + kv_width;

  qkv_.Run(fwd.exec, input, qkv, width);
  const auto head_norm = [&](float* heads, int64_t num_heads, const FloatArray& weight) {
    RmsNorm(fwd.exec, {.x = heads,
                       .token_stride_x = width,
                       .head_stride_x = dim,
                       .num_tokens = fwd.num_tokens,
                       .num_heads = num_heads,
                       .dim = dim,
                       .weight = weight.data(),
                       .eps = spec.norm_eps,
                       .y = heads,
                       .token_stride_y = width,
                       .head_stride_y = dim});
  };
  RopeAppendParams rope;
  if (attention.qk_norm && RopeAppendFuses(fwd.exec) && dim <= kMaxHeadNorm) {
    rope.q_norm_weight = q_norm_.data();
    rope.k_head_norm_weight = k_norm_.data();
    rope.head_norm_eps = spec.norm_eps;
  } else if (attention.qk_norm) {
    head_norm(q, attention.num_q_heads, q_norm_);
    head_norm(k, attention.num_kv_heads, k_norm_);
  }
  rope.spans = fwd.spans;
  rope.cos = fwd.cos;
  rope.sin = fwd.sin;
  rope.style = attention.rope.style;
  rope.rope_dim = attention.rope.dim;
  rope.q = q;
  rope.q_token_stride = width;
  rope.q_head_stride = dim;
  rope.num_q_heads = attention.num_q_heads;
  rope.k = k;
  rope.k_token_stride = width;
  rope.k_head_stride = dim;
  rope.v = v;
  rope.v_token_stride = width;
  rope.v_head_stride = dim;
  rope.kv = kv;
  RopeAppend(fwd.exec, rope);

  Attention(fwd.exec, {.spans = fwd.spans,
                       .q = q,
                       .q_token_stride = width,
                       .q_head_stride = dim,
                       .num_q_heads = attention.num_q_heads,
                       .scale = attention.scale,
                       .window = window,
                       .kv = kv,
                       .out = out,
                       .out_token_stride = q_width,
                       .out_head_stride = dim,
                       .upcoming = {o_.Upcoming()}});
  o_.Run(fwd.exec, out, q_width, fwd.num_tokens, residual, spec.hidden_size, /*accumulate=*/true);
}

int64_t GqaLayer::WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int num_threads) {
  const AttentionSpec& a = spec.attention;
  const int64_t q_width = int64_t{a.num_q_heads} * a.head_dim;
  const int64_t width = q_width + 2 * int64_t{a.num_kv_heads} * a.head_dim;
  const auto floats = [](int64_t n) { return Workspace::Padded(n * static_cast<int64_t>(sizeof(float))); };
  return floats(max_tokens * width) + floats(max_tokens * q_width) +
         std::max({MatmulWorkspaceBytes(max_tokens, std::max<int64_t>(spec.hidden_size, q_width), num_threads),
                   AttentionWorkspaceBytes(num_threads, a.num_q_heads, a.num_kv_heads, a.head_dim, a.head_dim)});
}

}  // namespace cachalot
