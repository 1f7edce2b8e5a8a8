// How matmuls of one row of x that follow each other (chain.cuh) are dealt to the blocks, and where things
// lie in a block's shared memory. Numbers alone, so that they are tested where there is no card.
//
// Invariant: the blocks' tiles hold every row of a matrix once, and no block has more than a row above its
// share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_exec.h"
#include "kernels/matmul/chain_cuda.h"

#if defined(__CUDACC__)
#define CACHALOT_CHAIN_HD __host__ __device__ __forceinline__
#else
#define CACHALOT_CHAIN_HD inline
#endif

namespace cachalot {

inline constexpr int kChainMost = kMostChained;
inline constexpr int kChainTileRows = 16;   // of W, of a tile: mma's m. Gate/up: 8 gates and their 8 ups
inline constexpr int kChainTiles = 2;       // side by side: they share x, and their sums are folded together
inline constexpr int kChainWarps = 16;      // that multiply; they share k
inline constexpr int kChainRunBytes = 128;  // of a row, that a warp multiplies of a stage
inline constexpr int kChainStageRowBytes = kChainWarps * kChainRunBytes;
inline constexpr int kChainRecordBytes = 16;                                    // of a run
inline constexpr int kChainStageRecordBytes = kChainWarps * kChainRecordBytes;  // behind the codes
inline constexpr int kChainRowStride =
    kChainStageRowBytes + kChainStageRecordBytes + 64;  // eight lanes that read two rows meet no bank twice
inline constexpr int kChainLeastStages = 3;
inline constexpr int kChainMostStages = 8;
inline constexpr int kChainInFlight = 2;  // stages, at most, that are on their way
inline constexpr int kChainPartials = 3;  // times two tiles whose sums wait for the warp that folds them
inline constexpr int kChainPartialRows = kChainTiles * kChainTileRows;
inline constexpr int kChainPartialBytes = kChainWarps * kChainPartialRows * 4;
inline constexpr int kChainMostK = 16384;                 // of x, in shared memory
inline constexpr int64_t kChainOwnSharedBytes = 2 << 10;  // of a block, beside its dynamic part
inline constexpr int64_t kChainMostSharedBytes = (int64_t{227} << 10) - kChainOwnSharedBytes;

constexpr bool ChainReads(DType dtype) {
  return dtype == DType::kQ4_K;
}
inline constexpr int kChainRunValues = 256;  // a superblock, which has a record
inline constexpr int kChainStageValues = kChainWarps * kChainRunValues;
inline constexpr int kChainStageBytes = kChainTileRows * kChainRowStride;

// x in shared memory: of each run's values 2 bytes a value, then 64 bytes of scales and sums. A place is
// always the same warp's.
inline constexpr int kChainXRunBytes = kChainRunValues * 2 + 64;
constexpr int64_t ChainXBytes(int64_t k) {
  return k / kChainRunValues * kChainXRunBytes;
}

struct ChainRange {
  int begin, end;
};
// Block `block`'s share of `total`: equal but for one. total * blocks is a 32-bit number: whoever calls sees
// to it (ChainFits).
CACHALOT_CHAIN_HD ChainRange ChainShare(int total, int block, int blocks) {
  const auto at = [&](int b) {
    return static_cast<int>(static_cast<uint32_t>(total) * static_cast<uint32_t>(b) /
                            static_cast<uint32_t>(blocks));
  };
  return {at(block), at(block + 1)};
}

inline bool ChainFits(int64_t rows, int blocks) {
  return rows <= INT32_MAX / std::max(blocks, 1);
}

// Offsets in a block's dynamic shared memory; stages 0: it does not fit.
struct ChainLayout {
  int stages = 0;  // of the ring, which comes first
  int x = 0;
  int partials = 0;  // [kChainPartials, kChainWarps, kChainPartialRows]
  int bytes = 0;
};
inline ChainLayout LayChainOut(int64_t most_k, int64_t most_bytes) {
  const int64_t x_bytes = (ChainXBytes(most_k) + 127) / 128 * 128,
                rest = x_bytes + int64_t{kChainPartials} * kChainPartialBytes;
  ChainLayout layout;
  const int64_t stages = std::min<int64_t>((most_bytes - rest) / kChainStageBytes, kChainMostStages);
  if (most_bytes < rest || stages < kChainLeastStages) return layout;
  layout.stages = static_cast<int>(stages);
  layout.x = layout.stages * kChainStageBytes;
  layout.partials = layout.x + static_cast<int>(x_bytes);
  layout.bytes = layout.partials + kChainPartials * kChainPartialBytes;
  return layout;
}

// Words of device memory through which blocks hand each other what is x of a later matmul (chain_x.cuh).
inline constexpr int kChainNowhere = -1;
inline constexpr int kChainMostWords = (kChainMost - 1) * kChainMostK;

// One matmul of a chain as the kernel takes it.
struct ChainOp {
  const std::byte* w = nullptr;
  int rows = 0;  // of W; with glu the gates, behind all of which the ups lie
  int k = 0;
  int row_bytes = 0;
  int code_bytes = 0;  // of a row, from its beginning
  int records_at = 0;  // of a row; as many records as runs
  const float* x = nullptr;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  bool accumulate = false;
  bool glu = false;
  int from =
      kChainNowhere;  // of the exchange, where x comes from; kChainNowhere: x is what earlier kernels left
  int to = kChainNowhere;  // where y goes, too
};
struct ChainProblem {
  ChainOp ops[kChainMost];
  int count = 0;
  int words = 0;  // of the exchange
  ChainLayout layout = {};
};

template <DType kType>
CudaStatus LaunchChain(const CudaExec& exec, const ChainProblem& problem);

}  // namespace cachalot
