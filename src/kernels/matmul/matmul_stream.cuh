// Matmul on tensor cores that streams W once: tiles of 128 rows of W by 8 to 128 rows of x, 64 or 128 values of k at a time
// through a ring of shared memory.
//
// Bound: the bytes of W (up to about 64 rows of x), then the tensor cores. W is mma's A operand, so that a tile of few rows
// of x wastes little. The blocks stay: the chunks of all tiles (of all heads, or of all experts that have pairs) are one
// line, cut into as many equal ranges as there are blocks, and each block's ring runs on from tile to tile. A tile that is
// cut is written to memory in pieces, and they are folded in the order of k (stream_fold.cuh).
//
// Invariant: the order of summation of an output is that of k within a range, then that of the ranges. With ranges that do
// not depend on m its bits do not either: a column of a tile has no part in another's.
#pragma once

#include <algorithm>

#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/matmul/code_mma.cuh"
#include "kernels/matmul/stream_fold.cuh"
#include "kernels/matmul/stream_ring.cuh"
#include "kernels/matmul/stream_source.cuh"

namespace cachalot {
namespace {

// x of columns 8 j .. 8 j + 7, block `block` of the stage: mma's B registers for this lane.
template <DType kType, int kColumns, typename X>
__device__ __forceinline__ void LoadXFragment(uint32_t x_shared, int column_tile, int block, uint32_t (&out)[4]) {
  using F = StreamFormat<kType>;
  using S = StreamStage<kType, kColumns, X>;
  using Element = typename F::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32, row = column_tile * 8 + lane / 4, quad = lane % 4;
  if constexpr (sizeof(X) == 2) {
    LoadShared16(out, x_shared + HalfSwizzled<S::kXRowBytes>(row, block * 4 + quad));
  } else {
    constexpr bool kNibble = F::kOrder == StreamOrder::kNibble;
    float f[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t r[4];
      const int piece = block * 8 + (kNibble ? half * 4 + quad : quad * 2 + half);
      LoadShared16(r, x_shared + FloatSwizzled<S::kXRowBytes, F::kOrder>(row, piece));
#pragma unroll
      for (int j = 0; j < 4; ++j) f[half * 4 + j] = __uint_as_float(r[j]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* v = f + half * 4;
      if constexpr (F::kOrder == StreamOrder::kPlain) {
        out[half * 2] = PackX(v[0], v[1], Element{});
        out[half * 2 + 1] = PackX(v[2], v[3], Element{});
      } else {
        out[half * 2] = PackX(v[0], v[2], Element{});
        out[half * 2 + 1] = PackX(v[1], v[3], Element{});
      }
    }
  }
}

// One stage of a row of codes, chunk `chunk`: acc += W x.
template <DType kType, int kColumns, typename X>
__device__ __forceinline__ void MultiplyCodeStage(uint32_t stage, int chunk, int live_tiles,
                                                  float (&acc)[StreamShape<kColumns>::kRowTiles][StreamShape<kColumns>::kColumnTiles][4]) {
  using C = CodeChunk<kType>;
  using S = StreamStage<kType, kColumns, X>;
  using Shape = StreamShape<kColumns>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp % Shape::kWarpRows * Shape::kRowTiles * 16 + lane / 4;
  const int column0 = warp / Shape::kWarpRows * Shape::kColumnTiles;
  CodeFragment<kType> rows[Shape::kRowTiles][2];
#pragma unroll
  for (int rt = 0; rt < Shape::kRowTiles; ++rt) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row0 + rt * 16 + h * 8;
      rows[rt][h].Load(stage + row * C::kCodeBytes, stage + S::kHigh + row * C::kHighBytes, stage + S::kScales + row * C::kRecordBytes,
                       stage + S::kMinima + row * C::kTopBytes, chunk);
    }
  }
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    CodeBlock<kType> block[Shape::kRowTiles];
#pragma unroll
    for (int rt = 0; rt < Shape::kRowTiles; ++rt) block[rt].Unpack(rows[rt], b);
#pragma unroll
    for (int ct = 0; ct < Shape::kColumnTiles; ++ct) {
      if (ct >= live_tiles) break;
      uint32_t x[4];
      LoadXFragment<kType, kColumns, X>(stage + S::kX, column0 + ct, b, x);
      float sum_x[C::kSubBlocks][4];
      CodeBlock<kType>::SumX(x, sum_x);
#pragma unroll
      for (int rt = 0; rt < Shape::kRowTiles; ++rt) block[rt].Multiply(x, sum_x, acc[rt][ct]);
    }
  }
}

