// The decode kernel's part (gemv.cuh) for rows of codes: a stage is a chunk of 128 values of 16 rows, and the warp brings its
// planes together, 16 bytes a lane where they have as many.
//
// Bound: the bytes of the file's codes. Per SM 16 warps of 3 to 6 stages have 75 to 90 KB under way, of which 4.3 TB/s over
// 132 SMs and 1 us of latency want 33. A Q4_K chunk of 16 rows costs a lane about 170 instructions for 64 weights (2.7 each);
// at the roof an SM has time for 4, so decoding stays below the bytes up to about 85 % of it; the formats of more bits have
// more time, those of two bits less.
#pragma once

#include "kernels/matmul/code_mma.cuh"
#include "kernels/matmul/gemv_shape.h"
#include "kernels/matmul/matmul_problem.cuh"

namespace cachalot {
namespace {

// A warp's stage: 16 rows' codes, then their high bits, records and tops.
template <DType kType>
struct GemvCodeStage {
  using C = CodeChunk<kType>;
  static constexpr int kHigh = kGemvTileRows * C::kCodeBytes;
  static constexpr int kRecords = kHigh + kGemvTileRows * C::kHighBytes;
  static constexpr int kTops = kRecords + kGemvTileRows * C::kRecordBytes;
  static constexpr int kBytes = kTops + kGemvTileRows * C::kTopBytes;
  static_assert(kBytes == GemvStageBytes(kType));
};

template <int kBytes>
__device__ __forceinline__ void CopyPieceAsync(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? kBytes : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared), "l"(global), "n"(kBytes), "r"(bytes)
               : "memory");
}

// kBytes of each of 16 rows, from `from` on for the first, to one run of shared memory; zeros for rows that do not exist.
// The upper eight lie `upper_bytes` behind the lower ones, and begin at row `upper_rows` as rows are counted.
template <int kBytes, bool kOnce>
__device__ __forceinline__ void CopyRowsAsync(uint32_t shared, const std::byte* from, int row_bytes, int upper_rows, int upper_bytes,
                                              int rows) {
  constexpr int kPiece = kBytes % 16 == 0 ? 16 : kBytes, kPieces = kBytes / kPiece;  // of a row
  static_assert(kPiece == 16 || kPiece == 8 || kPiece == 4);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int first = 0; first < kGemvTileRows * kPieces; first += 32) {
    const int at = first + lane, row = at / kPieces;
    if (at >= kGemvTileRows * kPieces) break;  // fewer than 32
    const bool valid = row % 8 + row / 8 * upper_rows < rows;
    const std::byte* source = valid ? from + (row % 8 * row_bytes + row / 8 * upper_bytes + at % kPieces * kPiece) : from;
    if constexpr (kOnce) {
      CopyAsync16(shared + at * kPiece, source, valid);
    } else {  // records of 256 values are read for two chunks: through L1
      CopyPieceAsync<kPiece>(shared + at * kPiece, source, valid);
    }
  }
}

// What a warp loads: chunks [piece_begin, piece_end) of tile after tile.
template <DType kType, int kWarps>
struct GemvCodeLoader {
  using C = CodeChunk<kType>;
  using S = GemvCodeStage<kType>;
  static constexpr int kStages = GemvStages(kType, kWarps);
  const std::byte* w;       // of the tile's first row
  int row, row_step, row_end, upper_rows, upper_bytes;
  int piece, piece_begin, piece_end;
  int stage = 0;            // where the next goes: when the ring is full, that of the oldest

  __device__ __forceinline__ void Enter(const MatmulProblem& p, const MatmulGroupView& group, int row_bytes) {
    w = group.w + int64_t{row} * row_bytes;
  }

  // One stage, as one group.
  __device__ __forceinline__ void Next(const MatmulProblem& p, int row_bytes, const float*, uint32_t ring) {
    const uint32_t at = ring + stage * S::kBytes;
    const int rows = row_end - row;  // none: nothing is read
    CopyRowsAsync<C::kCodeBytes, true>(at, w + piece * C::kCodeBytes, row_bytes, upper_rows, upper_bytes, rows);
    if constexpr (C::kHighBytes > 0) {
      CopyRowsAsync<C::kHighBytes, true>(at + S::kHigh, w + (p.layout.high_offset + piece * C::kHighBytes), row_bytes, upper_rows, upper_bytes, rows);
    }
    CopyRowsAsync<C::kRecordBytes, false>(at + S::kRecords, w + (p.layout.scales_offset + C::RecordAt(piece)), row_bytes, upper_rows, upper_bytes, rows);
    if constexpr (C::kTopBytes > 0) {
      CopyRowsAsync<C::kTopBytes, false>(at + S::kTops, w + (p.layout.minima_offset + C::TopAt(piece)), row_bytes, upper_rows, upper_bytes, rows);
    }
    CommitAsync();
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (++piece == piece_end) piece = piece_begin, row += row_step, w += row_step * row_bytes;
  }
};

// acc += W x of one stage, chunk `piece`; `x`: this lane's 16 bytes of the chunk's block 0.
template <DType kType>
__device__ __forceinline__ void MultiplyCodePiece(uint32_t stage, uint32_t x, int piece, float (&acc)[4]) {
  using C = CodeChunk<kType>;
  using S = GemvCodeStage<kType>;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  CodeFragment<kType> rows[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = g + h * 8;
    rows[h].Load(stage + row * C::kCodeBytes, stage + S::kHigh + row * C::kHighBytes, stage + S::kRecords + row * C::kRecordBytes,
                 stage + S::kTops + row * C::kTopBytes, piece);
  }
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    uint32_t x_bits[4];
    LoadSharedRun(x_bits, x + b * 64);
    CodeBlock<kType> block;
    block.Unpack(rows, b);
    float sum_x[C::kSubBlocks][4];
    CodeBlock<kType>::SumX(x_bits, sum_x);
    block.Multiply(x_bits, sum_x, acc);
  }
}

}  // namespace
}  // namespace cachalot
