// The sixteen lanes that are a panel's rows, in two AVX2 registers each (matmul/tile.h).
#pragma once

#include <immintrin.h>

#include "kernels/matmul/tile.h"

namespace cachalot {
namespace {

struct Avx2Lanes {
  struct F32 {
    __m256 half[2];
    __m256& operator[](int i) { return half[i]; }
    __m256 operator[](int i) const { return half[i]; }
  };
  struct Words {  // 32 bits a lane
    __m256i half[2];
  };
  using One = __m256;     // the same value in all lanes
  using Bytes = __m256i;  // four bytes of each of eight rows

  static F32 Zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
  static F32 LoadF32(const void* p) {
    const float* from = static_cast<const float*>(p);
    return {{_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}};
  }
  static void StoreF32(void* p, F32 v) {
    _mm256_storeu_ps(static_cast<float*>(p), v.half[0]);
    _mm256_storeu_ps(static_cast<float*>(p) + 8, v.half[1]);
  }
  static F32 LoadF16(const void* p) {
    const __m128i* from = static_cast<const __m128i*>(p);
    return {{_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))}};
  }
  // Pairs (row j, row j + 8): one load, a shift and a mask.
  static F32 LoadBF16Pairs(const void* p) {
    const __m256i pairs = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    const __m256i high = _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(high)}};
  }
  static One Broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static F32 Fma(One x, F32 w, F32 sum) {
    return {{_mm256_fmadd_ps(x, w.half[0], sum.half[0]), _mm256_fmadd_ps(x, w.half[1], sum.half[1])}};
  }
  static F32 Mul(F32 a, F32 b) {
    return {{_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])}};
  }
  static F32 Negate(F32 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {{_mm256_xor_ps(a.half[0], sign), _mm256_xor_ps(a.half[1], sign)}};
  }
  static F32 FromU8(__m128i bytes) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))}};
  }
  static F32 FromU8(const uint8_t* p) {
    const __m128i* from = reinterpret_cast<const __m128i*>(p);
    const __m128i* behind = reinterpret_cast<const __m128i*>(p + 8);
    return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from))),
             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(behind)))}};
  }
  static F32 FromI8(__m128i bytes) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))}};
  }

  // Element by element (int16_tile.h).
  static F32 Add(F32 a, F32 b) {
    return {{_mm256_add_ps(a.half[0], b.half[0]), _mm256_add_ps(a.half[1], b.half[1])}};
  }
  static F32 Div(F32 a, F32 b) {
    return {{_mm256_div_ps(a.half[0], b.half[0]), _mm256_div_ps(a.half[1], b.half[1])}};
  }
  static F32 Sqrt(F32 a) { return {{_mm256_sqrt_ps(a.half[0]), _mm256_sqrt_ps(a.half[1])}}; }
  static F32 MulAdd(F32 a, F32 b, F32 sum) {
    return {{_mm256_fmadd_ps(a.half[0], b.half[0], sum.half[0]),
             _mm256_fmadd_ps(a.half[1], b.half[1], sum.half[1])}};
  }

  // Two 16-bit integers a lane: of k and k + 1.
  static Words ZeroWords() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
  static void StoreWords(void* p, Words v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), v.half[0]);
    _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, v.half[1]);
  }
  static Words RoundPairs(F32 even, F32 odd) {
    return {{RoundPairs(even.half[0], odd.half[0]), RoundPairs(even.half[1], odd.half[1])}};
  }
  static F32 ToF32(Words v) { return {{_mm256_cvtepi32_ps(v.half[0]), _mm256_cvtepi32_ps(v.half[1])}}; }
  // sum += w times the pair at x. The additions are written out: left to itself, GCC adds into another register, and
  // moves or spills it at each step.
  static void AddProducts(Words w, const int16_t* x, Words* sum) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    const __m256i both = _mm256_set1_epi32(pair);
    const __m256i low = _mm256_madd_epi16(both, w.half[0]), high = _mm256_madd_epi16(both, w.half[1]);
    asm("vpaddd %1, %0, %0" : "+x"(sum->half[0]) : "x"(low));
    asm("vpaddd %1, %0, %0" : "+x"(sum->half[1]) : "x"(high));
  }

  // Four FP8 codes of a row in each word. A code's exponent and mantissa, moved to where F32 has its own,
  // read 2^-120 of the value (subnormals included), which the scales make good: they come multiplied by
  // 2^120.
  static Words LoadWords(const void* p) {
    const __m256i* from = static_cast<const __m256i*>(p);
    return {{_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)}};
  }
  template <int kCode>
  static F32 DecodeFp8(Words codes, F32 scale) {
    return {{DecodeFp8<kCode>(codes.half[0], scale.half[0]), DecodeFp8<kCode>(codes.half[1], scale.half[1])}};
  }
  static F32 Set1(float v) { return {{_mm256_set1_ps(v), _mm256_set1_ps(v)}}; }

  static Bytes LoadBytes(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void StoreBytes(std::byte* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static Bytes And(Bytes v, int bits) {
    return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(bits)));
  }
  static Bytes Or(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
  // Of 16-bit pieces; what comes in from the neighbour is masked away by the caller.
  static Bytes Left(Bytes v, int by) { return _mm256_slli_epi16(v, by); }
  static Bytes Right(Bytes v, int by) { return _mm256_srli_epi16(v, by); }

  // 16 columns from `column` (a panel's first) of row i of y.
  static void StoreRow(const PanelTask& task, int64_t i, int64_t column, F32 value) {
    StoreLanes(task, i, column, value.half[0]);
    StoreLanes(task, i, column + 8, value.half[1]);
  }

 private:
  static __m256i RoundPairs(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_cvtps_epi32(even), _mm256_slli_epi32(_mm256_cvtps_epi32(odd), 16), 0xaa);
  }

  // All ones in the lanes whose column is below `count`; lane 0 is column `first`.
  static __m256i ColumnMask(int64_t first, int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count - first)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static void StoreLanes(const PanelTask& task, int64_t i, int64_t column, __m256 value) {
    float* y = YRow(task, i) + column;
    if (column + 8 <= task.num_columns) {
      if (task.bias != nullptr) value = _mm256_add_ps(value, _mm256_loadu_ps(task.bias + column));
      if (task.row_scale != nullptr) value = _mm256_mul_ps(value, _mm256_set1_ps(task.row_scale[i]));
      if (task.accumulate) value = _mm256_add_ps(_mm256_loadu_ps(y), value);
      _mm256_storeu_ps(y, value);
    } else if (column < task.num_columns) {
      const __m256i mask = ColumnMask(column, task.num_columns);
      if (task.bias != nullptr) value = _mm256_add_ps(value, _mm256_maskload_ps(task.bias + column, mask));
      if (task.row_scale != nullptr) value = _mm256_mul_ps(value, _mm256_set1_ps(task.row_scale[i]));
      if (task.accumulate) value = _mm256_add_ps(_mm256_maskload_ps(y, mask), value);
      _mm256_maskstore_ps(y, mask, value);
    }
  }

  template <int kCode>
  static __m256 DecodeFp8(__m256i codes, __m256 scale) {
    // The code at the top of the lane, then its sign spread over four bits; the mask leaves one of them.
    const __m256i top = kCode == 3 ? codes : _mm256_slli_epi32(codes, 24 - 8 * kCode);
    const __m256i bits =
        _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32(static_cast<int>(0x87f00000u)));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), scale);
  }
};

}  // namespace
}  // namespace cachalot
