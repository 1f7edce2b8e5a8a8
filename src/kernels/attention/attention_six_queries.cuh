// The sixteen rows of queries that meet latents in INT6 (latent_six.h): from memory to shared memory, there to lie as wgmma wants them. Rows of F32 on
// their way in, and of sums on their way out, lie in shared memory too: loops over them are short code, and code that runs once has to be fetched.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes_queries.cuh"
#include "kernels/attention/attention_query_rows.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/latent_six.h"

namespace cachalot {

// Operands B of wgmma: a row of 128 bytes a head, as Swizzled says.
struct __align__(1024) SharedSixQueries {
  unsigned char codes[kSixGroups][kCodeRows * 128];
  unsigned char exact[2][kCodeRows * 128];  // BF16 and its rest, in units of the row's scores
  unsigned char starts[kCodeRows * 128];    // minus the bias times the sum of a group's codes, as three BF16: [three, and none][group]
  float factors[kCodeRows];                 // of scores, in units of log2
};

// Rows of 512 values, four at a time: four f of row r. Lanes that hold what SixColumnOf says meet other banks than each other.
struct SixRows {
  static constexpr int kFours = kLatentDim / 4;
  float4 fours[kCodeRows * kFours];
  static __device__ __forceinline__ int At(int row, int f) { return row * kFours + (f ^ ((f >> 3 & 3) | (row & 1) << 2)); }
};

// A group of 128, a lane's four side by side, rotated as RotateKv does it.
__device__ __forceinline__ void RotateFour(float4* x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float a = __fadd_rn(x->x, x->y), b = __fsub_rn(x->x, x->y), c = __fadd_rn(x->z, x->w), d = __fsub_rn(x->z, x->w);
  float y[4] = {__fadd_rn(a, c), __fadd_rn(b, d), __fsub_rn(a, c), __fsub_rn(b, d)};
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
    for (float& value : y) {
      const float other = __shfl_xor_sync(kAllLanes, value, mask);
      value = __fadd_rn((lane & mask) != 0 ? -value : value, other);
    }
  }
  *x = {y[0], y[1], y[2], y[3]};
}

// Rows r and r + 8 by a warp, of which only those before `heads` exist.
__device__ __forceinline__ void StoreSixRows(const AttentionParams& p, const CodePlanes& planes, int64_t token, int heads, int r, bool aligned, SixRows* rows,
                                             SharedSixQueries* shared) {
  constexpr int kRows = 2, kApart = kCodeRows / kRows;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* from = p.q + token * p.q_token_stride + r * p.q_head_stride;
  const auto row_of = [&](int i) { return from + i * kApart * p.q_head_stride; };
  const bool exist[kRows] = {r < heads, r + kApart < heads};
  float2 tail[kRows];
  float4 raw[kRows][kSixGroups];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float* row = row_of(i);
#pragma unroll
    for (int group = 0; group < kSixGroups; ++group) {
      const float* four = row + group * kSixColumns + 4 * lane;
      raw[i][group] = {0, 0, 0, 0};
      if (exist[i] && aligned) raw[i][group] = *reinterpret_cast<const float4*>(four);
      if (exist[i] && !aligned) raw[i][group] = {four[0], four[1], four[2], four[3]};
    }
    tail[i] = {0, 0};
    if (exist[i]) tail[i] = {row[kLatentDim + 2 * lane], row[kLatentDim + 2 * lane + 1]};
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int group = 0; group < kSixGroups; ++group) rows->fours[SixRows::At(r + i * kApart, group * 32 + lane)] = raw[i][group];
  }
  float most[kRows] = {0, 0};
#pragma unroll 1
  for (int group = 0; group < kSixGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float4& four = rows->fours[SixRows::At(r + i * kApart, group * 32 + lane)];
      float4 x = four;
      if (planes.rotation > 1) RotateFour(&x);
      four = x;
      most[i] = MaxOrNan(MaxOrNan(most[i], MaxOrNan(fabsf(x.x), fabsf(x.y))), MaxOrNan(fabsf(x.z), fabsf(x.w)));
    }
  }
  // Where a lane's four codes go, of each group.
  const uint32_t place = static_cast<uint32_t>(SixStepOf(4 * lane) * 32 + SixPlaceOf(4 * lane));
  const uint32_t exact_place = static_cast<uint32_t>(SixExactStepOf(2 * lane) * 16 + SixExactPlaceOf(2 * lane)) * 2;
#pragma unroll 1
  for (int i = 0; i < kRows; ++i) {
    const int row = r + i * kApart;
    const float rotation = static_cast<float>(planes.rotation);
    const float largest = i == 0 ? most[0] : most[1];
    const float2 mine = i == 0 ? tail[0] : tail[1];
    const float tail_a = mine.x * rotation, tail_b = mine.y * rotation;
    const float tail_largest = MaxOrNan(fabsf(tail_a), fabsf(tail_b));
    const bool finite = __all_sync(kAllLanes, MaxOrNan(largest, tail_largest) <= FLT_MAX);
    // The exact part is in the same units: next to it, what it makes too large for them is nothing.
    const float least = WarpMax(finite ? tail_largest : 0.0f) * 0x1p-60f;
    const CodedQueryScale scale = QueryScaleOfWarp(finite ? largest : 0.0f);
    const bool own = finite && scale.scale >= least && scale.scale > 0;
    const float unit = own ? scale.scale : least >= kKvSmallest ? least : 1.0f;  // of the query as it is multiplied
#pragma unroll 1
    for (int group = 0; group < kSixGroups; ++group) {
      const float4 x = rows->fours[SixRows::At(row, group * 32 + lane)];
      const float values[4] = {x.x, x.y, x.z, x.w};
      uint32_t word = 0;
      int sum = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int code = own ? static_cast<int>(rintf(__fmul_rn(values[c], scale.inverse))) : 0;
        word |= (static_cast<uint32_t>(code) & 0xffu) << (8 * c);
        sum += code;
      }
      *reinterpret_cast<uint32_t*>(shared->codes[group] + Swizzled<128>(row, static_cast<int>(place / 16)) + place % 16) = word;
      float start = static_cast<float>(-kSixBias * __reduce_add_sync(kAllLanes, sum));
#pragma unroll
      for (int term = 0; term < 4; ++term) {
        const __nv_bfloat16 rounded = term < 3 ? __float2bfloat16_rn(start) : __nv_bfloat16(0.0f);
        start -= __bfloat162float(rounded);
        const int at = term * kSixGroups + group;
        if (lane == 0) *reinterpret_cast<__nv_bfloat16*>(shared->starts + Swizzled<128>(row, at / 8) + at % 8 * 2) = rounded;
      }
    }
    const float a = finite ? __fdiv_rn(tail_a, unit) : 0.0f, b = finite ? __fdiv_rn(tail_b, unit) : 0.0f;
    const uint32_t high = Pack2(a, b, __nv_bfloat16{});
    const uint32_t to = Swizzled<128>(row, static_cast<int>(exact_place / 16)) + exact_place % 16;
    *reinterpret_cast<uint32_t*>(shared->exact[0] + to) = high;
    *reinterpret_cast<uint32_t*>(shared->exact[1] + to) = PackRest2(a, b, high, __nv_bfloat16{});
    if (lane == 0) shared->factors[row] = finite ? unit * (p.scale / rotation * kLog2E) : CUDART_NAN_F;
  }
}

}  // namespace cachalot
