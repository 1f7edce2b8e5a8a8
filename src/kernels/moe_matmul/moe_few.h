// How the experts of a few tokens (moe_few.cuh) are dealt to the blocks, and where things lie in a block's shared memory. Numbers
// alone, so that they are tested where there is no card.
//
// Invariant: the blocks' tiles hold every row of every matrix once, and no block has more than a tile's row above its share.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#define CACHALOT_FEW_HD __host__ __device__ __forceinline__
#else
#define CACHALOT_FEW_HD inline
#endif

namespace cachalot {

inline constexpr int kFewTokens = 4;
inline constexpr int kFewPairs = 32;         // (token, expert), at most, and so experts that have any
inline constexpr int kFewExperts = 1024;
inline constexpr int kFewTileRows = 16;      // of W, of a tile: mma's m. Gate/up: 8 gates and their 8 ups
inline constexpr int kFewWarps = 16;         // that multiply; they share k
inline constexpr int kFewRunBytes = 64;      // of a row, that a warp multiplies of a stage
inline constexpr int kFewWholeBytes = 128;   // a row is a whole number of: what has one scale in FP8
inline constexpr int kFewStageRowBytes = kFewWarps * kFewRunBytes;
inline constexpr int kFewRowGap = 64;        // between rows in shared memory: eight lanes that read two of them meet no bank twice
inline constexpr int kFewStageStride = kFewStageRowBytes + kFewRowGap;
inline constexpr int kFewStageScales = kFewStageRowBytes / kFewWholeBytes;  // of a row
inline constexpr int kFewScalesAt = kFewTileRows * kFewStageStride;  // F32 [kFewStageScales, kFewTileRows], behind the rows
inline constexpr int kFewStageBytes = kFewScalesAt + kFewStageScales * kFewTileRows * 4;
inline constexpr int kFewLeastStages = 3;
inline constexpr int kFewMostStages = 12;
inline constexpr int kFewRoomyStages = 5;    // with fewer two launches are faster than one
inline constexpr int kFewPartials = 4;       // tiles whose sums wait for the warp that folds them
inline constexpr int kFewPartialBytes = kFewWarps * kFewTokens * kFewTileRows * 4;
inline constexpr int kFewMostDim = 8192;     // of x: 256 threads keep it in registers
inline constexpr int kFewMostBlockRows = 288;  // of the down matrix, of a block
// Of CudaExec::counters: blocks that have made their part of the shared expert's h, of the pairs' h, that have read both; then the logits' words.
inline constexpr int kFewSharedCounter = 0, kFewPairsCounter = 1, kFewLeftCounter = 2, kFewLogitsAt = 32;
inline constexpr int kFewMostRouterDim = 2048, kFewMostRouterExperts = 128;  // of a router in the same launch
// Stages that are on their way at once where the router is in the launch: enough for all of the memory's rate, and no more, since everything else that is
// loaded waits behind them.
inline constexpr int kFewInFlight = 4;
inline constexpr int64_t kFewOwnSharedBytes = 6 << 10;  // of a block, beside its dynamic part: barriers, the experts that have pairs
inline constexpr int64_t kFewMostSharedBytes = (int64_t{227} << 10) - kFewOwnSharedBytes;

struct FewRange {
  int begin, end;
};
// Block `block`'s share of `total`: equal but for one. total * blocks is a 32-bit number: whoever calls sees to it (FewFits).
CACHALOT_FEW_HD FewRange FewShare(int total, int block, int blocks) {
  const auto at = [&](int b) { return static_cast<int>(static_cast<uint32_t>(total) * static_cast<uint32_t>(b) / static_cast<uint32_t>(blocks)); };
  return {at(block), at(block + 1)};
}
inline bool FewFits(int64_t rows, int blocks) { return rows <= INT32_MAX / kFewPairs / std::max(blocks, 1); }

struct FewTile {
  int expert = -1;  // of those that have pairs; -1: the shared one
  int row = 0;      // of W, or gate
  int rows = 0;     // at most kFewTileRows, gates half as many
};

// The tiles of a block, of gate/up or of down matrices, in the order in which they are streamed: the shared expert's first, which are
// known before the router has chosen. Gate/up: the gates of all experts are one line, of which every block has an equal piece. Down: the
// same rows of every expert, one after the other, so that a block has all that a row of the result is made of.
class FewTiles {
 public:
  // `rows` of an expert, `shared_rows` of the shared one; gates in gate/up.
  CACHALOT_FEW_HD FewTiles(bool up, int shared_rows, int rows, int block, int blocks)
      : up_(up), rows_(rows), block_(block), blocks_(blocks), share_(FewShare(shared_rows, block, blocks)),
        of_each_(FewShare(up ? 0 : rows, block, blocks)) {}

