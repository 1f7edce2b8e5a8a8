// How a matmul of few rows of x is dealt to the blocks of the decode kernel (gemv.cuh): the numbers to tune are all here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/matmul/matmul_cuda.h"

namespace cachalot {

// Where the decode kernel is taken instead of the stream kernel.
inline constexpr int kGemvRows = 4;    // rows of x, at most; mma leaves room for 8
// Experts: pairs (token, expert), at most, and k (256 experts of [4096, 7168] in FP8, one token: 94 against 73 us).
inline constexpr int kGemvPairs = 24;
inline constexpr int kGemvMaxExpertK = 4096;
// Dense: a Llama-8B step at batch 1 gains 14 % over 2048, DeepSeek-V3's in FP8 3 %
// (docs/measurements/2026-11-30-h200.md).
inline constexpr int kGemvMaxDenseK = 14336;
inline constexpr int kGemvLongK = 2048;  // what CudaTune::Alone::kLong takes for long is longer
// Rows of codes: at every k whose x fits; their bytes are few, so what a kernel costs beside them counts more.
inline constexpr int kGemvMaxCodeK = 1 << 16;

inline constexpr int kGemvWarps = 16;      // of a block, at most
// Rows of codes may have twice as many (CudaTune::gemv_code_warps): decoding waits less where more warps take turns.
inline constexpr int kGemvManyWarps = 32;
constexpr bool GemvHasManyWarps(DType dtype) { return IsCodeRow(dtype) && !CodeRowOf(dtype).levels; }
inline constexpr int kGemvTileRows = 16;   // rows of W that a warp multiplies at a time: mma's m
inline constexpr int kGemvPartials = 4096;  // values that the warps of a block leave for each other, at most
inline constexpr int kGemvMinRows = 2;     // of W, of a block: below, x costs more than W
inline constexpr int kGemvBlockCost = 8;   // what a block costs beside its rows, in rows of W

// Bits of a value, and values of the 64 bytes of a row that four lanes load at a time.
constexpr int GemvBits(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 ? 16 : dtype == DType::kQ8_0 || dtype == DType::kFP8E4M3 ? 8 : 4;
}
constexpr int GemvPieceValues(DType dtype) { return IsCodeRow(dtype) ? 128 : 512 / GemvBits(dtype); }

// A warp's stage: 64 bytes of each of a tile's rows, then their scales and minima in 32 slots. Rows of codes: gemv_codes.cuh.
constexpr int GemvScaleBytes(DType dtype) {  // of a row's 64 bytes: F16, one for 32 values; FP8: F32, one for 128
  if (IsCodeRow(dtype)) {  // of a chunk
    const CodeRow row = CodeRowOf(dtype);
    return row.whole_blocks ? row.record_bytes + (row.top_bytes > 0 ? 4 : 0) : (row.record_bytes + row.top_bytes) / 2;
  }
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return 0;
    case DType::kQ4_0:
    case DType::kQ4_1:
      return 8;
    default:
      return 4;
  }
}
constexpr int GemvStageBytes(DType dtype) {
  if (IsCodeRow(dtype)) {
    return kGemvTileRows * (16 * (CodeRowOf(dtype).code_bits + CodeRowOf(dtype).high_bits) + GemvScaleBytes(dtype));
  }
  return 64 * kGemvTileRows + 32 * GemvScaleBytes(dtype);
}
// So many that two blocks of one row of x have room on an SM: the next kernel's beside ours.
constexpr int GemvStages(DType dtype, int warps = kGemvWarps) {
  if (IsCodeRow(dtype)) return std::clamp((warps == kGemvWarps ? 88 << 10 : 96 << 10) / (warps * GemvStageBytes(dtype)), 2, 6);
  return GemvBits(dtype) == 16 ? 5 : 4;
}
// Two rows of x lie 64 bytes apart in the banks, so that eight lanes that read two of them meet no bank twice.
inline constexpr int kGemvXGap = 64;
constexpr int GemvXRowBytes(int64_t k) { return static_cast<int>((k + 127) / 128 * 256) + kGemvXGap; }

