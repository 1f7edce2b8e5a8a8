// SwiGlu of decode and prefill rows. Bytes: gate and up read, y written.
#include "kernels/common/bench.h"
#include "kernels/common/testing.h"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

void Run(benchmark::State& state, int64_t m, int64_t dim) {
  TestContext ctx(BestIsa(), kBenchThreads);
  TestRng rng(1);
  const auto x = rng.NormalVector(m * 2 * dim);
  std::vector<float> y(m * dim);
  const SwiGluParams params{.gate = x.data(),
                            .up = x.data() + dim,
                            .x_stride = 2 * dim,
                            .m = m,
                            .dim = dim,
                            .y = y.data(),
                            .y_stride = dim};
  BenchAgainstRoofs(state, 0, 12.0 * static_cast<double>(y.size()), [&] { SwiGlu(ctx, params); });
}

const bool kRegistered = [] {
  for (auto [m, dim] :
       {std::pair<int64_t, int64_t>{1, 1536}, {1, 14336}, {8, 14336}, {512, 1536}, {512, 14336}}) {
    const int64_t rows = m, values = dim;
    Register(fmt::format("SwiGlu/{}x{}", rows, values),
             [=](benchmark::State& state) { Run(state, rows, values); });
  }
  return true;
}();

}  // namespace
}  // namespace cachalot
