// Matmul of 16-bit weights on wgmma (sm_90a), for 16 to 128 rows of x at a time: the stream kernel's schedule (ranges of the
// line of all tiles' chunks, folded in the order of k), with tiles of up to 128 or 256 rows of W that the tensor cores read
// from shared memory themselves.
//
// A call for SwiGLU has 8 gates and then their ups in every 16 rows of a tile: a thread holds both, and writes what they make.
//
// Bound: the bytes of W; at 128 columns the tensor cores are near. What a block reads of x comes from L2 and counts beside
// W: 256 rows halve it where there are tiles enough. A piece to be folded costs as much as a third of its tile's stream, so
// tiles are as high as lets blocks end together with few pieces (EvenCut in matmul_sm80.cu); rows that a tile has not are
// multiplied from whatever lies there, and not kept. One block an SM: two warpgroups, each with every other 64 rows; all threads
// fill the ring, whose stages hold 64 values of k of W and x, in the swizzle that wgmma knows.
#pragma once

#include <algorithm>

#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/matmul/glu_store.cuh"
#include "kernels/matmul/stream_fold.cuh"
#include "kernels/matmul/stream_ring.cuh"

namespace cachalot {
namespace {

template <int kRowTiles, int kColumns>
struct WgmmaTile {
  static constexpr int kRows = 128 * kRowTiles;
  static constexpr int kRowBytes = 128;  // of a stage: 64 values
  static constexpr int kX = kRows * kRowBytes;
  static constexpr int kBytes = kX + kColumns * kRowBytes;
  static constexpr int kStages = std::min(8, (208 << 10) / kBytes);  // 16 KB are left for the experts' slots
  static constexpr int kCount = kColumns / 2;                        // sums of a thread, for 64 rows
  static constexpr int kAhead = kStages - 2;  // stages that loads are ahead: one is multiplied, one may still be
  static_assert(kStages >= 4 && kBytes % 1024 == 0);
};

// Copies chunks of W and x of one tile after the other into the ring. A thread copies the same 16 bytes of every 32nd row.
template <int kRowTiles, int kColumns>
struct WgmmaSource {
  using Tile = WgmmaTile<kRowTiles, kColumns>;
  static constexpr int kXCopies = (kColumns + 31) / 32;

  const std::byte* w;
  const uint16_t* x;
  int rows;  // of W that exist, counted from this thread's first; gates, and as many ups
  int step;  // rows of W between two of this thread's
  int x_row[kXCopies];

  __device__ void Enter(const MatmulProblem& p, const StreamTile& tile, int tile_rows) {
    const MatmulGroupView group = GroupOf(p, tile.group);
    const int row = static_cast<int>(threadIdx.x) / 8, piece = static_cast<int>(threadIdx.x) % 8;
    const bool glu = p.glu_rows > 0;
    const int first = glu ? row / 16 * 8 + row % 8 : row, up = glu && row % 16 >= 8 ? p.glu_rows : 0;
    step = glu ? 16 : 32;
    rows = glu ? min(p.glu_rows - tile.n0, tile_rows / 2) - first : min(p.n - tile.n0, tile_rows) - first;
    w = group.w + int64_t{tile.n0 + first + up} * p.layout.row_bytes + piece * 16;
    x = static_cast<const uint16_t*>(p.x) + group.x_offset + piece * 8;
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int r = row + i * 32;
      x_row[i] = r < kColumns && tile.m0 + r < group.m ? XRow(p, group.first + tile.m0 + r) : -1;
    }
  }

  __device__ void CopyW(const MatmulProblem& p, int chunk, uint32_t stage) const {
    const int row = static_cast<int>(threadIdx.x) / 8, piece = static_cast<int>(threadIdx.x) % 8;
    const bool in_row = chunk * Tile::kRowBytes + piece * 16 < static_cast<int>(p.layout.row_bytes);
    const std::byte* from = w + chunk * Tile::kRowBytes;
    const uint32_t to = stage + Swizzled<Tile::kRowBytes>(row, piece);
#pragma unroll
    for (int i = 0; i < Tile::kRows / 32; ++i) {
      const bool valid = in_row && i * step < rows;
      CopyAsync16(to + i * 32 * Tile::kRowBytes, valid ? static_cast<const void*>(from) : p.x, valid);  // p.x: named, not read
      from += step * p.layout.row_bytes;
    }
  }

