// Experts' products of sorted pairs against a plain matmul a pair; experts without pairs cost nothing.
#include "kernels/moe_matmul/moe_matmul.h"

#include <gtest/gtest.h>

#include "kernels/matmul/matmul_testing.h"

namespace cachalot {
namespace {

TEST(MoeMatmul, EachPairMeetsItsExpertAndTokensAddUp) {
  constexpr int32_t kTokens = 3, kTopK = 2;
  constexpr int64_t kN = 40, kK = 64;
  // Expert 1 has no pairs. Tokens 0: experts 0, 2; 1: 2, 3; 2: 0, 3.
  const std::vector<int32_t> expert_begin = {0, 2, 2, 4, 6};
  const std::vector<int32_t> token_rows = {0, 2, 0, 1, 1, 2};
  const std::vector<float> weights = {0.5f, 0.25f, 0.5f, 1.0f, 2.0f, 0.75f};
  const std::vector<int32_t> experts = {0, 0, 2, 2, 3, 3};
  for (const Isa isa : {Isa::kRef, BestIsa()}) {
    ThreadPool pool(2);
    Workspace workspace = Workspace::Allocate(16 << 20).value();
    ExecCounters counters;
    const ExecContext ctx = {.isa = isa, .pool = &pool, .workspace = &workspace, .counters = &counters};
    ExpertMatrices matrices;
    std::vector<TestWeight> sources;
    sources.reserve(4);
    for (int e = 0; e < 4; ++e) {
      sources.emplace_back(DType::kQ8_0, kN, kK, 11 + e);
      matrices.experts.push_back(sources.back().Pack(isa));
    }
    const MoePairs pairs = {.expert_begin = expert_begin.data(), .token_rows = token_rows.data(), .weights = weights.data(),
                            .num_tokens = kTokens, .top_k = kTopK};
    const std::vector<float> x = TestRng(5).NormalVector(kTokens * kK, 1.0f);
    std::vector<float> y(6 * kN);
    MoeMatmul(ctx, {.pairs = pairs, .x = x.data(), .x_stride = kK, .weights = &matrices, .y = y.data(), .y_stride = kN});
    EXPECT_EQ(counters.weight_bytes, 3 * matrices.experts[0].data_bytes) << "three experts of four were chosen";

    std::vector<float> residual(kTokens * kN, 1.0f), want_residual = residual, out(kN);
    const std::vector<float> inner = TestRng(6).NormalVector(6 * kK, 1.0f);
    MoeReduce(ctx, {.pairs = pairs, .x = inner.data(), .x_stride = kK, .weights = &matrices, .residual = residual.data(),
                    .residual_stride = kN});
    for (size_t p = 0; p < 6; ++p) {
      const PackedMatrix& matrix = matrices.experts[static_cast<size_t>(experts[p])];
      Matmul(ctx, {.x = x.data() + token_rows[p] * kK, .x_stride = kK, .m = 1, .weight = &matrix, .y = out.data(), .y_stride = kN});
      for (int64_t j = 0; j < kN; ++j) ASSERT_EQ(y[p * kN + static_cast<size_t>(j)], out[static_cast<size_t>(j)]) << "pair " << p;
      Matmul(ctx, {.x = inner.data() + p * kK, .x_stride = kK, .m = 1, .weight = &matrix, .y = out.data(), .y_stride = kN});
      for (int64_t j = 0; j < kN; ++j) want_residual[static_cast<size_t>(token_rows[p] * kN + j)] += weights[p] * out[static_cast<size_t>(j)];
    }
    for (size_t i = 0; i < residual.size(); ++i) EXPECT_NEAR(residual[i], want_residual[i], 1e-5f * std::abs(want_residual[i]) + 1e-5f);
    EXPECT_EQ(workspace.used(), 0);
  }
}

}  // namespace
}  // namespace cachalot
