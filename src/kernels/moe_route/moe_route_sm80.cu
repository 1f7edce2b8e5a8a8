// MoeRoute: a warp a token, its scores in shared memory. The choice is top_k scans for the best that is left; a choice
// score becomes a NaN once it is taken or may not be.
#include <math_constants.h>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/moe_route/moe_route.h"

namespace cachalot {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxShared = 48 << 10;

// Orders values first (falling), then indices (rising); 0 is less than any value.
__device__ __forceinline__ unsigned long long KeyOf(float value, int index) {
  if (isnan(value)) return 0;
  const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);  // -0 equals 0
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | static_cast<uint32_t>(~index);
}

// Index of the best of values [count] that is not a NaN; -1 if there is none. The whole warp gets it.
__device__ int WarpBest(const float* values, int count) {
  unsigned long long best = 0;
  for (int i = threadIdx.x % 32; i < count; i += 32) best = max(best, KeyOf(values[i], i));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, offset));
  return best == 0 ? -1 : static_cast<int>(~static_cast<uint32_t>(best));
}

__device__ void Score(const MoeRouteParams& p, const float* logits, float* scores) {
  const int lane = threadIdx.x % 32;
  if (p.score == MoeScore::kSigmoid) {
    for (int i = lane; i < p.num_experts; i += 32) scores[i] = __fdiv_rn(1.0f, 1.0f + expf(-logits[i]));
    return;
  }
  float largest = -CUDART_INF_F;
  for (int i = lane; i < p.num_experts; i += 32) largest = fmaxf(largest, logits[i]);
  largest = WarpMax(largest);
  double sum = 0;
  for (int i = lane; i < p.num_experts; i += 32) {
    scores[i] = expf(logits[i] - largest);
    sum += scores[i];
  }
  const auto total = static_cast<float>(WarpSum(sum));
  for (int i = lane; i < p.num_experts; i += 32) scores[i] = __fdiv_rn(scores[i], total);
}

// Leaves only the experts of the best groups to choose from. `groups` [num_groups] is scratch.
__device__ void KeepBestGroups(const MoeRouteParams& p, float* choice, float* groups) {
  const int lane = threadIdx.x % 32, size = p.num_experts / p.num_groups;
  for (int g = lane; g < p.num_groups; g += 32) {
    float first = -CUDART_INF_F, second = -CUDART_INF_F;
    for (int i = 0; i < size; ++i) {
      const float value = choice[g * size + i];
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    groups[g] = p.group_score == MoeGroupScore::kMax || size < 2 ? first : first + second;
  }
  __syncwarp();
  for (int i = 0; i < p.top_k_groups; ++i) {
    const int best = WarpBest(groups, p.num_groups);
    __syncwarp();
    if (lane == 0 && best >= 0) groups[best] = CUDART_NAN_F;  // a NaN: chosen
    __syncwarp();
  }
  for (int i = lane; i < p.num_experts; i += 32) {
    if (!isnan(groups[i / size])) choice[i] = CUDART_NAN_F;
  }
  __syncwarp();
}

__global__ void MoeRouteKernel(MoeRouteParams p, int floats_per_warp) {
  extern __shared__ float shared[];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= p.num_tokens) return;  // whole warps; nothing below waits for the block
  const int lane = threadIdx.x % 32;
  float* scores = shared + threadIdx.x / 32 * floats_per_warp;
  float* choice = scores + p.num_experts;
  float* groups = choice + p.num_experts;
  Score(p, p.logits + token * p.num_experts, scores);
  for (int i = lane; i < p.num_experts; i += 32) {  // each lane reads what it wrote itself
    const float value = scores[i] + (p.choice_bias != nullptr ? p.choice_bias[i] : 0.0f);
    choice[i] = isnan(value) ? -CUDART_INF_F : value;
  }
  __syncwarp();
  if (p.group_score != MoeGroupScore::kNone) KeepBestGroups(p, choice, groups);

  int32_t* ids = p.expert_ids + token * p.top_k;
  float* weights = p.weights + token * p.top_k;
  double sum = 0;
  for (int k = 0; k < p.top_k; ++k) {
    const int best = WarpBest(choice, p.num_experts);
    __syncwarp();
    if (lane == 0) {
      choice[best] = CUDART_NAN_F;
      ids[k] = best;
      weights[k] = scores[best];
    }
    sum += scores[best];
    __syncwarp();
  }
  if (lane != 0) return;
  if (p.score == MoeScore::kSigmoid) sum += 1e-20;
  for (int k = 0; k < p.top_k; ++k) {
    const float weight = p.normalize ? static_cast<float>(weights[k] / sum) : weights[k];
    weights[k] = __fmul_rn(weight, p.scaling);
  }
}

}  // namespace

CudaStatus CudaMoeRoute(const CudaExec& exec, const MoeRouteParams& params) {
  if (params.num_tokens == 0) return nullptr;
  const bool grouped = params.group_score != MoeGroupScore::kNone;
  if (params.num_experts <= 0 || params.top_k <= 0 || params.top_k > params.num_experts ||
      (grouped && (params.num_groups <= 0 || params.num_experts % params.num_groups != 0 || params.top_k_groups <= 0 ||
                   params.top_k_groups > params.num_groups ||
                   params.top_k > params.top_k_groups * (params.num_experts / params.num_groups)))) {
    return CudaFail(CudaFault::kInvalid, "moe_route: top %d from %d of %d groups of %d experts", params.top_k,
                    params.top_k_groups, params.num_groups, params.num_experts);
  }
  const int floats_per_warp = 2 * params.num_experts + (grouped ? params.num_groups : 0);
  const int64_t shared_bytes = int64_t{kWarps} * floats_per_warp * static_cast<int64_t>(sizeof(float));
  if (shared_bytes > kMaxShared) {
    return CudaFail(CudaFault::kUnsupported, "moe_route: %d experts need %lld bytes of shared memory, more than %d",
                    params.num_experts, static_cast<long long>(shared_bytes), kMaxShared);
  }
  LaunchOverlapped(&MoeRouteKernel, (params.num_tokens + kWarps - 1) / kWarps, kWarps * 32, shared_bytes, exec.stream, params,
                   floats_per_warp);
  return CudaLaunched("moe_route of %lld tokens, top %d of %d experts", static_cast<long long>(params.num_tokens),
                      params.top_k, params.num_experts);
}

}  // namespace cachalot
