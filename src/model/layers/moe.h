// A mixture of experts: route, sort the (token, expert) pairs by expert, run each chosen expert once over all its
// tokens (gather and weighted scatter inside the matmuls), add the shared expert.
// A token's experts are added in rising expert order whatever the batch, so its bits do not depend on the batch.
#pragma once

#include <optional>
#include <vector>

#include "model/layers/ffn.h"

namespace cachalot {

struct MoeGateParams;

class MoeLayer {
 public:
  static Result<MoeLayer> Build(WeightReader* reader, const ModelSpec& spec, int32_t layer);

  // residual [rows, hidden] += moe(input). expert_counts [num_experts], or null: tokens sent to each are added to it
  // (where the layer lives: host or device memory).
  void Run(const ExecContext& exec, const ModelSpec& spec, NormedInput* input, float* residual, int32_t* expert_counts) const;

  int64_t weight_bytes() const { return router_.data_bytes + (shared_ ? shared_->weight_bytes() : 0); }
  int64_t expert_bytes() const { return gate_up_.experts.front().data_bytes + down_.experts.front().data_bytes; }
  static int64_t WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int num_threads);

 private:
  // All experts of few rows in a launch or two, where that can be; the router in it too (`gate`, or null). `h`: room for gate and up of every pair.
  bool RunFew(const ExecContext& exec, NormedInput* input, MoeGateParams* gate, const MoePairs& sorted, float* h, float* residual) const;
  // Gate, up and SwiGLU of the experts (pair->experts) and of the shared expert in one launch, where that can be.
  bool PairUp(const ExecContext& exec, NormedInput* input, MoePairParams* pair, std::optional<FfnLayer::Activated>* shared) const;

  PackedMatrix router_;                // [num_experts, hidden]
  FloatArray choice_bias_;             // [num_experts] or empty
  ExpertMatrices gate_up_;             // [2 * intermediate, hidden]
  ExpertMatrices down_;                // [hidden, intermediate]
  std::optional<FfnLayer> shared_;
};

}  // namespace cachalot
