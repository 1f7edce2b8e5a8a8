// Formats with one scale for 32 of k: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, IQ4_NL, IQ4_XS (bounds and
// method: matmul/codes_avx2.h).
#include <immintrin.h>

#include <type_traits>

#include "kernels/matmul/codes_avx2.h"

namespace cachalot {
namespace {

// --- Unsigned codes: a scale, perhaps a minimum. ---

// What the sums of products begin with.
enum class Start32 {
  kZero,
  kCentred,   // X::start, which subtracts the codes' centre
  kRestored,  // X::start for the sums to fit; the centre comes back afterwards (XBlockWide)
};

template <typename Layout>
struct Codes32 : Layout {
  using V = Avx2Lanes;
  static constexpr Start32 kStart = Layout::kCentre != 0 ? Start32::kCentred
                                    : Layout::kBits == 5 ? Start32::kRestored
                                                         : Start32::kZero;
  static constexpr int kTileRows = 4;
  // A core of Zen 3, GB/s: Q4_0 20 (as others) and 22, Q4_K 16 and 19; Q5_0 and Q5_K gain nothing.
  static constexpr RowStreams kRowStreams = Layout::kBits == 5   ? RowStreams{1, kStreamAhead}
                                            : Layout::kParts > 1 ? RowStreams{2, 1024}
                                                                 : RowStreams{4, 0};
  using X = std::conditional_t<kStart == Start32::kRestored, XBlockWide, XBlock>;
  static constexpr int64_t kExpandedBytes = kExpandedCodeBytes + (Layout::kHasMin ? 128 : 64);

  // scale() and min() are called late: until then the sums need the registers.
  template <int kRows, typename Code, typename Scale, typename Min>
  [[gnu::always_inline]] static void AddPart(Code&& code, Scale&& scale, Min&& min, const X* const* x,
                                             int64_t b, Sums<V, kRows>& sum) {
    Dots<kRows> dots;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      dots[i][0] = dots[i][1] = kStart == Start32::kZero ? _mm256_setzero_si256() : Broadcast4(x[i][b].start);
    }
    AddProducts<0, 8, kRows>(code, x, b, dots);
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        dots[i][half] = _mm256_madd_epi16(dots[i][half], ones);
        if constexpr (kStart == Start32::kRestored) {
          dots[i][half] = _mm256_add_epi32(dots[i][half], Broadcast4(&x[i][b].centre));
        }
      }
    }
    AddScaled<kRows>(dots, scale(), x, b, sum);
    if constexpr (Layout::kHasMin) AddMinima<kRows>(min(), x, b, sum);
  }

  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int p, const X* const* x, int64_t b,
                                         Sums<V, kRows>& sum) {
    AddPart<kRows>(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<V, Layout::kBits>(Layout::CodesOf(block, p) + half * 32, s);
        },
        [&]() __attribute__((always_inline)) { return Layout::template Scale<V>(block, p); },
        [&]() __attribute__((always_inline)) { return Layout::template Min<V>(block, p); }, x, b, sum);
  }

  static void Expand(const std::byte* block, int p, std::byte* out) {
    ExpandCodes(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<V, Layout::kBits>(Layout::CodesOf(block, p) + half * 32, s);
        },
        out);
    V::StoreF32(out + kExpandedCodeBytes, Layout::template Scale<V>(block, p));
    if constexpr (Layout::kHasMin) {
      V::StoreF32(out + kExpandedCodeBytes + 64, Layout::template Min<V>(block, p));
    }
  }

  template <int kRows>
  [[gnu::always_inline]] static void AddExpanded(const std::byte* part, const X* const* x, int64_t b,
                                                 Sums<V, kRows>& sum) {
    AddPart<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return ExpandedCodes(part, s, half); },
        [&]() __attribute__((always_inline)) { return V::LoadF32(part + kExpandedCodeBytes); },
        [&]() __attribute__((always_inline)) { return V::LoadF32(part + kExpandedCodeBytes + 64); }, x, b,
        sum);
  }
};

// Q4_K and Q5_K: one row takes a block's scales and minima apart for all parts together.
template <int kBits>
struct CodesK32 : Codes32<QuantK32<kBits>> {
  using Layout = QuantK32<kBits>;
  using Base = Codes32<Layout>;
  using V = Avx2Lanes;
  using X = typename Base::X;

