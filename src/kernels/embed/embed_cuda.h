// Embed on the GPU: the table in the layout of the matmuls' weights, so that tied embeddings need one copy.
#pragma once

#include <cstdint>

#include "kernels/matmul/matmul_cuda.h"

namespace cachalot {

struct CudaEmbedParams {
  const int32_t* token_ids = nullptr;  // [num_tokens]; an id outside the table gives zeros
  int64_t num_tokens = 0;
  CudaMatrix table;                    // [vocab, dim]
  float* y = nullptr;                  // [num_tokens, dim], row stride y_stride
  int64_t y_stride = 0;
};

}  // namespace cachalot
