// How the blocks of MLA's streaming kernel fold a sequence that several of them have attended: each, when all
// have written what they have, an equal share of its sums. They wait for each other, so all have to run at a
// time: one fits on each SM, and no kernel behind them starts before all have begun.
#pragma once

#include "kernels/attention/attention_mla_stream.cuh"

namespace cachalot {

// A sequence that this block and others have attended.
struct MlaCut {
  int first, last;  // blocks; none: last < 0
  int row;
};

// This block's partial result of the piece has been written by all consumers, which have met.
__device__ __forceinline__ void AddCut(const AttentionSchedule& s, const Piece& piece, MlaCut* cuts) {
  if (threadIdx.x != 0) return;
  cuts[piece.continues ? 0 : 1] = {piece.first_block, piece.last_block, piece.seq.q_begin};
  __threadfence();
  atomicAdd(s.arrivals + piece.first_block, 1);
}

// Until every block has added its piece. The counter is zero again when all have seen that.
__device__ __noinline__ inline void WaitForPieces(int32_t* arrivals, int pieces) {
  if (threadIdx.x == 0) {
    constexpr int64_t kMostClocks = int64_t{1} << 34;
    const int64_t since = clock64();
    int arrived = 0;
    while (true) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(arrived) : "l"(arrivals) : "memory");
      if (arrived >= pieces) break;
      if (clock64() - since > kMostClocks) __trap();  // a block that never came: a fault of ours
    }
    if (atomicAdd(arrivals, 1) == 2 * pieces - 1) *arrivals = 0;
  }
  MlaConsumersMeet();
}

// A factor for each piece and head, and the sums of the weights.
template <typename Partial>
__device__ __forceinline__ void MakeFactors(const AttentionSchedule& s, int pieces, const Partial& partial,
                                            MlaFoldMemory* memory) {
  const int head = static_cast<int>(threadIdx.x) % kMlaHeads,
            slice = static_cast<int>(threadIdx.x) / kMlaHeads;
  constexpr int kSlices = kMlaConsumers / kMlaHeads, kMost = kMlaMostPieces / kSlices;
  static_assert(kMlaMostPieces % kSlices == 0);
  float2 stats[kMost];
  float largest = -CUDART_INF_F, sum = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int piece = slice + i * kSlices;
    stats[i] = {-CUDART_INF_F, 0};
    if (piece < pieces) stats[i] = __ldcg(&s.partial_stats[partial(piece) * kMlaHeads + head]);
  }
#pragma unroll
  for (const float2& stat : stats) largest = fmaxf(largest, stat.x);
  memory->largest[slice][head] = largest;
  MlaConsumersMeet();
#pragma unroll
  for (int i = 0; i < kSlices; ++i) largest = fmaxf(largest, memory->largest[i][head]);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int piece = slice + i * kSlices;
    const float factor = stats[i].x == -CUDART_INF_F ? 0.0f : exp2f(stats[i].x - largest);
    if (piece < pieces) memory->factors[piece][head] = factor;
    sum = __fmaf_rn(stats[i].y, factor, sum);
  }
  memory->sums[slice][head] = sum;
  MlaConsumersMeet();
}

__device__ __forceinline__ int HeadOfFour(int four) {
  return MlaPlace(four % kMlaConsumers).head + four / kMlaConsumers % 2 * 8;
}
__device__ __forceinline__ void WriteFolded(const AttentionParams& p, const AttentionSchedule& s, int row,
                                            int four, const float4& out, const MlaFoldMemory& memory) {
  const int head = HeadOfFour(four);
  const int column = MlaPlace(four % kMlaConsumers).column + four / kMlaConsumers / 2 * 64;
  float2 sums = {0, 0};
#pragma unroll
  for (int i = 0; i < kMlaConsumers / kMlaHeads; ++i)
    sums.x += memory.sums[i][head], sums.y += memory.sums[i][head + 1];
  WriteMlaFour(p, row, s.group, head, column, out, sums);
}

__device__ __forceinline__ void FoldCut(const AttentionParams& p, const AttentionSchedule& s,
                                        const MlaCut& cut, MlaFoldMemory* memory) {
  constexpr int kFours = kMlaSums / 4;
  constexpr int kAhead = 10;  // loads of a thread under way
  const int tid = static_cast<int>(threadIdx.x);
  const int pieces = cut.last - cut.first + 1, own = static_cast<int>(blockIdx.x) - cut.first;
  // Groups of four sums, and how many threads share the pieces of each.
  const int begin = kFours * own / pieces, end = kFours * (own + 1) / pieces, count = end - begin;
  const int ways = count > kMlaConsumers / 2 ? 1 : min(kMlaConsumers / count, pieces);
  const int lanes = ways == 1 ? kMlaConsumers : count, way = tid / lanes, lane = tid % lanes;
  const int share = (pieces + ways - 1) / ways, first = way * share;
  const int last = way < ways ? min(first + share, pieces) : first;
  // A block's second partial result is of a sequence that begins in it.
  const auto partial = [&](int piece) { return 2 * int64_t{cut.first + piece} + (piece == 0 ? 1 : 0); };
  WaitForPieces(s.arrivals + cut.first, pieces);

  float4 parts[kAhead];
  int at_four = begin + lane, at_piece = 0;
  const auto load = [&] {
#pragma unroll
    for (float4& part : parts) {
      part = {0, 0, 0, 0};
      if (at_four < end && first + at_piece < last)
        part = __ldcg(reinterpret_cast<const float4*>(s.partial_out + partial(first + at_piece) * kMlaSums) +
                      at_four);
      if (++at_piece == share) at_piece = 0, at_four += lanes;
    }
  };
  load();
  MakeFactors(s, pieces, partial, memory);

  float4 out = {0, 0, 0, 0};
  int four = begin + lane, piece = 0;
  bool loaded = true;
  while (four < end) {
    if (!loaded) load();
    loaded = false;
#pragma unroll
    for (const float4& part : parts) {
      if (four < end) {
        const int at = HeadOfFour(four);
        if (first + piece < last) {
          const float2 factor = *reinterpret_cast<const float2*>(&memory->factors[first + piece][at]);
          // Of a piece in which nothing is visible the sums may be anything.
          if (factor.x != 0.0f)
            out.x = __fmaf_rn(part.x, factor.x, out.x), out.z = __fmaf_rn(part.z, factor.x, out.z);
          if (factor.y != 0.0f)
            out.y = __fmaf_rn(part.y, factor.y, out.y), out.w = __fmaf_rn(part.w, factor.y, out.w);
        }
        if (++piece == share) {
          if (ways == 1) {
            WriteFolded(p, s, cut.row, four, out, *memory);
            out = {0, 0, 0, 0};
          }
          piece = 0, four += lanes;
        }
      }
    }
  }
  if (ways == 1) return;
  memory->parts[tid] = out;
  MlaConsumersMeet();
  if (way != 0) return;
  for (int i = 1; i < ways; ++i) {
    const float4 more = memory->parts[i * lanes + lane];
    out.x += more.x, out.y += more.y, out.z += more.z, out.w += more.w;
  }
  WriteFolded(p, s, cut.row, begin + lane, out, *memory);
}

}  // namespace cachalot
