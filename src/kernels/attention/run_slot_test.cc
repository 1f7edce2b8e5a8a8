// Runs in shared memory: every byte has a place of its own, copies put it there, and no load of a warp meets
// a bank twice.
#include "kernels/attention/run_slot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace cachalot {
namespace {

template <typename Plane>
void CheckPlane() {
  std::set<int> places;
  for (int token = 0; token < kRunTokens; ++token) {
    for (int byte = 0; byte < Plane::kRowBytes; ++byte) places.insert(Plane::At(token, byte));
  }
  EXPECT_EQ(static_cast<int>(places.size()), kRunTokens * Plane::kRowBytes);
  EXPECT_GE(*places.begin(), 0);
  EXPECT_LT(*places.rbegin(), Plane::kBytes);
  for (int piece = 0; piece < Plane::kPieces; ++piece) {
    const int at = piece * kPieceBytes, to = Plane::Copy(Plane::FirstCopy(piece % 32), piece / 32);
    for (int i = 0; i < kPieceBytes; ++i)
      EXPECT_EQ(Plane::At((at + i) / Plane::kRowBytes, (at + i) % Plane::kRowBytes), to + i)
          << "piece " << piece;
  }
  EXPECT_EQ(Plane::kCopies, (Plane::kPieces + 31) / 32);
}

// How often the most used bank is met by one of the groups of lanes that a load of `bytes` a lane is done in.
int MostOfABank(int bytes, const std::vector<int>& at) {
  size_t most = 0;
  const int lanes = std::min(32, 128 / bytes);
  for (int first = 0; first < 32; first += lanes) {
    std::map<int, std::set<int>> words;
    for (int lane = first; lane < first + lanes; ++lane) {
      EXPECT_EQ(at[static_cast<size_t>(lane)] % bytes, 0);
      for (int i = 0; i < bytes; i += 4)
        words[(at[static_cast<size_t>(lane)] + i) / 4 % 32].insert((at[static_cast<size_t>(lane)] + i) / 4);
    }
    for (const auto& [bank, of] : words) most = std::max(most, of.size());
  }
  return static_cast<int>(most);
}

template <typename At>
std::vector<int> OfLanes(const At& at) {
  std::vector<int> result;
  for (int lane = 0; lane < 32; ++lane) result.push_back(at(lane / 4, lane % 4));
  return result;
}

template <KvCode kKey, KvCode kValue, int kDim>
void CheckSlot() {
  using Key = KeyFragments<kKey, kDim>;
  using Value = ValueFragments<kValue, kDim>;
  using Slot = RunSlot<Key, Value, kDim>;
  CheckPlane<typename Slot::KeyMain>();
  CheckPlane<typename Slot::KeyHigh>();
  CheckPlane<typename Slot::ValueMain>();
  const int bytes = std::min(16, Key::kGrouped ? 4 : Key::kWords * 4);
  for (int tile = 0; tile < 2; ++tile) {
    for (int w = 0; w < Key::kWords; w += bytes / 4) {
      const auto at = OfLanes([&](int g, int quad) {
        return Slot::KeyMain::At(TokenOf(0, g), Key::MainOffset(quad, w)) + tile * 2 * Key::kRowBytes;
      });
      EXPECT_LE(MostOfABank(bytes, at), kKey == KvCode::kInt4 && kDim == 64 ? 2 : 1)
          << kDim << " keys, word " << w;
      for (int lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(at[static_cast<size_t>(lane)],
                  Slot::KeyMain::At(TokenOf(tile, lane / 4), Key::MainOffset(lane % 4, w)));
      }
    }
    if (Key::kHighWords > 0) {
      const auto at = OfLanes(
          [&](int g, int quad) { return Slot::KeyHigh::At(TokenOf(tile, g), Key::HighOffset(quad, 0)); });
      EXPECT_EQ(MostOfABank(8, at), 1) << kDim << " high";
      for (int lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(at[static_cast<size_t>(lane)],
                  Slot::KeyHigh::At(TokenOf(0, lane / 4), Key::HighOffset(lane % 4, 0)) +
                      tile * 2 * Key::kHighRowBytes);
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    const auto at =
        OfLanes([&](int g, int quad) { return Slot::ValueMain::At(4 * quad + i, Value::Offset(g)); });
    EXPECT_EQ(MostOfABank(Value::kLaneBytes, at), 1) << kDim << " values " << i;
    for (int lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(at[static_cast<size_t>(lane)],
                Slot::ValueMain::At(4 * (lane % 4), Value::Offset(lane / 4)) + i * Value::kRowBytes);
    }
  }
}

template <int kDim>
void CheckFormats() {
  CheckSlot<KvCode::kInt8, KvCode::kE4M3, kDim>();
  CheckSlot<KvCode::kE4M3, KvCode::kE4M3, kDim>();
  CheckSlot<KvCode::kInt6, KvCode::kE4M3, kDim>();
  CheckSlot<KvCode::kInt6, KvCode::kInt4, kDim>();
  CheckSlot<KvCode::kInt4, KvCode::kInt4, kDim>();
}

TEST(RunSlot, EveryFormatsLoadsMeetEachBankOnce) {
  CheckFormats<128>();
  CheckFormats<64>();
}

}  // namespace
}  // namespace cachalot
