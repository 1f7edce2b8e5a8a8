// A run of 16 tokens in codes on its way from the cache through a slot in shared memory (run_slot.h) to a warp's registers.
#pragma once

#include "kernels/attention/attention_codes_queries.cuh"
#include "kernels/attention/run_slot.h"

namespace cachalot {

// kColumns: for attention_codes_columns.cuh.
template <typename F, bool kColumns = false>
struct RunCodes {
  uint32_t key[2][F::Key::kWords];
  uint32_t high[2][F::Key::kHighWords == 0 ? 1 : F::Key::kHighWords];
  uint32_t key_scales[2 * F::Key::kGroups];  // of this lane's four tokens, token by token; kColumns: of its two tokens
  uint32_t value[4][F::Value::kWords];
  uint32_t value_scales[2];  // of the four tokens; kColumns, of values with one scale: in the first word, of the two
};

// Where a run lies: its first token is the region's row `row` and has position t0.
struct RunPlace {
  const std::byte* region;
  int row;
  int t0;
};

// Offsets within a region fit into 32 bits: one wide addition a plane, a lane's pieces lie at constant distances.
__device__ __forceinline__ const std::byte* RegionAt(const RunPlace& at, int offset) { return at.region + static_cast<uint32_t>(offset); }

template <typename F>
using SlotOf = RunSlot<typename F::Key, typename F::Value, F::kDim>;

// A plane's rows of a run, from `from` on in the cache, by a warp.
template <typename Plane>
__device__ __forceinline__ void CopyPlane(const std::byte* from, uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = Plane::FirstCopy(lane);
  if (Plane::kPieces % 32 != 0 && lane >= Plane::kPieces) return;
#pragma unroll
  for (int copy = 0; copy < Plane::kCopies; ++copy) {
    CopyPiece(to + static_cast<uint32_t>(Plane::Copy(first, copy)), from + lane * kPieceBytes + copy * kCopyBytes);
  }
}

template <typename F>
__device__ __forceinline__ void CopyRun(const CodePlanes& planes, const RunPlace& at, uint32_t slot) {
  using S = SlotOf<F>;
  using Key = typename F::Key;
  using Value = typename F::Value;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  CopyPlane<typename S::KeyMain>(RegionAt(at, planes.key.main + at.row * Key::kRowBytes), slot);
  if constexpr (Key::kHighWords > 0) {
    CopyPlane<typename S::KeyHigh>(RegionAt(at, planes.key.high + at.row * Key::kHighRowBytes), slot + S::kKeyHigh);
  }
  // Lanes 0 .. 7 keys' scales, 8 .. 15 values'.
  const int piece = lane % 8, bytes = lane < 8 ? S::kKeyScaleBytes : lane < 16 ? S::kValueScaleBytes : 0;
  if (piece * kPieceBytes < bytes) {
    const int offset = lane < 8 ? planes.key.scales + at.row * (2 * Key::kGroups) : planes.value.scales + at.row * (2 * Value::kGroups);
    CopyPiece(slot + static_cast<uint32_t>((lane < 8 ? S::kKeyScales : S::kValueScales) + piece * kPieceBytes),
              RegionAt(at, offset) + piece * kPieceBytes);
  }
  CopyPlane<typename S::ValueMain>(RegionAt(at, planes.value.main + at.row * Value::kRowBytes), slot + S::kValueMain);
}

// Also of tokens that nobody sees: those scores are never used.
template <typename F, bool kColumns>
__device__ __forceinline__ void ReadKeys(uint32_t slot, RunCodes<F, kColumns>* codes) {
  using S = SlotOf<F>;
  using Key = typename F::Key;
  using Main = typename S::KeyMain;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4, token = TokenOf(0, lane / 4);
  static_assert(TokenOf(1, 5) - TokenOf(0, 5) == 2 && TokenOf(1, 5) / 4 == TokenOf(0, 5) / 4);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const uint32_t main = slot + tile * 2 * Key::kRowBytes;
    if constexpr (Key::kGrouped) {
#pragma unroll
      for (int w = 0; w < Key::kWords; ++w) {
        uint32_t word[1];
        LoadShared(word, main + static_cast<uint32_t>(Main::At(token, Key::MainOffset(quad, w))));
        codes->key[tile][w] = word[0];
      }
    } else if constexpr (Key::kWords == 8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t words[4];
        LoadShared(words, main + static_cast<uint32_t>(Main::At(token, Key::MainOffset(quad, 4 * half))));
#pragma unroll
        for (int w = 0; w < 4; ++w) codes->key[tile][4 * half + w] = words[w];
      }
    } else {
      LoadShared(codes->key[tile], main + static_cast<uint32_t>(Main::At(token, Key::MainOffset(quad, 0))));
    }
    if constexpr (Key::kHighWords > 0) {
      const int high = S::KeyHigh::At(token, Key::HighOffset(quad, 0));
      LoadShared(codes->high[tile], slot + S::kKeyHigh + static_cast<uint32_t>(high) + tile * 2 * Key::kHighRowBytes);
    }
  }
  if constexpr (!kColumns) {
    LoadShared(codes->key_scales, slot + S::kKeyScales + static_cast<uint32_t>(quad * (8 * Key::kGroups)));
  } else if constexpr (Key::kGroups == 1) {
    codes->key_scales[0] = LoadSharedHalfWords(slot + S::kKeyScales + static_cast<uint32_t>(2 * token), 4);
  } else {
    constexpr int kWords = Key::kGroups / 2;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t words[kWords];
      LoadShared(words, slot + S::kKeyScales + static_cast<uint32_t>((token + 2 * tile) * (2 * Key::kGroups)));
#pragma unroll
      for (int w = 0; w < kWords; ++w) codes->key_scales[tile * kWords + w] = words[w];
    }
  }
}

