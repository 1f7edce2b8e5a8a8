// The frame of a step on the GPU: from what the host planned to a batch in device memory, and from drawn tokens to the
// state of the slots. The state (last tokens, stop marks, sampling) lives on the device, so that a step can be launched
// before the host knows what the last one drew. Pointers are device pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda_batch.h"
#include "kernels/sample/sample_cuda.h"

namespace cachalot {

inline constexpr int32_t kMaxCudaKvGroups = 8;
inline constexpr int32_t kMaxCudaStopIds = 16;

struct CudaBlockWrite {
  int32_t slot = 0;
  int32_t group = 0;
  int32_t index = 0;
  int32_t block_id = 0;
};

// A sequence enters a slot.
struct CudaSlotSetup {
  int32_t slot = 0;
  int32_t last_token = -1;
  int32_t num_stops = 0;
  int32_t stops[kMaxCudaStopIds] = {};
  CudaSampleSlot sampling;
};

// What the host says of a step: counts of the arrays beside it.
struct CudaStepHeader {
  int32_t num_spans = 0;
  int32_t num_rows = 0;
  int32_t num_writes = 0;
  int32_t num_setups = 0;
  int32_t num_wanted = 0;
};

// The slots' state, [max_seqs] each.
struct CudaSlotState {
  int32_t* last_tokens = nullptr;
  int32_t* stopped = nullptr;
  CudaSampleSlot* sampling = nullptr;
  int32_t* num_stops = nullptr;
  int32_t* stops = nullptr;  // [max_seqs, kMaxCudaStopIds]
};

struct CudaStepBeginParams {
  // The host's part, copied in.
  const CudaStepHeader* header = nullptr;
  const SeqSpan* planned = nullptr;          // [num_spans]
  const int32_t* planned_tokens = nullptr;   // [num_rows]; -1: the slot's last token
  const CudaBlockWrite* writes = nullptr;    // [num_writes]
  const CudaSlotSetup* setups = nullptr;     // [num_setups]
  const int32_t* wanted = nullptr;           // [num_wanted] rows whose logits are wanted; ~row: but no token
  CudaSlotState state;
  int32_t num_groups = 0;
  int32_t* tables[kMaxCudaKvGroups] = {};        // [max_seqs, stride]
  int64_t table_strides[kMaxCudaKvGroups] = {};
  // Bounds of the arrays written below (a graph's bucket); what lies beyond the header's counts becomes padding.
  int32_t max_spans = 0;
  int32_t max_rows = 0;
  int32_t max_wanted = 0;
  // Out. The rows of a slot that has stopped become padding too.
  SeqSpan* spans = nullptr;             // [max_spans]
  int32_t* token_ids = nullptr;         // [max_rows], 0 for padding
  int32_t* row_slots = nullptr;         // [max_rows], -1 for padding
  int32_t* row_positions = nullptr;
  int32_t* row_spans = nullptr;
  int32_t* wanted_rows = nullptr;       // [max_wanted], -1 for padding
  int32_t* wanted_slots = nullptr;      // [max_wanted], -1 where no token is wanted
  int32_t* wanted_positions = nullptr;  // where a token drawn there will stand
};

// After sampling: the slots learn their tokens.
struct CudaStepEndParams {
  const int32_t* wanted_slots = nullptr;  // [num_wanted]
  const int32_t* tokens = nullptr;        // [num_wanted], drawn
  int32_t num_wanted = 0;
  CudaSlotState state;
};

// dst[dst_rows[i]] = src[src_rows[i]] (null: i) for rows of `dim` values.
struct CudaGatherRowsParams {
  const float* src = nullptr;
  const int32_t* src_rows = nullptr;
  float* dst = nullptr;
  const int32_t* dst_rows = nullptr;
  int64_t num_rows = 0;
  int64_t dim = 0;
};

// out[i] = log softmax(logits[i])[ids[i]]; 0 where the id is -1.
struct CudaLogprobParams {
  const float* logits = nullptr;  // [num_rows, vocab]
  const int32_t* ids = nullptr;   // [num_rows]
  int64_t num_rows = 0;
  int32_t vocab = 0;
  float* out = nullptr;
};

}  // namespace cachalot
