#include "kernels/swiglu/swiglu.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/common/testing.h"

namespace cachalot {
namespace {

TEST(SwiGlu, HandWorked) {
  for (Isa isa : TestableIsas()) {
    TestContext ctx(isa);
    // silu(ln 3) = ln 3 / (1 + 1/3) = 0.75 ln 3; silu(-ln 3) = -0.25 ln 3; silu(0) = 0.
    const float ln3 = std::log(3.0f);
    const float gate[] = {ln3, -ln3, 0, 100, -100, -INFINITY, INFINITY};
    const float up[] = {2, 4, 5, 3, 7, 1, 1};
    float y[7];
    SwiGlu(ctx, {.gate = gate, .up = up, .x_stride = 7, .m = 1, .dim = 7, .y = y, .y_stride = 7});
    EXPECT_FLOAT_EQ(y[0], 1.5f * ln3);
    EXPECT_FLOAT_EQ(y[1], -ln3);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], 300);
    EXPECT_NEAR(y[4], 0, 1e-30);
    EXPECT_TRUE(std::isnan(y[5]));  // -inf / inf, as the formula has it
    EXPECT_EQ(y[6], INFINITY);
  }
}

struct Shape {
  int64_t m, dim, x_gap, y_gap;
};

std::vector<float> RunOp(Isa isa, int threads, const Shape& s, const std::vector<float>& input,
                         bool in_place) {
  TestContext ctx(isa, threads);
  const int64_t x_stride = 2 * s.dim + s.x_gap, y_stride = in_place ? x_stride : s.dim + s.y_gap;
  GuardedBuffer<float> x(s.m * x_stride), y(s.m * y_stride);
  for (int64_t row = 0; row < s.m; ++row) {
    std::copy_n(input.begin() + row * 2 * s.dim, 2 * s.dim, x.data() + row * x_stride);
  }
  float* out = in_place ? x.data() : y.data();
  SwiGlu(ctx, {.gate = x.data(),
               .up = x.data() + s.dim,
               .x_stride = x_stride,
               .m = s.m,
               .dim = s.dim,
               .y = out,
               .y_stride = y_stride});
  EXPECT_TRUE(x.Intact() && y.Intact());
  std::vector<float> rows;
  for (int64_t row = 0; row < s.m; ++row) {
    rows.insert(rows.end(), out + row * y_stride, out + row * y_stride + s.dim);
    for (int64_t gap = s.dim; gap < y_stride && !in_place; ++gap)
      EXPECT_TRUE(y.Poisoned(row * y_stride + gap));
  }
  return rows;
}

TEST(SwiGlu, EveryVariantAgainstTheReference) {
  const Shape shapes[] = {{1, 1, 0, 0},    {1, 7, 3, 2},    {3, 8, 0, 0},    {2, 33, 1, 64},
                          {1, 1536, 0, 0}, {5, 2050, 6, 6}, {40, 1000, 0, 0}};
  for (const Shape& s : shapes) {
    TestRng rng(s.dim);
    std::vector<float> input = rng.NormalVector(s.m * 2 * s.dim, 4.0f);
    for (size_t i = 0; i < input.size(); i += 29) input[i] = rng.Uniform(-120.0f, 120.0f);
    const std::vector<float> want = RunOp(Isa::kRef, 1, s, input, false);
    for (Isa isa : TestableIsas()) {
      SCOPED_TRACE(fmt::format("{} [{}, {}]", IsaName(isa), s.m, s.dim));
      const std::vector<float> got = RunOp(isa, 1, s, input, false);
      const Comparison c = Compare(got, want, ToleranceFor(OpClass::kPointwise));
      EXPECT_TRUE(c.ok) << c.message;
      EXPECT_EQ(FirstBitDifference(RunOp(isa, 3, s, input, false), got), "");
      EXPECT_EQ(FirstBitDifference(RunOp(isa, 1, s, input, true), got), "");
    }
  }
}

TEST(SwiGlu, StridesBeyond32Bits) {
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  SparseFloats x(2 * kStride), y(2 * kStride);
  for (int i = 0; i < 32; ++i) x.data()[kStride + i] = i < 16 ? 100 : 3;
  for (Isa isa : TestableIsas()) {
    TestContext ctx(isa, 2);
    SwiGlu(ctx, {.gate = x.data(),
                 .up = x.data() + 16,
                 .x_stride = kStride,
                 .m = 2,
                 .dim = 16,
                 .y = y.data(),
                 .y_stride = kStride});
    EXPECT_EQ(y.data()[kStride + 15], 300.0f);
  }
}

TEST(SwiGlu, AValueDoesNotDependOnItsLane) {
  for (Isa isa : TestableIsas()) {
    TestRng rng(3);
    const std::vector<float> input = rng.NormalVector(2 * 77, 5.0f);
    const std::vector<float> all = RunOp(isa, 1, {1, 77, 0, 0}, input, false);
    for (int64_t i = 0; i < 77; ++i) {
      const std::vector<float> one = RunOp(isa, 1, {1, 1, 0, 0}, {input[i], input[77 + i]}, false);
      EXPECT_EQ(FirstBitDifference(one, std::span(all).subspan(i, 1)), "") << i;
    }
  }
}

}  // namespace
}  // namespace cachalot
