// Matmuls of one row of x that follow each other (decode at one sequence), in one launch: the output
// projection, gate/up with the norm in front and SwiGLU behind it, down, the next layer's QKV.
//
// Bound: the bytes of W. What is lost between launches is time in which nothing is on its way from memory:
// the last sums, the end of one grid and the beginning of another, x, its norm. Here a block an SM stays, and
// a warp orders W's rows by bulk copies into a ring that runs on from matrix to matrix, so that memory works
// while blocks wait for each other's values (chain_x.cuh; 2 to 4 us, and the ring of 190 KB takes in as much
// as memory gives in 5). No more than two stages are on their way at once: what they queue for, values queue
// for too.
//
// A stage is 2 KB of each of 16 rows and their scales, of which each of sixteen warps takes a superblock; its
// sums of two tiles go to shared memory, where the folding warp adds the sixteen up and does what is left,
// the norm's factor first. x becomes integers of 16 bits for every 32 values, as two of 8 bits, which tensor
// cores multiply by the codes as they are; a lane that has the sums of (row, block) decodes that scale, each
// once (chain_run.cuh).
//
// Invariant: an output is the sum of the warps' sums, in one order for all, each in the order of k. No float
// is added by an atomic.
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
#include "kernels/matmul/chain_x.cuh"

namespace cachalot {
namespace {

constexpr int kChainCopyWarp = kChainWarps, kChainFoldWarp = kChainWarps + 1;
constexpr int kChainThreads = (kChainFoldWarp + 1) * 32;

// A block's rows of a matrix, two tiles at a time.
struct ChainTilePairs {
  int row, end, step;
  __device__ __forceinline__ explicit ChainTilePairs(const ChainOp& op) {
    const ChainRange share = ChainShare(op.rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    row = share.begin, end = share.end, step = op.glu ? kChainTileRows / 2 : kChainTileRows;
  }
  __device__ __forceinline__ bool More() const { return row < end; }
  __device__ __forceinline__ void Advance() { row += kChainTiles * step; }
  __device__ __forceinline__ int RowOf(int tile) const { return row + tile * step; }
  __device__ __forceinline__ int Rows(int tile) const {
    return min(step, end - RowOf(tile));
  }  // none or less: it is not there
};
__device__ __forceinline__ int ChainStagesOf(const ChainOp& op) {
  return (op.code_bytes + kChainStageRowBytes - 1) / kChainStageRowBytes;
}
__device__ __forceinline__ int ChainRecordsAt(const ChainOp& op) {
  return min(op.code_bytes, kChainStageRowBytes);
}

// A block's stages in their order: op by op, two tiles side by side, stage by stage, one tile after the
// other.
struct ChainCursor {
  const ChainProblem& p;
  int o = 0, stage = 0, tile = 0, stages = 0, row = 0, end = 0, step = 0;

