// CudaStepMemory: everything a runtime holds on the device beside weights and KV blocks, carved from one allocation whose
// size is known before anything is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/common/cuda_step.h"
#include "kernels/step/step.h"
#include "model/model.h"
#include "runtime/cuda_step_input.h"
#include "runtime/runtime.h"

namespace cachalot {

struct CudaRuntimeOptions {
  RuntimeOptions base;
  bool exact = false;        // F32 arithmetic throughout
  bool use_graphs = true;
  int32_t depth = 1;         // of launched steps; 0 where layers run on the CPU
  std::string trace_streams = "";  // a file for what its streams do (runtime/cuda_stream_trace.h); "": none
};

inline constexpr int32_t kMaxCudaLogitBias = 1024;  // of one sequence

struct CudaStepMemory {
  // Sizes.
  CudaStepBounds bounds;          // of any step
  int64_t logit_tile = 0;         // rows whose logits are in memory at once
  int64_t num_counts = 0;         // MoE layers x experts
  int64_t max_expanded_tokens = 0;
  int64_t expanded_stride = 0;    // blocks of the longest expanded span
  std::vector<CudaAttentionShape> shapes;
  // Device memory.
  std::byte* input = nullptr;     // CudaStepInput
  std::byte* output = nullptr;    // CudaStepOutput
  int64_t output_bytes = 0;
  CudaSlotState state;
  LogitBias* bias = nullptr;      // [max_seqs, kMaxCudaLogitBias]
  uint32_t* counts = nullptr;     // [max_seqs, vocab] for the penalties
  int32_t* history = nullptr;     // [max_context] on its way into counts
  SeqSpan* spans = nullptr;
  int32_t* token_ids = nullptr;
  int32_t* row_slots = nullptr;      // [2 rows]: the step's, and behind them those of its drafts
  int32_t* row_positions = nullptr;  // likewise
  int32_t* row_spans = nullptr;      // likewise
  int32_t* wanted_rows = nullptr;
  int32_t* wanted_slots = nullptr;
  int32_t* wanted_positions = nullptr;
  int32_t* wanted_in_front = nullptr;
  int32_t* span_drafts = nullptr;
  TokenLogprob* top = nullptr;    // [logit_tile, kMaxCudaTopLogprobs]
  float* modified = nullptr;      // [logit_tile, vocab]
  float* hidden = nullptr;        // [rows, hidden_size]
  float* normed = nullptr;        // [logit_tile, hidden_size]
  float* logits = nullptr;        // [logit_tile, vocab]
  // MTP: [max_seqs + rows, hidden_size], the slots' last states, then the step's; and the MTP batch.
  float* mtp_states = nullptr;
  float* mtp_hidden = nullptr;    // [rows, hidden_size]
  float* mtp_out = nullptr;       // [rows, hidden_size]
  int32_t* mtp_tokens = nullptr;  // [rows]
  SeqSpan* mtp_spans = nullptr;
  int32_t* mtp_from = nullptr;    // [rows] rows of mtp_states
  int32_t* mtp_to = nullptr;
  // An MTP layer that drafts.
  float* waiting = nullptr;         // [max_seqs, kMaxCudaWaiting, hidden_size] states that it has not read
  int32_t* waiting_rows = nullptr;  // [rows]
  float* draft_states = nullptr;    // [max_seqs, hidden_size] behind which it drafts
  int32_t* draft_last_rows = nullptr;  // [max_seqs]
  int32_t* picks = nullptr;         // [max_seqs]
  int32_t* picked = nullptr;        // [max_seqs]
  unsigned long long* draft_best = nullptr;  // [max_seqs, kDraftPickParts]
  CudaSampleSlot* greedy = nullptr;    // [1]
  uint64_t* draft_clock = nullptr;     // [1]
  RopeTables draft_rope;               // [2 rows, rope_dim / 2]: as row_positions has them
  std::vector<std::byte*> draft_plans;  // as plans, of the drafts' batches, which are planned with the step's; null for shapes that they have not
  std::vector<int64_t> draft_plan_bytes;
  std::vector<std::byte*> plans;  // one a shape
  std::vector<int64_t> plan_bytes;
  CudaMlaSplitParams split;
  uint32_t* matmul_counters = nullptr;  // [kCudaCounters], zero between ops
  std::byte* scratch = nullptr;   // of the matmuls
  int64_t scratch_bytes = 0;
  CudaHalfBuffer halves[CudaHalfCopies::kNumSources];
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int64_t total_bytes = 0;

  // Lays everything out from `base` (null: only to learn the size).
  static CudaStepMemory Carve(const CudaBackend& backend, const Model& model, const CudaRuntimeOptions& options, int32_t num_sms,
                              std::byte* base);
};

// Whether only MLA's expanded form has attention of this shape.
bool IsExpandedShape(const Model& model, const CudaAttentionShape& shape);
// Whether the runtime's MTP layer drafts, and its KV memory then.
inline bool DraftsOnGpu(const RuntimeOptions& options) { return options.drafts == DraftKind::kMtp; }
int32_t CudaDraftRowTokens(const RuntimeOptions& options);
KvStoreOptions DraftKvOptions(const RuntimeOptions& options, const CudaBackend* backend);

// Writes of block tables that one graph launch can carry; a step with more is launched op by op.
inline int32_t MaxGraphWrites(int32_t bucket, size_t num_groups) { return bucket * static_cast<int32_t>(num_groups); }

}  // namespace cachalot
