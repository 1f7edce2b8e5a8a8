// Dense matmul of 16-bit weights for 9 to 128 rows of x on sm_90: one warp of a block orders bulk copies of W and x, warpgroups
// multiply 64 rows of x each (wgmma's A) by all of a tile's rows of W (its B).
//
// Bound: the bytes of W. x comes from L2 once a tile and counts beside W, so tiles are high; where W has too few rows for as many
// high tiles as SMs, the two blocks of a cluster each take half of k of one tile and add up what they have through each other's
// shared memory, in the order of k. The cut (bulk_cut.h) depends on the shape alone, so bits do not depend on time. Clusters whose
// blocks share what they read of x, or of more blocks, were slower.
//
// Invariant: W is copied before the kernels in front have ended, x never is. A stage is written again only when every warp has
// multiplied it. Rows of W and x that a stage has not are multiplied from whatever lies
// there, and not kept.
#pragma once

#include "device/cuda/bulk_copy.cuh"
#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/matmul/glu_store.cuh"
#include "kernels/matmul/matmul_bulk.h"

namespace cachalot {
namespace {

constexpr int kBulkRowBytes = 128;  // of a panel: 64 values of k
constexpr int kCopierThreads = 32;

struct BulkMaps {
  CUtensorMap w, x;
};

// Where this block is in its cluster, and the addresses of its ring.
struct BulkBlock {
  int part, cluster;
  int begin, end;  // stages of k of a tile
  uint32_t ring, full, empty;

  __device__ __forceinline__ BulkBlock(const BulkCut& cut, uint32_t ring, uint32_t barriers)
      : part(static_cast<int>(blockIdx.x) % cut.parts),
        cluster(static_cast<int>(blockIdx.x) / cut.parts),
        begin(cut.steps * part / cut.parts),
        end(cut.steps * (part + 1) / cut.parts),
        ring(ring),
        full(barriers),
        empty(barriers + kBulkMostStages * 8) {}
};

// The copying thread's side of the ring.
template <int kPanels>
struct BulkCopies {
  const MatmulProblem& p;
  const BulkCut& cut;
  const BulkMaps& maps;
  const BulkBlock& block;

  __device__ __forceinline__ uint32_t Stage(int stage) const { return block.ring + stage * cut.stage_bytes; }
  __device__ __forceinline__ uint32_t Full(int stage) const { return block.full + stage * 8; }

  __device__ __forceinline__ void CopyW(int tile, int step, int stage) const {
    const int row = tile * cut.rows;
    ArriveExpecting(Full(stage), cut.stage_bytes);
#pragma unroll
    for (int j = 0; j < kPanels; ++j) {
      const uint32_t to = Stage(stage) + j * cut.rows * kBulkRowBytes;
      const int k = (step * kPanels + j) * 64;
      if (p.glu_rows > 0) {
        CopyBox(to, maps.w, k, 0, 0, row / 16, Full(stage), kEvictFirst);
      } else {
        CopyBox(to, maps.w, k, row, Full(stage), kEvictFirst);
      }
    }
  }
  __device__ __forceinline__ void CopyX(int step, int stage) const {
#pragma unroll
    for (int j = 0; j < kPanels; ++j) {
      const uint32_t to = Stage(stage) + (kPanels * cut.rows + j * cut.x_rows) * kBulkRowBytes;
      CopyBox(to, maps.x, (step * kPanels + j) * 64, 0, Full(stage), kEvictLast);
    }
  }

