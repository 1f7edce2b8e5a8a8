// F16 and BF16 weights read as 16-bit integers (matmul/int16_tile.h): which calls do, and what it costs.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/matmul/matmul_testing.h"

namespace cachalot {
namespace {

constexpr DType kTypes[] = {DType::kF16, DType::kBF16};

std::vector<Isa> FastIsas() {
  std::vector<Isa> isas = TestableIsas();
  isas.erase(isas.begin());
  return isas;
}

std::vector<float> Product(const ExecContext& ctx, const PackedMatrix& weight, const float* x, int64_t m) {
  std::vector<float> y(m * weight.n);
  Matmul(ctx, {.x = x, .x_stride = weight.k, .m = m, .weight = &weight, .y = y.data(), .y_stride = weight.n});
  return y;
}

std::vector<float> ExactChain(const PackedMatrix& weight, Isa isa, const float* x, int64_t m) {
  TestContext ctx(isa, 2);
  ExecContext exec = ctx;
  exec.deterministic = true;
  return Product(exec, weight, x, m);
}

// Each 128 of a row: q * scale, with |q| <= norm and each q within 16 bits.
std::vector<float> Rounded(std::vector<float> rows, int64_t k, double limit) {
  for (size_t row = 0; row < rows.size(); row += k) {
    for (int64_t k0 = 0; k0 < k; k0 += 128) {
      const int64_t end = std::min(k, k0 + 128);
      double squares = 0, largest = 0;
      for (int64_t j = k0; j < end; ++j) {
        squares += double{rows[row + j]} * rows[row + j];
        largest = std::max(largest, std::fabs(double{rows[row + j]}));
      }
      const double scale = std::max(std::sqrt(squares) / limit, largest / 32767);
      for (int64_t j = k0; j < end && scale > 0; ++j) {
        rows[row + j] = static_cast<float>(std::nearbyint(rows[row + j] / scale) * scale);
      }
    }
  }
  return rows;
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    squares += double{want[i]} * want[i];
  }
  return std::sqrt(error / squares);
}

// The rounding of both sides is known; beyond it the product is as close as F32's. Depths with a short last block and
// with several pieces of k; columns that do not fill a panel.
TEST(MatmulInt16, IsTheProductOfTheRoundedSides) {
  TestRng rng(30);
  for (DType dtype : kTypes) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{300, 1056}, {70, 4256}, {512, 576}}) {
      const TestWeight w(dtype, n, k, 31);
      const std::vector<float> weights = Rounded(w.Decoded(), k, 32760);
      for (int64_t m : {32, 37, 75}) {
        const std::vector<float> x = rng.NormalVector(m * k);
        const std::vector<float> want = Definition(Rounded(x, k, 65530), weights, m, n, k);
        for (Isa isa : FastIsas()) {
          TestContext ctx(isa, 2);
          const std::vector<float> got = Product(ctx, w.Pack(isa), x.data(), m);
          // A value between two integers may go the other way; all of the rounding is 1.1e-4.
          const double error = RelativeError(got, want);
          EXPECT_LT(error, 1e-5) << DTypeName(dtype) << " " << IsaName(isa) << " m=" << m << " k=" << k;
          EXPECT_EQ(ctx.counters().generic_calls, 0);
          EXPECT_EQ(ctx.workspace().used(), 0);
        }
      }
    }
  }
}

// What it costs: less than rounding x to F16 would, on ordinary values and with one that outweighs its block.
TEST(MatmulInt16, CostsLessThanRoundingXToF16) {
  TestRng rng(32);
  const int64_t m = 48, n = 256, k = 1152;
  for (DType dtype : kTypes) {
    const TestWeight w(dtype, n, k, 33);
    for (float outlier : {0.0f, 30.0f, 1000.0f}) {
      std::vector<float> x = rng.NormalVector(m * k);
      if (outlier != 0) {
        for (int64_t i = 0; i < m; ++i) x[i * k + i * 17] = outlier * 1.0003f;
      }
      std::vector<float> half = x;
      for (float& v : half) v = F16ToF32(F32ToF16(v));
      const std::vector<float> exact = Definition(x, w.Decoded(), m, n, k);
      const double of_half = RelativeError(Definition(half, w.Decoded(), m, n, k), exact);
      for (Isa isa : FastIsas()) {
        TestContext ctx(isa, 2);
        const double error = RelativeError(Product(ctx, w.Pack(isa), x.data(), m), exact);
        EXPECT_LT(error, 1.4e-4) << DTypeName(dtype) << " outlier " << outlier;
        EXPECT_LT(error, of_half) << DTypeName(dtype) << " outlier " << outlier;
      }
    }
  }
}

