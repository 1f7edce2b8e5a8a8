// What the AVX-512 and AMX kernels of block formats share: how a part's numbers become bytes, and rows of x
// rounded to 8 bits with the sums beside them (XBlockSums).
#pragma once

#include <immintrin.h>

#include "kernels/matmul/code_layouts.h"
#include "kernels/matmul/lanes_avx512.h"
#include "kernels/matmul/quantize_x_avx2.h"

namespace cachalot {
namespace {

// --- How a part's numbers become unsigned bytes, and the centre that makes them good. ---

template <typename Layout>
struct AsCodes {
  static constexpr int kCentre = Layout::kCentre;
  [[gnu::always_inline]] static __m512i Code(const std::byte* codes, int s) {
    return Codes<Avx512Lanes, Layout::kBits>(codes, s);
  }
};

// Q8_0: the bytes of even k are 128 too large in the panel already (matmul/panel.h).
struct AsSignedBytes {
  static constexpr int kCentre = 128;
  [[gnu::always_inline]] static __m512i Code(const std::byte* codes, int s) {
    return _mm512_xor_si512(Avx512Lanes::LoadBytes(codes + s * 64),
                            _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
  }
};

struct AsLevels {
  static constexpr int kCentre = 128;
  [[gnu::always_inline]] static __m512i Code(const std::byte* codes, int s) {
    const __m128i levels = _mm_xor_si128(LevelsIQ4(), _mm_set1_epi8(static_cast<char>(0x80)));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), Codes<Avx512Lanes, 4>(codes, s));
  }
};

// Pairs of words (a, b), signed, of each row.
inline __m512i WordPairs(__m128i a, __m128i b) {
  return _mm512_cvtepi8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b)));
}

// --- Activations. ---

inline void HalfSums(__m256i q, int (&sum)[2]) {
  __m128i a, b;
  PairSums(q, &a, &b);
  sum[0] = SumOf(FoldPairs(a));
  sum[1] = SumOf(FoldPairs(b));
}

template <int kCentre>
void Quantize32(const float* x, int64_t k, std::byte* out) {
  QuantizeBytes<XBlockSums>(x, k, out, [](__m256i q, XBlockSums* block) {
    int sum[2];
    HalfSums(q, sum);
    block->sum = block->scale * static_cast<float>(sum[0] + sum[1]);
    block->start[0] = -kCentre * (sum[0] + sum[1]);
    block->start[1] = 0;
  });
}

template <int kCentre>
void Quantize16(const float* x, int64_t k, std::byte* out) {
  QuantizeBytes<XBlockSums>(x, k, out, [](__m256i q, XBlockSums* block) {
    int sum[2];
    HalfSums(q, sum);
    block->sum = 0;
    block->start[0] = -kCentre * sum[0];
    block->start[1] = -kCentre * sum[1];
    if (kCentre == 0) {
      block->sums[0] = static_cast<int16_t>(sum[0]);
      block->sums[1] = static_cast<int16_t>(sum[1]);
    }
  });
}

}  // namespace
}  // namespace cachalot
