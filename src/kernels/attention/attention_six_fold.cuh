// How the blocks of MLA's streaming kernel over INT6 fold a sequence that several of them have attended, as
// attention_mla_code_fold.cuh says. A partial result is rows of heads. The code is short, since it runs once.
#pragma once

#include "kernels/attention/attention_mla_code_fold.cuh"
#include "kernels/attention/attention_six_queries.cuh"

namespace cachalot {

struct SixFoldMemory {
  float2 stats[kFoldMostPieces][kMlaHeads];  // largest, sum; then in the largest's place the factor
  float of_slices[2][kFoldSlices][kMlaHeads];
  float4 parts[kFoldThreads];
};

__device__ __forceinline__ void WriteSixFour(const AttentionParams& p, int64_t row, int heads, int four,
                                             const float4& sums, float inverse) {
  const int head = four / SixRows::kFours, column = four % SixRows::kFours * 4;
  if (head >= heads) return;
  float* to = p.out + row * p.out_token_stride + head * p.out_head_stride + column;
  float4 mean = {0, 0, 0, 0};
  if (p.kv.key_mean != nullptr)
    mean = {p.kv.key_mean[column], p.kv.key_mean[column + 1], p.kv.key_mean[column + 2],
            p.kv.key_mean[column + 3]};
  to[0] = __fmaf_rn(sums.x, inverse, mean.x), to[1] = __fmaf_rn(sums.y, inverse, mean.y);
  to[2] = __fmaf_rn(sums.z, inverse, mean.z), to[3] = __fmaf_rn(sums.w, inverse, mean.w);
}

__device__ __forceinline__ void FoldSixCut(const AttentionParams& p, const AttentionSchedule& s,
                                           const CodeCut& cut, SixFoldMemory* memory) {
  constexpr int kFours = kMlaSums / 4;
  constexpr int kAhead = 8;  // loads of a thread under way
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
  WaitForCut(s.arrivals + cut.first, pieces);

  float4 parts[kAhead];
  const auto load = [&](int four, int piece) {
    const float4* from = reinterpret_cast<const float4*>(s.partial_out) + four;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      parts[i] = {0, 0, 0, 0};
      if (four < end && piece + i < last) parts[i] = __ldcg(from + partial(piece + i) * kFours);
    }
  };
  int four = begin + lane, piece = first;
  if (first < last) load(four, piece);

  const int head = tid % kMlaHeads, slice = tid / kMlaHeads;
  float largest = -CUDART_INF_F, sum = 0;
#pragma unroll 1
  for (int i = slice; i < pieces; i += kFoldSlices) {
    const float2 stat = __ldcg(&s.partial_stats[partial(i) * kMlaHeads + head]);
    memory->stats[i][head] = stat;
    largest = fmaxf(largest, stat.x);
  }
  memory->of_slices[0][slice][head] = largest;
  FoldersMeet();
#pragma unroll
  for (int i = 0; i < kFoldSlices; ++i) largest = fmaxf(largest, memory->of_slices[0][i][head]);
#pragma unroll 1
  for (int i = slice; i < pieces; i += kFoldSlices) {
    const float2 stat = memory->stats[i][head];
    const float factor = stat.x == -CUDART_INF_F ? 0.0f : exp2f(stat.x - largest);
    memory->stats[i][head].x = factor;
    sum = __fmaf_rn(stat.y, factor, sum);
  }
  memory->of_slices[1][slice][head] = sum;
  FoldersMeet();

  float4 out = {0, 0, 0, 0};
  const auto write = [&] {
    const int of = four / SixRows::kFours;
    float l = 0;
#pragma unroll
    for (int i = 0; i < kFoldSlices; ++i) l += memory->of_slices[1][i][of];
    WriteSixFour(p, cut.row, s.group, four, out, 1.0f / l);
  };
#pragma unroll 1
  while (four < end && first < last) {
    const int of = four / SixRows::kFours;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      // Of a piece in which nothing is visible the sums may be anything.
      const float factor = piece + i < last ? memory->stats[piece + i][of].x : 0.0f;
      if (factor == 0.0f) continue;
      out.x = __fmaf_rn(parts[i].x, factor, out.x), out.y = __fmaf_rn(parts[i].y, factor, out.y);
      out.z = __fmaf_rn(parts[i].z, factor, out.z), out.w = __fmaf_rn(parts[i].w, factor, out.w);
    }
    piece += kAhead;
    if (piece < last) {
      load(four, piece);
      continue;
    }
    if (ways > 1) break;
    const int next = four + lanes;
    load(next, first);
    write();
    four = next, piece = first;
    out = {0, 0, 0, 0};
  }
  if (ways > 1) {
    memory->parts[tid] = out;
    FoldersMeet();
    if (way == 0) {
#pragma unroll 1
      for (int i = 1; i < ways; ++i) {
        const float4 more = memory->parts[i * lanes + lane];
        out.x += more.x, out.y += more.y, out.z += more.z, out.w += more.w;
      }
      write();
    }
  }
  FoldersMeet();  // what is in the memory has been read
}

}  // namespace cachalot
