// How the experts' kernel for a few tokens deals its work: every row of every matrix once, equal shares, within a block's memory.
#include "kernels/moe_matmul/moe_few.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace cachalot {
namespace {

constexpr int64_t kBlockBytes = kFewMostSharedBytes;

struct Dealt {
  std::map<int, std::vector<int>> rows;  // how often each row of an expert was seen
  int64_t most = 0, least = INT64_MAX;   // rows of a block
};

Dealt Deal(bool up, int experts, int shared_rows, int rows, int blocks) {
  Dealt dealt;
  for (int e = -1; e < experts; ++e) dealt.rows[e].assign(static_cast<size_t>(e < 0 ? shared_rows : rows), 0);
  for (int block = 0; block < blocks; ++block) {
    FewTiles tiles(up, shared_rows, rows, block, blocks);
    FewTile tile;
    int64_t seen = 0;
    int last_expert = -1, last_end = 0;
    while (tiles.Next([&] { return experts; }, &tile)) {
      EXPECT_GT(tile.rows, 0);
      EXPECT_LE(tile.rows, up ? kFewTileRows / 2 : kFewTileRows);
      EXPECT_GE(tile.expert, last_expert);
      if (tile.expert == last_expert && seen > 0) {
        EXPECT_EQ(tile.row, last_end);
      }
      for (int i = 0; i < tile.rows; ++i) ++dealt.rows.at(tile.expert).at(static_cast<size_t>(tile.row + i));
      last_expert = tile.expert, last_end = tile.row + tile.rows;
      seen += tile.rows;
    }
    dealt.most = std::max(dealt.most, seen), dealt.least = std::min(dealt.least, seen);
  }
  return dealt;
}

TEST(MoeFew, EveryRowOnceAndEqualShares) {
  for (const bool up : {false, true}) {
    for (const int blocks : {1, 114, 132}) {
      for (const int experts : {0, 1, 6, 15, 32}) {
        for (const auto& [shared_rows, rows] : {std::pair{0, 512}, {0, 7}, {2048, 2048}, {2816, 1408}, {7168, 7168}, {1, 3}}) {
          SCOPED_TRACE(testing::Message() << (up ? "up, " : "down, ") << blocks << " blocks, " << experts << " experts of " << rows
                                          << ", shared " << shared_rows);
          const Dealt dealt = Deal(up, experts, shared_rows, rows, blocks);
          for (const auto& [expert, counts] : dealt.rows) {
            for (const int count : counts) ASSERT_EQ(count, 1) << "expert " << expert;
          }
          // Up: two lines, each dealt to within one. Down: as many lines as experts, all dealt alike.
          EXPECT_LE(dealt.most - dealt.least, up ? 2 : experts + 1);
        }
      }
    }
  }
}

// Tiles that are not full cost a stage like others: few of them.
TEST(MoeFew, MostTilesOfRealShapesAreFull) {
  const auto fullness = [](bool up, int experts, int shared_rows, int rows) {
    int64_t tiles_seen = 0, rows_seen = 0;
    for (int block = 0; block < 132; ++block) {
      FewTiles tiles(up, shared_rows, rows, block, 132);
      FewTile tile;
      while (tiles.Next([&] { return experts; }, &tile)) ++tiles_seen, rows_seen += tile.rows;
    }
    return static_cast<double>(rows_seen) / static_cast<double>(tiles_seen * (up ? kFewTileRows / 2 : kFewTileRows));
  };
  EXPECT_GT(fullness(true, 8, 2048, 2048), 0.95);    // DeepSeek-V3
  EXPECT_GT(fullness(true, 16, 2048, 2048), 0.97);
  EXPECT_GT(fullness(false, 16, 7168, 7168), 0.84);  // 54 or 55 rows of a block: three tiles and a half
  EXPECT_GT(fullness(true, 6, 2816, 1408), 0.88);    // DeepSeek-V2-Lite
  EXPECT_GT(fullness(false, 6, 2048, 2048), 0.96);
}

// The order of the tiles asks for the number of experts only behind the shared one.
TEST(MoeFew, TheSharedExpertComesBeforeTheRouter) {
  for (const bool up : {false, true}) {
    FewTiles tiles(up, 2048, 2048, 5, 132);
    FewTile tile;
    int asked = 0;
    while (tiles.Next([&] { return ++asked, 3; }, &tile)) {
      EXPECT_EQ(tile.expert < 0, asked == 0);
    }
    EXPECT_GT(asked, 0);
  }
}

void ExpectLaidOut(const FewShape& shape, int blocks) {
  const FewLayout layout = LayFewOut(shape, blocks, kBlockBytes);
  ASSERT_GE(layout.stages, kFewLeastStages);
  EXPECT_LE(layout.stages, kFewMostStages);
  EXPECT_LE(layout.bytes, kBlockBytes);
  EXPECT_EQ(layout.x % 128, 0);
  EXPECT_EQ(layout.shared_h % 16, 0);
  EXPECT_GT(layout.in_flight, 0);
  EXPECT_LE(layout.in_flight, layout.stages);  // more would wait for a barrier's phase that is no longer the last but one
  EXPECT_EQ(layout.partials % 16, 0);
  EXPECT_EQ(layout.sums % 16, 0);
  EXPECT_EQ(layout.x, layout.stages * kFewStageBytes);
  const int x_bytes = layout.shared_h - layout.x;
  if (shape.up) {
    EXPECT_GE(x_bytes, shape.tokens * FewXStride(shape.dim));
  }
  if (shape.down) {
    EXPECT_GE(x_bytes, shape.pairs * FewXStride(shape.gates));
    EXPECT_GE(layout.partials - layout.shared_h, shape.shared_gates > 0 ? shape.tokens * FewXStride(shape.shared_gates) : 0);
    EXPECT_GE(layout.block_rows * blocks, shape.dim);
    for (int block = 0; block < blocks; ++block) {
      const FewRange share = FewShare(shape.dim, block, blocks);
      EXPECT_LE(share.end - share.begin, layout.block_rows);
    }
  }
}

TEST(MoeFew, RealShapesFit) {
  for (int tokens = 1; tokens <= kFewTokens; ++tokens) {
    for (const int phases : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, phases " << phases);
      const bool up = (phases & 1) != 0, down = (phases & 2) != 0;
      ExpectLaidOut({.tokens = tokens, .pairs = 8 * tokens, .dim = 7168, .gates = 2048, .shared_gates = 2048, .up = up, .down = down}, 132);
      ExpectLaidOut({.tokens = tokens, .pairs = 6 * tokens, .dim = 2048, .gates = 1408, .shared_gates = 2816, .up = up, .down = down}, 132);
      ExpectLaidOut({.tokens = tokens, .pairs = 8 * tokens, .dim = 2048, .gates = 768, .up = up, .down = down}, 132);  // Qwen3-30B-A3B
      ExpectLaidOut({.tokens = tokens, .pairs = 2 * tokens, .dim = 4096, .gates = 14336 / (tokens > 2 ? 8 : 1), .up = up, .down = down}, 132);
    }
  }
}

TEST(MoeFew, SharesAreOf32Bits) {
  EXPECT_TRUE(FewFits(28672, 132));
  EXPECT_FALSE(FewFits(1 << 20, 132));
  const int rows = INT32_MAX / kFewPairs / 132;
  const FewRange last = FewShare(rows * kFewPairs, 131, 132);
  EXPECT_EQ(last.end, rows * kFewPairs);
  EXPECT_EQ(last.begin, static_cast<int>(int64_t{rows} * kFewPairs * 131 / 132));
}

// DeepSeek-V3's of four tokens are two launches.
TEST(MoeFew, ARingThatIsRoomy) {
  FewShape shape = {.dim = 7168, .gates = 2048, .shared_gates = 2048};
  for (shape.tokens = 1; shape.tokens <= kFewTokens; ++shape.tokens) {
    shape.pairs = 8 * shape.tokens;
    EXPECT_EQ(LayFewOut(shape, 132, kBlockBytes).stages >= kFewRoomyStages, shape.tokens < 4) << shape.tokens;
  }
}

TEST(MoeFew, WhatDoesNotFitHasNoStages) {
  EXPECT_EQ(LayFewOut({.tokens = 4, .pairs = 8, .dim = 4096, .gates = 14336}, 132, kBlockBytes).stages, 0);
  EXPECT_EQ(LayFewOut({.tokens = 1, .pairs = 2, .dim = 4096, .gates = 512}, 132, 64 << 10).stages, 0);
}

// Rows in shared memory: what a warp's eight lanes read at a time falls into different banks, rows are whole 16 bytes.
TEST(MoeFew, RowsMeetNoBankTwice) {
  static_assert(kFewStageStride % 16 == 0 && kFewStageStride % 128 == 64 && kFewStageBytes % 128 == 0);
  for (const int k : {64, 768, 1408, 2048, 2816, 4096, 7168}) {
    EXPECT_EQ(FewXStride(k) % 16, 0);
    EXPECT_EQ(FewXStride(k) % 128, 64);
  }
  EXPECT_EQ(FewStages(7168), 7);
  EXPECT_EQ(FewStages(2816), 3);
  EXPECT_EQ(FewStages(1024), 1);
}

}  // namespace
}  // namespace cachalot
