// The experts of up to four tokens in one launch: gate/up, SwiGLU, down, their weighted sum and the shared expert, into the residual
// stream.
//
// Bound: the bytes of W. Most experts have one token, so nothing is read twice, and what is lost is where nothing is on its way from
// memory: at the beginnings and ends of launches, and where some SMs have more to read than others. So a block an SM stays, all have
// equal shares (moe_few.h), and their rings run on from matrix to matrix; the shared expert's rows, which are the same whatever the
// router says, come first, before the kernels in front have ended. h lies between gate/up and down: all blocks wait for each other
// there, while their rings fill with the shared expert's down rows.
//
// Four warps copy, sixteen multiply, one folds. A stage is 1 KB of each of 16 rows, with its scales, of which each warp that
// multiplies takes 64 bytes; its sums of a tile go to shared memory, where the folding warp adds the sixteen up and does what is left.
// All of them wait for every stage: who leaves some out might take a barrier's phase before for the one that it waits for.
//
// Invariant: an output is the sum of the warps' sums, in their order, each in the order of k; a token's experts are added in rising
// order and the shared one last. So its bits depend on its row and on W alone. No float is added by an atomic.
#pragma once

#include "device/cuda/bulk_copy.cuh"
#include "device/cuda/clamped_half.cuh"
#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "device/cuda/swiglu_value.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/matmul/stream_format.cuh"
#include "kernels/moe_matmul/moe_few.h"
#include "kernels/moe_matmul/moe_few_launch.h"

namespace cachalot {
namespace {

constexpr int kFewCopyWarps = 4;
constexpr int kFewMultiplyThreads = kFewWarps * 32;
constexpr int kFewTeamThreads = kNormWarps * 32;  // that norm a row
constexpr int kFewTeams = kFewMultiplyThreads / kFewTeamThreads;
constexpr int kFewCopyWarp = kFewWarps;  // the first
constexpr int kFewFoldWarp = kFewCopyWarp + kFewCopyWarps;
constexpr int kFewThreads = (kFewFoldWarp + 1) * 32;

// An expert that has pairs, or the shared one.
struct FewExpert {
  const std::byte* w[2];      // of gate/up, of down
  const float* scales[2];
  int id;
  int first, count;           // its pairs
  int tokens[kFewTokens];     // of each
  float weights[kFewTokens];
};

struct FewShared {
  uint64_t full[kFewMostStages], empty[kFewMostStages];
  uint64_t partials_full[kFewPartials], partials_empty[kFewPartials];
  uint64_t listed;
  int num_experts;            // that have pairs, in rising order
  FewExpert experts[kFewPairs];
  FewExpert shared;
  float squares[kFewTokens][kNormWarps];
};

// A ring's place: which slot, and the parity of its phase.
template <int kMost>
struct FewPlace {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance(int slots = kMost) {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
};

// The warp's arrival, when all of its lanes are here.
__device__ __forceinline__ void ArriveOnce(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) Arrive(barrier);
}
__device__ __forceinline__ void SyncMultipliers() { asm volatile("bar.sync 1, %0;\n" ::"n"(kFewMultiplyThreads) : "memory"); }

// How many experts have pairs, once the folding warp has listed them.
struct FewListed {
  const FewShared& memory;
  __device__ __forceinline__ int operator()() const {
    WaitForPhase(SharedAddress(&memory.listed), 0);
    return memory.num_experts;
  }
};

__device__ __forceinline__ FewTiles TilesOf(const FewProblem& p, int phase) {
  const FewMatrix& shared = p.shared[phase];
  return FewTiles(phase == 0, shared.w == nullptr ? 0 : shared.rows, p.each[phase].rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}
__device__ __forceinline__ const FewExpert& ExpertOf(const FewShared& memory, const FewTile& tile) {
  return tile.expert < 0 ? memory.shared : memory.experts[tile.expert];
}

// --- Copying ---

__device__ __forceinline__ void CopyAsync4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared), "l"(global) : "memory");
}

// The shared expert's gates and ups on their way to L2 by one warp, as far as the ring does not hold them: nothing else is to be read until the
// router has chosen. Before the wait: weights do not change.
__device__ __forceinline__ void PrefetchShared(const FewProblem& p) {
  const FewMatrix& matrix = p.shared[0];
  if (p.first_phase != 0 || matrix.w == nullptr) return;
  constexpr int kPiece = 8 << 10;
  const FewRange mine = FewShare(matrix.rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  const int bytes = (mine.end - mine.begin) * matrix.row_bytes;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const std::byte* from = matrix.w + (int64_t{half} * matrix.rows + mine.begin) * matrix.row_bytes;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x) % 32 * kPiece; at < bytes; at += 32 * kPiece) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from + at), "r"(min(kPiece, bytes - at)) : "memory");
    }
  }
}

