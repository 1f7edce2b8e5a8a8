// The inner loops of Attention, AVX-512: the sums of attention_kernels_avx2.h, to the bit. A register holds
// the eight partial sums of two tokens side by side, four tokens apart, so that four of them reduce to eight
// scores in order.
//
// Bounds: FMAs on two ports, 16 lanes each; six rows x eight tokens are 24 sums, whose reduction costs a
// third of their FMAs at 64 dims. A key's or value's conversion is shared by six rows.
#include <immintrin.h>

#include <limits>

#include "kernels/attention/attention_kernels.h"
#include "kernels/common/kv_value.h"

namespace cachalot {
namespace {

// --- Loads of eight values of two tokens, and of sixteen of one. ---

inline __m512 LoadTwo(const float* a, const float* b) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
}
inline __m256i LoadTwo16(const void* a, const void* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(a))),
                                 _mm_loadu_si128(static_cast<const __m128i*>(b)), 1);
}
inline __m512 FromBF16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline __m512 LoadTwo(const F16Bits* a, const F16Bits* b) {
  return _mm512_cvtph_ps(LoadTwo16(a, b));
}
inline __m512 LoadTwo(const BF16Bits* a, const BF16Bits* b) {
  return FromBF16(LoadTwo16(a, b));
}
inline __m512 Load16(const float* p) {
  return _mm512_loadu_ps(p);
}
inline __m512 Load16(const F16Bits* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m512 Load16(const BF16Bits* p) {
  return FromBF16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// The eight ReduceAdds (common/avx2.h) of both halves: those of the low halves, then those of the high ones.
inline __m256 Reduce8(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 sum = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m512 sorted = _mm512_shuffle_f32x4(sum, sum, _MM_SHUFFLE(3, 1, 2, 0));
  return _mm256_add_ps(_mm512_castps512_ps256(sorted), _mm512_extractf32x8_ps(sorted, 1));
}

// kRows rows against the eight tokens at k.
template <typename T, int kRows>
[[gnu::always_inline]] inline void ScoreStrip(const float* const* q, const T* const* k, int dims, float scale,
                                              float* scores) {
  __m512 sum[kRows][4];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  for (int d = 0; d < dims; d += 8) {
    __m512 key[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) key[t] = LoadTwo(k[t] + d, k[t + 4] + d);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 query = _mm512_broadcast_f32x8(_mm256_loadu_ps(q[r] + d));
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) sum[r][t] = _mm512_fmadd_ps(query, key[t], sum[r][t]);
    }
  }
  const __m256 factor = _mm256_set1_ps(scale);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(scores + r * kScoreStride,
                     _mm256_mul_ps(Reduce8(sum[r][0], sum[r][1], sum[r][2], sum[r][3]), factor));
  }
}

// `rows`: 1 to kRows.
template <typename T, int kRows = kMaxGroupRows>
void Scores(int rows, const float* const* q, const T* const* k, int dims, float scale, int begin, int end,
            float* scores, const Ahead<T>& ahead) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return Scores<T, kRows - 1>(rows, q, k, dims, scale, begin, end, scores, ahead);
  }
  for (int t = begin; t < end; t += 8) {
    for (int i = t; ahead.bytes > 0 && i < t + 8; ++i) {
      const char* p = reinterpret_cast<const char*>(ahead.tokens[i]);
      for (int64_t at = 0; at < ahead.bytes; at += 64) _mm_prefetch(p + at, _MM_HINT_T1);
    }
    ScoreStrip<T, kRows>(q, k + t, dims, scale, scores + t);
  }
}

// --- Softmax. ---

// As in common/exp_avx2.h.
inline __m512 Exp2NonPositive(__m512 x) {
  const __m512 lowest = _mm512_set1_ps(-126.0f), shift = _mm512_set1_ps(0x1.8p23f);
  const __m512 bounded = _mm512_max_ps(lowest, x);  // a NaN in the second operand stays
  const __m512 shifted = _mm512_add_ps(bounded, shift);
  const __m512 f = _mm512_sub_ps(bounded, _mm512_sub_ps(shifted, shift));
  __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(0x1.41fb38p-13f), _mm512_set1_ps(0x1.5f3f3p-10f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2d5p-7f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6aee6p-5f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbdcp-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e43p-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  const __m512 value = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), value);
}

