// CudaStepInput: what the host says of one step, in one piece of page-locked memory that is copied to the device as it is.
// The layout depends on bounds only, so that a graph's copy has one size.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_library.h"
#include "kernels/step/step.h"

namespace cachalot {

struct CudaStepBounds {
  int32_t spans = 0;
  int32_t rows = 0;
  int32_t writes = 0;
  int32_t setups = 0;
  int32_t wanted = 0;
};

// The arrays at `base`, in host or device memory.
struct CudaStepInput {
  CudaStepHeader* header = nullptr;
  SeqSpan* spans = nullptr;
  int32_t* drafts = nullptr;       // [spans] as CudaStepBeginParams::planned_drafts
  int32_t* first_wanted = nullptr; // [spans] as CudaStepEndParams has it
  int32_t* next_tokens = nullptr;  // [spans] the token that follows a span which samples none, where known; or -1
  int32_t* tokens = nullptr;       // [rows]
  CudaBlockWrite* writes = nullptr;
  CudaSlotSetup* setups = nullptr;
  int32_t* wanted = nullptr;       // [wanted] rows; ~row: its logits are wanted, but no token
  int32_t* num_top = nullptr;      // [wanted] as CudaSampleParams::num_top
  int32_t* target_ids = nullptr;   // [wanted] the token whose log-probability is wanted, or -1
  int64_t size_bytes = 0;

  static CudaStepInput At(std::byte* base, const CudaStepBounds& bounds);
  static int64_t Bytes(const CudaStepBounds& bounds) { return At(nullptr, bounds).size_bytes; }
};

// What the device says of it, copied back.
struct CudaStepOutput {
  int32_t* tokens = nullptr;         // [wanted]; -1 where none was drawn, or it does not count
  int32_t* computed = nullptr;       // [spans] tokens of the sequence in the KV cache now; -1: skipped
  float* logprobs = nullptr;         // [wanted] of the drawn tokens
  float* target_logprobs = nullptr;  // [wanted]
  int32_t* expert_counts = nullptr;  // [counts]
  int64_t* draft_ns = nullptr;       // [1] what making its drafts took, where it made some
  int64_t size_bytes = 0;

  static CudaStepOutput At(std::byte* base, const CudaStepBounds& bounds, int64_t counts);
};

}  // namespace cachalot
