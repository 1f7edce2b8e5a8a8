// SwiGlu, AVX2. Bound: memory (12 bytes a value) when the rows lie outside the cache, else the exp and the
// division. A last part of fewer than eight values runs through the same vector code, so that a value never
// depends on its lane.
#include <immintrin.h>

#include "kernels/common/avx2.h"
#include "kernels/common/exp_avx2.h"
#include "kernels/common/parallel.h"
#include "kernels/swiglu/swiglu_variants.h"

namespace cachalot {
namespace {

__m256 SiluTimes(__m256 gate, __m256 up) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 negated = _mm256_xor_ps(gate, _mm256_set1_ps(-0.0f));
  return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(one, Exp(negated))), up);
}

// `dim` values of one row.
void RunPiece(const float* gate, const float* up, int64_t dim, float* y) {
  int64_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    _mm256_storeu_ps(y + i, SiluTimes(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  }
  if (i < dim) {
    const __m256i mask = FirstLanes(static_cast<int>(dim - i));
    _mm256_maskstore_ps(y + i, mask,
                        SiluTimes(_mm256_maskload_ps(gate + i, mask), _mm256_maskload_ps(up + i, mask)));
  }
}

}  // namespace

void SwiGluRowsAvx2(const SwiGluParams& params) {
  for (int64_t row = 0; row < params.m; ++row) {
    const int64_t from = row * params.x_stride;
    RunPiece(params.gate + from, params.up + from, params.dim, params.y + row * params.y_stride);
  }
}

void SwiGluAvx2(const ExecContext& ctx, const SwiGluParams& params) {
  // Ranges of whole rows when there are many, else of pieces of the rows.
  constexpr int64_t kPiece = 1024;
  const int64_t pieces = (params.dim + kPiece - 1) / kPiece;
  ParallelRanges(ctx, params.m * pieces, 0.7 * kPiece, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / pieces, from = item % pieces * kPiece;
      RunPiece(params.gate + row * params.x_stride + from, params.up + row * params.x_stride + from,
               std::min(kPiece, params.dim - from), params.y + row * params.y_stride + from);
    }
  });
}

}  // namespace cachalot