  struct RowBlock {
    alignas(32) uint8_t scales[8 * 16];
    alignas(32) uint8_t mins[8 * 16];
    F32 d, minus_dmin;

    [[gnu::always_inline]] explicit RowBlock(const std::byte* block)
        : d(V::LoadF16(block)), minus_dmin(V::Negate(V::LoadF16(block + 32))) {
      // Parts 2j and 2j + 1: their high bits stand in one group of 16 bytes, the second's four bits further up.
      const __m256i left = _mm256_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0), high_bits = _mm256_set1_epi8(0x30);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m256i low = V::LoadBytes(block + 64 + j * 32);
        const __m256i high =
            _mm256_sllv_epi32(_mm256_broadcastsi128_si256(Load16(block + 64 + 128 + j * 16)), left);
        const __m256i min_high = _mm256_and_si256(V::Right(high, 2), high_bits);
        Store(scales + j * 32, V::Or(V::And(low, 15), _mm256_and_si256(high, high_bits)));
        Store(mins + j * 32, V::Or(V::And(V::Right(low, 4), 15), min_high));
      }
    }

   private:
    static void Store(uint8_t* to, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), v); }
  };

  [[gnu::always_inline]] static void AddOfRow(const RowBlock& row, const std::byte* block, int p,
                                              const X* const* x, int64_t b, Sums<V, 1>& sum) {
    Base::template AddPart<1>(
        [&](int s, int half) __attribute__((always_inline)) {
          return Codes<V, kBits>(Layout::CodesOf(block, p) + half * 32, s);
        },
        [&]() __attribute__((always_inline)) { return V::Mul(row.d, V::FromU8(row.scales + p * 16)); },
        [&]() __attribute__((always_inline)) { return V::Mul(row.minus_dmin, V::FromU8(row.mins + p * 16)); },
        x, b, sum);
  }
};

// --- Signed bytes. ---

struct Q8_0 : BlockQ8_0 {
  using V = Avx2Lanes;
  using X = XBlockPairs;
  static constexpr int kTileRows = 6;
  static constexpr RowStreams kRowStreams = {4, 0};  // 21 to 25 GB/s
  static constexpr int64_t kExpandedBytes = 0;
  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int, const X* const* x, int64_t b,
                                         Sums<V, kRows>& sum) {
    Dots<kRows> dots;
    if constexpr (kRows == 4) {
      DotPairs4(block + 32, x, b, dots);
    } else {
      DotPairs<kRows>(block + 32, x, b, dots);
    }
    AddScaled<kRows>(dots, Scale<V>(block, 0), x, b, sum);
  }
};

// IQ4: levels instead of codes.
template <typename Layout>
struct Levels32 : Layout {
  using V = Avx2Lanes;
  using X = XBlock16;
  static constexpr int kTileRows = 6;
  static constexpr int64_t kExpandedBytes = kExpandedCodeBytes + 64;

  [[gnu::always_inline]] static __m256i Level(const std::byte* block, int p, int s, int half) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(LevelsIQ4()),
                               Codes<V, 4>(Layout::CodesOf(block, p) + half * 32, s));
  }

  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int p, const X* const* x, int64_t b,
                                         Sums<V, kRows>& sum) {
    Dots<kRows> dots;
    DotSigned<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return Level(block, p, s, half); }, x, b, dots);
    AddScaled<kRows>(dots, Layout::template Scale<V>(block, p), x, b, sum);
  }

  static void Expand(const std::byte* block, int p, std::byte* out) {
    ExpandCodes(
        [&](int s, int half) __attribute__((always_inline)) { return Level(block, p, s, half); }, out);
    V::StoreF32(out + kExpandedCodeBytes, Layout::template Scale<V>(block, p));
  }

  template <int kRows>
  [[gnu::always_inline]] static void AddExpanded(const std::byte* part, const X* const* x, int64_t b,
                                                 Sums<V, kRows>& sum) {
    Dots<kRows> dots;
    DotSigned<kRows>(
        [&](int s, int half) __attribute__((always_inline)) { return ExpandedCodes(part, s, half); }, x, b,
        dots);
    AddScaled<kRows>(dots, V::LoadF32(part + kExpandedCodeBytes), x, b, sum);
  }
};

