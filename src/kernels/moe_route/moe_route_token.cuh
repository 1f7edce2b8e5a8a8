// The routing of one token by one warp, its scores in shared memory. The choice is top_k scans for the best that is left; a choice
// score becomes a NaN once it is taken or may not be.
#pragma once

#include <math_constants.h>

#include "device/cuda/warp.cuh"
#include "kernels/moe_route/moe_route.h"

namespace cachalot {
namespace {

inline constexpr int kRouteMaxShared = 48 << 10;

// Of a warp.
inline int64_t RouteFloats(const MoeRouteParams& p) {
  return 2 * int64_t{p.num_experts} + (p.group_score != MoeGroupScore::kNone ? p.num_groups : 0);
}
inline bool IsRoutable(const MoeRouteParams& p) {
  const bool grouped = p.group_score != MoeGroupScore::kNone;
  return p.num_experts > 0 && p.top_k > 0 && p.top_k <= p.num_experts &&
         (!grouped || (p.num_groups > 0 && p.num_experts % p.num_groups == 0 && p.top_k_groups > 0 &&
                       p.top_k_groups <= p.num_groups && p.top_k <= p.top_k_groups * (p.num_experts / p.num_groups)));
}

// In the order of the values; a NaN's is 0, less than any value's.
__device__ __forceinline__ uint32_t KeyOf(float value) {
  if (isnan(value)) return 0;
  const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);  // -0 equals 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Index of the best of values [count] that is not a NaN; -1 if there is none. The whole warp gets it.
__device__ int WarpBest(const float* values, int count) {
  uint32_t mine = 0, index = ~0u;
#pragma unroll 4
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    const uint32_t key = KeyOf(values[i]);
    if (key > mine) mine = key, index = static_cast<uint32_t>(i);  // of equal ones the first stays
  }
  const uint32_t best = __reduce_max_sync(kAllLanes, mine);
  const uint32_t first = __reduce_min_sync(kAllLanes, mine == best ? index : ~0u);
  return best == 0 ? -1 : static_cast<int>(first);
}

// `scores`, `choice`: each lane's own, every 32nd. `choice` becomes what is added to scores when experts are chosen.
__device__ void Score(const MoeRouteParams& p, const float* logits, float* scores, float* choice) {
  constexpr int kBatch = 8;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int base = lane; base < p.num_experts; base += 32 * kBatch) {
    float logit[kBatch], bias[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * 32;
      logit[j] = i < p.num_experts ? __ldcg(logits + i) : 0.0f;
      bias[j] = i < p.num_experts && p.choice_bias != nullptr ? p.choice_bias[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (base + j * 32 < p.num_experts) scores[base + j * 32] = logit[j], choice[base + j * 32] = bias[j];
    }
  }
  if (p.score == MoeScore::kSigmoid) {
#pragma unroll 4
    for (int i = lane; i < p.num_experts; i += 32) scores[i] = __fdiv_rn(1.0f, 1.0f + expf(-scores[i]));
    return;
  }
  float largest = -CUDART_INF_F;
#pragma unroll 1
  for (int i = lane; i < p.num_experts; i += 32) largest = fmaxf(largest, scores[i]);
  largest = WarpMax(largest);
  double sum = 0;
#pragma unroll 1
  for (int i = lane; i < p.num_experts; i += 32) {
    scores[i] = expf(scores[i] - largest);
    sum += scores[i];
  }
  const auto total = static_cast<float>(WarpSum(sum));
#pragma unroll 1
  for (int i = lane; i < p.num_experts; i += 32) scores[i] = __fdiv_rn(scores[i], total);
}

// Leaves only the experts of the best groups to choose from. `groups` [num_groups] is scratch.
__device__ void KeepBestGroups(const MoeRouteParams& p, float* choice, float* groups) {
  const int lane = threadIdx.x % 32, size = p.num_experts / p.num_groups;
  int team = 1;  // lanes that share a group
  while (team * 2 * p.num_groups <= 32) team *= 2;
#pragma unroll 1
  for (int base = 0; base < p.num_groups; base += 32 / team) {
    const int g = base + lane / team;
    float first = -CUDART_INF_F, second = -CUDART_INF_F;
#pragma unroll 4
    for (int i = g < p.num_groups ? lane % team : size; i < size; i += team) {
      const float value = choice[g * size + i];
      second = fmaxf(second, fminf(first, value));
      first = fmaxf(first, value);
    }
#pragma unroll 1
    for (int offset = team / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, first, offset), other_second = __shfl_xor_sync(kAllLanes, second, offset);
      second = fmaxf(fminf(first, other), fmaxf(second, other_second));
      first = fmaxf(first, other);
    }
    if (g < p.num_groups && lane % team == 0) groups[g] = p.group_score == MoeGroupScore::kMax || size < 2 ? first : first + second;
  }
  __syncwarp();
#pragma unroll 1
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

// The whole warp: the experts of one token and their weights. `scores` [2 * num_experts + num_groups] is scratch. Where `chosen` is
// given it gets the experts too [top_k], `chosen_weights` their weights.
__device__ void RouteToken(const MoeRouteParams& p, int64_t token, float* scores, int* chosen = nullptr, float* chosen_weights = nullptr) {
  const int lane = threadIdx.x % 32;
  float* choice = scores + p.num_experts;
  float* groups = choice + p.num_experts;
  Score(p, p.logits + token * p.num_experts, scores, choice);
#pragma unroll 1
  for (int i = lane; i < p.num_experts; i += 32) {  // each lane reads what it wrote itself
    const float value = scores[i] + choice[i];
    choice[i] = isnan(value) ? -CUDART_INF_F : value;
  }
  __syncwarp();
  if (p.group_score != MoeGroupScore::kNone) KeepBestGroups(p, choice, groups);

  // Choice k is lane k % 32's, so that the weights are scaled side by side.
  int32_t* ids = p.expert_ids + token * p.top_k;
  float* weights = p.weights + token * p.top_k;
  double sum = 0;
  float own = 0;  // of choice `lane`: not read back from memory
#pragma unroll 1
  for (int k = 0; k < p.top_k; ++k) {
    const int best = WarpBest(choice, p.num_experts);
    __syncwarp();
    if (lane == k % 32) {
      choice[best] = CUDART_NAN_F;
      ids[k] = best;
      if (k < 32) own = scores[best];
      else weights[k] = scores[best];
      if (chosen != nullptr) chosen[k] = best;
    }
    sum += scores[best];
    __syncwarp();
  }
  if (p.score == MoeScore::kSigmoid) sum += 1e-20;
#pragma unroll 1
  for (int k = lane; k < p.top_k; k += 32) {  // as written by this lane
    const float score = k < 32 ? own : weights[k];
    const float weight = __fmul_rn(p.normalize ? static_cast<float>(score / sum) : score, p.scaling);
    weights[k] = weight;
    if (chosen_weights != nullptr) chosen_weights[k] = weight;
  }
}

}  // namespace
}  // namespace cachalot