struct GemvShape {
  int warps = kGemvWarps;  // of a block, at most
  int columns = 1;    // rows of x of a block
  int blocks = 1;     // of a group (the matrix, a head, a slot of an expert's pairs), which share its rows of W evenly
  int rows = 1;       // of W of a block
  int longer = 0;     // blocks, the first ones, that have one more
  int splits = 1;     // warps that share the pieces of a row
  int teams = 1;      // of `splits` warps each, that share the tiles of a block
  int pass_tiles = 1;  // tiles between two reductions, a multiple of `teams`
  int row_bytes = 0;    // of W; 256 rows' fit an int
  int x_row_bytes = 0;  // of a row of x as 16-bit values, padded with zeros to 128 of them, and the gap
};

// Blocks of a group: as many waves as cost least. A wave's blocks run side by side, one an SM.
inline int GemvBlocks(int64_t groups, int64_t n, int num_sms) {
  const int64_t most = std::max<int64_t>(n / kGemvMinRows, 1);
  int64_t best = 1, best_cost = INT64_MAX;
  for (int64_t waves = 1; waves <= 4; ++waves) {
    const int64_t blocks = std::clamp<int64_t>(waves * num_sms / groups, 1, most);
    const int64_t cost = (groups * blocks + num_sms - 1) / num_sms * ((n + blocks - 1) / blocks + kGemvBlockCost);
    if (cost < best_cost) best = blocks, best_cost = cost;
  }
  return static_cast<int>(best);
}

// Warps of a row: as many as its pieces keep about equally busy.
inline int GemvSplits(int64_t pieces, int warps) {
  int best = 1;
  double best_share = 0;
  for (int splits = warps; splits >= 1; splits /= 2) {
    const double share = static_cast<double>(pieces) / static_cast<double>((pieces + splits - 1) / splits * splits);
    if (splits > pieces || share <= best_share) continue;
    best = splits, best_share = share;
    if (share >= 0.9) break;
  }
  return best;
}

// How many tiles a block's teams take between two reductions.
inline void SetTeams(GemvShape* shape, int64_t teams, int64_t tiles) {
  shape->teams = static_cast<int>(teams);
  const int64_t rounds = kGemvPartials / (int64_t{shape->splits} * shape->columns * kGemvTileRows * teams);
  shape->pass_tiles = static_cast<int>(std::clamp<int64_t>(rounds, 1, (tiles + teams - 1) / teams) * teams);
}
inline int64_t GemvTiles(const GemvShape& shape, bool glu) {
  const int64_t tile_rows = glu ? kGemvTileRows / 2 : kGemvTileRows, rows = shape.rows + (shape.longer > 0 ? 1 : 0);
  return (rows + tile_rows - 1) / tile_rows;
}

// The order of summation of an output follows from `splits`, and so from k, the format and `warps` alone. `glu`: n counts gates, each of
// which brings its up; a tile is 8 of them.
inline GemvShape ShapeGemv(DType dtype, int64_t groups, int64_t n, int64_t k, int columns, int num_sms, bool glu = false,
                           int warps = kGemvWarps) {
  GemvShape shape;
  shape.warps = warps;
  shape.columns = columns;
  shape.row_bytes = static_cast<int>(CudaRowsOf(dtype, k).row_bytes);
  shape.x_row_bytes = GemvXRowBytes(k);
  shape.blocks = GemvBlocks(groups, glu ? 2 * n : n, num_sms);
  shape.rows = static_cast<int>(n / shape.blocks);
  shape.longer = static_cast<int>(n % shape.blocks);
  shape.splits = GemvSplits((k + GemvPieceValues(dtype) - 1) / GemvPieceValues(dtype), warps);
  const int64_t tiles = GemvTiles(shape, glu);
  SetTeams(&shape, std::min<int64_t>(warps / shape.splits, tiles), tiles);
  return shape;
}

// Dynamic shared memory: the warps' rings, x, the partial sums.
inline int64_t GemvSharedBytes(DType dtype, const GemvShape& shape) {
  const int64_t warps = int64_t{shape.teams} * shape.splits;
  return warps * GemvStages(dtype, shape.warps) * GemvStageBytes(dtype) + int64_t{shape.columns} * shape.x_row_bytes +
         int64_t{shape.splits} * shape.columns * shape.pass_tiles * kGemvTileRows * 4;
}
// A block that has its SM to itself asks for as much at least: two of them have no room on one.
inline constexpr int64_t kGemvAloneBytes = int64_t{115} << 10;
inline constexpr int64_t kGemvMaxSharedBytes = int64_t{224} << 10;
inline constexpr int64_t kGemvOwnSharedBytes = 1024;  // beside the dynamic ones

}  // namespace cachalot
