// How the streaming kernels end a piece (attention_stream.cuh): the softmaxes of a block's warps become the output, or a partial result
// that the last block of a tile and head folds. S, the block's shared memory, has kConsumers, merge [kConsumers][kMergeRows][dim +
// kMergePad], warp_m, warp_l [kConsumers][kStreamRows] and folds; State has m, l and o, in mma's layout of the rows.
#pragma once

#include "device/cuda/clamped_half.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_run.cuh"
#include "kernels/attention/attention_stream.cuh"

namespace cachalot {

inline constexpr int kStreamRows = 16;  // of a tile
inline constexpr int kMergeRows = 8;    // at a time
inline constexpr int kMergePad = 8;     // floats

// Row g (r = 0) or g + 8 of the sums to `to` [kDim].
template <int kDim>
__device__ __forceinline__ void StoreSums(const WarpState<kDim>& state, int r, int quad, float* to) {
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) *reinterpret_cast<float2*>(to + quad * 2 + n * 8) = {state.o[n][2 * r], state.o[n][2 * r + 1]};
}

// The first `here` of those eight rows of a warp's, for the others of its block.
template <typename State, typename S>
__device__ __forceinline__ void LeaveSums(const State& state, int r, int here, S& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, quad = lane % 4;
  float l = state.l[r];
  l += __shfl_xor_sync(kAllLanes, l, 1);
  l += __shfl_xor_sync(kAllLanes, l, 2);
  if (quad == 0) {
    shared.warp_m[warp][g] = state.m[r];
    shared.warp_l[warp][g] = l;
  }
  if (g < here) StoreSums(state, r, quad, shared.merge[warp][g]);
}

template <int kThreads>
__device__ __forceinline__ void ConsumersMeet() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

__device__ __forceinline__ void WriteRow(const AttentionParams& p, const TileRow& row, int dim, int d, const float (&out)[4]) {
  float* to = p.out + row.row * p.out_token_stride + row.head * p.out_head_stride + d;
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = out[i];
  if (p.out_half.data == nullptr) return;
  auto* half = static_cast<uint16_t*>(p.out_half.data) + row.row * p.out_half.stride + row.head * dim + d;
  *reinterpret_cast<uint2*>(half) = ClampedHalf4({out[0], out[1], out[2], out[3]});
}

// Values d .. d + 3 of a row over what each warp has left in shared memory.
template <typename S>
__device__ __forceinline__ Folded MergedWarps(const S& shared, int row, int d) {
  constexpr int kConsumers = S::kConsumers;
  Folded merged = {-CUDART_INF_F, 0, {0, 0, 0, 0}};
#pragma unroll
  for (int w = 0; w < kConsumers; ++w) merged.m = fmaxf(merged.m, shared.warp_m[w][row]);
#pragma unroll
  for (int w = 0; w < kConsumers; ++w) {
    const float m = shared.warp_m[w][row], factor = m == -CUDART_INF_F ? 0.0f : exp2f(m - merged.m);
    const float4 part = *reinterpret_cast<const float4*>(&shared.merge[w][row][d]);
    merged.l = __fmaf_rn(shared.warp_l[w][row], factor, merged.l);
    merged.sum.x = __fmaf_rn(part.x, factor, merged.sum.x);
    merged.sum.y = __fmaf_rn(part.y, factor, merged.sum.y);
    merged.sum.z = __fmaf_rn(part.z, factor, merged.sum.z);
    merged.sum.w = __fmaf_rn(part.w, factor, merged.sum.w);
  }
  return merged;
}

