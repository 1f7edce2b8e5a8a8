// How matmuls of bulk copies are cut: all of W once, within what a block and its copies may hold, nobody
// without work.
#include "kernels/matmul/bulk_cut.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

constexpr int64_t kBlockBytes = 227 << 10;  // of dynamic and the kernel's own shared memory

TEST(BulkCut, HoldsAllOfWAndFits) {
  int cut_shapes = 0;
  for (const int num_sms : {20, 78, 114, 132, 144}) {
    for (const int64_t n : {1, 17, 64, 256, 1000, 1024, 1410, 2816, 4096, 5120, 6144, 6150, 7168, 8192, 14336,
                            28672, 57344, 128256, 151936}) {
      for (const int64_t k : {32, 64, 72, 128, 288, 576, 1024, 2048, 4096, 7168, 14336, 28672}) {
        for (int64_t m = 9; m <= kBulkMostColumns; m += 7) {
          for (const bool glu : {false, true}) {
            const BulkCut cut = FindBulkCut(m, n, k, glu, num_sms);
            if (cut.rows == 0) continue;
            SCOPED_TRACE(testing::Message() << "m " << m << " n " << n << " k " << k << (glu ? " glu" : "")
                                            << ", " << num_sms << " SMs");
            ++cut_shapes;
            ASSERT_GE(int64_t{cut.tiles} * cut.rows, n);
            ASSERT_LT((int64_t{cut.tiles} - 1) * cut.rows, n);
            ASSERT_EQ(cut.rows % (glu ? 16 : 8), 0);
            ASSERT_LE(cut.rows, kBulkMostRows);
            ASSERT_GE(cut.instruction_rows, cut.rows);
            const int panels = BulkPanels(cut.instruction_rows, cut.columns);
            ASSERT_GE(int64_t{cut.steps} * panels * 64, k);
            ASSERT_GE(cut.steps, cut.parts) << "a part without work";
            ASSERT_GE(cut.x_rows, m);
            ASSERT_LE(cut.x_rows, cut.columns);
            ASSERT_EQ(cut.x_rows % (8), 0);
            ASSERT_GE(cut.stages, 2);
            ASSERT_EQ(cut.stage_bytes % 1024, 0);
            ASSERT_LE(cut.clusters, cut.tiles);
            ASSERT_LE(cut.clusters * cut.parts, num_sms);
            if (cut.parts > 1) {
              ASSERT_EQ(cut.clusters, cut.tiles) << "a block whose ring takes sums has one tile";
            }
            // What the last instruction of the last stage reads.
            const int last = (cut.stages - 1) * cut.stage_bytes;
            ASSERT_LE(last + ((panels - 1) * cut.rows + cut.instruction_rows) * 128, cut.shared_bytes);
            ASSERT_LE(last + (panels * cut.rows + (panels - 1) * cut.x_rows + cut.columns) * 128,
                      cut.shared_bytes);
            ASSERT_TRUE(cut.parts == 1 || m * cut.fold_stride * 4 <= cut.shared_bytes);
            ASSERT_LE(cut.shared_bytes, std::min<int64_t>(kBlockBytes - 1024, kBulkSharedBytes));
          }
        }
      }
    }
  }
  EXPECT_GT(cut_shapes, 10000);
}

}  // namespace
}  // namespace cachalot
