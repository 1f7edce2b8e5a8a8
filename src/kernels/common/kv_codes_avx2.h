// Coding and decoding of a quantised KV cache's vectors, AVX2: the bits of quant/kv_code.h. For *_avx2.cc files only.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "kernels/common/avx2.h"
#include "quant/kv_format.h"
#include "tensor/float_convert.h"

namespace cachalot {

static inline __m256 KvFinite8(__m256 x) {
  const __m256 number = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
  return _mm256_max_ps(_mm256_min_ps(number, _mm256_set1_ps(kKvLargest)), _mm256_set1_ps(-kKvLargest));
}

// x [dim], a multiple of 8; length at least 8, or 1.
static inline void RotateKvAvx2(float* x, int32_t dim, int32_t length) {
  if (length == 1) return;
  const __m256 sign1 = _mm256_castsi256_ps(_mm256_set1_epi64x(static_cast<int64_t>(0x8000000000000000u)));
  const __m256 sign2 = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
  const __m256 sign4 = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
  for (int32_t i = 0; i < dim; i += 8) {
    __m256 v = _mm256_loadu_ps(x + i);
    v = _mm256_add_ps(_mm256_permute_ps(v, _MM_SHUFFLE(2, 3, 0, 1)), _mm256_xor_ps(v, sign1));
    v = _mm256_add_ps(_mm256_permute_ps(v, _MM_SHUFFLE(1, 0, 3, 2)), _mm256_xor_ps(v, sign2));
    v = _mm256_add_ps(_mm256_permute2f128_ps(v, v, 1), _mm256_xor_ps(v, sign4));
    _mm256_storeu_ps(x + i, v);
  }
  for (int32_t half = 8; half < length; half *= 2) {
    for (int32_t i = 0; i < dim; i += 2 * half) {
      for (int32_t j = i; j < i + half; j += 8) {
        const __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + half);
        _mm256_storeu_ps(x + j, _mm256_add_ps(a, b));
        _mm256_storeu_ps(x + j + half, _mm256_sub_ps(a, b));
      }
    }
  }
}

// The low bytes of 32 integers, in order.
static inline __m256i PackBytes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i low = _mm256_set1_epi32(255);
  a = _mm256_and_si256(a, low), b = _mm256_and_si256(b, low), c = _mm256_and_si256(c, low), d = _mm256_and_si256(d, low);
  const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// F32ToFP8E4M3 of eight finite values, in 32-bit lanes.
static inline __m256i E4M3Of(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(magnitude, odd), _mm256_set1_epi32(0x7ffff - (120 << 23)));
  const __m256 shift = _mm256_set1_ps(0x1p14f);
  const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), shift)),
                                         _mm256_castps_si256(shift));
  __m256i code = _mm256_srli_epi32(rounded, 20);
  code = _mm256_blendv_epi8(code, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), magnitude));
  code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7e), _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x43dfffff)));
  return _mm256_or_si256(code, sign);
}

static inline __m256i KvCodes8(KvCode code, const float* x, __m256 inverse) {
  const __m256 scaled = _mm256_mul_ps(KvFinite8(_mm256_loadu_ps(x)), inverse);
  switch (code) {
    case KvCode::kInt4: {
      const __m256i u = _mm256_cvttps_epi32(_mm256_floor_ps(_mm256_add_ps(scaled, _mm256_set1_ps(8.0f))));
      return _mm256_min_epi32(_mm256_max_epi32(u, _mm256_setzero_si256()), _mm256_set1_epi32(15));
    }
    case KvCode::kInt6: {
      const __m256i i = _mm256_cvtps_epi32(scaled);
      const __m256i clamped = _mm256_min_epi32(_mm256_max_epi32(i, _mm256_set1_epi32(-32)), _mm256_set1_epi32(31));
      return _mm256_add_epi32(clamped, _mm256_set1_epi32(32));
    }
    case KvCode::kInt8:
      return _mm256_min_epi32(_mm256_max_epi32(_mm256_cvtps_epi32(scaled), _mm256_set1_epi32(-127)), _mm256_set1_epi32(127));
    default:
      return E4M3Of(scaled);
  }
}

