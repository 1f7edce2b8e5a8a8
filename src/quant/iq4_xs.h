// IQ4_XS: blocks of 256 in 8 sub-blocks of 32; value = (d * (scale - 32)) * kIQ4Levels[q] (quant/fit.h).
// Scales have six bits: low four in scales_low (an odd sub-block in the high half of its byte), high two at
// bits 2 j of scales_high. Nibbles as in Q4_0, a sub-block after the other.
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockIQ4_XS {
  uint16_t d;  // F16
  uint16_t scales_high;
  uint8_t scales_low[4];
  uint8_t q[128];
};
static_assert(sizeof(BlockIQ4_XS) == 136);

void UnpackIQ4_XS(const std::byte* block, BlockCodes* codes);
void PackIQ4_XS(const BlockCodes& codes, std::byte* block);
void ValuesIQ4_XS(const BlockCodes& codes, float* out);
void DecodeIQ4_XS(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedIQ4_XS(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeIQ4_XS(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
