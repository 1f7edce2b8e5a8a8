// IQ4_NL: blocks of 32 with one F16 scale; a value is scale * kIQ4Levels[q] (quant/fit.h): sixteen levels
// that lie closer together around zero. Nibbles as in Q4_0.
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockIQ4_NL {
  uint16_t scale;  // F16
  uint8_t q[16];
};
static_assert(sizeof(BlockIQ4_NL) == 18);

void UnpackIQ4_NL(const std::byte* block, BlockCodes* codes);
void PackIQ4_NL(const BlockCodes& codes, std::byte* block);
void ValuesIQ4_NL(const BlockCodes& codes, float* out);
void DecodeIQ4_NL(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedIQ4_NL(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeIQ4_NL(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
