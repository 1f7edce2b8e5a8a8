#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <thread>

#include "kernels/matmul/matmul_impl.h"

namespace cachalot {
namespace {

void Run(const ExecContext& ctx, const MatmulCall& call) {
  if (ctx.isa > Isa::kRef) ctx.counters->generic_calls.fetch_add(1, std::memory_order_relaxed);
  MatmulRef(ctx, call);
}

void CheckGroup(const MatmulGroup& group, const MatmulGroup& first) {
  CHECK(group.m >= 0 && group.weight != nullptr);
  const PackedMatrix& weight = *group.weight;
  CHECK(weight.n == first.weight->n && weight.k == first.weight->k && weight.dtype == first.weight->dtype &&
        weight.layout == first.weight->layout)
      << "groups of one matmul must have equal shape, type and layout";
  DCHECK(group.m == 0 || (group.x != nullptr && group.y != nullptr));
  DCHECK(group.m <= 1 || group.x_rows != nullptr || group.x_stride >= weight.k);
  DCHECK(group.m <= 1 || group.y_rows != nullptr || group.y_stride >= weight.n);
}

}  // namespace

void Matmul(const ExecContext& ctx, const MatmulParams& params) {
  MatmulGroup group;
  group.weight = params.weight;
  group.m = params.m;
  group.x = params.x;
  group.x_stride = params.x_stride;
  group.y = params.y;
  group.y_stride = params.y_stride;
  CheckGroup(group, group);
  if (params.m == 0 || params.weight->n == 0) return;
  Run(ctx, {.groups = {&group, 1}, .bias = params.bias, .accumulate = params.accumulate});
}

void GroupedMatmul(const ExecContext& ctx, const GroupedMatmulParams& params) {
  bool any = false;
  for (const MatmulGroup& group : params.groups) {
    CheckGroup(group, params.groups[0]);
    any |= group.m > 0 && group.weight->n > 0;
  }
  if (any) Run(ctx, {.groups = params.groups, .bias = nullptr, .accumulate = params.accumulate});
}

int64_t MatmulWorkspaceBytes(int64_t max_rows, int64_t k, int num_threads) {
  if (num_threads <= 0) num_threads = std::max(16, static_cast<int>(std::thread::hardware_concurrency()));
  return num_threads * Workspace::Padded(k * static_cast<int64_t>(sizeof(float)));
}

}  // namespace cachalot
