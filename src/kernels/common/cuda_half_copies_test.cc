// CudaHalfCopies: a copy is found by exactly the rows that it is of, and by nobody once they may have changed.
#include "kernels/common/cuda_half_copies.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

constexpr int64_t kRows = 16, kDim = 256, kStride = 300;

class CudaHalfCopiesTest : public testing::Test {
 protected:
  CudaHalfCopiesTest() {
    copies_.Provide(CudaHalfSource::kNorm, {reinterpret_cast<std::byte*>(0x100), kRows * kDim * 2, 9});
    copies_.Provide(CudaHalfSource::kSwiGlu, {reinterpret_cast<std::byte*>(0x200), kRows * kDim * 2, 9});
  }
  CudaHalfRows Begin(CudaHalfSource source = CudaHalfSource::kNorm) {
    return copies_.Begin(source, Y(source), kStride, kRows, kDim);
  }
  const float* Y(CudaHalfSource source = CudaHalfSource::kNorm) {
    return values_ + 64 + (source == CudaHalfSource::kNorm ? 0 : kRows * kStride);
  }
  bool Found(CudaHalfSource source = CudaHalfSource::kNorm) {
    return copies_.Find(Y(source), kStride, kRows, kDim, 9).data != nullptr;
  }

  float values_[64 + 2 * kRows * kStride] = {};
  CudaHalfCopies copies_;
};

TEST_F(CudaHalfCopiesTest, IsFoundByItsRows) {
  EXPECT_FALSE(Found());
  const CudaHalfRows made = Begin();
  EXPECT_EQ(made.data, reinterpret_cast<void*>(0x100));
  EXPECT_EQ(made.stride, kDim);
  EXPECT_TRUE(Found());
  EXPECT_NE(copies_.Find(Y(), kStride, 10, kDim, 9).data, nullptr) << "the first rows";
  EXPECT_EQ(copies_.Find(Y(), kStride, 8, kDim, 9).data, nullptr) << "too few for those who want F16";
  EXPECT_EQ(copies_.Find(Y(), kStride, kRows + 1, kDim, 9).data, nullptr);
  EXPECT_EQ(copies_.Find(Y(), kStride, kRows, kDim / 2, 9).data, nullptr);
  EXPECT_EQ(copies_.Find(Y(), kStride + 4, kRows, kDim, 9).data, nullptr);
  EXPECT_EQ(copies_.Find(Y() + 4, kStride, kRows, kDim, 9).data, nullptr);
}

TEST_F(CudaHalfCopiesTest, IsNotMadeWhereItWouldNotFitOrPay) {
  EXPECT_EQ(copies_.Begin(CudaHalfSource::kNorm, Y(), kStride, kRows + 1, kDim).data, nullptr);
  EXPECT_EQ(copies_.Begin(CudaHalfSource::kNorm, Y(), kStride, 8, kDim).data, nullptr);
  EXPECT_EQ(copies_.Begin(CudaHalfSource::kNorm, Y(), kStride, kRows, 192).data, nullptr) << "rows would want padding";
  EXPECT_FALSE(Found());
}

TEST_F(CudaHalfCopiesTest, StaleCopiesAreNotFound) {
  const float* y = Y();
  const int64_t held = (kRows - 1) * kStride + kDim;
  const auto survives = [&](const float* from, int64_t count) {
    Begin();
    Begin(CudaHalfSource::kSwiGlu);
    copies_.Overwritten(from, count * 4);
    return Found();
  };
  EXPECT_FALSE(survives(y, 1));
  EXPECT_FALSE(survives(y + held - 1, 1));
  EXPECT_FALSE(survives(y - 10, 11));
  EXPECT_FALSE(survives(y + 100, 2 * kRows * kStride));
  EXPECT_TRUE(survives(y + held, 100));
  EXPECT_TRUE(survives(y - 10, 10));
  EXPECT_TRUE(survives(Y(CudaHalfSource::kSwiGlu), kDim));
  EXPECT_FALSE(Found(CudaHalfSource::kSwiGlu));
  copies_.Overwritten(y + kStride, 2, kStride, kDim);
  EXPECT_FALSE(Found());
  Begin();
  copies_.Clear();
  EXPECT_FALSE(Found());
}

TEST_F(CudaHalfCopiesTest, TheNextOfASourceReplacesTheLast) {
  Begin();
  copies_.Begin(CudaHalfSource::kNorm, Y(CudaHalfSource::kSwiGlu), kStride, kRows, kDim);
  EXPECT_FALSE(Found());
  Begin();
  Begin(CudaHalfSource::kSwiGlu);
  EXPECT_TRUE(Found() && Found(CudaHalfSource::kSwiGlu));
}

TEST_F(CudaHalfCopiesTest, PlansWhatIsFound) {
  CudaHalfCopies plan;
  plan.StartPlanning();
  plan.Begin(CudaHalfSource::kNorm, Y(), kStride, 1000, kDim);
  EXPECT_EQ(plan.planned(CudaHalfSource::kNorm).bytes, 0);
  EXPECT_EQ(plan.Find(Y(), kStride, 500, kDim, 129).data, nullptr);
  EXPECT_EQ(plan.planned(CudaHalfSource::kNorm).bytes, 1000 * kDim * 2);
  EXPECT_EQ(plan.planned(CudaHalfSource::kNorm).least_rows, 129);
  plan.Find(Y(), kStride, 500, kDim, 9);
  EXPECT_EQ(plan.planned(CudaHalfSource::kNorm).least_rows, 9);
  EXPECT_EQ(plan.planned(CudaHalfSource::kSwiGlu).bytes, 0);
}

}  // namespace
}  // namespace cachalot
