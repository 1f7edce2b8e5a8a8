// Formats with one scale for 32 of k: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, IQ4_NL, IQ4_XS (bounds and
// method: matmul/codes_avx2.h).
#include <immintrin.h>

#include <type_traits>

#include "kernels/matmul/codes_tile_avx2.h"

namespace cachalot {
namespace {

// --- Unsigned codes: a scale, perhaps a minimum. ---

// A layout says where a part's codes are and gives its scales and minima in F32, minima as they are to be
// added. Start: what the sums of products begin with.
enum class Start32 {
  kZero,
  kCentred,   // X::start, which subtracts the codes' centre
  kRestored,  // X::start for the sums to fit; the centre comes back afterwards (XBlockWide)
};

template <typename Layout>
struct Codes32 : Layout {
  static constexpr int kTileRows = 4;
  using X = std::conditional_t<Layout::kStart == Start32::kRestored, XBlockWide, XBlock>;
  static constexpr int64_t kExpandedBytes = kExpandedCodeBytes + (Layout::kHasMin ? 128 : 64);

  // scales(scale, min) is called late: until then the sums need the registers.
  template <int kRows, typename Code, typename Scales>
  [[gnu::always_inline]] static void AddPart(Code&& code, Scales&& scales, const X* const* x, int64_t b,
                                             Sums<kRows>& sum) {
    Dots<kRows> dots;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      dots[i][0] = dots[i][1] =
          Layout::kStart == Start32::kZero ? _mm256_setzero_si256() : Broadcast4(x[i][b].start);
    }
    AddProducts<0, 8, kRows>(code, x, b, dots);
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        dots[i][half] = _mm256_madd_epi16(dots[i][half], ones);
        if constexpr (Layout::kStart == Start32::kRestored) {
          dots[i][half] = _mm256_add_epi32(dots[i][half], Broadcast4(&x[i][b].centre));
        }
      }
    }
    __m256 scale[2], min[2];
    scales(scale, min);
    AddScaled<kRows>(dots, scale, x, b, sum);
    if constexpr (Layout::kHasMin) AddMinima<kRows>(min, x, b, sum);
  }

  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int p, const X* const* x, int64_t b,
                                         Sums<kRows>& sum) {
    AddPart<kRows>(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<Layout::kBits>(Layout::CodesOf(block, p), s, half);
        },
        [&](__m256(&scale)[2], __m256(&min)[2])
            __attribute__((always_inline)) { Layout::Scales(block, p, scale, min); },
        x, b, sum);
  }

  static void Expand(const std::byte* block, int p, std::byte* out) {
    ExpandCodes(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<Layout::kBits>(Layout::CodesOf(block, p), s, half);
        },
        out);
    __m256 scale[2], min[2];
    Layout::Scales(block, p, scale, min);
    StoreF32(out + kExpandedCodeBytes, scale);
    if constexpr (Layout::kHasMin) StoreF32(out + kExpandedCodeBytes + 64, min);
  }

  template <int kRows>
  [[gnu::always_inline]] static void AddExpanded(const std::byte* part, const X* const* x, int64_t b,
                                                 Sums<kRows>& sum) {
    AddPart<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return ExpandedCodes(part, s, half); },
        [&](__m256(&scale)[2], __m256(&min)[2]) __attribute__((always_inline)) {
          const std::byte* at = part + kExpandedCodeBytes;
          scale[0] = LoadF32(at);
          scale[1] = LoadF32(at + 32);
          if constexpr (Layout::kHasMin) {
            min[0] = LoadF32(at + 64);
            min[1] = LoadF32(at + 96);
          }
        },
        x, b, sum);
  }
};

