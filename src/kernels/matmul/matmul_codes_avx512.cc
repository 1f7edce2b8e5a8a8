// Block formats against activations rounded to 8 bits, AVX-512 with VNNI: the sums of matmul/codes_avx2.h, to
// the bit (exact integers over 32 of k, then the same F32 chain), by fewer instructions.
//
// Bounds: a byte product (vpdpbusd) sums 16 rows x 4 k in 32 bits at once, two a cycle where both 512-bit
// ports have it: 256 operations a cycle. Beside the eight of a part stand three F32 instructions a row (four
// with minima, six with a scale for each 16), so 70 % of that at best; x comes from memory as the product's
// operand, which takes the two loads of a cycle. Eight rows a tile are chains enough.
//
// The product wants w unsigned: signed bytes and levels get 128 added, codes stay as they are; what is to be
// subtracted again is in the number that a row's sums start from (XBlockSums).
#include <immintrin.h>

#include "kernels/matmul/codes_avx512.h"
#include "kernels/matmul/codes_tile.h"

namespace cachalot {
namespace {

using V = Avx512Lanes;

// One row of x, all formats: 4 panels at once, each asked for 1 KB ahead (Sapphire Rapids, two cores, GB/s, before and
// after: Q8_0 24 and 28, Q4_0 21 and 24, Q4_K 20 and 23, Q6_K 20 and 24).
constexpr RowStreams kStreamsOfARow = {4, 1024};

template <int kRows>
using Dots = __m512i[kRows];

inline __m512i Broadcast4(const void* p) {
  return _mm512_set1_epi32(*static_cast<const int32_t*>(p));
}

// Adds quads kFirst .. kFirst + kCount - 1; code(s) gives quad s as unsigned bytes.
template <int kFirst, int kCount, int kRows, typename Code>
[[gnu::always_inline]] inline void AddProducts(Code&& code, const XBlockSums* const* x, int64_t b,
                                               Dots<kRows>& dots) {
#pragma GCC unroll 8
  for (int s = kFirst; s < kFirst + kCount; ++s) {
    const __m512i w = code(s);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) dots[i] = _mm512_dpbusd_epi32(dots[i], w, Broadcast4(x[i][b].q + s * 4));
  }
}

template <typename Code>
inline void ExpandCodes(Code&& code, std::byte* out) {
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) V::StoreBytes(out + s * 64, code(s));
}

// --- One scale for 32. ---

template <typename Layout, typename As = AsCodes<Layout>>
struct Codes32 : Layout {
  using V = Avx512Lanes;
  using X = XBlockSums;
  static constexpr int kCentre = As::kCentre;
  static constexpr int kTileRows = 8;
  static constexpr RowStreams kRowStreams = kStreamsOfARow;
  static constexpr int64_t kExpandedBytes = kExpandedCodeBytes + (Layout::kHasMin ? 128 : 64);

