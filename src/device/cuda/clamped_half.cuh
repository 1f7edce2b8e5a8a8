// F32 to F16 as the matmuls want x: rounded to nearest; F16 has no room for outliers, they become ±65504.
#pragma once

#include <cstdint>

namespace cachalot {

// Two values, the first in the low half.
__device__ __forceinline__ uint32_t ClampedHalf2(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ uint2 ClampedHalf4(float4 v) { return {ClampedHalf2(v.x, v.y), ClampedHalf2(v.z, v.w)}; }
__device__ __forceinline__ uint16_t ClampedHalf(float v) { return static_cast<uint16_t>(ClampedHalf2(v, 0.0f)); }

}  // namespace cachalot
