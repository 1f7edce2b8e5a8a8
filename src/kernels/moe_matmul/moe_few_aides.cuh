// The warps that help in a block of the experts' kernel (moe_few.cuh): they list the experts that have pairs, or route first, and bring
// the rows of h to the block's memory as soon as all blocks have made them.
//
// A logit goes to all blocks as one word that is its own flag: 0 says that it is not there yet (a logit of +0 goes as -0), so that there is no
// fence and no count between who makes it and who waits for it.
#pragma once

#include <math_constants.h>

#include <climits>

#include "kernels/moe_matmul/moe_few_block.cuh"

namespace cachalot {
namespace {

__device__ __forceinline__ uint32_t LogitWord(float logit) {
  const uint32_t bits = __float_as_uint(logit);
  return bits != 0 ? bits : 0x80000000u;
}
__device__ __forceinline__ void PublishWord(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;\n" ::"l"(to), "r"(word) : "memory");
}
__device__ __forceinline__ uint32_t PublishedWord(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];\n" : "=r"(word) : "l"(from) : "memory");
  return word;
}
// In the order of the values of a softmax; a NaN's is 1, less than any value's, as MoeRoute takes it.
__device__ __forceinline__ uint32_t ScoreKey(float score) { return isnan(score) ? 1u : __float_as_uint(score) + 2; }
// What never comes is a fault of ours: the kernel fails rather than hang.
__device__ __forceinline__ void TrapAfterSeconds(int64_t since) {
  constexpr int64_t kMostClocks = int64_t{1} << 34;
  if (clock64() - since > kMostClocks) __trap();
}

// What the router's threads have before kernels in front have ended, since weights do not change: a row of the router and of the norm's weight; in
// shared memory, where the experts lie.
struct FewRouter {
  static constexpr int kVectors = kFewMostRouterDim / 4 / kFewRouteThreads;
  float4 row[kVectors], weight[kVectors];

  __device__ __forceinline__ void Load(const FewProblem& p, FewShared* memory) {
    const int vectors = p.x_dim / 4;
    static_assert(kFewMostRouterExperts <= kFewRouteThreads);
    if (AideThread() < p.num_experts) {
#pragma unroll
      for (int phase = 0; phase < 2; ++phase) memory->data[phase][AideThread()] = p.data[phase][AideThread()];
    }
    const auto* from = reinterpret_cast<const float4*>(p.router + int64_t{min(static_cast<int>(blockIdx.x), p.num_experts - 1)} * p.x_dim);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int at = AideThread() + j * kFewRouteThreads;
      row[j] = at < vectors ? from[at] : float4{};
      weight[j] = at < vectors && p.norm_weight != nullptr ? reinterpret_cast<const float4*>(p.norm_weight)[at] : float4{};
    }
  }
};

// The logit of this block's expert, for all blocks: bit for bit what RmsNorm and the F32 matmul of one row leave.
__device__ __forceinline__ void PublishLogit(const FewProblem& p, FewShared* memory, const FewRouter& router) {
  constexpr int kVectors = FewRouter::kVectors;
  const int tid = AideThread(), lane = tid % 32, warp = tid / 32, vectors = p.x_dim / 4;
  float4 x[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int at = tid + j * kFewRouteThreads;
    x[j] = at < vectors ? reinterpret_cast<const float4*>(p.x)[at] : float4{};
  }
  if (p.norm_weight != nullptr) {
    static_assert(kNormWarps == 2 * kFewRouteWarps);
    float sum[2] = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (tid + j * kFewRouteThreads < vectors) sum[j % 2] += SquareSum(x[j]);
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float total = WarpSum(sum[part]);
      if (lane == 0) memory->router_squares[warp + part * kFewRouteWarps] = total;
    }
    SyncRouters();
    const float inverse = InverseRms(WarpSum(lane < kNormWarps ? memory->router_squares[lane] : 0.0f), p.x_dim, p.norm_eps);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) x[j] = ScaledByNorm(x[j], inverse, router.weight[j]);
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const float4 a = router.row[j], v = x[j];
    if (tid + j * kFewRouteThreads < vectors) sum = fmaf(a.w, v.w, fmaf(a.z, v.z, fmaf(a.y, v.y, fmaf(a.x, v.x, sum))));
  }
  sum = WarpSum(sum);
  if (lane == 0) memory->router_sums[warp] = sum;
  SyncRouters();
  if (tid != 0) return;
  float logit = 0;
#pragma unroll
  for (int w = 0; w < kFewRouteWarps; ++w) logit += memory->router_sums[w];
  PublishWord(p.counters + kFewLogitsAt + blockIdx.x, LogitWord(logit));
  p.logits[blockIdx.x] = logit;
}