// [16] F16 scales, [16] F16 minima where there are any, codes.
template <int kCodeBits, Start32 kStartOf, bool kMin>
struct SimpleBlock {
  static constexpr int kBits = kCodeBits;
  static constexpr Start32 kStart = kStartOf;
  static constexpr bool kHasMin = kMin;
  static constexpr int64_t kHead = kMin ? 64 : 32;
  static constexpr int64_t kBytes = kHead + 64 * kBits;
  static constexpr int kParts = 1;
  static const std::byte* CodesOf(const std::byte* block, int) { return block + kHead; }
  [[gnu::always_inline]] static void Scales(const std::byte* block, int, __m256 (&scale)[2],
                                            __m256 (&min)[2]) {
    scale[0] = LoadF16(block);
    scale[1] = LoadF16(block + 16);
    if constexpr (kMin) {
      min[0] = LoadF16(block + 32);
      min[1] = LoadF16(block + 48);
    }
  }
};
using Q4_0 = Codes32<SimpleBlock<4, Start32::kCentred, false>>;
using Q4_1 = Codes32<SimpleBlock<4, Start32::kZero, true>>;
using Q5_0 = Codes32<SimpleBlock<5, Start32::kCentred, false>>;
using Q5_1 = Codes32<SimpleBlock<5, Start32::kRestored, true>>;

// Q4_K and Q5_K. A part's scale is d * scale and its minimum dmin * min, rounded to F32 as the format says.
template <int kCodeBits>
struct QuantK32 {
  static constexpr int kBits = kCodeBits;
  static constexpr Start32 kStart = kBits == 5 ? Start32::kRestored : Start32::kZero;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kPartBytes = 64 * kBits;
  static constexpr int64_t kHead = 64 + 192;
  static constexpr int64_t kBytes = kHead + 8 * kPartBytes;
  static constexpr int kParts = 8;
  static const std::byte* CodesOf(const std::byte* block, int p) { return block + kHead + p * kPartBytes; }
  [[gnu::always_inline]] static void Scales(const std::byte* block, int p, __m256 (&scale)[2],
                                            __m256 (&min)[2]) {
    const __m128i low = Load16(block + 64 + p * 16);
    const __m128i high = Shift(Load16(block + 64 + 128 + p / 2 * 16), p % 2 * 4);
    const __m128i scales = _mm_or_si128(And(low, 15), And(_mm_slli_epi16(high, 4), 0x30));
    const __m128i mins = _mm_or_si128(And(_mm_srli_epi16(low, 4), 15), And(_mm_slli_epi16(high, 2), 0x30));
    const __m256 sign = _mm256_set1_ps(-0.0f);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      scale[half] = _mm256_mul_ps(LoadF16(block + 16 * half), ToF32(scales, half));
      min[half] = _mm256_mul_ps(_mm256_xor_ps(LoadF16(block + 32 + 16 * half), sign), ToF32(mins, half));
    }
  }
};
using Q4_K = Codes32<QuantK32<4>>;
using Q5_K = Codes32<QuantK32<5>>;

// --- Signed bytes. ---

struct Q8_0 {
  using X = XBlock16;
  static constexpr int kTileRows = 6;
  static constexpr int64_t kBytes = 544;
  static constexpr int kParts = 1;
  static constexpr int64_t kExpandedBytes = 0;
  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int, const X* const* x, int64_t b,
                                         Sums<kRows>& sum) {
    Dots<kRows> dots;
    DotSigned<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return Load(block + 32 + s * 64 + half * 32); },
        x, b, dots);
    AddScaled<kRows>(dots, {LoadF16(block), LoadF16(block + 16)}, x, b, sum);
  }
};

// IQ4: levels instead of codes.
template <typename Layout>
struct Levels32 : Layout {
  using X = XBlock16;
  static constexpr int kTileRows = 6;
  static constexpr int64_t kExpandedBytes = kExpandedCodeBytes + 64;

  [[gnu::always_inline]] static __m256i Level(const std::byte* block, int p, int s, int half) {
    const __m256i levels = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    return _mm256_shuffle_epi8(levels, Codes<4>(Layout::CodesOf(block, p), s, half));
  }

  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int p, const X* const* x, int64_t b,
                                         Sums<kRows>& sum) {
    Dots<kRows> dots;
    DotSigned<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return Level(block, p, s, half); }, x, b, dots);
    __m256 scale[2];
    Layout::Scales(block, p, scale);
    AddScaled<kRows>(dots, scale, x, b, sum);
  }

  static void Expand(const std::byte* block, int p, std::byte* out) {
    ExpandCodes(
        [&](int s, int half) __attribute__((always_inline)) { return Level(block, p, s, half); }, out);
    __m256 scale[2];
    Layout::Scales(block, p, scale);
    StoreF32(out + kExpandedCodeBytes, scale);
  }

  template <int kRows>
  [[gnu::always_inline]] static void AddExpanded(const std::byte* part, const X* const* x, int64_t b,
                                                 Sums<kRows>& sum) {
    Dots<kRows> dots;
    DotSigned<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return ExpandedCodes(part, s, half); }, x, b,
        dots);
    AddScaled<kRows>(dots, {LoadF32(part + kExpandedCodeBytes), LoadF32(part + kExpandedCodeBytes + 32)}, x,
                     b, sum);
  }
};

