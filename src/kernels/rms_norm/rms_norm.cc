#include "kernels/rms_norm/rms_norm.h"

#include "kernels/common/cuda_step.h"
#include "kernels/common/dispatch.h"
#include "kernels/rms_norm/rms_norm_variants.h"

namespace cachalot {
namespace {

constexpr KernelVariant<RmsNormParams> kVariants[] = {
    {Isa::kAvx2, nullptr, &RmsNormAvx2},
    {Isa::kRef, nullptr, &RmsNormRef},
};

}  // namespace

void RmsNorm(const ExecContext& ctx, const RmsNormParams& params) {
  if (params.num_tokens == 0 || params.num_heads == 0) return;
  CHECK(params.num_tokens > 0 && params.num_heads > 0 && params.dim > 0)
      << "RmsNorm of [" << params.num_tokens << ", " << params.num_heads << ", " << params.dim << "]";
  if (OnCuda(ctx)) {
    RmsNormParams on_gpu = params;
    CudaHalfCopies& halves = ctx.cuda->halves;
    halves.Overwritten(params.y, params.num_tokens, params.token_stride_y, (params.num_heads - 1) * params.head_stride_y + params.dim);
    if (params.num_heads == 1) {
      on_gpu.y_half = halves.Begin(CudaHalfSource::kNorm, params.y, params.token_stride_y, params.num_tokens, params.dim);
    }
    RunCudaTold(ctx, &CudaBackend::rms_norm, on_gpu);
    return;
  }
  DCHECK(params.x_rows == nullptr);
  RunVariant(kVariants, ctx, params);
}

}  // namespace cachalot
