// The inner loops of Attention, AVX2: scores of a few rows against a few tokens, the softmax of a row's
// chunk, and the weighted sum of values (attention_kernels.h). For attention_avx2.cc only.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/attention/attention_kernels.h"
#include "kernels/common/avx2.h"
#include "kernels/common/exp_avx2.h"

namespace cachalot {

// The four ReduceAdds at once.
static inline __m128 Reduce4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab =
      _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));  // a02 b02 a13 b13 | ...
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256 low = _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd)));
  const __m256 high = _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd)));
  const __m256 sum = _mm256_add_ps(low, high);
  return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}

// A value with several uses. Without this the compiler reads it from memory again for each of them, and loads
// become the bound (6 rows x 2 tokens: 54 instead of 87 GFLOP/s).
template <int kUses>
static inline __m256 InRegister(__m256 value) {
  if constexpr (kUses > 1) asm("" : "+x"(value));
  return value;
}

// scores[r * kScoreStride + t] = ReduceAdd(acc[r * kTokens + t]) * scale.
template <int kRows, int kTokens>
static inline void StoreScores(const __m256* acc, float scale, float* scores) {
  const __m128 factor = _mm_set1_ps(scale);
#pragma GCC unroll 8
  for (int i = 0; i < kRows * kTokens; i += 4) {
    constexpr int kLast = kRows * kTokens - 1;  // 5 rows x 2 tokens: the last two are reduced twice
    const __m128 four = _mm_mul_ps(
        Reduce4(acc[i], acc[i + 1], acc[std::min(i + 2, kLast - 1)], acc[std::min(i + 3, kLast)]), factor);
    float* out = scores + i / kTokens * kScoreStride + i % kTokens;
    if constexpr (kTokens >= 4) {
      _mm_storeu_ps(out, four);
    } else {
      _mm_storel_pi(reinterpret_cast<__m64*>(out), four);
      if (i + 2 <= kLast) _mm_storeh_pi(reinterpret_cast<__m64*>(out + kScoreStride), four);
    }
  }
}

// scores[r * kScoreStride + t] = (q[r] · k[t]) * scale for kRows rows and kTokens tokens. The operand of
// which there are fewer stays in registers while the other passes by: sums, operands and one passing value
// must fit 16 registers.
template <typename T, int kRows, int kTokens>
static inline void ScoreStrip(const float* const* q, const T* const* k, int dims, float scale,
                              float* scores) {
  static_assert(kRows * kTokens + std::min(kRows, kTokens) < 16);
  __m256 acc[kRows * kTokens];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kTokens; ++i) acc[i] = _mm256_setzero_ps();
  for (int d = 0; d < dims; d += 8) {
    if constexpr (kRows <= kTokens) {
      __m256 query[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) query[r] = InRegister<kTokens>(_mm256_loadu_ps(q[r] + d));
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256 key = InRegister<kRows>(LoadF32(k[t] + d));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          acc[r * kTokens + t] = _mm256_fmadd_ps(query[r], key, acc[r * kTokens + t]);
      }
    } else {
      __m256 key[kTokens];
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) key[t] = InRegister<kRows>(LoadF32(k[t] + d));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256 query = InRegister<kTokens>(_mm256_loadu_ps(q[r] + d));
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t)
          acc[r * kTokens + t] = _mm256_fmadd_ps(query, key[t], acc[r * kTokens + t]);
      }
    }
  }
  StoreScores<kRows, kTokens>(acc, scale, scores);
}

template <typename T>
static inline void Prefetch(const Ahead<T>& ahead, int begin, int end) {
  if (ahead.bytes == 0) return;
  for (int t = begin; t < end; ++t) {
    const char* p = reinterpret_cast<const char*>(ahead.tokens[t]);
    for (int64_t at = 0; at < ahead.bytes; at += 64) _mm_prefetch(p + at, _MM_HINT_T1);
  }
}

// Scores of kRows rows against tokens [begin, end), both multiples of 8.
template <typename T, int kRows, int kTokens>
static void ScoreRows(const float* const* q, const T* const* k, int dims, float scale, int begin, int end,
                      float* scores, const Ahead<T>& ahead) {
  for (int t = begin; t < end; t += kTokens) {
    Prefetch(ahead, t, t + kTokens);
    ScoreStrip<T, kRows, kTokens>(q, k + t, dims, scale, scores + t);
  }
}

// The shapes keep 8 to 12 sums in flight: an FMA takes 4 cycles and two start in each.
template <typename T>
static void ScoreGroup(int rows, const float* const* q, const T* const* k, int dims, float scale, int begin,
                       int end, float* scores, const Ahead<T>& ahead) {
  switch (rows) {
    case 1:
      return ScoreRows<T, 1, 8>(q, k, dims, scale, begin, end, scores, ahead);
    case 2:
      return ScoreRows<T, 2, 4>(q, k, dims, scale, begin, end, scores, ahead);
    case 3:
      return ScoreRows<T, 3, 4>(q, k, dims, scale, begin, end, scores, ahead);
    case 4:
      return ScoreRows<T, 4, 2>(q, k, dims, scale, begin, end, scores, ahead);
    case 5:
      return ScoreRows<T, 5, 2>(q, k, dims, scale, begin, end, scores, ahead);
    default:
      return ScoreRows<T, 6, 2>(q, k, dims, scale, begin, end, scores, ahead);
  }
}

