// RmsNorm of one decode row, a prefill chunk and per-head norms. Bytes: x and the weight read, y written.
#include "kernels/common/bench.h"
#include "kernels/common/testing.h"
#include "kernels/rms_norm/rms_norm.h"

namespace cachalot {
namespace {

void Run(benchmark::State& state, int64_t tokens, int64_t heads, int64_t dim) {
  TestContext ctx(BestIsa(), kBenchThreads);
  TestRng rng(1);
  const auto x = rng.NormalVector(tokens * heads * dim), weight = rng.NormalVector(dim);
  std::vector<float> y(x.size());
  const RmsNormParams params{.x = x.data(),
                             .token_stride_x = heads * dim,
                             .head_stride_x = dim,
                             .num_tokens = tokens,
                             .num_heads = heads,
                             .dim = dim,
                             .weight = weight.data(),
                             .y = y.data(),
                             .token_stride_y = heads * dim,
                             .head_stride_y = dim};
  BenchAgainstRoofs(state, 0, 8.0 * static_cast<double>(x.size()), [&] { RmsNorm(ctx, params); });
}

const bool kRegistered = [] {
  Register("RmsNorm/1x576", [](benchmark::State& state) { Run(state, 1, 1, 576); });
  Register("RmsNorm/1x7168", [](benchmark::State& state) { Run(state, 1, 1, 7168); });
  Register("RmsNorm/512x4096", [](benchmark::State& state) { Run(state, 512, 1, 4096); });
  Register("RmsNorm/512x32x128", [](benchmark::State& state) { Run(state, 512, 32, 128); });
  return true;
}();

}  // namespace
}  // namespace cachalot
