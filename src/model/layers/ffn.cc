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

void FfnLayer::Run(const ExecContext& exec, NormedInput* input, float* residual) const {
  WorkspaceScope scope(exec.workspace);
  const Activated activated = Up(exec, input);
  Down(exec, input->num_rows(), activated, residual);
}

FfnLayer::Activated FfnLayer::Up(const ExecContext& exec, NormedInput* input) const {
  const int64_t intermediate = down_.k(), num_rows = input->num_rows();
  float* gate_up = exec.workspace->Take<float>(num_rows * 2 * intermediate);
  if (gate_up_.RunGlu(exec, input, gate_up, intermediate)) return {gate_up, intermediate};
  if (!OnCuda(exec)) {
    gate_up_.RunThenSwiGlu(exec, input, gate_up, 2 * intermediate);
    return {gate_up, 2 * intermediate};
  }
  gate_up_.Run(exec, input, gate_up, 2 * intermediate);
  SwiGlu(exec, {.gate = gate_up, .up = gate_up + intermediate, .x_stride = 2 * intermediate, .m = num_rows,
                .dim = intermediate, .y = gate_up, .y_stride = 2 * intermediate});
  return {gate_up, 2 * intermediate};
}

void FfnLayer::Down(const ExecContext& exec, int64_t num_rows, const Activated& activated, float* residual) const {
  down_.Run(exec, activated.rows, activated.stride, num_rows, residual, gate_up_.k(), /*accumulate=*/true);
}

int64_t FfnLayer::WorkspaceBytes(int64_t hidden, int64_t intermediate, int64_t max_tokens, int num_threads) {
  return Workspace::Padded(max_tokens * 2 * intermediate * static_cast<int64_t>(sizeof(float))) +
         MatmulWorkspaceBytes(max_tokens, std::max(hidden, intermediate), num_threads);
}

}  // namespace cachalot
