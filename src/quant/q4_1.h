// Q4_1: blocks of 32 four-bit values with an F16 scale and an F16 minimum; value = scale * q + min. Nibbles
// as in Q4_0.
#pragma once

#include "quant/format.h"

namespace cachalot {

struct BlockQ4_1 {
  uint16_t scale;  // F16
  uint16_t min;    // F16
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

void DecodeQ4_1(const std::byte* src, float* dst, int64_t count);
void EncodeQ4_1(const float* src, std::byte* dst, int64_t count);
// The scale is searched for, at some ten times the cost; importance: of a row of `count` values, or null.
void EncodeWeightedQ4_1(const float* src, const float* importance, std::byte* dst, int64_t count);

}  // namespace cachalot
