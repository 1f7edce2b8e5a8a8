// MatmulThenSwiGlu against the two ops one after the other.
#include <gtest/gtest.h>

#include "kernels/matmul/matmul_testing.h"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

TEST(MatmulThenSwiGlu, IsTheTwoOneAfterTheOtherToTheBit) {
  TestRng rng(21);
  for (DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kF16}) {
    for (int64_t n : {2 * 8, 2 * 16, 2 * 48, 2 * 16 * 37, 2 * 89}) {  // panels that hold gates and ups too
      const int64_t k = WholeBlocks(dtype, 288);
      const TestWeight w(dtype, n, k, 22);
      const std::vector<float> bias = rng.NormalVector(n);
      for (Isa isa : TestableIsas()) {
        const PackedMatrix weight = w.Pack(isa);
        for (int threads : {1, 2, 3}) {
          TestContext ctx(isa, threads);
          for (int64_t m : {1, 2, 8, 40}) {
            const std::vector<float> x = rng.NormalVector(m * k);
            std::vector<float> apart(m * n), y(m * n, -1.0f);
            MatmulParams params = {.x = x.data(), .x_stride = k, .m = m, .weight = &weight, .bias = bias.data(), .y = apart.data(),
                                   .y_stride = n};
            Matmul(ctx, params);
            SwiGlu(ctx, {.gate = apart.data(), .up = apart.data() + n / 2, .x_stride = n, .m = m, .dim = n / 2,
                         .y = apart.data(), .y_stride = n});
            params.y = y.data();
            MatmulThenSwiGlu(ctx, params);
            for (int64_t i = 0; i < m; ++i) {
              const size_t width = static_cast<size_t>(n / 2);
              ASSERT_EQ(FirstBitDifference({y.data() + i * n, width}, {apart.data() + i * n, width}), "")
                  << IsaName(isa) << " " << DTypeName(dtype) << " n=" << n << " m=" << m << " row " << i;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
