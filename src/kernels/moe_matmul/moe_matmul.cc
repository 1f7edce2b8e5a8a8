#include "kernels/moe_matmul/moe_matmul.h"

#include "kernels/common/cuda_step.h"
#include "kernels/matmul/cuda_view.h"
#include "kernels/matmul/matmul.h"
#include "kernels/moe_matmul/moe_few_cuda.h"
#include "kernels/moe_route/moe_gate.h"

namespace cachalot {
namespace {

// The groups of the experts that have pairs, made by add(expert, first pair, number of pairs).
template <typename Add>
std::span<const MatmulGroup> ChosenGroups(const ExecContext& ctx, const MoePairs& pairs, int32_t num_experts, Add add) {
  auto* groups = ctx.workspace->Take<MatmulGroup>(num_experts);
  size_t count = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    const int64_t begin = pairs.expert_begin[e];
    if (const int64_t m = pairs.expert_begin[e + 1] - begin; m > 0) groups[count++] = add(e, begin, m);
  }
  return {groups, count};
}

CudaMoeMatmulParams OnGpu(const MoeMatmulParams& params) {
  const ExpertMatrices& weights = *params.weights;
  return {.x = params.x,
          .x_stride = params.x_stride,
          .x_rows = params.x_by_pair ? nullptr : params.pairs.token_rows,
          .expert_begin = params.pairs.expert_begin,
          .num_experts = weights.num_experts(),
          .max_pairs = params.pairs.max_pairs(),
          .top_k = params.pairs.top_k,
          .weight = CudaView(weights.experts.front()),
          .expert_data = weights.device_data,
          .expert_block_scales = weights.device_scales,
          .y = params.y,
          .y_stride = params.y_stride,
          .fusion = params.fusion};
}

void RunOnCuda(const ExecContext& ctx, const MoeMatmulParams& params) {
  CudaMoeMatmulParams on_gpu = OnGpu(params);
  const MoePairs& pairs = params.pairs;
  if (on_gpu.weight.dtype == DType::kF16) {  // codes of experts are never multiplied by plain F16
    on_gpu.x_half = FindHalf(ctx, on_gpu.weight, params.x, params.x_stride, params.x_by_pair ? pairs.max_pairs() : pairs.num_tokens);
  }
  const int64_t width = on_gpu.weight.n / (params.fusion.glu ? 2 : 1);
  ctx.cuda->halves.Overwritten(params.y, pairs.max_pairs(), params.y_stride, width);
  if (params.fusion.glu) {
    on_gpu.y_half = ctx.cuda->halves.Begin(CudaHalfSource::kSwiGlu, params.y, params.y_stride, pairs.max_pairs(), width);
  }
  RunCudaMatmul(ctx, &CudaBackend::moe_matmul, &CudaBackend::moe_matmul_workspace_bytes, on_gpu);
}

MatmulParams SharedMatmul(const MoeReduceParams& params, float* y, int64_t y_stride, bool accumulate) {
  return {.x = params.shared_x, .x_stride = params.shared_x_stride, .m = params.pairs.num_tokens, .weight = params.shared, .y = y,
          .y_stride = y_stride, .accumulate = accumulate};
}

CudaMatmulParams OnGpu(const MatmulParams& params) {
  return {.x = params.x, .x_stride = params.x_stride, .m = params.m, .weight = CudaView(*params.weight), .bias = params.bias,
          .y = params.y, .y_stride = params.y_stride, .accumulate = params.accumulate, .fusion = params.fusion};
}

// `gate`: room for the router's.
CudaMoeFewParams OnGpu(const ExecContext& ctx, const MoeFewParams& params, CudaMoeGateParams* gate) {
  const ExpertMatrices &up = *params.up, &down = *params.down;
  CudaMoeFewParams on_gpu = {.x = params.x,
                             .x_stride = params.x_stride,
                             .norm = params.norm,
                             .num_tokens = params.pairs.num_tokens,
                             .top_k = params.pairs.top_k,
                             .num_experts = up.num_experts(),
                             .expert_begin = params.pairs.expert_begin,
                             .token_rows = params.pairs.token_rows,
                             .pair_weights = params.pairs.weights,
                             .up = CudaView(up.experts.front()),
                             .down = CudaView(down.experts.front()),
                             .up_data = up.device_data,
                             .down_data = down.device_data,
                             .up_scales = up.device_scales,
                             .down_scales = down.device_scales,
                             .h = reinterpret_cast<uint16_t*>(params.h),
                             .shared_h = reinterpret_cast<uint16_t*>(params.shared_h),
                             .residual = params.residual,
                             .residual_stride = params.residual_stride};
  if (params.shared_up != nullptr) on_gpu.shared_up = CudaView(*params.shared_up), on_gpu.shared_down = CudaView(*params.shared_down);
  if (params.gate != nullptr) *gate = GateOnGpu(*params.gate), on_gpu.gate = gate, on_gpu.row_slots = ctx.cuda->batch.row_slots;
  return on_gpu;
}

}  // namespace

bool MoeFewFuses(const ExecContext& ctx, const MoeFewParams& params) {
  if (!OnCuda(ctx) || ctx.cuda->backend == nullptr) return false;
  CudaMoeGateParams gate;
  return ctx.cuda->backend->moe_few_fuses(ctx.cuda->exec, OnGpu(ctx, params, &gate));
}

