// What the experts' kernel for few tokens is given: for its own sources.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_exec.h"
#include "kernels/moe_matmul/moe_few.h"
#include "kernels/moe_route/moe_gate_cuda.h"
#include "tensor/dtype.h"

namespace cachalot {

// One of gate/up (then `rows` are the gates, and the ups lie behind all of them) or down.
struct FewMatrix {
  const std::byte* w = nullptr;    // the shared expert's, or null
  const float* scales = nullptr;   // FP8: [.., k / 128]
  int rows = 0, k = 0;
  int row_bytes = 0;
  int scale_rows = 128;
};

struct FewProblem {
  FewMatrix each[2], shared[2];  // gate/up, down
  const std::byte* const* data[2] = {};
  const float* const* scales[2] = {};
  const int32_t* expert_begin = nullptr;
  const int32_t* token_rows = nullptr;
  const float* pair_weights = nullptr;
  int num_experts = 0, num_tokens = 0, num_pairs = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  int x_dim = 0;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  uint16_t* h = nullptr;
  uint16_t* shared_h = nullptr;
  float* residual = nullptr;
  int64_t residual_stride = 0;
  uint32_t* counters = nullptr;  // moe_few.h; zero, and left zero
  // The router too, of one token: it makes the three lists above.
  bool routes = false;
  const float* router = nullptr;  // [num_experts, x_dim]
  bool normalize = false;
  float scaling = 1;
  float* logits = nullptr;        // what else it leaves
  int32_t* expert_ids = nullptr;
  float* weights = nullptr;
  MoeSortParams sort = {};
  const int32_t* row_slots = nullptr;
  FewLayout layout = {};
  int first_phase = 0, last_phase = 1;  // 0: gate/up, 1: down
};

template <DType kType>
CudaStatus LaunchFew(const CudaExec& exec, const FewProblem& problem);

}  // namespace cachalot
