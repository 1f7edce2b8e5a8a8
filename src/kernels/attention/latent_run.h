// Where 16 latents of a quantised cache lie in shared memory, and how the warps of attention_mla_code_stream_sm90.cu take them apart (INT6: latent_six.h). Index
// arithmetic and bit operations alone, the same on the host, for the test.
//
// Keys: a warp scores a run alone, its 512 columns as four parts of 128, with the fragments of code_fragments.h (mma.m16n8k32, the latents
// are B). Scales are of 128 columns (INT8, E4M3) or 32 (INT4).
// Values: warp w has the columns of part w. INT4 comes as bytes, which the warp that scored the run has left where their codes had
// been: a part of a token is eight pieces of 16 bytes. Lane g has piece g of its four tokens; byte j of it is column g of tile j
// (mma.m16n8k16 of F16, the latents are B), and all bytes of a tile have the same scale.
#pragma once

#include "kernels/attention/run_slot.h"

namespace cachalot {

inline constexpr int kLatentColumns = 128;  // of a part
inline constexpr int kLatentParts = 4;
inline constexpr int kLatentRow = kLatentParts * kLatentColumns;  // bytes of a token's row: codes, or bytes
inline constexpr int kExactRow = 2 * 64;

// A part's keys.
template <KvCode kCode>
struct LatentKeys {
  static_assert(kCode != KvCode::kInt6);
  using Head = KeyFragments<kCode, kLatentColumns>;
  static constexpr bool kTaken = !Head::kBytes;  // apart, into bytes
  static constexpr int kGroups = Head::kGroups;
  static constexpr int kSteps = Head::kSteps;

  // Which piece of a part a lane's bytes of register `half` of a step go to; the step is the word.
  static CACHALOT_BOTH int PieceOf(int quad, int half) { return quad * 2 + half; }
};

template <KvCode kCode>
struct LatentValues {
  static constexpr int kTiles = kLatentColumns / 8;
  static constexpr int kSets = LatentKeys<kCode>::kGroups;  // of tiles that share a scale
  static constexpr int kTilesOfSet = kTiles / kSets;
  // Integers are F16 2^-24 times what they are, and this much too large.
  static constexpr bool kOffsets = kCode != KvCode::kE4M3;
  static constexpr float kOffset = kCode == KvCode::kInt8 ? 128.0f : static_cast<float>(LatentKeys<kCode>::Head::kBias);

  // Column g of tile j; of four tiles from a multiple of four on, columns lie side by side.
  static CACHALOT_BOTH int ColumnOf(int g, int j) {
    if constexpr (kCode == KvCode::kInt4) return j / 4 * kKvUnit + g % 2 * 16 + g / 2 * 4 + j % 4;
    return g * 16 + j;
  }
  // Byte i of two tokens' words as F16 (not of E4M3).
  static CACHALOT_BOTH uint32_t HalfPair(uint32_t first, uint32_t second, int i) {
    if constexpr (kCode == KvCode::kInt8) {
      const auto byte = static_cast<uint32_t>(i);
      return (PickBytes(first, second, byte | byte << 4 | (byte + 4) << 8 | (byte + 4) << 12) & 0x00ff00ffu) ^ 0x00800080u;
    } else {
      return WidenBytes(first, second, i);
    }
  }
};

// A run in shared memory. Pieces of a row change places by the token's number, so that the lanes of a warp meet each bank once.
template <KvCode kCode>
struct LatentSlot {
  using Keys = LatentKeys<kCode>;
  static constexpr int kMainRow = Keys::kTaken ? 256 : 512;
  static constexpr int kGroups = kLatentParts * Keys::kGroups;
  static constexpr int kScaleRow = 2 * kGroups;
  static constexpr int kExact = kRunTokens * kLatentRow;
  static constexpr int kScales = kExact + kRunTokens * kExactRow;
  static constexpr int kWeights = kScales + kRunTokens * kScaleRow;  // operand A of the weighted sums, F16: a piece a lane
  static constexpr int kFactors = kWeights + 32 * kPieceBytes;       // [kGroups][kRunTokens] F16: scales, in the state's unit
  static constexpr int kBytes = (kFactors + 2 * kGroups * kRunTokens + 511) / 512 * 512;

  // A number of three bits, from those that tell a tile's tokens apart and those of a lane's quad.
  static CACHALOT_BOTH constexpr int Turn(int token) { return token % 2 + token / 4 * 2; }
  // Offsets within the slot; what is XORed does not leave 128 bytes.
  static CACHALOT_BOTH constexpr int Main(int token, int byte) { return token * kLatentRow + (byte ^ Turn(token) * kPieceBytes); }
  static CACHALOT_BOTH constexpr int Exact(int token, int byte) { return kExact + token * kExactRow + (byte ^ token % 2 * (4 * kPieceBytes)); }
  // Of a part's eight pieces.
  static CACHALOT_BOTH constexpr int Bytes(int token, int part, int piece) {
    return token * kLatentRow + part * kLatentColumns + (piece ^ Turn(token)) * kPieceBytes;
  }
  // Where a row's byte `from` + `byte` lies when `at` is where `from` does; they have no bits in common.
  static CACHALOT_BOTH constexpr uint32_t Further(uint32_t at, int byte) {
    return (at ^ static_cast<uint32_t>(byte % 128)) + static_cast<uint32_t>(byte / 128 * 128);
  }
  static constexpr int kTileApart = 2;  // tokens of a lane's columns of the two tiles: rows turned alike
  // Which exact values a lane has for steps 2 half and 2 half + 1: eight from here on, four a step.
  static CACHALOT_BOTH constexpr int ExactValueOf(int quad, int half) { return half * 32 + quad * 8; }
};

}  // namespace cachalot
