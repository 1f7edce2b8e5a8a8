// Sampling on the GPU: parameters of every slot and token counts live in device memory. Pointers are device pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/sample/sample.h"

namespace cachalot {

// How the sequence in a slot wants its tokens drawn; written by the host when it enters the slot.
struct CudaSampleSlot {
  SamplingParams sampling;
  int32_t bias_begin = 0;  // range in CudaSampleParams::bias, token ids distinct
  int32_t bias_len = 0;
  int32_t num_suppressed = 0;  // ids behind that range, never drawn at a position before suppressed_until
  int64_t suppressed_until = 0;
  int32_t counts_row = -1;  // row of CudaSampleParams::counts; -1: no penalties
};
// Token counts of one sequence: dense [vocab], bit 31 says "in the prompt", the other bits count the output.
inline constexpr uint32_t kCountInPrompt = 0x80000000u;

// Starts a row of counts afresh from the tokens so far.
struct CudaSampleHistoryParams {
  uint32_t* counts = nullptr;  // the row, [vocab]
  int32_t vocab = 0;
  const int32_t* token_ids = nullptr;  // [num_tokens], the first num_prompt of them from the prompt
  int32_t num_tokens = 0;
  int32_t num_prompt = 0;
};

inline constexpr int32_t kMaxCudaTopLogprobs = 128;

struct CudaSampleParams {
  const float* logits = nullptr;  // [num_rows, vocab], row stride logits_stride; not changed
  int64_t logits_stride = 0;
  int32_t vocab = 0;
  int32_t num_rows = 0;
  const int32_t* row_slots = nullptr;  // [num_rows], -1: nothing is drawn
  const int32_t* positions = nullptr;  // [num_rows], where the drawn token will stand
  const CudaSampleSlot* slots = nullptr;
  const LogitBias* bias = nullptr;
  uint32_t* counts = nullptr;  // [rows, vocab]; the drawn token is counted, unless there is num_in_front
  // Rows of drafts: so many of the inputs up to the row's own count as if they had been drawn before it. What is drawn is
  // not counted then: whether it stays is not known yet. Null: no drafts.
  const int32_t* num_in_front = nullptr;  // [num_rows]
  const int32_t* input_rows = nullptr;    // [num_rows] the row's place in input_ids
  const int32_t* input_ids = nullptr;
  float* modified = nullptr;   // [num_rows, vocab]: scratch for rows with a bias or penalties
  const int32_t* num_top = nullptr;  // [num_rows] as SampleRowParams::num_top_logprobs; null: none
  int32_t top_stride = 0;            // <= kMaxCudaTopLogprobs
  int32_t* token_ids = nullptr;      // [num_rows]; -1 for rows without a slot
  float* logprobs = nullptr;         // [num_rows], written for rows with num_top >= 0
  TokenLogprob* top = nullptr;       // [num_rows, top_stride]
};

}  // namespace cachalot
