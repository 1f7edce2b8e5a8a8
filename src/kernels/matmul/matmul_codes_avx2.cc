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
#include <immintrin.h>

#include "kernels/matmul/panel.h"
#include "kernels/matmul/quantize_x_avx2.h"
#include "kernels/matmul/tile_avx2.h"

namespace cachalot {
namespace {

constexpr int64_t kTileRows = 4;
constexpr int64_t kPanelCacheBytes = 20 << 10;

// Keeps the additions in the order written: reassociated, they need more registers than there are.
inline void Pin(__m256i& value) {
  asm("" : "+x"(value));
}

inline __m256i Load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m128i Load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256 LoadF16(const std::byte* p) {
  return _mm256_cvtph_ps(Load16(p));
}
inline __m256i Broadcast4(const void* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(p)));
}
inline __m128i And(__m128i v, int bits) {
  return _mm_and_si128(v, _mm_set1_epi8(static_cast<char>(bits)));
}
inline __m256i And(__m256i v, int bits) {
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(bits)));
}
// Bits of 16 bytes; what comes in from the neighbour is masked away by the caller.
inline __m128i Shift(__m128i v, int right) {
  return _mm_srl_epi16(v, _mm_cvtsi32_si128(right));
}
// 8 of 16 bytes (half 0 or 1) as F32.
inline __m256 ToF32(__m128i bytes, int half) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(half == 0 ? bytes : _mm_srli_si128(bytes, 8)));
}
// 8 of 16 bytes, signed, each twice: the two 16-bit lanes of a row.
inline __m256i Pairs(__m128i bytes, int half) {
  return _mm256_cvtepi8_epi16(half == 0 ? _mm_unpacklo_epi8(bytes, bytes) : _mm_unpackhi_epi8(bytes, bytes));
}
// 8 of 16 pairs (a, b).
inline __m256i Pairs(__m128i a, __m128i b, int half) {
  return _mm256_cvtepi8_epi16(half == 0 ? _mm_unpacklo_epi8(a, b) : _mm_unpackhi_epi8(a, b));
}

// --- The codes of quad s (k = 4s .. 4s+3) of 8 rows, in bytes. `part` is the part of 32 of k. ---

template <int kBits>
inline __m256i Codes(const std::byte* part, int s, int half) {
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

// Sums of quads kFirst .. kFirst + kCount - 1 in 16-bit lanes, added to `sum`.
template <int kBits, int kFirst, int kCount, int kRows, typename X>
inline void AddProducts(const std::byte* part, int half, const X* const* x, int64_t b, __m256i* sum) {
#pragma GCC unroll 8
  for (int s = kFirst; s < kFirst + kCount; ++s) {
    const __m256i w = Codes<kBits>(part, s, half);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(w, Broadcast4(x[i][b].q + s * 4)));
      Pin(sum[i]);
    }
  }
}

template <int kRows>
using Sums = __m256[kRows][2];

// --- Sub-blocks of 32: one scale, perhaps a minimum, for 8 rows. ---

// Products of 32 of k as integers.
template <int kBits, int kRows, typename X>
inline void Dot32(const std::byte* part, int half, const X* const* x, int64_t b, __m256i* dots) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    dots[i] = kBits == 5 ? Broadcast4(x[i][b].start) : _mm256_setzero_si256();
  }
  AddProducts<kBits, 0, 8, kRows>(part, half, x, b, dots);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) dots[i] = _mm256_madd_epi16(dots[i], ones);
}

template <int kRows, typename X>
inline void AddScaled(const __m256i* dots, __m256 scale, int half, const X* const* x, int64_t b,
                      Sums<kRows>& sum) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    sum[i][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i]),
                                   _mm256_mul_ps(scale, _mm256_broadcast_ss(&x[i][b].scale)), sum[i][half]);
  }
}

struct Q5_0 {
  using X = XBlock;
  static constexpr int64_t kBytes = 352;
  static constexpr int kParts = 1;
  template <int kRows>
  static void Add(const std::byte* block, int, const X* const* x, int64_t b, Sums<kRows>& sum) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i dots[kRows];
      Dot32<5, kRows>(block + 32, half, x, b, dots);
      AddScaled<kRows>(dots, LoadF16(block + half * 16), half, x, b, sum);
    }
  }
};

