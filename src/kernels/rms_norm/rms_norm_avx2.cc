// RmsNorm, AVX2. Bound: memory (12 bytes a value, 4 flops). The order of the sum of squares is fixed by dim
// alone: four vectors of partial sums over blocks of 32 values, then whole vectors, then the last values
// under a mask.
#include <immintrin.h>

#include <cmath>

#include "kernels/common/avx2.h"
#include "kernels/common/parallel.h"
#include "kernels/rms_norm/rms_norm_variants.h"

namespace cachalot {
namespace {

float SumOfSquares(const float* x, int64_t dim) {
  __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  int64_t i = 0;
  for (; i + 32 <= dim; i += 32) {
    for (int j = 0; j < 4; ++j) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * j);
      sum[j] = _mm256_fmadd_ps(v, v, sum[j]);
    }
  }
  for (; i + 8 <= dim; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    sum[0] = _mm256_fmadd_ps(v, v, sum[0]);
  }
  if (i < dim) {
    const __m256 v = _mm256_maskload_ps(x + i, FirstLanes(static_cast<int>(dim - i)));
    sum[0] = _mm256_fmadd_ps(v, v, sum[0]);
  }
  return ReduceAdd(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
}

void NormRow(const float* x, const float* weight, float* y, int64_t dim, float eps) {
  const float inverse = 1.0f / std::sqrt(SumOfSquares(x, dim) / static_cast<float>(dim) + eps);
  const __m256 factor = _mm256_set1_ps(inverse);
  int64_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
    _mm256_storeu_ps(y + i, _mm256_mul_ps(scaled, _mm256_loadu_ps(weight + i)));
  }
  for (; i < dim; ++i) y[i] = x[i] * inverse * weight[i];
}

}  // namespace

void RmsNormAvx2(const ExecContext& ctx, const RmsNormParams& params) {
  const int64_t rows = params.num_tokens * params.num_heads;
  ParallelRanges(ctx, rows, 0.15 * static_cast<double>(params.dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = row / params.num_heads, head = row % params.num_heads;
      NormRow(params.x + token * params.token_stride_x + head * params.head_stride_x, params.weight,
              params.y + token * params.token_stride_y + head * params.head_stride_y, params.dim, params.eps);
    }
  });
}

}  // namespace cachalot