  __device__ __forceinline__ void Run() const {
    PrefetchMap(maps.w);
    PrefetchMap(maps.x);
    int tile = block.cluster, step = block.begin, filled = 0;
    const auto next = [&] {
      if (++step < block.end) return;
      step = block.begin;
      tile += cut.clusters;
    };
    for (; filled < cut.stages && tile < cut.tiles; ++filled, next()) CopyW(tile, step, filled);
    WaitForEarlierKernels();
    for (int stage = 0, k = block.begin; stage < filled; ++stage) {
      CopyX(k, stage);
      if (++k == block.end) k = block.begin;
    }
    uint32_t parity = 0;
    for (int stage = 0; tile < cut.tiles; next()) {
      WaitForPhase(block.empty + stage * 8, parity);
      CopyW(tile, step, stage);
      CopyX(step, stage);
      if (++stage == cut.stages) stage = 0, parity ^= 1;
    }
  }
};

// Value (m, n) of y, n of gates where SwiGLU is asked for; `up` counts then alone.
__device__ __forceinline__ void StoreBulk(const MatmulProblem& p, int m, int n, float value, float up) {
  if (p.glu_rows > 0) {
    StoreGluValue(p, p.y, m, n, SwiGluValue(value, up));
    return;
  }
  float* y = p.y + m * p.y_stride + n;
  const float sum = value + (p.bias != nullptr ? p.bias[n] : 0.0f);
  *y = p.accumulate ? *y + sum : sum;
}
// Two of them side by side where y allows (pairs).
__device__ __forceinline__ void StoreBulk2(const MatmulProblem& p, bool pairs, int m, int n, int n_end, float2 value, float2 up) {
  if (n >= n_end) return;
  if (!pairs) {
    StoreBulk(p, m, n, value.x, up.x);
    if (n + 1 < n_end) StoreBulk(p, m, n + 1, value.y, up.y);
    return;
  }
  if (p.glu_rows > 0) {
    const float2 y = {SwiGluValue(value.x, up.x), SwiGluValue(value.y, up.y)};
    *reinterpret_cast<float2*>(p.y + m * p.y_stride + n) = y;
    if (p.y_half.data != nullptr) {
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.y_half.data) + m * p.y_half.stride + n) = ClampedHalf2(y.x, y.y);
    }
    return;
  }
  auto* y = reinterpret_cast<float2*>(p.y + m * p.y_stride + n);
  if (p.bias != nullptr) value.x += p.bias[n], value.y += p.bias[n + 1];
  if (p.accumulate) {
    const float2 before = *y;
    value.x += before.x, value.y += before.y;
  }
  *y = value;
}

// What y holds, columns from n0 on, comes to L2 while W is read.
__device__ __forceinline__ void FetchBefore(const MatmulProblem& p, int n0, int columns, int tid, int threads) {
  constexpr int kLine = 32;  // floats
  const int lines = (columns + kLine - 1) / kLine;
  for (int i = tid; i < p.m * lines; i += threads) {
    const float* y = p.y + i / lines * p.y_stride + min(n0 + i % lines * kLine, p.n - 1);
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(y));
  }
}

