// How a warp takes 128 columns of 16 latents of a quantised cache apart, as keys and as values: what code_fragments.h has for keys and values
// that lie apart, but of one plane, with scales of 128 (INT8, E4M3), 64 (INT6) or 32 columns (INT4). A warpgroup has the 512 columns, warp w
// those from 128 w on and values 16 w .. of the 64 exact ones. Index arithmetic and bit operations alone, the same on the host.
#pragma once

#include "kernels/attention/run_slot.h"

namespace cachalot {

inline constexpr int kLatentColumns = 128;  // of a warp
inline constexpr int kLatentParts = 4;
inline constexpr int kExactOfPart = 16;

// A part's keys are kHeads fragments of kHeadDim columns, each with the scale, or scales, of its own.
template <KvCode kCode>
struct LatentKeys {
  static constexpr int kHeads = kCode == KvCode::kInt6 ? 2 : 1;
  static constexpr int kHeadDim = kLatentColumns / kHeads;
  using Head = KeyFragments<kCode, kHeadDim>;
  static constexpr int kGroups = kHeads * Head::kGroups;
  static constexpr int kSteps = kHeads * Head::kSteps;
};

template <KvCode kCode>
struct LatentValues {
  static constexpr bool kBytes = kCode == KvCode::kInt8 || kCode == KvCode::kE4M3;
  static constexpr bool kGrouped = !kBytes;  // scales of fewer columns than a part has: they go into the values
  static constexpr int kRowBytes = kBytes ? kLatentColumns : kLatentColumns / 2;
  static constexpr int kHighRowBytes = kCode == KvCode::kInt6 ? kLatentColumns / 4 : 0;
  static constexpr int kLaneBytes = kRowBytes / 8;
  static constexpr int kWords = kLaneBytes / 4;
  static constexpr int kHighWords = kCode == KvCode::kInt6 ? 2 : 0;
  static constexpr int kTiles = kLatentColumns / 8;
  static constexpr int kGroups = LatentKeys<kCode>::kGroups;
  static constexpr int kPairs = kBytes ? 4 : 8;  // of a word: HalfPair
  // Integer codes are F16 2^-24 times what they are, and this much too large (INT6: of the high halves 2^-20 times).
  static constexpr bool kOffsets = kCode != KvCode::kE4M3;
  static constexpr float kOffset = kCode == KvCode::kInt8 ? 128.0f : kCode == KvCode::kInt6 ? 32.0f : 7.5f;

  static CACHALOT_BOTH int Offset(int g) { return g * kLaneBytes; }
  static CACHALOT_BOTH int HighOffset(int g) { return g / 2 * 8; }
  static CACHALOT_BOTH int GroupOf(int g) { return g * kGroups / 8; }
  // Column g of tile j; of four tiles from a multiple of four on, columns lie side by side.
  static CACHALOT_BOTH int ColumnOf(int g, int j) {
    if constexpr (kBytes) return g * kLaneBytes + j;
    return g / 2 * kKvUnit + g % 2 * 8 + j % 8 + j / 8 * 16;
  }
  static CACHALOT_BOTH int TileOf(int w, int i) { return kBytes ? w * 4 + i : w * 4 + i % 4 + i / 4 * 8; }
  // Whether pair i's codes are 2^-20 times what they are.
  static CACHALOT_BOTH constexpr bool IsHigh(int i) { return !kBytes && i >= 4; }

  // Upper quarters as HalfPair wants them, from a token's two words of the high plane.
  static CACHALOT_BOTH uint32_t Tops(uint32_t high, int g) { return high >> (g % 2 * 2); }
  // Codes of two tokens, of the words' byte i % 4: integers (E4M3: see ValueFragments::BytePairs).
  static CACHALOT_BOTH uint32_t HalfPair(uint32_t first, uint32_t second, uint32_t first_top, uint32_t second_top, int i) {
    const uint32_t byte = static_cast<uint32_t>(i % 4), pick = byte | byte << 4 | (byte + 4) << 8 | (byte + 4) << 12;
    const uint32_t pair = PickBytes(first, second, pick);
    if constexpr (kCode == KvCode::kInt8) return (pair & 0x00ff00ffu) ^ 0x00800080u;
    if constexpr (kCode == KvCode::kInt4) return pair & (i < 4 ? 0x000f000fu : 0x00f000f0u);
    const uint32_t tops = PickBytes(first_top, second_top, pick);
    return i < 4 ? (pair & 0x000f000fu) | (tops << 4 & 0x00300030u) : (pair & 0x00f000f0u) | (tops >> 4 & 0x03000300u);
  }
};

// A part of a run in shared memory.
template <KvCode kCode>
struct LatentSlot {
  using Keys = LatentKeys<kCode>;
  using Values = LatentValues<kCode>;
  static constexpr int kAllGroups = kLatentParts * Keys::kGroups;
  using Main = PlaneSlot<Values::kRowBytes, Values::kBytes ? RowOrder::kOddApart32 : RowOrder::kApart32>;
  using High = PlaneSlot<32, RowOrder::kApart64>;
  using Exact = PlaneSlot<2 * kExactOfPart, RowOrder::kApart64>;

  static constexpr int kHigh = Main::kBytes;
  static constexpr int kExact = kHigh + (Values::kHighWords == 0 ? 0 : High::kBytes);
  static constexpr int kScales = kExact + Exact::kBytes;  // of all parts
  static constexpr int kScaleRow = 2 * kAllGroups;
  static constexpr int kScalePieces = kRunTokens * kScaleRow / kPieceBytes;
  static constexpr int kBytes = kScales + kRunTokens * kScaleRow;
  static_assert(kScalePieces <= 32);
};

}  // namespace cachalot
