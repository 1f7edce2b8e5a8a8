// A team of warps put together on the host, as in latent_run_test.cc: a tile of latents lies as it is copied,
// warps take it apart as keys and as values: what the codes stand for, every value once. Loads meet each bank
// once.
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
  KvPlanes planes =
      PlanKvPlanes(FindKvFormat("k6v8")->scheme, {kDim + kExact, kDim, kExact, true}, kRunTokens);
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
    std::memcpy(
        &scale,
        bytes.data() + run * kSixRunPitch + kSixScales + token * kSixScaleRow + column / kSixColumns * 2,
        sizeof(scale));
    EXPECT_EQ(static_cast<float>(code - kSixBias) * BF16ToF32(scale),
              stored[static_cast<size_t>(run * kRunTokens + token)][static_cast<size_t>(column)])
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

// Takes all codes apart as keys, and leaves their bytes.
std::vector<std::byte> TakeKeys(const Tile& tile, std::vector<int>* seen) {
  std::vector<std::byte> taken(kSixTokens * kSixBytesRow, std::byte{0xff});
  for (int warp = 0; warp < 4; ++warp) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, quad = lane % 4, run = SixRunOf(g);
      for (int eight = 0; eight < 2; ++eight) {
        const int token = SixTokenOf(warp, eight, g);
        EXPECT_EQ(token, SixTokenOf(warp, 0, g) + 2 * eight);
        for (int group = 0; group < kSixGroups; ++group) {
          uint32_t words[8];
          for (int w = 0; w < 4; ++w) {
            const uint32_t main =
                tile.WordAt(run * kSixRunPitch + token * kSixMainRow + group * 64 + quad * 16 + 4 * w);
            const uint32_t high = tile.WordAt(run * kSixRunPitch + kSixHigh + token * kSixHighRow +
                                              group * 32 + quad * 8 + w % 2 * 4);
            const OperandB codes = SixCodes(main, SixTop(high, w / 2));
            words[2 * w] = codes.low, words[2 * w + 1] = codes.high;
            for (int place = 0; place < 32; ++place) {  // of the step, in operand A
              if (place % 16 / 4 != quad) continue;
              for (int value = 0; value < kDim; ++value) {
                const int four = value / 4 * 4;
                if (SixGroupOf(four) != group || SixStepOf(four) != w ||
                    SixPlaceOf(four) + value % 4 != place)
                  continue;
                tile.Check(
                    static_cast<int>((place < 16 ? codes.low : codes.high) >> (8 * (place % 4)) & 0xff), run,
                    token, value, seen);
              }
            }
          }
          for (int e = 0; e < 2; ++e) {
            const int to = SixBytesAt(warp, eight, g, group, 2 * quad + e);
            EXPECT_EQ(to, (SixBytesAt(warp, 0, g, 0, 2 * quad + e)) + eight * 8 * kSixBytesRow +
                              group * kSixColumns);
            std::memcpy(taken.data() + to, words + 4 * e, 16);
          }
        }
      }
    }
  }
  return taken;
}

TEST(LatentSix, KeysAreWhatTheCodesStandFor) {
  const Tile tile;
  std::vector<int> seen(kSixTokens * kDim);
  TakeKeys(tile, &seen);
  for (int n : seen) ASSERT_EQ(n, 1);
  std::set<int> places;
  for (int value = 0; value < kExact; ++value) {
    places.insert(SixExactStepOf(value) * 16 + SixExactPlaceOf(value));
    // A lane has 16 bytes of each half of the row: of a step the first of its words is places 2 quad and 2
    // quad + 1, the second 8 further.
    const int quad = value % 32 / 8, word = value % 8 / 2;
    EXPECT_EQ(SixExactStepOf(value), value / 32 * 2 + word / 2);
    EXPECT_EQ(SixExactPlaceOf(value), word % 2 * 8 + 2 * quad + value % 2);
  }
  EXPECT_EQ(places.size(), kExact);
}

TEST(LatentSix, ValuesAreWhatTheCodesStandFor) {
  const Tile tile;
  std::vector<int> seen(kSixTokens * kDim);
  const std::vector<std::byte> taken = TakeKeys(tile, &seen);
  std::fill(seen.begin(), seen.end(), 0);
  for (int part = 0; part < 4; ++part) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, quad = lane % 4;
      for (int step = 0; step < 4; ++step) {
        for (int i = 0; i < 4; ++i) {
          const int n = 2 * quad + i % 2;
          const int at = SixBytesAt(step, i / 2, n, part, g);
          EXPECT_EQ(at, SixBytesAt(0, 0, n, part, g) + (step * 16 + i / 2 * 8) * kSixBytesRow);
          for (int j = 0; j < kSixTiles; ++j) {
            uint32_t word;
            std::memcpy(&word, taken.data() + at + j / 4 * 4, sizeof(word));
            const auto half = static_cast<uint16_t>(WidenBytes(word, word, j % 4));
            tile.Check(static_cast<int>(F16ToF32(half) * 0x1p24f), SixRunOf(n), SixTokenOf(step, i / 2, n),
                       part * kSixColumns + SixColumnOf(g, j), &seen);
          }
        }
      }
    }
  }
  for (int n : seen) ASSERT_EQ(n, 1);
  for (int g = 0; g < 8; ++g) {
    for (int j = 0; j < kSixTiles; ++j)
      EXPECT_EQ(SixColumnOf(g, j), SixColumnOf(g, j / 4 * 4) + j % 4) << "four tiles side by side";
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
      return [=](int g, int quad) {
        return SixRunOf(g) * kSixRunPitch + plane + SixTokenOf(1, eight, g) * row + quad * piece;
      };
    };
    EXPECT_EQ(MostOfABank(16, key(0, kSixMainRow, 16)), 1);
    EXPECT_EQ(MostOfABank(8, key(kSixHigh, kSixHighRow, 8)), 1);
    EXPECT_EQ(MostOfABank(16, key(kSixExact, kSixExactRow, 16)), 1);
    for (int e = 0; e < 2; ++e) {
      EXPECT_EQ(MostOfABank(16, [&](int g, int quad) { return SixBytesAt(3, eight, g, 1, 2 * quad + e); }), 1)
          << "bytes are left";
      EXPECT_EQ(MostOfABank(16, [&](int g, int quad) { return SixBytesAt(2, eight, 2 * quad + e, 3, g); }), 1)
          << "and taken";
    }
  }
}

}  // namespace
}  // namespace cachalot
