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
inline constexpr int kMlaMostPieces = 136;  // of a sequence, that can be folded

// In shared memory, where the queries have been: sums on their way from a group to the other.
using MlaHand = float[2][kMlaBlocks / 2 * 8][kMlaGroup];

// Which sums of a tile a thread holds: of two heads, of columns `column` and column + 8 of each block of 64.
struct MlaPlace {
  int head;    // + 8 j, and the next one
  int column;  // + 64 block
  __device__ explicit MlaPlace(int thread)
      : head(thread % 4 * 2),
        column(thread / kMlaGroup * (kMlaValueDim / 2) + thread % kMlaGroup / 32 * 16 + thread % 32 / 4) {}
};

__device__ __forceinline__ void WriteMlaFour(const AttentionParams& p, int64_t row, int heads, int head,
                                             int column, const float4& four, const float2& inverse) {
  float* to = p.out + row * p.out_token_stride + head * p.out_head_stride + column;
  if (head < heads) {
    to[0] = four.x * inverse.x;
    to[8] = four.z * inverse.x;
  }
  if (head + 1 < heads) {
    to[p.out_head_stride] = four.y * inverse.y;
    to[p.out_head_stride + 8] = four.w * inverse.y;
  }
}

__device__ __forceinline__ void MlaConsumersMeet() {
  asm volatile("bar.sync 3, %0;\n" ::"n"(kMlaConsumers) : "memory");
}

// A warpgroup's softmax so far. A thread has heads 2 (lane % 4), the next one and both + 8: in this order in
// m and l, and values of block b in o[b ^ 4 group] as wgmma lays its accumulators out: a group keeps its
// first half.
struct MlaState {
  float o[kMlaBlocks][8];
  float m[4];  // what is taken for the largest; -infinity: nothing was visible yet
  float l[4];  // of this thread's tokens
};

// Both groups' softmaxes of a piece become one, of which each group has half of the columns, its first four
// blocks: the output, or a partial result. Shared, the block's shared memory, has hand, group_m
// [2][kMlaHeads], warp_l [2][4][kMlaHeads] and inverse_l [kMlaHeads].
template <typename Shared>
__device__ __forceinline__ void FinishPiece(const AttentionParams& p, const AttentionSchedule& s,
                                            const Piece& piece, bool dry, MlaState* state, Shared& shared) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid % kMlaGroup / 32,
            group = tid / kMlaGroup, thread = tid % kMlaGroup;
  const MlaPlace place(tid);
  bool nothing = false;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    float l = state->l[h];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) l += __shfl_xor_sync(kAllLanes, l, lanes);
    const int head = place.head + h / 2 * 8 + h % 2;
    if (lane < 4) shared.warp_l[group][warp][head] = l;
    if (lane < 4 && warp == 0) shared.group_m[group][head] = state->m[h];
    nothing |= state->m[h] == -CUDART_INF_F;
  }
  if (nothing) {  // was visible to some head: its sums may be anything
#pragma unroll
    for (auto& block : state->o) {
#pragma unroll
      for (int i = 0; i < 8; ++i) block[i] = state->m[i / 4 * 2 + i % 2] == -CUDART_INF_F ? 0.0f : block[i];
    }
  }
  MlaConsumersMeet();  // and the queries have been read
#pragma unroll
  for (int i = 0; i < kMlaBlocks / 2 * 8; ++i)
    shared.hand[group][i][thread] = state->o[kMlaBlocks / 2 + i / 8][i % 8];
  float own[4], others[4];
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    const int head = place.head + h / 2 * 8 + h % 2;
    const float mine = state->m[h], theirs = shared.group_m[group ^ 1][head], m = fmaxf(mine, theirs);
    own[h] = mine == -CUDART_INF_F ? 0.0f : exp2f(mine - m);
    others[h] = theirs == -CUDART_INF_F ? 0.0f : exp2f(theirs - m);
  }
  const int64_t partial = 2 * static_cast<int64_t>(blockIdx.x) + (piece.continues ? 0 : 1);
  if (tid < kMlaHeads) {
    const float m0 = shared.group_m[0][tid], m1 = shared.group_m[1][tid], m = fmaxf(m0, m1);
    float l0 = 0, l1 = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) l0 += shared.warp_l[0][w][tid], l1 += shared.warp_l[1][w][tid];
    const float l = __fmaf_rn(l0, m0 == -CUDART_INF_F ? 0.0f : exp2f(m0 - m),
                              l1 * (m1 == -CUDART_INF_F ? 0.0f : exp2f(m1 - m)));
    shared.inverse_l[tid] = __frcp_rn(l);
    if (!piece.whole && !dry) s.partial_stats[partial * kMlaHeads + tid] = {m, l};
  }
  MlaConsumersMeet();
  float4 keep[kMlaBlocks];  // [block][pair of heads]
#pragma unroll
  for (int i = 0; i < kMlaBlocks; ++i) {
    float four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int h = i % 2 * 2 + j % 2;
      four[j] = __fmaf_rn(state->o[i / 2][i % 2 * 4 + j], own[h],
                          shared.hand[group ^ 1][i * 4 + j][thread] * others[h]);
    }
    keep[i] = {four[0], four[1], four[2], four[3]};
  }
  if (dry) return;
  if (piece.whole) {
#pragma unroll
    for (int i = 0; i < kMlaBlocks; ++i) {
      const int head = place.head + i % 2 * 8;
      WriteMlaFour(p, piece.seq.q_begin, s.group, head, place.column + i / 2 * 64, keep[i],
                   *reinterpret_cast<const float2*>(&shared.inverse_l[head]));
    }
    return;
  }
  float4* to = reinterpret_cast<float4*>(s.partial_out + partial * kMlaSums) + tid;
#pragma unroll
  for (int i = 0; i < kMlaBlocks; ++i) to[i * kMlaConsumers] = keep[i];
}

}  // namespace cachalot
