// The definition of correct: each row of W in F32, each dot product in double, rounded once. Covers every
// layout.
#include "kernels/matmul/matmul_impl.h"

namespace cachalot {

void MatmulRef(const ExecContext& ctx, const MatmulCall& call) {
  const int64_t n = call.groups[0].weight->n, k = call.groups[0].weight->k;
  WorkspaceScope scope(ctx.workspace);
  const int64_t slice =
      Workspace::Padded(k * static_cast<int64_t>(sizeof(float))) / static_cast<int64_t>(sizeof(float));
  float* decoded = ctx.workspace->Take<float>(slice * ctx.pool->num_threads());

  ctx.pool->ParallelFor(n, [&](int64_t row, int thread_idx) {
    float* w = decoded + thread_idx * slice;
    for (const MatmulGroup& group : call.groups) {
      if (group.m == 0) continue;
      DecodeRow(*group.weight, row, w);
      for (int64_t i = 0; i < group.m; ++i) {
        const float* x = group.x + (group.x_rows != nullptr ? group.x_rows[i] : i) * group.x_stride;
        float* y = group.y + (group.y_rows != nullptr ? group.y_rows[i] : i) * group.y_stride + row;
        double sum = 0;
        for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(x[j]) * static_cast<double>(w[j]);
        if (call.bias != nullptr) sum += static_cast<double>(call.bias[row]);
        if (group.row_scale != nullptr) sum *= static_cast<double>(group.row_scale[i]);
        *y = static_cast<float>(call.accumulate ? static_cast<double>(*y) + sum : sum);
      }
    }
  });
  for (const MatmulGroup& group : call.groups) {
    if (group.m > 0) CountWeightBytes(ctx, group.weight->data_bytes);
  }
}

}  // namespace cachalot