// The router of one token by one warp, softmax without groups and bias: bit for bit what MoeRoute and MoeSort leave, which block 0 writes. The list of
// the chosen experts, in rising order.
__device__ __forceinline__ void RouteAndList(const FewProblem& p, FewShared* memory) {
  constexpr int kExperts = kFewMostRouterExperts / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, num_experts = p.num_experts, top_k = p.num_pairs;
  const bool has_slot = p.row_slots == nullptr || __ldcg(p.row_slots) >= 0;
  const uint32_t* words = p.counters + kFewLogitsAt + lane;
  const auto is_there = [&](int i) { return lane + 32 * i < num_experts; };
  float score[kExperts];
  uint32_t word[kExperts];
  const int64_t since = clock64();
  for (bool all = false; !all;) {
    all = true;
#pragma unroll
    for (int i = 0; i < kExperts; ++i) word[i] = is_there(i) ? PublishedWord(words + 32 * i) : 1u;
#pragma unroll
    for (int i = 0; i < kExperts; ++i) all = all && word[i] != 0;
    if (!all) TrapAfterSeconds(since);
  }
  __syncwarp();
  float largest = -CUDART_INF_F;
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    if (is_there(i)) largest = fmaxf(largest, __uint_as_float(word[i]));
  }
  largest = WarpMax(largest);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    score[i] = is_there(i) ? expf(__uint_as_float(word[i]) - largest) : 0.0f;
    if (is_there(i)) sum += score[i];
  }
  const auto total = static_cast<float>(WarpSum(sum));
  uint32_t key[kExperts];
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    score[i] = __fdiv_rn(score[i], total);
    key[i] = is_there(i) ? ScoreKey(score[i]) : 0;
    memory->scores[lane + 32 * i] = score[i];
  }
  __syncwarp();
  // Choice k is lane k's.
  int expert = INT_MAX;
  float weight = 0;
  sum = 0;
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) {
    uint32_t mine = 0, index = ~0u;
#pragma unroll
    for (int i = 0; i < kExperts; ++i) {
      if (key[i] > mine) mine = key[i], index = static_cast<uint32_t>(lane + 32 * i);  // of equal ones the first stays
    }
    const uint32_t best = __reduce_max_sync(kAllLanes, mine);
    const auto first = static_cast<int>(__reduce_min_sync(kAllLanes, mine == best ? index : ~0u));
#pragma unroll
    for (int i = 0; i < kExperts; ++i) {
      if (first == lane + 32 * i) key[i] = 0;
    }
    const float chosen = memory->scores[first];
    sum += chosen;
    if (lane == k) expert = first, weight = chosen;
  }
  weight = __fmul_rn(p.normalize ? static_cast<float>(weight / sum) : weight, p.scaling);
  const int id = expert;
  if (!has_slot) expert = INT_MAX;  // left out
  int at = 0;
#pragma unroll 1
  for (int j = 0; j < top_k; ++j) at += __shfl_sync(kAllLanes, expert, j) < expert;
  if (lane < top_k && has_slot) {
    FewExpert& to = memory->experts[at];
    to.id = expert, to.first = at, to.count = 1;
#pragma unroll
    for (int c = 0; c < kFewTokens; ++c) to.tokens[c] = 0, to.weights[c] = weight;
#pragma unroll
    for (int phase = 0; phase < 2; ++phase) {
      to.w[phase] = memory->data[phase][expert];
      to.scales[phase] = p.scales[phase] != nullptr ? p.scales[phase][expert] : nullptr;
    }
  }
  if (lane == 0) memory->num_experts = has_slot ? top_k : 0;
  ArriveOnce(SharedAddress(&memory->listed));
  if (blockIdx.x != 0) return;
  const MoeSortParams& sort = p.sort;
  if (lane < top_k) {
    p.expert_ids[lane] = id, p.weights[lane] = weight;
    if (has_slot) sort.token_rows[at] = 0, sort.pair_weights[at] = weight;
    if (sort.token_pairs != nullptr) sort.token_pairs[has_slot ? at : lane] = has_slot ? at : -1;
    if (has_slot && sort.expert_counts != nullptr) atomicAdd(sort.expert_counts + expert, 1);  // nobody waits for the sum
  }
#pragma unroll 1
  for (int base = 0; base <= num_experts; base += 32) {
    int before = 0;
#pragma unroll 1
    for (int j = 0; j < top_k; ++j) before += __shfl_sync(kAllLanes, expert, j) < base + lane;
    if (base + lane <= num_experts) sort.expert_begin[base + lane] = before;
  }
}