void MoeFew(const ExecContext& ctx, const MoeFewParams& params) {
  RunCuda(ctx, [&](const CudaBackend& cuda, const CudaExec& exec) {
    CudaMoeGateParams gate;
    return cuda.moe_few(exec, OnGpu(ctx, params, &gate));
  });
}

bool MoePairFuses(const ExecContext& ctx, const MoePairParams& params) {
  return OnCuda(ctx) && ctx.cuda->backend != nullptr && params.experts.pairs.num_tokens > 0 &&
         ctx.cuda->backend->moe_pair_fuses(ctx.cuda->exec, OnGpu(params.experts), OnGpu(params.dense));
}

void MoePair(const ExecContext& ctx, const MoePairParams& params) {  // of few rows: no F16 copies
  RunCuda(ctx, [&](const CudaBackend& cuda, const CudaExec& exec) {
    return cuda.moe_pair(exec, OnGpu(params.experts), OnGpu(params.dense));
  });
}

bool MoeMatmulFuses(const ExecContext& ctx, const MoeMatmulParams& params) {
  return OnCuda(ctx) && ctx.cuda->backend != nullptr && params.pairs.num_tokens > 0 &&
         ctx.cuda->backend->moe_matmul_fuses(ctx.cuda->exec, OnGpu(params));
}

void MoeMatmul(const ExecContext& ctx, const MoeMatmulParams& params) {
  if (params.pairs.num_tokens == 0) return;
  if (OnCuda(ctx)) {
    RunOnCuda(ctx, params);
    return;
  }
  DCHECK(!params.fusion.any());
  WorkspaceScope scope(ctx.workspace);
  const ExpertMatrices& weights = *params.weights;
  const auto groups = ChosenGroups(ctx, params.pairs, weights.num_experts(), [&](int32_t e, int64_t begin, int64_t m) {
    return MatmulGroup{.weight = &weights.experts[static_cast<size_t>(e)],
                       .m = m,
                       .x = params.x,
                       .x_stride = params.x_stride,
                       .x_rows = params.pairs.token_rows + begin,
                       .y = params.y + begin * params.y_stride,
                       .y_stride = params.y_stride};
  });
  GroupedMatmul(ctx, {.groups = groups});
}

void MoeReduce(const ExecContext& ctx, const MoeReduceParams& params) {
  if (params.pairs.num_tokens == 0) return;
  WorkspaceScope scope(ctx.workspace);
  const ExpertMatrices& weights = *params.weights;
  const MoePairs& pairs = params.pairs;
  if (OnCuda(ctx)) {
    float* products = ctx.workspace->Take<float>(pairs.max_pairs() * weights.n());
    const MoeMatmulParams experts = {.pairs = pairs, .x = params.x, .x_stride = params.x_stride, .x_by_pair = true, .weights = &weights,
                                     .y = products, .y_stride = weights.n()};
    const float* extra = nullptr;
    if (params.shared != nullptr) {
      float* of_shared = ctx.workspace->Take<float>(pairs.num_tokens * weights.n());
      const MoePairParams pair = {.experts = experts, .dense = SharedMatmul(params, of_shared, weights.n(), false)};
      if (MoePairFuses(ctx, pair)) {
        MoePair(ctx, pair);
        extra = of_shared;
      }
    }
    if (extra == nullptr) RunOnCuda(ctx, experts);
    ctx.cuda->halves.Overwritten(params.residual, pairs.num_tokens, params.residual_stride, weights.n());
    RunCudaTold(ctx, &CudaBackend::moe_combine,
                CudaMoeCombineParams{.y = products,
                                     .y_stride = weights.n(),
                                     .pair_weights = pairs.weights,
                                     .token_pairs = pairs.token_pairs,
                                     .num_tokens = pairs.num_tokens,
                                     .top_k = pairs.top_k,
                                     .dim = weights.n(),
                                     .residual = params.residual,
                                     .residual_stride = params.residual_stride,
                                     .extra = extra,
                                     .extra_stride = weights.n()});
    if (params.shared != nullptr && extra == nullptr) {
      Matmul(ctx, SharedMatmul(params, params.residual, params.residual_stride, true));
    }
    return;
  }
  const auto groups = ChosenGroups(ctx, pairs, weights.num_experts(), [&](int32_t e, int64_t begin, int64_t m) {
    return MatmulGroup{.weight = &weights.experts[static_cast<size_t>(e)],
                       .m = m,
                       .x = params.x + begin * params.x_stride,
                       .x_stride = params.x_stride,
                       .y = params.residual,
                       .y_stride = params.residual_stride,
                       .y_rows = pairs.token_rows + begin,
                       .row_scale = pairs.weights + begin};
  });
  GroupedMatmul(ctx, {.groups = groups, .accumulate = true});
  if (params.shared != nullptr) Matmul(ctx, SharedMatmul(params, params.residual, params.residual_stride, true));
}

int64_t MoeMatmulWorkspaceBytes(int64_t max_pairs, int32_t num_experts, int64_t k, int num_threads) {
  return Workspace::Padded(num_experts * static_cast<int64_t>(sizeof(MatmulGroup))) +
         MatmulWorkspaceBytes(max_pairs, k, num_threads);
}

}  // namespace cachalot