  // False: there are no more. experts(): how many have pairs; asked for behind the shared expert's tiles. Divides seldom: sixteen warps do this for
  // every tile.
  template <typename Experts>
  CACHALOT_FEW_HD bool Next(const Experts& experts, FewTile* tile) {
    while (share_.begin >= share_.end) {
      const int count = experts();
      if (!up_) {
        if (++expert_ >= count) return false;
        share_ = of_each_;
        continue;
      }
      if (expert_ >= 0 || count == 0) return false;
      share_ = FewShare(count * rows_, block_, blocks_);
      expert_ = static_cast<int>(static_cast<uint32_t>(share_.begin) / static_cast<uint32_t>(rows_));
      expert_begin_ = expert_ * rows_;
    }
    int end = share_.end;
    if (up_ && expert_ >= 0) {  // within one expert
      if (share_.begin - expert_begin_ >= rows_) ++expert_, expert_begin_ += rows_;
      if (expert_begin_ + rows_ < end) end = expert_begin_ + rows_;
    }
    const int most = up_ ? kFewTileRows / 2 : kFewTileRows, left = end - share_.begin;
    tile->expert = expert_;
    tile->row = share_.begin - expert_begin_;
    tile->rows = left < most ? left : most;
    share_.begin += tile->rows;
    return true;
  }

 private:
  bool up_;
  int rows_, block_, blocks_;
  int expert_ = -1;
  int expert_begin_ = 0;  // gate/up: in the line of all experts' gates
  FewRange share_;
  FewRange of_each_;      // down: of every expert
};

// Stages of a tile whose rows have `row_bytes`.
CACHALOT_FEW_HD int FewStages(int row_bytes) { return (row_bytes + kFewStageRowBytes - 1) / kFewStageRowBytes; }
// From a row of x in shared memory, k 16-bit values, to the next.
CACHALOT_FEW_HD int FewXStride(int k) { return k * 2 + kFewRowGap; }

// Of a call; what is not there is 0.
struct FewShape {
  int tokens = 0, pairs = 0;
  int dim = 0;              // of x and of the result
  int gates = 0;            // of an expert
  int shared_gates = 0;
  bool up = true, down = true;  // which of the two a launch does
};
// Offsets in a block's dynamic shared memory; stages 0: it does not fit.
struct FewLayout {
  int stages = 0;    // of the ring, which comes first
  int x = 0;         // rows of x, later of the pairs' h
  int shared_h = 0;  // the shared expert's rows of h
  int partials = 0;  // [kFewPartials, kFewWarps, kFewTokens, kFewTileRows]
  int sums = 0;      // F32 [3, kFewTokens, block_rows]: of the experts, of the shared one, the residual stream
  int block_rows = 0;
  int bytes = 0;
  int in_flight = 0;  // stages, at most all: a stage's barrier says that it has landed until the slot's next one has
};
inline FewLayout LayFewOut(const FewShape& shape, int blocks, int64_t most_bytes) {
  int64_t x_bytes = 0, shared_bytes = 0, block_rows = 0;
  if (shape.up) x_bytes = int64_t{shape.tokens} * FewXStride(shape.dim);
  if (shape.down) {
    if (shape.shared_gates > 0) shared_bytes = int64_t{shape.tokens} * FewXStride(shape.shared_gates);
    x_bytes = std::max(x_bytes, int64_t{shape.pairs} * FewXStride(shape.gates));
    block_rows = (shape.dim + blocks - 1) / blocks;
  }
  FewLayout layout;
  const int64_t sums_bytes = int64_t{3} * kFewTokens * block_rows * 4;
  const int64_t rest = x_bytes + shared_bytes + int64_t{kFewPartials} * kFewPartialBytes + sums_bytes;
  const int64_t stages = std::min<int64_t>((most_bytes - rest) / kFewStageBytes, kFewMostStages);
  layout.block_rows = static_cast<int>(block_rows);
  if (most_bytes < rest || stages < kFewLeastStages) return layout;
  layout.stages = static_cast<int>(stages);
  layout.in_flight = layout.stages;
  layout.x = layout.stages * kFewStageBytes;
  layout.shared_h = layout.x + static_cast<int>(x_bytes);
  layout.partials = layout.shared_h + static_cast<int>(shared_bytes);
  layout.sums = layout.partials + kFewPartials * kFewPartialBytes;
  layout.bytes = layout.sums + static_cast<int>(sums_bytes);
  return layout;
}

}  // namespace cachalot