// One stage: acc += W x.
template <DType kType, int kColumns, typename X>
__device__ __forceinline__ void MultiplyStage(uint32_t stage, bool scaled, int live_tiles,
                                              float (&acc)[StreamShape<kColumns>::kRowTiles][StreamShape<kColumns>::kColumnTiles][4]) {
  using F = StreamFormat<kType>;
  using S = StreamStage<kType, kColumns, X>;
  using Shape = StreamShape<kColumns>;
  using Element = typename F::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp % Shape::kWarpRows * Shape::kRowTiles * 16 + lane / 4, quad = lane % 4;
  const int column0 = warp / Shape::kWarpRows * Shape::kColumnTiles;
  uint32_t scale_bits[Shape::kRowTiles][2][2] = {}, min_bits[Shape::kRowTiles][2][2] = {};
  if constexpr (!F::kDirect) {
#pragma unroll
    for (int rt = 0; rt < Shape::kRowTiles; ++rt) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row0 + rt * 16 + h * 8;
        if constexpr (F::kFp8) {
          scale_bits[rt][h][0] = __float_as_uint(1.0f);
          if (scaled) asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(scale_bits[rt][h][0]) : "r"(stage + S::kScales + row * 4));
        } else {
          asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n"
                       : "=r"(scale_bits[rt][h][0]), "=r"(scale_bits[rt][h][1])
                       : "r"(stage + S::kScales + row * 8));
          if constexpr (F::kMinima) {
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n"
                         : "=r"(min_bits[rt][h][0]), "=r"(min_bits[rt][h][1])
                         : "r"(stage + S::kMinima + row * 8));
          }
        }
      }
    }
  }
#pragma unroll
  for (int piece = 0; piece < F::kPieces; ++piece) {
    uint32_t raw[Shape::kRowTiles][2][4];
#pragma unroll
    for (int rt = 0; rt < Shape::kRowTiles; ++rt) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        LoadShared16(raw[rt][h], stage + HalfSwizzled<F::kRowBytes>(row0 + rt * 16 + h * 8, piece * 4 + quad));
      }
    }
#pragma unroll
    for (int b = 0; b < F::kBlocksPerPiece; ++b) {
      const int block = piece * F::kBlocksPerPiece + b;
      uint32_t a[Shape::kRowTiles][2][4];
      float scale[Shape::kRowTiles][2], minimum[Shape::kRowTiles][2];
#pragma unroll
      for (int rt = 0; rt < Shape::kRowTiles; ++rt) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t w[2][2];
          UnpackBlock<kType>(raw[rt][h], b, w);
#pragma unroll
          for (int j = 0; j < 2; ++j) a[rt][j][h] = w[j][0], a[rt][j][2 + h] = w[j][1];
          if constexpr (F::kFp8) scale[rt][h] = __uint_as_float(scale_bits[rt][h][0]);
          if constexpr (F::kBlockScales) scale[rt][h] = HalfBits(scale_bits[rt][h][block / 2] >> (block % 2 * 16));
          if constexpr (F::kMinima) minimum[rt][h] = HalfBits(min_bits[rt][h][block / 2] >> (block % 2 * 16));
        }
      }
