// Weights of the next ops on their way to L2 while attention runs.
#pragma once

#include "kernels/attention/attention.h"

namespace cachalot {

// Each block asks for its share. Before it waits for anything: weights do not change.
__device__ __forceinline__ void PrefetchUpcoming(const AttentionParams& p) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x != 0) return;
  constexpr int64_t kPiece = 16 << 10;
#pragma unroll
  for (const UpcomingBytes& upcoming : p.upcoming) {
    if (upcoming.bytes == 0) continue;
    const int64_t share = (upcoming.bytes / gridDim.x + 15) / 16 * 16, first = share * blockIdx.x;
    const int64_t end = min(first + share, upcoming.bytes / 16 * 16);
#pragma unroll 1
    for (int64_t at = first; at < end; at += kPiece) {
      const auto bytes = static_cast<uint32_t>(min(kPiece, end - at));
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(upcoming.data + at), "r"(bytes) : "memory");
    }
  }
#endif
}

}  // namespace cachalot
