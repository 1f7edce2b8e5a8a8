// Matmuls of one row of x that follow each other (decode at one sequence), in one launch: the output projection, gate/up with the norm in
// front and SwiGLU behind it, down, the next layer's QKV.
//
// Bound: the bytes of W. What is lost between launches is time in which nothing is on its way from memory: the last sums, the end of
// one grid and the beginning of another, x, its norm. Here a block an SM stays, and a warp orders W's rows by bulk copies into a ring
// that runs on from matrix to matrix, so that memory works while all blocks wait for each other between two matmuls (about 5 us, in
// which a ring of 190 KB takes in as much as memory gives in 5). A Q4_K superblock of 16 rows costs a lane about 220 instructions for 128 weights.
//
// A stage is 2 KB of each of 16 rows, of which each of sixteen warps takes 128 bytes; its sums of a tile go to shared memory, where the
// folding warp adds the sixteen up and does what is left. x becomes integers of 16 bits for every 32 values, as two of 8 bits, which
// tensor cores multiply by the codes as they are; a column of the product is one block of 32 values and one of the two parts, so that
// a lane that has the sums of (row, block) decodes that scale, each once (chain_run.cuh).
//
// Invariant: an output is the sum of the warps' sums, in their order, each in the order of k. No float is added by an atomic.
#pragma once

#include "device/cuda/bulk_copy.cuh"
#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "device/cuda/swiglu_value.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/matmul/chain.h"
#include "kernels/matmul/chain_run.cuh"

namespace cachalot {
namespace {

constexpr int kChainMultiplyThreads = kChainWarps * 32;
constexpr int kChainCopyWarp = kChainWarps, kChainFoldWarp = kChainWarps + 1;
constexpr int kChainThreads = (kChainFoldWarp + 1) * 32;

struct ChainShared {
  uint64_t full[kChainMostStages], empty[kChainMostStages];
  uint64_t partials_full[kChainPartials], partials_empty[kChainPartials];
  float squares[kChainWarps];
};

// A ring's place: which slot, and the parity of its phase.
struct ChainPlace {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance(int slots) {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
};
__device__ __forceinline__ void ArriveAsWarp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) Arrive(barrier);
}
__device__ __forceinline__ void SyncChainMultipliers() { asm volatile("bar.sync 1, %0;\n" ::"n"(kChainMultiplyThreads) : "memory"); }

// A block's rows of a matrix, tile by tile.
struct ChainTiles {
  int row, end, step;
  __device__ __forceinline__ explicit ChainTiles(const ChainOp& op) {
    const ChainRange share = ChainShare(op.rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    row = share.begin, end = share.end, step = op.glu ? kChainTileRows / 2 : kChainTileRows;
  }
  __device__ __forceinline__ bool More() const { return row < end; }
  __device__ __forceinline__ void Advance() { row += step; }
  __device__ __forceinline__ int rows() const { return min(step, end - row); }
};
__device__ __forceinline__ int ChainStagesOf(const ChainOp& op) { return (op.code_bytes + kChainStageRowBytes - 1) / kChainStageRowBytes; }

// By one warp. Lane r < 16 brings row r of the tile, lane 16 + r its records.
template <DType kType>
__device__ __forceinline__ void CopyChain(const ChainProblem& p, const ChainShared& memory, uint32_t ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, r = lane % kChainTileRows;
  const bool records = lane >= kChainTileRows;
  const uint32_t to = ring + (records ? kChainRecordsAt + r * kChainRecordStride : r * kChainRowStride);
  ChainPlace place;
#pragma unroll 1
  for (int o = 0; o < p.count; ++o) {
    const ChainOp& op = p.ops[o];
    const int stages = ChainStagesOf(op);
#pragma unroll 1
    for (ChainTiles tiles(op); tiles.More(); tiles.Advance()) {
      const int rows = tiles.rows();
      const bool there = (op.glu ? r % 8 : r) < rows;
      const int row = op.glu && r >= 8 ? op.rows + tiles.row + r - 8 : tiles.row + r;
      const std::byte* from = op.w + int64_t{row} * op.row_bytes + (records ? op.records_at : 0);
      const int copies = op.glu ? 2 * rows : rows;
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        const int codes = min(kChainStageRowBytes, op.code_bytes - stage * kChainStageRowBytes);
        const int record_bytes = codes / kChainRunBytes * kChainRecordBytes;
        WaitForPhase(SharedAddress(&memory.empty[place.slot]), place.parity ^ 1);
        const uint32_t full = SharedAddress(&memory.full[place.slot]);
        if (lane == 0) ArriveExpecting(full, copies * (codes + record_bytes));
        __syncwarp();
        if (there) CopyBytes(to + place.slot * kChainStageBytes, from, records ? record_bytes : codes, full);
        from += records ? kChainStageRecordBytes : kChainStageRowBytes;
        place.Advance(p.layout.stages);
      }
    }
  }
}

// Until every block has written what matmul `o` - 1 leaves.
__device__ __forceinline__ void WaitForBlocks(const ChainProblem& p, int o) {
  if (threadIdx.x == 0) {
    constexpr int64_t kMostClocks = int64_t{1} << 34;
    const int64_t since = clock64();
    const uint32_t wanted = gridDim.x * static_cast<uint32_t>(o);
    uint32_t arrived = 0;
    while (true) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(arrived) : "l"(p.counters) : "memory");
      if (arrived >= wanted) break;
      if (clock64() - since > kMostClocks) __trap();  // a block that never came: a fault of ours
    }
    // The counters are zero again behind the last one.
    if (o == p.count - 1 && atomicAdd(p.counters + 1, 1u) == gridDim.x - 1) p.counters[0] = p.counters[1] = 0;
  }
  SyncChainMultipliers();
}

