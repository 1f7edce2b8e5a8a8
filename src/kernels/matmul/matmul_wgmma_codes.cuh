// Matmul of 8-bit and 4-bit codes on wgmma (sm_90a), for 16 to 128 rows of x at a time: the stream kernel with wgmma in place
// of mma. Codes go from shared memory through registers, where they become F16, to the tensor cores, which read x from shared
// memory; a block's sums are scaled as they join the accumulators, so nothing is rounded that the stream kernel would not.
//
// Bound: the bytes of W and, from L2, of x.
#pragma once

#include "kernels/matmul/matmul_wgmma.cuh"
#include "kernels/matmul/stream_source.cuh"

namespace cachalot {
namespace {

// A stage is the stream kernel's, but for x: two panels of 64 values, in the swizzle that wgmma knows.
template <DType kType, int kColumns>
struct CodesStage {
  using S = StreamStage<kType, kColumns, uint16_t>;
  static constexpr int kPanel = kColumns * 128;
  static constexpr int kBytes = (S::kBytes + 1023) / 1024 * 1024;
  static constexpr int kBlocksPerSm = StreamShape<kColumns>::kBlocksPerSm;
  static constexpr int kStages = std::min(6, ((kBlocksPerSm == 2 ? 108 : 208) << 10) / kBytes);
  static_assert(kStages >= 3 && S::kX % 1024 == 0 && S::kXBytes == 2 * kPanel);
};

template <int kColumns>
struct CodesX {
  static constexpr int kCopies = kColumns / 16;  // of a thread: 16 bytes of every 16th row

  const uint16_t* x;
  int x_row[kCopies];

  __device__ void Enter(const MatmulProblem& p, const StreamTile& tile) {
    const MatmulGroupView group = GroupOf(p, tile.group);
    x = static_cast<const uint16_t*>(p.x) + group.x_offset + threadIdx.x % 16 * 8;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int m = tile.m0 + static_cast<int>(threadIdx.x) / 16 + i * 16;
      x_row[i] = m < group.m ? XRow(p, group.first + m) : -1;
    }
  }
  __device__ void Copy(const MatmulProblem& p, int chunk, uint32_t x_shared) const {
    const int row = static_cast<int>(threadIdx.x) / 16, piece = static_cast<int>(threadIdx.x) % 16;
    const uint32_t to = x_shared + piece / 8 * (kColumns * 128) + Swizzled<128>(row, piece % 8);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool valid = x_row[i] >= 0;
      const void* from = valid ? x + x_row[i] * p.x_stride + chunk * 128 : p.x;  // p.x: named, not read
      CopyAsync16(to + i * 16 * 128, from, valid);
    }
  }
};

// One stage: acc += W x. This warp's 16 rows of W begin at `row0`.
template <DType kType, int kColumns>
__device__ __forceinline__ void MultiplyCodes(uint32_t stage, int row0, bool scaled, float (&acc)[kColumns / 2]) {
  using F = StreamFormat<kType>;
  using S = typename CodesStage<kType, kColumns>::S;
  constexpr int kBlocks = 4;  // of 32 values
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  row0 += lane / 4;
  uint32_t scale_bits[2][2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + h * 8;
    if constexpr (F::kFp8) {
      scale_bits[h][0] = __float_as_uint(1.0f);
      if (scaled) asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(scale_bits[h][0]) : "r"(stage + S::kScales + row * 4));
    } else {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n"
                   : "=r"(scale_bits[h][0]), "=r"(scale_bits[h][1])
                   : "r"(stage + S::kScales + row * 8));
    }
  }
  uint32_t raw[F::kPieces][2][4];
#pragma unroll
  for (int piece = 0; piece < F::kPieces; ++piece) {
#pragma unroll
    for (int h = 0; h < 2; ++h) LoadShared16(raw[piece][h], stage + HalfSwizzled<F::kRowBytes>(row0 + h * 8, piece * 4 + quad));
  }
  uint32_t a[2][2][4];  // of this block and of the next: the two steps of 16 values
  const auto unpack = [&](int block, uint32_t (&to)[2][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t w[2][2];
      UnpackBlock<kType>(raw[block / F::kBlocksPerPiece][h], block % F::kBlocksPerPiece, w);
#pragma unroll
      for (int j = 0; j < 2; ++j) to[j][h] = w[j][0], to[j][2 + h] = w[j][1];
    }
  };
  float sum[kColumns / 2];
  const uint64_t x[2] = {ColumnsDescriptor(stage + S::kX), ColumnsDescriptor(stage + S::kX + CodesStage<kType, kColumns>::kPanel)};
  unpack(0, a[0]);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    WgmmaBegin();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Wgmma<__half, kColumns, false>::MmaRegisters(sum, a[block % 2][j], x[block / 2] + (block % 2 * 2 + j) * 2,
                                                   j > 0 || (F::kFp8 && block > 0));
    }
    WgmmaCommit();
    if (block + 1 < kBlocks) {
      if constexpr (F::kFp8) WgmmaWait<1>();  // whoever reads a[(block + 1) % 2] is done
      unpack(block + 1, a[(block + 1) % 2]);
    }
    if constexpr (F::kFp8) {
      if (block + 1 < kBlocks) continue;
    }
    WgmmaWait<0>(sum);
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = F::kFp8 ? __uint_as_float(scale_bits[h][0]) : HalfBits(scale_bits[h][block / 2] >> (block % 2 * 16));
    }
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) acc[i] = fmaf(scale[i / 2 % 2], sum[i], acc[i]);
  }
}

