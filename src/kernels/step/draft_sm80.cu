// draft_begin, draft_next, draft_feed: one block each, as step_begin: what they move is a few kilobytes at most. Only where
// draft_next picks the tokens itself, many blocks read the logits, and the one that is done last goes on.
#include <algorithm>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/global_clock.cuh"
#include "kernels/sample/sample_select.cuh"
#include "kernels/step/draft.h"
#include "kernels/step/draft_begin.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) BeginKernel(CudaDraftBeginParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  BeginDrafts(p);
}

__device__ __forceinline__ void NextSpan(const CudaDraftNextParams& p, int s, int picked) {
  const int wanted = NumWanted(p.spans, s);
  const int slot = wanted > 0 ? p.spans.planned[s].slot : 0;
  const int token = wanted > p.pass ? max(0, picked) : 0;
  if (wanted > p.pass) {
    p.state.tokens[slot * kMaxCudaDrafts + p.pass] = token;
    p.step_tokens[p.spans.planned[s].q_begin + 1 + p.pass] = token;
  }
  if (s == 0 && p.draft_ns != nullptr) *p.draft_ns = static_cast<int64_t>(GlobalNs() - *p.clock);
  const bool goes_on = wanted > p.pass + 1;
  const int kv_len = goes_on ? p.state.fed[slot] + p.pass + 1 : 0;
  p.batch_spans[s] = {slot, s, goes_on ? 1 : 0, kv_len};
  p.token_ids[s] = token;
  p.picks[s] = goes_on ? 0 : -1;
  WriteRow(p.rows, s, goes_on, slot, kv_len - 1, s);
}

__global__ void __launch_bounds__(kThreads) NextKernel(CudaDraftNextParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  for (int s = static_cast<int>(threadIdx.x); s < p.spans.num_spans; s += kThreads) NextSpan(p, s, p.picked[s]);
}

// Block (part, s) finds the best of a part of span s's logits: larger keys are larger logits, then lower ids. 0: no token is picked.
__global__ void __launch_bounds__(kThreads) PickKernel(CudaDraftNextParams p, int part_len, uint32_t* arrivals) {
  __shared__ unsigned long long of_warps[kThreads / 32];
  __shared__ bool is_last;
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int row = static_cast<int>(blockIdx.y), parts = static_cast<int>(gridDim.x);
  const auto best_of_warp = [](unsigned long long best) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, offset));
    return best;
  };
  unsigned long long best = 0;
  if (p.picks[row] >= 0) {
    const float* logits = p.logits + row * p.logits_stride;
    const int begin = static_cast<int>(blockIdx.x) * part_len, end = min(begin + part_len, p.vocab);
    constexpr int kBatch = 4;  // loads under way
    for (int base = begin + tid; base < end; base += kBatch * kThreads) {
      float logit[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) logit[j] = base + j * kThreads < end ? logits[base + j * kThreads] : 0.0f;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = base + j * kThreads;
        if (i < end) best = max(best, static_cast<unsigned long long>(LogitKey(logit[j])) << 32 | static_cast<uint32_t>(~i));
      }
    }
  }
  best = best_of_warp(best);
  if (lane == 0) of_warps[warp] = best;
  __syncthreads();
  if (tid == 0) {
    for (int w = 1; w < kThreads / 32; ++w) best = max(best, of_warps[w]);
    p.best[row * kDraftPickParts + static_cast<int>(blockIdx.x)] = best;
    __threadfence();
    is_last = atomicAdd(arrivals, 1u) == gridDim.x * gridDim.y - 1;
    if (is_last) *arrivals = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int s = warp; s < p.spans.num_spans; s += kThreads / 32) {
    const unsigned long long found = best_of_warp(lane < parts ? __ldcg(p.best + s * kDraftPickParts + lane) : 0);
    if (lane == 0) NextSpan(p, s, found != 0 ? static_cast<int>(~static_cast<uint32_t>(found)) : -1);
  }
}

__global__ void __launch_bounds__(kThreads) FeedKernel(CudaDraftFeedParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  for (int row = static_cast<int>(threadIdx.x); row < p.num_rows; row += kThreads) p.batch_tokens[row] = 0;
  __syncthreads();
  for (int s = 0; s < p.num_spans; ++s) {
    const SeqSpan span = p.spans[s];
    const bool samples = span.q_len > 0 && p.first_wanted[s] >= 0;
    const int len = samples ? span.q_len - 1 - p.span_drafts[s] : span.q_len;
    for (int i = static_cast<int>(threadIdx.x); i < len; i += kThreads) {
      const int row = span.q_begin + i;
      p.batch_tokens[row] = i + 1 < span.q_len ? p.token_ids[row + 1] : max(0, p.next_tokens[s]);
    }
    if (threadIdx.x != 0) continue;
    int fed = len > 0 ? p.state.fed[span.slot] : 0;
    if (fed + len > p.state.row_tokens) fed = 0;
    p.batch_spans[s] = {span.slot, span.q_begin, len, fed + len};
    if (len > 0) p.state.fed[span.slot] = fed + len;
  }
}

}  // namespace

CudaStatus CudaDraftBegin(const CudaExec& exec, const CudaDraftBeginParams& params) {
  if (params.count == 0) return nullptr;
  LaunchOverlapped(&BeginKernel, 1, kThreads, 0, exec.stream, params);
  return CudaLaunched("draft_begin of %d spans, %d rows each", params.count, params.stride);
}

CudaStatus CudaDraftNext(const CudaExec& exec, const CudaDraftNextParams& params) {
  if (params.pass >= kMaxCudaDrafts) {
    return CudaFail(CudaFault::kInvalid, "draft_next: pass %d, at most %d drafts", params.pass, kMaxCudaDrafts);
  }
  if (params.picked != nullptr) {
    LaunchOverlapped(&NextKernel, 1, kThreads, 0, exec.stream, params);
  } else if (params.spans.num_spans > 0) {
    if (exec.counters == nullptr || params.vocab <= 0) return CudaFail(CudaFault::kInvalid, "draft_next: a vocabulary of %d, or no counters", params.vocab);
    // A thousand tokens a block at least, and blocks for a few waves at most.
    static_assert(kDraftPickParts <= 32);  // the lanes of a warp
    const int most = std::clamp(1024 / params.spans.num_spans, 1, kDraftPickParts);
    const int part_len = std::max(1024, (params.vocab + most - 1) / most);
    const int parts = (params.vocab + part_len - 1) / part_len;
    LaunchOverlapped(&PickKernel, dim3(static_cast<unsigned>(parts), static_cast<unsigned>(params.spans.num_spans)), kThreads, 0, exec.stream, params,
                     part_len, exec.counters);
  }
  return CudaLaunched("draft_next of %d spans, pass %d", params.spans.num_spans, params.pass);
}

CudaStatus CudaDraftFeed(const CudaExec& exec, const CudaDraftFeedParams& params) {
  LaunchOverlapped(&FeedKernel, 1, kThreads, 0, exec.stream, params);
  return CudaLaunched("draft_feed of %d spans, %d rows", params.num_spans, params.num_rows);
}

}  // namespace cachalot
