// Matmul of a few rows of x (decode): every warp streams its own pieces of rows of W, and no block waits for another.
//
// Bound: the bytes of W; what is left is latency, so all is made to begin early and to wait seldom. A block has one range
// of rows of one W. Tiles of 16 rows go to its teams of warps, the warps of a team share k. A lane brings the 16-byte pieces
// that it multiplies itself into a ring of its own in shared memory (cp.async; no barrier), before the kernels in front
// have ended. mma does the sums over the lanes and room for eight rows of x; those that there are not are copies of the last.
// The warps' sums of a tile meet in shared memory when the block's rows are through, or that memory is full.
//
// A fused call (kFused) normalises its rows of x itself, pairs rows of gates with their rows of ups in one tile and writes SwiGLU
// of the two (gemv_rows.cuh): launches less, the same bits.
//
// Invariant: an output is the sum over the warps of a team, in their order, of sums in the order of k: its bits depend only on
// its rows of x and W, k and the format.
#pragma once

#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/matmul/gemv_codes.cuh"
#include "kernels/matmul/gemv_rows.cuh"
#include "kernels/matmul/gemv_shape.h"
#include "kernels/matmul/matmul_launch.h"
#include "kernels/matmul/matmul_problem.cuh"
#include "kernels/matmul/stream_format.cuh"

namespace cachalot {
namespace {

// A warp's stage: 64 bytes of each of 16 rows as the lanes load them, then four slots of scales for each g = lane / 4: those
// of rows g and g + 8, their minima.
template <DType kType, int kWarps = kGemvWarps>
struct GemvStage {
  static constexpr int kValues = GemvPieceValues(kType);
  static constexpr int kBlocks = kValues / 32;
  static constexpr int kScaleBytes = GemvScaleBytes(kType);
  static constexpr int kScales = 64 * kGemvTileRows;
  static constexpr int kBytes = GemvStageBytes(kType);
  static constexpr int kStages = GemvStages(kType, kWarps);
  static constexpr int kWarpBytes = kStages * kBytes;
  // Minima and levels want more registers.
  static constexpr int kBlocksPerSm = kWarps > kGemvWarps || kType == DType::kQ4_1 || kType == DType::kIQ4_NL || kType == DType::kIQ4_XS ? 1 : 2;
};

template <int kBytes>
__device__ __forceinline__ void CopyScalesAsync(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? kBytes : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared), "l"(global), "n"(kBytes), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void LoadRing16(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
template <int kWords>
__device__ __forceinline__ void LoadSharedWords(uint32_t (&r)[kWords], uint32_t shared) {
  if constexpr (kWords == 1) {
    asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(r[0]) : "r"(shared) : "memory");
  } else {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n" : "=r"(r[0]), "=r"(r[1]) : "r"(shared) : "memory");
  }
}

// What a warp loads: pieces [piece_begin, piece_end) of tile after tile.
template <DType kType>
struct GemvLoader {
  using F = StreamFormat<kType>;
  using S = GemvStage<kType>;
  const std::byte* w;           // of row g of the tile, at this lane's 16 bytes of piece 0
  int row, row_step, row_end;   // the tile's first, from tile to tile of the team, where the block's rows end
  int upper_rows, upper_bytes;  // from row g of a tile to the one that goes with it, as the block counts rows and in W
  int scales_from_w;            // from `w` to the scales or minima that this lane brings, of rows g or g + 8
  int piece, piece_begin, piece_end;
  int stage = 0;                // where the next goes: when the ring is full, that of the oldest

  __device__ __forceinline__ void Enter(const MatmulProblem& p, const MatmulGroupView& group, int row_bytes) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    w = group.w + int64_t{row + lane / 4} * row_bytes + lane % 4 * 16;
    scales_from_w = static_cast<int>(lane % 4 < 2 ? p.layout.scales_offset : p.layout.minima_offset) - lane % 4 * 16 +
                    lane % 2 * upper_bytes;
  }

