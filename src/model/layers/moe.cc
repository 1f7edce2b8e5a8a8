#include "model/layers/moe.h"

#include <algorithm>
#include <optional>

#include "kernels/matmul/matmul.h"
#include "kernels/moe_route/moe_gate.h"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {

Result<MoeLayer> MoeLayer::Build(WeightReader* reader, const ModelSpec& spec, int32_t layer) {
  const MoeSpec& moe = spec.moe;
  const int64_t hidden = spec.hidden_size;
  MoeLayer out;
  // The router runs in F32 whatever the file holds: near-ties decide which expert a token gets.
  ASSIGN_OR_RETURN(const std::vector<float> router, reader->Values({TensorRole::kRouter, layer}, moe.num_experts, hidden));
  ASSIGN_OR_RETURN(out.router_, reader->Derived(router, moe.num_experts, hidden, DType::kF32));
  if (moe.choice_bias) {
    ASSIGN_OR_RETURN(out.choice_bias_, reader->Vector({TensorRole::kRouterBias, layer}, moe.num_experts));
  }
  for (int32_t e = 0; e < moe.num_experts; ++e) {
    const auto ref = [&](TensorRole role) { return WeightRef{role, layer, e, moe.num_experts}; };
    const RowsOf gate_up[] = {{ref(TensorRole::kExpertGate), moe.intermediate}, {ref(TensorRole::kExpertUp), moe.intermediate}};
    ASSIGN_OR_RETURN(PackedMatrix up_matrix, reader->Matrix(gate_up, hidden));
    out.gate_up_.experts.push_back(std::move(up_matrix));
    const RowsOf down[] = {{ref(TensorRole::kExpertDown), hidden}};
    ASSIGN_OR_RETURN(PackedMatrix down_matrix, reader->Matrix(down, moe.intermediate));
    out.down_.experts.push_back(std::move(down_matrix));
    if (reader->naming() == SourceNaming::kHuggingFace) reader->ReleaseFetched();
  }
  RETURN_IF_ERROR(reader->Finish(&out.gate_up_));
  RETURN_IF_ERROR(reader->Finish(&out.down_));
  if (moe.shared_intermediate > 0) {
    const FfnLayer::Roles roles = {TensorRole::kSharedGate, TensorRole::kSharedUp, TensorRole::kSharedDown};
    ASSIGN_OR_RETURN(out.shared_, FfnLayer::Build(reader, roles, layer, hidden, moe.shared_intermediate));
  }
  return out;
}

void MoeLayer::Run(const ExecContext& exec, const ModelSpec& spec, NormedInput* input, float* residual,
                   int32_t* expert_counts) const {
  const MoeSpec& moe = spec.moe;
  const int64_t hidden = spec.hidden_size, num_tokens = input->num_rows();
  const int64_t pairs = num_tokens * moe.top_k;
  WorkspaceScope scope(exec.workspace);
  Workspace& ws = *exec.workspace;
  float* logits = ws.Take<float>(num_tokens * moe.num_experts);
  auto* expert_ids = ws.Take<int32_t>(pairs);
  auto* weights = ws.Take<float>(pairs);
  auto* expert_begin = ws.Take<int32_t>(moe.num_experts + 1);
  auto* token_rows = ws.Take<int32_t>(pairs);
  auto* pair_weights = ws.Take<float>(pairs);
  auto* gate_up = ws.Take<float>(pairs * 2 * moe.intermediate);
  auto* token_pairs = ws.Take<int32_t>(pairs);

  MoeGateParams gate = {.x_stride = hidden, .router = &router_, .logits = logits};
  gate.route = {.num_tokens = num_tokens,
                .num_experts = moe.num_experts,
                .top_k = moe.top_k,
                .score = moe.score,
                .choice_bias = choice_bias_.empty() ? nullptr : choice_bias_.data(),
                .group_score = moe.group_score,
                .num_groups = moe.num_groups,
                .top_k_groups = moe.top_k_groups,
                .normalize = moe.normalize,
                .scaling = moe.scaling,
                .expert_ids = expert_ids,
                .weights = weights};
  gate.sort = {.expert_ids = expert_ids,
               .weights = weights,
               .num_tokens = num_tokens,
               .top_k = moe.top_k,
               .num_experts = moe.num_experts,
               .expert_begin = expert_begin,
               .token_rows = token_rows,
               .pair_weights = pair_weights,
               .expert_counts = expert_counts,
               .token_pairs = token_pairs};
  const MoePairs sorted = {.expert_begin = expert_begin,
                           .token_rows = token_rows,
                           .weights = pair_weights,
                           .token_pairs = token_pairs,
                           .num_tokens = num_tokens,
                           .top_k = moe.top_k};
  if (RunFew(exec, input, &gate, sorted, gate_up, residual)) return;
  const auto gate_of = [&](const float* x, const CudaFusion& norm) {
    gate.x = x, gate.norm = norm;
    return gate;
  };
  input->Give(exec, {}, [&](const float* x, const CudaFusion& norm) { return MoeGateFuses(exec, gate_of(x, norm)); },
              [&](const float* x, const CudaFusion& norm) { MoeGate(exec, gate_of(x, norm)); });

  if (RunFew(exec, input, nullptr, sorted, gate_up, residual)) return;
  const int64_t width = 2 * moe.intermediate;
  MoePairParams pair = {.experts = {.pairs = sorted, .x = input->raw(), .x_stride = hidden, .weights = &gate_up_, .y = gate_up,
                                    .y_stride = moe.intermediate}};
  MoeMatmulParams& up = pair.experts;
  const auto up_of = [&](const float* x, const CudaFusion& fusion) {
    up.x = x, up.fusion = fusion;
    return up;
  };
  const auto fuses = [&](const float* x, const CudaFusion& fusion) { return MoeMatmulFuses(exec, up_of(x, fusion)); };
  // Few rows: the shared expert beside the others, and before the residual stream is changed, from which it may read them.
  std::optional<FfnLayer::Activated> shared;
  const bool together = shared_ && input->IsFew(exec) && shared_->gate_up() != nullptr && PairUp(exec, input, &pair, &shared);
  const bool glu = together || fuses(input->raw(), {.glu = true});
  if (!glu) up.y_stride = width;
  if (!together) {
    input->Give(exec, {.glu = glu}, fuses, [&](const float* x, const CudaFusion& fusion) { MoeMatmul(exec, up_of(x, fusion)); });
    if (shared_ && input->IsFew(exec)) shared = shared_->Up(exec, input);
  }
  if (!glu) {
    SwiGlu(exec, {.gate = gate_up, .up = gate_up + moe.intermediate, .x_stride = width, .m = pairs, .dim = moe.intermediate,
                  .y = gate_up, .y_stride = width});
  }
  MoeReduceParams reduce = {.pairs = sorted, .x = gate_up, .x_stride = up.y_stride, .weights = &down_, .residual = residual,
                            .residual_stride = hidden};
  if (shared) reduce.shared = shared_->down(), reduce.shared_x = shared->rows, reduce.shared_x_stride = shared->stride;
  MoeReduce(exec, reduce);
  if (shared && reduce.shared == nullptr) {
    shared_->Down(exec, num_tokens, *shared, residual);
  } else if (shared_ && !shared) {
    shared_->Run(exec, input, residual);
  }
}

