// Panels of block formats (matmul/panel.h, panel_codes.h) as the kernels take them apart, over V
// (matmul/tile.h).
//
// A layout says, for part p (32 of k) of a block: where its codes are; its scales and minima (those as they
// are to be added), rounded to F32 as the format says. kCentre: what the format subtracts from its codes.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/tile.h"

namespace cachalot {
namespace {

inline __m128i Load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m128i And(__m128i v, int bits) {
  return _mm_and_si128(v, _mm_set1_epi8(static_cast<char>(bits)));
}
// Bits of 16 bytes; what comes in from the neighbour is masked away by the caller.
inline __m128i Shift(__m128i v, int right) {
  return _mm_srl_epi16(v, _mm_cvtsi32_si128(right));
}

// The codes of quad s (k = 4s .. 4s+3), in bytes; `part` is at the first of the rows that V::Bytes holds.
template <typename V, int kBits>
[[gnu::always_inline]] inline auto Codes(const std::byte* part, int s) {
  constexpr int kLow = kBits >= 4 ? 4 : 2;
  constexpr int64_t kLowBytes = 32 * kPanelRows * kLow / 8;
  typename V::Bytes codes;
  if constexpr (kLow == 4) {
    const auto bytes = V::LoadBytes(part + s % 4 * 64);
    codes = V::And(s < 4 ? bytes : V::Right(bytes, 4), 15);
  } else {
    codes = V::And(V::Right(V::LoadBytes(part + s / 4 * 64), s % 4 * 2), 3);
  }
  if constexpr (kBits == kLow + 1) {
    const auto bits = V::LoadBytes(part + kLowBytes);
    codes = V::Or(codes, V::And(s < kLow ? V::Left(bits, kLow - s) : V::Right(bits, s - kLow), 1 << kLow));
  } else if constexpr (kBits == kLow + 2) {
    const auto bits = V::LoadBytes(part + kLowBytes + s / 4 * 64);
    const int j = s % 4 * 2;
    codes = V::Or(codes, V::And(j < kLow ? V::Left(bits, kLow - j) : V::Right(bits, j - kLow), 3 << kLow));
  }
  return codes;
}

// --- One scale for 32. ---

// [16] F16 scales, [16] F16 minima where there are any, codes.
template <int kCodeBits, int kCentreOfCodes, bool kMin>
struct SimpleBlock {
  static constexpr int kBits = kCodeBits;
  static constexpr int kCentre = kCentreOfCodes;
  static constexpr bool kHasMin = kMin;
  static constexpr int64_t kHead = kMin ? 64 : 32;
  static constexpr int64_t kBytes = kHead + 64 * kBits;
  static constexpr int kParts = 1;
  static const std::byte* CodesOf(const std::byte* block, int) { return block + kHead; }
  template <typename V>
  [[gnu::always_inline]] static typename V::F32 Scale(const std::byte* block, int) {
    return V::LoadF16(block);
  }
  template <typename V>
  [[gnu::always_inline]] static typename V::F32 Min(const std::byte* block, int) {
    return V::LoadF16(block + 32);
  }
};
using BlockQ4_0 = SimpleBlock<4, 8, false>;
using BlockQ4_1 = SimpleBlock<4, 0, true>;
using BlockQ5_0 = SimpleBlock<5, 16, false>;
using BlockQ5_1 = SimpleBlock<5, 0, true>;
using BlockQ8_0 = SimpleBlock<8, 0, false>;    // signed bytes
using BlockIQ4_NL = SimpleBlock<4, 0, false>;  // numbers of levels

// Q4_K and Q5_K. A part's scale is d * scale and its minimum dmin * min.
template <int kCodeBits>
struct QuantK32 {
  static constexpr int kBits = kCodeBits;
  static constexpr int kCentre = 0;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kPartBytes = 64 * kBits;
  static constexpr int64_t kHead = 64 + 192;
  static constexpr int64_t kBytes = kHead + 8 * kPartBytes;
  static constexpr int kParts = 8;
  static const std::byte* CodesOf(const std::byte* block, int p) { return block + kHead + p * kPartBytes; }
  template <typename V>
  [[gnu::always_inline]] static typename V::F32 Scale(const std::byte* block, int p) {
    return V::Mul(V::LoadF16(block), V::FromU8(_mm_or_si128(And(Low(block, p), 15),
                                                            And(_mm_slli_epi16(High(block, p), 4), 0x30))));
  }
  template <typename V>
  [[gnu::always_inline]] static typename V::F32 Min(const std::byte* block, int p) {
    return V::Mul(V::Negate(V::LoadF16(block + 32)),
                  V::FromU8(_mm_or_si128(And(_mm_srli_epi16(Low(block, p), 4), 15),
                                         And(_mm_slli_epi16(High(block, p), 2), 0x30))));
  }