struct Q5_1 {
  using X = XBlockWide;
  static constexpr int64_t kBytes = 384;
  static constexpr int kParts = 1;
  template <int kRows>
  static void Add(const std::byte* block, int, const X* const* x, int64_t b, Sums<kRows>& sum) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i dots[kRows];
      Dot32<5, kRows>(block + 64, half, x, b, dots);
      const __m256 scale = LoadF16(block + half * 16), min = LoadF16(block + 32 + half * 16);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) dots[i] = _mm256_add_epi32(dots[i], Broadcast4(&x[i][b].centre));
      AddScaled<kRows>(dots, scale, half, x, b, sum);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        sum[i][half] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(&x[i][b].sum), sum[i][half]);
      }
    }
  }
};

// Q4_K and Q5_K. A part's scale is d * scale and its minimum dmin * min, rounded to F32 as the format says.
template <int kBits>
struct QuantK32 {
  using X = std::conditional_t<kBits == 5, XBlockWide, XBlock>;
  static constexpr int64_t kPartBytes = 64 * kBits;
  static constexpr int64_t kHead = 64 + 192;
  static constexpr int64_t kBytes = kHead + 8 * kPartBytes;
  static constexpr int kParts = 8;
  template <int kRows>
  static void Add(const std::byte* block, int p, const X* const* x, int64_t b, Sums<kRows>& sum) {
    const __m128i low = Load16(block + 64 + p * 16);
    const __m128i high = Shift(Load16(block + 64 + 128 + p / 2 * 16), p % 2 * 4);
    const __m128i scales = _mm_or_si128(And(low, 15), And(_mm_slli_epi16(high, 4), 0x30));
    const __m128i mins = _mm_or_si128(And(_mm_srli_epi16(low, 4), 15), And(_mm_slli_epi16(high, 2), 0x30));
    const std::byte* part = block + kHead + p * kPartBytes;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i dots[kRows];
      Dot32<kBits, kRows>(part, half, x, b, dots);
      const __m256 scale = _mm256_mul_ps(LoadF16(block + half * 16), ToF32(scales, half));
      const __m256 min = _mm256_mul_ps(LoadF16(block + 32 + half * 16), ToF32(mins, half));
      if constexpr (kBits == 5) {
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) dots[i] = _mm256_add_epi32(dots[i], Broadcast4(&x[i][b].centre));
      }
      AddScaled<kRows>(dots, scale, half, x, b, sum);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        sum[i][half] = _mm256_fnmadd_ps(min, _mm256_broadcast_ss(&x[i][b].sum), sum[i][half]);
      }
    }
  }
};

// --- IQ4: levels instead of codes. ---

template <int kRows>
inline void DotLevels(const std::byte* part, int half, const XBlock* const* x, int64_t b, __m256i* dots) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i levels = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) dots[i] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) {
    const __m256i w = _mm256_shuffle_epi8(levels, Codes<4>(part, s, half));
    const __m256i magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256i signed_x = _mm256_sign_epi8(Broadcast4(x[i][b].q + s * 4), w);
      dots[i] = _mm256_add_epi32(dots[i], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signed_x), ones));
      Pin(dots[i]);
    }
  }
}

struct IQ4_NL {
  using X = XBlock;
  static constexpr int64_t kBytes = 288;
  static constexpr int kParts = 1;
  template <int kRows>
  static void Add(const std::byte* block, int, const X* const* x, int64_t b, Sums<kRows>& sum) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i dots[kRows];
      DotLevels<kRows>(block + 32, half, x, b, dots);
      AddScaled<kRows>(dots, LoadF16(block + half * 16), half, x, b, sum);
    }
  }
};

struct IQ4_XS {
  using X = XBlock;
  static constexpr int64_t kBytes = 2176;
  static constexpr int kParts = 8;
  template <int kRows>
  static void Add(const std::byte* block, int p, const X* const* x, int64_t b, Sums<kRows>& sum) {
    const __m128i low = Shift(Load16(block + 32 + p / 2 * 16), p % 2 * 4);
    const __m128i high = Shift(Load16(block + 32 + 64 + p / 4 * 16), p % 4 * 2);
    const __m128i scales =
        _mm_sub_epi8(_mm_or_si128(And(low, 15), _mm_slli_epi16(And(high, 3), 4)), _mm_set1_epi8(32));
    const std::byte* part = block + 128 + p * 256;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i dots[kRows];
      DotLevels<kRows>(part, half, x, b, dots);
      const __m256 integers =
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(half == 0 ? scales : _mm_srli_si128(scales, 8)));
      AddScaled<kRows>(dots, _mm256_mul_ps(LoadF16(block + half * 16), integers), half, x, b, sum);
    }
  }
};