  template <int kRows, typename Code, typename Scale, typename Min>
  [[gnu::always_inline]] static void AddPart(Code&& code, Scale&& scale, Min&& min, const X* const* x,
                                             int64_t b, Sums<V, kRows>& sum) {
    Dots<kRows> dots;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      dots[i] = kCentre != 0 ? Broadcast4(x[i][b].start) : _mm512_setzero_si512();
    }
    AddProducts<0, 8, kRows>(code, x, b, dots);
    const __m512 w_scale = scale();
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512 both = _mm512_mul_ps(w_scale, V::Broadcast(&x[i][b].scale));
      sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i]), both, sum[i]);
    }
    if constexpr (Layout::kHasMin) {
      const __m512 w_min = min();
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[i] = _mm512_fmadd_ps(w_min, V::Broadcast(&x[i][b].sum), sum[i]);
    }
  }

  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int p, const X* const* x, int64_t b,
                                         Sums<V, kRows>& sum) {
    AddPart<kRows>(
        [&](int s) __attribute__((always_inline)) { return As::Code(Layout::CodesOf(block, p), s); },
        [&]() __attribute__((always_inline)) { return Layout::template Scale<V>(block, p); },
        [&]() __attribute__((always_inline)) { return Layout::template Min<V>(block, p); }, x, b, sum);
  }

  static void Expand(const std::byte* block, int p, std::byte* out) {
    ExpandCodes(
        [&](int s) __attribute__((always_inline)) { return As::Code(Layout::CodesOf(block, p), s); }, out);
    V::StoreF32(out + kExpandedCodeBytes, Layout::template Scale<V>(block, p));
    if constexpr (Layout::kHasMin) {
      V::StoreF32(out + kExpandedCodeBytes + 64, Layout::template Min<V>(block, p));
    }
  }

  template <int kRows>
  [[gnu::always_inline]] static void AddExpanded(const std::byte* part, const X* const* x, int64_t b,
                                                 Sums<V, kRows>& sum) {
    AddPart<kRows>(
        [&](int s) __attribute__((always_inline)) { return V::LoadBytes(part + s * 64); },
        [&]() __attribute__((always_inline)) { return V::LoadF32(part + kExpandedCodeBytes); },
        [&]() __attribute__((always_inline)) { return V::LoadF32(part + kExpandedCodeBytes + 64); }, x, b,
        sum);
  }
};

// --- An integer scale for each 16. ---

template <typename Layout>
struct Codes16 : Layout {
  using V = Avx512Lanes;
  using X = XBlockSums;
  static constexpr int kTileRows = 8;
  static constexpr RowStreams kRowStreams = kStreamsOfARow;
  // Codes, both scales and their factor; both minima as pairs of words and their factor.
  static constexpr int64_t kScalesAt = kExpandedCodeBytes, kMinsAt = kScalesAt + 192;
  static constexpr int64_t kExpandedBytes = kMinsAt + (Layout::kHasMin ? 128 : 0);

