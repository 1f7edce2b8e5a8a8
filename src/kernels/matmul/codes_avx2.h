// Formats of 2 to 6 bits (matmul/panel_codes.h) against activations rounded to 8 bits: exact integer sums
// over 32 of k, then the one F32 chain of matmul_int8_avx2.cc: sum = fma(integer, w's scale * x's scale,
// sum), followed by the minimum's share where there is one.
//
// A lane of 16 bits holds the sum of as many products as fit it, so most multiply-adds cost one addition:
//   4 bits:        16 products of 15 * 127.
//   5 bits:        16 products of 16 * 127, with 16 subtracted from the codes: the sums start at -16 * x's
//   sums. sub-blocks of 16: 8 products, of at most 32 * 127 once the codes (of 3 and 6 bits) are centred the
//   same way.
// The widening to 32 bits multiplies by a sub-block's integer scale at no cost, so sub-blocks of 16 share the
// rest. IQ4's levels are signed bytes: |w| times x with w's sign, each product pair widened at once, as for
// Q8_0. Lanes wrap around inside such a sum; only its end has to fit.
//
// This file: what the kernels of all these formats share. For *_avx2.cc files only; everything is `static`,
// as in tile_avx2.h. A format is a struct with X (its blocks of x), kBytes and kParts (of a panel's block:
// its size and its parts of 32 of k) and Add, which adds one part's products to the sums.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/panel.h"
#include "kernels/matmul/quantize_x_avx2.h"
#include "kernels/matmul/tile_avx2.h"

namespace cachalot {

constexpr int64_t kCodeTileRows = 4;
constexpr int64_t kCodePanelCacheBytes = 20 << 10;

// Keeps the additions in the order written: reassociated, they need more registers than there are.
static inline void Pin(__m256i& value) {
  asm("" : "+x"(value));
}

static inline __m256i Load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline __m128i Load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline __m256 LoadF16(const std::byte* p) {
  return _mm256_cvtph_ps(Load16(p));
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
static inline __m256i Codes(const std::byte* part, int s, int half) {
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

// Sums of quads kFirst .. kFirst + kCount - 1 in 16-bit lanes, added to `sum`. Both halves at once: they
// share the broadcasts of x, which would otherwise be the limit (two 32-byte loads in a cycle).
template <int kBits, int kFirst, int kCount, int kRows, typename X>
static inline void AddProducts(const std::byte* part, const X* const* x, int64_t b,
                               __m256i (&sum)[kRows][2]) {
#pragma GCC unroll 8
  for (int s = kFirst; s < kFirst + kCount; ++s) {
    const __m256i w0 = Codes<kBits>(part, s, 0), w1 = Codes<kBits>(part, s, 1);
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

// sum += dots * (scale * x's scale).
template <int kRows, typename X>
static inline void AddScaled(const Dots<kRows>& dots, __m256 scale0, __m256 scale1, const X* const* x,
                             int64_t b, Sums<kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m256 x_scale = _mm256_broadcast_ss(&x[i][b].scale);
    sum[i][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i][0]), _mm256_mul_ps(scale0, x_scale), sum[i][0]);
    sum[i][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i][1]), _mm256_mul_ps(scale1, x_scale), sum[i][1]);
  }
}

// --- A tile: kRows rows of x against a panel. ---

template <typename Format, int kRows>
static inline void Tile(const PanelTask& task, const std::byte* panel, int64_t row, int64_t column) {
  using X = typename Format::X;
  const X* x[kRows];
  Sums<kRows> sum;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    x[i] = XRow<X>(task, row + i);
    sum[i][0] = sum[i][1] = _mm256_setzero_ps();
  }
  const int64_t num_parts = task.k / 32;
  for (int64_t b = 0; b < num_parts; panel += Format::kBytes) {
    for (int p = 0; p < Format::kParts; ++p, ++b) Format::template Add<kRows>(panel, p, x, b, sum);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) StoreTileRow(task, row + i, column, sum[i][0], sum[i][1]);
}

template <typename Format>
static inline void RunCodes(const PanelTask& task) {
  // As many panels as the first cache holds beside a tile's rows of x: those are then read once for all of
  // them.
  const int64_t panels_at_once =
      task.panel_bytes >= kCodePanelCacheBytes ? 1 : kCodePanelCacheBytes / task.panel_bytes;
  for (int64_t p0 = 0; p0 < task.num_panels; p0 += panels_at_once) {
    const int64_t end = p0 + Smaller(panels_at_once, task.num_panels - p0);
    for (int64_t row = 0; row < task.m; row += kCodeTileRows) {
      for (int64_t p = p0; p < end; ++p) {
        const std::byte* panel = task.panels + p * task.panel_bytes;
        switch (task.m - row) {
          case 1:
            Tile<Format, 1>(task, panel, row, p * kPanelRows);
            break;
          case 2:
            Tile<Format, 2>(task, panel, row, p * kPanelRows);
            break;
          case 3:
            Tile<Format, 3>(task, panel, row, p * kPanelRows);
            break;
          default:
            Tile<Format, 4>(task, panel, row, p * kPanelRows);
            break;
        }
      }
    }
  }
}

// --- Activations: what stands beside the 32 rounded values. ---

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

}  // namespace cachalot