 private:
  static __m128i Low(const std::byte* block, int p) { return Load16(block + 64 + p * 16); }
  static __m128i High(const std::byte* block, int p) {
    return Shift(Load16(block + 64 + 128 + p / 2 * 16), p % 2 * 4);
  }
};
using BlockQ4_K = QuantK32<4>;
using BlockQ5_K = QuantK32<5>;

// Numbers of levels.
struct BlockIQ4_XS {
  static constexpr int kBits = 4;
  static constexpr int kCentre = 0;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kBytes = 2176;
  static constexpr int kParts = 8;
  static const std::byte* CodesOf(const std::byte* block, int p) { return block + 128 + p * 256; }
  template <typename V>
  [[gnu::always_inline]] static typename V::F32 Scale(const std::byte* block, int p) {
    const __m128i low = Shift(Load16(block + 32 + p / 2 * 16), p % 2 * 4);
    const __m128i high = Shift(Load16(block + 32 + 64 + p / 4 * 16), p % 4 * 2);
    const __m128i scales =
        _mm_sub_epi8(_mm_or_si128(And(low, 15), _mm_slli_epi16(And(high, 3), 4)), _mm_set1_epi8(32));
    return V::Mul(V::LoadF16(block), V::FromI8(scales));
  }
  template <typename V>
  static typename V::F32 Min(const std::byte*, int) {
    return V::Zero();
  }
};
inline __m128i LevelsIQ4() {
  return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}

// --- An integer scale for each 16, in signed bytes (Scale16, Min16: of the part's first or second 16) beside
// the block's F32 factors. ---

template <int kCodeBits, int kCentreOfCodes, bool kMin, int64_t kBlockBytes, int64_t kHead>
struct QuantK16 {
  static constexpr int kBits = kCodeBits;
  static constexpr int kCentre = kCentreOfCodes;
  static constexpr bool kHasMin = kMin;
  static constexpr int64_t kBytes = kBlockBytes;
  static constexpr int kParts = 8;
  static const std::byte* CodesOf(const std::byte* block, int p) { return block + kHead + p * 64 * kBits; }
  template <typename V>
  [[gnu::always_inline]] static typename V::F32 Factor(const std::byte* block) {
    return V::LoadF16(block);
  }
  // What dmin subtracts.
  template <typename V>
  [[gnu::always_inline]] static typename V::F32 MinFactor(const std::byte* block) {
    return V::Negate(V::LoadF16(block + 32));
  }
};

struct BlockQ2_K : QuantK16<2, 0, true, 1344, 320> {
  [[gnu::always_inline]] static __m128i Scale16(const std::byte* block, int p, int which) {
    return Half(Load16(block + 64 + p * 16), which);
  }
  [[gnu::always_inline]] static __m128i Min16(const std::byte* block, int p, int which) {
    return Half(Load16(block + 64 + 128 + p * 16), which);
  }

 private:
  static __m128i Half(__m128i both, int which) {
    return And(which == 0 ? both : _mm_srli_epi16(both, 4), 15);
  }
};

struct BlockQ3_K : QuantK16<3, 4, false, 1760, 224> {
  [[gnu::always_inline]] static __m128i Scale16(const std::byte* block, int p, int which) {
    const __m128i low = Load16(block + 32 + p * 16);
    const __m128i high = Shift(Load16(block + 32 + 128 + p / 2 * 16), p % 2 * 4);
    const __m128i scales =
        which == 0 ? _mm_or_si128(And(low, 15), And(_mm_slli_epi16(high, 4), 0x30))
                   : _mm_or_si128(And(_mm_srli_epi16(low, 4), 15), And(_mm_slli_epi16(high, 2), 0x30));
    return _mm_sub_epi8(scales, _mm_set1_epi8(32));
  }
};

struct BlockQ6_K : QuantK16<6, 32, false, 3360, 288> {
  [[gnu::always_inline]] static __m128i Scale16(const std::byte* block, int p, int which) {
    return Load16(block + 32 + p * 32 + which * 16);
  }
};

}  // namespace
}  // namespace cachalot
