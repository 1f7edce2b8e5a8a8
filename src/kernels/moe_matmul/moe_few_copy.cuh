// How weights reach a block of the experts' kernel (moe_few.cuh): four warps fill a ring of stages in shared memory.
#pragma once

#include "kernels/moe_matmul/moe_few_block.cuh"

namespace cachalot {
namespace {

__device__ __forceinline__ void CopyAsync4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared), "l"(global) : "memory");
}

// The shared expert's gates and ups on their way to L2 by one warp, where the router is a launch in front: nothing else is to be read until it has
// chosen. Before the wait: weights do not change.
__device__ __forceinline__ void PrefetchShared(const FewProblem& p) {
  const FewMatrix& matrix = p.shared[0];
  if (p.first_phase != 0 || matrix.w == nullptr) return;
  constexpr int kPiece = 8 << 10;
  const FewRange mine = FewShare(matrix.rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  const int bytes = (mine.end - mine.begin) * matrix.row_bytes;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const std::byte* from = matrix.w + (int64_t{half} * matrix.rows + mine.begin) * matrix.row_bytes;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x) % 32 * kPiece; at < bytes; at += 32 * kPiece) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from + at), "r"(min(kPiece, bytes - at)) : "memory");
    }
  }
}

// Lane 8 i + c of a copying warp brings the c-th scale of a stage of the i-th of the warp's rows.
template <DType kType>
__device__ __forceinline__ void CopyTiles(const FewProblem& p, const FewShared& memory, uint32_t ring) {
  constexpr int kRows = kFewTileRows / kFewCopyWarps;
  static_assert(kRows * kFewStageScales == 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 - kFewCopyWarp;
  const int scaled_row = warp * kRows + lane / kFewStageScales, column = lane % kFewStageScales;
  const uint32_t rows_to = ring + warp * kRows * kFewStageStride + lane * 16;
  const uint32_t scale_to = ring + kFewScalesAt + (column * kFewTileRows + scaled_row) * 4;
  FewPlace<kFewMostStages> place, landed;  // landed: of the stage that must be there before the next is ordered
  int started = 0;
#pragma unroll 1
  for (int phase = p.first_phase; phase <= p.last_phase; ++phase) {
    FewTiles tiles = TilesOf(p, phase);
    FewTile tile;
#pragma unroll 1
    while (tiles.Next(FewListed{memory}, &tile)) {
      const FewMatrix& matrix = tile.expert < 0 ? p.shared[phase] : p.each[phase];
      const FewExpert& expert = ExpertOf(memory, tile);
      // Row r of the tile: gates, then their ups; or as they come.
      const auto row_of = [&](int r) { return phase == 0 && r >= 8 ? matrix.rows + tile.row + r - 8 : tile.row + r; };
      const auto is_there = [&](int r) { return (phase == 0 ? r % 8 : r) < tile.rows; };
      const int stages = FewStages(matrix.row_bytes);
      const std::byte* row = expert.w[phase] + int64_t{row_of(warp * kRows)} * matrix.row_bytes + lane * 16;
      const float* scale = nullptr;
      int scales_left = 0;  // from this lane's on
      if (StreamFormat<kType>::kFp8 && expert.scales[phase] != nullptr && is_there(scaled_row)) {
        const int columns = matrix.row_bytes / kFewWholeBytes;
        scale = expert.scales[phase] + int64_t{row_of(scaled_row) >> (matrix.scale_rows == 1 ? 0 : 7)} * columns + column;
        scales_left = columns - column;
      }
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        WaitForPhase(SharedAddress(&memory.empty[place.slot]), place.parity ^ 1);
        if (started++ >= p.layout.in_flight) {
          WaitForPhase(SharedAddress(&memory.full[landed.slot]), landed.parity);
          landed.Advance(p.layout.stages);
        }
        const uint32_t at = place.slot * kFewStageBytes;
        const int left = matrix.row_bytes - stage * kFewStageRowBytes - lane * 16;
        if (stage * kFewStageScales < scales_left) CopyAsync4(scale_to + at, scale + stage * kFewStageScales);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (!is_there(warp * kRows + i)) continue;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (half * 512 < left) CopyAsync16(rows_to + at + i * kFewStageStride + half * 512, row + int64_t{i} * matrix.row_bytes + half * 512, true);
          }
        }
        ArriveWhenCopied(SharedAddress(&memory.full[place.slot]));
        row += kFewStageRowBytes;
        place.Advance(p.layout.stages);
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
