// Exponentials of eight floats. A lane's result depends on its input alone.
//
// Both split off the integer part n of the exponent to base 2 and evaluate a polynomial on what is left; the
// polynomials have the least largest relative error (0.053 and 0.033 units of 2^-24). With the roundings of
// their evaluation the results are within 1 ulp.
#pragma once

#include <immintrin.h>

namespace cachalot {

// Adding and subtracting this rounds to an integer, which the sum's low bits then hold.
inline constexpr float kRoundingShift = 0x1.8p23f;

// 2^x for x <= 0 (or NaN): softmax numerators. Below -126, where the result would leave the normal range, it
// is 0.
static inline __m256 Exp2NonPositive(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-126.0f), shift = _mm256_set1_ps(kRoundingShift);
  const __m256 bounded = _mm256_max_ps(lowest, x);  // a NaN in the second operand stays
  const __m256 shifted = _mm256_add_ps(bounded, shift);
  const __m256 f = _mm256_sub_ps(bounded, _mm256_sub_ps(shifted, shift));
  __m256 p = _mm256_fmadd_ps(f, _mm256_set1_ps(0x1.41fb38p-13f), _mm256_set1_ps(0x1.5f3f3p-10f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3b2d5p-7f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6aee6p-5f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfbdcp-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e43p-1f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  const __m256 value = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ), value);
}

// e^x for every x: 0 at -infinity, infinity above 88.73, subnormal results and NaN as they should be.
static inline __m256 Exp(__m256 x) {
  __m256 bounded = _mm256_max_ps(_mm256_set1_ps(-110.0f), x);
  bounded = _mm256_min_ps(_mm256_set1_ps(100.0f), bounded);
  const __m256 shift = _mm256_set1_ps(kRoundingShift);
  const __m256 shifted = _mm256_fmadd_ps(bounded, _mm256_set1_ps(0x1.715476p+0f), shift);
  const __m256 n = _mm256_sub_ps(shifted, shift);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f),
                              bounded);  // ln 2 in two parts: n times this one is exact
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
  // e^r = 1 + r + r² P(r)
  __m256 p = _mm256_fmadd_ps(r, _mm256_set1_ps(0x1.6a1f6ap-10f), _mm256_set1_ps(0x1.123cccp-7f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555904p-5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.55548ep-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
  const __m256 mantissa = _mm256_add_ps(_mm256_set1_ps(1.0f), _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r));
  // 2^n in two factors, each of them normal for n in [-159, 145].
  const __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(shift));
  const __m256i half = _mm256_srai_epi32(exponent, 1), bias = _mm256_set1_epi32(127);
  const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(mantissa, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

}  // namespace cachalot
