// Embed on the GPU: the table as a file holds it, in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace cachalot {

struct CudaEmbedParams {
  const int32_t* token_ids = nullptr;  // [num_tokens]; an id outside the table gives zeros
  int64_t num_tokens = 0;
  DType dtype = DType::kF32;  // kF32, kF16, kBF16, kFP8E4M3, kQ8_0, kQ4_0, kQ4_1; row-major as in a file
  const void* table = nullptr;
  int64_t vocab = 0;
  int64_t dim = 0;
  const float* block_scales = nullptr;  // FP8: [ceil(vocab / block_scale_rows), ceil(dim/128)]
  int64_t block_scale_rows = 128;
  float* y = nullptr;  // [num_tokens, dim], row stride y_stride
  int64_t y_stride = 0;
};

}  // namespace cachalot
