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
// This file: what the AVX2 kernels of all these formats share; matmul/code_layouts.h: where a block's numbers
// are; matmul/codes_tile.h: tiles and their order.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "kernels/matmul/code_layouts.h"
#include "kernels/matmul/codes_tile.h"
#include "kernels/matmul/lanes_avx2.h"
#include "kernels/matmul/quantize_x_avx2.h"

namespace cachalot {
namespace {

// Keeps the additions in the order written: reassociated, they need more registers than there are.
inline void Pin(__m256i& value) {
  asm("" : "+x"(value));
}

inline __m256i Broadcast4(const void* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(p)));
}
// 8 of 16 bytes, signed, each twice: the two 16-bit lanes of a row.
inline __m256i Pairs(__m128i bytes, int half) {
  return _mm256_cvtepi8_epi16(half == 0 ? _mm_unpacklo_epi8(bytes, bytes) : _mm_unpackhi_epi8(bytes, bytes));
}
// 8 of 16 pairs (a, b).
inline __m256i Pairs(__m128i a, __m128i b, int half) {
  return _mm256_cvtepi8_epi16(half == 0 ? _mm_unpacklo_epi8(a, b) : _mm_unpackhi_epi8(a, b));
}

// As many rows of x as share what a part of w costs: its codes are then bytes already, its scales F32.
[[gnu::always_inline]] inline __m256i ExpandedCodes(const std::byte* part, int s, int half) {
  return Avx2Lanes::LoadBytes(part + s * 64 + half * 32);
}
template <typename Code>
inline void ExpandCodes(Code&& code, std::byte* out) {
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) {
    Avx2Lanes::StoreBytes(out + s * 64, code(s, 0));
    Avx2Lanes::StoreBytes(out + s * 64 + 32, code(s, 1));
  }
}

// Sums of quads kFirst .. kFirst + kCount - 1 in 16-bit lanes, added to `sum`; code(s, half) gives quad s of
// 8 rows as unsigned bytes. Both halves at once: they share the broadcasts of x, which would otherwise be the
// limit (two 32-byte loads in a cycle).
template <int kFirst, int kCount, int kRows, typename Code, typename X>
[[gnu::always_inline]] inline void AddProducts(Code&& code, const X* const* x, int64_t b,
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

using F32 = Avx2Lanes::F32;
template <int kRows>
using Dots = __m256i[kRows][2];

// A pair of words of each of 16 rows of w times a pair of words of x, added to `sum`.
template <int kRows, typename X>
[[gnu::always_inline]] inline void AddWordProducts(__m256i w0, __m256i w1, const X* const* x, int64_t b, int at,
                                                   Dots<kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m256i xv = Broadcast4(x[i][b].q + at);
    sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(w0, xv));
    sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(w1, xv));
    Pin(sum[i][0]);
    Pin(sum[i][1]);
  }
}

// Sums of all quads in 32-bit lanes; code(s, half) gives quad s of 8 rows as signed bytes, of which two at a time
// become words.
template <int kRows, typename Code>
[[gnu::always_inline]] inline void DotSigned(Code&& code, const XBlock16* const* x, int64_t b,
                                             Dots<kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) {
    const __m256i w0 = code(s, 0), w1 = code(s, 1);
    AddWordProducts<kRows>(_mm256_srai_epi16(_mm256_slli_epi16(w0, 8), 8),
                           _mm256_srai_epi16(_mm256_slli_epi16(w1, 8), 8), x, b, s * 4, sum);
    AddWordProducts<kRows>(_mm256_srai_epi16(w0, 8), _mm256_srai_epi16(w1, 8), x, b, s * 4 + 2, sum);
  }
}

// The same for Q8_0's panels, quad s at codes + s * 64, where a word is W = (w0 + 128) + 256 w1 of two neighbours in k.
// With h = W >> 8 = w1
//   W q0 + h (q1 - 256 q0) = (w0 + 128) q0 + w1 q1
// whatever wraps around beyond 32 bits, so the word is multiplied as it was loaded and one shift is all that two bytes
// take. Sums start from -128 q0 of all pairs (XBlockPairs).
template <int kRows>
[[gnu::always_inline]] inline void DotPairs(const std::byte* codes, const XBlockPairs* const* x, int64_t b,
                                            Dots<kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = Broadcast4(&x[i][b].start);
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) {
    const __m256i w0 = Avx2Lanes::LoadBytes(codes + s * 64), w1 = Avx2Lanes::LoadBytes(codes + s * 64 + 32);
    AddWordProducts<kRows>(w0, w1, x, b, s * 4, sum);
    AddWordProducts<kRows>(_mm256_srai_epi16(w0, 8), _mm256_srai_epi16(w1, 8), x, b, s * 4 + 2, sum);
  }
}

