// The experts of up to four tokens in one launch: the router, gate/up, SwiGLU, down, their weighted sum and the shared expert, into the
// residual stream.
//
// Bound: the bytes of W. Most experts have one token, so nothing is read twice, and what is lost is where nothing is on its way from
// memory: at the beginnings and ends of launches, and where some SMs have more to read than others. So a block an SM stays, all have
// equal shares (moe_few.h), and their rings run on from matrix to matrix. The shared expert's rows, which are the same whatever the
// router says, come first, before the kernels in front have ended: gate/up while the router's logits are made and exchanged, down while blocks
// wait for each other's h of the chosen experts.
//
// Four warps copy, sixteen multiply, one folds, four help (moe_few_aides.cuh). A stage is 1 KB of each of 16 rows, with its scales, of which each warp that
// multiplies takes 64 bytes; its sums of a tile go to shared memory, where the folding warp adds the sixteen up and does what is left.
// All of them wait for every stage: who leaves some out might take a barrier's phase before for the one that it waits for.
//
// Invariant: an output is the sum of the warps' sums, in their order, each in the order of k; a token's experts are added in rising
// order and the shared one last. So its bits depend on its row and on W alone. No float is added by an atomic.
#pragma once

#include "device/cuda/cuda_error.h"
#include "device/cuda/swiglu_value.cuh"
#include "kernels/moe_matmul/moe_few_aides.cuh"
#include "kernels/moe_matmul/moe_few_copy.cuh"

namespace cachalot {
namespace {

// --- Multiplying ---

__device__ __forceinline__ void LoadFew16(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ float LoadSharedFloat(uint32_t shared) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(v) : "r"(shared) : "memory");
  return v;
}

// acc += W x of 64 bytes of each row; `w`, `x`: this lane's first 16 bytes.
template <DType kType>
__device__ __forceinline__ void MultiplyRun(uint32_t w, uint32_t x, float scale, float upper_scale, float (&acc)[4]) {
  using F = StreamFormat<kType>;
  using Element = typename F::Element;
  constexpr int kBlocks = F::kBlocksPerPiece;
  uint32_t raw[2][4], x_bits[kBlocks][4];
#pragma unroll
  for (int h = 0; h < 2; ++h) LoadFew16(raw[h], w + h * 8 * kFewStageStride);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) LoadFew16(x_bits[b], x + b * 64);
  float sums[2][4] = {};  // two, so that one need not wait for the other
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    uint32_t a[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t values[2][2];
      UnpackBlock<kType>(raw[h], b, values);
#pragma unroll
      for (int j = 0; j < 2; ++j) a[j][h] = values[j][0], a[j][2 + h] = values[j][1];
    }
    Mma(sums[0], a[0], x_bits[b][0], x_bits[b][1], Element{});
    Mma(sums[1], a[1], x_bits[b][2], x_bits[b][3], Element{});
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float sum = __fadd_rn(sums[0][c], sums[1][c]);
    acc[c] = F::kFp8 ? fmaf(c < 2 ? scale : upper_scale, sum, acc[c]) : __fadd_rn(acc[c], sum);
  }
}

