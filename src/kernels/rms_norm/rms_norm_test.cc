#include "kernels/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/common/testing.h"

namespace cachalot {
namespace {

TEST(RmsNorm, HandWorked) {
  for (Isa isa : TestableIsas()) {
    TestContext ctx(isa);
    // mean of squares (9 + 16) / 2 = 12.5; with eps 3.5 the root is 4.
    const float x[] = {3, -4}, weight[] = {2, 0.5f};
    float y[2];
    RmsNorm(ctx,
            {.x = x, .token_stride_x = 2, .num_tokens = 1, .dim = 2, .weight = weight, .eps = 3.5f, .y = y});
    EXPECT_FLOAT_EQ(y[0], 1.5f) << IsaName(isa);
    EXPECT_FLOAT_EQ(y[1], -0.5f) << IsaName(isa);
    EXPECT_EQ(ctx.counters().generic_calls, 0);
  }
}

struct Shape {
  int64_t tokens, heads, dim, head_gap, token_gap;
};

std::vector<float> RunOp(Isa isa, int threads, const Shape& s, const std::vector<float>& input,
                         bool in_place) {
  TestContext ctx(isa, threads);
  TestRng rng(7);
  const std::vector<float> weight = rng.NormalVector(s.dim);
  const int64_t head_stride = s.dim + s.head_gap, token_stride = s.heads * head_stride + s.token_gap;
  GuardedBuffer<float> x(s.tokens * token_stride), y(s.tokens * token_stride);
  std::copy(input.begin(), input.end(), x.data());
  float* out = in_place ? x.data() : y.data();
  RmsNorm(ctx, {.x = x.data(),
                .token_stride_x = token_stride,
                .head_stride_x = head_stride,
                .num_tokens = s.tokens,
                .num_heads = s.heads,
                .dim = s.dim,
                .weight = weight.data(),
                .eps = 1e-5f,
                .y = out,
                .token_stride_y = token_stride,
                .head_stride_y = head_stride});
  EXPECT_TRUE(x.Intact() && y.Intact());
  std::vector<float> rows;
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const float* row = out + t * token_stride + h * head_stride;
      rows.insert(rows.end(), row, row + s.dim);
      for (int64_t gap = 0; gap < s.head_gap && !in_place; ++gap) {
        EXPECT_TRUE(y.Poisoned(t * token_stride + h * head_stride + s.dim + gap));
      }
    }
  }
  return rows;
}

TEST(RmsNorm, EveryVariantAgainstTheReference) {
  const Shape shapes[] = {{1, 1, 1, 0, 0},    {3, 1, 7, 5, 3},   {2, 3, 8, 0, 0},    {1, 1, 31, 0, 1},
                          {5, 4, 64, 8, 100}, {2, 1, 129, 0, 0}, {33, 1, 576, 0, 0}, {1, 1, 7168, 0, 0},
                          {7, 32, 128, 0, 9}, {300, 1, 96, 0, 0}};
  for (const Shape& s : shapes) {
    TestRng rng(s.dim);
    const int64_t count = s.tokens * (s.heads * (s.dim + s.head_gap) + s.token_gap);
    const std::vector<float> input = rng.NormalVector(count, 3.0f);
    const std::vector<float> want = RunOp(Isa::kRef, 1, s, input, false);
    for (Isa isa : TestableIsas()) {
      SCOPED_TRACE(fmt::format("{} [{}, {}, {}]", IsaName(isa), s.tokens, s.heads, s.dim));
      const std::vector<float> got = RunOp(isa, 1, s, input, false);
      const Comparison c = Compare(got, want, ToleranceFor(OpClass::kNorm));
      EXPECT_TRUE(c.ok) << c.message;
      EXPECT_EQ(FirstBitDifference(RunOp(isa, 3, s, input, false), got), "");
      EXPECT_EQ(FirstBitDifference(RunOp(isa, 1, s, input, true), got), "");
    }
  }
}

TEST(RmsNorm, ARowAloneHasTheSameBits) {
  const Shape batch{64, 1, 576, 0, 0};
  TestRng rng(1);
  const std::vector<float> input = rng.NormalVector(64 * 576);
  for (Isa isa : TestableIsas()) {
    const std::vector<float> all = RunOp(isa, 2, batch, input, false);
    for (int64_t t : {0, 1, 37, 63}) {
      const std::vector<float> row(input.begin() + t * 576, input.begin() + (t + 1) * 576);
      const std::vector<float> alone = RunOp(isa, 1, {1, 1, 576, 0, 0}, row, false);
      EXPECT_EQ(FirstBitDifference(alone, std::span(all).subspan(t * 576, 576)), "");
    }
  }
}

TEST(RmsNorm, StridesBeyond32Bits) {
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  SparseFloats x(2 * kStride), y(2 * kStride);
  const std::vector<float> weight(16, 1.0f);
  for (int i = 0; i < 16; ++i) x.data()[kStride + i] = 2;
  for (Isa isa : TestableIsas()) {
    TestContext ctx(isa, 2);
    RmsNorm(ctx, {.x = x.data(),
                  .token_stride_x = kStride,
                  .num_tokens = 2,
                  .dim = 16,
                  .weight = weight.data(),
                  .eps = 0,
                  .y = y.data(),
                  .token_stride_y = kStride});
    EXPECT_EQ(y.data()[kStride + 15], 1.0f);
  }
}

TEST(RmsNorm, EmptyBatchTouchesNothing) {
  TestContext ctx(BestIsa());
  RmsNorm(ctx, {.num_tokens = 0, .dim = 8});
}

TEST(RmsNorm, ZerosAndNans) {
  for (Isa isa : TestableIsas()) {
    std::vector<float> input(40, 0.0f);
    for (float v : RunOp(isa, 1, {1, 1, 40, 0, 0}, input, false)) EXPECT_EQ(v, 0.0f);
    input[39] = NAN;
    for (float v : RunOp(isa, 1, {1, 1, 40, 0, 0}, input, false)) EXPECT_TRUE(std::isnan(v));
  }
}

}  // namespace
}  // namespace cachalot
