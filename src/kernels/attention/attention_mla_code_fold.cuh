// How the blocks of MLA's streaming kernel over codes fold a sequence that several of them have attended: each, when all have written what they
// have, an equal share of its sums. They wait for each other, so all have to run at a time: one fits on each SM, and no kernel behind them starts
// before all have begun. A partial result is 2048 groups of four sums, each of one head.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_mla_stream.cuh"

namespace cachalot {

inline constexpr int kFoldThreads = 256;     // the block's first
inline constexpr int kFoldMostPieces = 144;  // of a sequence
inline constexpr int kFoldSlices = kFoldThreads / kMlaHeads;
static_assert(kFoldMostPieces >= kMlaMostPieces && kFoldMostPieces % kFoldSlices == 0);

struct CodeFoldMemory {
  float factors[kFoldMostPieces][kMlaHeads];
  float largest[kFoldSlices][kMlaHeads], sums[kFoldSlices][kMlaHeads];
  float inverse_l[kMlaHeads];
  float4 parts[kFoldThreads];
};

// A sequence that this block and others have attended.
struct CodeCut {
  int first, last;  // blocks; none: last < 0
  int row;
};

__device__ __forceinline__ void FoldersMeet() { asm volatile("bar.sync 3, %0;\n" ::"n"(kFoldThreads) : "memory"); }

// This block's partial result of the piece has been written; by thread 0, behind all that have.
__device__ __forceinline__ void AddCut(const AttentionSchedule& s, const Piece& piece, CodeCut* cuts) {
  cuts[piece.continues ? 0 : 1] = {piece.first_block, piece.last_block, piece.seq.q_begin};
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(s.arrivals + piece.first_block) : "memory");
}

// Until every block has added its piece. The counter is zero again when all have seen that.
__device__ __noinline__ inline void WaitForCut(int32_t* arrivals, int pieces) {
  if (threadIdx.x == 0) {
    constexpr int64_t kMostClocks = int64_t{1} << 34;
    const int64_t since = clock64();
    int arrived = 0;
    while (true) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(arrived) : "l"(arrivals) : "memory");
      if (arrived >= pieces) break;
      if (clock64() - since > kMostClocks) __trap();  // a block that never came: a fault of ours
    }
  }
  FoldersMeet();
  if (threadIdx.x == 0 && atomicAdd(arrivals, 1) == 2 * pieces - 1) *arrivals = 0;
}

// A factor for each piece and head, and the inverse sums of the weights.
template <typename Partial>
__device__ __forceinline__ void MakeCodeFactors(const AttentionSchedule& s, int pieces, const Partial& partial, CodeFoldMemory* memory) {
  const int head = static_cast<int>(threadIdx.x) % kMlaHeads, slice = static_cast<int>(threadIdx.x) / kMlaHeads;
  constexpr int kMost = kFoldMostPieces / kFoldSlices;
  float2 stats[kMost];
  float largest = -CUDART_INF_F, sum = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int piece = slice + i * kFoldSlices;
    stats[i] = {-CUDART_INF_F, 0};
    if (piece < pieces) stats[i] = __ldcg(&s.partial_stats[partial(piece) * kMlaHeads + head]);
  }
#pragma unroll
  for (const float2& stat : stats) largest = fmaxf(largest, stat.x);
  memory->largest[slice][head] = largest;
  FoldersMeet();
#pragma unroll
  for (int i = 0; i < kFoldSlices; ++i) largest = fmaxf(largest, memory->largest[i][head]);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int piece = slice + i * kFoldSlices;
    const float factor = stats[i].x == -CUDART_INF_F ? 0.0f : exp2f(stats[i].x - largest);
    if (piece < pieces) memory->factors[piece][head] = factor;
    sum = __fmaf_rn(stats[i].y, factor, sum);
  }
  memory->sums[slice][head] = sum;
  FoldersMeet();
  if (slice == 0) {
    sum = 0;
#pragma unroll
    for (int i = 0; i < kFoldSlices; ++i) sum += memory->sums[i][head];
    memory->inverse_l[head] = 1.0f / sum;
  }
  FoldersMeet();
}

// Fours: HeadOf(four), Write(p, row, heads, four, sums, inverse).
template <typename Fours>
__device__ __forceinline__ void FoldCut(const AttentionParams& p, const AttentionSchedule& s, const CodeCut& cut, CodeFoldMemory* memory) {
  constexpr int kFours = kMlaSums / 4;
  constexpr int kAhead = 10;  // loads of a thread under way
  const int tid = static_cast<int>(threadIdx.x);
  const int pieces = cut.last - cut.first + 1, own = static_cast<int>(blockIdx.x) - cut.first;
  // Groups of four sums, and how many threads share the pieces of each.
  const int begin = kFours * own / pieces, end = kFours * (own + 1) / pieces, count = end - begin;
  const int ways = count > kFoldThreads / 2 ? 1 : min(kFoldThreads / count, pieces);
  const int lanes = ways == 1 ? kFoldThreads : count, way = tid / lanes, lane = tid % lanes;
  const int share = (pieces + ways - 1) / ways, first = way * share;
  const int last = way < ways ? min(first + share, pieces) : first;
  // A block's second partial result is of a sequence that begins in it.
  const auto partial = [&](int piece) { return 2 * int64_t{cut.first + piece} + (piece == 0 ? 1 : 0); };
  const auto write = [&](int four, const float4& out) { Fours::Write(p, cut.row, s.group, four, out, memory->inverse_l[Fours::HeadOf(four)]); };
  WaitForCut(s.arrivals + cut.first, pieces);

  float4 parts[kAhead];
  int at_four = begin + lane, at_piece = 0;
  const auto load = [&] {
#pragma unroll
    for (float4& part : parts) {
      part = {0, 0, 0, 0};
      if (at_four < end && first + at_piece < last) {
        part = __ldcg(reinterpret_cast<const float4*>(s.partial_out + partial(first + at_piece) * kMlaSums) + at_four);
      }
      if (++at_piece == share) at_piece = 0, at_four += lanes;
    }
  };
  load();
  MakeCodeFactors(s, pieces, partial, memory);

  float4 out = {0, 0, 0, 0};
  int four = begin + lane, piece = 0;
  bool loaded = true;
  while (four < end) {
    if (!loaded) load();
    loaded = false;
#pragma unroll
    for (const float4& part : parts) {
      if (four >= end) continue;
      // Of a piece in which nothing is visible the sums may be anything.
      const float factor = first + piece < last ? memory->factors[first + piece][Fours::HeadOf(four)] : 0.0f;
      if (factor != 0.0f) {
        out.x = __fmaf_rn(part.x, factor, out.x), out.y = __fmaf_rn(part.y, factor, out.y);
        out.z = __fmaf_rn(part.z, factor, out.z), out.w = __fmaf_rn(part.w, factor, out.w);
      }
      if (++piece < share) continue;
      if (ways == 1) {
        write(four, out);
        out = {0, 0, 0, 0};
      }
      piece = 0, four += lanes;
    }
  }
  if (ways > 1) {
    memory->parts[tid] = out;
    FoldersMeet();
    if (way == 0) {
      for (int i = 1; i < ways; ++i) {
        const float4 more = memory->parts[i * lanes + lane];
        out.x += more.x, out.y += more.y, out.z += more.z, out.w += more.w;
      }
      write(begin + lane, out);
    }
  }
  FoldersMeet();  // what is in the memory has been read
}

}  // namespace cachalot
