// A team of warps put together on the host, as in latent_run_test.cc: a tile of latents lies as it is copied, warps take it apart as keys and as
// values: what the codes stand for, every value once. Loads meet each bank once.
#include "kernels/attention/latent_six.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "kernels/common/testing.h"
#include "quant/kv_format.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

constexpr int kDim = kSixGroups * kSixColumns, kExact = kSixExactRow / 2;

// A tile of random latents in shared memory, and what they decode to.
struct Tile {
  KvPlanes planes = PlanKvPlanes(FindKvFormat("k6v8")->scheme, {kDim + kExact, kDim, kExact, true}, kRunTokens);
  std::vector<std::byte> bytes = std::vector<std::byte>(kSixTileBytes, std::byte{0xa5});
  std::vector<std::vector<float>> stored;  // by run, and token in it

  Tile() {
    TestRng rng(6);
    for (int run = 0; run < kSixRuns; ++run) {
      std::vector<std::byte> region(static_cast<size_t>(planes.head_bytes));
      for (int t = 0; t < kRunTokens; ++t) {
        std::vector<float> key = rng.NormalVector(kDim + kExact);
        EncodeKvKey(planes, nullptr, key.data(), region.data(), t);
        DecodeKvRows(planes.key, region.data(), t, stored.emplace_back(kDim).data());
      }
      std::memcpy(bytes.data() + run * kSixRunPitch, region.data(), region.size());
    }
  }
  uint32_t WordAt(int at) const {
    uint32_t word;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    return word;
  }
  // A code of a lane against what is stored.
  void Check(int code, int run, int token, int column, std::vector<int>* seen) const {
    ASSERT_TRUE(column >= 0 && column < kDim && token < kRunTokens);
    ++(*seen)[static_cast<size_t>((run * kRunTokens + token) * kDim + column)];
    uint16_t scale;
    std::memcpy(&scale, bytes.data() + run * kSixRunPitch + kSixScales + token * kSixScaleRow + column / kSixColumns * 2, sizeof(scale));
    EXPECT_EQ(static_cast<float>(code - kSixBias) * BF16ToF32(scale), stored[static_cast<size_t>(run * kRunTokens + token)][static_cast<size_t>(column)])
        << "run " << run << " token " << token << " column " << column;
  }
};

TEST(LatentSix, ARunIsABlockOfSixteen) {
  const Tile tile;
  EXPECT_EQ(tile.planes.key.high, kSixHigh);
  EXPECT_EQ(tile.planes.key.scales, kSixScales);
  EXPECT_EQ(tile.planes.exact, kSixExact);
  EXPECT_EQ(tile.planes.head_bytes, kSixRunBytes);
}

TEST(LatentSix, KeysAreWhatTheCodesStandFor) {
  const Tile tile;
  std::vector<int> seen(kSixTokens * kDim);
  std::set<int> words;
  for (int value = 0; value < kDim; value += 4) words.insert(QueryWord(0, SixQuadOf(value), SixStepOf(value), SixHalfOf(value)));
  EXPECT_EQ(words.size(), kDim / 4);
  EXPECT_LT(*words.rbegin(), kSixSteps * 32 * 4);
  for (int warp = 0; warp < 4; ++warp) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, quad = lane % 4, run = SixRunOf(g);
      for (int eight = 0; eight < 2; ++eight) {
        const int token = SixTokenOf(warp, eight, g);
        EXPECT_EQ(token, SixTokenOf(warp, 0, g) + 2 * eight);
        for (int group = 0; group < kSixGroups; ++group) {
          for (int w = 0; w < 4; ++w) {
            const uint32_t main = tile.WordAt(run * kSixRunPitch + token * kSixMainRow + group * 64 + quad * 16 + 4 * w);
            const uint32_t high = tile.WordAt(run * kSixRunPitch + kSixHigh + token * kSixHighRow + group * 32 + quad * 8 + w % 2 * 4);
            const OperandB codes = SixCodes(main, SixTop(high, w / 2));
            for (int value = 0; value < kDim; ++value) {
              if (SixQuadOf(value) != quad || SixStepOf(value) != group * 4 + w) continue;
              tile.Check(static_cast<int>((SixHalfOf(value) == 0 ? codes.low : codes.high) >> (8 * (value % 4)) & 0xff), run, token, value, &seen);
            }
          }
        }
      }
    }
  }
  for (int n : seen) ASSERT_EQ(n, 1);
}

