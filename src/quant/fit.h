// How the encoders choose scales: least squares over the values of a block, searched over the roundings that
// candidate scales lead to. `importance` weighs each value's squared error; null weighs all the same.
// Every function takes whatever floats there are: a NaN counts as 0, an infinity as the largest float of its
// sign, and what comes out is finite.
#pragma once

#include <cstdint>

#include "quant/block_codes.h"

namespace cachalot {

// x ≈ scale * level, levels lo..hi; q = level - lo. `count` is a multiple of 4, at most 256. Returns the
// scale.
float FitSymmetric(const float* x, const float* importance, int count, int lo, int hi, uint8_t* q);

// x ≈ scale * q + min, q 0..hi; with only_below, min is at most 0.
struct AffineFit {
  float scale = 0;
  float min = 0;
};
AffineFit FitAffine(const float* x, const float* importance, int count, int hi, bool only_below, uint8_t* q);

// A block of 32 with one scale (and minimum) in F16: the codes follow the scale as it is stored.
void EncodeSymmetric32(const float* x, const float* importance, int lo, int hi, BlockCodes* codes);
void EncodeAffine32(const float* x, const float* importance, int hi, BlockCodes* codes);

// Blocks of 256: x ≈ d * scale * level with integer scales (scale_lo..scale_hi, stored plus scale_bias).
struct SignedScales {
  int lo, hi;  // of scales
  int bias;    // what is stored is scale + bias
};
void EncodeSymmetric256(const float* x, const float* importance, int sub_block, int lo, int hi,
                        const SignedScales& scales, BlockCodes* codes);
// x ≈ d * scale * q - dmin * min, scales and minima 0..scale_max.
void EncodeAffine256(const float* x, const float* importance, int sub_block, int hi, int scale_max,
                     BlockCodes* codes);

// The sixteen levels of IQ4_NL and IQ4_XS, ascending.
inline constexpr int8_t kIQ4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
void EncodeLevels32(const float* x, const float* importance, BlockCodes* codes);
void EncodeLevels256(const float* x, const float* importance, const SignedScales& scales, BlockCodes* codes);

}  // namespace cachalot