// --- Sub-blocks of 16: two integer scales for 32 of k, exact in the integer sum. ---

// scales[j]: 16 signed bytes. Q6_K at its extreme: 2 * 16 * 32 * 127 * 128 < 2^24, exact in F32 too.
template <int kBits, int kRows, typename X>
inline void Dot16(const std::byte* part, int half, const __m128i* scales, const X* const* x, int64_t b,
                  __m256i* dots) {
  constexpr bool kCentred = kBits != 2;
  __m256i sum[kRows];
  const auto start = [&](int j) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      if constexpr (kCentred)
        sum[i] = Broadcast4(x[i][b].start + 2 * j);
      else
        sum[i] = _mm256_setzero_si256();
    }
  };
  start(0);
  AddProducts<kBits, 0, 4, kRows>(part, half, x, b, sum);
  const __m256i first = Pairs(scales[0], half);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) dots[i] = _mm256_madd_epi16(sum[i], first);
  start(1);
  AddProducts<kBits, 4, 4, kRows>(part, half, x, b, sum);
  const __m256i second = Pairs(scales[1], half);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) dots[i] = _mm256_add_epi32(dots[i], _mm256_madd_epi16(sum[i], second));
}

struct Q2_K {
  using X = XBlock;
  static constexpr int64_t kBytes = 1344;
  static constexpr int kParts = 8;
  template <int kRows>
  static void Add(const std::byte* block, int p, const X* const* x, int64_t b, Sums<kRows>& sum) {
    const __m128i both = Load16(block + 64 + p * 16), mins = Load16(block + 64 + 128 + p * 16);
    const __m128i scales[2] = {And(both, 15), And(_mm_srli_epi16(both, 4), 15)};
    const __m128i min0 = And(mins, 15), min1 = And(_mm_srli_epi16(mins, 4), 15);
    const std::byte* part = block + 320 + p * 128;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i dots[kRows];
      Dot16<2, kRows>(part, half, scales, x, b, dots);
      AddScaled<kRows>(dots, LoadF16(block + half * 16), half, x, b, sum);
      // `start` holds x's two sums here: the minima's share is an exact integer too.
      const __m256i min = Pairs(min0, min1, half);
      const __m256 dmin = LoadF16(block + 32 + half * 16);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m256 share = _mm256_cvtepi32_ps(_mm256_madd_epi16(min, Broadcast4(x[i][b].start)));
        sum[i][half] =
            _mm256_fnmadd_ps(share, _mm256_mul_ps(dmin, _mm256_broadcast_ss(&x[i][b].scale)), sum[i][half]);
      }
    }
  }
};

struct Q3_K {
  using X = XBlockWide;
  static constexpr int64_t kBytes = 1760;
  static constexpr int kParts = 8;
  template <int kRows>
  static void Add(const std::byte* block, int p, const X* const* x, int64_t b, Sums<kRows>& sum) {
    const __m128i low = Load16(block + 32 + p * 16);
    const __m128i high = Shift(Load16(block + 32 + 128 + p / 2 * 16), p % 2 * 4);
    const __m128i bias = _mm_set1_epi8(32);
    const __m128i scales[2] = {
        _mm_sub_epi8(_mm_or_si128(And(low, 15), And(_mm_slli_epi16(high, 4), 0x30)), bias),
        _mm_sub_epi8(_mm_or_si128(And(_mm_srli_epi16(low, 4), 15), And(_mm_slli_epi16(high, 2), 0x30)),
                     bias)};
    const std::byte* part = block + 224 + p * 192;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i dots[kRows];
      Dot16<3, kRows>(part, half, scales, x, b, dots);
      AddScaled<kRows>(dots, LoadF16(block + half * 16), half, x, b, sum);
    }
  }
};