  __device__ __forceinline__ explicit ChainCursor(const ChainProblem& problem) : p(problem) { Open(); }
  __device__ __forceinline__ bool More() const { return o < p.count; }
  __device__ __forceinline__ void Open() {
#pragma unroll 1
    for (; o < p.count; ++o) {
      const ChainTilePairs tiles(p.ops[o]);
      row = tiles.row, end = tiles.end, step = tiles.step, stages = ChainStagesOf(p.ops[o]);
      if (row < end) break;
    }
  }
  __device__ __forceinline__ void Advance() {
    if (++tile < kChainTiles && row + tile * step < end) return;
    tile = 0;
    if (++stage < stages) return;
    stage = 0, row += kChainTiles * step;
    if (row < end) return;
    ++o;
    Open();
  }
  __device__ __forceinline__ int Rows() const {
    return min(step, end - row - tile * step);
  }
  __device__ __forceinline__ int CodeBytes() const {
    return min(kChainStageRowBytes, p.ops[o].code_bytes - stage * kChainStageRowBytes);
  }
  // What this lane brings: lane r < 16 row r of the tile, lane 16 + r its records, which in rows of one stage
  // lie right behind their codes.
  __device__ __forceinline__ int Mine(const std::byte** from) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, r = lane % kChainTileRows;
    const bool records = lane >= kChainTileRows;
    const ChainOp& op = p.ops[o];
    *from = op.w + int64_t{row + tile * step + (op.glu && r >= 8 ? op.rows + r - 8 : r)} * op.row_bytes +
            (records ? op.records_at + stage * kChainStageRecordBytes : stage * kChainStageRowBytes);
    const int codes = CodeBytes(), record_bytes = codes / kChainRunBytes * kChainRecordBytes;
    if ((op.glu ? r % 8 : r) >= Rows()) return 0;
    return stages == 1 ? (records ? 0 : codes + record_bytes) : records ? record_bytes : codes;
  }
  __device__ __forceinline__ int AllBytes() const {
    return (p.ops[o].glu ? 2 : 1) * Rows() *
           (CodeBytes() / kChainRunBytes * (kChainRunBytes + kChainRecordBytes));
  }
};

// By one warp.
__device__ __forceinline__ void CopyChain(const ChainProblem& p, const ChainShared& memory, uint32_t ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t to =
      ring + lane % kChainTileRows * kChainRowStride + lane / kChainTileRows * kChainStageRowBytes;
  const uint32_t full = SharedAddress(memory.full), empty = SharedAddress(memory.empty);
  ChainPlace place, arrived;
  int issued = 0;
#pragma unroll 1
  for (ChainCursor cursor(p); cursor.More(); cursor.Advance()) {
    WaitForPhase(empty + place.slot * 8, place.parity ^ 1);
    if (issued >= kChainInFlight) {
      WaitForPhase(full + arrived.slot * 8, arrived.parity);
      arrived.Advance(p.layout.stages);
    }
    if (lane == 0) ArriveExpecting(full + place.slot * 8, cursor.AllBytes());
    __syncwarp();
    const std::byte* from;
    if (const int bytes = cursor.Mine(&from); bytes > 0)
      CopyBytes(to + place.slot * kChainStageBytes, from, bytes, full + place.slot * 8);
    place.Advance(p.layout.stages);
    ++issued;
  }
}

template <DType kType>
__device__ __forceinline__ void MultiplyChain(const ChainProblem& p, ChainShared* memory,
                                              unsigned char* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t ring = SharedAddress(shared), x = SharedAddress(shared + p.layout.x),
                 full = SharedAddress(memory->full), empty = SharedAddress(memory->empty);
  // Lane (g, quad) has row g + 8 (quad % 2) of tile quad / 2.
  auto* partials = reinterpret_cast<float*>(shared + p.layout.partials) + warp * kChainPartialRows +
                   lane % 4 * 8 + lane / 4;
  ChainPlace place, sums;
  WaitForEarlierKernels();
#pragma unroll 1
  for (int o = 0; o < p.count; ++o) {
    const ChainOp& op = p.ops[o];
    ChainTilePairs tiles(op);
    if (!tiles.More()) continue;
    const int stages = ChainStagesOf(op), runs = op.code_bytes / kChainRunBytes,
              records_at = ChainRecordsAt(op);
    ChainInput input(op, *memory);
    if (warp < runs) {
      input.LoadWeights(0);
      input.WaitForOne();
      input.Load(0);
    }
    float squares = 0;
    ChainX<kType> values;
    bool fresh = true;
#pragma unroll 1
    for (; tiles.More(); tiles.Advance()) {
      float acc[kChainTiles][2] = {};
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        const int of = stage * kChainWarps + warp;
        const uint32_t x_of = x + of * kChainXRunBytes;
        if (fresh && of < runs) {
          input.WaitForAll(stage);
          squares += input.TakeWeights();
          ChainX<kType>::Stage(input.v, x_of);
          __syncwarp();
          if (of + kChainWarps < runs) {
            input.LoadWeights(stage + 1);
            input.Load(stage + 1);
          }
        }
        if ((fresh || stages > 1) && of < runs) values.Load(x_of);
#pragma unroll
        for (int t = 0; t < kChainTiles; ++t) {
          if (tiles.Rows(t) <= 0) break;
          WaitForPhase(full + place.slot * 8, place.parity);
          __syncwarp();  // mma wants the warp together
          ChainRun<kType> run;
          run.Load(ring + place.slot * kChainStageBytes, records_at);
          ArriveAsWarp(empty + place.slot * 8);
          place.Advance(p.layout.stages);
          if (of < runs) run.Multiply(values, acc[t]);
        }
      }
      if (fresh && op.norm_weight != nullptr) {
        squares = WarpSum(squares);
        if (lane == 0) memory->squares[o][warp] = squares;
      }
      fresh = false;
      const float sum = ChainSums(acc);
      WaitForPhase(SharedAddress(&memory->partials_empty[sums.slot]), sums.parity ^ 1);
      partials[sums.slot * (kChainPartialBytes / 4)] = sum;
      ArriveAsWarp(SharedAddress(&memory->partials_full[sums.slot]));
      sums.Advance(kChainPartials);
    }
    __syncwarp();
  }
}

__device__ __forceinline__ void PrefetchLine(const float* line) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(line));
}