template <DType kType, int kColumns>
struct CodesTiles {
  const MatmulProblem& p;
  const StreamWork& work;
  const int* first_slots;
  StreamSource<kType, kColumns, uint16_t> w;
  CodesX<kColumns> x;

  __device__ __forceinline__ StreamTile At(int tile) const { return TileAt<kStreamRows, kColumns>(p, work, first_slots, tile); }
  __device__ __forceinline__ void Enter(int index) {
    const StreamTile tile = At(index);
    w.EnterW(p, tile);
    x.Enter(p, tile);
  }
  __device__ __forceinline__ void CopyW(int chunk, uint32_t stage) const { w.CopyW(p, chunk, stage); }
  __device__ __forceinline__ void CopyX(int chunk, uint32_t stage) const {
    x.Copy(p, chunk, stage + CodesStage<kType, kColumns>::S::kX);
  }
};

template <DType kType, int kColumns>
__global__ __launch_bounds__(kStreamThreads, StreamShape<kColumns>::kBlocksPerSm) void CodesKernel(
    const __grid_constant__ MatmulProblem p, const __grid_constant__ StreamWork work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Stage = CodesStage<kType, kColumns>;
  constexpr int kStages = Stage::kStages, kAhead = kStages - 1;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int tid = static_cast<int>(threadIdx.x), chunks = work.chunks;
  int* first_slots = reinterpret_cast<int*>(shared + kStages * Stage::kBytes);
  const bool experts = p.expert_begin != nullptr;
  StreamLine line;
  if (!EnterStream<kColumns>(p, work, first_slots, &line)) return;
  const uint32_t ring = SharedAddress(shared);
  StreamRing<kStages, Stage::kBytes, kAhead, CodesTiles<kType, kColumns>> loads = {{p, work, first_slots, {}, {}}, line, chunks, ring};
  loads.Fill(experts);

  bool scaled = false;
  if constexpr (StreamFormat<kType>::kFp8) scaled = p.block_scales != nullptr || p.expert_block_scales != nullptr;
  const int row0 = tid / 32 * 16;
  int tile_idx = static_cast<int>(line.begin / chunks), stage = 0;
#pragma unroll 1
  for (int64_t unit = line.begin; unit < line.end; ++tile_idx) {
    const auto tile_end = min(line.end, (int64_t{tile_idx} + 1) * chunks);
    float acc[kColumns / 2] = {};
#pragma unroll 1
    for (; unit < tile_end; ++unit) {
      WaitAsync<kAhead - 1>();
      FenceForWgmma();
      __syncthreads();  // this stage is there, the one before has been multiplied
      loads.Next(true, true);
      MultiplyCodes<kType, kColumns>(ring + stage * Stage::kBytes, row0, scaled, acc);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (FoldPieces(work.plan, line, tile_idx, chunks, acc)) {
      const StreamTile tile = loads.source.At(tile_idx);
      StoreSums(p, tile, tile.n0 + row0, p.n, acc);
    }
  }
#endif
}

template <DType kType, int kColumns>
CudaStatus LaunchCodesTile(const CudaExec& exec, const MatmulProblem& p, const StreamPlan& plan) {
  using Stage = CodesStage<kType, kColumns>;
  StreamWork work;
  work.plan = plan;
  work.n_tiles = (p.n + kStreamRows - 1) / kStreamRows;
  work.m_tiles = (p.m + kColumns - 1) / kColumns;
  work.chunks = (p.k + 127) / 128;
  auto* kernel = &CodesKernel<kType, kColumns>;
  const int shared_bytes = Stage::kStages * Stage::kBytes + (p.expert_begin != nullptr ? (p.num_groups + 1) * 4 : 0);
  if (CudaStatus failure = AllowSharedBytes(kernel, shared_bytes, "matmul")) {
    return failure;
  }
  LaunchOverlapped<LaunchRole::kMatmul>(kernel, StreamBlocks(kColumns, exec.num_sms), kStreamThreads, shared_bytes, exec.stream, p, work);
  return CudaLaunched("matmul (wgmma, codes, %d columns) of %d groups, m %d, n %d, k %d", kColumns, p.num_groups, p.m, p.n, p.k);
}

template <DType kType>
CudaStatus LaunchCodesOf(const CudaExec& exec, const MatmulProblem& p, const StreamPlan& plan) {
  switch (plan.columns) {
    case 16:
      return LaunchCodesTile<kType, 16>(exec, p, plan);
    case 32:
      return LaunchCodesTile<kType, 32>(exec, p, plan);
    case 64:
      return LaunchCodesTile<kType, 64>(exec, p, plan);
    default:
      return LaunchCodesTile<kType, 128>(exec, p, plan);
  }
}

}  // namespace
}  // namespace cachalot
