// The element types of a KV cache, as C++ types, so that kernels can be templates over them.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/float_convert.h"

namespace cachalot {

struct F16Bits {
  uint16_t bits;
};
struct BF16Bits {
  uint16_t bits;
};

inline float ToF32(float value) {
  return value;
}
inline float ToF32(F16Bits value) {
  return F16ToF32(value.bits);
}
inline float ToF32(BF16Bits value) {
  return BF16ToF32(value.bits);
}

inline void FromF32(float value, float* out) {
  *out = value;
}
inline void FromF32(float value, F16Bits* out) {
  out->bits = F32ToF16(value);
}
inline void FromF32(float value, BF16Bits* out) {
  out->bits = F32ToBF16(value);
}

// Calls fn(T{}) with the C++ type of a KV dtype.
template <typename Fn>
void WithKvType(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(float{});
    case DType::kF16:
      return fn(F16Bits{});
    case DType::kBF16:
      return fn(BF16Bits{});
    default:
      CHECK(false) << "no KV cache of type " << DTypeName(dtype);
  }
}

}  // namespace cachalot
