// x of chain.cuh's matmuls: what the blocks hand each other, and how a warp gets its part.
//
// A value is stored once more, in a word of device memory that was zero until then, and whoever wants it
// reads until it is not: a store and a load, where a count of the blocks that are done is a store, a fence,
// an atomic, a load, and then x. A value of +0 goes as -0. A launch writes one of two sets of words and
// clears the other, which the launch before it wrote: nobody reads that any more, since kernels in front have
// ended. Which set it is lies in device memory, so that a graph may be launched as often as one likes. Blocks
// of two launches at once would take each other's words; nobody may launch two at once, because neither could
// have all its blocks on the card.
#pragma once

#include "device/cuda/bulk_copy.cuh"
#include "device/cuda/norm_sum.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/matmul/chain.h"

namespace cachalot {
namespace {

// Of this card. `set`: the one that the next launch writes.
struct ChainState {
  uint32_t set;
  uint32_t words[2];  // that lie in each
  uint32_t blocks;    // of a launch that have read the rest
};
__device__ __align__(16) ChainState g_chain_state;
__device__ __align__(16) float g_chain_words[2][kChainMostWords];

struct ChainShared {
  uint64_t full[kChainMostStages], empty[kChainMostStages];
  uint64_t partials_full[kChainPartials], partials_empty[kChainPartials];
  uint64_t told;  // `words` is there
  float* words;   // of the exchange, that this launch writes
  float squares[kChainMost][kChainWarps];
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

// Which words of the exchange this launch writes; clears its part of those that the launch in front wrote. By
// one warp, behind earlier kernels.
__device__ __forceinline__ void OpenChainExchange(const ChainProblem& p, ChainShared* memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto state = __ldcg(reinterpret_cast<const uint4*>(&g_chain_state));
  const uint32_t set = state.x & 1, before = set == 0 ? state.z : state.y;
  if (lane == 0) {
    memory->words = g_chain_words[set];
    // Of the blocks that have read it this is the last: `set` is here before it is counted, which a fence
    // would not tell sooner.
    if (atomicAdd(&g_chain_state.blocks, 1 + (state.x >> 1)) == gridDim.x - 1) {
      g_chain_state.set = set ^ 1;
      g_chain_state.words[set] = static_cast<uint32_t>(p.words);
      g_chain_state.blocks = 0;
    }
  }
  ArriveAsWarp(SharedAddress(&memory->told));
  auto* words = reinterpret_cast<float4*>(g_chain_words[set ^ 1]);
  for (uint32_t i = blockIdx.x * 32 + lane; i < (before + 3) / 4; i += gridDim.x * 32) words[i] = {};
}

__device__ __forceinline__ float4 LoadChainWords(const float* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ bool AreChainWordsThere(float4 v) {
  return __float_as_uint(v.x) != 0 && __float_as_uint(v.y) != 0 && __float_as_uint(v.z) != 0 &&
         __float_as_uint(v.w) != 0;
}
__device__ __forceinline__ void StoreChainWord(float* to, float value) {
  const uint32_t bits = __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;\n" ::"l"(to), "r"(bits == 0 ? 0x80000000 : bits)
               : "memory");
}

// A value that never comes is a fault of ours.
__device__ __forceinline__ void CheckChainClock(int64_t since) {
  if (clock64() - since > int64_t{1} << 34) __trap();
}

// A warp's run of x of a stage, on its way from memory to shared memory. A warp multiplies by no other x than
// it has brought there itself, so that nobody waits for another warp's.
struct ChainInput {
  const float* from;     // this lane's, of the warp's first run
  const float* weights;  // null: no norm
  bool handed;           // x comes through the exchange
  float4 v[2], w[2] = {};

  __device__ __forceinline__ ChainInput(const ChainOp& op, const ChainShared& memory)
      : handed(op.from != kChainNowhere) {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              at = static_cast<int>(threadIdx.x) / 32 * kChainRunValues + lane / 4 * 32 + lane % 4 * 4;
    weights = op.norm_weight == nullptr ? nullptr : op.norm_weight + at;
    from = op.x + at;
    if (handed) {
      WaitForPhase(SharedAddress(&memory.told), 0);
      from = memory.words + op.from + at;
    }
  }
  __device__ __forceinline__ void LoadWeights(int stage) {
    if (weights == nullptr) return;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      w[half] = *reinterpret_cast<const float4*>(weights + stage * kChainStageValues + half * 16);
  }
  __device__ __forceinline__ void Load(int stage) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      v[half] = LoadChainWords(from + stage * kChainStageValues + half * 16);
  }
  // Until one of the values has been written: L2 has the weights to bring, so that the others are asked for
  // but once.
  __device__ __forceinline__ void WaitForOne() const {
    if (handed && threadIdx.x % 32 == 0) {
      const int64_t since = clock64();
      while (!AreChainWordsThere(LoadChainWords(from))) CheckChainClock(since);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void WaitForAll(int stage) {
    if (!handed) return;
    const int64_t since = clock64();
    while (!AreChainWordsThere(v[0]) || !AreChainWordsThere(v[1])) {
      Load(stage);
      CheckChainClock(since);
    }
    __syncwarp();
  }
  // The norm's weights here; the rest of it is the folding warp's, which gets the sum of squares.
  __device__ __forceinline__ float TakeWeights() {
    if (weights == nullptr) return 0;
    const float sum = SquareSum(v[0]) + SquareSum(v[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      v[half] = {v[half].x * w[half].x, v[half].y * w[half].y, v[half].z * w[half].z, v[half].w * w[half].w};
    return sum;
  }
};

}  // namespace
}  // namespace cachalot