// x of matmul `o`, normed where there is a norm, into shared memory. Thread t has groups t, t + 512 ..: of block of 32 values b = group / 4
// those at 4 q and at 16 + 4 q, q = group % 4.
template <DType kType>
__device__ __forceinline__ void StageChainX(const ChainProblem& p, int o, ChainShared* memory, unsigned char* x) {
  constexpr int kMost = kChainMostK / 8 / kChainMultiplyThreads, kMostNorm = kChainMostNormK / 8 / kChainMultiplyThreads;
  const ChainOp& op = p.ops[o];
  const int tid = static_cast<int>(threadIdx.x), groups = op.k / 8;
  const auto at = [&](int j, int half) { return (tid + j * kChainMultiplyThreads) / 4 * 32 + half * 16 + tid % 4 * 4; };
  const auto is_there = [&](int j) { return tid + j * kChainMultiplyThreads < groups; };
  float4 weight[kMostNorm][2];  // does not change: before the wait
  if (op.norm_weight != nullptr) {
#pragma unroll
    for (int j = 0; j < kMostNorm; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weight[j][half] = is_there(j) ? *reinterpret_cast<const float4*>(op.norm_weight + at(j, half)) : float4{};
      }
    }
  }
  if (o == 0) {
    WaitForEarlierKernels();
  } else {
    WaitForBlocks(p, o);
  }
  float4 v[kMost][2];
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) v[j][half] = is_there(j) ? __ldcg(reinterpret_cast<const float4*>(op.x + at(j, half))) : float4{};
  }
  if (op.norm_weight != nullptr) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kMostNorm; ++j) sum += SquareSum(v[j][0]) + SquareSum(v[j][1]);
    sum = WarpSum(sum);
    if (tid % 32 == 0) memory->squares[tid / 32] = sum;
    SyncChainMultipliers();
    float squares = 0;
#pragma unroll
    for (int w = 0; w < kChainWarps; ++w) squares += memory->squares[w];
    const float inverse = InverseRms(squares, op.k, op.norm_eps);
#pragma unroll
    for (int j = 0; j < kMostNorm; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) v[j][half] = ScaledByNorm(v[j][half], inverse, weight[j][half]);
    }
  }
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    if (j * kChainMultiplyThreads >= groups) break;  // for the warp: lanes of a block of 32 values stay together
    ChainRun<kType>::Stage(v[j], tid + j * kChainMultiplyThreads, is_there(j), op.k, x);
  }
  SyncChainMultipliers();
}

