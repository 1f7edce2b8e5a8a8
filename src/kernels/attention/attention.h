// Causal attention of a ragged batch over the paged KV cache: chunked prefill and decode are the same call.
//
// Invariant: an output row depends only on its query and the cached tokens [.., its position]: the order of
// summation is fixed by absolute cache positions, so chunking, batching, block sizes' placement and threads
// do not change a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/exec_context.h"
#include "kernels/common/cuda_half_copies.h"
#include "kernels/common/paged_kv.h"

namespace cachalot {

// Constant memory that is read soon.
struct UpcomingBytes {
  const std::byte* data = nullptr;  // 16-byte aligned
  int64_t bytes = 0;
};

struct AttentionParams {
  std::span<const SeqSpan> spans = {};  // the keys of the step's own tokens are already in the cache
  const float* q = nullptr;             // [num_tokens, num_q_heads, kv.k_dim]
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int32_t num_q_heads =
      0;               // a multiple of kv.num_kv_heads; head h reads KV head h / (num_q_heads / num_kv_heads)
  float scale = 1.0f;  // scores are (q · k) * scale
  int32_t window = 0;  // > 0: a token sees itself and the window - 1 before it (Mistral); 0: all before it
  PagedKv kv = {};
  float* out = nullptr;  // [num_tokens, num_q_heads, kv.v_dim]
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
  CudaHalfRows out_half = {};  // GPU, heads side by side: out as F16 too; the op sees to it
  // GPU: weights that the next ops read; attention of few tokens leaves memory idle and may bring them to L2.
  UpcomingBytes upcoming[2] = {};
};

void Attention(const ExecContext& ctx, const AttentionParams& params);

// Scratch for calls with these dimensions, however many tokens.
int64_t AttentionWorkspaceBytes(int num_threads, int32_t num_q_heads, int32_t num_kv_heads, int32_t k_dim,
                                int32_t v_dim);

}  // namespace cachalot
