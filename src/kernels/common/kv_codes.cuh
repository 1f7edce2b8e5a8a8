// A quantised cache in device code, value by value: what kernels without a layout of their own read, and how a warp writes a
// vector. Bit for bit quant/kv_*.cc: products and sums are rounded one by one.
#pragma once

#include <cuda_fp8.h>

#include "device/cuda/value.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/common/cuda_kv_codes.h"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {

__device__ __forceinline__ float BF16BitsToF32(uint32_t bits) { return __uint_as_float(bits << 16); }

__device__ __forceinline__ float DeviceKvFinite(float x) {
  if (x != x) return 0.0f;
  return x > kKvLargest ? kKvLargest : x < -kKvLargest ? -kKvLargest : x;
}

// The stored value d of a token: rotated, without the mean.
__device__ __forceinline__ float StoredValue(const CodeRows& rows, const std::byte* region, int64_t token, int d) {
  const auto* main = reinterpret_cast<const uint8_t*>(region) + rows.main + token * rows.main_row;
  const auto* scales = reinterpret_cast<const uint16_t*>(region + rows.scales + token * rows.scale_row);
  const int unit = d / kKvUnit, i = d % kKvUnit;
  float code = 0;
  switch (rows.code) {
    case KvCode::kInt8:
      code = static_cast<float>(static_cast<int8_t>(main[d]));
      break;
    case KvCode::kE4M3:
      code = __half2float(__half(__nv_cvt_fp8_to_halfraw(main[d], __NV_E4M3)));
      break;
    case KvCode::kInt4: {
      const int byte = main[unit * 16 + i % 16];
      code = static_cast<float>(i < 16 ? byte & 15 : byte >> 4) - 7.5f;
      break;
    }
    case KvCode::kInt6: {
      const int byte = main[unit * 16 + i % 16], low = i < 16 ? byte & 15 : byte >> 4;
      const auto* high = reinterpret_cast<const uint8_t*>(region) + rows.high + token * rows.high_row;
      const int top = high[unit * 8 + i % 8] >> (i / 8 * 2) & 3;
      code = static_cast<float>((low | top << 4) - 32);
      break;
    }
    case KvCode::kBF16:
      code = BF16BitsToF32(reinterpret_cast<const uint16_t*>(main)[d]);
      break;
    default:
      break;
  }
  return __fmul_rn(code, BF16BitsToF32(scales[d / rows.group]));
}

// The region of a KV head with the token at `position`: among the sinks, or behind them.
__device__ __forceinline__ std::byte* RegionOf(const PagedKv& kv, const CodePlanes& planes, const CodeSinks& sinks, int64_t slot, int64_t position,
                                               int kv_head) {
  return position < kv.sink_tokens ? BlockOf(sinks.kv, slot, position) + kv_head * sinks.planes.head_bytes
                                   : BlockOf(kv, slot, position) + kv_head * planes.head_bytes;
}

// x [dim] in shared memory, with room for whole blocks: RotateKv by a warp.
__device__ __forceinline__ void RotateByWarp(float* x, int dim, int length, int lane) {
  for (int half = 1; half < length; half *= 2) {
    __syncwarp();
    for (int pair = lane; pair < dim / 2; pair += 32) {
      const int at = pair / half * 2 * half + pair % half;
      const float a = x[at], b = x[at + half];
      x[at] = __fadd_rn(a, b);
      x[at + half] = __fsub_rn(a, b);
    }
  }
  __syncwarp();
}

// EncodeKvVector by a warp: x [units * 32] in shared memory, where what is behind dim is overwritten by zeros.
__device__ __forceinline__ void EncodeByWarp(const CodeRows& rows, float* x, std::byte* region, int64_t token, int lane) {
  auto* main = reinterpret_cast<uint8_t*>(region) + rows.main + token * rows.main_row;
  auto* high = reinterpret_cast<uint8_t*>(region) + rows.high + token * rows.high_row;
  auto* scales = reinterpret_cast<uint16_t*>(region + rows.scales + token * rows.scale_row);
  const int padded = rows.units * kKvUnit;
  const float limit = rows.code == KvCode::kInt4   ? 7.5f
                      : rows.code == KvCode::kInt6 ? 31.0f
                      : rows.code == KvCode::kInt8 ? 127.0f
                      : rows.code == KvCode::kE4M3 ? 448.0f
                                                   : 1.0f;
  __syncwarp();
  for (int d = lane; d < padded; d += 32) x[d] = d < rows.dim ? DeviceKvFinite(x[d]) : 0.0f;  // a lane keeps its own
  for (int g = 0; g < rows.groups; ++g) {
    const int begin = g * rows.group, end = min(begin + rows.group, padded);
    float largest = 0;
    for (int d = begin + lane; d < end; d += 32) largest = fmaxf(largest, fabsf(x[d]));
    largest = WarpMax(largest);
    const uint32_t scale = largest >= kKvSmallest ? (__float_as_uint(__fdiv_rn(largest, limit)) + 0xffffu) >> 16 : 0;
    const float inverse = scale == 0 ? 0.0f : __fdiv_rn(1.0f, BF16BitsToF32(scale));
    if (lane == 0) scales[g] = static_cast<uint16_t>(scale);
    for (int unit = begin / kKvUnit; unit < end / kKvUnit; ++unit) {
      const float scaled = __fmul_rn(x[unit * kKvUnit + lane], inverse);
      if (rows.code == KvCode::kInt8) {
        const float code = fminf(fmaxf(rintf(scaled), -127.0f), 127.0f);
        main[unit * kKvUnit + lane] = static_cast<uint8_t>(static_cast<int8_t>(code));
      } else if (rows.code == KvCode::kE4M3) {
        main[unit * kKvUnit + lane] = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
      } else if (rows.code == KvCode::kBF16) {
        reinterpret_cast<__nv_bfloat16*>(main)[unit * kKvUnit + lane] = __float2bfloat16_rn(scaled);
      } else {
        const bool six = rows.code == KvCode::kInt6;
        const float level = six ? rintf(scaled) + 32.0f : floorf(__fadd_rn(scaled, 8.0f));
        const int code = static_cast<int>(fminf(fmaxf(level, 0.0f), six ? 63.0f : 15.0f));
        const int second = __shfl_down_sync(kAllLanes, code, 16);
        if (lane < 16) main[unit * 16 + lane] = static_cast<uint8_t>((code & 15) | (second & 15) << 4);
        if (!six) continue;
        int tops = code >> 4;
#pragma unroll
        for (int j = 1; j < 4; ++j) tops |= __shfl_down_sync(kAllLanes, code, 8 * j) >> 4 << (2 * j);
        if (lane < 8) high[unit * 8 + lane] = static_cast<uint8_t>(tops);
      }
    }
  }
  __syncwarp();
}

}  // namespace cachalot