  // One stage, as one group; zeros beyond the last row.
  __device__ __forceinline__ void Next(const MatmulProblem& p, int row_bytes, const float* block_scales, uint32_t ring) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t at = ring + stage * S::kBytes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      bool valid = row + lane / 4 + h * upper_rows < row_end;
      if constexpr (F::kBits == 16) valid = valid && piece * 64 + lane % 4 * 16 < row_bytes;
      CopyAsync16(at + h * 512 + lane * 16, w + (h * upper_bytes + piece * 64), valid);
    }
    if constexpr (S::kScaleBytes > 0) {
      bool valid = row + lane / 4 + lane % 2 * upper_rows < row_end && (F::kMinima || lane % 4 < 2);
      const void* from = w;
      if constexpr (F::kFp8) {
        valid = valid && block_scales != nullptr;
        const int r = row + lane / 4 + lane % 2 * (p.glu_rows > 0 ? p.glu_rows : 8);
        if (valid) from = block_scales + int64_t{r >> (p.block_scale_rows == 1 ? 0 : 7)} * ((p.k + 127) / 128) + piece / 2;
      } else {
        from = w + (scales_from_w + piece * S::kScaleBytes);
      }
      CopyScalesAsync<S::kScaleBytes>(at + S::kScales + lane * S::kScaleBytes, from, valid);
    }
    CommitAsync();
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    if (++piece == piece_end) piece = piece_begin, row += row_step, w += row_step * row_bytes;
  }
};

// acc += W x of one stage; `x`: this lane's 16 bytes of block 0 of the piece.
template <DType kType>
__device__ __forceinline__ void MultiplyPiece(uint32_t stage, uint32_t x, bool scaled, float (&acc)[4]) {
  using F = StreamFormat<kType>;
  using S = GemvStage<kType>;
  using Element = typename F::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t raw[2][4];
#pragma unroll
  for (int h = 0; h < 2; ++h) LoadRing16(raw[h], stage + h * 512 + lane * 16);
  constexpr int kScaleWords = S::kScaleBytes > 4 ? 2 : 1;
  uint32_t scale_bits[2][kScaleWords] = {}, min_bits[2][kScaleWords] = {};
  if constexpr (S::kScaleBytes > 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t slot = stage + S::kScales + (lane / 4 * 4 + h) * S::kScaleBytes;
      LoadSharedWords(scale_bits[h], slot);
      if constexpr (F::kMinima) LoadSharedWords(min_bits[h], slot + 2 * S::kScaleBytes);
    }
  }
  float piece_sum[4] = {};  // FP8: one scale for all
#pragma unroll
  for (int b = 0; b < S::kBlocks; ++b) {
    uint32_t a[2][4], x_bits[4];
    LoadRing16(x_bits, x + b * 64);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t w[2][2];
      UnpackBlock<kType>(raw[h], b, w);
#pragma unroll
      for (int j = 0; j < 2; ++j) a[j][h] = w[j][0], a[j][2 + h] = w[j][1];
    }
    if constexpr (F::kDirect) {
      Mma(acc, a[0], x_bits[0], x_bits[1], Element{});
      Mma(acc, a[1], x_bits[2], x_bits[3], Element{});
    } else if constexpr (F::kFp8) {
      Mma(piece_sum, a[0], x_bits[0], x_bits[1], Element{});
      Mma(piece_sum, a[1], x_bits[2], x_bits[3], Element{});
    } else {
      float sum[4] = {}, sum_x[4] = {};
      Mma(sum, a[0], x_bits[0], x_bits[1], Element{});
      Mma(sum, a[1], x_bits[2], x_bits[3], Element{});
      if constexpr (F::kMinima) {
        constexpr uint32_t kOnes[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
        Mma(sum_x, kOnes, x_bits[0], x_bits[1], Element{});
        Mma(sum_x, kOnes, x_bits[2], x_bits[3], Element{});
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        acc[c] = fmaf(HalfBits(scale_bits[c / 2][b / 2] >> (b % 2 * 16)), sum[c], acc[c]);
        if constexpr (F::kMinima) acc[c] = fmaf(HalfBits(min_bits[c / 2][b / 2] >> (b % 2 * 16)), sum_x[c], acc[c]);
      }
    }
  }
  if constexpr (F::kFp8) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      acc[c] = fmaf(scaled ? __uint_as_float(scale_bits[c / 2][0]) : 1.0f, piece_sum[c], acc[c]);
    }
  }
}

