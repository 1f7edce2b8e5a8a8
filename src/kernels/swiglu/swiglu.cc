#include "kernels/swiglu/swiglu.h"

#include "kernels/common/cuda_step.h"
#include "kernels/common/dispatch.h"
#include "kernels/swiglu/swiglu_variants.h"

namespace cachalot {
namespace {

constexpr KernelVariant<SwiGluParams> kVariants[] = {
    {Isa::kAvx2, nullptr, &SwiGluAvx2},
    {Isa::kRef, nullptr, &SwiGluRef},
};

}  // namespace

void SwiGlu(const ExecContext& ctx, const SwiGluParams& params) {
  if (params.m == 0 || params.dim == 0) return;
  CHECK(params.m > 0 && params.dim > 0) << "SwiGlu of [" << params.m << ", " << params.dim << "]";
  if (OnCuda(ctx)) {
    SwiGluParams on_gpu = params;
    CudaHalfCopies& halves = ctx.cuda->halves;
    halves.Overwritten(params.y, params.m, params.y_stride, params.dim);
    on_gpu.y_half = halves.Begin(CudaHalfSource::kSwiGlu, params.y, params.y_stride, params.m, params.dim);
    RunCudaTold(ctx, &CudaBackend::swiglu, on_gpu);
    return;
  }
  RunVariant(kVariants, ctx, params);
}

}  // namespace cachalot
