// Q5_1: blocks of 32 five-bit values with an F16 scale and an F16 minimum; value = scale * q + min. Bits as
// in Q5_0.
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockQ5_1 {
  uint16_t scale;  // F16
  uint16_t min;    // F16
  uint8_t high[4];
  uint8_t q[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

void UnpackQ5_1(const std::byte* block, BlockCodes* codes);
void PackQ5_1(const BlockCodes& codes, std::byte* block);
void ValuesQ5_1(const BlockCodes& codes, float* out);
void DecodeQ5_1(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedQ5_1(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeQ5_1(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