// --- Activations. ---

// IQ4.
void QuantizeWords(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock16>(x, k, out, [](const __m256i (&q)[4], XBlock16* block) __attribute__((always_inline)) {
    __m256i* to = reinterpret_cast<__m256i*>(block->q);
    // No scale that is a number leaves -32768 here; bytes would be -128.
    const __m256i least = _mm256_set1_epi16(-128);
    _mm256_storeu_si256(to, _mm256_max_epi16(EvenFirst(PackWords(q[0], q[1])), least));
    _mm256_storeu_si256(to + 1, _mm256_max_epi16(EvenFirst(PackWords(q[2], q[3])), least));
  });
}

// Q8_0.
void QuantizePairs(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlockPairs>(x, k, out, [](const __m256i (&q)[4], XBlockPairs* block) __attribute__((always_inline)) {
    __m256i* to = reinterpret_cast<__m256i*>(block->q);
    const __m256i first = PackWords(q[0], q[1]), second = PackWords(q[2], q[3]);
    // The odd word's share of an even one: 256 times it.
    _mm256_storeu_si256(to, EvenFirst(_mm256_sub_epi16(first, _mm256_slli_epi32(first, 24))));
    _mm256_storeu_si256(to + 1, EvenFirst(_mm256_sub_epi16(second, _mm256_slli_epi32(second, 24))));
    const __m256i even_times_128 = _mm256_madd_epi16(_mm256_add_epi16(first, second), _mm256_set1_epi32(0xff80));
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(even_times_128), _mm256_extracti128_si256(even_times_128, 1));
    const __m128i pair = _mm_add_epi32(half, _mm_unpackhi_epi64(half, half));
    block->start = Low32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, 1)));
  });
}

// Q4_1 and Q4_K.
void QuantizeWithSum(const float* x, int64_t k, std::byte* out) {
  QuantizeBytes<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    block->sum = block->scale * static_cast<float>(SumOf(FoldPairs(_mm_add_epi16(a, b))));
  });
}

// Q4_0 (codes centred on 8) and Q5_0 (on 16).
template <int kLog>
void QuantizeCentred(const float* x, int64_t k, std::byte* out) {
  QuantizeBytes<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    __m128i a, b;
    PairSums(q, &a, &b);
    const int start = Start<kLog>(FoldPairs(_mm_add_epi16(a, b)));
    __builtin_memcpy(block->start, &start, sizeof(start));
  });
}

// Q5_1 and Q5_K.
void QuantizeForQ5(const float* x, int64_t k, std::byte* out) {
  QuantizeBytes<XBlockWide>(x, k, out, [](__m256i q, XBlockWide* block) {
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
    {DType::kQ8_0, Isa::kAvx2, RunCodes<Q8_0>, QuantizePairs, sizeof(XBlockPairs)},
    {DType::kQ4_0, Isa::kAvx2, RunCodes<Codes32<BlockQ4_0>>, QuantizeCentred<3>, sizeof(XBlock)},
    {DType::kQ4_1, Isa::kAvx2, RunCodes<Codes32<BlockQ4_1>>, QuantizeWithSum, sizeof(XBlock)},
    {DType::kQ5_0, Isa::kAvx2, RunCodes<Codes32<BlockQ5_0>>, QuantizeCentred<4>, sizeof(XBlock)},
    {DType::kQ5_1, Isa::kAvx2, RunCodes<Codes32<BlockQ5_1>>, QuantizeForQ5, sizeof(XBlockWide)},
    {DType::kIQ4_NL, Isa::kAvx2, RunCodes<Levels32<BlockIQ4_NL>>, QuantizeWords, sizeof(XBlock16)},
    {DType::kQ4_K, Isa::kAvx2, RunCodes<CodesK32<4>>, QuantizeWithSum, sizeof(XBlock)},
    {DType::kQ5_K, Isa::kAvx2, RunCodes<CodesK32<5>>, QuantizeForQ5, sizeof(XBlockWide)},
    {DType::kIQ4_XS, Isa::kAvx2, RunCodes<Levels32<BlockIQ4_XS>>, QuantizeWords, sizeof(XBlock16)},
};

}  // namespace

std::span<const PanelKernel> Codes32KernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
