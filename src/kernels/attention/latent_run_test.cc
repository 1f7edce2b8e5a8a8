// Warps put together on the host, as in code_fragments_test.cc: a run of latents is copied to a slot, a warp takes it apart as keys, and what it
// has left there others take as values: what the codes stand for, every value once. Loads and stores meet each bank once.
#include "kernels/attention/latent_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "kernels/common/testing.h"
#include "quant/fp8_e4m3.h"
#include "quant/kv_format.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

constexpr int kDim = kLatentParts * kLatentColumns, kExact = kExactRow / 2;

uint32_t WordAt(const std::vector<std::byte>& bytes, int64_t at) {
  uint32_t word;
  std::memcpy(&word, bytes.data() + at, sizeof(word));
  return word;
}

int GroupColumns(KvCode code) { return code == KvCode::kInt4 ? 32 : 128; }

// One run of random latents, and what they decode to.
template <KvCode kCode>
struct Run {
  KvPlanes planes;
  std::vector<std::byte> region;
  std::vector<std::vector<float>> stored;

  Run() : stored(kRunTokens, std::vector<float>(kDim)) {
    planes = PlanKvPlanes({.key = kCode, .value = kCode, .latent_group = GroupColumns(kCode), .rotate = true}, {kDim + kExact, kDim, kExact, true},
                          kRunTokens);
    region.resize(static_cast<size_t>(planes.head_bytes));
    TestRng rng(static_cast<uint64_t>(kCode));
    for (int t = 0; t < kRunTokens; ++t) {
      std::vector<float> key = rng.NormalVector(kDim + kExact);
      EncodeKvKey(planes, nullptr, key.data(), region.data(), t);
      DecodeKvRows(planes.key, region.data(), t, stored[static_cast<size_t>(t)].data());
    }
  }
  float ScaleAt(int token, int column) const {
    const int groups = planes.key.coding.num_groups();
    uint16_t scale;
    std::memcpy(&scale, region.data() + planes.key.scales + (token * groups + column / GroupColumns(kCode)) * 2, sizeof(scale));
    return BF16ToF32(scale);
  }
  // The run in a slot, piece by piece.
  std::vector<std::byte> Copied() const {
    using Slot = LatentSlot<kCode>;
    std::vector<std::byte> slot(Slot::kBytes, std::byte{0xa5});
    std::set<int> places;
    const auto copy = [&](int64_t from, int row_bytes, auto place) {
      for (int token = 0; token < kRunTokens; ++token) {
        for (int byte = 0; byte < row_bytes; byte += kPieceBytes) {
          const int to = place(token, byte);
          EXPECT_EQ(to % kPieceBytes, 0);
          EXPECT_TRUE(places.insert(to).second) << "two pieces at " << to;
          std::memcpy(slot.data() + to, region.data() + from + token * row_bytes + byte, kPieceBytes);
        }
      }
    };
    copy(planes.key.main, Slot::kMainRow, [](int token, int byte) { return Slot::Main(token, byte); });
    copy(planes.exact, kExactRow, [](int token, int byte) { return Slot::Exact(token, byte); });
    EXPECT_LT(*places.rbegin(), Slot::kScales);
    return slot;
  }
  // A code of a lane, as a number, against what is stored.
  void Check(float code, int token, int column, std::vector<int>* seen) const {
    ASSERT_TRUE(column >= 0 && column < kDim);
    ++(*seen)[static_cast<size_t>(token * kDim + column)];
    EXPECT_EQ(code * ScaleAt(token, column), stored[static_cast<size_t>(token)][static_cast<size_t>(column)])
        << "code " << static_cast<int>(kCode) << " token " << token << " column " << column;
  }
};