TEST(LatentSix, ValuesAreWhatTheCodesStandFor) {
  const Tile tile;
  std::vector<int> seen(kSixTokens * kDim);
  for (int part = 0; part < 4; ++part) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, quad = lane % 4;
      for (int step = 0; step < 4; ++step) {
        for (int i = 0; i < 4; ++i) {
          const int n = 2 * quad + i % 2, run = SixRunOf(n), token = SixTokenOf(step, i / 2, n);
          for (int w = 0; w < 2; ++w) {
            const uint32_t main = tile.WordAt(run * kSixRunPitch + token * kSixMainRow + part * 64 + g * 8 + 4 * w);
            const uint32_t high = tile.WordAt(run * kSixRunPitch + kSixHigh + token * kSixHighRow + part * 32 + g / 2 * 8 + 4 * w);
            const OperandB codes = SixCodes(main, SixTop(high, g % 2));
            for (int byte = 0; byte < 8; ++byte) {
              const uint32_t word = byte < 4 ? codes.low : codes.high;
              const auto half = static_cast<uint16_t>(WidenBytes(word, word, byte % 4));
              tile.Check(static_cast<int>(F16ToF32(half) * 0x1p24f), run, token, part * kSixColumns + SixColumnOf(g, 8 * w + byte), &seen);
            }
          }
        }
      }
    }
  }
  for (int n : seen) ASSERT_EQ(n, 1);
  for (int g = 0; g < 8; ++g) {
    for (int j = 0; j < kSixTiles; ++j) EXPECT_EQ(SixColumnOf(g, j), SixColumnOf(g, j / 4 * 4) + j % 4) << "four tiles side by side";
  }
}

// How often the most used bank is met by the groups of lanes that a load of `bytes` a lane is done in.
template <typename At>
int MostOfABank(int bytes, const At& at) {
  size_t most = 0;
  const int lanes = std::min(32, 128 / bytes);
  for (int first = 0; first < 32; first += lanes) {
    std::map<int, std::set<int>> words;
    for (int lane = first; lane < first + lanes; ++lane) {
      const int from = at(lane / 4, lane % 4);
      EXPECT_EQ(from % bytes, 0);
      for (int i = 0; i < bytes; i += 4) words[(from + i) / 4 % 32].insert((from + i) / 4);
    }
    for (const auto& [bank, of] : words) most = std::max(most, of.size());
  }
  return static_cast<int>(most);
}

TEST(LatentSix, LoadsMeetEachBankOnce) {
  for (int eight = 0; eight < 2; ++eight) {
    const auto key = [&](int plane, int row, int piece) {
      return [=](int g, int quad) { return SixRunOf(g) * kSixRunPitch + plane + SixTokenOf(1, eight, g) * row + quad * piece; };
    };
    EXPECT_EQ(MostOfABank(16, key(0, kSixMainRow, 16)), 1);
    EXPECT_EQ(MostOfABank(8, key(kSixHigh, kSixHighRow, 8)), 1);
    EXPECT_EQ(MostOfABank(16, key(kSixExact, kSixExactRow, 16)), 1);
    for (int e = 0; e < 2; ++e) {
      const auto value = [&](int plane, int row, int lanes_of_piece) {
        return [=](int g, int quad) {
          const int n = 2 * quad + e;
          return SixRunOf(n) * kSixRunPitch + plane + SixTokenOf(2, eight, n) * row + g / lanes_of_piece * 8;
        };
      };
      EXPECT_EQ(MostOfABank(8, value(0, kSixMainRow, 1)), 1);
      EXPECT_EQ(MostOfABank(8, value(kSixHigh, kSixHighRow, 2)), 1);
    }
  }
}

}  // namespace
}  // namespace cachalot
