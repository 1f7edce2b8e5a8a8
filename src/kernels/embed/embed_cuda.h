// Embed on the GPU: the table in the layout of the matmuls' weights, so that tied embeddings need one copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul/matmul_cuda.h"

namespace cachalot {

struct CudaEmbedParams {
  const int32_t* token_ids = nullptr;  // [num_tokens]; an id outside the table gives zeros
  int64_t num_tokens = 0;
  CudaMatrix table;                    // [vocab, dim]
  float* y = nullptr;                  // [num_tokens, dim], row stride y_stride
  int64_t y_stride = 0;

  // What an MTP layer reads, in the same launch, bit for bit as by RmsNorm; only where EmbedTakesNorms. Rows of the embedding normed by
  // `norm`; and y[t, dim..] = row hidden_rows[t] (null: t; -1: y stays as it was) of `hidden` [.., dim], normed by `front_norm` where there is
  // one, then by `hidden_norm`.
  const float* norm = nullptr;         // [dim]; null: none of all this
  const float* hidden = nullptr;
  const int32_t* hidden_rows = nullptr;
  const float* front_norm = nullptr;
  const float* hidden_norm = nullptr;
  float eps = 0;
  CudaHalfRows y_half = {};            // y as F16 too, or null
  // What the next matmul reads, 16-byte aligned: a part of it is brought to L2 while the memory has nothing else to do, where tokens are few.
  const std::byte* upcoming = nullptr;
  int64_t upcoming_bytes = 0;
};

// Long rows, whole float4s, that the threads of a block keep in registers.
inline bool EmbedTakesNorms(const CudaEmbedParams& p) {
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  return p.table.k >= 1024 && p.table.k <= 8192 && p.table.k % 4 == 0 && p.y_stride % 4 == 0 && p.y_stride >= 2 * p.table.k && whole(p.y) &&
         whole(p.norm) && whole(p.hidden) && whole(p.front_norm) && whole(p.hidden_norm);
}

}  // namespace cachalot