// kRows: of W, that an instruction takes; kColumns: rows of x; kPanels: of 64 values of k in a stage.
template <typename Element, int kRows, int kColumns, int kPanels>
__global__ __launch_bounds__(kColumns * 2 + kCopierThreads, 1) void BulkKernel(const __grid_constant__ BulkMaps maps,
                                                                              const __grid_constant__ MatmulProblem p,
                                                                              const __grid_constant__ BulkCut cut) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kThreads = kColumns * 2;  // that multiply
  constexpr int kCount = kRows / 2;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t barriers[2 * kBulkMostStages];
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const BulkBlock block(cut, SharedAddress(shared), SharedAddress(barriers));
  const bool clustered = cut.parts > 1;
  LetNextKernelStart();
  if (tid == 0) {
    for (int i = 0; i < cut.stages; ++i) {
      InitBarrier(block.full + i * 8, 1);
      InitBarrier(block.empty + i * 8, kThreads / 32);
    }
    FenceInitBarrier();
  }
  __syncthreads();

  if (warp == kThreads / 32) {
    if (lane == 0) BulkCopies<kPanels>{p, cut, maps, block}.Run();
    for (int i = 0; clustered && i < 2; ++i) ArriveAtCluster(), WaitForCluster();  // as below
    return;
  }
  WaitForEarlierKernels();
  const auto release = [&](int stage) {
    if (lane == 0) Arrive(block.empty + stage * 8);
  };
  const bool glu = p.glu_rows > 0;
  const int n_end = glu ? p.glu_rows : p.n;
  const bool pairs = cut.pairs;
  if (p.accumulate) FetchBefore(p, block.cluster * cut.rows + cut.rows * block.part / cut.parts, cut.rows / cut.parts, tid, kThreads);
  const int m0 = warp * 16 + lane / 4;  // of x: this thread's sums are of it and 8 more
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int tile = block.cluster; tile < cut.tiles; tile += cut.clusters) {
    float acc[kCount] = {};
    int before = -1;  // the stage before, which may still be multiplied
#pragma unroll 1
    for (int step = block.begin; step < block.end; ++step) {
      WaitForPhase(block.full + stage * 8, parity);
      __syncwarp();
      const uint32_t w_at = block.ring + stage * cut.stage_bytes, x_at = w_at + kPanels * cut.rows * kBulkRowBytes;
      WgmmaBegin();
#pragma unroll
      for (int j = 0; j < kPanels; ++j) {
        const uint64_t w = ColumnsDescriptor(w_at + j * cut.rows * kBulkRowBytes);
        const uint64_t x = ColumnsDescriptor(x_at + (j * cut.x_rows + warp / 4 * 64) * kBulkRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) Wgmma<Element, kRows, false>::Mma(acc, x + i * 2, w + i * 2, true);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (before >= 0) release(before);
      before = stage;
      if (++stage == cut.stages) stage = 0, parity ^= 1;
    }
    WgmmaWait<0>(acc);
    if (before >= 0) release(before);

    const int n0 = tile * cut.rows / (glu ? 2 : 1);
    if (!clustered) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int m = m0 + h * 8;
        if (m >= p.m) continue;
#pragma unroll
        for (int j = 0; j < kCount / 4; ++j) {
          if (j * 8 >= cut.rows) break;
          const float2 value = {acc[j * 4 + h * 2], acc[j * 4 + h * 2 + 1]};
          if (!glu) {
            StoreBulk2(p, pairs, m, n0 + j * 8 + lane % 4 * 2, n_end, value, {});
          } else if (j % 2 == 0) {  // 8 gates, then their ups
            StoreBulk2(p, pairs, m, n0 + j * 4 + lane % 4 * 2, n_end, value, {acc[j * 4 + 4 + h * 2], acc[j * 4 + 5 + h * 2]});
          }
        }
      }
      continue;
    }
    // One tile a cluster: the ring has been multiplied, and takes this part's sums.
    asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
    const int stride = cut.fold_stride;
    auto* sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = m0 + h * 8;
      if (m >= p.m) continue;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
        if (j * 8 >= cut.rows) break;
        *reinterpret_cast<float2*>(sums + m * stride + j * 8 + lane % 4 * 2) = {acc[j * 4 + h * 2], acc[j * 4 + h * 2 + 1]};
      }
    }
    ArriveAtCluster();
    WaitForCluster();
    // A block adds up its share of the columns, four at a time; of gates and ups eight.
    const auto fold = [&](int m, int column) {
      float4 sum = {};
      for (int i = 0; i < cut.parts; ++i) {
        const float4 v = LoadFromPeer(PeerAddress(block.ring + (m * stride + column) * 4, i));
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      return sum;
    };
    const int quads = cut.rows / (glu ? 8 : 4), first = quads * block.part / cut.parts, width = quads * (block.part + 1) / cut.parts - first;
    for (int i = tid; i < width * p.m; i += kThreads) {
      const int m = i / width, quad = first + i % width;
      const int column = glu ? quad / 2 * 16 + quad % 2 * 4 : quad * 4;
      const float4 value = fold(m, column), up = glu ? fold(m, column + 8) : float4{};
      StoreBulk2(p, pairs, m, n0 + quad * 4, n_end, {value.x, value.y}, {up.x, up.y});
      StoreBulk2(p, pairs, m, n0 + quad * 4 + 2, n_end, {value.z, value.w}, {up.z, up.w});
    }
  }
  if (clustered) ArriveAtCluster(), WaitForCluster();  // nobody reads this block's memory any more
