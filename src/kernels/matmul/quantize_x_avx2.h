// Rows of x rounded to 8 bits, 32 values a block (XBlock, XBlockWide, XBlock16): shared by the integer
// kernels of AVX2 and, with its own block, of AVX-512 (matmul/tile.h says why nothing here has a name
// outside).
#pragma once

#include <immintrin.h>

#include "kernels/matmul/panel_kernels.h"

namespace cachalot {
namespace {

template <typename Block>
inline void StoreQuantized(__m256i q, Block* block) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(block->q), q);
}

inline void StoreQuantized(__m256i q, XBlock16* block) {
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
inline void QuantizeX(const float* x, int64_t k, std::byte* out, Finish&& finish) {
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

// --- Activations: what stands beside the 32 rounded values. ---

// 16-bit sums of q's pairs, in two 128-bit halves: values 0..15 and 16..31.
inline void PairSums(__m256i q, __m128i* first, __m128i* second) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  *first = _mm256_castsi256_si128(pairs);
  *second = _mm256_extracti128_si256(pairs, 1);
}
// The even and the odd 16-bit lanes summed: {lanes 0, 2, 4, 6; lanes 1, 3, 5, 7} in the low 32 bits.
inline __m128i FoldPairs(__m128i v) {
  v = _mm_add_epi16(v, _mm_shuffle_epi32(v, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_add_epi16(v, _mm_shuffle_epi32(v, _MM_SHUFFLE(2, 3, 0, 1)));
}
inline int Low32(__m128i v) {
  return _mm_cvtsi128_si32(v);
}
// What the two 16-bit lanes of a row start from: -(2^kLog) times the sums that their products' x have.
template <int kLog>
inline int Start(__m128i folded) {
  return Low32(_mm_slli_epi16(_mm_sub_epi16(_mm_setzero_si128(), folded), kLog));
}
inline int SumOf(__m128i folded) {
  const int both = Low32(folded);
  return static_cast<int16_t>(both) + static_cast<int16_t>(both >> 16);
}

}  // namespace
}  // namespace cachalot
