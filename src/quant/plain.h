// F32, F16 and BF16: one value a piece, little-endian, no blocks.
#pragma once

#include "quant/format.h"

namespace cachalot {

void DecodeF32(const std::byte* src, float* dst, int64_t count);
void EncodeF32(const float* src, std::byte* dst, int64_t count);
void DecodeF16(const std::byte* src, float* dst, int64_t count);
void EncodeF16(const float* src, std::byte* dst, int64_t count);
void DecodeBF16(const std::byte* src, float* dst, int64_t count);
void EncodeBF16(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
