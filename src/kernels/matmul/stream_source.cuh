// From global memory into the stream kernel's ring: what a stage holds and the copies that fill it.
#pragma once

#include "device/cuda/cuda_exec.h"
#include "device/cuda/tensor_core.cuh"
#include "kernels/matmul/stream_schedule.cuh"

namespace cachalot {
namespace {

template <DType kType, int kColumns, typename X>
struct StreamStage {
  using F = StreamFormat<kType>;
  static constexpr int kXRowBytes = F::kChunk * static_cast<int>(sizeof(X));
  static constexpr int kWBytes = kStreamRows * F::kRowBytes;
  static constexpr int kXBytes = kColumns * kXRowBytes;
  static constexpr int kHigh = kWBytes, kX = kHigh + kStreamRows * F::kHighBytes;
  static constexpr int kScales = kX + kXBytes, kMinima = kScales + kStreamRows * F::kScaleBytes;
  static constexpr int kBytes = kMinima + kStreamRows * F::kMinimaBytes;
  static constexpr int kBudget = (StreamShape<kColumns>::kBlocksPerSm == 2 ? 108 : 160) << 10;  // and the experts' slots
  static_assert(kBudget < kCudaLeastSharedBytes);
  static constexpr int kStages = kBudget / kBytes > 6 ? 6 : kBudget / kBytes;
  static_assert(kStages >= 3 && kBytes % 16 == 0);
  static constexpr int kRingBytes = kStages * kBytes;
};

template <int kBytes>  // 4, 8 or 16
__device__ __forceinline__ void CopyAsyncSmall(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? kBytes : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared), "l"(global), "n"(kBytes), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void LoadShared16(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared));
}

// Where 16-byte piece `piece` of a row lies within it: eight lanes that read four pieces of two rows meet no bank twice.
template <int kRowBytes>
__device__ __forceinline__ uint32_t HalfSwizzled(int row, int piece) {
  if constexpr (kRowBytes % 128 == 0) piece ^= (row & 1) << 2;
  return static_cast<uint32_t>(row * kRowBytes + piece * 16);
}
// F32 rows are read in pairs of pieces where the order is that of k.
template <int kRowBytes, StreamOrder kOrder>
__device__ __forceinline__ uint32_t FloatSwizzled(int row, int piece) {
  piece ^= kOrder == StreamOrder::kNibble ? (row & 1) << 2 : row & 1;
  return static_cast<uint32_t>(row * kRowBytes + piece * 16);
}

// Copies chunks of W and x of one tile after the other into the ring.
template <DType kType, int kColumns, typename X>
struct StreamSource {
  using F = StreamFormat<kType>;
  using S = StreamStage<kType, kColumns, X>;
  static constexpr int kWPieces = F::kRowBytes / 16;  // of a row
  static constexpr int kWStep = kStreamThreads / kWPieces;
  static constexpr int kWCopies = kStreamRows / kWStep;
  static constexpr int kXPieces = S::kXRowBytes / 16;
  static constexpr int kXStep = kStreamThreads / kXPieces;
  static constexpr int kXCopies = (kColumns + kXStep - 1) / kXStep;
  static constexpr int kXValues = 16 / static_cast<int>(sizeof(X));

  const std::byte* w;  // this thread's first row and piece
  const std::byte* scales;
  const std::byte* high;
  const X* x;
  int rows;  // of W that exist, counted from this thread's first
  int tile_rows;  // the same, from the tile's first
  int x_row[kXCopies];

  __device__ void Enter(const MatmulProblem& p, const StreamTile& tile) {
    EnterW(p, tile);
    EnterX(p, tile);
  }

