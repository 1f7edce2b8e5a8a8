// The vector exponentials against double precision. Only the two wrappers are compiled for AVX2, so that the
// test binary still starts on a machine without it.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/cpu_features.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#include "kernels/common/exp_avx2.h"
namespace cachalot {
namespace {
void Exp8(const float* x, float* y) {
  _mm256_storeu_ps(y, Exp(_mm256_loadu_ps(x)));
}
void Exp2NonPositive8(const float* x, float* y) {
  _mm256_storeu_ps(y, Exp2NonPositive(_mm256_loadu_ps(x)));
}
}  // namespace
}  // namespace cachalot
#pragma GCC pop_options

namespace cachalot {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// In units of the last place of the exact result, subnormal spacing below the normal range.
double Ulps(float got, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::abs(got - exact) / std::ldexp(1.0, exponent - 23);
}

// Calls fn(x) for floats spread over all exponents: every 1999th bit pattern.
template <typename Fn>
void ForManyFloats(Fn&& fn) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 1999) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isnan(x)) fn(x);
  }
}

class ExpTest : public testing::Test {
 protected:
  void SetUp() override {
    if (BestIsa() < Isa::kAvx2) GTEST_SKIP() << "needs AVX2";
  }
};

TEST_F(ExpTest, ExpIsWithinTwoUlps) {
  double worst = 0;
  ForManyFloats([&](float x) {
    const float in[8] = {x, 0, x, 0, 0, 0, 0, x};
    float out[8];
    Exp8(in, out);
    ASSERT_EQ(out[0], out[2]);
    ASSERT_EQ(out[0], out[7]);
    ASSERT_EQ(out[1], 1.0f);
    const double exact = std::exp(double{x});
    if (exact > std::numeric_limits<float>::max()) {
      ASSERT_TRUE(out[0] == kInf || Ulps(out[0], exact) <= 2) << x;
    } else if (exact == 0) {
      ASSERT_EQ(out[0], 0);
    } else {
      worst = std::max(worst, Ulps(out[0], exact));
    }
  });
  EXPECT_LE(worst, 2);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST_F(ExpTest, Exp2IsWithinTwoUlpsAndFlushesToZero) {
  double worst = 0;
  ForManyFloats([&](float x) {
    if (x > 0) return;
    const float in[8] = {x, 0, 0, x, 0, 0, 0, 0};
    float out[8];
    Exp2NonPositive8(in, out);
    ASSERT_EQ(out[0], out[3]);
    ASSERT_EQ(out[1], 1.0f);
    if (x < -126) {
      ASSERT_EQ(out[0], 0);
    } else {
      worst = std::max(worst, Ulps(out[0], std::exp2(double{x})));
    }
  });
  EXPECT_LE(worst, 2);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST_F(ExpTest, SpecialValues) {
  const float in[8] = {NAN, -kInf, kInf, 0, -0.0f, 88.72f, 88.73f, -104};
  float out[8];
  Exp8(in, out);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], 0);
  EXPECT_EQ(out[2], kInf);
  EXPECT_EQ(out[3], 1);
  EXPECT_EQ(out[4], 1);
  EXPECT_LT(out[5], kInf);
  EXPECT_EQ(out[6], kInf);
  EXPECT_EQ(out[7], 0);
  Exp2NonPositive8(in, out);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], 0);
  EXPECT_EQ(out[3], 1);
  EXPECT_EQ(out[4], 1);
}

}  // namespace
}  // namespace cachalot
#endif
