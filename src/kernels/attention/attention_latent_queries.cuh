// The sixteen rows of queries that meet latents in codes: from memory to shared memory, there to lie as mma wants them, and on to registers.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes_queries.cuh"
#include "kernels/attention/attention_query_rows.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/latent_run.h"

namespace cachalot {

template <KvCode kCode>
inline constexpr bool kIntegerLatents = kCode != KvCode::kE4M3;
// Steps of mma over a part's columns.
template <KvCode kCode>
inline constexpr int kLatentSteps = kIntegerLatents<kCode> ? LatentKeys<kCode>::kSteps : kLatentColumns / 16;

// Sixteen rows in shared memory, as operands A (QueryWord).
template <KvCode kCode>
struct SharedLatentQueries {
  uint4 words[kLatentParts][kLatentSteps<kCode> * 32];
  uint4 exact[kExactDim / 16][2][32];                                   // BF16 and its rest, in units of the row's scores
  int32_t starts[kCodeRows][kLatentParts * LatentKeys<kCode>::kGroups];  // minus the bias times the sum of the query's codes
  float factors[kCodeRows];                                             // of scores, in units of log2
};

// A row of them by a warp: `row` may not exist.
template <KvCode kCode>
__device__ __forceinline__ void StoreLatentRow(const AttentionParams& p, const CodePlanes& planes, const TileRow& row, int r, bool aligned,
                                               SharedLatentQueries<kCode>* shared) {
  using Keys = LatentKeys<kCode>;
  constexpr int kValues = LatentQueryRow::kValues;
  const int lane = static_cast<int>(threadIdx.x) % 32, part = lane / 8;
  const LatentQueryRow query(p, planes, row, aligned);
  const auto& x = query.x;
  const auto& tail = query.tail;
  float largest = 0;
#pragma unroll
  for (const float value : x) largest = MaxOrNan(largest, fabsf(value));
  const float tail_largest = MaxOrNan(fabsf(tail[0]), fabsf(tail[1]));
  const bool finite = __all_sync(kAllLanes, MaxOrNan(largest, tail_largest) <= FLT_MAX);
  // The exact part is in the same units: next to it, what it makes too large for them is nothing.
  const float least = WarpMax(finite ? tail_largest : 0.0f) * 0x1p-60f;
  float unit;  // of the query as it is multiplied
  if constexpr (kIntegerLatents<kCode>) {
    const CodedQueryScale scale = QueryScaleOfWarp(finite ? largest : 0.0f);
    const bool own = scale.scale >= least && scale.scale > 0;
    unit = own ? scale.scale : least >= kKvSmallest ? least : 1.0f;
    int sum = 0, sums[kValues / 4];
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      uint32_t word = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int code = own && finite ? static_cast<int>(rintf(__fmul_rn(x[i + c], scale.inverse))) : 0;
        word |= (static_cast<uint32_t>(code) & 0xffu) << (8 * c);
        sum += code;
      }
      sums[i / 4] = sum;
      using Head = typename Keys::Head;
      const int value = lane % 8 * kValues + i;
      auto* to = reinterpret_cast<uint32_t*>(shared->words[part]);
      to[QueryWord(r, Head::QuadOf(value), Head::StepOf(value), Head::HalfOf(value))] = word;
    }
    constexpr int kLanes = 8 / Keys::kGroups;  // of a group
    int total = sums[kValues / 4 - 1];
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) total += __shfl_xor_sync(kAllLanes, total, offset);
    if (lane % kLanes == 0) shared->starts[r][lane / kLanes] = -Keys::Head::kBias * total;
    unit *= Keys::Head::kStep;
  } else {
    const float most = fmaxf(WarpMax(finite ? largest : 0.0f), least);
    const uint32_t exponent = min(max(__float_as_uint(most) >> 23, 1u), 253u);
    const float inverse = __uint_as_float((254 - exponent) << 23);
    unit = __uint_as_float(exponent << 23);
#pragma unroll
    for (int i = 0; i < kValues; i += 2) {
      const float a = finite ? x[i] * inverse : 0.0f, b = finite ? x[i + 1] * inverse : 0.0f;
      const int value = lane % 8 * kValues + i, of_quad = kLatentColumns / 4;
      reinterpret_cast<uint32_t*>(shared->words[part])[QueryWord(r, value / of_quad, value % of_quad / 4, value % 4 / 2)] = Pack2(a, b, __half{});
    }
  }
  const float a = finite ? __fdiv_rn(tail[0], unit) : 0.0f, b = finite ? __fdiv_rn(tail[1], unit) : 0.0f;
  const uint32_t high = Pack2(a, b, __nv_bfloat16{});
  const int at = QueryWord(r, lane % 16 / 4, 0, lane % 2), step = lane / 16 * 2 + lane % 4 / 2;  // LatentSlot::ExactValueOf
  reinterpret_cast<uint32_t*>(shared->exact[step][0])[at] = high;
  reinterpret_cast<uint32_t*>(shared->exact[step][1])[at] = PackRest2(a, b, high, __nv_bfloat16{});
  if (lane == 0) shared->factors[r] = finite ? unit * (p.scale / static_cast<float>(planes.rotation) * kLog2E) : CUDART_NAN_F;
}

// What a warp keeps of them in registers.
template <KvCode kCode>
struct LatentQueries {
  using Keys = LatentKeys<kCode>;
  static constexpr bool kKept = kIntegerLatents<kCode>;  // else words are read anew for each run
  static constexpr bool kStarts = Keys::Head::kBias != 0;
  static constexpr int kGroups = kLatentParts * Keys::kGroups;
  static constexpr int kStartSteps = !kStarts ? 0 : kGroups == 8 ? 2 : 3;
  uint32_t words[kKept ? kLatentParts : 1][kKept ? kLatentSteps<kCode> : 1][4];
  // Starts as three BF16 each, which meet the latents' scales: of 8 groups a step takes two of the three, of 16 one.
  uint32_t starts[kStarts ? kStartSteps : 1][4];
  float factor[2];
};

template <KvCode kCode>
__device__ __forceinline__ void LoadLatentQueries(const SharedLatentQueries<kCode>& shared, LatentQueries<kCode>* q) {
  using Queries = LatentQueries<kCode>;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  if constexpr (Queries::kKept) {
#pragma unroll
    for (int part = 0; part < kLatentParts; ++part) {
#pragma unroll
      for (int step = 0; step < kLatentSteps<kCode>; ++step) {
        const uint4 four = shared.words[part][step * 32 + lane];
        q->words[part][step][0] = four.x, q->words[part][step][1] = four.y, q->words[part][step][2] = four.z, q->words[part][step][3] = four.w;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    q->factor[r] = shared.factors[row];
    if constexpr (Queries::kStarts) {
#pragma unroll
      for (int eight = 0; eight < Queries::kGroups / 8; ++eight) {
        float a = static_cast<float>(shared.starts[row][eight * 8 + 2 * quad]), b = static_cast<float>(shared.starts[row][eight * 8 + 2 * quad + 1]);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          const uint32_t rounded = Pack2(a, b, __nv_bfloat16{});
          const float2 taken = Unpack2(rounded, __nv_bfloat16{});
          a -= taken.x, b -= taken.y;
          if (Queries::kGroups == 8) {
            q->starts[i / 2][i % 2 * 2 + r] = rounded;
          } else {
            q->starts[i][eight * 2 + r] = rounded;
          }
        }
      }
      if (Queries::kGroups == 8) q->starts[1][2 + r] = 0;
    }
  }
}

}  // namespace cachalot
