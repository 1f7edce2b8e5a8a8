// Rows of x as 16-bit integers with a scale for each 128 values (matmul/int16_tile.h): a row is k int16, then its
// scales. For AVX2 and AVX-512 alike (matmul/tile.h says why nothing here has a name outside).
#pragma once

#include <immintrin.h>

#include "kernels/matmul/tile.h"

namespace cachalot {
namespace {

constexpr int64_t kInt16Block = 128;
constexpr float kInt16XNorm = 65530.0f;
constexpr int64_t kInt16XBytes = 32 * 2 + 4;  // of 32 values, with room for more scales than there are

// Magnitudes are compared as integers, where NaN is the largest: a NaN's block gets a NaN scale.
void QuantizeInt16(const float* x, int64_t k, std::byte* out) {
  int16_t* q = reinterpret_cast<int16_t*>(out);
  float* scale = reinterpret_cast<float*>(out + k * 2);
  for (int64_t k0 = 0; k0 < k; k0 += kInt16Block, ++scale) {
    const int64_t count = Smaller(kInt16Block, k - k0);
    __m256i largest = _mm256_setzero_si256();
    for (int64_t j = 0; j < count; j += 8) {
      largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + k0 + j)),
                                                           _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i most = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, _MM_SHUFFLE(1, 0, 3, 2)));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, _MM_SHUFFLE(2, 3, 0, 1)));
    const float magnitude = _mm_cvtss_f32(_mm_castsi128_ps(most));
    // Squares of x / magnitude cannot overflow. Below 1e-37 its inverse would: such a block is zero.
    const bool is_zero = magnitude < 1e-37f;
    const __m256 inverse = _mm256_set1_ps(is_zero ? 0.0f : 1.0f / magnitude);
    __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t j = 0; j < count; j += 16) {
      const __m256 a = _mm256_mul_ps(_mm256_loadu_ps(x + k0 + j), inverse);
      const __m256 b = _mm256_mul_ps(_mm256_loadu_ps(x + k0 + j + 8), inverse);
      squares[0] = _mm256_fmadd_ps(a, a, squares[0]);
      squares[1] = _mm256_fmadd_ps(b, b, squares[1]);
    }
    const __m256 both = _mm256_add_ps(squares[0], squares[1]);
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    sum = _mm_add_ss(sum, _mm_movehdup_ps(sum));
    const float norm = _mm_cvtss_f32(_mm_sqrt_ss(sum)) / kInt16XNorm;
    const float unit = norm > 1.0f / 32767.0f ? norm : 1.0f / 32767.0f;
    *scale = is_zero ? 0.0f : magnitude * unit;
    const __m256 factor = _mm256_set1_ps(1.0f / unit);
    for (int64_t j = 0; j < count; j += 16) {
      const __m256 a = _mm256_mul_ps(_mm256_loadu_ps(x + k0 + j), inverse);
      const __m256 b = _mm256_mul_ps(_mm256_loadu_ps(x + k0 + j + 8), inverse);
      const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(a, factor)),
                                                _mm256_cvtps_epi32(_mm256_mul_ps(b, factor)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + k0 + j), _mm256_permute4x64_epi64(packed, 0xd8));
    }
  }
}

}  // namespace
}  // namespace cachalot
