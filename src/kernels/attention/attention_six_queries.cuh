// The sixteen rows of queries that meet latents in INT6 (latent_six.h): from memory to shared memory, there to lie as mma wants them.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes_queries.cuh"
#include "kernels/attention/attention_query_rows.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/latent_six.h"

namespace cachalot {

struct SharedSixQueries {
  uint4 words[kSixSteps * 32];         // QueryWord
  uint4 exact[kExactDim / 16][2][32];  // BF16 and its rest, in units of the row's scores
  float starts[kCodeRows][kSixGroups];  // minus the bias times the sum of the query's codes
  float factors[kCodeRows];             // of scores, in units of log2
};

// A row of them by a warp: `row` may not exist.
__device__ __forceinline__ void StoreSixRow(const AttentionParams& p, const CodePlanes& planes, const TileRow& row, int r, bool aligned,
                                            SharedSixQueries* shared) {
  constexpr int kValues = LatentQueryRow::kValues;
  const int lane = static_cast<int>(threadIdx.x) % 32;
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
  const CodedQueryScale scale = QueryScaleOfWarp(finite ? largest : 0.0f);
  const bool own = scale.scale >= least && scale.scale > 0;
  const float unit = own ? scale.scale : least >= kKvSmallest ? least : 1.0f;  // of the query as it is multiplied
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kValues; i += 4) {
    uint32_t word = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int code = own && finite ? static_cast<int>(rintf(__fmul_rn(x[i + c], scale.inverse))) : 0;
      word |= (static_cast<uint32_t>(code) & 0xffu) << (8 * c);
      sum += code;
    }
    const int column = lane * kValues + i;
    reinterpret_cast<uint32_t*>(shared->words)[QueryWord(r, SixQuadOf(column), SixStepOf(column), SixHalfOf(column))] = word;
  }
  constexpr int kLanes = kSixColumns / kValues;  // of a group
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (lane % kLanes == 0) shared->starts[r][lane / kLanes] = static_cast<float>(-kSixBias * sum);
  const float a = finite ? __fdiv_rn(tail[0], unit) : 0.0f, b = finite ? __fdiv_rn(tail[1], unit) : 0.0f;
  const uint32_t high = Pack2(a, b, __nv_bfloat16{});
  // Of steps 2 half and 2 half + 1 a lane (g, quad) has eight values from 32 half + 8 quad on, four a step.
  const int at = QueryWord(r, lane % 16 / 4, 0, lane % 2), step = lane / 16 * 2 + lane % 4 / 2;
  reinterpret_cast<uint32_t*>(shared->exact[step][0])[at] = high;
  reinterpret_cast<uint32_t*>(shared->exact[step][1])[at] = PackRest2(a, b, high, __nv_bfloat16{});
  if (lane == 0) shared->factors[r] = finite ? unit * (p.scale / static_cast<float>(planes.rotation) * kLog2E) : CUDART_NAN_F;
}

}  // namespace cachalot