// The tokens' rows of x as F16, normed where there is a norm; bit for bit what RmsNorm leaves. A team norms every other token.
__device__ __forceinline__ void StageTokens(const FewProblem& p, FewShared* memory, unsigned char* x) {
  constexpr int kVectors = kFewMostDim / 4 / kFewTeamThreads, kBatch = 4;  // weights of the norm under way
  const int tid = static_cast<int>(threadIdx.x), vectors = p.x_dim / 4, stride = FewXStride(p.x_dim);
  if (p.norm_weight == nullptr) {
    WaitForEarlierKernels();
#pragma unroll 1
    for (int t = 0; t < p.num_tokens; ++t) {
      const auto* row = reinterpret_cast<const float4*>(p.x + t * p.x_stride);
#pragma unroll 4
      for (int at = tid; at < vectors; at += kFewMultiplyThreads) *reinterpret_cast<uint2*>(x + t * stride + at * 8) = ClampedHalf4(row[at]);
    }
    SyncMultipliers();
    return;
  }
  WaitForEarlierKernels();
  const int lane = tid % 32, warp = tid / 32 % kNormWarps, at0 = tid % kFewTeamThreads;
#pragma unroll 1
  for (int first = 0; first < p.num_tokens; first += kFewTeams) {
    const int token = first + tid / kFewTeamThreads;
    const bool mine = token < p.num_tokens;
    float4 kept[kVectors];
    float sum = 0;
    if (mine) {
      const auto* row = reinterpret_cast<const float4*>(p.x + token * p.x_stride);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (at0 + i * kFewTeamThreads < vectors) kept[i] = row[at0 + i * kFewTeamThreads];
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (at0 + i * kFewTeamThreads < vectors) sum += SquareSum(kept[i]);
      }
      sum = WarpSum(sum);
      if (lane == 0) memory->squares[token][warp] = sum;
    }
    SyncMultipliers();
    if (!mine) continue;
    const float inverse = InverseRms(WarpSum(lane < kNormWarps ? memory->squares[token][lane] : 0.0f), p.x_dim, p.norm_eps);
#pragma unroll
    for (int base = 0; base < kVectors; base += kBatch) {
      float4 weight[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int at = at0 + (base + j) * kFewTeamThreads;
        weight[j] = at < vectors ? reinterpret_cast<const float4*>(p.norm_weight)[at] : float4{};
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int at = at0 + (base + j) * kFewTeamThreads;
        if (at < vectors) *reinterpret_cast<uint2*>(x + token * stride + at * 8) = ClampedHalf4(ScaledByNorm(kept[base + j], inverse, weight[j]));
      }
    }
  }
  SyncMultipliers();
}

template <DType kType>
__device__ __forceinline__ void MultiplyTiles(const FewProblem& p, FewShared* memory, unsigned char* shared) {
  using F = StreamFormat<kType>;
  constexpr int kRunXBytes = kFewRunBytes * 16 / F::kBits;  // of x, of a warp and a stage
  constexpr int kRunsPerScale = kFewWholeBytes / kFewRunBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, quad = lane % 4;
  const uint32_t ring = SharedAddress(shared) + g * kFewStageStride + warp * kFewRunBytes + quad * 16;
  const uint32_t ring_scales = SharedAddress(shared) + kFewScalesAt + (warp / kRunsPerScale * kFewTileRows + g) * 4;
  const uint32_t x_rows = SharedAddress(shared + p.layout.x) + quad * 16 + warp * kRunXBytes;
  auto* partials = reinterpret_cast<float*>(shared + p.layout.partials) + warp * (kFewTokens * kFewTileRows) + g;
  FewPlace<kFewMostStages> place;
  FewPlace<kFewPartials> sums;
#pragma unroll 1
  for (int phase = p.first_phase; phase <= p.last_phase; ++phase) {
    if (phase == 0) {
      StageTokens(p, memory, shared + p.layout.x);
    } else if (p.first_phase == 0) {
      ArriveOnce(SharedAddress(&memory->x_free));
    }
    FewTiles tiles = TilesOf(p, phase);
    FewTile tile;
    int entered = -2, count = 0, runs = 0, stages = 0;  // the expert whose numbers these are
    uint32_t x = 0;
    bool scaled = false;
#pragma unroll 1
    while (tiles.Next(FewListed{*memory}, &tile)) {
      const FewMatrix& matrix = tile.expert < 0 ? p.shared[phase] : p.each[phase];
      if (tile.expert != entered) {
        entered = tile.expert;
        const FewExpert& expert = ExpertOf(*memory, tile);
        count = expert.count;
        const int column = min(g, count - 1), stride = FewXStride(matrix.k);
        x = x_rows + (phase == 0 ? expert.tokens[column] : expert.first + column) * stride;
        if (phase == 1) {
          if (tile.expert < 0) x = x_rows + (p.layout.shared_h - p.layout.x) + column * stride;
          WaitForPhase(SharedAddress(&memory->hidden[tile.expert < 0 ? 0 : 1]), 0);
        }
        runs = matrix.row_bytes / kFewRunBytes, stages = FewStages(matrix.row_bytes);
        scaled = F::kFp8 && expert.scales[phase] != nullptr;
      }
      float acc[4] = {};
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        const bool mine = stage * kFewWarps + warp < runs;
        WaitForPhase(SharedAddress(&memory->full[place.slot]), place.parity);
        __syncwarp();  // mma wants the warp together
        if (mine) {
          const uint32_t at = place.slot * kFewStageBytes;
          const float scale = scaled ? LoadSharedFloat(ring_scales + at) : 1.0f, upper_scale = scaled ? LoadSharedFloat(ring_scales + at + 32) : 1.0f;
          MultiplyRun<kType>(ring + at, x + stage * kFewWarps * kRunXBytes, scale, upper_scale, acc);
        }
        ArriveOnce(SharedAddress(&memory->empty[place.slot]));
        place.Advance(p.layout.stages);
      }
      WaitForPhase(SharedAddress(&memory->partials_empty[sums.slot]), sums.parity ^ 1);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int to = quad * 2 + c % 2;
        if (to < count) partials[sums.slot * (kFewPartialBytes / 4) + to * kFewTileRows + c / 2 * 8] = acc[c];
      }
      ArriveOnce(SharedAddress(&memory->partials_full[sums.slot]));
      sums.Advance();
    }
  }
}

