// Heads' products against a plain matmul a head, and the same bits alone and in a batch.
#include "kernels/head_matmul/head_matmul.h"

#include <gtest/gtest.h>

#include "kernels/matmul/matmul_testing.h"

namespace cachalot {
namespace {

struct Fixture {
  ThreadPool pool{2};
  Workspace workspace = Workspace::Allocate(16 << 20).value();
  ExecContext ctx;
  explicit Fixture(Isa isa) { ctx = {.isa = isa, .pool = &pool, .workspace = &workspace}; }
};

TEST(HeadMatmul, IsAMatmulOfEachHead) {
  constexpr int32_t kHeads = 3;
  constexpr int64_t kN = 20, kK = 48, kStride = kHeads * (kK + 5), kOut = kHeads * (kN + 2);
  for (const Isa isa : {Isa::kRef, BestIsa()}) {
    Fixture f(isa);
    HeadMatrices weights{.matrices = {}, .num_heads = kHeads, .n = kN, .k = kK};
    std::vector<TestWeight> sources;
    sources.reserve(kHeads);
    for (int h = 0; h < kHeads; ++h) {
      sources.emplace_back(DType::kF16, kN, kK, 7 + h);
      weights.matrices.push_back(sources.back().Pack(isa));
    }
    for (const int64_t m : {1, 2, 9}) {
      const std::vector<float> x = TestRng(3).NormalVector(m * kStride, 1.0f);
      std::vector<float> y(static_cast<size_t>(m * kOut), -1.0f);
      HeadMatmul(f.ctx, {.x = x.data(), .x_stride = kStride, .x_head_stride = kK + 5, .m = m, .weights = &weights,
                         .y = y.data(), .y_stride = kOut, .y_head_stride = kN + 2});
      for (int64_t i = 0; i < m; ++i) {
        for (int h = 0; h < kHeads; ++h) {
          std::vector<float> want(kN);
          Matmul(f.ctx, {.x = x.data() + i * kStride + h * (kK + 5), .x_stride = kK, .m = 1,
                         .weight = &weights.matrices[static_cast<size_t>(h)], .y = want.data(), .y_stride = kN});
          const float* got = y.data() + i * kOut + h * (kN + 2);
          for (int64_t j = 0; j < kN; ++j) ASSERT_EQ(got[j], want[static_cast<size_t>(j)]) << "row " << i << " head " << h;
          EXPECT_EQ(got[kN], -1.0f) << "beyond the head";
        }
      }
    }
    EXPECT_EQ(f.workspace.used(), 0);
  }
}

TEST(CopyHeads, CopiesOnlyItsPart) {
  Fixture f(Isa::kRef);
  const std::vector<float> x = TestRng(1).NormalVector(2 * 3 * 10, 1.0f);
  std::vector<float> y(2 * 3 * 8, -1.0f);
  CopyHeads(f.ctx, {.x = x.data() + 6, .x_stride = 30, .x_head_stride = 10, .m = 2, .num_heads = 3, .dim = 4,
                    .y = y.data() + 2, .y_stride = 24, .y_head_stride = 8});
  for (int i = 0; i < 2; ++i) {
    for (int h = 0; h < 3; ++h) {
      for (int d = 0; d < 8; ++d) {
        const float want = d >= 2 && d < 6 ? x[static_cast<size_t>(i * 30 + h * 10 + 6 + d - 2)] : -1.0f;
        EXPECT_EQ(y[static_cast<size_t>(i * 24 + h * 8 + d)], want);
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
