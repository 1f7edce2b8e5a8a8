// MoeSort: a block an expert walks over all pairs in their order and gathers its own, so that the sort is stable and the
// same on every run. Few pairs: the block also counts where its expert begins; many: one block counts for all first.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/moe_route/moe_route.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;
constexpr int kCountThreads = 1024;
constexpr int kMaxExperts = 8192;
constexpr int64_t kFewPairs = 8192;

// The expert of pair i; -1 when the pair is left out.
__device__ __forceinline__ int ExpertOf(const MoeSortParams& p, const int32_t* row_slots, int64_t i) {
  if (row_slots != nullptr && row_slots[i / p.top_k] < 0) return -1;
  const int expert = p.expert_ids[i];
  return expert >= 0 && expert < p.num_experts ? expert : -1;
}

// expert_begin by a histogram in shared memory [num_experts + 1] and a scan.
__global__ void CountKernel(MoeSortParams p, const int32_t* row_slots) {
  extern __shared__ int counts[];
  __shared__ int warp_sums[32];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t num_pairs = p.num_tokens * p.top_k;
  for (int e = threadIdx.x; e < p.num_experts; e += kCountThreads) counts[e] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < num_pairs; i += kCountThreads) {
    const int expert = ExpertOf(p, row_slots, i);
    if (expert >= 0) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  int before = 0;  // pairs of the experts of earlier rounds
  for (int base = 0; base < p.num_experts; base += kCountThreads) {
    const int e = base + static_cast<int>(threadIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int mine = e < p.num_experts ? counts[e] : 0;
    int upto = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int lower = __shfl_up_sync(kAllLanes, upto, offset);
      if (lane >= offset) upto += lower;
    }
    if (lane == 31) warp_sums[warp] = upto;
    __syncthreads();
    int earlier = 0, total = 0;
    for (int w = 0; w < 32; ++w) {
      if (w < warp) earlier += warp_sums[w];
      total += warp_sums[w];
    }
    if (e < p.num_experts) p.expert_begin[e] = before + earlier + upto - mine;
    before += total;
    __syncthreads();
  }
  if (threadIdx.x == 0) p.expert_begin[p.num_experts] = before;
}

// Which of its token's pairs pair i is, in rising expert order, the left-out ones last.
__device__ __forceinline__ int64_t RankOf(const MoeSortParams& p, const int32_t* row_slots, int64_t i, int expert) {
  const int64_t first = i / p.top_k * p.top_k;
  int before = 0;
  for (int64_t j = first; j < first + p.top_k; ++j) {
    const int other = ExpertOf(p, row_slots, j);
    const bool earlier = j < i;
    if (expert < 0) {
      before += other >= 0 || earlier;
    } else {
      before += other >= 0 && (other < expert || (other == expert && earlier));
    }
  }
  return first + before;
}

template <bool kCount>
__global__ void GatherKernel(MoeSortParams p, const int32_t* row_slots) {
  __shared__ int scratch[2][32];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int mine = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t num_pairs = p.num_tokens * p.top_k;
  if (mine == 0 && p.token_pairs != nullptr) {  // pairs without an expert have no block of their own
    for (int64_t i = threadIdx.x; i < num_pairs; i += kThreads) {
      if (ExpertOf(p, row_slots, i) < 0) p.token_pairs[RankOf(p, row_slots, i, -1)] = -1;
    }
  }
  int begin;
  if constexpr (kCount) {
    int lower = 0, own = 0;
    for (int64_t i = threadIdx.x; i < num_pairs; i += kThreads) {
      const int expert = ExpertOf(p, row_slots, i);
      lower += expert >= 0 && expert < mine;
      own += expert == mine;
    }
    begin = BlockSum(lower, scratch[0]);
    own = BlockSum(own, scratch[1]);
    if (threadIdx.x == 0) {
      p.expert_begin[mine] = begin;
      if (p.expert_counts != nullptr) p.expert_counts[mine] += own;
      if (mine == p.num_experts - 1) p.expert_begin[p.num_experts] = begin + own;
    }
    if (own == 0) return;  // the whole block
  } else {
    begin = p.expert_begin[mine];
    if (threadIdx.x == 0 && p.expert_counts != nullptr) p.expert_counts[mine] += p.expert_begin[mine + 1] - begin;
    if (p.expert_begin[mine + 1] == begin) return;
  }
  for (int64_t base = 0; base < num_pairs; base += kThreads) {
    const int64_t i = base + threadIdx.x;
    const bool hit = i < num_pairs && ExpertOf(p, row_slots, i) == mine;
    const uint32_t hits = __ballot_sync(kAllLanes, hit);
    __syncthreads();  // the last round's counts have been read
    if (lane == 0) scratch[0][warp] = __popc(hits);
    __syncthreads();
    int before = 0, total = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += scratch[0][w];
      total += scratch[0][w];
    }
    if (hit) {
      const int at = begin + before + __popc(hits & ((1u << lane) - 1));
      p.token_rows[at] = static_cast<int32_t>(i / p.top_k);
      p.pair_weights[at] = p.weights[i];
      if (p.token_pairs != nullptr) p.token_pairs[RankOf(p, row_slots, i, mine)] = at;
    }
    begin += total;
  }
}

}  // namespace

CudaStatus CudaMoeSort(const CudaExec& exec, const MoeSortParams& params, const int32_t* row_slots) {
  const int64_t num_pairs = params.num_tokens * params.top_k;
  if (params.num_experts <= 0 || params.num_experts > kMaxExperts || params.top_k <= 0 || num_pairs >= int64_t{1} << 31) {
    return CudaFail(CudaFault::kUnsupported, "moe_sort: %lld tokens of top %d of %d experts (at most %d)",
                    static_cast<long long>(params.num_tokens), params.top_k, params.num_experts, kMaxExperts);
  }
  if (num_pairs <= kFewPairs) {
    LaunchOverlapped(&GatherKernel<true>, params.num_experts, kThreads, 0, exec.stream, params, row_slots);
  } else {
    LaunchOverlapped(&CountKernel, 1, kCountThreads, params.num_experts * int64_t{sizeof(int)}, exec.stream, params, row_slots);
    LaunchOverlapped(&GatherKernel<false>, params.num_experts, kThreads, 0, exec.stream, params, row_slots);
  }
  return CudaLaunched("moe_sort of %lld tokens, top %d of %d experts", static_cast<long long>(params.num_tokens),
                      params.top_k, params.num_experts);
}

}  // namespace cachalot
