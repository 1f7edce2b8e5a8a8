// CudaBatch: a step's rows and spans as the CUDA ops see them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/paged_kv.h"

namespace cachalot {

// The ragged batch of a step. The host knows bounds only: spans beyond the step's have q_len 0, rows of no span slot -1.
struct CudaBatch {
  const SeqSpan* spans = nullptr;  // [num_spans]
  int32_t num_spans = 0;
  int32_t num_rows = 0;   // bucket; every span's rows lie in [0, num_rows)
  int32_t max_q_len = 0;  // bound on every span's
  // Written by batch_rows, read by the other ops; each [num_rows], -1 for rows of no span.
  int32_t* row_slots = nullptr;
  int32_t* row_positions = nullptr;
  int32_t* row_spans = nullptr;  // index of the row's span
};

}  // namespace cachalot