  // The sum of both halves times their scales is an integer below 2^24 (Q6_K: 2 * 16 * 32 * 127 * 128), so in
  // F32 too: there it takes half of the instructions.
  template <int kRows, typename Code, typename Numbers>
  [[gnu::always_inline]] static void AddPart(Code&& code, Numbers&& numbers, const X* const* x, int64_t b,
                                             Sums<V, kRows>& sum) {
    __m512 scaled[kRows];
    {
      Dots<kRows> dots;
      Start<0, kRows>(x, b, dots);
      AddProducts<0, 4, kRows>(code, x, b, dots);
      const __m512 scale = numbers.template Scale<0>();
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) scaled[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[i]), scale);
    }
    {
      Dots<kRows> dots;
      Start<1, kRows>(x, b, dots);
      AddProducts<4, 4, kRows>(code, x, b, dots);
      const __m512 scale = numbers.template Scale<1>(), factor = numbers.Factor();
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        scaled[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i]), scale, scaled[i]);
        const __m512 both = _mm512_mul_ps(factor, V::Broadcast(&x[i][b].scale));
        sum[i] = _mm512_fmadd_ps(scaled[i], both, sum[i]);
      }
    }
    if constexpr (Layout::kHasMin) {
      const __m512i mins = numbers.Mins();
      const __m512 factor = numbers.MinFactor();
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m512i products = _mm512_madd_epi16(mins, Broadcast4(x[i][b].sums));
        const __m512 both = _mm512_mul_ps(factor, V::Broadcast(&x[i][b].scale));
        sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), both, sum[i]);
      }
    }
  }

  template <int kHalf, int kRows>
  [[gnu::always_inline]] static void Start(const X* const* x, int64_t b, Dots<kRows>& dots) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      dots[i] = Layout::kCentre != 0 ? Broadcast4(&x[i][b].start[kHalf]) : _mm512_setzero_si512();
    }
  }

  struct Packed {
    const std::byte* block;
    int p;
    template <int kHalf>
    __m512 Scale() const {
      return V::FromI8(Layout::Scale16(block, p, kHalf));
    }
    __m512 Factor() const { return Layout::template Factor<V>(block); }
    __m512i Mins() const { return WordPairs(Layout::Min16(block, p, 0), Layout::Min16(block, p, 1)); }
    __m512 MinFactor() const { return Layout::template MinFactor<V>(block); }
  };

  struct Expanded {
    const std::byte* part;
    template <int kHalf>
    __m512 Scale() const {
      return V::LoadF32(part + kScalesAt + kHalf * 64);
    }
    __m512 Factor() const { return V::LoadF32(part + kScalesAt + 128); }
    __m512i Mins() const { return V::LoadBytes(part + kMinsAt); }
    __m512 MinFactor() const { return V::LoadF32(part + kMinsAt + 64); }
  };

  template <int kRows>
  [[gnu::always_inline]] static void Add(const std::byte* block, int p, const X* const* x, int64_t b,
                                         Sums<V, kRows>& sum) {
    AddPart<kRows>(
        [&](int s)
            __attribute__((always_inline)) { return Codes<V, Layout::kBits>(Layout::CodesOf(block, p), s); },
        Packed{block, p}, x, b, sum);
  }

  static void Expand(const std::byte* block, int p, std::byte* out) {
    ExpandCodes(
        [&](int s)
            __attribute__((always_inline)) { return Codes<V, Layout::kBits>(Layout::CodesOf(block, p), s); },
        out);
    const Packed packed{block, p};
    V::StoreF32(out + kScalesAt, packed.template Scale<0>());
    V::StoreF32(out + kScalesAt + 64, packed.template Scale<1>());
    V::StoreF32(out + kScalesAt + 128, packed.Factor());
    if constexpr (Layout::kHasMin) {
      V::StoreBytes(out + kMinsAt, packed.Mins());
      V::StoreF32(out + kMinsAt + 64, packed.MinFactor());
    }
  }

  template <int kRows>
  [[gnu::always_inline]] static void AddExpanded(const std::byte* part, const X* const* x, int64_t b,
                                                 Sums<V, kRows>& sum) {
    AddPart<kRows>(
        [&](int s) __attribute__((always_inline)) { return V::LoadBytes(part + s * 64); }, Expanded{part}, x,
        b, sum);
  }
};

template <typename Format>
constexpr PanelKernel Kernel32(DType dtype) {
  return {dtype, Isa::kAvx512, RunCodes<Format>, Quantize32<Format::kCentre>, sizeof(XBlockSums)};
}
template <typename Layout>
constexpr PanelKernel Kernel16(DType dtype) {
  return {dtype, Isa::kAvx512, RunCodes<Codes16<Layout>>, Quantize16<Layout::kCentre>, sizeof(XBlockSums)};
}

constexpr PanelKernel kKernels[] = {
    Kernel32<Codes32<BlockQ8_0, AsSignedBytes>>(DType::kQ8_0),
    Kernel32<Codes32<BlockQ4_0>>(DType::kQ4_0),
    Kernel32<Codes32<BlockQ4_1>>(DType::kQ4_1),
    Kernel32<Codes32<BlockQ5_0>>(DType::kQ5_0),
    Kernel32<Codes32<BlockQ5_1>>(DType::kQ5_1),
    Kernel32<Codes32<BlockIQ4_NL, AsLevels>>(DType::kIQ4_NL),
    Kernel32<Codes32<BlockQ4_K>>(DType::kQ4_K),
    Kernel32<Codes32<BlockQ5_K>>(DType::kQ5_K),
    Kernel32<Codes32<BlockIQ4_XS, AsLevels>>(DType::kIQ4_XS),
    Kernel16<BlockQ2_K>(DType::kQ2_K),
    Kernel16<BlockQ3_K>(DType::kQ3_K),
    Kernel16<BlockQ6_K>(DType::kQ6_K),
};

}  // namespace

std::span<const PanelKernel> CodesKernelsAvx512() {
  return kKernels;
}

}  // namespace cachalot
