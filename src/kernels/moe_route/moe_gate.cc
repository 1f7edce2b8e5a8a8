#include "kernels/moe_route/moe_gate.h"

#include "kernels/common/cuda_step.h"
#include "kernels/matmul/cuda_view.h"
#include "kernels/moe_route/moe_gate_cuda.h"

namespace cachalot {

CudaMoeGateParams GateOnGpu(const MoeGateParams& params) {
  CudaMoeGateParams on_gpu = {.x = params.x, .x_stride = params.x_stride, .norm = params.norm, .router = CudaView(*params.router),
                              .logits = params.logits, .route = params.route, .sort = params.sort};
  on_gpu.route.logits = params.logits;
  return on_gpu;
}

bool MoeGateFuses(const ExecContext& ctx, const MoeGateParams& params) {
  return OnCuda(ctx) && ctx.cuda->backend != nullptr && ctx.cuda->backend->moe_gate_fuses(ctx.cuda->exec, GateOnGpu(params));
}

void MoeGate(const ExecContext& ctx, const MoeGateParams& params) {
  const int64_t tokens = params.sort.num_tokens;
  if (MoeGateFuses(ctx, params)) {
    RunCuda(ctx, [&](const CudaBackend& cuda, const CudaExec& exec) {
      return cuda.moe_gate(exec, GateOnGpu(params), ctx.cuda->batch.row_slots);
    });
    return;
  }
  Matmul(ctx, {.x = params.x, .x_stride = params.x_stride, .m = tokens, .weight = params.router, .y = params.logits,
               .y_stride = params.sort.num_experts});
  MoeRouteParams route = params.route;
  route.logits = params.logits;
  MoeRoute(ctx, route);
  MoeSort(ctx, params.sort);
}

}  // namespace cachalot
