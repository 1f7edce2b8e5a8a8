// KvRemap, 32 values at a time: the bits of kv_remap_ref.cc.
#include <algorithm>

#include "kernels/common/kv_codes_avx2.h"
#include "kernels/kv_remap/kv_remap_variants.h"
#include "quant/kv_rotate.h"

namespace cachalot {
namespace {

constexpr int kUnit = kKvUnit;

const uint8_t* U8(const std::byte* data) { return reinterpret_cast<const uint8_t*>(data); }

// 32 unsigned codes of unit u, in the order of their values.
template <KvRemapCode kCode>
__m256i UnitCodes(const std::byte* main, const std::byte* high, int64_t u) {
  if constexpr (kCode == KvRemapCode::kInt4Unit) {
    return LoadKvCodes<KvCode::kInt4>(U8(main) + u * 16, nullptr);
  } else if constexpr (kCode == KvRemapCode::kInt6Unit) {
    return LoadKvCodes<KvCode::kInt6>(U8(main) + u * 16, U8(high) + u * 8);
  } else if constexpr (kCode == KvRemapCode::kInt4) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(main + u * 16));
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i even = _mm_and_si128(bytes, mask), odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
    return _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
  } else {
    static_assert(kCode == KvRemapCode::kInt6);
    // Three bytes of four codes into each 32-bit lane, then each code into its byte.
    const __m256i bytes = _mm256_set_m128i(_mm_srli_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(main + u * 24 + 8)), 4),
                                           _mm_loadu_si128(reinterpret_cast<const __m128i*>(main + u * 24)));
    const __m256i lanes = _mm256_shuffle_epi8(
        bytes, _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10,
                                11, -1));
    const auto code = [&](int shift, int mask) { return _mm256_and_si256(_mm256_slli_epi32(lanes, shift), _mm256_set1_epi32(mask)); };
    return _mm256_or_si256(_mm256_or_si256(code(0, 63), code(2, 63 << 8)), _mm256_or_si256(code(4, 63 << 16), code(6, 63 << 24)));
  }
}

__m256 Floats(__m128i codes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)); }

// The unit's values before scale and zero point.
template <KvRemapCode kCode>
void UnitValues(const std::byte* main, const std::byte* high, int64_t u, __m256 (&x)[4]) {
  if constexpr (kCode == KvRemapCode::kF16 || kCode == KvRemapCode::kBF16) {
    for (int q = 0; q < 4; ++q) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(main + u * 64 + q * 16));
      x[q] = kCode == KvRemapCode::kF16 ? _mm256_cvtph_ps(half)
                                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
  } else if constexpr (kCode == KvRemapCode::kE4M3) {
    for (int h = 0; h < 2; ++h) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(main + u * 32 + h * 16));
      // The bits in F16's places are 2^-8 of the value; the code for NaN becomes one.
      const __m256i wide = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
      const __m256i half = _mm256_and_si256(_mm256_srai_epi16(wide, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
      const __m128i seven = _mm_set1_epi8(0x7f);
      const __m128i nan = _mm_cmpeq_epi8(_mm_and_si128(bytes, seven), seven);
      const __m256 factor = _mm256_set1_ps(256.0f);
      const auto value = [&](__m128i bits, __m128i bad) {
        return _mm256_or_ps(_mm256_mul_ps(_mm256_cvtph_ps(bits), factor), _mm256_castsi256_ps(_mm256_cvtepi8_epi32(bad)));
      };
      x[2 * h] = value(_mm256_castsi256_si128(half), nan);
      x[2 * h + 1] = value(_mm256_extracti128_si256(half, 1), _mm_srli_si128(nan, 8));
    }
  } else if constexpr (kCode == KvRemapCode::kInt8) {
    for (int q = 0; q < 4; ++q) {
      x[q] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(main + u * 32 + q * 8))));
    }
  } else {
    const __m256i codes = UnitCodes<kCode>(main, high, u);
    const __m128i first = _mm256_castsi256_si128(codes), second = _mm256_extracti128_si256(codes, 1);
    x[0] = Floats(first);
    x[1] = Floats(_mm_srli_si128(first, 8));
    x[2] = Floats(second);
    x[3] = Floats(_mm_srli_si128(second, 8));
  }
}

__m256 Numbers(__m256 x) { return _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q)); }

