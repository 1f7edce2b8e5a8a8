// MLA, expanded form: from a sequence's cached latents to full keys and values of every head, for long prefills
// (DeepSeek-V2, arXiv 2405.04434, section 2.1). The result is a paged cache of its own in scratch memory.
#pragma once

#include <cstdint>

#include "device/exec_context.h"
#include "kernels/common/paged_kv.h"
#include "kernels/matmul/packed_matrix.h"

namespace cachalot {

struct MlaExpandParams {
  PagedKv latent;                       // one head: k_dim = lora + rope, tokens of `slot`
  int32_t slot = 0;
  int32_t kv_len = 0;                   // tokens to expand
  const PackedMatrix* kv_b = nullptr;   // [num_heads * (nope + v), lora]: per head the key's rows, then the value's
  int32_t num_heads = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  std::byte* scratch = nullptr;         // MlaExpandBytes(…), 64-byte aligned
};

// The expanded cache: F32, num_heads KV heads, k_dim = nope + rope, one sequence in slot 0.
PagedKv MlaExpand(const ExecContext& ctx, const MlaExpandParams& params);
int64_t MlaExpandBytes(int32_t kv_len, int32_t lora, int32_t num_heads, int32_t nope_dim, int32_t rope_dim, int32_t v_dim);

}  // namespace cachalot
