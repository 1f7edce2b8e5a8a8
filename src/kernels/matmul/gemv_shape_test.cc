// How the decode kernel's work is dealt: every row once, what a kernel's memory holds, the order of summation.
#include "kernels/matmul/gemv_shape.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

constexpr DType kTypes[] = {DType::kF16,  DType::kBF16, DType::kFP8E4M3, DType::kQ8_0, DType::kQ4_0,
                            DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,    DType::kQ2_K, DType::kQ3_K,
                            DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,    DType::kIQ4_NL, DType::kIQ4_XS};
constexpr int kNumSms = 132;

TEST(GemvShape, EveryRowOnceAndNoWarpWithoutWork) {
  for (DType dtype : kTypes) {
    for (int64_t k : {1, 32, 96, 128, 576, 1408, 2080, 4096, 7168, 14336}) {
      const int64_t pieces = (k + GemvPieceValues(dtype) - 1) / GemvPieceValues(dtype);
      const int splits = ShapeGemv(dtype, 1, 1, k, 1, kNumSms).splits;
      for (int64_t n : {1, 2, 15, 17, 128, 1000, 2816, 28672, 128256}) {
        for (int64_t groups : {1, 6, 24, 48, 128, 1000}) {
          for (int columns : {1, 2, 3, kGemvRows}) {
            const GemvShape shape = ShapeGemv(dtype, groups, n, k, columns, kNumSms);
            ASSERT_EQ(int64_t{shape.rows} * shape.blocks + shape.longer, n);
            ASSERT_LT(shape.longer, shape.blocks);
            ASSERT_GE(shape.rows, 1);
            ASSERT_EQ(shape.splits, splits) << "the order of summation depends on more than k";
            ASSERT_LE(shape.splits, pieces);
            ASSERT_LE(shape.teams * shape.splits, kGemvWarps);
            ASSERT_EQ(shape.pass_tiles % shape.teams, 0);
            ASSERT_LE(shape.splits * columns * shape.pass_tiles * kGemvTileRows, kGemvPartials);
            if (!GemvHasManyWarps(dtype)) continue;
            const GemvShape many = ShapeGemv(dtype, groups, n, k, columns, kNumSms, false, kGemvManyWarps);
            ASSERT_EQ(int64_t{many.rows} * many.blocks + many.longer, n);
            ASSERT_LE(many.splits, pieces);
            ASSERT_LE(many.teams * many.splits, kGemvManyWarps);
            ASSERT_EQ(many.pass_tiles % many.teams, 0);
            ASSERT_LE(many.splits * columns * many.pass_tiles * kGemvTileRows, kGemvPartials);
            if (k <= 4096) {
              ASSERT_LE(GemvSharedBytes(dtype, many), kGemvMaxSharedBytes);
            }
          }
        }
      }
    }
  }
}

TEST(GemvShape, OneWaveWhereOneIsBest) {
  EXPECT_EQ(GemvBlocks(1, 4096, kNumSms), kNumSms);
  EXPECT_EQ(GemvBlocks(1, 128256, kNumSms), kNumSms);
  EXPECT_EQ(GemvBlocks(16, 512, kNumSms), 8);
  EXPECT_EQ(GemvBlocks(128, 512, kNumSms), 1);
  EXPECT_EQ(GemvBlocks(6, 2816, kNumSms), 22);
  EXPECT_EQ(GemvBlocks(1, 1, kNumSms), 1);
}

// Of one row of x, so that the next kernel's first loads run beside our last.
TEST(GemvShape, TwoBlocksHaveRoomOnAnSm) {
  constexpr int64_t kSmBytes = int64_t{228} << 10, kReserved = 1024 + 128;  // of each block
  for (DType dtype : kTypes) {
    for (int64_t n : {512, 4096, 28672, 128256}) {
      for (int64_t k : {512, 2048, 4096}) {
        const int64_t bytes = GemvSharedBytes(dtype, ShapeGemv(dtype, 1, n, k, 1, kNumSms));
        EXPECT_LE(2 * (bytes + kReserved), kSmBytes) << DTypeName(dtype) << " n " << n << " k " << k;
      }
    }
  }
  EXPECT_GT(2 * (kGemvAloneBytes + kReserved), kSmBytes);
  EXPECT_GT(GemvSharedBytes(DType::kF16, ShapeGemv(DType::kF16, 1, 64, 1 << 17, 1, kNumSms)), kGemvMaxSharedBytes);
}

}  // namespace
}  // namespace cachalot