// --- Folding ---

__device__ __forceinline__ void FoldTiles(const FewProblem& p, FewShared* memory, unsigned char* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, block_rows = p.layout.block_rows;
  const auto* partials = reinterpret_cast<const float*>(shared + p.layout.partials);
  auto* routed = reinterpret_cast<float*>(shared + p.layout.sums);  // [kFewTokens, block_rows]
  float* dense = routed + kFewTokens * block_rows;
  float* residual = dense + kFewTokens * block_rows;
  const bool down = p.last_phase == 1;
  const FewRange mine = FewShare(down ? p.each[1].rows : 0, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  WaitForEarlierKernels();
#pragma unroll 1
  for (int t = 0; down && t < p.num_tokens; ++t) {
#pragma unroll 1
    for (int i = lane; i < mine.end - mine.begin; i += 32) {
      routed[t * block_rows + i] = dense[t * block_rows + i] = 0;
      residual[t * block_rows + i] = __ldcg(p.residual + t * p.residual_stride + mine.begin + i);
    }
  }
  __syncwarp();
  const auto arrive = [&](int counter) {
    __threadfence();  // this lane's part of h is there for every block
    __syncwarp();
    if (lane == 0) atomicAdd(p.counters + counter, 1u);
  };
  FewPlace<kFewPartials> place;
#pragma unroll 1
  for (int phase = p.first_phase; phase <= p.last_phase; ++phase) {
    FewTiles tiles = TilesOf(p, phase);
    FewTile tile;
    bool of_shared = phase == 0 && down && p.shared[0].w != nullptr;  // still
#pragma unroll 1
    while (tiles.Next(FewListed{*memory}, &tile)) {
      if (of_shared && tile.expert >= 0) of_shared = false, arrive(kFewSharedCounter);
      const FewExpert& expert = ExpertOf(*memory, tile);
      WaitForPhase(SharedAddress(&memory->partials_full[place.slot]), place.parity);
      const float* of_warps = partials + place.slot * (kFewPartialBytes / 4);
      const auto sum_of = [&](int column, int row) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kFewWarps; ++w) sum = __fadd_rn(sum, of_warps[(w * kFewTokens + column) * kFewTileRows + row]);
        return sum;
      };
      if (phase == 0) {
        const int column = lane / 8, row = lane % 8;
        if (column < expert.count && row < tile.rows) {
          const float value = SwiGluValue(sum_of(column, row), sum_of(column, row + 8));
          const int gates = tile.expert < 0 ? p.shared[0].rows : p.each[0].rows;
          uint16_t* h = tile.expert < 0 ? p.shared_h : p.h;
          h[int64_t{expert.first + column} * gates + tile.row + row] = ClampedHalf(value);
        }
      } else {
        const int row = lane % 16, at = tile.row - mine.begin + row;
        for (int column = lane / 16; column < expert.count && row < tile.rows; column += 2) {
          const float sum = sum_of(column, row);
          if (tile.expert < 0) {
            dense[column * block_rows + at] = sum;
          } else {
            float* to = routed + expert.tokens[column] * block_rows + at;
            *to = fmaf(expert.weights[column], sum, *to);
          }
        }
      }
      ArriveOnce(SharedAddress(&memory->partials_empty[place.slot]));
      place.Advance();
    }
    if (of_shared) arrive(kFewSharedCounter);
    if (phase == 0 && down) arrive(kFewPairsCounter);
  }
