// The inner loop of Attention over a quantised cache, AVX2: scores of a few rows against a few tokens whose key codes are
// integers. For attention_avx2.cc only.
//
// Signed bytes of the query meet the codes: maddubs multiplies unsigned ones, and the sums start at minus the bias times
// the query's sum, so no code is ever made a float. The sums are integers: where the codes come from and how many rows
// share them does not change a bit.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "kernels/attention/attention_kernels_avx2.h"
#include "kernels/common/kv_codes_avx2.h"

namespace cachalot {

// Rows of one kind of plane, for the tokens of a chunk.
struct CodeRows {
  const uint8_t* main[kChunkTokens];
  const uint8_t* high[kChunkTokens];
  const uint16_t* scales[kChunkTokens];
};

// What scores read of a query row.
struct CodeQuery {
  const int8_t* codes;    // [padded]
  const int32_t* start;   // [groups, 8]: minus the bias times the sums of the query, by the sums' lanes
  const float* exact;     // [exact_dim], with the score's scale
  float factor;           // of the integer sums
};

// Codes as the integer products take them: INT4's (u - 7.5) scale is (2 u - 15) scale/2.
template <KvCode kCode>
inline constexpr int kCodeBias = kCode == KvCode::kInt4 ? 15 : kCode == KvCode::kInt6 ? 32 : 0;
template <KvCode kCode>
inline constexpr float kCodeStep = kCode == KvCode::kInt4 ? 0.5f : 1.0f;

template <KvCode kCode, bool kStaged>
static inline __m256i LoadFactor(const uint8_t* main, const uint8_t* high) {
  if constexpr (kStaged) return _mm256_load_si256(reinterpret_cast<const __m256i*>(main));
  const __m256i codes = LoadKvCodes<kCode>(main, high);
  return kCode == KvCode::kInt4 ? _mm256_add_epi8(codes, codes) : codes;
}

// Eight sums of four products each. No pair of products overflows 16 bits: 2 · 63 · 127, 2 · 127 · 127.
template <KvCode kCode>
static inline __m256i Dot32(__m256i codes, __m256i query) {
  const __m256i pairs = kCode == KvCode::kInt8
                            ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(query, codes))
                            : _mm256_maddubs_epi16(codes, query);
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// scores[r * kScoreStride + t] of kRows rows against kTokens tokens from `at` on.
template <KvCode kCode, bool kStaged, int kRows, int kTokens>
static inline void CodeStrip(const CodeQuery* q, const CodeRows& rows, const KvCoding& coding, const uint16_t* const* exact,
                             int exact_dim, int at, float* scores) {
  constexpr int kMain = kStaged || kCode == KvCode::kInt8 ? 32 : 16, kHigh = kCode == KvCode::kInt6 ? 8 : 0;
  __m256 total[kRows * kTokens];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kTokens; ++i) total[i] = _mm256_setzero_ps();
  const int num_units = coding.num_units(), group_units = coding.group / kKvUnit;
  for (int first = 0, g = 0; first < num_units; first += group_units, ++g) {
    __m256i sum[kRows * kTokens];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m256i start = _mm256_load_si256(reinterpret_cast<const __m256i*>(q[r].start + 8 * g));
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) sum[r * kTokens + t] = start;
    }
    const int last = std::min(first + group_units, num_units);
    for (int u = first; u < last; ++u) {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256i codes = LoadFactor<kCode, kStaged>(rows.main[at + t] + u * kMain, rows.high[at + t] + u * kHigh);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m256i query = _mm256_load_si256(reinterpret_cast<const __m256i*>(q[r].codes + u * kKvUnit));
          sum[r * kTokens + t] = _mm256_add_epi32(sum[r * kTokens + t], Dot32<kCode>(codes, query));
        }
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m256 scale = _mm256_set1_ps(BF16ToF32(rows.scales[at + t][g]));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        __m256& out = total[r * kTokens + t];
        out = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r * kTokens + t]), scale, out);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m256 factor = _mm256_set1_ps(q[r].factor);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) total[r * kTokens + t] = _mm256_mul_ps(total[r * kTokens + t], factor);
  }
  for (int d = 0; d < exact_dim; d += 8) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m256 key = LoadF32(reinterpret_cast<const BF16Bits*>(exact[at + t] + d));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        total[r * kTokens + t] = _mm256_fmadd_ps(_mm256_load_ps(q[r].exact + d), key, total[r * kTokens + t]);
      }
    }
  }
  StoreScores<kRows, kTokens>(total, 1.0f, scores);
}

template <KvCode kCode, bool kStaged>
static void CodeGroup(int num_rows, const CodeQuery* q, const CodeRows& rows, const KvCoding& coding,
                      const uint16_t* const* exact, int exact_dim, int begin, int end, float* scores) {
  const auto strips = [&](auto num_rows_of, auto tokens) {
    constexpr int kRows = decltype(num_rows_of)::value, kTokens = decltype(tokens)::value;
    for (int t = begin; t < end; t += kTokens) {
      CodeStrip<kCode, kStaged, kRows, kTokens>(q, rows, coding, exact, exact_dim, t, scores + t);
    }
  };
  using std::integral_constant;
  switch (num_rows) {
    case 1:
      return strips(integral_constant<int, 1>(), integral_constant<int, 8>());
    case 2:
      return strips(integral_constant<int, 2>(), integral_constant<int, 4>());
    case 3:
      return strips(integral_constant<int, 3>(), integral_constant<int, 4>());
    case 4:
      return strips(integral_constant<int, 4>(), integral_constant<int, 2>());
    case 5:
      return strips(integral_constant<int, 5>(), integral_constant<int, 2>());
    default:
      return strips(integral_constant<int, 6>(), integral_constant<int, 2>());
  }
}

}  // namespace cachalot
