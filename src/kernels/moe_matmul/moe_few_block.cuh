// What the warps of a block of the experts' kernel (moe_few.cuh) share, and who they are.
#pragma once

#include "device/cuda/bulk_copy.cuh"
#include "device/cuda/clamped_half.cuh"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
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
constexpr int kFewAideWarp = kFewCopyWarp + kFewCopyWarps;
constexpr int kFewAideWarps = 3;
constexpr int kFewAideThreads = kFewAideWarps * 32;
constexpr int kFewFoldWarp = kFewAideWarp + kFewAideWarps;
constexpr int kFewThreads = (kFewFoldWarp + 1) * 32;  // six warps of each quarter of an SM: 80 registers
// What the compiler gives a thread, and how many of its registers those that copy leave to those that multiply: one spilled to memory waits behind the copies.
constexpr int kFewRegisters = 80, kFewCopyRegisters = 40, kFewMultiplyRegisters = 88;
static_assert(kFewWarps * (kFewMultiplyRegisters - kFewRegisters) <= kFewCopyWarps * (kFewRegisters - kFewCopyRegisters));
constexpr int kFewRouteThreads = kFewAideThreads + 32;  // the aides and the folding warp, which has nothing to do yet
constexpr int kFewRouteWarps = kFewRouteThreads / 32;

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
  uint64_t x_free;            // gate/up is multiplied
  uint64_t hidden[2];         // all rows of h are in this block's memory: the shared expert's, the pairs'
  int num_experts;            // that have pairs, in rising order
  FewExpert experts[kFewPairs];
  FewExpert shared;
  float squares[kFewTokens][kNormWarps];
  float router_squares[kNormWarps], router_sums[kFewRouteWarps];
  float scores[kFewMostRouterExperts];
  const std::byte* data[2][kFewMostRouterExperts];  // where they lie
};
static_assert(sizeof(FewShared) <= kFewOwnSharedBytes);

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
__device__ __forceinline__ void SyncAides() { asm volatile("bar.sync 2, %0;\n" ::"n"(kFewAideThreads) : "memory"); }
__device__ __forceinline__ void SyncRouters() { asm volatile("bar.sync 3, %0;\n" ::"n"(kFewRouteThreads) : "memory"); }
__device__ __forceinline__ int AideThread() { return static_cast<int>(threadIdx.x) - kFewAideWarp * 32; }
__device__ __forceinline__ void PrefetchLine(const void* at) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(at)); }

// How many experts have pairs, once they are listed.
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

}  // namespace
}  // namespace cachalot
