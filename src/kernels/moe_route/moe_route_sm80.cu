// MoeRoute: a warp a token.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/moe_route/moe_route_token.cuh"

namespace cachalot {
namespace {

constexpr int kWarps = 4;

__global__ void MoeRouteKernel(MoeRouteParams p, int floats_per_warp) {
  extern __shared__ float shared[];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= p.num_tokens) return;  // whole warps; nothing below waits for the block
  RouteToken(p, token, shared + threadIdx.x / 32 * floats_per_warp);
}

}  // namespace

CudaStatus CudaMoeRoute(const CudaExec& exec, const MoeRouteParams& params) {
  if (params.num_tokens == 0) return nullptr;
  if (!IsRoutable(params)) {
    return CudaFail(CudaFault::kInvalid, "moe_route: top %d from %d of %d groups of %d experts", params.top_k,
                    params.top_k_groups, params.num_groups, params.num_experts);
  }
  const int floats_per_warp = static_cast<int>(RouteFloats(params));
  const int64_t shared_bytes = int64_t{kWarps} * floats_per_warp * static_cast<int64_t>(sizeof(float));
  if (shared_bytes > kRouteMaxShared) {
    return CudaFail(CudaFault::kUnsupported, "moe_route: %d experts need %lld bytes of shared memory, more than %d",
                    params.num_experts, static_cast<long long>(shared_bytes), kRouteMaxShared);
  }
  LaunchOverlapped(&MoeRouteKernel, (params.num_tokens + kWarps - 1) / kWarps, kWarps * 32, shared_bytes, exec.stream, params,
                   floats_per_warp);
  return CudaLaunched("moe_route of %lld tokens, top %d of %d experts", static_cast<long long>(params.num_tokens),
                      params.top_k, params.num_experts);
}

}  // namespace cachalot
