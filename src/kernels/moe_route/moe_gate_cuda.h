// The router of a few tokens in one launch: (norm,) logits, choice and sort, bit for bit what RmsNorm, the F32 matmul, MoeRoute and
// MoeSort leave one after the other. Pointers are device pointers.
#pragma once

#include <cstdint>

#include "kernels/matmul/cuda_fusion.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/moe_route/moe_route.h"

namespace cachalot {

struct CudaMoeGateParams {
  const float* x = nullptr;  // [num_tokens, k]; normed first where `norm` has a weight
  int64_t x_stride = 0;
  CudaFusion norm = {};
  CudaMatrix router;         // F32 [num_experts, k]
  float* logits = nullptr;   // out: route.logits
  MoeRouteParams route = {};
  MoeSortParams sort = {};   // reads what route writes
};

}  // namespace cachalot