// Cauchy and Schwarz's bound met: both sides of a block alike, and everything in one value.
TEST(MatmulInt16, SumsDoNotOverflow) {
  const int64_t m = 32, n = 512, k = 512;
  TestRng rng(34);
  const std::vector<float> pattern = rng.NormalVector(k);
  for (DType dtype : kTypes) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> row(k);
      for (int64_t j = 0; j < k; ++j) {
        row[j] = kind == 0 ? 1.0f : kind == 1 ? -0.75f : kind == 2 ? pattern[j] : j % 128 == 5 ? 3.0f : 0.0f;
      }
      TestWeight w(dtype, n, k, 35);
      std::vector<float> all;
      for (int64_t j = 0; j < n; ++j) all.insert(all.end(), row.begin(), row.end());
      FindQuantFormat(dtype)->encode(all.data(), w.bytes.data(), n * k);
      const std::vector<float> decoded = w.Decoded();
      for (float sign : {1.0f, -1.0f}) {
        std::vector<float> x;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < k; ++j) x.push_back(sign * decoded[j]);
        }
        const std::vector<float> want = Definition(x, decoded, m, n, k);
        for (Isa isa : FastIsas()) {
          TestContext ctx(isa, 2);
          // Equal values round alike: by half a unit of each side.
          EXPECT_LT(RelativeError(Product(ctx, w.Pack(isa), x.data(), m), want), 0.5 / 2895 + 0.5 / 5791) << kind << sign;
        }
      }
    }
  }
}

// Rows enough against a matrix large enough, and not where the caller wants one form of everything.
TEST(MatmulInt16, IsTakenByTheNumberOfRows) {
  TestRng rng(36);
  const int64_t n = 512, k = 512;
  const std::vector<float> x = rng.NormalVector(40 * k);
  for (Isa isa : FastIsas()) {
    for (DType dtype : kTypes) {
      const PackedMatrix large = TestWeight(dtype, n, k, 37).Pack(isa);
      const PackedMatrix small = TestWeight(dtype, n - 16, k, 37).Pack(isa);
      TestContext ctx(isa, 2);
      const auto differs = [&](const PackedMatrix& weight, int64_t m) {
        return !FirstBitDifference(Product(ctx, weight, x.data(), m), ExactChain(weight, isa, x.data(), m)).empty();
      };
      EXPECT_FALSE(differs(large, 31));
      EXPECT_TRUE(differs(large, 32));
      EXPECT_FALSE(differs(small, 40));
    }
    const PackedMatrix f32 = TestWeight(DType::kF32, n, k, 37).Pack(isa);
    TestContext ctx(isa, 2);
    EXPECT_EQ(FirstBitDifference(Product(ctx, f32, x.data(), 40), ExactChain(f32, isa, x.data(), 40)), "");
  }
}

// Among calls that do, a row's bits depend neither on the others nor on threads, instruction set or the way the rows
// are handed over.
TEST(MatmulInt16, ARowHasTheSameBitsInAnyLargeBatch) {
  TestRng rng(38);
  const int64_t n = 200, k = 2336, kMaxRows = 140;
  const std::vector<float> x = rng.NormalVector(kMaxRows * k);
  for (DType dtype : kTypes) {
    const TestWeight w(dtype, n, k, 39);
    std::vector<float> first;
    for (Isa isa : FastIsas()) {
      const PackedMatrix weight = w.Pack(isa);
      for (int threads : {1, 3}) {
        TestContext ctx(isa, threads);
        for (int64_t m : {140, 32, 33, 41, 97}) {
          const std::vector<float> y = Product(ctx, weight, x.data(), m);
          if (first.empty()) first = y;
          EXPECT_EQ(FirstBitDifference(y, {first.data(), static_cast<size_t>(m * n)}), "") << IsaName(isa) << m;
        }
        // As two groups, the rows reversed through lists.
        std::vector<int32_t> lists[2];
        std::vector<float> y(100 * n);
        std::vector<MatmulGroup> groups(3);
        for (int g = 0; g < 2; ++g) {
          for (int32_t i = 0; i < 50; ++i) lists[g].push_back(99 - (g * 50 + i));
          groups[g] = {.weight = &weight, .m = 50, .x = x.data(), .x_stride = k, .x_rows = lists[g].data(),
                       .y = y.data(), .y_stride = n, .y_rows = lists[g].data()};
        }
        groups[2].weight = &weight;  // without rows
        GroupedMatmul(ctx, {.groups = groups});
        EXPECT_EQ(FirstBitDifference(y, {first.data(), static_cast<size_t>(100 * n)}), "") << IsaName(isa);
      }
    }
  }
}

// A NaN shows in its row, or its column, and nowhere else; zeros on either side stay zeros.
TEST(MatmulInt16, NaNAndZeroGoWhereTheyBelong) {
  const int64_t m = 35, n = 530, k = 512;
  TestRng rng(40);
  for (DType dtype : kTypes) {
    TestWeight w(dtype, n, k, 41);
    for (int64_t j = 0; j < k; ++j) w.bytes[(3 * k + j) * 2] = w.bytes[(3 * k + j) * 2 + 1] = std::byte{0};
    w.bytes[(20 * k + 300) * 2] = std::byte{0xff};  // 0x7fff is a NaN of either type
    w.bytes[(20 * k + 300) * 2 + 1] = std::byte{0x7f};
    std::vector<float> x = rng.NormalVector(m * k);
    x[7 * k + 100] = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(x.begin() + 9 * k, k, 0.0f);
    for (Isa isa : FastIsas()) {
      TestContext ctx(isa, 2);
      const std::vector<float> y = Product(ctx, w.Pack(isa), x.data(), m);
      for (int64_t i = 0; i < m * n; ++i) {
        const int64_t row = i / n, column = i % n;
        ASSERT_EQ(std::isnan(y[i]), row == 7 || column == 20) << row << " " << column;
        if (std::isnan(y[i])) continue;
        if (row == 9 || column == 3) {
          ASSERT_EQ(y[i], 0.0f) << row << " " << column;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
