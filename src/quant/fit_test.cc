#include "quant/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "quant/format.h"

namespace cachalot {
namespace {

TEST(Fit, FindsWhatIsExactlyThere) {
  float x[16];
  uint8_t q[16];
  for (int i = 0; i < 16; ++i) x[i] = 0.75f * static_cast<float>(i % 8 - 4);
  EXPECT_FLOAT_EQ(FitSymmetric(x, nullptr, 16, -4, 3, q), 0.75f);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(q[i], i % 8);

  for (int i = 0; i < 16; ++i) x[i] = 0.5f * static_cast<float>(i) - 3.0f;
  const AffineFit fit = FitAffine(x, nullptr, 16, 15, false, q);
  EXPECT_NEAR(fit.scale, 0.5f, 1e-6f);
  EXPECT_NEAR(fit.min, -3.0f, 1e-5f);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(q[i], i);
}

// Where a minimum must not be positive, values that lie high are reached from zero.
TEST(Fit, OnlyBelow) {
  float x[16];
  uint8_t q[16];
  for (int i = 0; i < 16; ++i) x[i] = 10.0f + static_cast<float>(i);
  const AffineFit fit = FitAffine(x, nullptr, 16, 15, true, q);
  EXPECT_LE(fit.min, 0.0f);
  EXPECT_NEAR(fit.scale * static_cast<float>(q[15]) + fit.min, 25.0f, 1.0f);
}

// An outlier that costs the others more than it gains is cut, unless it is what matters.
TEST(Fit, ImportanceDecides) {
  std::vector<float> x(32), importance(32, 1.0f);
  for (int i = 0; i < 32; ++i) x[i] = std::sin(static_cast<float>(i));
  x[5] = -2.2f;
  uint8_t q[32];
  const auto miss = [&](const float* weights) {
    const float scale = FitSymmetric(x.data(), weights, 32, -4, 3, q);
    return std::fabs(x[5] - scale * static_cast<float>(q[5] - 4));
  };
  const float before = miss(importance.data());
  importance[5] = 1000;
  EXPECT_LT(miss(importance.data()), before);
  EXPECT_LT(miss(importance.data()), 0.01f);
}

// Normal values, as weights are: the root mean square of the error over that of the values. What is measured,
// rounded up; theory's best for a Gaussian at these rates is lower, coarser searches are higher.
TEST(Fit, ErrorsOfNormalValues) {
  std::vector<float> x(256 * 64);
  uint64_t state = 1;
  const auto uniform = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (static_cast<double>(state >> 11) + 0.5) * 0x1p-53;
  };
  for (float& value : x) {
    value = static_cast<float>(std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform()));
  }
  const struct {
    DType dtype;
    double most;
  } kBounds[] = {{DType::kQ4_0, 0.088},  {DType::kQ4_1, 0.079},   {DType::kQ5_0, 0.043},
                 {DType::kQ5_1, 0.038},  {DType::kIQ4_NL, 0.080}, {DType::kQ2_K, 0.32},
                 {DType::kQ3_K, 0.17},   {DType::kQ4_K, 0.08},    {DType::kQ5_K, 0.04},
                 {DType::kQ6_K, 0.0195}, {DType::kIQ4_XS, 0.080}};
  for (const auto& bound : kBounds) {
    const QuantFormat* format = FindQuantFormat(bound.dtype);
    std::vector<std::byte> bytes(DTypeBytes(bound.dtype, x.size()));
    std::vector<float> back(x.size());
    format->encode_weighted(x.data(), nullptr, bytes.data(), x.size());
    format->decode(bytes.data(), back.data(), x.size());
    double error = 0, square = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = static_cast<double>(x[i]), rest = static_cast<double>(back[i]) - value;
      error += rest * rest;
      square += value * value;
    }
    EXPECT_LE(std::sqrt(error / square), bound.most) << DTypeName(bound.dtype);
  }
}

}  // namespace
}  // namespace cachalot