#endif
}

inline CudaStatus MakeBulkMaps(const MatmulProblem& p, const BulkCut& cut, BulkMaps* maps) {
  const int64_t row_bytes = p.layout.row_bytes;
  BoxesOf w = {.data = p.w, .rank = 2, .sizes = {p.k, p.n}, .strides = {2, row_bytes}, .box = {64, cut.rows}};
  if (p.glu_rows > 0) {  // [8 gates, 8 ups] side by side
    w = {.data = p.w,
         .rank = 4,
         .sizes = {p.k, 8, 2, p.glu_rows / 8},
         .strides = {2, row_bytes, row_bytes * p.glu_rows, row_bytes * 8},
         .box = {64, 8, 2, cut.rows / 16}};
  }
  if (CudaStatus failure = MakeTensorMap(w, &maps->w)) return failure;
  return MakeTensorMap({.data = p.x, .rank = 2, .sizes = {p.k, p.m}, .strides = {2, p.x_stride * 2}, .box = {64, cut.x_rows}}, &maps->x);
}

template <typename Element, int kRows, int kColumns>
CudaStatus LaunchBulkTile(const CudaExec& exec, const MatmulProblem& p, const BulkCut& cut) {
  BulkMaps maps;
  if (CudaStatus failure = MakeBulkMaps(p, cut, &maps)) return failure;
  auto* kernel = &BulkKernel<Element, kRows, kColumns, BulkPanels(kRows, kColumns)>;
  if (CudaStatus failure = AllowSharedBytes(kernel, cut.shared_bytes, "matmul")) return failure;
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.attrs = attributes;
  if (CurrentTune().late % 2 == 0) {
    static_assert(CudaTune::kKinds[0] == "matmul");
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cut.parts > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    auto& cluster = attributes[config.numAttrs++].val.clusterDim;
    cluster.x = static_cast<unsigned>(cut.parts), cluster.y = 1, cluster.z = 1;
  }
  config.gridDim = dim3(static_cast<unsigned>(cut.clusters * cut.parts));
  config.blockDim = dim3(kColumns * 2 + kCopierThreads);
  config.dynamicSmemBytes = static_cast<size_t>(cut.shared_bytes);
  config.stream = static_cast<cudaStream_t>(exec.stream);
  (void)cudaLaunchKernelEx(&config, kernel, maps, p, cut);
  return CudaLaunched("matmul (bulk copies, tiles of %d, %d parts) of m %d, n %d, k %d", cut.rows, cut.parts, p.m, p.n, p.k);
}

template <typename Element, int kColumns>
CudaStatus LaunchBulkColumns(const CudaExec& exec, const MatmulProblem& p, const BulkCut& cut) {
  switch (cut.instruction_rows) {
    case 64:
      return LaunchBulkTile<Element, 64, kColumns>(exec, p, cut);
    case 128:
      return LaunchBulkTile<Element, 128, kColumns>(exec, p, cut);
    default:
      return LaunchBulkTile<Element, 256, kColumns>(exec, p, cut);
  }
}

template <typename Element>
CudaStatus LaunchBulkOf(const CudaExec& exec, const MatmulProblem& p, const BulkCut& cut) {
  return cut.columns <= 64 ? LaunchBulkColumns<Element, 64>(exec, p, cut) : LaunchBulkColumns<Element, 128>(exec, p, cut);
}

}  // namespace
}  // namespace cachalot
