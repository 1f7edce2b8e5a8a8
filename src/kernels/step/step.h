// The frame of a step on the GPU: from what the host planned to a batch in device memory, and from drawn tokens to the
// state of the slots. The state (last tokens, stop marks, sampling) lives on the device, so that a step can be launched
// before the host knows what the last one drew. Pointers are device pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda_batch.h"
#include "kernels/sample/sample_cuda.h"
#include "kernels/step/draft.h"

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
  int32_t* lengths = nullptr;  // tokens in the KV cache; drafts that were wrong are not
  int32_t* stopped = nullptr;
  CudaSampleSlot* sampling = nullptr;
  int32_t* num_stops = nullptr;
  int32_t* stops = nullptr;  // [max_seqs, kMaxCudaStopIds]
  CudaDraftState draft;
};

struct CudaStepBeginParams {
  // The host's part, copied in.
  const CudaStepHeader* header = nullptr;
  // [num_spans]. A span whose first token is the slot's last begins where that slot's length says, whatever kv_len does.
  const SeqSpan* planned = nullptr;
  const int32_t* planned_drafts = nullptr;   // [num_spans] of the span's tokens, the last ones: drafts
  const int32_t* planned_tokens = nullptr;   // [num_rows]; -1: the slot's last token, and its drafts behind it
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
  int32_t* span_drafts = nullptr;       // [max_spans]
  int32_t* token_ids = nullptr;         // [max_rows], 0 for padding
  int32_t* row_slots = nullptr;         // [max_rows], -1 for padding
  int32_t* row_positions = nullptr;
  int32_t* row_spans = nullptr;
  int32_t* wanted_rows = nullptr;       // [max_wanted], -1 for padding
  int32_t* wanted_slots = nullptr;      // [max_wanted], -1 where no token is wanted
  int32_t* wanted_positions = nullptr;  // where a token drawn there will stand
  int32_t* wanted_in_front = nullptr;   // drafts in front of it, its own token included
  int32_t* cleared = nullptr;           // [num_cleared], zero: what the step counts in
  int64_t num_cleared = 0;
  CudaDraftBeginParams drafts = {};     // draft_begin in the same launch: of other slots than those that enter. Count 0: none
};

// After sampling: drafts are held against what was drawn in front of them, and the slots learn their tokens.
struct CudaStepEndParams {
  int32_t num_spans = 0;                  // bounds, as in step_begin
  int32_t num_rows = 0;
  const SeqSpan* spans = nullptr;         // what step_begin wrote
  const int32_t* span_drafts = nullptr;
  const int32_t* token_ids = nullptr;
  const int32_t* first_wanted = nullptr;  // [num_spans] where in `tokens` the span's first draw is, the others behind it; -1
  int32_t* tokens = nullptr;              // in: drawn. Out: -1 behind the first that is none of the drafts
  int32_t* computed = nullptr;            // [num_spans] out: the slot's length; -1 where nothing was computed
  CudaSlotState state;
  uint32_t* counts = nullptr;             // as CudaSampleParams, where those that stay are counted here; or null
  int32_t vocab = 0;
  // A synthetic acceptance: a draft counts as drawn where UniformAt(accept_seed + slot, its position) is below
  // accept_below / 2^53. < 0: off.
  int64_t accept_below = -1;
  uint64_t accept_seed = 0;
  int32_t* waiting_rows = nullptr;        // [num_rows] out, with an MTP layer that drafts: the row's place among the
                                          // waiting states, or -1
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