#pragma unroll
      for (int ct = 0; ct < Shape::kColumnTiles; ++ct) {
        if (ct >= live_tiles) break;
        uint32_t x[4];
        LoadXFragment<kType, kColumns, X>(stage + S::kX, column0 + ct, block, x);
        float sum_x[4] = {};
        if constexpr (F::kMinima) {
          constexpr uint32_t kOnes[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
          Mma(sum_x, kOnes, x[0], x[1], Element{});
          Mma(sum_x, kOnes, x[2], x[3], Element{});
        }
#pragma unroll
        for (int rt = 0; rt < Shape::kRowTiles; ++rt) {
          if constexpr (F::kDirect) {
            Mma(acc[rt][ct], a[rt][0], x[0], x[1], Element{});
            Mma(acc[rt][ct], a[rt][1], x[2], x[3], Element{});
          } else {
            float sum[4] = {};
            Mma(sum, a[rt][0], x[0], x[1], Element{});
            Mma(sum, a[rt][1], x[2], x[3], Element{});
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              acc[rt][ct][c] = fmaf(scale[rt][c / 2], sum[c], acc[rt][ct][c]);
              if constexpr (F::kMinima) acc[rt][ct][c] = fmaf(minimum[rt][c / 2], sum_x[c], acc[rt][ct][c]);
            }
          }
        }
      }
    }
  }
}

template <int kColumns>
__device__ __forceinline__ void StoreTile(const MatmulProblem& p, const StreamTile& tile,
                                          const float (&acc)[StreamShape<kColumns>::kRowTiles][StreamShape<kColumns>::kColumnTiles][4]) {
  using Shape = StreamShape<kColumns>;
  const MatmulGroupView group = GroupOf(p, tile.group);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int n0 = tile.n0 + warp % Shape::kWarpRows * Shape::kRowTiles * 16 + lane / 4;
  const int m0 = tile.m0 + warp / Shape::kWarpRows * Shape::kColumnTiles * 8 + lane % 4 * 2;
#pragma unroll
  for (int rt = 0; rt < Shape::kRowTiles; ++rt) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = n0 + rt * 16 + h * 8;
      if (n >= p.n) continue;
      const float bias = p.bias != nullptr ? p.bias[n] : 0.0f;
#pragma unroll
      for (int ct = 0; ct < Shape::kColumnTiles; ++ct) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int m = m0 + ct * 8 + c;
          if (m >= group.m) continue;
          float* y = group.y + int64_t{group.first + m} * p.y_stride + n;
          const float sum = acc[rt][ct][h * 2 + c] + bias;
          *y = p.accumulate ? *y + sum : sum;
        }
      }
    }
  }
}

template <DType kType, int kColumns, typename X>
struct StreamTiles {
  const MatmulProblem& p;
  const StreamWork& work;
  const int* first_slots;
  StreamSource<kType, kColumns, X> from;

  __device__ __forceinline__ StreamTile At(int tile) const { return TileAt<kStreamRows, kColumns>(p, work, first_slots, tile); }
  __device__ __forceinline__ void Enter(int tile) { from.Enter(p, At(tile)); }
  __device__ __forceinline__ void CopyW(int chunk, uint32_t stage) const { from.CopyW(p, chunk, stage); }
  __device__ __forceinline__ void CopyX(int chunk, uint32_t stage) const { from.CopyX(p, chunk, stage); }
};

