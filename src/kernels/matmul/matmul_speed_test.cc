// Speed of the matmul kernels on one thread, for machines that have no benchmark library: not a test, so
// asked for by
//   cachalot_kernels_test --gtest_also_run_disabled_tests --gtest_filter='MatmulSpeed.*'
// Weights cycle through copies that do not fit the caches together. Best of all repeats.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <deque>

#include "kernels/common/roofs.h"
#include "kernels/matmul/matmul_testing.h"

namespace cachalot {
namespace {

constexpr int64_t kColdBytes = int64_t{80} << 20;
constexpr double kSecondsEach = 0.06;

double BestSeconds(Isa isa, const std::deque<PackedMatrix>& weights, int64_t m) {
  const int64_t k = weights[0].k, n = weights[0].n;
  TestContext ctx(isa, 1);
  const std::vector<float> x = TestRng(2).NormalVector(m * k);
  std::vector<float> y(m * n);
  double best = 1e9, spent = 0;
  for (size_t call = 0; call < 3 || spent < kSecondsEach; ++call) {
    const auto begin = std::chrono::steady_clock::now();
    Matmul(ctx, {.x = x.data(),
                 .x_stride = k,
                 .m = m,
                 .weight = &weights[call % weights.size()],
                 .y = y.data(),
                 .y_stride = n});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (call > 0) best = std::min(best, seconds);  // the first one also meets new pages of y
    spent += seconds;
  }
  return best;
}

TEST(MatmulSpeed, DISABLED_OneThread) {
  constexpr int64_t kK = 2048, kN = 2816;
  ThreadPool pool(NumPhysicalCores());
  std::printf("%ld x %ld; reads %.1f GB/s", kK, kN, ReadRoofGbps(1));
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    std::printf(", %s multiply-adds %.0f GFLOP/s", std::string(IsaName(isa)).c_str(), FmaRoofGflops(1, isa));
  }
  std::printf("\nGFLOP/s (GB/s of weights)\n%-8s %5s", "type", "rows");
  for (Isa isa : TestableIsas()) {
    if (isa != Isa::kRef) std::printf(" %16s", std::string(IsaName(isa)).c_str());
  }
  std::printf("\n");
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                      DType::kQ5_0, DType::kIQ4_NL, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
                      DType::kQ6_K, DType::kIQ4_XS}) {
    const TestWeight weight(dtype, kN, kK, 1, &pool);
    std::deque<PackedMatrix> weights;
    do {
      weights.push_back(weight.Pack(BestIsa()));
    } while (static_cast<int64_t>(weights.size()) * weights[0].data_bytes < kColdBytes);
    for (int64_t m : {1, 8, 32, 512}) {
      std::printf("%-8s %5ld", std::string(DTypeName(dtype)).c_str(), m);
      for (Isa isa : TestableIsas()) {
        if (isa == Isa::kRef) continue;
        const double seconds = BestSeconds(isa, weights, m);
        std::printf(" %8.0f (%5.1f)", 2e-9 * static_cast<double>(m * kK * kN) / seconds,
                    1e-9 * static_cast<double>(weights[0].data_bytes) / seconds);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace cachalot
