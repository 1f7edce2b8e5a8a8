// Where 64 latents of a quantised cache in INT6 lie in shared memory, and how the warps of
// attention_mla_six_stream_sm90.cu take them apart. Index arithmetic alone, the same on the host, for the
// test.
//
// A tile is four runs of 16 tokens, each as it lies in a cache of blocks of 16: main plane, high plane,
// scales (of 128 columns), exact part; 32 bytes further in the banks than the one before. Four warps share
// it. As keys: warp w has tokens 4 w .. 4 w + 3 of each run, in the order SixTokenOf, lane (g, quad) of each
// of its two tiles of eight tokens token g's unit `quad` of each group of scales (wgmma.m64n16k32, the
// latents are A, rows g and g + 8 of the warp). As values: codes come as bytes, which the scoring warps have
// left, a group's in eight pieces of 16. Warp w has the columns of group w; step s of four are the tokens
// that warp s has scored; lane (g, quad) has piece g of four tokens, of which byte j is column g of tile j
// (mma.m16n8k16 of F16, the latents are B).
#pragma once

#include "kernels/attention/code_fragments.h"

namespace cachalot {

inline constexpr int kSixTokens = 64;  // of a tile
inline constexpr int kSixRuns = kSixTokens / kRunTokens;
inline constexpr int kSixGroups = 4;  // of scales; each also the part of a warp
inline constexpr int kSixColumns = 128;
inline constexpr int kSixTiles = kSixColumns / 8;
inline constexpr int kSixSteps = 4;  // of wgmma over a group
inline constexpr int kSixBias = 32;

// A run in shared memory.
inline constexpr int kSixMainRow = 256, kSixHighRow = 128, kSixScaleRow = 2 * kSixGroups, kSixExactRow = 128;
inline constexpr int kSixHigh = kRunTokens * kSixMainRow;
inline constexpr int kSixScales = kSixHigh + kRunTokens * kSixHighRow;
inline constexpr int kSixExact = kSixScales + kRunTokens * kSixScaleRow;
inline constexpr int kSixRunBytes = kSixExact + kRunTokens * kSixExactRow;
inline constexpr int kSixRunPitch = kSixRunBytes + 32;
inline constexpr int kSixTileBytes = kSixRuns * kSixRunPitch;

// Which token of the tile is column n of a scoring warp's tile. Of any four columns side by side, and of
// those with the same n % 2, each is of another run, and columns 2 i and 2 i + 1 are of runs two apart.
CACHALOT_BOTH int SixRunOf(int n) {
  return n / 2 % 2 + 2 * ((n ^ n / 4) % 2);
}
CACHALOT_BOTH int SixTokenOf(int warp, int tile, int n) {
  return 4 * warp + 2 * tile + n / 4;
}  // in its run

// Of a query: which step of which group has value `value`, the first of four, at which of a step's 32 places.
CACHALOT_BOTH int SixGroupOf(int value) {
  return value / kSixColumns;
}
CACHALOT_BOTH int SixStepOf(int value) {
  return value % 16 / 4;
}
CACHALOT_BOTH int SixPlaceOf(int value) {
  return value % kKvUnit / 16 * 16 + value / kKvUnit % 4 * 4;
}
// Of the exact part, of 16 places a step.
CACHALOT_BOTH int SixExactStepOf(int value) {
  return value / 32 * 2 + value % 8 / 4;
}
CACHALOT_BOTH int SixExactPlaceOf(int value) {
  return value % 4 / 2 * 8 + value % 32 / 8 * 2 + value % 2;
}

// Bytes of a tile: where piece `piece` of a group of token n of a warp's tile of eight lies. Pieces change
// places by n, so that lanes meet other banks.
inline constexpr int kSixBytesRow = kSixGroups * kSixColumns;
CACHALOT_BOTH int SixBytesAt(int warp, int tile, int n, int group, int piece) {
  return (warp * 16 + tile * 8 + n) * kSixBytesRow + group * kSixColumns + (piece ^ n) * 16;
}
// A unit's two pieces are the codes of words 0 and 1, and of 2 and 3, of each its low halves first. Byte j of
// piece g of a group, column g of tile j:
CACHALOT_BOTH int SixColumnOf(int g, int j) {
  return g / 2 * kKvUnit + g % 2 * 8 + j / 8 * 4 + j / 4 % 2 * 16 + j % 4;
}

// Bits 0 .. 3 of each byte from a, the others from b.
CACHALOT_BOTH uint32_t SixJoin(uint32_t a, uint32_t b) {
  return b ^ ((a ^ b) & 0x0f0f0f0fu);
}
// The eight codes of a word of the main plane: its low halves, its high halves. `top`: those two bits each,
// low ones' in bits 0 and 1 of each byte, high ones' in bits 4 and 5, no others.
CACHALOT_BOTH OperandB SixCodes(uint32_t main, uint32_t top) {
  return {SixJoin(main, top << 4), SixJoin(main >> 4, top)};
}
// Of words 2 i and 2 i + 1 of a unit from its high plane's word 0 or 1.
CACHALOT_BOTH uint32_t SixTop(uint32_t high, int i) {
  uint32_t top = (high >> (2 * i)) & 0x33333333u;
#ifdef __CUDA_ARCH__
  asm("" : "+r"(top));  // the compiler would mask each half by itself
#endif
  return top;
}

}  // namespace cachalot
