// step_begin and step_end: one block each, since they move a few kilobytes and what counts is one launch instead of many; beside
// step_begin's draft_begin's.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/global_clock.cuh"
#include "kernels/sample/sample_random.cuh"
#include "kernels/step/draft_begin.cuh"
#include "kernels/step/step.h"

namespace cachalot {
namespace {

constexpr int kThreads = 512;

__device__ void EnterSlot(const CudaSlotState& state, const CudaSlotSetup& setup) {
  const int slot = setup.slot;
  state.last_tokens[slot] = setup.last_token;
  state.stopped[slot] = 0;
  state.sampling[slot] = setup.sampling;
  state.num_stops[slot] = setup.num_stops;
  for (int i = 0; i < setup.num_stops; ++i) state.stops[slot * kMaxCudaStopIds + i] = setup.stops[i];
  if (state.draft.fed != nullptr) state.draft.fed[slot] = state.draft.waiting_len[slot] = 0;
}

__global__ void __launch_bounds__(kThreads) BeginKernel(CudaStepBeginParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  if (blockIdx.x > 0) {
    BeginDrafts(p.drafts);
    return;
  }
  const CudaStepHeader header = *p.header;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < header.num_writes; i += kThreads) {
    const CudaBlockWrite write = p.writes[i];
    p.tables[write.group][write.slot * p.table_strides[write.group] + write.index] = write.block_id;
  }
  for (int i = thread; i < p.num_cleared; i += kThreads) p.cleared[i] = 0;
  for (int i = thread; i < header.num_setups; i += kThreads) EnterSlot(p.state, p.setups[i]);
  for (int row = header.num_rows + thread; row < p.max_rows; row += kThreads) {
    p.token_ids[row] = 0;
    p.row_slots[row] = p.row_positions[row] = p.row_spans[row] = -1;
  }
  __syncthreads();
  // A warp a span: short ones (decode) are many, long ones few.
  const int warp = thread / 32, lane = thread % 32;
  for (int s = warp; s < p.max_spans; s += kThreads / 32) {
    SeqSpan span = {};
    if (s < header.num_spans) span = p.planned[s];
    const bool stopped = span.q_len > 0 && p.state.stopped[span.slot] != 0;
    if (span.q_len > 0 && p.planned_tokens[span.q_begin] < 0) span.kv_len = p.state.lengths[span.slot] + span.q_len;
    for (int i = lane; i < span.q_len; i += 32) {
      const int row = span.q_begin + i;
      int token = p.planned_tokens[row];
      if (token < 0) token = i == 0 ? p.state.last_tokens[span.slot] : p.state.draft.tokens[span.slot * kMaxCudaDrafts + i - 1];
      p.token_ids[row] = stopped ? 0 : token;
      p.row_slots[row] = stopped ? -1 : span.slot;
      p.row_positions[row] = stopped ? -1 : span.kv_len - span.q_len + i;
      p.row_spans[row] = stopped ? -1 : s;
    }
    if (stopped) span.q_len = 0;
    if (lane == 0) {
      p.spans[s] = span;
      p.span_drafts[s] = span.q_len > 0 ? p.planned_drafts[s] : 0;
    }
  }
  __syncthreads();
  for (int i = thread; i < p.max_wanted; i += kThreads) {
    const bool padding = i >= header.num_wanted;
    const int wanted = padding ? -1 : p.wanted[i];
    const int row = padding ? -1 : wanted < 0 ? ~wanted : wanted;
    p.wanted_rows[i] = row;
    p.wanted_slots[i] = wanted < 0 ? -1 : p.row_slots[row];
    p.wanted_positions[i] = wanted < 0 ? 0 : p.row_positions[row] + 1;
    const int s = wanted < 0 ? -1 : p.row_spans[row];
    p.wanted_in_front[i] = s < 0 ? 0 : max(0, row + 1 - (p.spans[s].q_begin + p.spans[s].q_len - p.span_drafts[s]));
  }
}

// A state waits for the MTP layer, with the token behind it. Returns its place.
__device__ int Wait(const CudaDraftState& state, int slot, int token) {
  int begin = state.waiting_begin[slot], len = state.waiting_len[slot];
  if (len == kMaxCudaWaiting) {
    begin = (begin + 1) % kMaxCudaWaiting;
    --len;
    state.fed[slot] = 0;
  }
  const int place = slot * kMaxCudaWaiting + (begin + len) % kMaxCudaWaiting;
  state.waiting_begin[slot] = begin;
  state.waiting_len[slot] = len + 1;
  state.waiting_tokens[place] = token;
  return place;
}

__device__ bool IsStop(const CudaSlotState& state, int slot, int token) {
  for (int j = 0; j < state.num_stops[slot]; ++j) {
    if (state.stops[slot * kMaxCudaStopIds + j] == token) return true;
  }
  return false;
}

// Of a span's draws, one at each position, those count that stand behind nothing but right drafts.
__device__ void EndSpan(const CudaStepEndParams& p, const SeqSpan& span, int num_drafts, int first) {
  const int slot = span.slot;
  const int row = span.q_begin + span.q_len - 1 - num_drafts;
  const int position = span.kv_len - num_drafts;  // where the first draw stands
  int last = 0, token = -1;
  for (;; ++last) {
    token = p.tokens[first + last];
    bool right = false;
    if (last < num_drafts) {
      const int draft = p.token_ids[row + last + 1];
      right = p.accept_below >= 0 ? static_cast<int64_t>(UniformBits(p.accept_seed + slot, position + last)) < p.accept_below
                                  : token == draft;
      if (right) p.tokens[first + last] = token = draft;
    }
    if (p.counts != nullptr && p.state.sampling[slot].counts_row >= 0) {
      p.counts[int64_t{p.state.sampling[slot].counts_row} * p.vocab + token] += 1;
    }
    if (p.waiting_rows != nullptr) p.waiting_rows[row + last] = Wait(p.state.draft, slot, token);
    if (IsStop(p.state, slot, token)) p.state.stopped[slot] = 1;
    if (!right) break;
  }
  for (int i = last + 1; i <= num_drafts; ++i) p.tokens[first + i] = -1;
  p.state.last_tokens[slot] = token;
  p.state.lengths[slot] = span.kv_len - (num_drafts - last);
}

__global__ void __launch_bounds__(kThreads) EndKernel(CudaStepEndParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  if (p.waiting_rows != nullptr) {
    for (int row = static_cast<int>(threadIdx.x); row < p.num_rows; row += kThreads) p.waiting_rows[row] = -1;
    __syncthreads();
  }
  for (int s = static_cast<int>(threadIdx.x); s < p.num_spans; s += kThreads) {
    const SeqSpan span = p.spans[s];
    if (span.q_len == 0) {
      p.computed[s] = -1;
      continue;
    }
    if (p.first_wanted[s] >= 0) EndSpan(p, span, p.span_drafts[s], p.first_wanted[s]);
    else p.state.lengths[span.slot] = span.kv_len;
    p.computed[s] = p.state.lengths[span.slot];
  }
}

}  // namespace

CudaStatus CudaStepBegin(const CudaExec& exec, const CudaStepBeginParams& params) {
  if (params.num_groups > kMaxCudaKvGroups) {
    return CudaFail(CudaFault::kUnsupported, "step_begin: %d KV groups (at most %d)", params.num_groups, kMaxCudaKvGroups);
  }
  LaunchOverlapped(&BeginKernel, params.drafts.count > 0 ? 2 : 1, kThreads, 0, exec.stream, params);
  return CudaLaunched("step_begin of %d rows, %d spans", params.max_rows, params.max_spans);
}

CudaStatus CudaStepEnd(const CudaExec& exec, const CudaStepEndParams& params) {
  LaunchOverlapped(&EndKernel, 1, kThreads, 0, exec.stream, params);
  return CudaLaunched("step_end of %d spans, %d rows", params.num_spans, params.num_rows);
}

}  // namespace cachalot
