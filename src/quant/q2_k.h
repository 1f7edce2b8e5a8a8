// Q2_K: blocks of 256 two-bit values in 16 sub-blocks of 16; value = (d * scale) * q - (dmin * min), scale in
// the low half of the byte `scales[j]`, min in its high half. Value 128 h + 32 s + l has bits 2s, 2s+1 of
// q[32 h + l].
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockQ2_K {
  uint8_t scales[16];
  uint8_t q[64];
  uint16_t d;     // F16
  uint16_t dmin;  // F16
};
static_assert(sizeof(BlockQ2_K) == 84);

void UnpackQ2_K(const std::byte* block, BlockCodes* codes);
void PackQ2_K(const BlockCodes& codes, std::byte* block);
void ValuesQ2_K(const BlockCodes& codes, float* out);
void DecodeQ2_K(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedQ2_K(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeQ2_K(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
