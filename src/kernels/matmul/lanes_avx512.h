// The sixteen lanes that are a panel's rows, in one AVX-512 register (matmul/tile.h).
#pragma once

#include <immintrin.h>

#include "kernels/matmul/tile.h"

namespace cachalot {
namespace {

struct Avx512Lanes {
  using F32 = __m512;
  using Words = __m512i;  // 32 bits a lane
  using One = __m512;     // the same value in all lanes
  using Bytes = __m512i;  // four bytes of each row

  static F32 Zero() { return _mm512_setzero_ps(); }
  static F32 LoadF32(const void* p) { return _mm512_loadu_ps(p); }
  static void StoreF32(void* p, F32 v) { _mm512_storeu_ps(p, v); }
  static F32 LoadF16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  // Pairs (row j, row j + 8), as they lie, in both halves: the low ones shifted up, the high ones masked.
  static F32 LoadBF16Pairs(const void* p) {
    const __m512i pairs = _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    const __m512i high = _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    return _mm512_castsi512_ps(_mm512_mask_slli_epi32(high, 0x00ff, pairs, 16));
  }
  static One Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static F32 Fma(One x, F32 w, F32 sum) { return _mm512_fmadd_ps(x, w, sum); }
  static F32 Mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
  static F32 Negate(F32 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static F32 FromU8(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }
  static F32 FromI8(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }

  // As in lanes_avx2.h.
  static F32 Add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
  static F32 Div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
  static F32 Sqrt(F32 a) { return _mm512_sqrt_ps(a); }
  static F32 MulAdd(F32 a, F32 b, F32 sum) { return _mm512_fmadd_ps(a, b, sum); }
  static Words ZeroWords() { return _mm512_setzero_si512(); }
  static void StoreWords(void* p, Words v) { _mm512_storeu_si512(p, v); }
  static Words RoundPairs(F32 even, F32 odd) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_cvtps_epi32(even),
                                   _mm512_slli_epi32(_mm512_cvtps_epi32(odd), 16));
  }
  static F32 ToF32(Words v) { return _mm512_cvtepi32_ps(v); }
  static void AddProducts(Words w, const int16_t* x, Words* sum) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(w), "m"(*reinterpret_cast<const int16_t(*)[2]>(x)));
  }

  static Words LoadWords(const void* p) { return _mm512_loadu_si512(p); }
  template <int kCode>
  static F32 DecodeFp8(Words codes, F32 scale) {
    const __m512i top = kCode == 3 ? codes : _mm512_slli_epi32(codes, kCode == 3 ? 0 : 24 - 8 * kCode);
    const __m512i bits =
        _mm512_and_si512(_mm512_srai_epi32(top, 4), _mm512_set1_epi32(static_cast<int>(0x87f00000u)));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), scale);
  }
  static F32 Set1(float v) { return _mm512_set1_ps(v); }

  static Bytes LoadBytes(const std::byte* p) { return _mm512_loadu_si512(p); }
  static void StoreBytes(std::byte* p, Bytes v) { _mm512_storeu_si512(p, v); }
  static Bytes And(Bytes v, int bits) {
    return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(bits)));
  }
  static Bytes Or(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  // The compiler's own vectors: the intrinsics want a constant before loops are unrolled.
  static Bytes Left(Bytes v, int by) { return reinterpret_cast<Bytes>(reinterpret_cast<Halves>(v) << by); }
  static Bytes Right(Bytes v, int by) { return reinterpret_cast<Bytes>(reinterpret_cast<Halves>(v) >> by); }

  // 16 columns from `column` (a panel's first) of row i of y.
  static void StoreRow(const PanelTask& task, int64_t i, int64_t column, F32 value) {
    float* y = YRow(task, i) + column;
    const int64_t columns = task.num_columns - column;
    const __mmask16 mask = columns >= 16 ? 0xffff : static_cast<__mmask16>((1u << columns) - 1);
    if (task.bias != nullptr) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, task.bias + column));
    if (task.row_scale != nullptr) value = _mm512_mul_ps(value, _mm512_set1_ps(task.row_scale[i]));
    if (task.accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), value);
    _mm512_mask_storeu_ps(y, mask, value);
  }

 private:
  typedef uint16_t Halves __attribute__((vector_size(64)));
};

}  // namespace
}  // namespace cachalot
