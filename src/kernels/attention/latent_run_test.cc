// The warps of a warpgroup put together on the host, as in code_fragments_test.cc: what they load of a run of latents and take apart is what
// the codes stand for, every value once, as a key and as a value; copies fill the slot, and loads meet each bank once.
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

constexpr int kDim = kLatentParts * kLatentColumns, kExact = kLatentParts * kExactOfPart;

uint32_t WordAt(const std::vector<std::byte>& bytes, int64_t at) {
  uint32_t word;
  std::memcpy(&word, bytes.data() + at, sizeof(word));
  return word;
}

int GroupColumns(KvCode code) { return code == KvCode::kInt4 ? 32 : code == KvCode::kInt6 ? 64 : 128; }

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
  int64_t MainAt(int token, int part) const { return planes.key.main + (token * kLatentParts + part) * LatentValues<kCode>::kRowBytes; }
  int64_t HighAt(int token, int part) const { return planes.key.high + (token * kLatentParts + part) * LatentValues<kCode>::kHighRowBytes; }
  // A code of a lane, as a number, against what is stored.
  void Check(float code, int token, int column, std::vector<int>* seen) const {
    ASSERT_TRUE(column >= 0 && column < kDim);
    ++(*seen)[static_cast<size_t>(token * kDim + column)];
    EXPECT_EQ(code * ScaleAt(token, column), stored[static_cast<size_t>(token)][static_cast<size_t>(column)])
        << "code " << static_cast<int>(kCode) << " token " << token << " column " << column;
  }
};

template <KvCode kCode>
void CheckKeys() {
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  using Values = LatentValues<kCode>;
  const Run<kCode> run;
  ASSERT_EQ(run.planes.key.main_row, kLatentParts * Values::kRowBytes);
  ASSERT_EQ(run.planes.key.high_row, kLatentParts * Values::kHighRowBytes);
  ASSERT_EQ(run.planes.key.scale_row, LatentSlot<kCode>::kScaleRow);
  std::vector<int> seen(kRunTokens * kDim);
  for (int part = 0; part < kLatentParts; ++part) {
    for (int lane = 0; lane < 32; ++lane) {
      const int quad = lane % 4;
      for (int tile = 0; tile < 2; ++tile) {
        const int token = TokenOf(tile, lane / 4);
        for (int head = 0; head < Keys::kHeads; ++head) {
          uint32_t words[Head::kWords], high[2] = {};
          for (int w = 0; w < Head::kWords; ++w)
            words[w] = WordAt(run.region, run.MainAt(token, part) + head * Head::kRowBytes + Head::MainOffset(quad, w));
          for (int w = 0; w < Head::kHighWords; ++w) {
            high[w] = WordAt(run.region, run.HighAt(token, part) + head * Head::kHighRowBytes + Head::HighOffset(quad, w));
          }
          for (int step = 0; step < Head::kSteps; ++step) {
            const OperandB b = Head::Take(words, high, quad, step);
            for (int i = 0; i < 8; ++i) {
              const auto byte = static_cast<uint8_t>((i < 4 ? b.low : b.high) >> (8 * (i % 4)));
              const int column = part * kLatentColumns + head * Keys::kHeadDim + Head::ValueOf(quad, step, i / 4, i % 4);
              const float code = kCode == KvCode::kE4M3
                                     ? FP8E4M3ToF32(byte)
                                     : static_cast<float>((Head::kSigned ? static_cast<int8_t>(byte) : byte) - Head::kBias) * Head::kStep;
              run.Check(code, token, column, &seen);
            }
          }
        }
      }
    }
  }
  for (int n : seen) ASSERT_EQ(n, 1);
}