  __device__ void EnterW(const MatmulProblem& p, const StreamTile& tile) {
    const MatmulGroupView group = GroupOf(p, tile.group);
    const int tid = static_cast<int>(threadIdx.x), row = tid / kWPieces;
    rows = p.n - tile.n0 - row;
    w = group.w + int64_t{tile.n0 + row} * p.layout.row_bytes + tid % kWPieces * 16;
    tile_rows = p.n - tile.n0;
    if constexpr (F::kHighBytes > 0) {
      constexpr int kPieces = F::kHighBytes / 16;
      high = group.w + int64_t{tile.n0 + tid / kPieces} * p.layout.row_bytes + p.layout.high_offset + tid % kPieces * 16;
    }
    if constexpr (F::kBlockScales) {  // threads 0 .. 127: scales, the others: minima
      const int scale_row = min(tile.n0 + tid % kStreamRows, p.n - 1);
      scales = group.w + int64_t{scale_row} * p.layout.row_bytes +
               (tid < kStreamRows ? p.layout.scales_offset : p.layout.minima_offset);
    }
    if constexpr (F::kFp8) {
      const int scale_row = min(tile.n0 + tid % kStreamRows, p.n - 1) / p.block_scale_rows;
      scales = reinterpret_cast<const std::byte*>(group.block_scales == nullptr
                                                      ? nullptr
                                                      : group.block_scales + int64_t{scale_row} * ((p.k + 127) / 128));
    }
  }

  __device__ void EnterX(const MatmulProblem& p, const StreamTile& tile) {
    const MatmulGroupView group = GroupOf(p, tile.group);
    const int tid = static_cast<int>(threadIdx.x);
    x = static_cast<const X*>(p.x) + group.x_offset + tid % kXPieces * kXValues;
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int r = tid / kXPieces + i * kXStep;
      x_row[i] = r < kColumns && tile.m0 + r < group.m ? XRow(p, group.first + tile.m0 + r) : -1;
    }
  }

  __device__ void CopyW(const MatmulProblem& p, int chunk, uint32_t stage) const {
    const int tid = static_cast<int>(threadIdx.x);
    const int w_at = chunk * F::kRowBytes;
    const bool in_row = !F::kDirect || w_at + tid % kWPieces * 16 < static_cast<int>(p.layout.row_bytes);
#pragma unroll
    for (int i = 0; i < kWCopies; ++i) {
      const bool valid = in_row && i * kWStep < rows;
      const void* from = valid ? w + i * kWStep * p.layout.row_bytes + w_at : p.x;  // p.x: named, not read
      CopyAsync16(stage + HalfSwizzled<F::kRowBytes>(tid / kWPieces + i * kWStep, tid % kWPieces), from, valid);
    }
    if constexpr (F::kHighBytes > 0) {
      constexpr int kPieces = F::kHighBytes / 16;
      const int row = tid / kPieces;
      if (row < kStreamRows) {
        const bool valid = row < tile_rows;
        CopyAsync16(stage + S::kHigh + tid * 16, valid ? high + chunk * F::kHighBytes : static_cast<const void*>(p.x), valid);
      }
    }
    if constexpr (F::kBlockScales) {
      if (tid < kStreamRows) {
        CopyAsyncSmall<F::kScaleBytes>(stage + S::kScales + tid * F::kScaleBytes, scales + F::ScalesAt(chunk), true);
      } else if constexpr (F::kMinima) {
        CopyAsyncSmall<F::kMinimaBytes>(stage + S::kMinima + (tid - kStreamRows) * F::kMinimaBytes, scales + F::MinimaAt(chunk), true);
      }
    }
    if constexpr (F::kFp8) {
      if (tid < kStreamRows && scales != nullptr) CopyAsyncSmall<4>(stage + S::kScales + tid * 4, scales + chunk * 4, true);
    }
  }

  __device__ void CopyX(const MatmulProblem& p, int chunk, uint32_t stage) const {
    const int tid = static_cast<int>(threadIdx.x);
    const bool in_x = sizeof(X) == 2 || chunk * F::kChunk + tid % kXPieces * kXValues < p.k;
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int r = tid / kXPieces + i * kXStep;
      if (r >= kColumns) break;
      const bool valid = in_x && x_row[i] >= 0;
      const X* from = valid ? x + x_row[i] * p.x_stride + chunk * F::kChunk : static_cast<const X*>(p.x);
      const uint32_t to = sizeof(X) == 2 ? HalfSwizzled<S::kXRowBytes>(r, tid % kXPieces)
                                         : FloatSwizzled<S::kXRowBytes, F::kOrder>(r, tid % kXPieces);
      CopyAsync16(stage + S::kX + to, from, valid);
    }
  }
};

}  // namespace
}  // namespace cachalot
