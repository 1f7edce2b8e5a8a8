// The router of a few tokens in one launch. A block makes the logits of two experts, as the F32 matmul does; the block that is
// done last routes and sorts.
// Bound: the router's bytes; behind them the choice, which one block makes. Loops that run once or twice are not unrolled: what is
// executed once costs more to fetch than to do.
#include <climits>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "kernels/moe_route/moe_gate_cuda.h"
#include "kernels/moe_route/moe_route_token.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 2;      // of the router, of a block
constexpr int kMaxTokens = 8;
constexpr int kMaxPairs = 128;

// The rows' inverse RMS, for every thread.
template <int kTokens>
__device__ void FindInverses(const CudaMoeGateParams& p, int tokens, float (*squares)[kNormWarps], float (&inverse)[kTokens]) {
  const int lane = threadIdx.x % 32;
  const auto k = static_cast<int>(p.router.k);
  constexpr int kBatch = 8, kParts = kNormWarps / kWarps;  // of a row, that a warp sums side by side
  static_assert(kNormWarps % kWarps == 0);
#pragma unroll 1
  for (int token = 0; token < tokens; ++token) {
    const auto* row = reinterpret_cast<const float4*>(p.x + token * p.x_stride);
    float sum[kParts] = {};
#pragma unroll 1
    for (int base = static_cast<int>(threadIdx.x); base < k / 4; base += kBatch * kNormWarps * 32) {
      float4 v[kBatch][kParts];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const int at = base + (j * kNormWarps + part * kWarps) * 32;
          if (at < k / 4) v[j][part] = row[at];
        }
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          if (base + (j * kNormWarps + part * kWarps) * 32 < k / 4) sum[part] += SquareSum(v[j][part]);
        }
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float total = WarpSum(sum[part]);
      if (lane == 0) squares[token][threadIdx.x / 32 + part * kWarps] = total;
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kTokens; ++c) {
    const float part = lane < kNormWarps ? squares[min(c, tokens - 1)][lane] : 0.0f;
    inverse[c] = InverseRms(WarpSum(part), k, p.norm.norm_eps);
  }
}

// Logits of this block's rows of the router. More tokens than there are: the last one again.
template <int kTokens>
__device__ void MakeLogits(const CudaMoeGateParams& p, float (*squares)[kNormWarps], float (*sums)[kRows * kMaxTokens]) {
  const int tid = threadIdx.x, tokens = static_cast<int>(p.sort.num_tokens), num_experts = p.sort.num_experts;
  const auto k = static_cast<int>(p.router.k);
  const int e0 = static_cast<int>(blockIdx.x) * kRows, e1 = min(e0 + 1, num_experts - 1);
  const auto* router = reinterpret_cast<const float*>(p.router.data);
  const float* w0 = router + int64_t{e0} * k;
  const float* w1 = router + int64_t{e1} * k;
#pragma unroll 1
  for (int line = tid * 32; line < 2 * k; line += kThreads * 32) {  // 128 bytes each
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(line < k ? w0 + line : w1 + (line - k)));
  }
  const bool norm = p.norm.norm_weight != nullptr;
  if (norm) PrefetchNormWeight(p.norm.norm_weight, k);
  WaitForEarlierKernels();
  float inverse[kTokens];
  if (norm) FindInverses<kTokens>(p, tokens, squares, inverse);
  const float* x[kTokens];
#pragma unroll
  for (int c = 0; c < kTokens; ++c) x[c] = p.x + min(c, tokens - 1) * p.x_stride;
  float sum[kRows][kTokens] = {};
  constexpr int kBatch = kTokens > 4 ? 2 : kTokens > 2 ? 4 : 7;  // loads under way: latency is what this waits for
#pragma unroll 1
  for (int base = tid * 4; base < k; base += kBatch * kThreads * 4) {
    float4 a[kBatch], b[kBatch], weight[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kThreads * 4;
      if (i >= k) continue;
      a[j] = *reinterpret_cast<const float4*>(w0 + i), b[j] = *reinterpret_cast<const float4*>(w1 + i);
      if (norm) weight[j] = *reinterpret_cast<const float4*>(p.norm.norm_weight + i);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kThreads * 4;
      if (i >= k) continue;
#pragma unroll
      for (int c = 0; c < kTokens; ++c) {
        float4 v = *reinterpret_cast<const float4*>(x[c] + i);
        if (norm) v = ScaledByNorm(v, inverse[c], weight[j]);
        sum[0][c] = fmaf(a[j].w, v.w, fmaf(a[j].z, v.z, fmaf(a[j].y, v.y, fmaf(a[j].x, v.x, sum[0][c]))));
        sum[1][c] = fmaf(b[j].w, v.w, fmaf(b[j].z, v.z, fmaf(b[j].y, v.y, fmaf(b[j].x, v.x, sum[1][c]))));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kTokens; ++c) {
      const float total = WarpSum(sum[r][c]);
      if (tid % 32 == 0) sums[tid / 32][r * kMaxTokens + c] = total;
    }
  }
  __syncthreads();
  if (tid >= kRows * kMaxTokens) return;
  const int r = tid / kMaxTokens, c = tid % kMaxTokens;
  if (c >= tokens || e0 + r >= num_experts) return;
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp][tid];
  p.logits[int64_t{c} * num_experts + e0 + r] = total;
}