bool MoeLayer::RunFew(const ExecContext& exec, NormedInput* input, MoeGateParams* gate, const MoePairs& sorted, float* h, float* residual) const {
  if (!input->IsFew(exec) || (shared_ && (shared_->gate_up() == nullptr || shared_->down() == nullptr))) return false;
  MoeFewParams few = {.pairs = sorted, .x_stride = input->dim(), .up = &gate_up_, .down = &down_, .h = h, .residual = residual,
                      .residual_stride = input->dim(), .gate = gate};
  if (shared_) few.shared_up = shared_->gate_up(), few.shared_down = shared_->down();
  const auto fuses = [&](const float* x, const CudaFusion& norm) {
    few.x = x, few.norm = norm;
    if (gate != nullptr) gate->x = x, gate->norm = norm;
    return MoeFewFuses(exec, few);
  };
  if (!fuses(input->raw(), {})) return false;  // where y lies changes nothing
  if (shared_) few.shared_h = exec.workspace->Take<float>(input->num_rows() * 2 * shared_->intermediate());  // as shared_->Up, whose room is planned
  input->Give(exec, {}, fuses, [&](const float* x, const CudaFusion& norm) {
    fuses(x, norm);
    MoeFew(exec, few);
  });
  return true;
}

bool MoeLayer::PairUp(const ExecContext& exec, NormedInput* input, MoePairParams* pair, std::optional<FfnLayer::Activated>* shared) const {
  const int64_t intermediate = shared_->intermediate(), num_tokens = input->num_rows();
  pair->dense = {.x_stride = input->dim(), .m = num_tokens, .weight = shared_->gate_up(), .y_stride = intermediate};
  const auto fuses = [&](const float* x, const CudaFusion& fusion) {
    pair->experts.x = pair->dense.x = x;
    pair->experts.fusion = pair->dense.fusion = fusion;
    return MoePairFuses(exec, *pair);
  };
  if (!fuses(input->raw(), {.glu = true})) return false;  // where y lies changes nothing
  pair->dense.y = exec.workspace->Take<float>(num_tokens * 2 * intermediate);  // as shared_->Up, whose room is planned
  input->Give(exec, {.glu = true}, fuses, [&](const float* x, const CudaFusion& fusion) {
    fuses(x, fusion);
    MoePair(exec, *pair);
  });
  *shared = {pair->dense.y, intermediate};
  return true;
}

int64_t MoeLayer::WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int num_threads) {
  const MoeSpec& moe = spec.moe;
  if (moe.num_experts == 0) return 0;
  const int64_t pairs = max_tokens * moe.top_k;
  const auto words = [](int64_t n) { return Workspace::Padded(n * 4); };
  const int64_t routing = words(max_tokens * moe.num_experts) + 5 * words(pairs) + words(moe.num_experts + 1) +
                          words(pairs * 2 * moe.intermediate);
  return routing + std::max({MoeRouteWorkspaceBytes(num_threads, moe.num_experts, moe.num_groups, moe.top_k),
                             MatmulWorkspaceBytes(max_tokens, spec.hidden_size, num_threads),
                             MoeMatmulWorkspaceBytes(pairs, moe.num_experts, std::max<int64_t>(spec.hidden_size, moe.intermediate), num_threads),
                             moe.shared_intermediate > 0
                                 ? FfnLayer::WorkspaceBytes(spec.hidden_size, moe.shared_intermediate, max_tokens, num_threads)
                                 : 0});
}

}  // namespace cachalot
