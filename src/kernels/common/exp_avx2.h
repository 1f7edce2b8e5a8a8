// exp of eight floats, within 1 ulp of exact where the result is normal. A lane's result depends on its input
// alone.
//
// exp(x) = 2^n · exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; exp(r) = 1 + r + r²·P(r), P of degree 4 fitted
// to the least largest relative error (0.053 · 2^-24). ln 2 is split so that n · kLn2High is exact.
#pragma once

#include <immintrin.h>

namespace cachalot {

// Rounds x / ln 2 by adding 1.5 · 2^23; the low bits of `shifted` are then n. Valid for |x| < 2^21.
static inline __m256 ExpReduced(__m256 x, __m256* shifted) {
  const __m256 shifter = _mm256_set1_ps(0x1.8p23f);
  *shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(0x1.715476p+0f), shifter);
  const __m256 n = _mm256_sub_ps(*shifted, shifter);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
  __m256 p = _mm256_fmadd_ps(r, _mm256_set1_ps(0x1.6a1f6ap-10f), _mm256_set1_ps(0x1.123cccp-7f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555904p-5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.55548ep-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
  return _mm256_add_ps(_mm256_set1_ps(1.0f), _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r));
}

// For x <= 0 (or NaN): softmax numerators. Below -87.3, where exp is about to leave the normal range, the
// result is 0.
static inline __m256 ExpNonPositive(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-87.3f);
  __m256 shifted;
  const __m256 mantissa =
      ExpReduced(_mm256_max_ps(lowest, x), &shifted);  // max keeps a NaN in its second operand
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  const __m256 value = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(mantissa), exponent));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ), value);
}

// For every x: 0 at -infinity, infinity above 88.73, subnormal results and NaN as they should be.
static inline __m256 Exp(__m256 x) {
  __m256 bounded = _mm256_max_ps(_mm256_set1_ps(-110.0f), x);
  bounded = _mm256_min_ps(_mm256_set1_ps(100.0f), bounded);
  __m256 shifted;
  const __m256 mantissa = ExpReduced(bounded, &shifted);
  // 2^n in two factors, each of them normal for n in [-159, 145].
  const __m256i n =
      _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(0x1.8p23f)));
  const __m256i half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
  const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(mantissa, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

}  // namespace cachalot