// Lane 8 i + c of a copying warp brings the c-th scale of a stage of the i-th of the warp's rows.
template <DType kType>
__device__ __forceinline__ void CopyTiles(const FewProblem& p, const FewShared& memory, uint32_t ring) {
  constexpr int kRows = kFewTileRows / kFewCopyWarps;
  static_assert(kRows * kFewStageScales == 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 - kFewCopyWarp;
  const int scaled_row = warp * kRows + lane / kFewStageScales, column = lane % kFewStageScales;
  const uint32_t rows_to = ring + warp * kRows * kFewStageStride + lane * 16;
  const uint32_t scale_to = ring + kFewScalesAt + (column * kFewTileRows + scaled_row) * 4;
  FewPlace<kFewMostStages> place;
#pragma unroll 1
  for (int phase = p.first_phase; phase <= p.last_phase; ++phase) {
    FewTiles tiles = TilesOf(p, phase);
    FewTile tile;
#pragma unroll 1
    while (tiles.Next(FewListed{memory}, &tile)) {
      const FewMatrix& matrix = tile.expert < 0 ? p.shared[phase] : p.each[phase];
      const FewExpert& expert = ExpertOf(memory, tile);
      // Row r of the tile: gates, then their ups; or as they come.
      const auto row_of = [&](int r) { return phase == 0 && r >= 8 ? matrix.rows + tile.row + r - 8 : tile.row + r; };
      const auto is_there = [&](int r) { return (phase == 0 ? r % 8 : r) < tile.rows; };
      const int stages = FewStages(matrix.row_bytes);
      const std::byte* row = expert.w[phase] + int64_t{row_of(warp * kRows)} * matrix.row_bytes + lane * 16;
      const float* scale = nullptr;
      int scales_left = 0;  // from this lane's on
      if (StreamFormat<kType>::kFp8 && expert.scales[phase] != nullptr && is_there(scaled_row)) {
        const int columns = matrix.row_bytes / kFewWholeBytes;
        scale = expert.scales[phase] + int64_t{row_of(scaled_row) >> (matrix.scale_rows == 1 ? 0 : 7)} * columns + column;
        scales_left = columns - column;
      }
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        WaitForPhase(SharedAddress(&memory.empty[place.slot]), place.parity ^ 1);
        const uint32_t at = place.slot * kFewStageBytes;
        const int left = matrix.row_bytes - stage * kFewStageRowBytes - lane * 16;
        if (stage * kFewStageScales < scales_left) CopyAsync4(scale_to + at, scale + stage * kFewStageScales);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (!is_there(warp * kRows + i)) continue;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (half * 512 < left) CopyAsync16(rows_to + at + i * kFewStageStride + half * 512, row + int64_t{i} * matrix.row_bytes + half * 512, true);
          }
        }
        ArriveWhenCopied(SharedAddress(&memory.full[place.slot]));
        row += kFewStageRowBytes;
        place.Advance(p.layout.stages);
      }
    }
  }
}

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
#pragma unroll 1
  for (int i = tid * 32; i < p.x_dim; i += kFewMultiplyThreads * 32) {  // to L2 before the wait: weights do not change
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p.norm_weight + i));
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

// All rows of h: the pairs', then the shared expert's.
__device__ __forceinline__ void StageHidden(const FewProblem& p, uint32_t x) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto copy = [&](const uint16_t* rows, int num_rows, int k, uint32_t to) {
#pragma unroll 1
    for (int row = warp; row < num_rows; row += kFewWarps) {
#pragma unroll 4
      for (int i = lane * 8; i < k; i += 32 * 8) CopyAsync16(to + row * FewXStride(k) + i * 2, rows + int64_t{row} * k + i, true);
    }
  };
  copy(p.h, p.num_pairs, p.each[1].k, x);
  if (p.shared[1].w != nullptr) copy(p.shared_h, p.num_tokens, p.shared[1].k, x + p.num_pairs * FewXStride(p.each[1].k));
  CommitAsync();
  WaitAsync<0>();
  SyncMultipliers();
}