struct LevelBlock {
  static constexpr int64_t kBytes = 288;
  static constexpr int kParts = 1;
  static const std::byte* CodesOf(const std::byte* block, int) { return block + 32; }
  [[gnu::always_inline]] static void Scales(const std::byte* block, int, __m256 (&scale)[2]) {
    scale[0] = LoadF16(block);
    scale[1] = LoadF16(block + 16);
  }
};

struct LevelBlock256 {
  static constexpr int64_t kBytes = 2176;
  static constexpr int kParts = 8;
  static const std::byte* CodesOf(const std::byte* block, int p) { return block + 128 + p * 256; }
  [[gnu::always_inline]] static void Scales(const std::byte* block, int p, __m256 (&scale)[2]) {
    const __m128i low = Shift(Load16(block + 32 + p / 2 * 16), p % 2 * 4);
    const __m128i high = Shift(Load16(block + 32 + 64 + p / 4 * 16), p % 4 * 2);
    const __m128i scales =
        _mm_sub_epi8(_mm_or_si128(And(low, 15), _mm_slli_epi16(And(high, 3), 4)), _mm_set1_epi8(32));
    scale[0] = _mm256_mul_ps(LoadF16(block), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)));
    scale[1] = _mm256_mul_ps(LoadF16(block + 16),
                             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(scales, 8))));
  }
};
using IQ4_NL = Levels32<LevelBlock>;
using IQ4_XS = Levels32<LevelBlock256>;

// --- Activations. ---

void QuantizePlain(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock16>(x, k, out, [](__m256i, XBlock16*) {});
}

// Q4_1 and Q4_K.
void QuantizeWithSum(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    block->sum = block->scale * static_cast<float>(SumOf(FoldPairs(_mm_add_epi16(a, b))));
  });
}

// Q4_0 (codes centred on 8) and Q5_0 (on 16).
template <int kLog>
void QuantizeCentred(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    const int start = Start<kLog>(FoldPairs(_mm_add_epi16(a, b)));
    __builtin_memcpy(block->start, &start, sizeof(start));
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

constexpr PanelKernel kKernels[] = {
    {DType::kQ8_0, Isa::kAvx2, RunCodes<Q8_0>, QuantizePlain, sizeof(XBlock16)},
    {DType::kQ4_0, Isa::kAvx2, RunCodes<Q4_0>, QuantizeCentred<3>, sizeof(XBlock)},
    {DType::kQ4_1, Isa::kAvx2, RunCodes<Q4_1>, QuantizeWithSum, sizeof(XBlock)},
    {DType::kQ5_0, Isa::kAvx2, RunCodes<Q5_0>, QuantizeCentred<4>, sizeof(XBlock)},
    {DType::kQ5_1, Isa::kAvx2, RunCodes<Q5_1>, QuantizeForQ5, sizeof(XBlockWide)},
    {DType::kIQ4_NL, Isa::kAvx2, RunCodes<IQ4_NL>, QuantizePlain, sizeof(XBlock16)},
    {DType::kQ4_K, Isa::kAvx2, RunCodes<Q4_K>, QuantizeWithSum, sizeof(XBlock)},
    {DType::kQ5_K, Isa::kAvx2, RunCodes<Q5_K>, QuantizeForQ5, sizeof(XBlockWide)},
    {DType::kIQ4_XS, Isa::kAvx2, RunCodes<IQ4_XS>, QuantizePlain, sizeof(XBlock16)},
};

}  // namespace

std::span<const PanelKernel> Codes32KernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
