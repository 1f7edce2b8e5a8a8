// The gated feed-forward layer: down(silu(gate x) · up x).
#pragma once

#include "model/forward_context.h"
#include "model/layers/linear.h"
#include "model/model_spec.h"

namespace cachalot {

class FfnLayer {
 public:
  struct Roles {
    TensorRole gate = TensorRole::kGate;
    TensorRole up = TensorRole::kUp;
    TensorRole down = TensorRole::kDown;
  };
  static Result<FfnLayer> Build(WeightReader* reader, const Roles& roles, int32_t layer, int64_t hidden, int64_t intermediate);

  // residual [rows, hidden] += ffn(input)
  void Run(const ExecContext& exec, NormedInput* input, float* residual) const;

  // The same in two parts, for who has something to do in between: the second one alone changes the residual stream. What the
  // first one returns lies in the workspace, in the caller's scope.
  struct Activated {
    const float* rows;  // [rows, intermediate]
    int64_t stride;
  };
  Activated Up(const ExecContext& exec, NormedInput* input) const;
  void Down(const ExecContext& exec, int64_t num_rows, const Activated& activated, float* residual) const;

  // For who runs them beside something else; null where they are several.
  const PackedMatrix* gate_up() const { return gate_up_.Only(); }
  const PackedMatrix* down() const { return down_.Only(); }
  int64_t intermediate() const { return down_.k(); }

  int64_t weight_bytes() const { return gate_up_.weight_bytes() + down_.weight_bytes(); }
  static int64_t WorkspaceBytes(int64_t hidden, int64_t intermediate, int64_t max_tokens, int num_threads);

 private:
  Linear gate_up_;
  Linear down_;
};

}  // namespace cachalot