// Of an expert, the pairs from `pair` on that a block multiplies; m 0: another block's, or none.
struct GemvPairs {
  int m;
  const std::byte* w;
  const float* block_scales;
};
template <typename T>
__device__ __forceinline__ T* LoadPointer(T* const* from) {  // issued where it stands
  uint64_t bits;
  asm volatile("ld.global.b64 %0, [%1];\n" : "=l"(bits) : "l"(from) : "memory");
  return reinterpret_cast<T*>(bits);
}
__device__ __forceinline__ void FindPairs(const MatmulProblem& p, int pair, int columns, GemvPairs* found) {
  if (threadIdx.x == 0) found->m = 0;
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < p.num_groups; e += static_cast<int>(blockDim.x)) {
    const std::byte* w = LoadPointer(p.expert_data + e);
    const float* scales = p.expert_block_scales != nullptr ? LoadPointer(p.expert_block_scales + e) : nullptr;
    const int begin = p.expert_begin[e], end = p.expert_begin[e + 1];
    if (begin <= pair && pair < end && (pair - begin) % columns == 0) *found = {min(columns, end - pair), w, scales};
  }
  __syncthreads();
}

__device__ __forceinline__ MatmulGroupView GemvGroupOf(const MatmulProblem& p, int slot, const GemvPairs& pairs) {
  if (p.expert_begin == nullptr) return GroupOf(p, slot);
  MatmulGroupView group;
  group.first = slot;
  group.m = pairs.m;
  group.w = pairs.w;
  group.block_scales = pairs.block_scales;
  group.y = p.y;
  return group;
}

// What a block has in shared memory beside its dynamic part.
template <bool kFused>
struct GemvMemory {
  GemvPairs pairs;
  std::conditional_t<kFused, GemvNorms, int> norms;
};

// The work of block `block_idx` of a problem's; LetNextKernelStart has been called.
template <DType kType, bool kFused, int kWarps = kGemvWarps>
__device__ __forceinline__ void RunGemvBlock(const MatmulProblem& p, const GemvShape& shape, bool aligned_x, int block_idx,
                                             unsigned char* shared, GemvMemory<kFused>* memory) {
  using F = StreamFormat<kType>;
  using S = GemvStage<kType, kWarps>;
  GemvPairs& pairs = memory->pairs;
  const bool glu = kFused && p.glu_rows > 0;
  const int tile_rows = glu ? kGemvTileRows / 2 : kGemvTileRows;  // as the block counts: gates with their ups are one
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);  // known to be one for all lanes
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
  const int slot = block_idx / shape.blocks, block = block_idx % shape.blocks;
  const bool experts = p.expert_begin != nullptr;
  if (kFused && p.norm_weight != nullptr) PrefetchNormWeight(p.norm_weight, p.k);
  if (experts) {
    WaitForEarlierKernels();
    FindPairs(p, slot, shape.columns, &pairs);
    if (pairs.m == 0) return;
  }
  const MatmulGroupView group = GemvGroupOf(p, slot, pairs);
  const int row_begin = block * shape.rows + min(block, shape.longer);
  const int row_end = row_begin + shape.rows + (block < shape.longer ? 1 : 0);
  const int tiles = (row_end - row_begin + tile_rows - 1) / tile_rows;
  const int team = warp / shape.splits, split = warp % shape.splits;
  const int pieces = (p.k + S::kValues - 1) / S::kValues;

  std::conditional_t<F::kCodes, GemvCodeLoader<kType, kWarps>, GemvLoader<kType>> loader;
  loader.row = row_begin + team * tile_rows;
  loader.row_step = shape.teams * tile_rows;
  loader.upper_rows = glu ? 0 : 8;
  loader.upper_bytes = (glu ? p.glu_rows : 8) * shape.row_bytes;
  loader.row_end = row_end;
  loader.Enter(p, group, shape.row_bytes);
  loader.piece_begin = pieces * split / shape.splits;
  loader.piece_end = pieces * (split + 1) / shape.splits;
  loader.piece = loader.piece_begin;
  const uint32_t ring = SharedAddress(shared) + warp * S::kWarpBytes;
#pragma unroll 1
  for (int i = 0; i < S::kStages; ++i) loader.Next(p, shape.row_bytes, group.block_scales, ring);

  if (!experts) WaitForEarlierKernels();
  unsigned char* x = shared + shape.teams * shape.splits * S::kWarpBytes;
  if constexpr (kFused) {
    const bool normed = p.norm_weight != nullptr;
    if (normed) FindNorms(p, group, &memory->norms);
    StageX<kType, true>(p, group, aligned_x, shape.x_row_bytes, normed ? &memory->norms : nullptr, x);
  } else if (kType == DType::kFP8E4M3 && HasHalfX(p)) {
    StageHalfX(p, group.m, shape.x_row_bytes, SharedAddress(x));
  } else {
    StageX<kType, false>(p, group, aligned_x, shape.x_row_bytes, nullptr, x);
  }
  __syncthreads();

  const GemvPartials partials = {reinterpret_cast<float*>(x + shape.columns * shape.x_row_bytes), shape.columns,
                                 shape.pass_tiles * kGemvTileRows};
  const uint32_t x_lane = SharedAddress(x) + min(g, group.m - 1) * shape.x_row_bytes + lane % 4 * 16;
  const bool scaled = group.block_scales != nullptr;
