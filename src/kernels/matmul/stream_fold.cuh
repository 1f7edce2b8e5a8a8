// How the pieces of a tile that several ranges share come together: every warp writes its piece to memory, and the warp that
// comes last of those with the same place in the tile adds them up in the order of k.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/matmul/stream_schedule.cuh"

namespace cachalot {
namespace {

static_assert(kStreamThreads / 32 == kStreamCounters);

// `acc`: this lane's sums, the first `used` of which matter. True if they are the whole tile's now; else another warp will
// see to them.
template <int kCount>
__device__ __forceinline__ bool FoldPieces(const StreamPlan& plan, const StreamLine& line, int tile, int chunks, float (&acc)[kCount],
                                           int used = kCount) {
  static_assert(kCount % 4 == 0);
  const int64_t tile_begin = int64_t{tile} * chunks, tile_end = tile_begin + chunks;
  if (line.begin <= tile_begin && line.end >= tile_end) return true;
  // A range has two pieces at most: of the tile that it begins in, and of the one that it ends in.
  const auto slot = [&](int64_t range, bool starts) {
    return reinterpret_cast<float4*>(plan.partials) + (range * 2 + (starts ? 1 : 0)) * (kCount / 4 * kStreamThreads) + threadIdx.x;
  };
  const int64_t first = ((tile_begin + 1) * line.num_ranges - 1) / line.num_units;
  const int64_t last = (tile_end * line.num_ranges - 1) / line.num_units;
  float4* mine = slot(blockIdx.x, line.begin <= tile_begin);
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    if (i * 4 < used) __stcg(mine + i * kStreamThreads, make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]));
  }
  __threadfence();
  __syncwarp();
  uint32_t is_last = 0;
  if (threadIdx.x % 32 == 0) {
    uint32_t* counter = plan.counters + first * kStreamCounters + threadIdx.x / 32;
    const auto done = static_cast<uint32_t>(min(line.end, tile_end) - max(line.begin, tile_begin));
    is_last = atomicAdd(counter, done) + done == static_cast<uint32_t>(chunks);
    if (is_last) *counter = 0;
  }
  is_last = __shfl_sync(kAllLanes, is_last, 0);
  if (!is_last) return false;
  __threadfence();
  const auto load = [&](int64_t range, float4 (&piece)[kCount / 4]) {
    const float4* from = slot(range, range == first);
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      if (i * 4 < used) piece[i] = __ldcg(from + i * kStreamThreads);
    }
  };
  const auto add = [&](const float4 (&piece)[kCount / 4]) {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      if (i * 4 >= used) continue;
      acc[i * 4] += piece[i].x, acc[i * 4 + 1] += piece[i].y, acc[i * 4 + 2] += piece[i].z, acc[i * 4 + 3] += piece[i].w;
    }
  };
#pragma unroll
  for (float& value : acc) value = 0;
  constexpr bool kPairs = kCount <= 32;  // two pieces under way at a time, where registers allow
  float4 piece[kCount / 4];
  int64_t range = first;
  if constexpr (kPairs) {
    float4 second[kCount / 4];
#pragma unroll 1
    for (; range < last; range += 2) {
      load(range, piece);
      load(range + 1, second);
      add(piece);
      add(second);
    }
  }
#pragma unroll 1
  for (; range <= last; ++range) {
    load(range, piece);
    add(piece);
  }
  return true;
}

}  // namespace
}  // namespace cachalot
