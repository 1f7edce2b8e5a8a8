// What the CUDA backend's functions take. Pointers are device pointers unless said otherwise; the parameter structs of the
// CPU ops are used as they are, with device pointers, wherever they fit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/common/paged_kv.h"
#include "kernels/moe_route/moe_route.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/sample/sample.h"
#include "kernels/swiglu/swiglu.h"
#include "tensor/dtype.h"

namespace cachalot {

// How a call failed. Becomes a Status on the caller's side (device/cuda/cuda_library.h).
enum class CudaFault : int32_t { kInvalid, kUnsupported, kExhausted, kDevice };
struct CudaFailure {
  CudaFault fault = CudaFault::kDevice;
  char message[500] = {};  // names the op and its shapes
};
// Null: all is well. Else valid until the thread's next failure.
using CudaStatus = const CudaFailure*;

enum class CudaMath : int32_t {
  kFast,  // 16-bit tensor cores, F32 accumulators
  kF32,   // F32 multiply-adds throughout: what golden tests compare
};

struct CudaDeviceInfo {
  char name[128] = {};
  int32_t compute_capability = 0;  // 90
  int32_t num_sms = 0;
  int64_t total_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;
};

// Where an op runs.
struct CudaExec {
  void* stream = nullptr;  // a cudaStream_t
  int32_t num_sms = 0;
  CudaMath math = CudaMath::kFast;
  // Bits of a row do not depend on the batch or on chunking; costs speed.
  bool deterministic = false;
  // Scratch of the ops that want some (which, and how much, is said at the op); 256-byte aligned.
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

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

// All that a schedule depends on: layers of the same shape share one plan.
struct CudaAttentionShape {
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int32_t window = 0;
};
struct CudaAttentionPlan {
  CudaAttentionShape shape;
  std::byte* memory = nullptr;  // attention_plan_bytes(shape, batch, num_sms), 256-byte aligned
  int64_t memory_bytes = 0;
};

// Latents of one sequence out of the paged cache: dst [kv_len, k_dim] in F32.
struct CudaMlaGatherParams {
  PagedKv latent;
  int32_t slot = 0;
  int32_t kv_len = 0;
  float* dst = nullptr;
};
// Keys and values of every head into a paged cache of their own, from products [kv_len, heads * (nope + v)] of kv_b with
// the latents, and the latents' rope parts.
struct CudaMlaAssembleParams {
  const float* latents = nullptr;  // [kv_len, lora + rope_dim]
  const float* products = nullptr;
  int32_t kv_len = 0;
  int32_t lora = 0;
  int32_t num_heads = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  // k_dim = nope + rope, v_dim; block i of the sequence is block i of the cache; its block table is written too.
  PagedKv out;
  int32_t* out_block_table = nullptr;  // [ceil(kv_len / out.block_tokens)], the one that out.block_tables names
};

// How the sequence in a slot wants its tokens drawn; written by the host when it enters the slot.
struct CudaSampleSlot {
  SamplingParams sampling;
  int32_t bias_begin = 0;  // range in CudaSampleParams::bias, token ids distinct
  int32_t bias_len = 0;
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
  uint32_t* counts = nullptr;  // [rows, vocab]; the drawn token is counted
  float* modified = nullptr;   // [num_rows, vocab]: scratch for rows with a bias or penalties
  const int32_t* num_top = nullptr;  // [num_rows] as SampleRowParams::num_top_logprobs; null: none
  int32_t top_stride = 0;            // <= kMaxCudaTopLogprobs
  int32_t* token_ids = nullptr;      // [num_rows]; -1 for rows without a slot
  float* logprobs = nullptr;         // [num_rows], written for rows with num_top >= 0
  TokenLogprob* top = nullptr;       // [num_rows, top_stride]
};

}  // namespace cachalot
