#include "kernels/moe_matmul/moe_matmul.h"

#include "kernels/common/cuda_step.h"
#include "kernels/matmul/cuda_view.h"
#include "kernels/matmul/matmul.h"

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

// `x_rows` null: x has a row for each pair.
CudaMoeMatmulParams OnGpu(const MoeMatmulParams& params, const int32_t* x_rows) {
  const ExpertMatrices& weights = *params.weights;
  return {.x = params.x,
          .x_stride = params.x_stride,
          .x_rows = x_rows,
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

void RunOnCuda(const ExecContext& ctx, const MoeMatmulParams& params, const int32_t* x_rows) {
  CudaMoeMatmulParams on_gpu = OnGpu(params, x_rows);
  const MoePairs& pairs = params.pairs;
  if (on_gpu.weight.dtype == DType::kF16) {  // codes of experts are never multiplied by plain F16
    on_gpu.x_half = FindHalf(ctx, on_gpu.weight, params.x, params.x_stride, x_rows != nullptr ? pairs.num_tokens : pairs.max_pairs());
  }
  const int64_t width = on_gpu.weight.n / (params.fusion.glu ? 2 : 1);
  ctx.cuda->halves.Overwritten(params.y, pairs.max_pairs(), params.y_stride, width);
  if (params.fusion.glu) {
    on_gpu.y_half = ctx.cuda->halves.Begin(CudaHalfSource::kSwiGlu, params.y, params.y_stride, pairs.max_pairs(), width);
  }
  RunCudaMatmul(ctx, &CudaBackend::moe_matmul, &CudaBackend::moe_matmul_workspace_bytes, on_gpu);
}

}  // namespace

bool MoeMatmulFuses(const ExecContext& ctx, const MoeMatmulParams& params) {
  return OnCuda(ctx) && ctx.cuda->backend != nullptr && params.pairs.num_tokens > 0 &&
         ctx.cuda->backend->moe_matmul_fuses(ctx.cuda->exec, OnGpu(params, params.pairs.token_rows));
}

void MoeMatmul(const ExecContext& ctx, const MoeMatmulParams& params) {
  if (params.pairs.num_tokens == 0) return;
  if (OnCuda(ctx)) {
    RunOnCuda(ctx, params, params.pairs.token_rows);
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
    RunOnCuda(ctx, {.pairs = pairs, .x = params.x, .x_stride = params.x_stride, .weights = &weights, .y = products,
                    .y_stride = weights.n()}, nullptr);
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
                                     .residual_stride = params.residual_stride});
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
}

int64_t MoeMatmulWorkspaceBytes(int64_t max_pairs, int32_t num_experts, int64_t k, int num_threads) {
  return Workspace::Padded(num_experts * static_cast<int64_t>(sizeof(MatmulGroup))) +
         MatmulWorkspaceBytes(max_pairs, k, num_threads);
}

}  // namespace cachalot