// Zeros for tokens outside [low, high): a weight of zero must not meet what is no number.
template <typename F, bool kColumns>
__device__ __forceinline__ void ReadValues(uint32_t slot, int t0, int low, int high, RunCodes<F, kColumns>* codes) {
  using S = SlotOf<F>;
  using Value = typename F::Value;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, quad = lane % 4;
  const uint32_t main = slot + S::kValueMain + static_cast<uint32_t>(S::ValueMain::At(4 * quad, Value::Offset(g)));
  const uint32_t scales = slot + S::kValueScales + static_cast<uint32_t>(quad * (8 * Value::kGroups) + 2 * Value::GroupOf(g));
#pragma unroll
  for (int i = 0; i < 4; ++i) LoadShared(codes->value[i], main + i * Value::kRowBytes);
  if constexpr (Value::kGrouped) {
    uint32_t scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) scale[i] = LoadSharedHalfWord(scales + i * 2 * Value::kGroups);
    codes->value_scales[0] = scale[0] | scale[1] << 16;
    codes->value_scales[1] = scale[2] | scale[3] << 16;
  } else if constexpr (kColumns) {
    codes->value_scales[0] = LoadSharedHalfWords(slot + S::kValueScales + static_cast<uint32_t>(2 * TokenOf(0, g)), 4);
    codes->value_scales[1] = 0;
  } else {
    LoadShared(codes->value_scales, scales);
  }
  if (t0 >= low && t0 + kRunTokens <= high) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = t0 + 4 * quad + i;
    if (t >= low && t < high) continue;
#pragma unroll
    for (uint32_t& word : codes->value[i]) word = 0;
    if (Value::kGrouped || !kColumns) codes->value_scales[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
  }
  if constexpr (kColumns && !Value::kGrouped) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int t = t0 + TokenOf(tile, g);
      if (t < low || t >= high) codes->value_scales[0] &= tile == 0 ? 0xffff0000u : 0x0000ffffu;
    }
  }
}

}  // namespace cachalot
