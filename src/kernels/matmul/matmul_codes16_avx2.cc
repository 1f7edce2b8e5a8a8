// Formats with an integer scale for each 16 of k: Q2_K, Q3_K, Q6_K (bounds and method: matmul/codes_avx2.h).
#include <immintrin.h>

#include "kernels/matmul/codes_avx2.h"

namespace cachalot {
namespace {

// --- Sub-blocks of 16: two integer scales for 32 of k, exact in the integer sum. ---

// Quads 4j .. 4j+3 times a scale for each row (16 signed bytes), added to dots.
template <int kBits, int kSub, int kRows, typename X>
inline void AddSub16(const std::byte* part, __m128i scales, const X* const* x, int64_t b, Dots<kRows>& dots) {
  Dots<kRows> sum;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    if constexpr (kBits != 2)
      sum[i][0] = sum[i][1] = Broadcast4(x[i][b].start + 2 * kSub);
    else
      sum[i][0] = sum[i][1] = _mm256_setzero_si256();
  }
  AddProducts<kBits, 4 * kSub, 4, kRows>(part, x, b, sum);
  const __m256i scale0 = Pairs(scales, 0), scale1 = Pairs(scales, 1);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = _mm256_madd_epi16(sum[i][0], scale0);
    sum[i][1] = _mm256_madd_epi16(sum[i][1], scale1);
    dots[i][0] = kSub == 0 ? sum[i][0] : _mm256_add_epi32(dots[i][0], sum[i][0]);
    dots[i][1] = kSub == 0 ? sum[i][1] : _mm256_add_epi32(dots[i][1], sum[i][1]);
  }
}

// Q6_K at its extreme: 2 * 16 * 32 * 127 * 128 < 2^24, exact in F32 too.
template <int kBits, int kRows, typename X>
inline void Dot16(const std::byte* part, __m128i scales0, __m128i scales1, const X* const* x, int64_t b,
                  Dots<kRows>& dots) {
  AddSub16<kBits, 0, kRows>(part, scales0, x, b, dots);
  AddSub16<kBits, 1, kRows>(part, scales1, x, b, dots);
}

struct Q2_K {
  using X = XBlock;
  static constexpr int64_t kBytes = 1344;
  static constexpr int kParts = 8;
  template <int kRows>
  static void Add(const std::byte* block, int p, const X* const* x, int64_t b, Sums<kRows>& sum) {
    const __m128i both = Load16(block + 64 + p * 16);
    Dots<kRows> dots;
    Dot16<2, kRows>(block + 320 + p * 128, And(both, 15), And(_mm_srli_epi16(both, 4), 15), x, b, dots);
    AddScaled<kRows>(dots, LoadF16(block), LoadF16(block + 16), x, b, sum);
    // `start` holds x's two sums here: the minima's share is an exact integer too.
    const __m128i mins = Load16(block + 64 + 128 + p * 16);
    const __m128i first = And(mins, 15), second = And(_mm_srli_epi16(mins, 4), 15);
    const __m256i min0 = Pairs(first, second, 0), min1 = Pairs(first, second, 1);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256i x_sums = Broadcast4(x[i][b].start);
      dots[i][0] = _mm256_madd_epi16(min0, x_sums);
      dots[i][1] = _mm256_madd_epi16(min1, x_sums);
    }
    const __m256 sign = _mm256_set1_ps(-0.0f);
    AddScaled<kRows>(dots, _mm256_xor_ps(LoadF16(block + 32), sign), _mm256_xor_ps(LoadF16(block + 48), sign),
                     x, b, sum);
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
    const __m128i first = _mm_or_si128(And(low, 15), And(_mm_slli_epi16(high, 4), 0x30));
    const __m128i second = _mm_or_si128(And(_mm_srli_epi16(low, 4), 15), And(_mm_slli_epi16(high, 2), 0x30));
    Dots<kRows> dots;
    Dot16<3, kRows>(block + 224 + p * 192, _mm_sub_epi8(first, bias), _mm_sub_epi8(second, bias), x, b, dots);
    AddScaled<kRows>(dots, LoadF16(block), LoadF16(block + 16), x, b, sum);
  }
};

struct Q6_K {
  using X = XBlockWide;
  static constexpr int64_t kBytes = 3360;
  static constexpr int kParts = 8;
  template <int kRows>
  static void Add(const std::byte* block, int p, const X* const* x, int64_t b, Sums<kRows>& sum) {
    Dots<kRows> dots;
    Dot16<6, kRows>(block + 288 + p * 384, Load16(block + 32 + p * 32), Load16(block + 48 + p * 32), x, b,
                    dots);
    AddScaled<kRows>(dots, LoadF16(block), LoadF16(block + 16), x, b, sum);
  }
};

// --- Activations. ---

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
    {DType::kQ2_K, Isa::kAvx2, RunCodes<Q2_K>, QuantizeForQ2_K, sizeof(XBlock)},
    {DType::kQ3_K, Isa::kAvx2, RunCodes<Q3_K>, QuantizeFor16<2>, sizeof(XBlockWide)},
    {DType::kQ6_K, Isa::kAvx2, RunCodes<Q6_K>, QuantizeFor16<5>, sizeof(XBlockWide)},
};

}  // namespace

std::span<const PanelKernel> Codes16KernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
