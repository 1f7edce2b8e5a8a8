// How a warpgroup takes a tile of 64 tokens of a quantised latent cache apart: which units of 32 codes a thread has, and how their bytes
// become F16. The same on the host, for the test.
//
// Thread = 32 warp + lane has of each run of 16 tokens one token's two units, 8 apart. Eight lanes in a row have four tokens and two units
// side by side: they read whole sectors, and write to different banks of a swizzled tile (Swizzled: piece ^ row).
#pragma once

#include <cstdint>

#include "kernels/attention/code_fragments.h"

namespace cachalot {

inline constexpr int kLatentDim = 512;   // coded values
inline constexpr int kExactDim = 64;
inline constexpr int kLatentTokens = 64;  // of a tile
inline constexpr int kLatentRuns = kLatentTokens / kRunTokens;
inline constexpr int kLatentRowUnits = kLatentDim / kKvUnit;
inline constexpr int kLatentUnits = 2 * kLatentRuns;  // of a thread

CACHALOT_BOTH int LatentTokenOf(int thread) { return thread % 32 / 2 % 4 + thread / 32 * 4; }
CACHALOT_BOTH int LatentUnitOf(int thread, int half) { return thread % 2 + thread % 32 / 8 * 2 + half * 8; }
// Of each run a thread also has 16 bytes of a token's exact part.
CACHALOT_BOTH int ExactTokenOf(int thread) { return thread / 8; }
CACHALOT_BOTH int ExactPieceOf(int thread) { return thread % 8; }

template <KvCode kCode>
struct LatentCode {
  static constexpr bool kBytes = kCode == KvCode::kInt8 || kCode == KvCode::kE4M3;
  static constexpr int kWords = kBytes ? 8 : 4;  // of a unit's main plane
  static constexpr int kHighWords = kCode == KvCode::kInt6 ? 2 : 0;
  static constexpr int kUnitBytes = 4 * kWords;
  static constexpr int kRowBytes = kLatentRowUnits * kUnitBytes;
  static constexpr int kHighRowBytes = kLatentRowUnits * 4 * kHighWords;
  // Bytes become F16 1024 + byte; this much more than they stand for, in both halves.
  static constexpr uint32_t kOffset = kCode == KvCode::kInt8 ? 0x64806480u : kCode == KvCode::kInt6 ? 0x64206420u : 0x640f640fu;
  static constexpr float kStep = kCode == KvCode::kInt4 ? 0.5f : 1.0f;

  // Values 4 i .. 4 i + 3 of a unit as bytes; of E4M3 the codes.
  static CACHALOT_BOTH uint32_t BytesOf(const uint32_t* main, const uint32_t* high, int i) {
    if constexpr (kCode == KvCode::kE4M3) return main[i];
    if constexpr (kCode == KvCode::kInt8) return main[i] ^ 0x80808080u;
    if constexpr (!kBytes) {
      const OperandB b = KeyFragments<kCode, 128>::Take(main, high, 0, i % 4);
      return i < 4 ? b.low : b.high;
    }
  }
  // The two lower or upper bytes as F16 1024 + byte.
  static CACHALOT_BOTH uint32_t HalfPair(uint32_t bytes, bool upper) { return PickBytes(bytes, 0x64646464u, upper ? 0x4342u : 0x4140u); }
};

}  // namespace cachalot
