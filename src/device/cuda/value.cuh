// Element types in device code: conversions with the roundings of tensor/float_convert.h (NaN payloads aside).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace cachalot {

__device__ __forceinline__ float ToF32(float value) { return value; }
__device__ __forceinline__ float ToF32(__half value) { return __half2float(value); }
__device__ __forceinline__ float ToF32(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void FromF32(float value, float* out) { *out = value; }
__device__ __forceinline__ void FromF32(float value, __half* out) { *out = __float2half_rn(value); }
__device__ __forceinline__ void FromF32(float value, __nv_bfloat16* out) { *out = __float2bfloat16_rn(value); }

// Two values in one register, the first in the low half: what mma fragments hold.
__device__ __forceinline__ uint32_t Pack2(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t Pack2(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace cachalot