// Rows [begin, begin + count) of a tile and head over all its pieces, the warps taking turns, into shared memory.
template <int kDim, typename S>
__device__ __forceinline__ void FoldRows(const AttentionSchedule& s, const Piece& piece, int begin, int count, S& shared) {
  constexpr int kConsumers = S::kConsumers;
  constexpr int kLanes = kDim / 4, kSide = 32 / kLanes;  // of a row; rows side by side
  constexpr int kAtATime = 4, kAhead = 3;                // rows of a lane, pieces
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, d = lane % kLanes * 4;
  for (int base = 0; base < count; base += kAtATime * kSide) {
    Folded folded[kAtATime];
#pragma unroll
    for (Folded& row : folded) row = {-CUDART_INF_F, 0, {0, 0, 0, 0}};
    for (int from = piece.first_block + warp; from <= piece.last_block; from += kAhead * kConsumers) {
      float2 stats[kAhead][kAtATime];
      float4 parts[kAhead][kAtATime];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int b = from + i * kConsumers;
#pragma unroll
        for (int j = 0; j < kAtATime; ++j) {
          const int row = base + j * kSide + lane / kLanes;
          stats[i][j] = {-CUDART_INF_F, 0};
          parts[i][j] = {0, 0, 0, 0};
          if (b > piece.last_block || row >= count) continue;
          const int64_t at = (2 * int64_t{b} + (b == piece.first_block ? 1 : 0)) * kStreamRows + begin + row;
          stats[i][j] = __ldcg(s.partial_stats + at);
          parts[i][j] = __ldcg(reinterpret_cast<const float4*>(s.partial_out + at * kDim + d));
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int j = 0; j < kAtATime; ++j) folded[j].Add(stats[i][j].x, stats[i][j].y, parts[i][j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      const int row = base + j * kSide + lane / kLanes;
      if (row >= count) continue;
      *reinterpret_cast<float4*>(&shared.merge[warp][row][d]) = folded[j].sum;
      if (d != 0) continue;
      shared.warp_m[warp][row] = folded[j].m;
      shared.warp_l[warp][row] = folded[j].l;
    }
  }
}

// The warps' softmaxes of a piece become the output, or a partial result.
template <int kDim, typename State, typename S>
__device__ __forceinline__ void MergePiece(const AttentionParams& p, const AttentionSchedule& s, const Piece& piece, const State& state, S& shared) {
  constexpr int kConsumerThreads = S::kConsumers * 32;
  constexpr int kFours = kDim / 4;
  const int tid = static_cast<int>(threadIdx.x);
  const int first_row = piece.tile * TileRowsOf(s, piece.seq);
  const int rows = min(kStreamRows, piece.seq.q_len * s.group - first_row);
  const int64_t partial = 2 * static_cast<int64_t>(blockIdx.x) + (piece.continues ? 0 : 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int here = min(kMergeRows, rows - kMergeRows * r);
    if (here <= 0) break;
    ConsumersMeet<kConsumerThreads>();  // what was merged last has been read
    LeaveSums(state, r, here, shared);
    ConsumersMeet<kConsumerThreads>();
    for (int e = tid; e < here * kFours; e += kConsumerThreads) {
      const int row = e / kFours, d = e % kFours * 4;
      const Folded merged = MergedWarps(shared, row, d);
      if (piece.whole) {
        float out[4];
        merged.Write(out);
        const TileRow to = RowOfTile(piece.seq, first_row + r * kMergeRows + row, s.group, piece.kv_head);
        WriteRow(p, to, kDim, d, out);
        if (d == 0) WriteLogSum(s, p.num_q_heads, to, merged.m, merged.l);
      } else {
        const int64_t at = partial * kStreamRows + r * kMergeRows + row;
        *reinterpret_cast<float4*>(s.partial_out + at * kDim + d) = merged.sum;
        if (d == 0) s.partial_stats[at] = {merged.m, merged.l};
      }
    }
  }
  if (piece.whole) return;

  // The block that finishes a tile and head last folds its pieces.
  __threadfence();  // this thread's part of the piece is there for every block
  ConsumersMeet<kConsumerThreads>();
  if (tid == 0) {
    int32_t* arrivals = s.arrivals + piece.first_block;
    shared.folds = atomicAdd(arrivals, 1) == piece.last_block - piece.first_block;
    if (shared.folds) *arrivals = 0;
  }
  ConsumersMeet<kConsumerThreads>();
  if (!shared.folds) return;
  __threadfence();
  for (int begin = 0; begin < rows; begin += kMergeRows) {
    FoldRows<kDim>(s, piece, begin, min(kMergeRows, rows - begin), shared);
    ConsumersMeet<kConsumerThreads>();
    for (int e = tid; e < min(kMergeRows, rows - begin) * kFours; e += kConsumerThreads) {
      float out[4];
      const Folded merged = MergedWarps(shared, e / kFours, e % kFours * 4);
      merged.Write(out);
      const TileRow to = RowOfTile(piece.seq, first_row + begin + e / kFours, s.group, piece.kv_head);
      WriteRow(p, to, kDim, e % kFours * 4, out);
      if (e % kFours == 0) WriteLogSum(s, p.num_q_heads, to, merged.m, merged.l);
    }
    ConsumersMeet<kConsumerThreads>();
  }
}

}  // namespace cachalot
