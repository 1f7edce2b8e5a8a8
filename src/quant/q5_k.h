// Q5_K: blocks of 256 five-bit values in 8 sub-blocks of 32; value = (d * scale) * q - (dmin * min). Scales,
// minima and low four bits as in Q4_K; bit s of high[l] is the fifth of value 32 s + l.
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockQ5_K {
  uint16_t d;     // F16
  uint16_t dmin;  // F16
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t q[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

void UnpackQ5_K(const std::byte* block, BlockCodes* codes);
void PackQ5_K(const BlockCodes& codes, std::byte* block);
void ValuesQ5_K(const BlockCodes& codes, float* out);
void DecodeQ5_K(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedQ5_K(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeQ5_K(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
