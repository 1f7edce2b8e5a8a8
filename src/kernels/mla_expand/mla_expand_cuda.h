// MLA, expanded form, on the GPU: the long prefills of a step, all at once, beside decode in its absorbed form.
//
// Once a step, mla_split parts the batch's spans in two and lays out the scratch cache; for each layer then: mla_gather,
// a matmul of kv_b with the gathered latents, mla_assemble, and attention over `expanded` spans and the scratch cache,
// attention over `absorbed` spans and the latents' own cache. Rows stay where they are: both calls take the step's batch
// with other spans. Pointers are device pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/paged_kv.h"

namespace cachalot {

// A token of an expanded span; its row in the arrays between gather and assemble is its index.
struct CudaMlaRow {
  int32_t slot = -1;  // of the latents' cache; -1: beyond the last span
  int32_t position = 0;
  int32_t block = 0;  // of the scratch cache
};

// A span is expanded when it has at least min_q_len new tokens, table_stride blocks hold its kv_len, and it and the
// expanded ones before it have at most max_rows tokens in all; else it is absorbed. The absorbed batch's max_q_len is
// min_q_len - 1 only when the host knows that every longer span fits.
struct CudaMlaSplitParams {
  int32_t min_q_len = 1;
  int64_t max_rows = 0;  // the host's bound on the sum of kv_len of the spans to expand
  int32_t block_tokens = 64;              // of the scratch cache
  int64_t table_stride = 0;
  // Each [num_spans]; span i of one of them is the batch's, in the other it has no rows. Slot i of the scratch cache is span
  // i's.
  SeqSpan* absorbed = nullptr;
  SeqSpan* expanded = nullptr;
  int64_t* row_begins = nullptr;          // [num_spans], scratch
  int32_t* block_begins = nullptr;        // [num_spans], scratch
  CudaMlaRow* rows = nullptr;             // [max_rows]
  int32_t* block_tables = nullptr;        // [num_spans, table_stride] of the scratch cache; written as far as it is used
};
// Blocks that the scratch cache needs.
inline int64_t CudaMlaScratchBlocks(int64_t max_rows, int32_t num_spans, int32_t block_tokens) {
  return max_rows / block_tokens + num_spans;
}

// Latents out of the paged cache: dst [num_rows, k_dim] in F32; zeros for rows beyond the last span.
struct CudaMlaGatherParams {
  PagedKv latent;
  const CudaMlaRow* rows = nullptr;
  int64_t num_rows = 0;  // at most mla_split's max_rows
  float* dst = nullptr;
};

// Keys and values of every head into the scratch cache, from products [num_rows, heads * (nope + v)] of kv_b with the
// latents, and the latents' rope parts.
struct CudaMlaAssembleParams {
  const float* latents = nullptr;  // [num_rows, lora + rope_dim]
  const float* products = nullptr;
  const CudaMlaRow* rows = nullptr;
  int64_t num_rows = 0;
  int32_t lora = 0;
  int32_t num_heads = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  PagedKv out;  // k_dim = nope + rope, v_dim; blocks of mla_split's block_tokens
};

}  // namespace cachalot
