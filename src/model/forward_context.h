// What every layer of a forward pass gets: passed explicitly, valid for one step.
#pragma once

#include <cstdint>
#include <span>

#include "device/exec_context.h"
#include "kernels/common/paged_kv.h"
#include "quant/kv_format.h"
#include "tensor/dtype.h"

namespace cachalot {

// A KV group's memory as the step sees it.
struct KvBinding {
  std::byte* pool = nullptr;
  DType dtype = DType::kF16;
  KvPlanes planes = {};  // of a quantised group
  int32_t block_tokens = 16;
  const int32_t* block_tables = nullptr;  // [max_seqs, table_stride]
  int64_t table_stride = 0;
};

struct ForwardContext {
  const ExecContext& exec;
  int64_t num_tokens = 0;
  std::span<const SeqSpan> spans;  // on the GPU may be empty: there the batch is in device memory
  size_t num_expanded = 0;         // the last ones are computed in MLA's expanded form (layers/mla.h)
  const float* cos = nullptr;  // [num_tokens, rope_dim/2]
  const float* sin = nullptr;
  int64_t mla_piece_tokens = 0;    // as ForwardBatch has it
};

}  // namespace cachalot
