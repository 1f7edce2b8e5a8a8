// Q5_0: blocks of 32 five-bit values with one F16 scale; value = scale * (q - 16). Low four bits as in Q4_0;
// bit j of `high` is the fifth of value j.
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

struct BlockQ5_0 {
  uint16_t scale;  // F16
  uint8_t high[4];
  uint8_t q[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

void UnpackQ5_0(const std::byte* block, BlockCodes* codes);
void PackQ5_0(const BlockCodes& codes, std::byte* block);
void ValuesQ5_0(const BlockCodes& codes, float* out);
void DecodeQ5_0(const std::byte* src, float* dst, int64_t count);
// importance: of a row of `count` values, or null.
void EncodeWeightedQ5_0(const float* src, const float* importance, std::byte* dst, int64_t count);
void EncodeQ5_0(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
