// Q3_K: blocks of 256 three-bit values in 16 sub-blocks of 16; value = (d * (scale - 32)) * (q - 4). Low two
// bits as in Q2_K; bit s of high[l] is the third of value 32 s + l. Scales have six bits: low four in bytes
// 0..7 (scale j in the low half of byte j, scale 8 + j in its high half), high two of scale j at bits 2 (j /
// 4) of byte 8 + j % 4.
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockQ3_K {
  uint8_t high[32];
  uint8_t q[64];
  uint8_t scales[12];
  uint16_t d;  // F16
};
static_assert(sizeof(BlockQ3_K) == 110);

void UnpackQ3_K(const std::byte* block, BlockCodes* codes);
void PackQ3_K(const BlockCodes& codes, std::byte* block);
void ValuesQ3_K(const BlockCodes& codes, float* out);
void DecodeQ3_K(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedQ3_K(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeQ3_K(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
