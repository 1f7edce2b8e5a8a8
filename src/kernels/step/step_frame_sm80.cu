// step_begin and step_end: one block each, since they move a few kilobytes and what counts is one launch instead of many.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
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
}

__global__ void __launch_bounds__(kThreads) BeginKernel(CudaStepBeginParams p) {
  const CudaStepHeader header = *p.header;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < header.num_writes; i += kThreads) {
    const CudaBlockWrite write = p.writes[i];
    p.tables[write.group][write.slot * p.table_strides[write.group] + write.index] = write.block_id;
  }
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
    for (int i = lane; i < span.q_len; i += 32) {
      const int row = span.q_begin + i;
      int token = p.planned_tokens[row];
      if (token < 0) token = p.state.last_tokens[span.slot];
      p.token_ids[row] = stopped ? 0 : token;
      p.row_slots[row] = stopped ? -1 : span.slot;
      p.row_positions[row] = stopped ? -1 : span.kv_len - span.q_len + i;
      p.row_spans[row] = stopped ? -1 : s;
    }
    if (stopped) span.q_len = 0;
    if (lane == 0) p.spans[s] = span;
  }
  __syncthreads();
  for (int i = thread; i < p.max_wanted; i += kThreads) {
    const bool padding = i >= header.num_wanted;
    const int wanted = padding ? -1 : p.wanted[i];
    const int row = padding ? -1 : wanted < 0 ? ~wanted : wanted;
    p.wanted_rows[i] = row;
    p.wanted_slots[i] = wanted < 0 ? -1 : p.row_slots[row];
    p.wanted_positions[i] = wanted < 0 ? 0 : p.row_positions[row] + 1;
  }
}

__global__ void __launch_bounds__(kThreads) EndKernel(CudaStepEndParams p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.num_wanted; i += kThreads) {
    const int slot = p.wanted_slots[i], token = p.tokens[i];
    if (slot < 0 || token < 0) continue;
    p.state.last_tokens[slot] = token;
    for (int j = 0; j < p.state.num_stops[slot]; ++j) {
      if (p.state.stops[slot * kMaxCudaStopIds + j] == token) p.state.stopped[slot] = 1;
    }
  }
}

}  // namespace

CudaStatus CudaStepBegin(const CudaExec& exec, const CudaStepBeginParams& params) {
  if (params.num_groups > kMaxCudaKvGroups) {
    return CudaFail(CudaFault::kUnsupported, "step_begin: %d KV groups (at most %d)", params.num_groups, kMaxCudaKvGroups);
  }
  BeginKernel<<<1, kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(params);
  return CudaLaunched("step_begin of %d rows, %d spans", params.max_rows, params.max_spans);
}

CudaStatus CudaStepEnd(const CudaExec& exec, const CudaStepEndParams& params) {
  if (params.num_wanted == 0) return nullptr;
  EndKernel<<<1, kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(params);
  return CudaLaunched("step_end of %d tokens", params.num_wanted);
}

}  // namespace cachalot
