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

// Of INT6 a lane has a word of each half of the part, and the tiles of a half are those of one scale, which then goes into the weights.
template <KvCode kCode>
struct LatentValues {
  static constexpr bool kBytes = kCode == KvCode::kInt8 || kCode == KvCode::kE4M3;
  static constexpr bool kSplit = kCode == KvCode::kInt6;
  static constexpr bool kGrouped = !kBytes;  // more than one scale: the weights are not those of one
  static constexpr int kRowBytes = kBytes ? kLatentColumns : kLatentColumns / 2;
  static constexpr int kHighRowBytes = kSplit ? kLatentColumns / 4 : 0;
  static constexpr int kWords = kRowBytes / 32;  // of a lane and token
  static constexpr int kHighWords = kSplit ? 2 : 0;
  static constexpr int kTiles = kLatentColumns / 8;
  static constexpr int kGroups = LatentKeys<kCode>::kGroups;
  static constexpr int kSets = kSplit ? 2 : 1;   // of weights
  static constexpr int kPairs = kBytes ? 4 : 8;  // of a word: HalfPair
  // Integer codes are F16 2^-24 times what they are (INT4's high halves 2^-20 times), and this much too large in the sums (INT4: once less 8).
  static constexpr bool kOffsets = kCode != KvCode::kE4M3;
  static constexpr float kOffset = kCode == KvCode::kInt8 ? 128.0f : kCode == KvCode::kInt6 ? 32.0f : -0.5f;

  // Where in the part's row word w is; contiguous unless kSplit.
  static CACHALOT_BOTH int Offset(int g, int w) { return kSplit ? w * 32 + g * 4 : (g * kWords + w) * 4; }
  static CACHALOT_BOTH int HighOffset(int g, int w) { return w * 16 + g / 4 * 8 + g % 2 * 4; }
  // Of the part's scales, that of a set.
  static CACHALOT_BOTH int GroupOf(int g, int set) { return kSplit ? set : g * kGroups / 8; }
  // Column g of tile j; of four tiles from a multiple of four on, columns lie side by side.
  static CACHALOT_BOTH int ColumnOf(int g, int j) {
    if constexpr (kBytes) return g * kWords * 4 + j;
    if constexpr (kSplit) return (j / 8 * 2 + g / 4) * kKvUnit + g % 4 * 4 + j % 4 + j % 8 / 4 * 16;
    return g / 2 * kKvUnit + g % 2 * 8 + j % 8 + j / 8 * 16;
  }
  static CACHALOT_BOTH int TileOf(int w, int i) {
    if constexpr (kSplit) return w * 8 + i;
    return kBytes ? w * 4 + i : w * 4 + i % 4 + i / 4 * 8;
  }
  // Whether pair i's codes are 2^-20 times what they are.
  static CACHALOT_BOTH constexpr bool IsHigh(int i) { return kCode == KvCode::kInt4 && i >= 4; }

  // INT6: the four codes of a word's low or high halves as bytes, with their upper bits.
  static CACHALOT_BOTH uint32_t Bytes(uint32_t word, uint32_t high, int g, bool upper) {
    const uint32_t top = high >> (g % 4 / 2 * 2);
    return upper ? (word >> 4 & 0x0f0f0f0fu) | (top & 0x30303030u) : (word & 0x0f0f0f0fu) | (top << 4 & 0x30303030u);
  }
  // Codes of two tokens, of the words' byte i % 4: integers (E4M3: see ValueFragments::BytePairs; INT6: WidenBytes of Bytes).
  static CACHALOT_BOTH uint32_t HalfPair(uint32_t first, uint32_t second, int i) {
    const uint32_t byte = static_cast<uint32_t>(i % 4), pick = byte | byte << 4 | (byte + 4) << 8 | (byte + 4) << 12;
    const uint32_t pair = PickBytes(first, second, pick);
    if constexpr (kCode == KvCode::kInt8) return (pair & 0x00ff00ffu) ^ 0x00800080u;
    return pair & (i < 4 ? 0x000f000fu : 0x00f000f0u);
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
