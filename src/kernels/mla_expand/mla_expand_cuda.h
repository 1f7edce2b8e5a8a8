// MlaExpand on the GPU is a gather, a matmul and an assembly. Pointers are device pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/paged_kv.h"

namespace cachalot {

// Latents of one sequence out of the paged cache: dst [kv_len, k_dim] in F32.
struct CudaMlaGatherParams {
  PagedKv latent;
  int32_t slot = 0;
  int32_t kv_len = 0;
  float* dst = nullptr;
};
// Keys and values of every head into a paged cache of their own, from products [kv_len, heads * (nope + v)] of kv_b with
// the latents, and the latents' rope parts.
struct CudaMlaAssembleParams {
  const float* latents = nullptr;  // [kv_len, lora + rope_dim]
  const float* products = nullptr;
  int32_t kv_len = 0;
  int32_t lora = 0;
  int32_t num_heads = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  // k_dim = nope + rope, v_dim; block i of the sequence is block i of the cache; its block table is written too.
  PagedKv out;
  int32_t* out_block_table = nullptr;  // [ceil(kv_len / out.block_tokens)], the one that out.block_tables names
};

}  // namespace cachalot
