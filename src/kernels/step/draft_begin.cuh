// draft_begin, by a block of whole warps: in a launch of its own, or beside step_begin.
#pragma once

#include "device/cuda/global_clock.cuh"
#include "kernels/step/draft.h"

namespace cachalot {

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

__device__ __forceinline__ void BeginDrafts(const CudaDraftBeginParams& p) {
  if (threadIdx.x == 0 && p.clock != nullptr) *p.clock = GlobalNs();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = warp; i < p.count; i += static_cast<int>(blockDim.x) / 32) {
    const int s = p.begin + i;
    const int wanted = NumWanted(p.spans, s);
    const int slot = wanted > 0 ? p.spans.planned[s].slot : 0;
    const int waiting = wanted > 0 ? p.state.waiting_len[slot] : 0;
    const int len = min(waiting, p.stride);
    const int first = p.state.waiting_begin[slot] + waiting - len;
    int fed = waiting > len ? 0 : p.state.fed[slot];
    if (fed + len + wanted > p.state.row_tokens) fed = 0;
    __syncwarp();
    const int begin = i * p.stride, padding = p.stride - len;  // padding comes first, so that the last row's place is known to the host
    for (int at = lane; at < p.stride; at += 32) {
      const int j = at - padding;
      const int place = slot * kMaxCudaWaiting + (first + max(0, j)) % kMaxCudaWaiting;
      p.token_ids[begin + at] = j >= 0 ? p.state.waiting_tokens[place] : 0;
      p.from[begin + at] = j >= 0 ? place : 0;
      WriteRow(p.rows, begin + at, j >= 0, slot, fed + j, i);
    }
    if (lane != 0) continue;
    p.batch_spans[i] = {slot, len > 0 ? begin + padding : begin, len, fed + len};
    p.last_rows[i] = begin + p.stride - 1;
    p.picks[s] = len > 0 ? 0 : -1;
    if (len == 0) continue;
    p.state.fed[slot] = fed + len;
    p.state.waiting_len[slot] = 0;
  }
}

}  // namespace cachalot
