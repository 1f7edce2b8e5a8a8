// Drafts on the GPU: the tokens that are guessed for a slot's next row, and what an MTP layer needs to guess them. Its KV
// memory is its own, a row of blocks for each slot, counted from wherever it began; states and tokens that it has not
// read yet wait in a ring for each slot. Where too many wait, the oldest are forgotten, and it begins anew behind them.
// Pointers are device pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/paged_kv.h"

namespace cachalot {

inline constexpr int32_t kMaxCudaDrafts = 16;
inline constexpr int32_t kMaxCudaWaiting = 32;  // more than a row with drafts brings
// States with which the layer begins anew where more wait than it reads at once: few, so that trying drafts after a pause
// costs little, and enough to draft well behind them.
inline constexpr int32_t kCudaCatchUp = 8;

struct CudaDraftState {
  int32_t* tokens = nullptr;          // [max_seqs, kMaxCudaDrafts] drafts; null: the device makes none
  int32_t* fed = nullptr;             // [max_seqs] tokens in the MTP layer's KV memory
  int32_t* waiting_begin = nullptr;   // [max_seqs] in the ring
  int32_t* waiting_len = nullptr;     // [max_seqs]
  int32_t* waiting_tokens = nullptr;  // [max_seqs, kMaxCudaWaiting] the token behind each waiting state
  int32_t row_tokens = 0;             // of KV memory for each slot
};

inline constexpr int32_t kDraftPickParts = 32;  // of a row of logits, each searched by a block, at most

// The planned spans of a step, as far as drafting looks at them.
struct CudaDraftSpans {
  const SeqSpan* planned = nullptr;   // [num_spans]
  const int32_t* drafts = nullptr;    // [num_spans] to be made
  const int32_t* stopped = nullptr;   // [max_seqs]
  int32_t num_spans = 0;              // a bound
  const int32_t* num_planned = nullptr;  // spans beyond it are padding
};

// A batch's rows, as batch_rows would make them from its spans.
struct CudaDraftRows {
  int32_t* slots = nullptr;
  int32_t* positions = nullptr;
  int32_t* spans = nullptr;
};

// What waits for the spans [begin, begin + count) that want drafts, as a batch of `stride` rows a span.
struct CudaDraftBeginParams {
  CudaDraftSpans spans;
  CudaDraftState state;
  int32_t begin = 0;
  int32_t count = 0;
  int32_t stride = 0;                 // where more wait, the last of them, and what was read before is forgotten
  SeqSpan* batch_spans = nullptr;     // [count] out
  int32_t* token_ids = nullptr;       // [count * stride] out, 0 for padding
  int32_t* from = nullptr;            // [count * stride] out: places among the waiting states
  int32_t* last_rows = nullptr;       // [count] out: of the batch
  int32_t* picks = nullptr;           // [num_spans] out: 0 for a span that wants a draft, else -1
  CudaDraftRows rows;                 // [count * stride] out
  uint64_t* clock = nullptr;          // out, where not null: nanoseconds, when drafting began
};

// The drafts of one pass were picked; the batch of the next pass is one row a span.
struct CudaDraftNextParams {
  CudaDraftSpans spans;
  CudaDraftState state;
  int32_t pass = 0;
  const int32_t* picked = nullptr;    // [num_spans]; null: the first of the largest of each span's logits
  const float* logits = nullptr;      // [num_spans, vocab], row stride logits_stride
  int64_t logits_stride = 0;
  int32_t vocab = 0;
  unsigned long long* best = nullptr;  // [num_spans, kDraftPickParts] scratch
  int32_t* step_tokens = nullptr;     // out: the drafts among the tokens that step_begin wrote
  SeqSpan* batch_spans = nullptr;     // [num_spans] out
  int32_t* token_ids = nullptr;       // [num_spans] out
  int32_t* picks = nullptr;           // as above, of the next pass
  CudaDraftRows rows;                 // [num_spans] out
  const uint64_t* clock = nullptr;    // what draft_begin wrote, where this is the last pass
  int64_t* draft_ns = nullptr;        // out then: how long drafting took
};

// Behind a step with prompts: their rows that are not sampled from, as a batch of the step's own rows.
struct CudaDraftFeedParams {
  const SeqSpan* spans = nullptr;     // [num_spans] what step_begin wrote
  const int32_t* span_drafts = nullptr;
  const int32_t* first_wanted = nullptr;  // [num_spans] -1: it samples nothing
  const int32_t* next_tokens = nullptr;   // [num_spans] what follows then, or -1
  const int32_t* token_ids = nullptr;     // [num_rows]
  int32_t num_spans = 0;
  int32_t num_rows = 0;
  CudaDraftState state;
  SeqSpan* batch_spans = nullptr;     // [num_spans] out
  int32_t* batch_tokens = nullptr;    // [num_rows] out, 0 for rows that are not fed
};

}  // namespace cachalot
