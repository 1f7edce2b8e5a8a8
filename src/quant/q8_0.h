// Q8_0: blocks of 32 signed bytes with one F16 scale; value = scale * q.
#pragma once

#include "quant/format.h"

namespace cachalot {

struct BlockQ8_0 {
  uint16_t scale;  // F16
  int8_t q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

void DecodeQ8_0(const std::byte* src, float* dst, int64_t count);
void EncodeQ8_0(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
