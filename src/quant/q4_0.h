// Q4_0: blocks of 32 four-bit values with one F16 scale; value = scale * (q - 8). Byte j holds value j in its
// low half and value j + 16 in its high half.
#pragma once

#include "quant/format.h"

namespace cachalot {

struct BlockQ4_0 {
  uint16_t scale;  // F16
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

void DecodeQ4_0(const std::byte* src, float* dst, int64_t count);
void EncodeQ4_0(const float* src, std::byte* dst, int64_t count);
// The scale is searched for, at some ten times the cost; importance: of a row of `count` values, or null.
void EncodeWeightedQ4_0(const float* src, const float* importance, std::byte* dst, int64_t count);

}  // namespace cachalot