// DotPairs of four rows, written out: sums are added two rows behind their products, in as many registers as there are.
// Zen 4 starts an addition on the multipliers' ports too if it is ready as soon as a product is; in the order of the
// above a row and block take 22.3 cycles instead of 21.6, in GCC's order and choice of registers more.
[[gnu::always_inline]] inline void DotPairs4(const std::byte* codes, const XBlockPairs* const* x, int64_t b,
                                             Dots<4>& sum) {
  const XBlockPairs *x0 = x[0] + b, *x1 = x[1] + b, *x2 = x[2] + b, *x3 = x[3] + b;
  const auto& all_codes = *reinterpret_cast<const std::byte(*)[512]>(codes);
  static_assert(offsetof(XBlockPairs, start) == 68);
  __m256i w0, w1, t0, u0, t1, u1, t2, u2;
  // clang-format off
#define CACHALOT_START(i)                \
  "vbroadcastss 68(%[x" #i "]), %[a" #i "]\n" \
  "vbroadcastss 68(%[x" #i "]), %[b" #i "]\n"
#define CACHALOT_LOAD(at)                \
  "vmovdqu " at "(%[codes]), %[w0]\n"    \
  "vmovdqu " at "+32(%[codes]), %[w1]\n"
#define CACHALOT_SHIFT                   \
  "vpsraw $8, %[w0], %[w0]\n"            \
  "vpsraw $8, %[w1], %[w1]\n"
// Row i's products in the pair of registers r; added to its sums.
#define CACHALOT_MUL(i, r, at)                        \
  "vbroadcastss " at "(%[x" #i "]), %[t" #r "]\n"     \
  "vpmaddwd %[t" #r "], %[w0], %[u" #r "]\n"          \
  "vpmaddwd %[t" #r "], %[w1], %[t" #r "]\n"
#define CACHALOT_ADD(i, r)                            \
  "vpaddd %[u" #r "], %[a" #i "], %[a" #i "]\n"       \
  "vpaddd %[t" #r "], %[b" #i "], %[b" #i "]\n"
// Half a quad. The registers go round in threes: what half a quad begins with follows from the one before.
#define CACHALOT_HALF(at, r, s, t)                                                        \
  CACHALOT_MUL(0, r, at) CACHALOT_ADD(2, s) CACHALOT_MUL(1, s, at) CACHALOT_ADD(3, t)     \
  CACHALOT_MUL(2, t, at) CACHALOT_ADD(0, r) CACHALOT_MUL(3, r, at) CACHALOT_ADD(1, s)
#define CACHALOT_FIRST(at)                                                                \
  CACHALOT_MUL(0, 0, at) CACHALOT_MUL(1, 1, at)                                           \
  CACHALOT_MUL(2, 2, at) CACHALOT_ADD(0, 0) CACHALOT_MUL(3, 0, at) CACHALOT_ADD(1, 1)
#define CACHALOT_QUAD(q, r, s, t, r2, s2, t2)                                             \
  CACHALOT_LOAD(#q "*64") CACHALOT_HALF(#q "*8", r, s, t)                                 \
  CACHALOT_SHIFT CACHALOT_HALF(#q "*8+4", r2, s2, t2)
  asm(CACHALOT_START(0) CACHALOT_START(1) CACHALOT_START(2) CACHALOT_START(3)
      CACHALOT_LOAD("0") CACHALOT_FIRST("0")
      CACHALOT_SHIFT CACHALOT_HALF("4", 1, 2, 0)
      CACHALOT_QUAD(1, 2, 0, 1, 0, 1, 2) CACHALOT_QUAD(2, 1, 2, 0, 2, 0, 1)
      CACHALOT_QUAD(3, 0, 1, 2, 1, 2, 0) CACHALOT_QUAD(4, 2, 0, 1, 0, 1, 2)
      CACHALOT_QUAD(5, 1, 2, 0, 2, 0, 1) CACHALOT_QUAD(6, 0, 1, 2, 1, 2, 0)
      CACHALOT_QUAD(7, 2, 0, 1, 0, 1, 2)
      CACHALOT_ADD(2, 2) CACHALOT_ADD(3, 0)
      : [a0] "=&x"(sum[0][0]), [b0] "=&x"(sum[0][1]), [a1] "=&x"(sum[1][0]), [b1] "=&x"(sum[1][1]),
        [a2] "=&x"(sum[2][0]), [b2] "=&x"(sum[2][1]), [a3] "=&x"(sum[3][0]), [b3] "=&x"(sum[3][1]),
        [w0] "=&x"(w0), [w1] "=&x"(w1), [t0] "=&x"(t0), [u0] "=&x"(u0), [t1] "=&x"(t1), [u1] "=&x"(u1),
        [t2] "=&x"(t2), [u2] "=&x"(u2)
      : [codes] "r"(codes), [x0] "r"(x0), [x1] "r"(x1), [x2] "r"(x2), [x3] "r"(x3),
        "m"(all_codes), "m"(*x0), "m"(*x1), "m"(*x2), "m"(*x3));
#undef CACHALOT_QUAD
#undef CACHALOT_FIRST
#undef CACHALOT_HALF
#undef CACHALOT_ADD
#undef CACHALOT_MUL
#undef CACHALOT_SHIFT
#undef CACHALOT_LOAD
#undef CACHALOT_START
  // clang-format on
}

// sum += dots * (scale * x's scale).
template <int kRows, typename X>
[[gnu::always_inline]] inline void AddScaled(const Dots<kRows>& dots, const F32& scale, const X* const* x,
                                             int64_t b, Sums<Avx2Lanes, kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m256 x_scale = _mm256_broadcast_ss(&x[i][b].scale);
    sum[i][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i][0]), _mm256_mul_ps(scale[0], x_scale), sum[i][0]);
    sum[i][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i][1]), _mm256_mul_ps(scale[1], x_scale), sum[i][1]);
  }
}

// sum += minimum * (x's scale * the sum of its q).
template <int kRows, typename X>
[[gnu::always_inline]] inline void AddMinima(const F32& min, const X* const* x, int64_t b,
                                             Sums<Avx2Lanes, kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m256 x_sum = _mm256_broadcast_ss(&x[i][b].sum);
    sum[i][0] = _mm256_fmadd_ps(min[0], x_sum, sum[i][0]);
    sum[i][1] = _mm256_fmadd_ps(min[1], x_sum, sum[i][1]);
  }
}

}  // namespace
}  // namespace cachalot