  __device__ void CopyX(const MatmulProblem& p, int chunk, uint32_t stage) const {
    const int row = static_cast<int>(threadIdx.x) / 8, piece = static_cast<int>(threadIdx.x) % 8;
    const uint32_t to = stage + Tile::kX + Swizzled<Tile::kRowBytes>(row, piece);
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      if (row + i * 32 >= kColumns) break;
      const bool valid = x_row[i] >= 0;
      const void* from = valid ? x + x_row[i] * p.x_stride + chunk * 64 : p.x;
      CopyAsync16(to + i * 32 * Tile::kRowBytes, from, valid);
    }
  }
};

// `sums`: rows n0 + lane / 4 and + 8 of W where they are below n_end, all columns of the tile.
template <int kCount>
__device__ __forceinline__ void StoreSums(const MatmulProblem& p, const StreamTile& tile, int n0, int n_end,
                                          const float (&sums)[kCount]) {
  const MatmulGroupView group = GroupOf(p, tile.group);
  const int lane = static_cast<int>(threadIdx.x) % 32, m0 = tile.m0 + lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int n = n0 + lane / 4 + h * 8;
    if (n >= n_end) continue;
    const float bias = p.bias != nullptr ? p.bias[n] : 0.0f;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int m = m0 + j * 8 + c;
        if (m >= group.m) continue;
        float* y = group.y + int64_t{group.first + m} * p.y_stride + n;
        const float sum = sums[j * 4 + h * 2 + c] + bias;
        *y = p.accumulate ? *y + sum : sum;
      }
    }
  }
}

// The same of gates n0 + lane / 4 and their ups, through SwiGLU.
template <int kCount>
__device__ __forceinline__ void StoreGlu(const MatmulProblem& p, const StreamTile& tile, int n0, int n_end, const float (&sums)[kCount]) {
  const MatmulGroupView group = GroupOf(p, tile.group);
  const int lane = static_cast<int>(threadIdx.x) % 32, n = n0 + lane / 4, m0 = tile.m0 + lane % 4 * 2;
  if (n >= n_end) return;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int m = m0 + j * 8 + c;
      if (m < group.m) StoreGluValue(p, group.y, group.first + m, n, SwiGluValue(sums[j * 4 + c], sums[j * 4 + 2 + c]));
    }
  }
}

template <int kRowTiles, int kColumns>
struct WgmmaTiles {
  const MatmulProblem& p;
  const StreamWork& work;
  const int* first_slots;
  WgmmaSource<kRowTiles, kColumns> from;

  __device__ __forceinline__ StreamTile At(int index) const {
    StreamTile tile = TileAt<1, kColumns>(p, work, first_slots, index);
    tile.n0 *= p.glu_rows > 0 ? work.plan.rows / 2 : work.plan.rows;
    return tile;
  }
  __device__ __forceinline__ void Enter(int tile) { from.Enter(p, At(tile), work.plan.rows); }
  __device__ __forceinline__ void CopyW(int chunk, uint32_t stage) const { from.CopyW(p, chunk, stage); }
  __device__ __forceinline__ void CopyX(int chunk, uint32_t stage) const { from.CopyX(p, chunk, stage); }
};