// By one warp: lane 16 t + r adds up row r of tile t.
__device__ __forceinline__ void FoldChain(const ChainProblem& p, ChainShared* memory, unsigned char* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, t = lane / kChainTileRows, r = lane % kChainTileRows;
  const float* of_warps = reinterpret_cast<const float*>(shared + p.layout.partials) + lane;
  // The norms' weights and biases, a line of 128 bytes to a block: they do not change.
#pragma unroll 1
  for (int o = 0; o < p.count; ++o) {
    const int line = (static_cast<int>(blockIdx.x) + lane * static_cast<int>(gridDim.x)) * 32;
    if (p.ops[o].norm_weight != nullptr && line < p.ops[o].k) PrefetchLine(p.ops[o].norm_weight + line);
    if (p.ops[o].bias != nullptr && line < p.ops[o].rows) PrefetchLine(p.ops[o].bias + line);
  }
  WaitForEarlierKernels();
  if (p.words > 0) OpenChainExchange(p, memory);
  ChainPlace place;
#pragma unroll 1
  for (int o = 0; o < p.count; ++o) {
    const ChainOp& op = p.ops[o];
    bool first = true;
    float inverse = 1;
#pragma unroll 1
    for (ChainTilePairs tiles(op); tiles.More(); tiles.Advance()) {
      const bool mine = r < tiles.Rows(t);
      const int n = tiles.RowOf(t) + r;
      // What y holds is this lane's own or earlier kernels' (chain_sm90.cu sees to it): on its way while the
      // tiles are multiplied.
      const float bias = mine && op.bias != nullptr ? op.bias[n] : 0.0f,
                  before = mine && op.accumulate ? __ldcg(op.y + n) : 0.0f;
      WaitForPhase(SharedAddress(&memory->partials_full[place.slot]), place.parity);
      if (first && op.norm_weight != nullptr) {
        float squares = 0;
#pragma unroll
        for (int w = 0; w < kChainWarps; ++w) squares += memory->squares[o][w];
        inverse = InverseRms(squares, op.k, op.norm_eps);
      }
      first = false;
      const float* from = of_warps + place.slot * (kChainPartialBytes / 4);
      float sums[2] = {};
#pragma unroll
      for (int w = 0; w < kChainWarps; w += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) sums[i] += from[(w + i) * kChainPartialRows];
      }
      ArriveAsWarp(SharedAddress(&memory->partials_empty[place.slot]));
      place.Advance(kChainPartials);
      float sum = (sums[0] + sums[1]) * inverse;
      const float up = __shfl_down_sync(kAllLanes, sum, 8);
      if (op.glu) sum = SwiGluValue(sum, up);
      sum += bias;
      if (op.accumulate) sum = before + sum;
      if (mine) {
        if (op.to != kChainNowhere) StoreChainWord(memory->words + op.to + n, sum);
        op.y[n] = sum;
      }
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
    InitBarrier(SharedAddress(&memory.told), 1);
    FenceInitBarrier();
  }
  __syncthreads();
  if (warp < kChainCopyWarp) {
    MultiplyChain<kType>(p, &memory, shared);
  } else if (warp == kChainCopyWarp) {
    CopyChain(p, memory, SharedAddress(shared));
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
  LaunchOverlapped<LaunchRole::kDecodeMatmul>(kernel, exec.num_sms, kChainThreads, p.layout.bytes,
                                              exec.stream, p);
  return CudaLaunched("matmul_chain of %d, the first of n %d, k %d", p.count, p.ops[0].rows, p.ops[0].k);
}

}  // namespace cachalot