#pragma unroll 1
  for (int t = 0; down && t < p.num_tokens; ++t) {
#pragma unroll 1
    for (int i = lane; i < mine.end - mine.begin; i += 32) {
      const float sum = __fadd_rn(residual[t * block_rows + i], routed[t * block_rows + i]);
      p.residual[t * p.residual_stride + mine.begin + i] = p.shared[1].w != nullptr ? __fadd_rn(sum, dense[t * block_rows + i]) : sum;
    }
  }
}

// What is needed soon and is not much, on its way before the ring's stages are: behind those it would wait.
__device__ __forceinline__ void PrefetchFirst(const FewProblem& p) {
  if (p.first_phase != 0) return;
  const int line = static_cast<int>(threadIdx.x) * 32, experts = p.num_experts * 8;
  if (p.norm_weight != nullptr && line < p.x_dim) PrefetchLine(p.norm_weight + line);
  if (p.routes && static_cast<int>(blockIdx.x) < p.num_experts && line < p.x_dim) PrefetchLine(p.router + int64_t{blockIdx.x} * p.x_dim + line);
  if (static_cast<int>(threadIdx.x) * 128 < experts) {
#pragma unroll
    for (int phase = 0; phase < 2; ++phase) PrefetchLine(reinterpret_cast<const char*>(p.data[phase]) + threadIdx.x * 128);
  }
}

template <DType kType>
__global__ __launch_bounds__(kFewThreads, 1) void FewKernel(const __grid_constant__ FewProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) FewShared memory;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(kAllLanes, tid / 32, 0);  // known to be one for all lanes
  LetNextKernelStart();
  PrefetchFirst(p);
  if (tid < p.layout.stages) {
    InitBarrier(SharedAddress(&memory.full[tid]), kFewCopyWarps * 32);
    InitBarrier(SharedAddress(&memory.empty[tid]), kFewWarps);
    FenceInitBarrier();
  } else if (tid == 32) {
    for (int i = 0; i < kFewPartials; ++i) {
      InitBarrier(SharedAddress(&memory.partials_full[i]), kFewWarps);
      InitBarrier(SharedAddress(&memory.partials_empty[i]), 1);
    }
    InitBarrier(SharedAddress(&memory.listed), 1);
    InitBarrier(SharedAddress(&memory.x_free), kFewWarps);
    for (int i = 0; i < 2; ++i) InitBarrier(SharedAddress(&memory.hidden[i]), kFewAideThreads);
    FenceInitBarrier();
  } else if (tid == 64) {
    FewExpert& expert = memory.shared;
    for (int phase = 0; phase < 2; ++phase) expert.w[phase] = p.shared[phase].w, expert.scales[phase] = p.shared[phase].scales;
    expert.first = 0, expert.count = p.num_tokens;
    for (int c = 0; c < kFewTokens; ++c) expert.tokens[c] = c, expert.weights[c] = 1;
  }
  __syncthreads();
  if (warp < kFewCopyWarp) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kFewMultiplyRegisters));
    MultiplyTiles<kType>(p, &memory, shared);
  } else if (warp < kFewAideWarp) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kFewCopyRegisters));
    if (warp == kFewCopyWarp && !p.routes) PrefetchShared(p);
    CopyTiles<kType>(p, memory, SharedAddress(shared));
  } else {
    if (p.routes) Route(p, &memory);
    if (warp < kFewFoldWarp) {
      Aid(p, &memory, shared);
    } else {
      FoldTiles(p, &memory, shared);
    }
  }
#endif
}

}  // namespace

template <DType kType>
CudaStatus LaunchFew(const CudaExec& exec, const FewProblem& p) {
  auto* kernel = &FewKernel<kType>;
  if (CudaStatus failure = AllowSharedBytes(kernel, p.layout.bytes, "moe_few")) return failure;
  LaunchOverlapped<LaunchRole::kDecodeMatmul>(kernel, exec.num_sms, kFewThreads, p.layout.bytes, exec.stream, p);
  return CudaLaunched("moe_few of %d tokens, %d pairs, %d gates of %d", p.num_tokens, p.num_pairs, p.each[0].rows, p.each[0].k);
}

}  // namespace cachalot
