// The experts of a few tokens, from the normed or raw input to the residual stream, as the CUDA backend takes them. Pointers are
// device pointers.
#pragma once

#include <cstdint>

#include "kernels/matmul/cuda_fusion.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/moe_route/moe_gate_cuda.h"

namespace cachalot {

// h[pair] = SwiGLU of W_up x[token]; residual[token] += sum over its pairs, in rising expert order, of weight * W_down h[pair]; then
// the shared expert's, the same for all tokens. Pairs as CudaMoeMatmulParams; those of rows without a slot are not there.
struct CudaMoeFewParams {
  const float* x = nullptr;  // [num_tokens, k of up]; normed first where `norm` has a weight. May be the residual stream
  int64_t x_stride = 0;
  CudaFusion norm = {};
  int64_t num_tokens = 0;
  int32_t top_k = 0;
  int32_t num_experts = 0;
  const int32_t* expert_begin = nullptr;  // [num_experts + 1]
  const int32_t* token_rows = nullptr;    // [num_tokens * top_k]
  const float* pair_weights = nullptr;    // [num_tokens * top_k]
  CudaMatrix up;    // of one expert: [2 * gates, k], gates first; data and block_scales are not used
  CudaMatrix down;  // [n, gates]
  const std::byte* const* up_data = nullptr;  // [num_experts], device arrays of device pointers
  const std::byte* const* down_data = nullptr;
  const float* const* up_scales = nullptr;    // FP8: the same
  const float* const* down_scales = nullptr;
  CudaMatrix shared_up = {}, shared_down = {};  // data null: none
  uint16_t* h = nullptr;                      // scratch: F16 [num_tokens * top_k, gates]
  uint16_t* shared_h = nullptr;               // F16 [num_tokens, gates of the shared expert]
  float* residual = nullptr;                  // [num_tokens, n of down]
  int64_t residual_stride = 0;
  // Or null: the router is done by the same launch, of the same x and norm; the lists of pairs are what it leaves. row_slots as CudaMoeGate's.
  const CudaMoeGateParams* gate = nullptr;
  const int32_t* row_slots = nullptr;
};

}  // namespace cachalot