// MoeSort of at most kMaxPairs pairs by one block; `experts`, `weights` [kMaxPairs]: chosen for each; has_slot: this thread's pair's row.
__device__ void SortPairs(const MoeSortParams& p, bool has_slot, int* experts, const float* weights) {
  const int num_pairs = static_cast<int>(p.num_tokens) * p.top_k, i = threadIdx.x;
  int mine = INT_MAX;  // left out: behind all others
  if (i < num_pairs) {  // each its own
    const int expert = experts[i];
    if (has_slot && expert >= 0 && expert < p.num_experts) mine = expert;
    experts[i] = mine;
  }
  __syncthreads();
  if (i < num_pairs) {
    const int first = i / p.top_k * p.top_k;
    int at = 0, rank = first;
#pragma unroll 2
    for (int j = 0; j < num_pairs; ++j) {
      const bool before = experts[j] < mine || (experts[j] == mine && j < i);
      at += before;
      rank += before && j >= first && j < first + p.top_k;
    }
    if (mine != INT_MAX) {
      p.token_rows[at] = i / p.top_k;
      p.pair_weights[at] = weights[i];
    }
    if (p.token_pairs != nullptr) p.token_pairs[rank] = mine != INT_MAX ? at : -1;
  }
#pragma unroll 1
  for (int e = threadIdx.x; e <= p.num_experts; e += kThreads) {
    int before = 0, own = 0;
#pragma unroll 2
    for (int j = 0; j < num_pairs; ++j) {
      before += experts[j] < e;
      own += experts[j] == e;
    }
    p.expert_begin[e] = before;
    if (own != 0 && e < p.num_experts && p.expert_counts != nullptr) atomicAdd(p.expert_counts + e, own);  // nobody waits for the sum
  }
}

template <int kTokens>
__global__ __launch_bounds__(kThreads) void MoeGateKernel(const __grid_constant__ CudaMoeGateParams p, const int32_t* row_slots,
                                                          uint32_t* arrivals, int floats_per_warp) {
  extern __shared__ float shared[];
  __shared__ float squares[kMaxTokens][kNormWarps], sums[kWarps][kRows * kMaxTokens];
  __shared__ int experts[kMaxPairs];
  __shared__ float weights[kMaxPairs];
  __shared__ bool is_last;
  LetNextKernelStart();
  MakeLogits<kTokens>(p, squares, sums);
  __threadfence();  // this thread's logit is there for every block
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(arrivals, 1u) == gridDim.x - 1;
    if (is_last) *arrivals = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const int row = static_cast<int>(threadIdx.x) / p.sort.top_k;  // on its way while others route
  const bool has_slot = row_slots == nullptr || (row < p.sort.num_tokens && __ldcg(row_slots + row) >= 0);
#pragma unroll 1
  for (int64_t token = threadIdx.x / 32; token < p.route.num_tokens; token += kWarps) {
    const int64_t first = token * p.route.top_k;
    RouteToken(p.route, token, shared + threadIdx.x / 32 * floats_per_warp, experts + first, weights + first);
  }
  __syncthreads();
  SortPairs(p.sort, has_slot, experts, weights);
}

}  // namespace

bool CudaMoeGateFuses(const CudaExec& exec, const CudaMoeGateParams& p) {
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool norm = p.norm.norm_weight != nullptr;
  const uint32_t needed = CudaTune::kFuseGate | (norm ? CudaTune::kFuseNorm : 0u);
  return (CurrentTune().fuse & needed) == needed && exec.counters != nullptr && p.router.dtype == DType::kF32 &&
         p.sort.num_tokens > 0 && p.sort.num_tokens <= kMaxTokens && p.sort.num_tokens * p.sort.top_k <= kMaxPairs &&
         p.router.k % 4 == 0 && p.router.k <= INT_MAX / 2 && p.x_stride % 4 == 0 && whole(p.x) && IsRoutable(p.route) &&
         (!norm || (p.router.k >= kNormLeastDim && whole(p.norm.norm_weight))) &&
         kWarps * RouteFloats(p.route) * static_cast<int64_t>(sizeof(float)) <= kRouteMaxShared - (4 << 10);
}

CudaStatus CudaMoeGate(const CudaExec& exec, const CudaMoeGateParams& params, const int32_t* row_slots) {
  if (!CudaMoeGateFuses(exec, params)) {
    return CudaFail(CudaFault::kInvalid, "moe_gate: %lld tokens of top %d of %d experts, k %lld are not one launch",
                    static_cast<long long>(params.sort.num_tokens), params.sort.top_k, params.sort.num_experts,
                    static_cast<long long>(params.router.k));
  }
  const auto floats = static_cast<int>(RouteFloats(params.route));
  const int64_t tokens = params.sort.num_tokens;
  auto* kernel = tokens == 1 ? &MoeGateKernel<1> : tokens == 2 ? &MoeGateKernel<2> : tokens <= 4 ? &MoeGateKernel<4> : &MoeGateKernel<8>;
  LaunchOverlapped(kernel, (params.sort.num_experts + kRows - 1) / kRows, kThreads, int64_t{kWarps} * floats * 4, exec.stream,
                   params, row_slots, exec.counters, floats);
  return CudaLaunched("moe_gate of %lld tokens, top %d of %d experts, k %lld", static_cast<long long>(tokens),
                      params.sort.top_k, params.sort.num_experts, static_cast<long long>(params.router.k));
}

}  // namespace cachalot
