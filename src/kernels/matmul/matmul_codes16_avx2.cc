// Formats with an integer scale for each 16 of k: Q2_K, Q3_K, Q6_K (bounds and method: matmul/codes_avx2.h).
#include <immintrin.h>

#include <type_traits>

#include "kernels/matmul/codes_avx2.h"

namespace cachalot {
namespace {

// Quads 4j .. 4j+3 times a scale for each row (pairs of words), added to dots.
template <bool kStarts, int kSub, int kRows, typename Code, typename X>
[[gnu::always_inline]] inline void AddSub16(Code&& code, const __m256i (&scale)[2], const X* const* x,
                                            int64_t b, Dots<kRows>& dots) {
  Dots<kRows> sum;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = sum[i][1] = kStarts ? Broadcast4(x[i][b].start + 2 * kSub) : _mm256_setzero_si256();
  }
  AddProducts<4 * kSub, 4, kRows>(code, x, b, sum);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = _mm256_madd_epi16(sum[i][0], scale[0]);
    sum[i][1] = _mm256_madd_epi16(sum[i][1], scale[1]);
    dots[i][0] = kSub == 0 ? sum[i][0] : _mm256_add_epi32(dots[i][0], sum[i][0]);
    dots[i][1] = kSub == 0 ? sum[i][1] : _mm256_add_epi32(dots[i][1], sum[i][1]);
  }
}

template <typename Layout>
struct Codes16 : Layout {
  using V = Avx2Lanes;
  using X = std::conditional_t<Layout::kHasMin, XBlock, XBlockWide>;
  static constexpr int kTileRows = 4;
  // Codes, words of both scales, factors; of minima the same.
  static constexpr int64_t kScalesAt = kExpandedCodeBytes, kMinsAt = kScalesAt + 192;
  static constexpr int64_t kExpandedBytes = kMinsAt + (Layout::kHasMin ? 128 : 0);

  // Q6_K at its extreme: 2 * 16 * 32 * 127 * 128 < 2^24, exact in F32 too.
  template <int kRows, typename Code, typename Words, typename Factors>
  [[gnu::always_inline]] static void AddPart(Code&& code, Words&& words, Factors&& factors, const X* const* x,
                                             int64_t b, Sums<V, kRows>& sum) {
    Dots<kRows> dots;
    AddSub16<!Layout::kHasMin, 0, kRows>(code, {words(0, 0), words(0, 1)}, x, b, dots);
    AddSub16<!Layout::kHasMin, 1, kRows>(code, {words(1, 0), words(1, 1)}, x, b, dots);
    AddScaled<kRows>(dots, factors(0), x, b, sum);
    if constexpr (Layout::kHasMin) {
      // `start` holds x's two sums here: the minima's share is an exact integer too.
      const __m256i min0 = words(2, 0), min1 = words(2, 1);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m256i x_sums = Broadcast4(x[i][b].start);
        dots[i][0] = _mm256_madd_epi16(min0, x_sums);
        dots[i][1] = _mm256_madd_epi16(min1, x_sums);
      }
      AddScaled<kRows>(dots, factors(1), x, b, sum);
    }
  }

  // d, or what dmin subtracts.
  static F32 Factors(const std::byte* block, int which) {
    if constexpr (Layout::kHasMin) {
      if (which == 1) return Layout::template MinFactor<V>(block);
    }
    return Layout::template Factor<V>(block);
  }

  // The integer scale of sub-block 0 or 1 in both words of a lane; 2: both minima.
  [[gnu::always_inline]] static __m256i Words(const std::byte* block, int p, int which, int half) {
    if constexpr (Layout::kHasMin) {
      if (which == 2) return Pairs(Layout::Min16(block, p, 0), Layout::Min16(block, p, 1), half);
    }
    return Pairs(Layout::Scale16(block, p, which), half);
  }

  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int p, const X* const* x, int64_t b,
                                         Sums<V, kRows>& sum) {
    AddPart<kRows>(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<V, Layout::kBits>(Layout::CodesOf(block, p) + half * 32, s);
        },
        [&](int which, int half) __attribute__((always_inline)) { return Words(block, p, which, half); },
        [&](int which) __attribute__((always_inline)) { return Factors(block, which); }, x, b, sum);
  }

  static void Expand(const std::byte* block, int p, std::byte* out) {
    ExpandCodes(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<V, Layout::kBits>(Layout::CodesOf(block, p) + half * 32, s);
        },
        out);
    for (int half = 0; half < 2; ++half) {
      V::StoreBytes(out + kScalesAt + 32 * half, Words(block, p, 0, half));
      V::StoreBytes(out + kScalesAt + 64 + 32 * half, Words(block, p, 1, half));
      if constexpr (Layout::kHasMin) V::StoreBytes(out + kMinsAt + 32 * half, Words(block, p, 2, half));
    }
    V::StoreF32(out + kScalesAt + 128, Factors(block, 0));
    if constexpr (Layout::kHasMin) V::StoreF32(out + kMinsAt + 64, Factors(block, 1));
  }

  template <int kRows>
  [[gnu::always_inline]] static void AddExpanded(const std::byte* part, const X* const* x, int64_t b,
                                                 Sums<V, kRows>& sum) {
    AddPart<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return ExpandedCodes(part, s, half); },
        [&](int which, int half) __attribute__((always_inline)) {
          return V::LoadBytes(part + (which == 2 ? kMinsAt : kScalesAt + which * 64) + half * 32);
        },
        [&](int which) __attribute__((always_inline)) {
          return V::LoadF32(part + (which == 1 ? kMinsAt + 64 : kScalesAt + 128));
        },
        x, b, sum);
  }
};

// --- Activations. ---

void QuantizeForQ2_K(const float* x, int64_t k, std::byte* out) {
  QuantizeBytes<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    block->start[0] = static_cast<int16_t>(SumOf(FoldPairs(a)));
    block->start[1] = static_cast<int16_t>(SumOf(FoldPairs(b)));
  });
}

// Q3_K (codes centred on 4) and Q6_K (on 32).
template <int kLog>
void QuantizeFor16(const float* x, int64_t k, std::byte* out) {
  QuantizeBytes<XBlockWide>(x, k, out, [](__m256i q, XBlockWide* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    const int start[2] = {Start<kLog>(FoldPairs(a)), Start<kLog>(FoldPairs(b))};
    __builtin_memcpy(block->start, start, sizeof(start));
    block->sum = 0;
  });
}

constexpr PanelKernel kKernels[] = {
    {DType::kQ2_K, Isa::kAvx2, RunCodes<Codes16<BlockQ2_K>>, QuantizeForQ2_K, sizeof(XBlock)},
    {DType::kQ3_K, Isa::kAvx2, RunCodes<Codes16<BlockQ3_K>>, QuantizeFor16<2>, sizeof(XBlockWide)},
    {DType::kQ6_K, Isa::kAvx2, RunCodes<Codes16<BlockQ6_K>>, QuantizeFor16<5>, sizeof(XBlockWide)},
};

}  // namespace

std::span<const PanelKernel> Codes16KernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
