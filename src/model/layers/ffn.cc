#include "model/layers/ffn.h"

#include <algorithm>

#include "kernels/swiglu/swiglu.h"

namespace cachalot {

Result<FfnLayer> FfnLayer::Build(WeightReader* reader, const Roles& roles, int32_t layer, int64_t hidden,
                                 int64_t intermediate) {
  FfnLayer out;
  const RowsOf gate_up[] = {{{roles.gate, layer}, intermediate}, {{roles.up, layer}, intermediate}};
  ASSIGN_OR_RETURN(out.gate_up_, Linear::Build(reader, gate_up, {}, hidden));
  const RowsOf down[] = {{{roles.down, layer}, hidden}};
  ASSIGN_OR_RETURN(out.down_, Linear::Build(reader, down, {}, intermediate));
  return out;
}

void FfnLayer::Run(const ExecContext& exec, int64_t num_tokens, const float* x, float* residual) const {
  const int64_t hidden = gate_up_.k();
  const int64_t intermediate = down_.k();
  WorkspaceScope scope(exec.workspace);
  float* gate_up = exec.workspace->Take<float>(num_tokens * 2 * intermediate);
  gate_up_.Run(exec, x, hidden, num_tokens, gate_up, 2 * intermediate);
  SwiGlu(exec, {.gate = gate_up, .up = gate_up + intermediate, .x_stride = 2 * intermediate, .m = num_tokens,
                .dim = intermediate, .y = gate_up, .y_stride = 2 * intermediate});
  down_.Run(exec, gate_up, 2 * intermediate, num_tokens, residual, hidden, /*accumulate=*/true);
}

int64_t FfnLayer::WorkspaceBytes(int64_t hidden, int64_t intermediate, int64_t max_tokens, int num_threads) {
  return Workspace::Padded(max_tokens * 2 * intermediate * static_cast<int64_t>(sizeof(float))) +
         MatmulWorkspaceBytes(max_tokens, std::max(hidden, intermediate), num_threads);
}

}  // namespace cachalot
