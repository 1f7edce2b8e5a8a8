// Q4_K: blocks of 256 four-bit values in 8 sub-blocks of 32; value = (d * scale) * q - (dmin * min). Scales
// and minima in six bits: quant/six_bit.h. Byte 32 c + l holds value 64 c + l in its low half, 64 c + 32 + l
// in its high half.
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockQ4_K {
  uint16_t d;     // F16
  uint16_t dmin;  // F16
  uint8_t scales[12];
  uint8_t q[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

void UnpackQ4_K(const std::byte* block, BlockCodes* codes);
void PackQ4_K(const BlockCodes& codes, std::byte* block);
void ValuesQ4_K(const BlockCodes& codes, float* out);
void DecodeQ4_K(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedQ4_K(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeQ4_K(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
