// The grouped form against loops of single matmuls: the same bits.
#include <gtest/gtest.h>

#include "kernels/matmul/matmul_testing.h"

namespace cachalot {
namespace {

constexpr int64_t kN = 52, kK = 256;

std::vector<PackedMatrix> Experts(DType dtype, Isa isa, int count) {
  std::vector<PackedMatrix> experts;
  for (int e = 0; e < count; ++e) experts.push_back(TestWeight(dtype, kN, kK, 50 + e).Pack(isa));
  return experts;
}

// One row through one weight.
std::vector<float> Row(const ExecContext& ctx, const PackedMatrix& weight, const float* x) {
  std::vector<float> y(weight.n);
  Matmul(ctx, {.x = x, .x_stride = weight.k, .m = 1, .weight = &weight, .y = y.data(), .y_stride = weight.n});
  return y;
}

// Expert e takes rows_of[e]; the first 0 and 7 of them are the corners: nothing, and all tokens.
std::vector<std::vector<int32_t>> Routing(int num_experts, int num_tokens) {
  TestRng rng(60);
  std::vector<std::vector<int32_t>> rows_of(num_experts);
  for (int e = 1; e < num_experts; ++e) {
    std::vector<int32_t> order = rng.Permutation(num_tokens);
    order.resize(e == 2 ? num_tokens : rng.Int(0, num_tokens / 2));
    rows_of[e] = order;
  }
  return rows_of;
}

// Experts' first matmuls: rows gathered from one x, written one after the other.
TEST(GroupedMatmul, GatherEqualsSingles) {
  constexpr int kExperts = 6, kTokens = 23;
  TestRng rng(61);
  const std::vector<float> x = rng.NormalVector(kTokens * kK);
  const auto rows_of = Routing(kExperts, kTokens);
  for (const QuantFormat& format : AllQuantFormats()) {
    for (Isa isa : TestableIsas()) {
      SCOPED_TRACE(fmt::format("{} {}", DTypeName(format.dtype), IsaName(isa)));
      const auto experts = Experts(format.dtype, isa, kExperts);
      TestContext single(isa);
      std::vector<float> want;
      int64_t total = 0, active = 0;
      for (int e = 0; e < kExperts; ++e) {
        for (int32_t row : rows_of[e]) {
          const auto y = Row(single, experts[e], x.data() + row * kK);
          want.insert(want.end(), y.begin(), y.end());
        }
        total += rows_of[e].size();
        active += !rows_of[e].empty();
      }
      for (int threads : {1, 2, 3}) {
        TestContext ctx(isa, threads, MatmulWorkspaceBytes(total, kK, threads));
        GuardedBuffer<float> y(total * kN);
        std::vector<MatmulGroup> groups;
        float* to = y.data();
        for (int e = 0; e < kExperts; ++e) {
          const int64_t m = rows_of[e].size();
          groups.push_back({.weight = &experts[e],
                            .m = m,
                            .x = x.data(),
                            .x_stride = kK,
                            .x_rows = rows_of[e].data(),
                            .y = to,
                            .y_stride = kN});
          to += m * kN;
        }
        GroupedMatmul(ctx, {.groups = groups});
        EXPECT_TRUE(y.Intact());
        EXPECT_EQ(FirstBitDifference(y.span(), want), "");
        EXPECT_EQ(ctx.counters().weight_bytes, active * experts[0].data_bytes);
        EXPECT_EQ(ctx.workspace().used(), 0);
      }
    }
  }
}

// Experts' last matmuls: rows one after the other, weighted and added to one y in the order of the experts.
TEST(GroupedMatmul, WeightedScatterEqualsSingles) {
  constexpr int kExperts = 6, kTokens = 23;
  const auto rows_of = Routing(kExperts, kTokens);
  for (const QuantFormat& format : AllQuantFormats()) {
    for (Isa isa : TestableIsas()) {
      SCOPED_TRACE(fmt::format("{} {}", DTypeName(format.dtype), IsaName(isa)));
      TestRng rng(62);
      const auto experts = Experts(format.dtype, isa, kExperts);
      TestContext single(isa);
      const std::vector<float> before = rng.NormalVector(kTokens * kN);
      std::vector<float> want = before;
      std::vector<std::vector<float>> x, scales;
      int64_t total = 0;
      for (int e = 0; e < kExperts; ++e) {
        const int64_t m = rows_of[e].size();
        x.push_back(rng.NormalVector(m * kK));
        scales.push_back(rng.NormalVector(m));
        total += m;
        for (int64_t i = 0; i < m; ++i) {
          const auto y = Row(single, experts[e], x[e].data() + i * kK);
          for (int64_t j = 0; j < kN; ++j) {
            const float product = y[j] * scales[e][i];
            want[rows_of[e][i] * kN + j] += product;
          }
        }
      }
      for (int threads : {1, 2, 3}) {
        TestContext ctx(isa, threads, MatmulWorkspaceBytes(total, kK, threads));
        std::vector<float> y = before;
        std::vector<MatmulGroup> groups;
        for (int e = 0; e < kExperts; ++e) {
          groups.push_back({.weight = &experts[e],
                            .m = static_cast<int64_t>(rows_of[e].size()),
                            .x = x[e].data(),
                            .x_stride = kK,
                            .y = y.data(),
                            .y_stride = kN,
                            .y_rows = rows_of[e].data(),
                            .row_scale = scales[e].data()});
        }
        GroupedMatmul(ctx, {.groups = groups, .accumulate = true});
        if (isa == Isa::kRef) {  // it rounds once, after scale and sum in double
          EXPECT_TRUE(Compare(y, want, ToleranceFor(OpClass::kMatmul)).ok);
        } else {
          EXPECT_EQ(FirstBitDifference(y, want), "");
        }
      }
    }
  }
}

// Heads as groups: the same x at different offsets, no lists. Rows reach beyond the sum of the groups' rows
// in one (sparse choice from a large x), so the shared form of the activations would not pay.
TEST(GroupedMatmul, SeparateAndSparseRows) {
  constexpr int kHeads = 3, kRows = 5;
  TestRng rng(63);
  const std::vector<float> x = rng.NormalVector(kRows * kHeads * kK);
  const int32_t sparse[] = {14, 0};
  for (const QuantFormat& format : AllQuantFormats()) {
    for (Isa isa : TestableIsas()) {
      const auto heads = Experts(format.dtype, isa, kHeads);
      TestContext ctx(isa, 2, MatmulWorkspaceBytes(kHeads * kRows, kK, 2));
      std::vector<float> y(kRows * kHeads * kN);
      std::vector<MatmulGroup> groups;
      for (int h = 0; h < kHeads; ++h) {
        groups.push_back({.weight = &heads[h],
                          .m = kRows,
                          .x = x.data() + h * kK,
                          .x_stride = kHeads * kK,
                          .y = y.data() + h * kN,
                          .y_stride = kHeads * kN});
      }
      GroupedMatmul(ctx, {.groups = groups});
      for (int64_t i = 0; i < kRows * kHeads; ++i) {
        const auto want = Row(ctx, heads[i % kHeads], x.data() + i * kK);
        EXPECT_EQ(FirstBitDifference({y.data() + i * kN, kN}, want), "");
      }

      std::vector<float> few(2 * kN);
      const MatmulGroup group = {.weight = &heads[1],
                                 .m = 2,
                                 .x = x.data(),
                                 .x_stride = kK,
                                 .x_rows = sparse,
                                 .y = few.data(),
                                 .y_stride = kN};
      TestContext small(isa, 2, MatmulWorkspaceBytes(2, kK, 2));
      GroupedMatmul(small, {.groups = {&group, 1}});
      for (int i = 0; i < 2; ++i) {
        const auto want = Row(ctx, heads[1], x.data() + sparse[i] * kK);
        EXPECT_EQ(FirstBitDifference({few.data() + i * kN, kN}, want), "");
      }
    }
  }
}

TEST(GroupedMatmul, NothingToDo) {
  for (Isa isa : TestableIsas()) {
    const auto experts = Experts(DType::kQ8_0, isa, 2);
    TestContext ctx(isa);
    GroupedMatmul(ctx, {});
    const MatmulGroup empty[] = {{.weight = &experts[0]}, {.weight = &experts[1]}};
    GroupedMatmul(ctx, {.groups = empty});
    EXPECT_EQ(ctx.counters().weight_bytes, 0);
  }
}

}  // namespace
}  // namespace cachalot
