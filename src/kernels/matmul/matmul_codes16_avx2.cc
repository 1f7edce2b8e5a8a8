// Formats with an integer scale for each 16 of k: Q2_K, Q3_K, Q6_K (bounds and method: matmul/codes_avx2.h).
#include <immintrin.h>

#include <type_traits>

#include "kernels/matmul/codes_tile_avx2.h"

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

// A layout says where a part's codes are and gives the integer scales of its two sub-blocks, its minima if it
// has any (pairs of words: of both sub-blocks), and the F32 factors of either.
template <typename Layout>
struct Codes16 : Layout {
  using X = std::conditional_t<Layout::kHasMin, XBlock, XBlockWide>;
  static constexpr int kTileRows = 4;
  // Codes, words of both scales, factors; of minima the same.
  static constexpr int64_t kScalesAt = kExpandedCodeBytes, kMinsAt = kScalesAt + 192;
  static constexpr int64_t kExpandedBytes = kMinsAt + (Layout::kHasMin ? 128 : 0);

  // Q6_K at its extreme: 2 * 16 * 32 * 127 * 128 < 2^24, exact in F32 too.
  template <int kRows, typename Code, typename Words, typename Factors>
  [[gnu::always_inline]] static void AddPart(Code&& code, Words&& words, Factors&& factors, const X* const* x,
                                             int64_t b, Sums<kRows>& sum) {
    Dots<kRows> dots;
    AddSub16<!Layout::kHasMin, 0, kRows>(code, {words(0, 0), words(0, 1)}, x, b, dots);
    AddSub16<!Layout::kHasMin, 1, kRows>(code, {words(1, 0), words(1, 1)}, x, b, dots);
    AddScaled<kRows>(dots, {factors(0, 0), factors(0, 1)}, x, b, sum);
    if constexpr (Layout::kHasMin) {
      // `start` holds x's two sums here: the minima's share is an exact integer too.
      const __m256i min0 = words(2, 0), min1 = words(2, 1);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m256i x_sums = Broadcast4(x[i][b].start);
        dots[i][0] = _mm256_madd_epi16(min0, x_sums);
        dots[i][1] = _mm256_madd_epi16(min1, x_sums);
      }
      AddScaled<kRows>(dots, {factors(1, 0), factors(1, 1)}, x, b, sum);
    }
  }

  // d, or what dmin subtracts.
  [[gnu::always_inline]] static __m256 Factor(const std::byte* block, int which, int half) {
    const __m256 factor = LoadF16(block + which * 32 + half * 16);
    return which == 0 ? factor : _mm256_xor_ps(factor, _mm256_set1_ps(-0.0f));
  }

  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int p, const X* const* x, int64_t b,
                                         Sums<kRows>& sum) {
    AddPart<kRows>(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<Layout::kBits>(Layout::CodesOf(block, p), s, half);
        },
        [&](int which, int half)
            __attribute__((always_inline)) { return Layout::Words(block, p, which, half); },
        [&](int which, int half) __attribute__((always_inline)) { return Factor(block, which, half); }, x, b,
        sum);
  }

  static void Expand(const std::byte* block, int p, std::byte* out) {
    ExpandCodes(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<Layout::kBits>(Layout::CodesOf(block, p), s, half);
        },
        out);
    for (int half = 0; half < 2; ++half) {
      Store(out + kScalesAt + 32 * half, Layout::Words(block, p, 0, half));
      Store(out + kScalesAt + 64 + 32 * half, Layout::Words(block, p, 1, half));
      if constexpr (Layout::kHasMin) Store(out + kMinsAt + 32 * half, Layout::Words(block, p, 2, half));
    }
    StoreF32(out + kScalesAt + 128, {Factor(block, 0, 0), Factor(block, 0, 1)});
    if constexpr (Layout::kHasMin) StoreF32(out + kMinsAt + 64, {Factor(block, 1, 0), Factor(block, 1, 1)});
  }

  template <int kRows>
  [[gnu::always_inline]] static void AddExpanded(const std::byte* part, const X* const* x, int64_t b,
                                                 Sums<kRows>& sum) {
    AddPart<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return ExpandedCodes(part, s, half); },
        [&](int which, int half) __attribute__((always_inline)) {
          return Load(part + (which == 2 ? kMinsAt : kScalesAt + which * 64) + half * 32);
        },
        [&](int which, int half) __attribute__((always_inline)) {
          return LoadF32(part + (which == 1 ? kMinsAt + 64 : kScalesAt + 128) + half * 32);
        },
        x, b, sum);
  }
};

struct BlockQ2_K {
  static constexpr int kBits = 2;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kBytes = 1344;
  static constexpr int kParts = 8;
  static const std::byte* CodesOf(const std::byte* block, int p) { return block + 320 + p * 128; }
  [[gnu::always_inline]] static __m256i Words(const std::byte* block, int p, int which, int half) {
    const __m128i both = Load16(block + 64 + (which == 2 ? 128 : 0) + p * 16);
    const __m128i first = And(both, 15), second = And(_mm_srli_epi16(both, 4), 15);
    return which == 2 ? Pairs(first, second, half) : Pairs(which == 0 ? first : second, half);
  }
};

struct BlockQ3_K {
  static constexpr int kBits = 3;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kBytes = 1760;
  static constexpr int kParts = 8;
  static const std::byte* CodesOf(const std::byte* block, int p) { return block + 224 + p * 192; }
  [[gnu::always_inline]] static __m256i Words(const std::byte* block, int p, int which, int half) {
    const __m128i low = Load16(block + 32 + p * 16);
    const __m128i high = Shift(Load16(block + 32 + 128 + p / 2 * 16), p % 2 * 4);
    const __m128i scales =
        which == 0 ? _mm_or_si128(And(low, 15), And(_mm_slli_epi16(high, 4), 0x30))
                   : _mm_or_si128(And(_mm_srli_epi16(low, 4), 15), And(_mm_slli_epi16(high, 2), 0x30));
    return Pairs(_mm_sub_epi8(scales, _mm_set1_epi8(32)), half);
  }
};

struct BlockQ6_K {
  static constexpr int kBits = 6;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kBytes = 3360;
  static constexpr int kParts = 8;
  static const std::byte* CodesOf(const std::byte* block, int p) { return block + 288 + p * 384; }
  [[gnu::always_inline]] static __m256i Words(const std::byte* block, int p, int which, int half) {
    return Pairs(Load16(block + 32 + p * 32 + which * 16), half);
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
    {DType::kQ2_K, Isa::kAvx2, RunCodes<Codes16<BlockQ2_K>>, QuantizeForQ2_K, sizeof(XBlock)},
    {DType::kQ3_K, Isa::kAvx2, RunCodes<Codes16<BlockQ3_K>>, QuantizeFor16<2>, sizeof(XBlockWide)},
    {DType::kQ6_K, Isa::kAvx2, RunCodes<Codes16<BlockQ6_K>>, QuantizeFor16<5>, sizeof(XBlockWide)},
};

}  // namespace

std::span<const PanelKernel> Codes16KernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