#pragma unroll 1
  for (int first = 0; first < tiles; first += shape.pass_tiles) {
    const int pass_end = min(tiles, first + shape.pass_tiles);
#pragma unroll 1
    for (int tile = first + team; tile < pass_end; tile += shape.teams) {
      float acc[4] = {};
#pragma unroll 1
      for (int piece = loader.piece_begin; piece < loader.piece_end; ++piece) {
        WaitAsync<S::kStages - 1>();
        if constexpr (S::kScaleBytes > 0) __syncwarp();  // the other lanes' scales are there
        const uint32_t stage = ring + loader.stage * S::kBytes, x_piece = x_lane + piece * S::kValues * 2;
        if constexpr (F::kCodes) {
          MultiplyCodePiece<kType>(stage, x_piece, piece, acc);
        } else {
          MultiplyPiece<kType>(stage, x_piece, scaled, acc);
        }
        if constexpr (S::kScaleBytes > 0) __syncwarp();  // and have been read
        loader.Next(p, shape.row_bytes, group.block_scales, ring);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = lane % 4 * 2 + c % 2;
        if (column < shape.columns) partials.At(split, column)[(tile - first) * kGemvTileRows + c / 2 * 8 + g] = acc[c];
      }
    }
    __syncthreads();
    const int n0 = row_begin + first * tile_rows;
    if (glu) {
      StoreGlu(p, GemvGroupOf(p, slot, pairs), partials, shape.splits, n0, min(row_end - n0, partials.rows / 2));
    } else {
      StoreSums(p, GemvGroupOf(p, slot, pairs), partials, shape.splits, n0, min(row_end - n0, partials.rows));
    }
    if (pass_end < tiles) __syncthreads();
  }
}

template <DType kType, bool kFused, int kWarps>
__global__ __launch_bounds__(kWarps * 32, GemvStage<kType, kWarps>::kBlocksPerSm) void GemvKernel(
    const __grid_constant__ MatmulProblem p, const __grid_constant__ GemvShape shape, bool aligned_x) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ GemvMemory<kFused> memory;
  LetNextKernelStart();
  RunGemvBlock<kType, kFused, kWarps>(p, shape, aligned_x, static_cast<int>(blockIdx.x), shared, &memory);
}

// Dynamic shared memory to ask for.
inline int64_t GemvLaunchBytes(DType dtype, const MatmulProblem& p, const GemvShape& shape) {
  const CudaTune::Alone alone = CurrentTune().gemv_alone;
  const bool is_alone = alone == CudaTune::Alone::kAll || (alone == CudaTune::Alone::kLong && p.k > kGemvLongK);
  return std::max(GemvSharedBytes(dtype, shape), is_alone ? kGemvAloneBytes : 0);
}

}  // namespace

template <DType kType>
CudaStatus LaunchGemv(const CudaExec& exec, const MatmulProblem& p, const GemvShape& shape, int64_t slots) {
  const int64_t shared_bytes = GemvLaunchBytes(kType, p, shape);
  const bool fused = p.norm_weight != nullptr || p.glu_rows > 0;
  auto* kernel = fused ? &GemvKernel<kType, true, kGemvWarps> : &GemvKernel<kType, false, kGemvWarps>;
  if constexpr (GemvHasManyWarps(kType)) {
    if (shape.warps == kGemvManyWarps) {
      kernel = fused ? &GemvKernel<kType, true, kGemvManyWarps> : &GemvKernel<kType, false, kGemvManyWarps>;
    }
  }
  if (CudaStatus failure = AllowSharedBytes(kernel, shared_bytes, "matmul")) return failure;
  LaunchOverlapped<LaunchRole::kDecodeMatmul>(kernel, slots * shape.blocks, shape.teams * shape.splits * 32, shared_bytes, exec.stream, p, shape,
                   HasAlignedX(p));
  return CudaLaunched("matmul of %lld groups, m %d, n %d, k %d, weights of type number %d", static_cast<long long>(slots),
                      shape.columns, p.n, p.k, static_cast<int>(kType));
}

}  // namespace cachalot
