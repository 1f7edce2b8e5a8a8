// Rotary embedding (Su et al. 2021) of q and k, and the write of k and v into the paged cache, in one pass: into a
// quantised cache their codes (quant/kv_format.h).
#pragma once

#include <cstdint>
#include <span>

#include "device/exec_context.h"
#include "kernels/common/paged_kv.h"

namespace cachalot {

enum class RopeStyle : uint8_t {
  kHalf,         // pairs (i, i + dim/2): "NEOX"; Hugging Face Llama, Qwen
  kInterleaved,  // pairs (2i, 2i + 1): "NORM"; GGUF llama, DeepSeek MLA
};

// cos/sin of position · inv_freq, times mscale; computed once per step, shared by all layers.
struct RopeTableParams {
  const int32_t* positions = nullptr;  // [num_tokens]
  int64_t num_tokens = 0;
  const float* inv_freq = nullptr;  // [half_dim]
  int64_t half_dim = 0;
  float mscale = 1.0f;
  float* cos = nullptr;  // [num_tokens, half_dim]
  float* sin = nullptr;  // [num_tokens, half_dim]
};
// The angle is reduced in double precision: exact enough at position 10^6.
void RopeTable(const ExecContext& ctx, const RopeTableParams& params);

inline constexpr int32_t kMaxHeadNorm = 512;

struct RopeAppendParams {
  std::span<const SeqSpan> spans = {};
  const float* cos = nullptr;  // [num_tokens, rope_dim/2]
  const float* sin = nullptr;
  RopeStyle style = RopeStyle::kHalf;
  int32_t rope_dim = 0;

  float* q =
      nullptr;  // [num_tokens, num_q_heads, ·], rotated in place at [q_rope_offset, q_rope_offset + rope_dim)
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int32_t num_q_heads = 0;
  int32_t q_rope_offset = 0;

  const float* k =
      nullptr;  // [num_tokens, kv.num_kv_heads, kv.k_dim]; rotated at k_rope_offset on its way out
  int64_t k_token_stride = 0;
  int64_t k_head_stride = 0;
  int32_t k_rope_offset = 0;
  const float* v =
      nullptr;  // [num_tokens, kv.num_kv_heads, kv.v_dim]; null: the value lies within the key (MLA)
  int64_t v_token_stride = 0;
  int64_t v_head_stride = 0;
  PagedKv kv = {};

  // Where RopeAppendFuses, the norms of Qwen3 in front of it: RmsNorm of each head of q and of k, all of its kv.k_dim values (at most
  // kMaxHeadNorm), by weights [kv.k_dim]. Both or none; q [.., kv.k_dim].
  const float* q_norm_weight = nullptr;
  const float* k_head_norm_weight = nullptr;
  float head_norm_eps = 0;

  // Where RopeAppendFuses, what MLA does around it. The key's values in front of the rope, [0, k_rope_offset), go through RmsNorm by this
  // weight on their way out (one KV head; k itself stays as it is); and the rotated part of q's rows [0, q_copy_rows) goes to q_copy
  // too, [q_copy_rows, num_q_heads, rope_dim].
  const float* k_norm_weight = nullptr;
  float k_norm_eps = 0;
  float* q_copy = nullptr;
  int64_t q_copy_token_stride = 0;
  int64_t q_copy_head_stride = 0;
  int64_t q_copy_rows = 0;
};
void RopeAppend(const ExecContext& ctx, const RopeAppendParams& params);
// Never on the CPU.
bool RopeAppendFuses(const ExecContext& ctx);

}  // namespace cachalot