// x has room for whole units.
template <KvRemapCode kCode>
void DecodeRow(const KvRemapTensor& t, const KvRemapRow& row, float* x) {
  constexpr bool kUnits = kCode == KvRemapCode::kInt4Unit || kCode == KvRemapCode::kInt6Unit;
  constexpr bool kUnsigned = kUnits || kCode == KvRemapCode::kInt4 || kCode == KvRemapCode::kInt6;
  const int units = (t.dim + kUnit - 1) / kUnit;
  const std::byte* main = row.main;
  std::byte padded[2 * kMaxRemapDim + 2 * kUnit];
  if (!kUnits && t.dim % kUnit != 0) {  // units read no further than the row does
    const int64_t bytes = KvRemapMainBytes(kCode, t.dim);
    std::memcpy(padded, row.main, static_cast<size_t>(bytes));
    std::memset(padded + bytes, 0, static_cast<size_t>(2 * kUnit));
    main = padded;
  }
  const bool one_group = t.group == 0 || t.group >= t.dim || t.scale_type == KvRemapScale::kOne;
  KvRemapScaleValue s = RemapScale(t, row.scales, 0);
  for (int u = 0; u < units; ++u) {
    __m256 values[4];
    UnitValues<kCode>(main, row.high, u, values);
    for (int q = 0; q < 4; ++q) {
      const int first = u * kUnit + q * kRemapChunk;
      if (first >= t.dim) break;
      if (!one_group) s = RemapScale(t, row.scales, first / t.group);
      __m256 v = values[q];
      if constexpr (kUnsigned) v = _mm256_sub_ps(v, _mm256_set1_ps(s.zero));
      _mm256_storeu_ps(x + first, Numbers(_mm256_mul_ps(v, _mm256_set1_ps(s.scale))));
    }
  }
}

void DecodeRow(const KvRemapTensor& t, const KvRemapRow& row, float* x) {
  switch (t.code) {
    case KvRemapCode::kInt4:
      return DecodeRow<KvRemapCode::kInt4>(t, row, x);
    case KvRemapCode::kInt6:
      return DecodeRow<KvRemapCode::kInt6>(t, row, x);
    case KvRemapCode::kInt4Unit:
      return DecodeRow<KvRemapCode::kInt4Unit>(t, row, x);
    case KvRemapCode::kInt6Unit:
      return DecodeRow<KvRemapCode::kInt6Unit>(t, row, x);
    case KvRemapCode::kInt8:
      return DecodeRow<KvRemapCode::kInt8>(t, row, x);
    case KvRemapCode::kE4M3:
      return DecodeRow<KvRemapCode::kE4M3>(t, row, x);
    case KvRemapCode::kF16:
      return DecodeRow<KvRemapCode::kF16>(t, row, x);
    case KvRemapCode::kBF16:
      return DecodeRow<KvRemapCode::kBF16>(t, row, x);
  }
}

void TurnBack(float* x, int32_t dim, int32_t length) {
  if (length == 1) return;
  if (length < kRemapChunk) {
    RotateKv(x, dim, length);
  } else {
    RotateKvAvx2(x, dim, length);
  }
  const __m256 inverse = _mm256_set1_ps(1.0f / static_cast<float>(length));
  for (int32_t i = 0; i < dim; i += kRemapChunk) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
}

__m128i Rounded(__m256 x, bool bf16) {
  const float largest = bf16 ? kRemapLargestBF16 : kRemapLargestF16;
  x = _mm256_min_ps(_mm256_max_ps(Numbers(x), _mm256_set1_ps(-largest)), _mm256_set1_ps(largest));
  if (!bf16) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

}  // namespace

void KvRemapAvx2(const ExecContext& /*ctx*/, const KvRemapParams& params) {
  alignas(32) float x[kMaxRemapDim + kUnit] = {};
  ForEachRemapRow(params, [&](const KvRemapTensor& t, const KvRemapRow& row) {
    DecodeRow(t, row, x);
    TurnBack(x, t.dim, t.rotation);
    const int32_t whole = t.dim / kRemapChunk * kRemapChunk;
    for (int32_t i = 0; i < whole; i += kRemapChunk) {
      __m256 v = _mm256_loadu_ps(x + i);
      if (row.mean != nullptr) v = _mm256_add_ps(v, _mm256_loadu_ps(row.mean + i));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(row.out + i), Rounded(v, params.to_bf16));
    }
    if (whole == t.dim) return;
    for (int32_t i = whole; i < t.dim && row.mean != nullptr; ++i) x[i] += row.mean[i];
    alignas(16) uint16_t last[kRemapChunk];
    _mm_store_si128(reinterpret_cast<__m128i*>(last), Rounded(_mm256_load_ps(x + whole), params.to_bf16));
    std::memcpy(row.out + whole, last, static_cast<size_t>(t.dim - whole) * sizeof(uint16_t));
  });
}

}  // namespace cachalot
