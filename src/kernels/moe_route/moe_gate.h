// The whole router: logits = x · routerᵀ, MoeRoute, MoeSort; where the GPU has few tokens, one launch.
#pragma once

#include "kernels/matmul/matmul.h"
#include "kernels/moe_route/moe_route.h"

namespace cachalot {

struct MoeGateParams {
  const float* x = nullptr;  // [num_tokens, k], normed where `norm` is empty
  int64_t x_stride = 0;
  CudaFusion norm = {};      // only where MoeGateFuses
  const PackedMatrix* router = nullptr;  // [num_experts, k]
  float* logits = nullptr;   // scratch [num_tokens, num_experts]
  MoeRouteParams route = {};  // but for its logits
  MoeSortParams sort = {};
};
void MoeGate(const ExecContext& ctx, const MoeGateParams& params);
struct CudaMoeGateParams;
CudaMoeGateParams GateOnGpu(const MoeGateParams& params);
bool MoeGateFuses(const ExecContext& ctx, const MoeGateParams& params);

}  // namespace cachalot
