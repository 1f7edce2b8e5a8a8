// The definition of RmsNorm. The sum is in double: it stands for the exact one.
#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/rms_norm/rms_norm_variants.h"

namespace cachalot {

void RmsNormRef(const ExecContext& ctx, const RmsNormParams& params) {
  const int64_t rows = params.num_tokens * params.num_heads;
  ParallelRanges(ctx, rows, 2.0 * static_cast<double>(params.dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = row / params.num_heads, head = row % params.num_heads;
      const float* x = params.x + token * params.token_stride_x + head * params.head_stride_x;
      float* y = params.y + token * params.token_stride_y + head * params.head_stride_y;
      double sum = 0;
      for (int64_t i = 0; i < params.dim; ++i) sum += double{x[i]} * x[i];
      const float inverse =
          static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(params.dim) + params.eps));
      for (int64_t i = 0; i < params.dim; ++i) y[i] = x[i] * inverse * params.weight[i];
    }
  });
}

}  // namespace cachalot
