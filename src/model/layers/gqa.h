// Grouped-query attention: q, k, v projections (+ bias, + per-head norm), RoPE, append, attention, output projection.
#pragma once

#include <vector>

#include "model/forward_context.h"
#include "model/layers/linear.h"
#include "model/model_spec.h"

namespace cachalot {

class GqaLayer {
 public:
  static Result<GqaLayer> Build(WeightReader* reader, const ModelSpec& spec, int32_t layer);

  // residual [num_tokens, hidden] += attention(input)
  void Run(const ForwardContext& fwd, const ModelSpec& spec, int32_t window, const PagedKv& kv, NormedInput* input,
           float* residual) const;

  int64_t weight_bytes() const { return qkv_.weight_bytes() + o_.weight_bytes(); }
  static int64_t WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int num_threads);

 private:
  Linear qkv_;
  Linear o_;
  FloatArray q_norm_;  // [head_dim] or empty
  FloatArray k_norm_;
};

}  // namespace cachalot
