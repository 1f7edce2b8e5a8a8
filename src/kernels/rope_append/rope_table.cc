// RopeTable: one implementation for every instruction set; it runs once a step, not once a layer.
#include <cmath>

#include "kernels/common/cuda_step.h"
#include "kernels/common/parallel.h"
#include "kernels/rope_append/rope_append.h"

namespace cachalot {

void RopeTable(const ExecContext& ctx, const RopeTableParams& params) {
  if (OnCuda(ctx)) {
    RunCuda(ctx, &CudaBackend::rope_table, params);
    return;
  }
  constexpr double kSinCosNs = 40;
  const int64_t half_dim = params.half_dim;
  ParallelRanges(ctx, params.num_tokens, kSinCosNs * static_cast<double>(half_dim),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t token = begin; token < end; ++token) {
                     for (int64_t i = 0; i < half_dim; ++i) {
                       const double angle = double(params.positions[token]) * double{params.inv_freq[i]};
                       params.cos[token * half_dim + i] = static_cast<float>(std::cos(angle) * params.mscale);
                       params.sin[token * half_dim + i] = static_cast<float>(std::sin(angle) * params.mscale);
                     }
                   }
                 });
}

}  // namespace cachalot
