// Block formats against activations rounded to 8 bits: exact integer sums over 32 of k, then one F32 chain
// over the blocks for each output: sum = fma(integer, w's scale * x's scale, sum), followed by the minimum's
// share where there is one.
//
// Bounds: two multiply-adds of 32 bytes (or of 16 words) start in a cycle; in bytes that is twice an FMA's
// products. Each wants an addition, and additions take the multipliers' ports too: a Zen 3 core starts 1.6
// such pairs in a cycle, 330 Gop/s with bytes and 165 with words.
//
// Codes of 2 to 6 bits are unsigned, and a lane of 16 bits holds the sum of as many products as fit it:
//
//   4 bits    16 products of 15 * 127
//   5 bits    16 products of 16 * 127, with 16 subtracted from the codes: sums start at -16 * x's sums
//   sub-blocks of 16    8 products of at most 32 * 127, with the codes (of 3 and 6 bits) centred the same way
//
// Lanes wrap around inside such a sum; only its end has to fit. The widening to 32 bits multiplies by a
// sub-block's integer scale at no cost, so sub-blocks of 16 share the rest.
//
// Signed bytes (Q8_0, IQ4's levels): two products fill 16 bits, so w and x become words and each multiply-add
// is widened at once. (|w| times x with w's sign, in bytes, takes three instructions of the multipliers' two
// ports instead of two: 115 against 130 GFLOP/s of a core.)
//
// Few rows: memory is the limit, and all of this hides behind it.
//
// This file: what the kernels of all these formats share; matmul/codes_tile_avx2.h: tiles and their order.
// For *_avx2.cc files only; everything is `static`, as in tile_avx2.h.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/panel.h"
#include "kernels/matmul/quantize_x_avx2.h"
#include "kernels/matmul/tile_avx2.h"

namespace cachalot {

// Keeps the additions in the order written: reassociated, they need more registers than there are.
static inline void Pin(__m256i& value) {
  asm("" : "+x"(value));
}

static inline __m256i Load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline void Store(std::byte* p, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
static inline __m128i Load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline __m256 LoadF16(const std::byte* p) {
  return _mm256_cvtph_ps(Load16(p));
}
static inline __m256 LoadF32(const std::byte* p) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
}
static inline void StoreF32(std::byte* p, const __m256 (&v)[2]) {
  _mm256_storeu_ps(reinterpret_cast<float*>(p), v[0]);
  _mm256_storeu_ps(reinterpret_cast<float*>(p) + 8, v[1]);
}
static inline __m256i Broadcast4(const void* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(p)));
}
static inline __m128i And(__m128i v, int bits) {
  return _mm_and_si128(v, _mm_set1_epi8(static_cast<char>(bits)));
}
static inline __m256i And(__m256i v, int bits) {
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(bits)));
}
// Bits of 16 bytes; what comes in from the neighbour is masked away by the caller.
static inline __m128i Shift(__m128i v, int right) {
  return _mm_srl_epi16(v, _mm_cvtsi32_si128(right));
}
// 8 of 16 bytes (half 0 or 1) as F32.
static inline __m256 ToF32(__m128i bytes, int half) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(half == 0 ? bytes : _mm_srli_si128(bytes, 8)));
}
// 8 of 16 bytes, signed, each twice: the two 16-bit lanes of a row.
static inline __m256i Pairs(__m128i bytes, int half) {
  return _mm256_cvtepi8_epi16(half == 0 ? _mm_unpacklo_epi8(bytes, bytes) : _mm_unpackhi_epi8(bytes, bytes));
}
// 8 of 16 pairs (a, b).
static inline __m256i Pairs(__m128i a, __m128i b, int half) {
  return _mm256_cvtepi8_epi16(half == 0 ? _mm_unpacklo_epi8(a, b) : _mm_unpackhi_epi8(a, b));
}

// --- The codes of quad s (k = 4s .. 4s+3) of 8 rows, in bytes. `part` is the part of 32 of k. ---

template <int kBits>
[[gnu::always_inline]] static inline __m256i Codes(const std::byte* part, int s, int half) {
  constexpr int kLow = kBits >= 4 ? 4 : 2;
  constexpr int64_t kLowBytes = 32 * kPanelRows * kLow / 8;
  __m256i codes;
  if constexpr (kLow == 4) {
    const __m256i bytes = Load(part + s % 4 * 64 + half * 32);
    codes = And(s < 4 ? bytes : _mm256_srli_epi16(bytes, 4), 15);
  } else {
    const __m256i bytes = Load(part + s / 4 * 64 + half * 32);
    codes = And(_mm256_srli_epi16(bytes, s % 4 * 2), 3);
  }
  if constexpr (kBits == kLow + 1) {
    const __m256i bits = Load(part + kLowBytes + half * 32);
    const __m256i moved = s < kLow ? _mm256_slli_epi16(bits, kLow - s) : _mm256_srli_epi16(bits, s - kLow);
    codes = _mm256_or_si256(codes, And(moved, 1 << kLow));
  } else if constexpr (kBits == kLow + 2) {
    const __m256i bits = Load(part + kLowBytes + s / 4 * 64 + half * 32);
    const int j = s % 4 * 2;
    const __m256i moved = j < kLow ? _mm256_slli_epi16(bits, kLow - j) : _mm256_srli_epi16(bits, j - kLow);
    codes = _mm256_or_si256(codes, And(moved, 3 << kLow));
  }
  return codes;
}

