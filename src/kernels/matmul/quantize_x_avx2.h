// Rows of x rounded to 8 bits, 32 values a block (XBlock, XBlockWide, XBlock16): shared by the integer
// kernels. For *_avx2.cc files only; everything is `static`, as in tile_avx2.h.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/panel_kernels.h"

namespace cachalot {

template <typename Block>
static inline void StoreQuantized(__m256i q, Block* block) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(block->q), q);
}

static inline void StoreQuantized(__m256i q, XBlock16* block) {
  const __m256i order =  // of each four: 0, 2, 1, 3
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  const __m256i low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
  const __m256i high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
  __m256i* out = reinterpret_cast<__m256i*>(block->q);
  _mm256_storeu_si256(out, _mm256_shuffle_epi8(low, order));
  _mm256_storeu_si256(out + 1, _mm256_shuffle_epi8(high, order));
}

// To nearest even with scale = largest magnitude / 127. Magnitudes are compared as integers, where NaN is the
// largest: a block with a NaN gets a NaN scale, so the NaN reaches y.
template <typename Block, typename Finish>
static inline void QuantizeX(const float* x, int64_t k, std::byte* out, Finish&& finish) {
  Block* block = reinterpret_cast<Block*>(out);
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  for (int64_t k0 = 0; k0 < k; k0 += 32, ++block) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      v[j] = _mm256_loadu_ps(x + k0 + j * 8);
      largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude_bits));
    }
    __m128i most = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, _MM_SHUFFLE(1, 0, 3, 2)));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, _MM_SHUFFLE(2, 3, 0, 1)));
    const float max_magnitude = _mm_cvtss_f32(_mm_castsi128_ps(most));
    block->scale = max_magnitude / 127.0f;
    const __m256 inverse = _mm256_set1_ps(max_magnitude != 0 ? 127.0f / max_magnitude : 0.0f);
    __m256i q[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], inverse));
    // The packs work within 128-bit halves; the permutation puts groups of four back in order.
    const __m256i packed = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    StoreQuantized(packed, block);
    finish(packed, block);
  }
}

}  // namespace cachalot