template <KvCode kCode>
void CheckCodes() {
  using Slot = LatentSlot<kCode>;
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  using Values = LatentValues<kCode>;
  const Run<kCode> run;
  ASSERT_EQ(run.planes.key.main_row, Slot::kMainRow);
  ASSERT_EQ(run.planes.key.high_row, 0);
  ASSERT_EQ(run.planes.key.scale_row, Slot::kScaleRow);
  std::vector<std::byte> slot = run.Copied(), taken = slot;
  std::vector<int> seen(kRunTokens * kDim);
  const auto store = [&](uint32_t at, uint32_t word) { std::memcpy(taken.data() + at, &word, sizeof(word)); };
  for (int lane = 0; lane < 32; ++lane) {
    const int quad = lane % 4;
    const auto main = static_cast<uint32_t>(Slot::Main(TokenOf(0, lane / 4), Head::MainOffset(quad, 0)));
    const auto bytes = static_cast<uint32_t>(Slot::Bytes(TokenOf(0, lane / 4), 0, quad * 2));
    for (int tile = 0; tile < 2; ++tile) {
      const int token = TokenOf(tile, lane / 4), further = tile * Slot::kTileApart * kLatentRow;
      for (int part = 0; part < kLatentParts; ++part) {
        uint32_t words[Head::kWords];
        for (int w = 0; w < Head::kWords; ++w) {
          const int first = w / 4 * 4;  // of those that are loaded at once
          const bool alone = Head::kGrouped;
          const uint32_t at = Slot::Further(main, part * Head::kRowBytes + Head::MainOffset(0, alone ? w : first));
          words[w] = WordAt(slot, at + static_cast<uint32_t>(further + (alone ? 0 : w - first) * 4));
        }
        for (int step = 0; step < Head::kSteps; ++step) {
          const OperandB b = Head::Take(words, nullptr, quad, step);
          for (int i = 0; i < 8; ++i) {
            const auto byte = static_cast<uint8_t>((i < 4 ? b.low : b.high) >> (8 * (i % 4)));
            const int column = part * kLatentColumns + Head::ValueOf(quad, step, i / 4, i % 4);
            const float code = kCode == KvCode::kE4M3
                                   ? FP8E4M3ToF32(byte)
                                   : static_cast<float>((Head::kSigned ? static_cast<int8_t>(byte) : byte) - Head::kBias) * Head::kStep;
            run.Check(code, token, column, &seen);
          }
          if constexpr (Keys::kTaken) {
            for (int half = 0; half < 2; ++half) {
              const int piece = Keys::PieceOf(0, half);
              const uint32_t at = Slot::Further(bytes, part * kLatentColumns + piece * kPieceBytes) + static_cast<uint32_t>(further);
              EXPECT_EQ(at, static_cast<uint32_t>(Slot::Bytes(token, part, Keys::PieceOf(quad, half))));
              store(at + static_cast<uint32_t>(4 * step), half == 0 ? b.low : b.high);
            }
          }
        }
      }
    }
  }
  for (int n : seen) ASSERT_EQ(n, 1);

  std::fill(seen.begin(), seen.end(), 0);
  for (int part = 0; part < kLatentParts; ++part) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, quad = lane % 4;
      const auto at = static_cast<uint32_t>(Slot::Bytes(4 * quad, part, g));
      for (int pair = 0; pair < 2; ++pair) {
        for (int w = 0; w < 4; ++w) {
          uint32_t two[2];
          for (int e = 0; e < 2; ++e) {
            const int i = 2 * pair + e;
            two[e] = WordAt(taken, Slot::Further(at, i % 2 * kPieceBytes) + static_cast<uint32_t>(i * kLatentRow + 4 * w));
          }
          for (int i = 0; i < 4; ++i) {
            const int j = 4 * w + i, column = Values::ColumnOf(g, j), token = 4 * quad + 2 * pair;
            EXPECT_EQ(j / Values::kTilesOfSet, column / GroupColumns(kCode)) << "tiles of a set share a scale";
            uint32_t halves = 0;
            if constexpr (kCode == KvCode::kE4M3) {
              halves = ValueFragments<kCode, 128>::BytePairs(two[0], two[1], i / 2) >> (16 * (i % 2));
            } else {
              halves = Values::HalfPair(two[0], two[1], i);
            }
            for (int e = 0; e < 2; ++e) {
              const float code = kCode == KvCode::kE4M3
                                     ? FP8E4M3ToF32(static_cast<uint8_t>(halves >> (8 * e)))
                                     : (F16ToF32(static_cast<uint16_t>(halves >> (16 * e))) * 0x1p24f - Values::kOffset) * Head::kStep;
              run.Check(code, token + e, part * kLatentColumns + column, &seen);
            }
          }
        }
      }
    }
  }
  for (int n : seen) ASSERT_EQ(n, 1);
  for (int g = 0; g < 8; ++g) {
    for (int j = 0; j < Values::kTiles; ++j) EXPECT_EQ(Values::ColumnOf(g, j), Values::ColumnOf(g, j / 4 * 4) + j % 4) << "four tiles side by side";
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

template <KvCode kCode>
void CheckBanks() {
  using Slot = LatentSlot<kCode>;
  using Head = typename LatentKeys<kCode>::Head;
  const int key_bytes = Head::kGrouped ? 4 : std::min(16, Head::kWords * 4);
  for (int of = 0; of < Slot::kMainRow / Head::kRowBytes; ++of) {
    for (int w = 0; w < Head::kWords; w += key_bytes / 4) {
      const int byte = of * Head::kRowBytes;
      EXPECT_EQ(MostOfABank(key_bytes, [&](int g, int quad) { return Slot::Main(TokenOf(0, g), byte + Head::MainOffset(quad, w)); }), 1);
    }
  }
  for (int half = 0; half < 2; ++half) {
    EXPECT_EQ(MostOfABank(16, [&](int g, int quad) { return Slot::Exact(TokenOf(0, g), 2 * Slot::ExactValueOf(quad, half)); }), 1);
    EXPECT_EQ(MostOfABank(16, [&](int g, int quad) { return Slot::Bytes(TokenOf(1, g), 1, quad * 2 + half); }), 1) << "bytes are stored";
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(MostOfABank(16, [&](int g, int quad) { return Slot::Bytes(4 * quad + i, 2, g); }), 1) << "values of token " << i;
  }
}

template <KvCode kCode>
void Check() {
  SCOPED_TRACE(static_cast<int>(kCode));
  CheckCodes<kCode>();
  CheckBanks<kCode>();
}

TEST(LatentRun, IsWhatTheCodesStandFor) {
  Check<KvCode::kInt8>();
  Check<KvCode::kInt4>();
  Check<KvCode::kE4M3>();
}

}  // namespace
}  // namespace cachalot
