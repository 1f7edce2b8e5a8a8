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

// What an MTP layer reads: y[t] = [norm of the embedding ; norm of hidden state t], in one launch. False: nothing has been done; always so on
// the CPU.
struct EmbedNormsParams {
  EmbedParams embed;                     // y: [num_tokens, 2 dim]
  const float* norm = nullptr;           // [dim]
  const float* hidden = nullptr;         // [.., dim]
  const int32_t* hidden_rows = nullptr;  // null: row t
  const float* front_norm = nullptr;     // in front of hidden_norm; or null
  const float* hidden_norm = nullptr;
  float eps = 0;
  const PackedMatrix* upcoming = nullptr;  // what the next matmul reads
};
bool EmbedNorms(const ExecContext& ctx, const EmbedNormsParams& params);

}  // namespace cachalot
