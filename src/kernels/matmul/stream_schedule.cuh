// How the stream kernel's work is cut: the shape of a tile, the line of all tiles' chunks, and which tile lies where on it.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/matmul/matmul_problem.cuh"
#include "kernels/matmul/stream_format.cuh"

namespace cachalot {
namespace {

constexpr int kStreamThreads = 256;
constexpr int kMinUnits = 4;  // chunks that a range is worth its fixed cost for

// Warps of a block lie in kWarpRows x kWarpColumns over the tile; each has kRowTiles x kColumnTiles fragments of 16 x 8.
template <int kColumns>
struct StreamShape {
  static constexpr int kWarpRows = kColumns <= 32 ? 8 : 4;
  static constexpr int kWarpColumns = 8 / kWarpRows;
  static constexpr int kRowTiles = kStreamRows / 16 / kWarpRows;
  static constexpr int kColumnTiles = kColumns / 8 / kWarpColumns;
  static constexpr int kFragment = kRowTiles * kColumnTiles * 4;  // accumulators of a thread
  static constexpr int kBlocksPerSm = kColumns <= 64 ? 2 : 1;
};

struct StreamWork {
  StreamPlan plan;
  int n_tiles;
  int m_tiles;  // of a group; experts: counted on the device
  int chunks;   // of k
};

struct StreamTile {
  int group, n0, m0;
};

// This block's range of the line of all chunks, [begin, end).
struct StreamLine {
  int64_t begin, end;
  int64_t num_units, num_ranges;
};
// The block has a range if it is one of the first num_ranges.
__device__ __forceinline__ StreamLine LineOf(const StreamWork& work, int num_tiles) {
  StreamLine line;
  line.num_units = int64_t{num_tiles} * work.chunks;
  line.num_ranges = work.plan.num_ranges;
  if (line.num_ranges == 0) {
    line.num_ranges = min(static_cast<int64_t>(gridDim.x),
                          work.plan.whole_tiles ? num_tiles : max(static_cast<int64_t>(num_tiles), line.num_units / kMinUnits));
  }
  const int64_t range = blockIdx.x;
  if (work.plan.whole_tiles) {
    line.begin = int64_t{num_tiles} * range / line.num_ranges * work.chunks;
    line.end = int64_t{num_tiles} * (range + 1) / line.num_ranges * work.chunks;
  } else {
    line.begin = line.num_units * range / line.num_ranges;
    line.end = line.num_units * (range + 1) / line.num_ranges;
  }
  return line;
}

// Tiles in the order in which they are streamed: those of one W tile side by side, so that W comes from L2 after the first.
// `first_slots`: experts' first tiles along m, in shared memory.
template <int kRows, int kColumns>
__device__ __forceinline__ StreamTile TileAt(const MatmulProblem& p, const StreamWork& work, const int* first_slots,
                                             int tile) {
  if (p.expert_begin == nullptr) {
    const int m_tile = tile % work.m_tiles, rest = tile / work.m_tiles;
    return {rest / work.n_tiles, rest % work.n_tiles * kRows, m_tile * kColumns};
  }
  int low = 0, high = p.num_groups - 1;  // the last expert that begins at or before the tile; it has pairs
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_slots[middle] * work.n_tiles <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int local = tile - first_slots[low] * work.n_tiles, m_tiles = first_slots[low + 1] - first_slots[low];
  return {low, local / m_tiles * kRows, local % m_tiles * kColumns};
}

// first_slots [num_groups + 1]; returns the number of slots.
template <int kColumns>
__device__ int ScanExperts(const MatmulProblem& p, int* first_slots) {
  __shared__ int warp_sums[kStreamThreads / 32];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int per_thread = (p.num_groups + kStreamThreads - 1) / kStreamThreads;
  const auto slots_of = [&](int e) {
    return e < p.num_groups ? (p.expert_begin[e + 1] - p.expert_begin[e] + kColumns - 1) / kColumns : 0;
  };
  int mine = 0;
  for (int i = 0; i < per_thread; ++i) mine += slots_of(tid * per_thread + i);
  int upto = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int lower = __shfl_up_sync(kAllLanes, upto, offset);
    if (lane >= offset) upto += lower;
  }
  if (lane == 31) warp_sums[warp] = upto;
  __syncthreads();
  int before = upto - mine, total = 0;
  for (int w = 0; w < kStreamThreads / 32; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  for (int i = 0; i < per_thread; ++i) {
    const int e = tid * per_thread + i;
    if (e < p.num_groups) first_slots[e] = before;
    before += slots_of(e);
  }
  if (tid == 0) first_slots[p.num_groups] = total;
  __syncthreads();
  return total;
}

}  // namespace
}  // namespace cachalot