struct Q6_K {
  using X = XBlockWide;
  static constexpr int64_t kBytes = 3360;
  static constexpr int kParts = 8;
  template <int kRows>
  static void Add(const std::byte* block, int p, const X* const* x, int64_t b, Sums<kRows>& sum) {
    const __m128i scales[2] = {Load16(block + 32 + p * 32), Load16(block + 32 + p * 32 + 16)};
    const std::byte* part = block + 288 + p * 384;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i dots[kRows];
      Dot16<6, kRows>(part, half, scales, x, b, dots);
      AddScaled<kRows>(dots, LoadF16(block + half * 16), half, x, b, sum);
    }
  }
};

// --- A tile: kRows rows of x against a panel. ---

template <typename Format, int kRows>
void Tile(const PanelTask& task, const std::byte* panel, int64_t row, int64_t column) {
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
void Run(const PanelTask& task) {
  // As many panels as the first cache holds beside a tile's rows of x: those are then read once for all of
  // them.
  const int64_t panels_at_once =
      task.panel_bytes >= kPanelCacheBytes ? 1 : kPanelCacheBytes / task.panel_bytes;
  for (int64_t p0 = 0; p0 < task.num_panels; p0 += panels_at_once) {
    const int64_t end = p0 + Smaller(panels_at_once, task.num_panels - p0);
    for (int64_t row = 0; row < task.m; row += kTileRows) {
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

void QuantizePlain(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i, XBlock* block) { block->sum = 0; });
}

void QuantizeForQ5_0(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    const int start = Start<4>(FoldPairs(_mm_add_epi16(a, b)));
    __builtin_memcpy(block->start, &start, sizeof(start));
  });
}

void QuantizeForQ4_K(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    block->sum = block->scale * static_cast<float>(SumOf(FoldPairs(_mm_add_epi16(a, b))));
  });
}

// Q5_1 and Q5_K.
void QuantizeForQ5(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlockWide>(x, k, out, [](__m256i q, XBlockWide* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    const __m128i folded = FoldPairs(_mm_add_epi16(a, b));
    const int start = Start<4>(folded), sum = SumOf(folded);
    __builtin_memcpy(block->start, &start, sizeof(start));
    block->centre = 16 * sum;
    block->sum = block->scale * static_cast<float>(sum);
  });
}

void QuantizeForQ2_K(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    block->start[0] = static_cast<int16_t>(SumOf(FoldPairs(a)));
    block->start[1] = static_cast<int16_t>(SumOf(FoldPairs(b)));
  });
}

// Q3_K (codes centred on 4) and Q6_K (on 32).
template <int kLog>
void QuantizeFor16(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlockWide>(x, k, out, [](__m256i q, XBlockWide* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    const int start[2] = {Start<kLog>(FoldPairs(a)), Start<kLog>(FoldPairs(b))};
    __builtin_memcpy(block->start, start, sizeof(start));
    block->sum = 0;
  });
}

constexpr PanelKernel kKernels[] = {
    {DType::kQ5_0, Isa::kAvx2, Run<Q5_0>, QuantizeForQ5_0, sizeof(XBlock)},
    {DType::kQ5_1, Isa::kAvx2, Run<Q5_1>, QuantizeForQ5, sizeof(XBlockWide)},
    {DType::kIQ4_NL, Isa::kAvx2, Run<IQ4_NL>, QuantizePlain, sizeof(XBlock)},
    {DType::kQ2_K, Isa::kAvx2, Run<Q2_K>, QuantizeForQ2_K, sizeof(XBlock)},
    {DType::kQ3_K, Isa::kAvx2, Run<Q3_K>, QuantizeFor16<2>, sizeof(XBlockWide)},
    {DType::kQ4_K, Isa::kAvx2, Run<QuantK32<4>>, QuantizeForQ4_K, sizeof(XBlock)},
    {DType::kQ5_K, Isa::kAvx2, Run<QuantK32<5>>, QuantizeForQ5, sizeof(XBlockWide)},
    {DType::kQ6_K, Isa::kAvx2, Run<Q6_K>, QuantizeFor16<5>, sizeof(XBlockWide)},
    {DType::kIQ4_XS, Isa::kAvx2, Run<IQ4_XS>, QuantizePlain, sizeof(XBlock)},
};

}  // namespace

std::span<const PanelKernel> CodeKernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