inline __m256 Half(__m512 v, int half) {
  return half == 0 ? _mm512_castps512_ps256(v) : _mm512_extractf32x8_ps(v, 1);
}

void Softmax(float* scores, int begin, int end, float* maximum, float* sum) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const int first = begin & ~15, last = (end + 15) & ~15;
  for (int t = first; t < begin; ++t) scores[t] = kLowest;
  for (int t = end; t < last; ++t) scores[t] = kLowest;
  __m512 largest = _mm512_set1_ps(kLowest);
  for (int t = first; t < last; t += 16) largest = _mm512_max_ps(_mm512_loadu_ps(scores + t), largest);
  const __m256 eight = _mm256_max_ps(Half(largest, 0), Half(largest, 1));
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  *maximum = _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
  // Without any score above -infinity all numerators are 0, as they would be beside a larger score of another
  // chunk.
  const __m512 base = _mm512_set1_ps(*maximum == kLowest ? 0.0f : *maximum);
  __m512 parts = _mm512_setzero_ps();
  for (int t = first; t < last; t += 16) {
    const __m512 p = Exp2NonPositive(_mm512_sub_ps(_mm512_loadu_ps(scores + t), base));
    _mm512_storeu_ps(scores + t, p);
    parts = _mm512_add_ps(parts, p);
  }
  // ReduceAdd of the sum of both halves.
  const __m256 v = _mm256_add_ps(Half(parts, 0), Half(parts, 1));
  const __m256 pairs = _mm256_add_ps(v, _mm256_permute_ps(v, _MM_SHUFFLE(1, 0, 3, 2)));
  const __m256 fours = _mm256_add_ps(pairs, _mm256_permute_ps(pairs, _MM_SHUFFLE(2, 3, 0, 1)));
  *sum = _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}

// --- The weighted sum of values. ---

template <typename T, int kRows, int kVectors>
[[gnu::always_inline]] inline void WeighStrip(const float* p, const T* const* v, int64_t at, int begin,
                                              int end, float* out, int64_t out_stride) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) sum[r][i] = _mm512_loadu_ps(out + r * out_stride + 16 * i);
  }
  for (int t = begin; t < end; ++t) {
    const T* values = v[t] + at;
    __m512 value[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) value[i] = Load16(values + 16 * i);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 weight = _mm512_set1_ps(p[r * kScoreStride + t]);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) sum[r][i] = _mm512_fmadd_ps(weight, value[i], sum[r][i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) _mm512_storeu_ps(out + r * out_stride + 16 * i, sum[r][i]);
  }
}

template <typename T, int kRows = kMaxGroupRows>
void Weigh(int rows, const float* p, const T* const* v, int64_t at, int dims, int begin, int end, float* out,
           int64_t out_stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return Weigh<T, kRows - 1>(rows, p, v, at, dims, begin, end, out, out_stride);
  }
  int d = 0;
  for (; d + 64 <= dims; d += 64) WeighStrip<T, kRows, 4>(p, v, at + d, begin, end, out + d, out_stride);
  for (; d < dims; d += 16) WeighStrip<T, kRows, 1>(p, v, at + d, begin, end, out + d, out_stride);
}

template <typename T>
constexpr ChunkKernels<T> kKernels = {
    .score_rows = kMaxGroupRows, .scores = &Scores<T>, .softmax = &Softmax, .weigh = &Weigh<T>};

}  // namespace

const ChunkKernels<float>& ChunkKernelsAvx512(float) {
  return kKernels<float>;
}
const ChunkKernels<F16Bits>& ChunkKernelsAvx512(F16Bits) {
  return kKernels<F16Bits>;
}
const ChunkKernels<BF16Bits>& ChunkKernelsAvx512(BF16Bits) {
  return kKernels<BF16Bits>;
}

}  // namespace cachalot