static inline void SoftmaxChunk(float* scores, int begin, int end, float* maximum, float* sum) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const int first = begin & ~15, last = (end + 15) & ~15;
  for (int t = first; t < begin; ++t) scores[t] = kLowest;
  for (int t = end; t < last; ++t) scores[t] = kLowest;
  __m256 largest = _mm256_set1_ps(kLowest), others = largest;
  for (int t = first; t < last; t += 16) {
    largest = _mm256_max_ps(_mm256_loadu_ps(scores + t), largest);
    others = _mm256_max_ps(_mm256_loadu_ps(scores + t + 8), others);
  }
  *maximum = ReduceMax(_mm256_max_ps(largest, others));
  // Without any score above -infinity all numerators are 0, as they would be beside a larger score of another
  // chunk.
  const __m256 base = _mm256_set1_ps(*maximum == kLowest ? 0.0f : *maximum);
  __m256 even = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
  for (int t = first; t < last; t += 16) {
    const __m256 p = Exp2NonPositive(_mm256_sub_ps(_mm256_loadu_ps(scores + t), base));
    const __m256 q = Exp2NonPositive(_mm256_sub_ps(_mm256_loadu_ps(scores + t + 8), base));
    _mm256_storeu_ps(scores + t, p);
    _mm256_storeu_ps(scores + t + 8, q);
    even = _mm256_add_ps(even, p);
    odd = _mm256_add_ps(odd, q);
  }
  *sum = ReduceAdd(_mm256_add_ps(even, odd));
}

// out[r * out_stride + (0 .. 8 kVectors)] += sum over t in [begin, end) of p[r * kScoreStride + t] * v[t][at
// ..].
template <typename T, int kRows, int kVectors>
static inline void WeighStrip(const float* p, const T* const* v, int64_t at, int begin, int end, float* out,
                              int64_t out_stride) {
  __m256 acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) acc[r][i] = _mm256_loadu_ps(out + r * out_stride + 8 * i);
  }
  for (int t = begin; t < end; ++t) {
    const T* values = v[t] + at;
    if constexpr (kRows <= kVectors) {
      __m256 weight[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        weight[r] = InRegister<kVectors>(_mm256_broadcast_ss(p + r * kScoreStride + t));
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        const __m256 value = InRegister<kRows>(LoadF32(values + 8 * i));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r][i] = _mm256_fmadd_ps(weight[r], value, acc[r][i]);
      }
    } else {
      __m256 value[kVectors];
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) value[i] = InRegister<kRows>(LoadF32(values + 8 * i));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256 weight = InRegister<kVectors>(_mm256_broadcast_ss(p + r * kScoreStride + t));
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) acc[r][i] = _mm256_fmadd_ps(weight, value[i], acc[r][i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) _mm256_storeu_ps(out + r * out_stride + 8 * i, acc[r][i]);
  }
}

// The same over `dims` values (a multiple of 8), kVectors vectors at a time and the rest in halves of that.
template <typename T, int kRows, int kVectors>
static void WeighRows(const float* p, const T* const* v, int64_t at, int dims, int begin, int end, float* out,
                      int64_t out_stride) {
  int d = 0;
  for (; d + 8 * kVectors <= dims; d += 8 * kVectors) {
    WeighStrip<T, kRows, kVectors>(p, v, at + d, begin, end, out + d, out_stride);
  }
  if constexpr (kVectors > 1) {
    if (d < dims) WeighRows<T, kRows, kVectors / 2>(p, v, at + d, dims - d, begin, end, out + d, out_stride);
  }
}

template <typename T>
static void WeighGroup(int rows, const float* p, const T* const* v, int64_t at, int dims, int begin, int end,
                       float* out, int64_t out_stride) {
  switch (rows) {
    case 1:
      return WeighRows<T, 1, 8>(p, v, at, dims, begin, end, out, out_stride);
    case 2:
      return WeighRows<T, 2, 4>(p, v, at, dims, begin, end, out, out_stride);
    case 3:
      return WeighRows<T, 3, 4>(p, v, at, dims, begin, end, out, out_stride);
    case 4:
      return WeighRows<T, 4, 2>(p, v, at, dims, begin, end, out, out_stride);
    case 5:
      return WeighRows<T, 5, 2>(p, v, at, dims, begin, end, out, out_stride);
    default:
      return WeighRows<T, 6, 2>(p, v, at, dims, begin, end, out, out_stride);
  }
}

// Three rows times four tokens need the fewest loads; where a load also has to convert BF16 (two instructions
// against F16's one) it pays to share it among six. Measured for 72 rows: 4 % and 5 % each.
template <typename T>
inline constexpr ChunkKernels<T> kChunkKernelsAvx2 = {
    .score_rows = std::is_same_v<T, BF16Bits> ? kMaxGroupRows : 3,
    .scores = &ScoreGroup<T>,
    .softmax = &SoftmaxChunk,
    .weigh = &WeighGroup<T>};

}  // namespace cachalot
