// draft_begin, draft_next, draft_feed: one block each, as step_begin: what they move is a few kilobytes at most.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/global_clock.cuh"
#include "kernels/step/draft.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

// Drafts that span s wants; 0 for padding and for stopped slots.
__device__ __forceinline__ int NumWanted(const CudaDraftSpans& spans, int s) {
  if (s >= *spans.num_planned || spans.stopped[spans.planned[s].slot] != 0) return 0;
  return spans.drafts[s];
}

__device__ __forceinline__ void WriteRow(const CudaDraftRows& rows, int row, bool is_there, int slot, int position, int span) {
  rows.slots[row] = is_there ? slot : -1;
  rows.positions[row] = is_there ? position : -1;
  rows.spans[row] = is_there ? span : -1;
}

__global__ void __launch_bounds__(kThreads) BeginKernel(CudaDraftBeginParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  if (threadIdx.x == 0 && p.clock != nullptr) *p.clock = GlobalNs();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = warp; i < p.count; i += kThreads / 32) {
    const int s = p.begin + i;
    const int wanted = NumWanted(p.spans, s);
    const int slot = wanted > 0 ? p.spans.planned[s].slot : 0;
    const int waiting = wanted > 0 ? p.state.waiting_len[slot] : 0;
    const int len = min(waiting, p.stride);
    const int first = p.state.waiting_begin[slot] + waiting - len;
    int fed = waiting > len ? 0 : p.state.fed[slot];
    if (fed + len + wanted > p.state.row_tokens) fed = 0;
    __syncwarp();
    for (int j = lane; j < p.stride; j += 32) {
      const int place = slot * kMaxCudaWaiting + (first + j) % kMaxCudaWaiting;
      p.token_ids[i * p.stride + j] = j < len ? p.state.waiting_tokens[place] : 0;
      p.from[i * p.stride + j] = j < len ? place : 0;
      WriteRow(p.rows, i * p.stride + j, j < len, slot, fed + j, i);
    }
    if (lane != 0) continue;
    p.batch_spans[i] = {slot, i * p.stride, len, fed + len};
    p.last_rows[i] = i * p.stride + max(0, len - 1);
    p.picks[s] = len > 0 ? 0 : -1;
    if (len == 0) continue;
    p.state.fed[slot] = fed + len;
    p.state.waiting_len[slot] = 0;
  }
}

__global__ void __launch_bounds__(kThreads) NextKernel(CudaDraftNextParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  for (int s = static_cast<int>(threadIdx.x); s < p.spans.num_spans; s += kThreads) {
    const int wanted = NumWanted(p.spans, s);
    const int slot = wanted > 0 ? p.spans.planned[s].slot : 0;
    const int token = wanted > p.pass ? max(0, p.picked[s]) : 0;
    if (wanted > p.pass) p.state.tokens[slot * kMaxCudaDrafts + p.pass] = token;
    const bool goes_on = wanted > p.pass + 1;
    p.batch_spans[s] = {slot, s, goes_on ? 1 : 0, goes_on ? p.state.fed[slot] + p.pass + 1 : 0};
    p.token_ids[s] = token;
    p.picks[s] = goes_on ? 0 : -1;
    WriteRow(p.rows, s, goes_on, slot, p.batch_spans[s].kv_len - 1, s);
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
  LaunchOverlapped(&NextKernel, 1, kThreads, 0, exec.stream, params);
  return CudaLaunched("draft_next of %d spans, pass %d", params.spans.num_spans, params.pass);
}

CudaStatus CudaDraftFeed(const CudaExec& exec, const CudaDraftFeedParams& params) {
  LaunchOverlapped(&FeedKernel, 1, kThreads, 0, exec.stream, params);
  return CudaLaunched("draft_feed of %d spans, %d rows", params.num_spans, params.num_rows);
}

}  // namespace cachalot
