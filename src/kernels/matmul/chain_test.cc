// How chained matmuls are dealt to the blocks: every row once, equal shares, within a block's memory.
#include "kernels/matmul/chain.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

TEST(Chain, SharesHoldEveryRowOnce) {
  for (const int blocks : {1, 7, 132, 144}) {
    for (const int rows : {0, 1, 131, 132, 133, 4096, 6144, 14336, 128256}) {
      int next = 0;
      for (int block = 0; block < blocks; ++block) {
        const ChainRange share = ChainShare(rows, block, blocks);
        EXPECT_EQ(share.begin, next);
        EXPECT_GE(share.end - share.begin, rows / blocks);
        EXPECT_LE(share.end - share.begin, rows / blocks + 1);
        next = share.end;
      }
      EXPECT_EQ(next, rows);
    }
  }
  EXPECT_TRUE(ChainFits(128256, 132));
  EXPECT_FALSE(ChainFits(INT32_MAX, 2));
}

TEST(Chain, LiesWithinABlocksMemory) {
  for (const int64_t k : {256, 2048, 4096, 14336, 16384}) {
    const ChainLayout layout = LayChainOut(k, kChainMostSharedBytes);
    EXPECT_GE(layout.stages, k > 14336 ? 4 : 5) << k;
    EXPECT_EQ(layout.x, layout.stages * kChainStageBytes);
    EXPECT_GE(layout.partials - layout.x, ChainXBytes(k));
    EXPECT_EQ(layout.partials % 128, 0);
    EXPECT_EQ(layout.bytes, layout.partials + kChainPartials * kChainPartialBytes);
    EXPECT_LE(layout.bytes, kChainMostSharedBytes);
  }
  EXPECT_EQ(LayChainOut(4096, 100 << 10).stages, 0);
  EXPECT_EQ(LayChainOut(4096, 1024).stages, 0);
}

}  // namespace
}  // namespace cachalot