template <typename Element, int kRowTiles, int kColumns>
__global__ __launch_bounds__(kStreamThreads, 1) void WgmmaKernel(const __grid_constant__ MatmulProblem p,
                                                                 const __grid_constant__ StreamWork work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = WgmmaTile<kRowTiles, kColumns>;
  constexpr int kStages = Tile::kStages, kAhead = Tile::kAhead;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int tid = static_cast<int>(threadIdx.x), chunks = work.chunks;
  int* first_slots = reinterpret_cast<int*>(shared + kStages * Tile::kBytes);
  const bool experts = p.expert_begin != nullptr;
  StreamLine line;
  if (!EnterStream<kColumns>(p, work, first_slots, &line)) return;
  const int tile_rows = work.plan.rows;
  const uint32_t ring = SharedAddress(shared);
  StreamRing<kStages, Tile::kBytes, kAhead, WgmmaTiles<kRowTiles, kColumns>> loads = {{p, work, first_slots, {}}, line, chunks, ring};
  loads.Fill(experts);

  const int group_row = tid / 128 * 64, warp_row = group_row + tid % 128 / 32 * 16;  // + rt * 128
  const int used = kRowTiles == 1 || warp_row + 128 < tile_rows ? kRowTiles * Tile::kCount : Tile::kCount;
  int tile_idx = static_cast<int>(line.begin / chunks), stage = 0;
#pragma unroll 1
  for (int64_t unit = line.begin; unit < line.end; ++tile_idx) {
    const auto tile_end = min(line.end, (int64_t{tile_idx} + 1) * chunks);
    float acc[kRowTiles][Tile::kCount] = {};
#pragma unroll 1
    for (; unit < tile_end; ++unit) {
      WaitAsync<kAhead - 1>();
      FenceForWgmma();
      WgmmaWait<1>();
      __syncthreads();  // this stage is there, the one before the last has been multiplied
      const uint32_t at = ring + stage * Tile::kBytes;
      const uint64_t w = ColumnsDescriptor(at + group_row * Tile::kRowBytes), x = ColumnsDescriptor(at + Tile::kX);
      WgmmaBegin();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int rt = 0; rt < kRowTiles; ++rt) {
          Wgmma<Element, kColumns, false>::Mma(acc[rt], w + (rt * 128 * Tile::kRowBytes + step * 32) / 16, x + step * 2, true);
        }
      }
      WgmmaCommit();
      loads.Next(true, true);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) WgmmaWait<0>(acc[rt]);
    if (FoldPieces(work.plan, line, tile_idx, chunks, reinterpret_cast<float(&)[kRowTiles * Tile::kCount]>(acc), used)) {
      const StreamTile tile = loads.source.At(tile_idx);
#pragma unroll
      for (int rt = 0; rt < kRowTiles; ++rt) {
        if (p.glu_rows > 0) {
          StoreGlu(p, tile, tile.n0 + (warp_row + rt * 128) / 2, min(p.glu_rows, tile.n0 + tile_rows / 2), acc[rt]);
        } else {
          StoreSums(p, tile, tile.n0 + warp_row + rt * 128, min(p.n, tile.n0 + tile_rows), acc[rt]);
        }
      }
    }
  }
#endif
}

template <typename Element, int kRowTiles, int kColumns>
CudaStatus LaunchWgmmaTile(const CudaExec& exec, const MatmulProblem& p, const StreamPlan& plan) {
  using Tile = WgmmaTile<kRowTiles, kColumns>;
  StreamWork work;
  work.plan = plan;
  work.n_tiles = (p.n + plan.rows - 1) / plan.rows;
  work.m_tiles = (p.m + kColumns - 1) / kColumns;
  work.chunks = (p.k + 63) / 64;
  auto* kernel = &WgmmaKernel<Element, kRowTiles, kColumns>;
  const int shared_bytes = Tile::kStages * Tile::kBytes + (p.expert_begin != nullptr ? (p.num_groups + 1) * 4 : 0);
  if (CudaStatus failure = AllowSharedBytes(kernel, shared_bytes, "matmul")) {
    return failure;
  }
  LaunchOverlapped<LaunchRole::kMatmul>(kernel, exec.num_sms, kStreamThreads, shared_bytes, exec.stream, p, work);
  return CudaLaunched("matmul (wgmma, tiles of %d x %d) of %d groups, m %d, n %d, k %d", plan.rows, kColumns, p.num_groups, p.m,
                      p.n, p.k);
}

template <typename Element>
CudaStatus LaunchWgmmaOf(const CudaExec& exec, const MatmulProblem& p, const StreamPlan& plan) {
  const bool tall = plan.rows > 128;
  switch (plan.columns) {
    case 16:
      return LaunchWgmmaTile<Element, 1, 16>(exec, p, plan);
    case 32:
      return LaunchWgmmaTile<Element, 1, 32>(exec, p, plan);
    case 64:
      return tall ? LaunchWgmmaTile<Element, 2, 64>(exec, p, plan) : LaunchWgmmaTile<Element, 1, 64>(exec, p, plan);
    default:
      return tall ? LaunchWgmmaTile<Element, 2, 128>(exec, p, plan) : LaunchWgmmaTile<Element, 1, 128>(exec, p, plan);
  }
}

}  // namespace
}  // namespace cachalot