// x [coding.padded()], zeros behind coding.dim.
static inline void EncodeKvVectorAvx2(const KvCoding& coding, const float* x, uint8_t* main, uint8_t* high, uint16_t* scales) {
  const float limit = KvCodecOf(coding.code).limit;
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m128i low_half = _mm_set1_epi8(15);
  for (int32_t begin = 0, g = 0; begin < coding.padded(); begin += coding.group, ++g) {
    const int32_t end = std::min(begin + coding.group, coding.padded());
    __m256 largest = _mm256_setzero_ps();
    for (int32_t i = begin; i < end; i += 8) {
      largest = _mm256_max_ps(largest, _mm256_and_ps(KvFinite8(_mm256_loadu_ps(x + i)), magnitude));
    }
    scales[g] = KvScaleBits(ReduceMax(largest), limit);
    const __m256 inverse = _mm256_set1_ps(scales[g] == 0 ? 0.0f : 1.0f / BF16ToF32(scales[g]));
    if (coding.code == KvCode::kBF16) {
      for (int32_t i = begin; i < end; i += 8) {
        StoreF32(reinterpret_cast<BF16Bits*>(main) + i, _mm256_mul_ps(KvFinite8(_mm256_loadu_ps(x + i)), inverse));
      }
      continue;
    }
    for (int32_t i = begin; i < end; i += kKvUnit) {
      const __m256i codes = PackBytes(KvCodes8(coding.code, x + i, inverse), KvCodes8(coding.code, x + i + 8, inverse),
                                      KvCodes8(coding.code, x + i + 16, inverse), KvCodes8(coding.code, x + i + 24, inverse));
      const int32_t unit = i / kKvUnit;
      if (coding.code == KvCode::kInt8 || coding.code == KvCode::kE4M3) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(main + int64_t{unit} * 32), codes);
        continue;
      }
      const __m128i first = _mm_and_si128(_mm256_castsi256_si128(codes), low_half);
      const __m128i second = _mm_and_si128(_mm256_extracti128_si256(codes, 1), low_half);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(main + int64_t{unit} * 16), _mm_or_si128(first, _mm_slli_epi16(second, 4)));
      if (coding.code != KvCode::kInt6) continue;
      const __m256i top = _mm256_and_si256(_mm256_srli_epi16(codes, 4), _mm256_set1_epi8(3));
      const __m256i placed = _mm256_sllv_epi64(top, _mm256_setr_epi64x(0, 2, 4, 6));
      const __m128i two = _mm_or_si128(_mm256_castsi256_si128(placed), _mm256_extracti128_si256(placed, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(high + int64_t{unit} * 8), _mm_or_si128(two, _mm_unpackhi_epi64(two, two)));
    }
  }
}

// A unit's codes as bytes, in the order of its values: unsigned for INT4 and INT6, else as stored.
template <KvCode kCode>
static inline __m256i LoadKvCodes(const uint8_t* main, const uint8_t* high) {
  if constexpr (kCode == KvCode::kInt8 || kCode == KvCode::kE4M3) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(main));
  } else {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(main));
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(halves), _mm_srli_epi16(halves, 4), 1);
    const __m256i low = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if constexpr (kCode == KvCode::kInt4) return low;
    int64_t packed;
    __builtin_memcpy(&packed, high, sizeof(packed));
    const __m256i spread = _mm256_srlv_epi64(_mm256_set1_epi64x(packed), _mm256_setr_epi64x(0, 2, 4, 6));
    return _mm256_or_si256(low, _mm256_slli_epi16(_mm256_and_si256(spread, _mm256_set1_epi8(3)), 4));
  }
}

// The values of a unit's codes, as KvCodec's decode gives them. E4M3 goes through F16: its bits in F16's places are 2^-8
// of the value, subnormal ones included.
template <KvCode kCode>
static inline void DecodeKvUnit(const uint8_t* main, const uint8_t* high, float scale, float* x) {
  if constexpr (kCode == KvCode::kBF16) {
    const __m256 factor = _mm256_set1_ps(scale);
    for (int i = 0; i < kKvUnit; i += 8) {
      _mm256_storeu_ps(x + i, _mm256_mul_ps(LoadF32(reinterpret_cast<const BF16Bits*>(main) + i), factor));
    }
    return;
  }
  const __m256i codes = LoadKvCodes<kCode>(main, high);
  if constexpr (kCode == KvCode::kE4M3) {
    const __m256 factor = _mm256_set1_ps(scale * 256.0f);
    const __m256i keep = _mm256_set1_epi16(static_cast<int16_t>(0xbfff));
    const auto halves = [&](__m128i bytes) {  // sign, four exponent bits, three of the mantissa: into F16's places
      const __m256i wide = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
      return _mm256_and_si256(_mm256_srai_epi16(wide, 1), keep);
    };
    const __m256i first = halves(_mm256_castsi256_si128(codes)), second = halves(_mm256_extracti128_si256(codes, 1));
    const auto store = [&](__m128i half, int at) { _mm256_storeu_ps(x + at, _mm256_mul_ps(_mm256_cvtph_ps(half), factor)); };
    store(_mm256_castsi256_si128(first), 0);
    store(_mm256_extracti128_si256(first, 1), 8);
    store(_mm256_castsi256_si128(second), 16);
    store(_mm256_extracti128_si256(second, 1), 24);
  } else {
    const __m256 factor = _mm256_set1_ps(scale);
    constexpr float kBias = kCode == KvCode::kInt4 ? 7.5f : kCode == KvCode::kInt6 ? 32.0f : 0.0f;
    const __m256 bias = _mm256_set1_ps(kBias);
    const auto store = [&](__m128i bytes, int at) {
      const __m256i wide = kCode == KvCode::kInt8 ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
      _mm256_storeu_ps(x + at, _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(wide), bias), factor));
    };
    const __m128i first = _mm256_castsi256_si128(codes), second = _mm256_extracti128_si256(codes, 1);
    store(first, 0);
    store(_mm_srli_si128(first, 8), 8);
    store(second, 16);
    store(_mm_srli_si128(second, 8), 24);
  }
}

// Calls fn with the code as a constant.
template <typename Fn>
static inline void WithKvCode(KvCode code, Fn&& fn) {
  switch (code) {
    case KvCode::kInt4:
      return fn(std::integral_constant<KvCode, KvCode::kInt4>());
    case KvCode::kInt6:
      return fn(std::integral_constant<KvCode, KvCode::kInt6>());
    case KvCode::kInt8:
      return fn(std::integral_constant<KvCode, KvCode::kInt8>());
    case KvCode::kBF16:
      return fn(std::integral_constant<KvCode, KvCode::kBF16>());
    default:
      return fn(std::integral_constant<KvCode, KvCode::kE4M3>());
  }
}

}  // namespace cachalot
