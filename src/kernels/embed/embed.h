// y[i] = table[token_ids[i]]
#pragma once

#include <cstdint>

#include "device/exec_context.h"
#include "kernels/matmul/packed_matrix.h"

namespace cachalot {

struct EmbedParams {
  const int32_t* token_ids = nullptr;   // [num_tokens], each in [0, table->n)
  int64_t num_tokens = 0;
  const PackedMatrix* table = nullptr;  // [vocab, dim], any layout
  float* y = nullptr;                   // [num_tokens, dim], row stride y_stride
  int64_t y_stride = 0;
};

void Embed(const ExecContext& ctx, const EmbedParams& params);

}  // namespace cachalot
