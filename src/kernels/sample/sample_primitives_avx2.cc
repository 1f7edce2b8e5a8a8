// The passes over a row, AVX2. Bound: the row's bytes from L2 or L3 (a vocabulary of 150,000 is 600 KB).
#include <immintrin.h>

#include <algorithm>
#include <numbers>

#include "kernels/common/avx2.h"
#include "kernels/common/exp_avx2.h"
#include "kernels/sample/sample_primitives.h"

namespace cachalot {
namespace {

// Up to eight logits; the lanes beyond `left` are -infinity.
__m256 LoadLogits(const float* p, int32_t left) {
  if (left >= 8) return _mm256_loadu_ps(p);
  const __m256i mask = FirstLanes(left);
  return _mm256_blendv_ps(_mm256_set1_ps(kLowestLogit), _mm256_maskload_ps(p, mask),
                          _mm256_castsi256_ps(mask));
}

int32_t FindAbove(const float* logits, int32_t begin, int32_t count, float threshold) {
  const __m256 limit = _mm256_set1_ps(threshold);
  int32_t i = begin;
  for (; i + 32 <= count; i += 32) {
    const __m256 a = _mm256_cmp_ps(_mm256_loadu_ps(logits + i), limit, _CMP_GT_OQ);
    const __m256 b = _mm256_cmp_ps(_mm256_loadu_ps(logits + i + 8), limit, _CMP_GT_OQ);
    const __m256 c = _mm256_cmp_ps(_mm256_loadu_ps(logits + i + 16), limit, _CMP_GT_OQ);
    const __m256 d = _mm256_cmp_ps(_mm256_loadu_ps(logits + i + 24), limit, _CMP_GT_OQ);
    if (!_mm256_testz_ps(_mm256_or_ps(_mm256_or_ps(a, b), _mm256_or_ps(c, d)),
                         _mm256_castsi256_ps(_mm256_set1_epi32(-1)))) {
      break;
    }
  }
  for (; i < count; i += 8) {
    const int above = _mm256_movemask_ps(_mm256_cmp_ps(LoadLogits(logits + i, count - i), limit, _CMP_GT_OQ));
    if (above != 0) return i + __builtin_ctz(static_cast<unsigned>(above));
  }
  return count;
}

// The largest value first, then its first place: two quick passes instead of one that carries indices along.
TokenLogit FindLargest(const float* logits, int32_t count) {
  __m256 largest[4];
  for (__m256& v : largest) v = _mm256_set1_ps(kLowestLogit);
  int32_t i = 0;
  // max returns its second operand when the first is NaN.
  for (; i + 32 <= count; i += 32) {
    for (int j = 0; j < 4; ++j) largest[j] = _mm256_max_ps(_mm256_loadu_ps(logits + i + 8 * j), largest[j]);
  }
  for (; i < count; i += 8) largest[0] = _mm256_max_ps(LoadLogits(logits + i, count - i), largest[0]);
  const float value =
      ReduceMax(_mm256_max_ps(_mm256_max_ps(largest[0], largest[1]), _mm256_max_ps(largest[2], largest[3])));
  if (value == kLowestLogit) return {kLowestLogit, 0};
  const __m256 wanted = _mm256_set1_ps(value);
  for (i = 0;; i += 8) {
    const int equal =
        _mm256_movemask_ps(_mm256_cmp_ps(LoadLogits(logits + i, count - i), wanted, _CMP_EQ_OQ));
    if (equal != 0) return {value, i + __builtin_ctz(static_cast<unsigned>(equal))};
  }
}

__m256 Rate(float inverse_temperature) {
  return _mm256_set1_ps(
      static_cast<float>(std::min(inverse_temperature * std::numbers::log2e, double{kLargestRate})));
}

// rate: log2(e) / temperature.
__m256 Weight(__m256 logit, __m256 largest, __m256 rate) {
  const __m256 x = _mm256_mul_ps(_mm256_sub_ps(logit, largest), rate);
  const __m256 valid = _mm256_and_ps(Exp2NonPositive(x), _mm256_cmp_ps(logit, logit, _CMP_ORD_Q));
  return _mm256_blendv_ps(valid, _mm256_set1_ps(1.0f), _mm256_cmp_ps(logit, largest, _CMP_EQ_OQ));
}

double SumWeights(const float* logits, int32_t count, float largest, float inverse_temperature) {
  const __m256 top = _mm256_set1_ps(largest), rate = Rate(inverse_temperature);
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  for (int32_t i = 0; i < count; i += 8) {
    __m256 weight = Weight(LoadLogits(logits + i, count - i), top, rate);
    if (count - i < 8) weight = _mm256_and_ps(weight, _mm256_castsi256_ps(FirstLanes(count - i)));
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(weight)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(weight, 1)));
  }
  alignas(32) double lanes[4];
  _mm256_store_pd(lanes, _mm256_add_pd(low, high));
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

void Weights(const float* logits, int32_t count, float largest, float inverse_temperature, float* out) {
  const __m256 top = _mm256_set1_ps(largest), rate = Rate(inverse_temperature);
  int32_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(out + i, Weight(_mm256_loadu_ps(logits + i), top, rate));
  if (i < count) {
    _mm256_maskstore_ps(out + i, FirstLanes(count - i), Weight(LoadLogits(logits + i, count - i), top, rate));
  }
}

}  // namespace

const SamplePrimitives kSamplePrimitivesAvx2 = {&FindLargest, &SumWeights, &Weights, &FindAbove};

}  // namespace cachalot
