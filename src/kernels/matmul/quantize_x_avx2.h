// Rows of x rounded to 8 bits, 32 values a block (XBlock, XBlockWide, XBlock16): shared by the integer
// kernels of AVX2 and, with its own block, of AVX-512 (matmul/tile.h says why nothing here has a name
// outside).
#pragma once

#include <immintrin.h>

#include "kernels/matmul/panel_kernels.h"

namespace cachalot {
namespace {

// 32 rounded values as bytes. The packs work within 128-bit halves; the permutation puts groups of four in order.
inline __m256i PackBytes(const __m256i (&q)[4]) {
  return _mm256_permutevar8x32_epi32(
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])),
      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
// 16 rounded values as words.
inline __m256i PackWords(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), _MM_SHUFFLE(3, 1, 2, 0));
}
// Words, of each four: 0, 2, 1, 3.
inline __m256i EvenFirst(__m256i words) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  return _mm256_shuffle_epi8(words, order);
}

// The largest 32-bit lane of each of eight, none negative.
inline __m256i LargestLanes(const __m256i (&v)[8]) {
  const auto fold = [](__m256i a, __m256i b) {  // of each 128: {a's, b's} pairs
    return _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  };
  const auto fold_pairs = [](__m256i a, __m256i b) {
    const __m256 af = _mm256_castsi256_ps(a), bf = _mm256_castsi256_ps(b);
    return _mm256_max_epi32(_mm256_castps_si256(_mm256_shuffle_ps(af, bf, _MM_SHUFFLE(2, 0, 2, 0))),
                            _mm256_castps_si256(_mm256_shuffle_ps(af, bf, _MM_SHUFFLE(3, 1, 3, 1))));
  };
  const __m256i first = fold_pairs(fold(v[0], v[1]), fold(v[2], v[3]));
  const __m256i second = fold_pairs(fold(v[4], v[5]), fold(v[6], v[7]));
  return _mm256_max_epi32(_mm256_permute2x128_si256(first, second, 0x20),
                          _mm256_permute2x128_si256(first, second, 0x31));
}

// scale = largest magnitude / 127 of `count` (1 to 8) blocks of 32, and 1 / scale (0 for 0). Magnitudes are compared as
// integers, where NaN is the largest: a block with a NaN gets a NaN scale, so the NaN reaches y.
inline void ScalesOfBlocks(const float* x, int64_t count, float* scales, float* inverses) {
  __m256i largest[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    largest[i] = _mm256_setzero_si256();
    if (i >= count) continue;
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i v = _mm256_castps_si256(_mm256_loadu_ps(x + i * 32 + j * 8));
      largest[i] = _mm256_max_epi32(largest[i], _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff)));
    }
  }
  const __m256 most = _mm256_castsi256_ps(LargestLanes(largest)), highest = _mm256_set1_ps(127.0f);
  const __m256 is_zero = _mm256_cmp_ps(most, _mm256_setzero_ps(), _CMP_EQ_OQ);
  _mm256_store_ps(scales, _mm256_div_ps(most, highest));
  _mm256_store_ps(inverses, _mm256_andnot_ps(is_zero, _mm256_div_ps(highest, most)));
}

// To nearest even; store(q, block) takes a block's 32 rounded values in order. Many blocks' scales first: one after the
// other, blocks would wait for each other's reductions and divisions.
template <typename Block, typename Store>
inline void QuantizeX(const float* x, int64_t k, std::byte* out, Store&& store) {
  constexpr int64_t kTogether = 64;
  Block* block = reinterpret_cast<Block*>(out);
  alignas(32) float scales[kTogether], inverses[kTogether];
  for (int64_t left = k / 32; left > 0; left -= kTogether) {
    const int64_t count = left < kTogether ? left : kTogether;
    for (int64_t i = 0; i < count; i += 8) {
      ScalesOfBlocks(x + i * 32, count - i < 8 ? count - i : 8, scales + i, inverses + i);
    }
    for (int64_t i = 0; i < count; ++i, ++block, x += 32) {
      const __m256 inverse = _mm256_broadcast_ss(inverses + i);
      __m256i q[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + j * 8), inverse));
      block->scale = scales[i];
      store(q, block);
    }
  }
}

// Blocks of bytes; finish(q, block) makes what stands beside them.
template <typename Block, typename Finish>
inline void QuantizeBytes(const float* x, int64_t k, std::byte* out, Finish&& finish) {
  QuantizeX<Block>(x, k, out, [&](const __m256i (&q)[4], Block* block) __attribute__((always_inline)) {
    const __m256i bytes = PackBytes(q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block->q), bytes);
    finish(bytes, block);
  });
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