// As many rows of x as share what a part of w costs: its codes are then bytes already, its scales F32.
constexpr int64_t kExpandedCodeBytes = 32 * kPanelRows;
[[gnu::always_inline]] static inline __m256i ExpandedCodes(const std::byte* part, int s, int half) {
  return Load(part + s * 64 + half * 32);
}
template <typename Code>
static inline void ExpandCodes(Code&& code, std::byte* out) {
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) {
    Store(out + s * 64, code(s, 0));
    Store(out + s * 64 + 32, code(s, 1));
  }
}

// Sums of quads kFirst .. kFirst + kCount - 1 in 16-bit lanes, added to `sum`; code(s, half) gives quad s of
// 8 rows as unsigned bytes. Both halves at once: they share the broadcasts of x, which would otherwise be the
// limit (two 32-byte loads in a cycle).
template <int kFirst, int kCount, int kRows, typename Code, typename X>
[[gnu::always_inline]] static inline void AddProducts(Code&& code, const X* const* x, int64_t b,
                                                      __m256i (&sum)[kRows][2]) {
#pragma GCC unroll 8
  for (int s = kFirst; s < kFirst + kCount; ++s) {
    const __m256i w0 = code(s, 0), w1 = code(s, 1);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256i xv = Broadcast4(x[i][b].q + s * 4);
      sum[i][0] = _mm256_add_epi16(sum[i][0], _mm256_maddubs_epi16(w0, xv));
      sum[i][1] = _mm256_add_epi16(sum[i][1], _mm256_maddubs_epi16(w1, xv));
      Pin(sum[i][0]);
      Pin(sum[i][1]);
    }
  }
}

template <int kRows>
using Sums = __m256[kRows][2];
template <int kRows>
using Dots = __m256i[kRows][2];

// Sums of all quads in 32-bit lanes; code(s, half) gives quad s of 8 rows as signed bytes.
template <int kRows, typename Code>
[[gnu::always_inline]] static inline void DotSigned(Code&& code, const XBlock16* const* x, int64_t b,
                                                    Dots<kRows>& sum) {
  const auto add = [&](__m256i w0, __m256i w1, int at) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256i xv = Broadcast4(x[i][b].q + at);
      sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(w0, xv));
      sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(w1, xv));
      Pin(sum[i][0]);
      Pin(sum[i][1]);
    }
  };
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) {
    const __m256i w0 = code(s, 0), w1 = code(s, 1);
    add(_mm256_srai_epi16(_mm256_slli_epi16(w0, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(w1, 8), 8),
        s * 4);
    add(_mm256_srai_epi16(w0, 8), _mm256_srai_epi16(w1, 8), s * 4 + 2);
  }
}

// sum += dots * (scale * x's scale).
template <int kRows, typename X>
[[gnu::always_inline]] static inline void AddScaled(const Dots<kRows>& dots, const __m256 (&scale)[2],
                                                    const X* const* x, int64_t b, Sums<kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m256 x_scale = _mm256_broadcast_ss(&x[i][b].scale);
    sum[i][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i][0]), _mm256_mul_ps(scale[0], x_scale), sum[i][0]);
    sum[i][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i][1]), _mm256_mul_ps(scale[1], x_scale), sum[i][1]);
  }
}

// sum += minimum * (x's scale * the sum of its q).
template <int kRows, typename X>
[[gnu::always_inline]] static inline void AddMinima(const __m256 (&min)[2], const X* const* x, int64_t b,
                                                    Sums<kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m256 x_sum = _mm256_broadcast_ss(&x[i][b].sum);
    sum[i][0] = _mm256_fmadd_ps(min[0], x_sum, sum[i][0]);
    sum[i][1] = _mm256_fmadd_ps(min[1], x_sum, sum[i][1]);
  }
}

// --- Activations: what stands beside the 32 rounded values. ---

template <typename X>
static void QuantizePlain(const float* x, int64_t k, std::byte* out) {
  QuantizeX<X>(x, k, out, [](__m256i, X*) {});
}

// 16-bit sums of q's pairs, in two 128-bit halves: values 0..15 and 16..31.
static inline void PairSums(__m256i q, __m128i* first, __m128i* second) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  *first = _mm256_castsi256_si128(pairs);
  *second = _mm256_extracti128_si256(pairs, 1);
}
// The even and the odd 16-bit lanes summed: {lanes 0, 2, 4, 6; lanes 1, 3, 5, 7} in the low 32 bits.
static inline __m128i FoldPairs(__m128i v) {
  v = _mm_add_epi16(v, _mm_shuffle_epi32(v, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_add_epi16(v, _mm_shuffle_epi32(v, _MM_SHUFFLE(2, 3, 0, 1)));
}
static inline int Low32(__m128i v) {
  return _mm_cvtsi128_si32(v);
}
// What the two 16-bit lanes of a row start from: -(2^kLog) times the sums that their products' x have.
template <int kLog>
static inline int Start(__m128i folded) {
  return Low32(_mm_slli_epi16(_mm_sub_epi16(_mm_setzero_si128(), folded), kLog));
}
static inline int SumOf(__m128i folded) {
  const int both = Low32(folded);
  return static_cast<int16_t>(both) + static_cast<int16_t>(both >> 16);
}

// Q4_1 and Q4_K.
[[maybe_unused]] static void QuantizeWithSum(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    block->sum = block->scale * static_cast<float>(SumOf(FoldPairs(_mm_add_epi16(a, b))));
  });
}

}  // namespace cachalot
