// Q6_K: blocks of 256 six-bit values in 16 sub-blocks of 16; value = (d * scale) * (q - 32), scales signed
// bytes. Within each half of 128: value 32 s + l has its low four bits in byte 32 (s % 2) + l of `low` (the
// high half of the byte for s > 1) and its high two at bits 2 s of high[l].
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockQ6_K {
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];
  uint16_t d;  // F16
};
static_assert(sizeof(BlockQ6_K) == 210);

void UnpackQ6_K(const std::byte* block, BlockCodes* codes);
void PackQ6_K(const BlockCodes& codes, std::byte* block);
void ValuesQ6_K(const BlockCodes& codes, float* out);
void DecodeQ6_K(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedQ6_K(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeQ6_K(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