template <KvCode kCode>
void CheckValues() {
  using Values = LatentValues<kCode>;
  const Run<kCode> run;
  std::vector<int> seen(kRunTokens * kDim);
  for (int part = 0; part < kLatentParts; ++part) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, quad = lane % 4;
      for (int pair = 0; pair < 2; ++pair) {
        const int first = 4 * quad + 2 * pair;
        for (int w = 0; w < Values::kWords; ++w) {
          const uint32_t a = WordAt(run.region, run.MainAt(first, part) + Values::Offset(g, w));
          const uint32_t b = WordAt(run.region, run.MainAt(first + 1, part) + Values::Offset(g, w));
          for (int i = 0; i < Values::kPairs; ++i) {
            const int column = Values::ColumnOf(g, Values::TileOf(w, i)), group = Values::GroupOf(g, Values::kSplit ? w : 0);
            EXPECT_EQ(group, column / GroupColumns(kCode));
            uint32_t halves;
            if constexpr (kCode == KvCode::kE4M3) {
              const uint32_t bytes = ValueFragments<kCode, 128>::BytePairs(a, b, i / 2) >> (16 * (i % 2));
              for (int e = 0; e < 2; ++e) {
                run.Check(FP8E4M3ToF32(static_cast<uint8_t>(bytes >> (8 * e))), first + e, part * kLatentColumns + column, &seen);
              }
              continue;
            } else if constexpr (Values::kSplit) {
              const uint32_t high_a = WordAt(run.region, run.HighAt(first, part) + Values::HighOffset(g, w));
              const uint32_t high_b = WordAt(run.region, run.HighAt(first + 1, part) + Values::HighOffset(g, w));
              halves = WidenBytes(Values::Bytes(a, high_a, g, i >= 4), Values::Bytes(b, high_b, g, i >= 4), i % 4);
            } else {
              halves = Values::HalfPair(a, b, i);
            }
            for (int e = 0; e < 2; ++e) {
              const float number = F16ToF32(static_cast<uint16_t>(halves >> (16 * e))) * (Values::IsHigh(i) ? 0x1p20f : 0x1p24f);
              run.Check(number - (kCode == KvCode::kInt4 ? 8 : 0) - Values::kOffset, first + e, part * kLatentColumns + column, &seen);
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

template <typename Plane>
void CheckPlane() {
  std::set<int> places;
  for (int token = 0; token < kRunTokens; ++token) {
    for (int byte = 0; byte < Plane::kRowBytes; ++byte) places.insert(Plane::At(token, byte));
  }
  EXPECT_EQ(static_cast<int>(places.size()), kRunTokens * Plane::kRowBytes);
  EXPECT_LT(*places.rbegin(), Plane::kBytes);
  for (int piece = 0; piece < Plane::kPieces; ++piece) {
    const int at = piece * kPieceBytes, to = Plane::Copy(Plane::FirstCopy(piece % 32), piece / 32);
    for (int i = 0; i < kPieceBytes; ++i) EXPECT_EQ(Plane::At((at + i) / Plane::kRowBytes, (at + i) % Plane::kRowBytes), to + i) << "piece " << piece;
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
void CheckSlot() {
  using Slot = LatentSlot<kCode>;
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  using Values = LatentValues<kCode>;
  CheckPlane<typename Slot::Main>();
  CheckPlane<typename Slot::High>();
  CheckPlane<typename Slot::Exact>();
  const int key_bytes = std::min(16, Head::kGrouped ? 4 : Head::kWords * 4);
  for (int head = 0; head < Keys::kHeads; ++head) {
    for (int w = 0; w < Head::kWords; w += key_bytes / 4) {
      const auto at = [&](int g, int quad) { return Slot::Main::At(TokenOf(0, g), head * Head::kRowBytes + Head::MainOffset(quad, w)); };
      EXPECT_LE(MostOfABank(key_bytes, at), kCode == KvCode::kInt4 ? 2 : 1) << "code " << static_cast<int>(kCode) << " keys, word " << w;
      for (int lane = 0; lane < 32; ++lane) {  // the second tile lies two rows behind the first one
        const int byte = head * Head::kRowBytes + Head::MainOffset(lane % 4, w);
        EXPECT_EQ(at(lane / 4, lane % 4) + 2 * Slot::Main::kRowBytes, Slot::Main::At(TokenOf(1, lane / 4), byte));
      }
    }
    if (Head::kHighWords > 0) {
      const auto at = [&](int g, int quad) { return Slot::High::At(TokenOf(0, g), head * Head::kHighRowBytes + Head::HighOffset(quad, 0)); };
      EXPECT_EQ(MostOfABank(8, at), 1);
    }
  }
  EXPECT_EQ(MostOfABank(8, [](int g, int quad) { return Slot::Exact::At(TokenOf(0, g), quad * 8); }), 1);
  const int value_bytes = Values::kSplit ? 4 : Values::kWords * 4;
  for (int i = 0; i < 4; ++i) {
    for (int w = 0; w < (Values::kSplit ? 2 : 1); ++w) {
      EXPECT_EQ(MostOfABank(value_bytes, [&](int g, int quad) { return Slot::Main::At(4 * quad + i, Values::Offset(g, w)); }), 1)
          << "code " << static_cast<int>(kCode) << " values of token " << i;
      if (Values::kHighWords == 0) continue;
      EXPECT_LE(MostOfABank(4, [&](int g, int quad) { return Slot::High::At(4 * quad + i, Values::HighOffset(g, w)); }), 2);
    }
  }
}

template <KvCode kCode>
void Check() {
  CheckKeys<kCode>();
  CheckValues<kCode>();
  CheckSlot<kCode>();
}

TEST(LatentRun, IsWhatTheCodesStandFor) {
  Check<KvCode::kInt8>();
  Check<KvCode::kInt6>();
  Check<KvCode::kInt4>();
  Check<KvCode::kE4M3>();
}

}  // namespace
}  // namespace cachalot