// Until every block has written its part of h. The counters are zero again behind it.
__device__ __forceinline__ void WaitForHidden(const FewProblem& p) {
  if (threadIdx.x == 0) {
    constexpr int64_t kMostClocks = int64_t{1} << 34;
    const int64_t since = clock64();
    uint32_t arrived = 0;
    while (true) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(arrived) : "l"(p.counters) : "memory");
      if (arrived == gridDim.x) break;
      if (clock64() - since > kMostClocks) __trap();  // a block that never came: a fault of ours
    }
    if (atomicAdd(p.counters + 1, 1u) == gridDim.x - 1) p.counters[0] = p.counters[1] = 0;
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
    } else {
      if (p.first_phase == 0) {
        WaitForHidden(p);
      } else {
        WaitForEarlierKernels();
      }
      StageHidden(p, SharedAddress(shared + p.layout.x));
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
        if (phase == 1 && tile.expert < 0) x = x_rows + p.num_pairs * FewXStride(p.each[1].k) + column * stride;
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

// The experts that have pairs, in rising order, by one warp.
__device__ __forceinline__ void ListExperts(const FewProblem& p, FewShared* memory) {
  constexpr int kBatch = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int listed = 0;
#pragma unroll 1
  for (int base = 0; base < p.num_experts; base += 32 * kBatch) {
    int begin[kBatch], end[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int e = base + i * 32 + lane;
      begin[i] = e < p.num_experts ? __ldcg(p.expert_begin + e) : 0;
      end[i] = e < p.num_experts ? __ldcg(p.expert_begin + e + 1) : 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t some = __ballot_sync(kAllLanes, end[i] > begin[i]);
      const int at = listed + __popc(some & ((1u << lane) - 1));
      if (end[i] > begin[i] && at < kFewPairs) {
        FewExpert& expert = memory->experts[at];
        expert.id = base + i * 32 + lane;
        expert.first = begin[i];
        expert.count = min(end[i] - begin[i], kFewTokens);
      }
      listed += __popc(some);
    }
  }
  listed = min(listed, kFewPairs);
  __syncwarp();
  static_assert(kFewPairs <= 32);
  if (lane < listed) {
    FewExpert& expert = memory->experts[lane];
#pragma unroll
    for (int phase = 0; phase < 2; ++phase) {
      expert.w[phase] = p.data[phase][expert.id];
      expert.scales[phase] = p.scales[phase] != nullptr ? p.scales[phase][expert.id] : nullptr;
    }
#pragma unroll
    for (int c = 0; c < kFewTokens; ++c) {
      const int pair = expert.first + min(c, expert.count - 1);
      expert.tokens[c] = __ldcg(p.token_rows + pair);
      expert.weights[c] = __ldcg(p.pair_weights + pair);
    }
  }
  if (lane == 0) memory->num_experts = listed;
  ArriveOnce(SharedAddress(&memory->listed));
}

__device__ __forceinline__ void FoldTiles(const FewProblem& p, FewShared* memory, unsigned char* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, block_rows = p.layout.block_rows;
  const auto* partials = reinterpret_cast<const float*>(shared + p.layout.partials);
  auto* routed = reinterpret_cast<float*>(shared + p.layout.sums);  // [kFewTokens, block_rows]
  float* dense = routed + kFewTokens * block_rows;
  float* residual = dense + kFewTokens * block_rows;
  const bool down = p.last_phase == 1;
  const FewRange mine = FewShare(down ? p.each[1].rows : 0, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  WaitForEarlierKernels();
  ListExperts(p, memory);
#pragma unroll 1
  for (int t = 0; down && t < p.num_tokens; ++t) {
#pragma unroll 1
    for (int i = lane; i < mine.end - mine.begin; i += 32) {
      routed[t * block_rows + i] = dense[t * block_rows + i] = 0;
      residual[t * block_rows + i] = __ldcg(p.residual + t * p.residual_stride + mine.begin + i);
    }
  }
  __syncwarp();
  FewPlace<kFewPartials> place;
#pragma unroll 1
  for (int phase = p.first_phase; phase <= p.last_phase; ++phase) {
    FewTiles tiles = TilesOf(p, phase);
    FewTile tile;
#pragma unroll 1
    while (tiles.Next(FewListed{*memory}, &tile)) {
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
    if (phase == 0 && down) {
      __threadfence();  // this lane's part of h is there for every block
      __syncwarp();
      if (lane == 0) atomicAdd(p.counters, 1u);
    }
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

template <DType kType>
__global__ __launch_bounds__(kFewThreads, 1) void FewKernel(const __grid_constant__ FewProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) FewShared memory;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(kAllLanes, tid / 32, 0);  // known to be one for all lanes
  LetNextKernelStart();
  if (tid == 0) {
    for (int i = 0; i < p.layout.stages; ++i) {
      InitBarrier(SharedAddress(&memory.full[i]), kFewCopyWarps * 32);
      InitBarrier(SharedAddress(&memory.empty[i]), kFewWarps);
    }
    for (int i = 0; i < kFewPartials; ++i) {
      InitBarrier(SharedAddress(&memory.partials_full[i]), kFewWarps);
      InitBarrier(SharedAddress(&memory.partials_empty[i]), 1);
    }
    InitBarrier(SharedAddress(&memory.listed), 1);
    FenceInitBarrier();
    FewExpert& expert = memory.shared;
    for (int phase = 0; phase < 2; ++phase) expert.w[phase] = p.shared[phase].w, expert.scales[phase] = p.shared[phase].scales;
    expert.first = 0, expert.count = p.num_tokens;
    for (int c = 0; c < kFewTokens; ++c) expert.tokens[c] = c, expert.weights[c] = 1;
  }
  __syncthreads();
  if (warp < kFewCopyWarp) {
    MultiplyTiles<kType>(p, &memory, shared);
  } else if (warp < kFewFoldWarp) {
    if (warp == kFewCopyWarp) PrefetchShared(p);
    CopyTiles<kType>(p, memory, SharedAddress(shared));
  } else {
    FoldTiles(p, &memory, shared);
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
