// The definition of SwiGlu.
#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/swiglu/swiglu_variants.h"

namespace cachalot {

void SwiGluRef(const ExecContext& ctx, const SwiGluParams& params) {
  ParallelRanges(ctx, params.m, 10.0 * static_cast<double>(params.dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = params.gate + row * params.x_stride;
      const float* up = params.up + row * params.x_stride;
      float* y = params.y + row * params.y_stride;
      for (int64_t i = 0; i < params.dim; ++i) y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    }
  });
}

}  // namespace cachalot
