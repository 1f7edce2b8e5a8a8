// Formats with one scale for 32 of k: Q5_0, Q5_1, Q4_K, Q5_K, IQ4_NL, IQ4_XS (bounds and method:
// matmul/codes_avx2.h).
#include <immintrin.h>

#include <type_traits>

#include "kernels/matmul/codes_avx2.h"

namespace cachalot {
namespace {

// --- Sub-blocks of 32: one scale, perhaps a minimum. ---

// Products of 32 of k as integers: of the codes, except that Q5_0 has them centred.
template <int kBits, int kRows, typename X>
inline void Dot32(const std::byte* part, const X* const* x, int64_t b, Dots<kRows>& dots) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    dots[i][0] = dots[i][1] = kBits == 5 ? Broadcast4(x[i][b].start) : _mm256_setzero_si256();
  }
  AddProducts<kBits, 0, 8, kRows>(part, x, b, dots);
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      dots[i][half] = _mm256_madd_epi16(dots[i][half], ones);
      if constexpr (std::is_same_v<X, XBlockWide>) {
        dots[i][half] = _mm256_add_epi32(dots[i][half], Broadcast4(&x[i][b].centre));
      }
    }
  }
}

struct Q5_0 {
  using X = XBlock;
  static constexpr int64_t kBytes = 352;
  static constexpr int kParts = 1;
  template <int kRows>
  static void Add(const std::byte* block, int, const X* const* x, int64_t b, Sums<kRows>& sum) {
    Dots<kRows> dots;
    Dot32<5, kRows>(block + 32, x, b, dots);
    AddScaled<kRows>(dots, LoadF16(block), LoadF16(block + 16), x, b, sum);
  }
};

struct Q5_1 {
  using X = XBlockWide;
  static constexpr int64_t kBytes = 384;
  static constexpr int kParts = 1;
  template <int kRows>
  static void Add(const std::byte* block, int, const X* const* x, int64_t b, Sums<kRows>& sum) {
    Dots<kRows> dots;
    Dot32<5, kRows>(block + 64, x, b, dots);
    AddScaled<kRows>(dots, LoadF16(block), LoadF16(block + 16), x, b, sum);
    const __m256 min0 = LoadF16(block + 32), min1 = LoadF16(block + 48);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256 x_sum = _mm256_broadcast_ss(&x[i][b].sum);
      sum[i][0] = _mm256_fmadd_ps(min0, x_sum, sum[i][0]);
      sum[i][1] = _mm256_fmadd_ps(min1, x_sum, sum[i][1]);
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
    Dots<kRows> dots;
    Dot32<kBits, kRows>(block + kHead + p * kPartBytes, x, b, dots);
    const __m128i low = Load16(block + 64 + p * 16);
    const __m128i high = Shift(Load16(block + 64 + 128 + p / 2 * 16), p % 2 * 4);
    const __m128i scales = _mm_or_si128(And(low, 15), And(_mm_slli_epi16(high, 4), 0x30));
    AddScaled<kRows>(dots, _mm256_mul_ps(LoadF16(block), ToF32(scales, 0)),
                     _mm256_mul_ps(LoadF16(block + 16), ToF32(scales, 1)), x, b, sum);
    const __m128i mins = _mm_or_si128(And(_mm_srli_epi16(low, 4), 15), And(_mm_slli_epi16(high, 2), 0x30));
    const __m256 min0 = _mm256_mul_ps(LoadF16(block + 32), ToF32(mins, 0));
    const __m256 min1 = _mm256_mul_ps(LoadF16(block + 48), ToF32(mins, 1));
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256 x_sum = _mm256_broadcast_ss(&x[i][b].sum);
      sum[i][0] = _mm256_fnmadd_ps(min0, x_sum, sum[i][0]);
      sum[i][1] = _mm256_fnmadd_ps(min1, x_sum, sum[i][1]);
    }
  }
};

// --- IQ4: levels instead of codes. ---

template <int kRows>
inline void DotLevels(const std::byte* part, int half, const XBlock* const* x, int64_t b, Dots<kRows>& out) {
  __m256i dots[kRows];
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
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) out[i][half] = dots[i];
}

struct IQ4_NL {
  using X = XBlock;
  static constexpr int64_t kBytes = 288;
  static constexpr int kParts = 1;
  template <int kRows>
  static void Add(const std::byte* block, int, const X* const* x, int64_t b, Sums<kRows>& sum) {
    Dots<kRows> dots;
    DotLevels<kRows>(block + 32, 0, x, b, dots);
    DotLevels<kRows>(block + 32, 1, x, b, dots);
    AddScaled<kRows>(dots, LoadF16(block), LoadF16(block + 16), x, b, sum);
  }
};

struct IQ4_XS {
  using X = XBlock;
  static constexpr int64_t kBytes = 2176;
  static constexpr int kParts = 8;
  template <int kRows>
  static void Add(const std::byte* block, int p, const X* const* x, int64_t b, Sums<kRows>& sum) {
    Dots<kRows> dots;
    DotLevels<kRows>(block + 128 + p * 256, 0, x, b, dots);
    DotLevels<kRows>(block + 128 + p * 256, 1, x, b, dots);
    const __m128i low = Shift(Load16(block + 32 + p / 2 * 16), p % 2 * 4);
    const __m128i high = Shift(Load16(block + 32 + 64 + p / 4 * 16), p % 4 * 2);
    const __m128i scales =
        _mm_sub_epi8(_mm_or_si128(And(low, 15), _mm_slli_epi16(And(high, 3), 4)), _mm_set1_epi8(32));
    const __m256 scale0 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales));
    const __m256 scale1 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(scales, 8)));
    AddScaled<kRows>(dots, _mm256_mul_ps(LoadF16(block), scale0), _mm256_mul_ps(LoadF16(block + 16), scale1),
                     x, b, sum);
  }
};

// --- Activations. ---

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

constexpr PanelKernel kKernels[] = {
    {DType::kQ5_0, Isa::kAvx2, RunCodes<Q5_0>, QuantizeForQ5_0, sizeof(XBlock)},
    {DType::kQ5_1, Isa::kAvx2, RunCodes<Q5_1>, QuantizeForQ5, sizeof(XBlockWide)},
    {DType::kIQ4_NL, Isa::kAvx2, RunCodes<IQ4_NL>, QuantizePlain, sizeof(XBlock)},
    {DType::kQ4_K, Isa::kAvx2, RunCodes<QuantK32<4>>, QuantizeForQ4_K, sizeof(XBlock)},
    {DType::kQ5_K, Isa::kAvx2, RunCodes<QuantK32<5>>, QuantizeForQ5, sizeof(XBlockWide)},
    {DType::kIQ4_XS, Isa::kAvx2, RunCodes<IQ4_XS>, QuantizePlain, sizeof(XBlock)},
};

}  // namespace

std::span<const PanelKernel> Codes32KernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