// The router, by the aides and the folding warp.
__device__ __forceinline__ void Route(const FewProblem& p, FewShared* memory) {
  FewRouter router;
  router.Load(p, memory);
  WaitForEarlierKernels();
  if (static_cast<int>(blockIdx.x) < p.num_experts) {
    PublishLogit(p, memory, router);
  } else {
    SyncRouters();  // where the experts lie
  }
  if (AideThread() < 32) RouteAndList(p, memory);
}

// The experts that have pairs, in rising order, by one warp.
__device__ __forceinline__ void ListExperts(const FewProblem& p, FewShared* memory) {
  constexpr int kBatch = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int listed = 0;
#pragma unroll 1
  for (int base = 0; base < p.num_experts; base += 32 * kBatch) {
    int begin[kBatch], end[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int e = base + i * 32 + lane;
      begin[i] = e < p.num_experts ? __ldcg(p.expert_begin + e) : 0;
      end[i] = e < p.num_experts ? __ldcg(p.expert_begin + e + 1) : 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t some = __ballot_sync(kAllLanes, end[i] > begin[i]);
      const int at = listed + __popc(some & ((1u << lane) - 1));
      if (end[i] > begin[i] && at < kFewPairs) {
        FewExpert& expert = memory->experts[at];
        expert.id = base + i * 32 + lane;
        expert.first = begin[i];
        expert.count = min(end[i] - begin[i], kFewTokens);
      }
      listed += __popc(some);
    }
  }
  listed = min(listed, kFewPairs);
  __syncwarp();
  static_assert(kFewPairs <= 32);
  if (lane < listed) {
    FewExpert& expert = memory->experts[lane];
#pragma unroll
    for (int phase = 0; phase < 2; ++phase) {
      expert.w[phase] = p.data[phase][expert.id];
      expert.scales[phase] = p.scales[phase] != nullptr ? p.scales[phase][expert.id] : nullptr;
    }
#pragma unroll
    for (int c = 0; c < kFewTokens; ++c) {
      const int pair = expert.first + min(c, expert.count - 1);
      expert.tokens[c] = __ldcg(p.token_rows + pair);
      expert.weights[c] = __ldcg(p.pair_weights + pair);
    }
  }
  if (lane == 0) memory->num_experts = listed;
  ArriveOnce(SharedAddress(&memory->listed));
}

// Until every block has arrived at that counter.
__device__ __forceinline__ void WaitForBlocks(const FewProblem& p, int counter) {
  if (AideThread() == 0) {
    const int64_t since = clock64();
    uint32_t arrived = 0;
    while (true) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(arrived) : "l"(p.counters + counter) : "memory");
      if (arrived == gridDim.x) break;
      TrapAfterSeconds(since);  // a block that never came
    }
  }
  SyncAides();
}

__device__ __forceinline__ void CopyHidden(const uint16_t* rows, int num_rows, int k, uint32_t to, uint32_t barrier) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int row = AideThread() / 32; row < num_rows; row += kFewAideThreads / 32) {
#pragma unroll 4
    for (int i = lane * 8; i < k; i += 32 * 8) CopyAsync16(to + row * FewXStride(k) + i * 2, rows + int64_t{row} * k + i, true);
  }
  ArriveWhenCopied(barrier);
}

__device__ __forceinline__ void Aid(const FewProblem& p, FewShared* memory, unsigned char* shared) {
  if (!p.routes) {
    WaitForEarlierKernels();
    if (AideThread() < 32) ListExperts(p, memory);
  }
  if (p.last_phase == 0) return;
  const bool meets = p.first_phase == 0;
  if (p.shared[1].w != nullptr) {
    if (meets) WaitForBlocks(p, kFewSharedCounter);
    CopyHidden(p.shared_h, p.num_tokens, p.shared[1].k, SharedAddress(shared + p.layout.shared_h), SharedAddress(&memory->hidden[0]));
  }
  if (meets) {
    WaitForBlocks(p, kFewPairsCounter);
    WaitForPhase(SharedAddress(&memory->x_free), 0);
  }
  CopyHidden(p.h, p.num_pairs, p.each[1].k, SharedAddress(shared + p.layout.x), SharedAddress(&memory->hidden[1]));
  if (!meets || AideThread() >= 32) return;
  // Nobody reads the counters and the words any more when all blocks are here: they are zero again behind the last one.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool last = false;
  if (lane == 0) last = atomicAdd(p.counters + kFewLeftCounter, 1u) == gridDim.x - 1;
  if (!__any_sync(kAllLanes, last)) return;
  if (lane == 0) p.counters[kFewSharedCounter] = p.counters[kFewPairsCounter] = p.counters[kFewLeftCounter] = 0;
#pragma unroll 1
  for (int i = lane; p.routes && i < p.num_experts; i += 32) p.counters[kFewLogitsAt + i] = 0;
}

}  // namespace
}  // namespace cachalot
