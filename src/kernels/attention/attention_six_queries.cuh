// The sixteen rows of queries that meet latents in INT6 (latent_six.h): from memory to shared memory, there
// to lie as wgmma wants them. Rows of F32 on their way in, and of sums on their way out, lie in shared memory
// too: loops over them are short code, and code that runs once has to be fetched.
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
  unsigned char starts[kCodeRows * 128];    // minus the bias times the sum of a group's codes, as three BF16:
                                            // [three, and none][group]
  float factors[kCodeRows];                 // of scores, in units of log2
};

// Rows of 512 values, four at a time: four f of row r. Lanes that hold what SixColumnOf says meet other banks
// than each other.
struct SixRows {
  static constexpr int kFours = kLatentDim / 4;
  float4 fours[kCodeRows * kFours];
  static __device__ __forceinline__ int At(int row, int f) {
    return row * kFours + (f ^ ((f >> 3 & 3) | (row & 1) << 2));
  }
};

// A group of 128, a lane's four side by side, rotated as RotateKv does it.
__device__ __forceinline__ void RotateFour(float4* x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float a = __fadd_rn(x->x, x->y), b = __fsub_rn(x->x, x->y), c = __fadd_rn(x->z, x->w),
              d = __fsub_rn(x->z, x->w);
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

// The same by half a warp, eight side by side of each lane.
__device__ __forceinline__ void RotateEight(float (&x)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 1; half < 8; half *= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = __fadd_rn(a, b), x[i + half] = __fsub_rn(a, b);
    }
  }
#pragma unroll
  for (int mask = 1; mask < 16; mask *= 2) {
#pragma unroll
    for (float& value : x) {
      const float other = __shfl_xor_sync(kAllLanes, value, mask);
      value = __fadd_rn((lane & mask) != 0 ? -value : value, other);
    }
  }
}

__device__ __forceinline__ float HalfWarpMax(float value) {
#pragma unroll
  for (int mask = 1; mask < 16; mask *= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, mask));
  return value;
}

// Rows r and r + 8 by the halves of a warp, of which only those before `heads` exist.
__device__ __forceinline__ void StoreSixRows(const AttentionParams& p, const CodePlanes& planes,
                                             int64_t token, int heads, int r, bool aligned, SixRows* rows,
                                             SharedSixQueries* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 16, row = r + lane / 16 * 8;
  const float* from = p.q + token * p.q_token_stride + row * p.q_head_stride;
  const auto load = [&](int column) {
    const float* four = from + column;
    float4 x = {0, 0, 0, 0};
    if (row < heads && aligned) x = *reinterpret_cast<const float4*>(four);
    if (row < heads && !aligned) x = {four[0], four[1], four[2], four[3]};
    return x;
  };
  const auto at = [&](int group, int i) -> float4& {
    return rows->fours[SixRows::At(row, group * 32 + 2 * t + i)];
  };
  float4 raw[kSixGroups][2];
#pragma unroll
  for (int group = 0; group < kSixGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 2; ++i) raw[group][i] = load(group * kSixColumns + 8 * t + 4 * i);
  }
  const float4 loaded = load(kLatentDim + 4 * t);
  const float rotation = static_cast<float>(planes.rotation);
  const float tail[4] = {loaded.x * rotation, loaded.y * rotation, loaded.z * rotation, loaded.w * rotation};
#pragma unroll
  for (int group = 0; group < kSixGroups; ++group) at(group, 0) = raw[group][0], at(group, 1) = raw[group][1];
  float most = 0;
#pragma unroll 2
  for (int group = 0; group < kSixGroups; ++group) {
    const float4 low = at(group, 0), high = at(group, 1);
    float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (planes.rotation > 1) RotateEight(x);
    at(group, 0) = {x[0], x[1], x[2], x[3]};
    at(group, 1) = {x[4], x[5], x[6], x[7]};
#pragma unroll
    for (const float value : x) most = MaxOrNan(most, fabsf(value));
  }
  const float tail_most =
      MaxOrNan(MaxOrNan(fabsf(tail[0]), fabsf(tail[1])), MaxOrNan(fabsf(tail[2]), fabsf(tail[3])));
  const bool finite =
      (__ballot_sync(kAllLanes, !(MaxOrNan(most, tail_most) <= FLT_MAX)) >> (lane / 16 * 16) & 0xffffu) == 0;
  const float largest = HalfWarpMax(finite ? most : 0.0f),
              tail_largest = HalfWarpMax(finite ? tail_most : 0.0f);
  // The exact part is in the same units: next to it, what it makes too large for them is nothing.
  const float least = tail_largest * 0x1p-60f,
              scale = largest < kKvSmallest ? 0.0f : __fdiv_rn(largest, 127.0f);  // QueryScale
  const bool own = scale >= least && scale > 0;
  const float unit = own ? scale : least >= kKvSmallest ? least : 1.0f;  // of the query as it is multiplied
  const float inverse = own ? __fdiv_rn(1.0f, scale) : 0.0f;
  // Where a lane's eight codes go, of each group.
  uint32_t to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = SixStepOf(8 * t + 4 * i) * 32 + SixPlaceOf(8 * t + 4 * i);
    to[i] = Swizzled<128>(row, place / 16) + static_cast<uint32_t>(place % 16);
  }
  int sum = 0;  // of group t / 4
#pragma unroll 2
  for (int group = 0; group < kSixGroups; ++group) {
    int of_group = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 x = at(group, i);
      const float values[4] = {x.x, x.y, x.z, x.w};
      uint32_t word = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int code = own ? static_cast<int>(rintf(__fmul_rn(values[c], inverse))) : 0;
        word |= (static_cast<uint32_t>(code) & 0xffu) << (8 * c);
        of_group += code;
      }
      *reinterpret_cast<uint32_t*>(shared->codes[group] + to[i]) = word;
    }
#pragma unroll
    for (int mask = 1; mask < 16; mask *= 2) of_group += __shfl_xor_sync(kAllLanes, of_group, mask);
    if (t / 4 == group) sum = of_group;
  }
  float start = static_cast<float>(-kSixBias * sum);
  __nv_bfloat16 mine = 0.0f;  // term t % 4
#pragma unroll
  for (int term = 0; term < 3; ++term) {
    const __nv_bfloat16 rounded = __float2bfloat16_rn(start);
    if (t % 4 == term) mine = rounded;
    start -= __bfloat162float(rounded);
  }
  const int start_at = t % 4 * kSixGroups + t / 4;
  *reinterpret_cast<__nv_bfloat16*>(shared->starts + Swizzled<128>(row, start_at / 8) + start_at % 8 * 2) =
      mine;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float a = finite ? __fdiv_rn(tail[2 * i], unit) : 0.0f,
                b = finite ? __fdiv_rn(tail[2 * i + 1], unit) : 0.0f;
    const uint32_t high = Pack2(a, b, __nv_bfloat16{});
    const int place = SixExactStepOf(4 * t + 2 * i) * 16 + SixExactPlaceOf(4 * t + 2 * i);
    const uint32_t exact_to = Swizzled<128>(row, place / 8) + static_cast<uint32_t>(place % 8 * 2);
    *reinterpret_cast<uint32_t*>(shared->exact[0] + exact_to) = high;
    *reinterpret_cast<uint32_t*>(shared->exact[1] + exact_to) = PackRest2(a, b, high, __nv_bfloat16{});
  }
  if (t == 0) shared->factors[row] = finite ? unit * (p.scale / rotation * kLog2E) : CUDART_NAN_F;
}

}  // namespace cachalot
