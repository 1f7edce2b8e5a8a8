// FP8 E4M3 (OCP): 1 sign, 4 exponent bits (bias 7), 3 mantissa bits; ±448 at most, no infinity, S.1111.111 is
// NaN. Subnormals: mantissa * 2^-9. Block scales are not part of the format here: they multiply afterwards.
#pragma once

#include "quant/format.h"

namespace cachalot {

float FP8E4M3ToF32(uint8_t bits);
// To nearest, ties to even; beyond ±448 (infinity included) saturates; NaN stays NaN.
uint8_t F32ToFP8E4M3(float value);

void DecodeFP8E4M3(const std::byte* src, float* dst, int64_t count);
void EncodeFP8E4M3(const float* src, std::byte* dst, int64_t count);

}  // namespace cachalot
