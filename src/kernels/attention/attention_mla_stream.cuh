// How MLA's streaming kernel (attention_mla_stream_sm90.cu) ends a piece. A partial result is 2048 groups of
// four sums, in the order in which threads hold them: group (2 block of columns + j) * 256 + thread, heads 8
// j + ...
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_stream.cuh"

namespace cachalot {

inline constexpr int kMlaHeads = 16;  // of a tile; fewer may exist
inline constexpr int kMlaValueDim = 512;
inline constexpr int kMlaGroup = 128;                 // threads of a warpgroup
inline constexpr int kMlaConsumers = 256;             // both
inline constexpr int kMlaBlocks = kMlaValueDim / 64;  // of columns
inline constexpr int kMlaSums = kMlaHeads * kMlaValueDim;
inline constexpr int kMlaMostPieces = 144;  // of a sequence, that can be folded

// In shared memory, where the queries have been: sums on their way from a group to the other; then what the
// fold needs of each piece and head.
struct MlaFoldMemory {
  float factors[kMlaMostPieces][kMlaHeads];
  float largest[kMlaConsumers / kMlaHeads][kMlaHeads], sums[kMlaConsumers / kMlaHeads][kMlaHeads];
  float4 parts[kMlaConsumers];
};
union MlaEnd {
  float hand[2][kMlaBlocks / 2 * 8][kMlaGroup];
  MlaFoldMemory fold;
};

// Which sums of a tile a thread holds: of two heads, of columns `column` and column + 8 of each block of 64.
struct MlaPlace {
  int head;    // + 8 j, and the next one
  int column;  // + 64 block
  __device__ explicit MlaPlace(int thread)
      : head(thread % 4 * 2),
        column(thread / kMlaGroup * (kMlaValueDim / 2) + thread % kMlaGroup / 32 * 16 + thread % 32 / 4) {}
};

__device__ __forceinline__ void WriteMlaFour(const AttentionParams& p, int64_t row, int heads, int head,
                                             int column, const float4& four, const float2& sum) {
  float* to = p.out + row * p.out_token_stride + head * p.out_head_stride + column;
  if (head < heads) {
    to[0] = __fdiv_rn(four.x, sum.x);
    to[8] = __fdiv_rn(four.z, sum.x);
  }
  if (head + 1 < heads) {
    to[p.out_head_stride] = __fdiv_rn(four.y, sum.y);
    to[p.out_head_stride + 8] = __fdiv_rn(four.w, sum.y);
  }
}

__device__ __forceinline__ void MlaConsumersMeet() {
  asm volatile("bar.sync 3, %0;\n" ::"n"(kMlaConsumers) : "memory");
}

// A warpgroup's softmax so far. A thread has heads 2 (lane % 4), the next one and both + 8: in this order in
// m and l, and value c of block b in o[b][2 of head's place + .. ] as wgmma lays its accumulators out.
struct MlaState {
  float o[kMlaBlocks][8];
  float m[4];  // what is taken for the largest; -infinity: nothing was visible yet
  float l[4];  // of this thread's tokens
};

// Both groups' softmaxes of a piece become one, of which each group has half of the columns: the output, or a
// partial result. Shared, the block's shared memory, has end, group_m [2][kMlaHeads] and warp_l
// [2][4][kMlaHeads].
template <typename Shared>
__device__ __forceinline__ void FinishPiece(const AttentionParams& p, const AttentionSchedule& s,
                                            const Piece& piece, MlaState* state, Shared& shared) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid % kMlaGroup / 32,
            group = tid / kMlaGroup, thread = tid % kMlaGroup;
  const MlaPlace place(tid);
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    float l = state->l[h];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) l += __shfl_xor_sync(kAllLanes, l, lanes);
    const int head = place.head + h / 2 * 8 + h % 2;
    if (lane < 4) shared.warp_l[group][warp][head] = l;
    if (lane < 4 && warp == 0) shared.group_m[group][head] = state->m[h];
  }
  MlaConsumersMeet();  // and the queries have been read
  float keep[kMlaBlocks / 2][8];
#pragma unroll
  for (int b = 0; b < kMlaBlocks / 2; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float low = state->o[b][i], high = state->o[b + kMlaBlocks / 2][i];
      keep[b][i] = group == 0 ? low : high;
      shared.end.hand[group][b * 8 + i][thread] = group == 0 ? high : low;  // for the other
    }
  }
  float m[4], l[4], own[4], others[4];
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    const int head = place.head + h / 2 * 8 + h % 2;
    const float m0 = shared.group_m[0][head], m1 = shared.group_m[1][head];
    m[h] = fmaxf(m0, m1);
    const float a = m0 == -CUDART_INF_F ? 0.0f : exp2f(m0 - m[h]),
                b = m1 == -CUDART_INF_F ? 0.0f : exp2f(m1 - m[h]);
    float l0 = 0, l1 = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) l0 += shared.warp_l[0][w][head], l1 += shared.warp_l[1][w][head];
    l[h] = __fmaf_rn(l0, a, l1 * b);
    own[h] = group == 0 ? a : b;
    others[h] = group == 0 ? b : a;
  }
  MlaConsumersMeet();
#pragma unroll
  for (int i = 0; i < kMlaBlocks / 2 * 8; ++i) {
    const int h = i % 8 / 4 * 2 + i % 2;
    // Where nothing was visible sums may be anything.
    const float theirs = others[h] == 0.0f ? 0.0f : shared.end.hand[group ^ 1][i][thread] * others[h];
    keep[i / 8][i % 8] = own[h] == 0.0f ? theirs : __fmaf_rn(keep[i / 8][i % 8], own[h], theirs);
  }

  if (piece.whole) {
#pragma unroll
    for (int i = 0; i < kMlaBlocks; ++i) {  // [block][pair of heads]
      const float* four = &keep[i / 2][i % 2 * 4];
      WriteMlaFour(p, piece.seq.q_begin, s.group, place.head + i % 2 * 8, place.column + i / 2 * 64,
                   {four[0], four[1], four[2], four[3]}, {l[i % 2 * 2], l[i % 2 * 2 + 1]});
    }
    return;
  }
  const int64_t partial = 2 * static_cast<int64_t>(blockIdx.x) + (piece.continues ? 0 : 1);
  float4* to = reinterpret_cast<float4*>(s.partial_out + partial * kMlaSums) + tid;
#pragma unroll
  for (int i = 0; i < kMlaBlocks; ++i) {
    const float* four = &keep[i / 2][i % 2 * 4];
    to[i * kMlaConsumers] = {four[0], four[1], four[2], four[3]};
  }
  if (tid >= 4) return;
#pragma unroll
  for (int h = 0; h < 4; ++h)
    s.partial_stats[partial * kMlaHeads + place.head + h / 2 * 8 + h % 2] = {m[h], l[h]};
}

}  // namespace cachalot