template <DType kType, int kColumns, typename X>
__global__ __launch_bounds__(kStreamThreads, StreamShape<kColumns>::kBlocksPerSm) void StreamKernel(
    const __grid_constant__ MatmulProblem p, const __grid_constant__ StreamWork work) {
  using F = StreamFormat<kType>;
  using S = StreamStage<kType, kColumns, X>;
  using Shape = StreamShape<kColumns>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = static_cast<int>(threadIdx.x), chunks = work.chunks;
  int* first_slots = reinterpret_cast<int*>(shared + S::kRingBytes);
  const bool experts = p.expert_begin != nullptr;
  StreamLine line;
  if (!EnterStream<kColumns>(p, work, first_slots, &line)) return;
  const uint32_t ring = SharedAddress(shared);
  StreamRing<S::kStages, S::kBytes, S::kStages - 1, StreamTiles<kType, kColumns, X>> loads = {{p, work, first_slots, {}}, line, chunks, ring};
  loads.Fill(experts);

  float acc[Shape::kRowTiles][Shape::kColumnTiles][4] = {};
  int tile_idx = static_cast<int>(line.begin / chunks), chunk = static_cast<int>(line.begin % chunks), stage = 0;
  StreamTile tile = loads.source.At(tile_idx);
  const int warp_column = tid / 32 / Shape::kWarpRows * Shape::kColumnTiles * 8;
  const auto live_tiles_of = [&](const StreamTile& t) {
    const int m = experts ? p.expert_begin[t.group + 1] - p.expert_begin[t.group] : p.m;
    return (m - t.m0 - warp_column + 7) / 8;
  };
  int live_tiles = live_tiles_of(tile);
  bool scaled = false;
  if constexpr (F::kFp8) scaled = p.block_scales != nullptr || p.expert_block_scales != nullptr;
#pragma unroll 1
  for (int64_t unit = line.begin; unit < line.end; ++unit) {
    WaitAsync<S::kStages - 2>();
    __syncthreads();  // this stage is there, the one before has been read
    loads.Next(true, true);
    if constexpr (F::kCodes) {
      MultiplyCodeStage<kType, kColumns, X>(ring + stage * S::kBytes, chunk, live_tiles, acc);
    } else {
      MultiplyStage<kType, kColumns, X>(ring + stage * S::kBytes, scaled, live_tiles, acc);
    }
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    ++chunk;
    if (chunk < chunks && unit + 1 < line.end) continue;

    if (live_tiles > 0 && FoldPieces(work.plan, line, tile_idx, chunks, reinterpret_cast<float(&)[Shape::kFragment]>(acc))) {
      StoreTile<kColumns>(p, tile, acc);
    }
#pragma unroll
    for (auto& row : acc) {
#pragma unroll
      for (auto& fragment : row) {
#pragma unroll
        for (float& value : fragment) value = 0;
      }
    }
    chunk = 0;
    ++tile_idx;
    if (unit + 1 < line.end) {
      tile = loads.source.At(tile_idx);
      live_tiles = live_tiles_of(tile);
    }
  }
}

template <DType kType, int kColumns, typename X>
CudaStatus LaunchStreamShape(const CudaExec& exec, const MatmulProblem& p, const StreamPlan& plan) {
  using S = StreamStage<kType, kColumns, X>;
  StreamWork work;
  work.plan = plan;
  work.n_tiles = (p.n + kStreamRows - 1) / kStreamRows;
  work.m_tiles = (p.m + kColumns - 1) / kColumns;
  work.chunks = (p.k + StreamFormat<kType>::kChunk - 1) / StreamFormat<kType>::kChunk;
  auto* kernel = &StreamKernel<kType, kColumns, X>;
  const int shared_bytes =
      S::kRingBytes + (p.expert_begin != nullptr ? (p.num_groups + 1) * static_cast<int>(sizeof(int)) : 0);
  if (CudaStatus failure = AllowSharedBytes(kernel, shared_bytes, "matmul")) {
    return failure;
  }
  const int grid = plan.num_ranges > 0 ? plan.num_ranges : StreamBlocks(kColumns, exec.num_sms);
  LaunchOverlapped<LaunchRole::kMatmul>(kernel, grid, kStreamThreads, shared_bytes, exec.stream, p, work);
  return CudaLaunched("matmul of %d groups, m %d, n %d, k %d, weights of type number %d", p.num_groups, p.m, p.n, p.k,
                      static_cast<int>(kType));
}

}  // namespace

template <DType kType>
CudaStatus LaunchStream(const CudaExec& exec, const MatmulProblem& p, const StreamPlan& plan) {
  switch (plan.columns) {
    case 8:
      return plan.x_f32 ? LaunchStreamShape<kType, 8, float>(exec, p, plan) : LaunchStreamShape<kType, 8, uint16_t>(exec, p, plan);
    case 16:
      return LaunchStreamShape<kType, 16, uint16_t>(exec, p, plan);
    case 32:
      return LaunchStreamShape<kType, 32, uint16_t>(exec, p, plan);
    case 64:
      return LaunchStreamShape<kType, 64, uint16_t>(exec, p, plan);
    default:
      return LaunchStreamShape<kType, 128, uint16_t>(exec, p, plan);
  }
}

}  // namespace cachalot