template <DType kType>
__device__ __forceinline__ void MultiplyChain(const ChainProblem& p, ChainShared* memory, unsigned char* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, quad = lane % 4;
  const uint32_t ring = SharedAddress(shared), x = SharedAddress(shared + p.layout.x);
  auto* partials = reinterpret_cast<float*>(shared + p.layout.partials) + warp * kChainTileRows + g;
  ChainPlace place, sums;
#pragma unroll 1
  for (int o = 0; o < p.count; ++o) {
    const ChainOp& op = p.ops[o];
    StageChainX<kType>(p, o, memory, shared + p.layout.x);
    const int stages = ChainStagesOf(op), runs = op.code_bytes / kChainRunBytes;
    const uint32_t info = x + op.k * 2;
#pragma unroll 1
    for (ChainTiles tiles(op); tiles.More(); tiles.Advance()) {
      ChainRun<kType> run;
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        const int of = stage * kChainWarps + warp;
        WaitForPhase(SharedAddress(&memory->full[place.slot]), place.parity);
        __syncwarp();  // mma wants the warp together
        if (of < runs) run.Multiply(ring + place.slot * kChainStageBytes, x, info, of);
        ArriveAsWarp(SharedAddress(&memory->empty[place.slot]));
        place.Advance(p.layout.stages);
      }
      const float2 sum = run.Sums();  // of rows g and g + 8
      WaitForPhase(SharedAddress(&memory->partials_empty[sums.slot]), sums.parity ^ 1);
      if (quad == 0) {
        float* to = partials + sums.slot * (kChainPartialBytes / 4);
        to[0] = sum.x, to[8] = sum.y;
      }
      ArriveAsWarp(SharedAddress(&memory->partials_full[sums.slot]));
      sums.Advance(kChainPartials);
    }
  }
}

// By one warp: lane r and lane 16 + r add up row r of a tile, eight warps' sums each.
__device__ __forceinline__ void FoldChain(const ChainProblem& p, ChainShared* memory, unsigned char* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, r = lane % kChainTileRows, half = lane / kChainTileRows;
  const float* of_warps = reinterpret_cast<const float*>(shared + p.layout.partials) + half * (kChainWarps / 2) * kChainTileRows + r;
  WaitForEarlierKernels();
  ChainPlace place;
#pragma unroll 1
  for (int o = 0; o < p.count; ++o) {
    const ChainOp& op = p.ops[o];
#pragma unroll 1
    for (ChainTiles tiles(op); tiles.More(); tiles.Advance()) {
      const bool mine = lane < tiles.rows();
      const int n = tiles.row + lane;
      float bias = 0;
      if (mine && op.bias != nullptr) bias = op.bias[n];
      WaitForPhase(SharedAddress(&memory->partials_full[place.slot]), place.parity);
      float before = 0;
      if (mine && op.accumulate) before = __ldcg(op.y + n);
      const float* from = of_warps + place.slot * (kChainPartialBytes / 4);
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kChainWarps / 2; ++w) sum += from[w * kChainTileRows];
      sum += __shfl_down_sync(kAllLanes, sum, 16);
      ArriveAsWarp(SharedAddress(&memory->partials_empty[place.slot]));
      place.Advance(kChainPartials);
      const float up = __shfl_down_sync(kAllLanes, sum, 8);
      if (op.glu) sum = SwiGluValue(sum, up);
      sum += bias;
      if (mine) op.y[n] = op.accumulate ? before + sum : sum;
    }
    if (o + 1 < p.count) {
      __threadfence();  // this lane's part of y is there for every block
      __syncwarp();
      if (lane == 0) atomicAdd(p.counters, 1u);
    }
  }
}

template <DType kType>
__global__ __launch_bounds__(kChainThreads, 1) void ChainKernel(const __grid_constant__ ChainProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) ChainShared memory;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(kAllLanes, tid / 32, 0);  // known to be one for all lanes
  LetNextKernelStart();
  if (tid == 0) {
    for (int i = 0; i < p.layout.stages; ++i) {
      InitBarrier(SharedAddress(&memory.full[i]), 1);
      InitBarrier(SharedAddress(&memory.empty[i]), kChainWarps);
    }
    for (int i = 0; i < kChainPartials; ++i) {
      InitBarrier(SharedAddress(&memory.partials_full[i]), kChainWarps);
      InitBarrier(SharedAddress(&memory.partials_empty[i]), 1);
    }
    FenceInitBarrier();
  }
  __syncthreads();
  if (warp < kChainCopyWarp) {
    MultiplyChain<kType>(p, &memory, shared);
  } else if (warp == kChainCopyWarp) {
    CopyChain<kType>(p, memory, SharedAddress(shared));
  } else {
    FoldChain(p, &memory, shared);
  }
#endif
}

}  // namespace

template <DType kType>
CudaStatus LaunchChain(const CudaExec& exec, const ChainProblem& p) {
  auto* kernel = &ChainKernel<kType>;
  if (CudaStatus failure = AllowSharedBytes(kernel, p.layout.bytes, "matmul_chain")) return failure;
  LaunchOverlapped<LaunchRole::kDecodeMatmul>(kernel, exec.num_sms, kChainThreads, p.layout.bytes, exec.stream, p);
  return CudaLaunched("matmul_chain of %d, the first of n %d, k %d", p.count, p.ops[0].rows, p.ops[0].k);
}

}  // namespace cachalot
