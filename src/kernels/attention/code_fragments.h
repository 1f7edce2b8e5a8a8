// How a warp takes the codes of 16 tokens of a quantised cache as operands of mma: which bytes a lane loads, which values they are, and
// how they come apart. Index arithmetic and bit operations alone, the same on the host, where the test puts a warp together from them.
//
// Lane = 4 g + quad, g in 0 .. 7. The 16 tokens of a run are two tiles of eight columns: column g of tile i is token TokenOf(i, g), so
// that the accumulators of a lane are of tokens 4 quad .. 4 quad + 3, whose scales and values it then needs.
// Scores (mma.m16n8k32 of bytes, keys are B): a sum may be taken in any order, so the values of one step are whatever a lane's next words
// hold: it loads a contiguous piece of its column's row; the query is laid out to match (ValueOf). Only INT4, whose scales are of 32
// values, takes a unit a step.
// Weighted sums (mma.m16n8k16 of F16, values are B): lane g has a contiguous piece of the rows of its four tokens; its j-th value is
// column g of tile j, ColumnOf(g, j).
#pragma once

#include <cstdint>

#include "quant/kv_code.h"

#ifdef __CUDACC__
#define CACHALOT_BOTH __host__ __device__ __forceinline__
#else
#define CACHALOT_BOTH inline
#endif

namespace cachalot {

inline constexpr int kRunTokens = 16;

CACHALOT_BOTH constexpr int TokenOf(int tile, int column) { return column / 2 * 4 + tile * 2 + column % 2; }

// Bytes of (a, b) picked by the four halves of a selector, as PRMT does.
CACHALOT_BOTH uint32_t PickBytes(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(a, b, selector);
#else
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 7;
    out |= ((from < 4 ? a >> (8 * from) : b >> (8 * (from - 4))) & 0xff) << (8 * i);
  }
  return out;
#endif
}

// Byte i of a and of b, each below 128, in 16 bits.
CACHALOT_BOTH uint32_t WidenBytes(uint32_t a, uint32_t b, int i) {
#ifdef __CUDA_ARCH__
  const auto byte = static_cast<uint32_t>(i);  // with 8 more: its sign
  uint32_t pair;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(pair) : "r"(a), "r"(b), "r"(byte | (byte + 8) << 4 | (byte + 4) << 8 | (byte + 12) << 12));
  return pair;
#else
  return (a >> (8 * i) & 0xff) | (b >> (8 * i) & 0xff) << 16;
#endif
}

// Operands A in memory: the four registers of lane (row % 8, quad) for a step side by side, first those of the step's first half, rows g
// and g + 8.
CACHALOT_BOTH int QueryWord(int row, int quad, int step, int half) { return ((step * 8 + row % 8) * 4 + quad) * 4 + half * 2 + row / 8; }

// The two registers of an operand B.
struct OperandB {
  uint32_t low;
  uint32_t high;
};

template <KvCode kCode, int kDim>
struct KeyFragments {
  static_assert(kDim == 64 || kDim == 128);
  static constexpr bool kBytes = kCode == KvCode::kInt8 || kCode == KvCode::kE4M3;
  static constexpr bool kGrouped = kCode == KvCode::kInt4;    // a scale for every 32 values
  static constexpr int kWords = kBytes ? kDim / 16 : kDim / 32;  // of the main plane, of a lane and token
  static constexpr int kHighWords = kCode == KvCode::kInt6 ? 2 : 0;
  static constexpr int kSteps = kDim / 32;
  static constexpr int kGroups = kGrouped ? kDim / kKvUnit : 1;
  static constexpr int kRowBytes = kBytes ? kDim : kDim / 2;
  static constexpr int kHighRowBytes = kCode == KvCode::kInt6 ? kDim / 4 : 0;
  // Integer codes are taken as unsigned c, less this bias; INT4's (u - 7.5) scale is (2 u - 15) scale / 2.
  static constexpr int kBias = kCode == KvCode::kInt4 ? 15 : kCode == KvCode::kInt6 ? 32 : 0;
  static constexpr float kStep = kCode == KvCode::kInt4 ? 0.5f : 1.0f;
  static constexpr bool kSigned = kCode == KvCode::kInt8;

  // Where in the token's row of the main plane word w begins; contiguous unless kGrouped.
  static CACHALOT_BOTH int MainOffset(int quad, int w) { return kGrouped ? w * 16 + quad * 4 : quad * kWords * 4 + w * 4; }
  static CACHALOT_BOTH int HighOffset(int quad, int w) { return (kDim == 128 ? quad : quad / 2) * 8 + w * 4; }
  // The value that is byte c of register `half` in a step.
  static CACHALOT_BOTH int ValueOf(int quad, int step, int half, int c) {
    if constexpr (kGrouped) return step * kKvUnit + half * 16 + quad * 4 + c;
    if constexpr (kBytes) return quad * (kDim / 4) + half * (kDim / 8) + step * 4 + c;
    const int first = kDim == 128 ? quad * kKvUnit : quad / 2 * kKvUnit + quad % 2 * 8;
    return first + half * 16 + step * 4 + c;
  }
  // Where value `value`, the first of four, is: word (quad, step, half) of a query that lies as mma wants it, see QueryWord.
  static CACHALOT_BOTH int QuadOf(int value) {
    if constexpr (kGrouped) return value / 4 % 4;
    if constexpr (kBytes || kDim == 128) return value / (kDim / 4);
    return value / kKvUnit * 2 + value / 8 % 2;
  }
  static CACHALOT_BOTH int HalfOf(int value) { return kBytes ? value / (kDim / 8) % 2 : value / 16 % 2; }
  static CACHALOT_BOTH int StepOf(int value) {
    if constexpr (kGrouped) return value / kKvUnit;
    return value / 4 % kSteps;
  }
  // Bytes for mma: of E4M3 the codes themselves.
  static CACHALOT_BOTH OperandB Take(const uint32_t* main, const uint32_t* high, int quad, int step) {
    if constexpr (kBytes) return {main[step], main[kSteps + step]};
    const uint32_t word = main[step];
    if constexpr (kCode == KvCode::kInt4) return {(word << 1) & 0x1e1e1e1eu, (word >> 3) & 0x1e1e1e1eu};
    const uint32_t top = kDim == 128 ? high[step % 2] >> (step / 2 * 2) : high[step] >> (quad % 2 * 2);
    return {(word & 0x0f0f0f0fu) | ((top << 4) & 0x30303030u), ((word >> 4) & 0x0f0f0f0fu) | (top & 0x30303030u)};
  }
};

template <KvCode kCode, int kDim>
struct ValueFragments {
  static_assert((kCode == KvCode::kE4M3 || kCode == KvCode::kInt4) && (kDim == 64 || kDim == 128));
  static constexpr bool kGrouped = kCode == KvCode::kInt4;  // a scale for every 32 values
  static constexpr int kRowBytes = kCode == KvCode::kE4M3 ? kDim : kDim / 2;
  static constexpr int kLaneBytes = kRowBytes / 8;
  static constexpr int kWords = kLaneBytes / 4;
  static constexpr int kTiles = kDim / 8;
  static constexpr int kGroups = kGrouped ? kDim / kKvUnit : 1;
  // Integer codes are F16 2^-24 times what they are; less 8, in the sums, they are this much too large.
  static constexpr bool kOffsets = kGrouped;
  static constexpr float kOffset = -0.5f;

  static CACHALOT_BOTH int Offset(int g) { return g * kLaneBytes; }
  // Which group of scales a lane's values belong to.
  static CACHALOT_BOTH int GroupOf(int g) { return kGrouped ? g * kLaneBytes / 16 : 0; }
  // Column g of tile j. Of four tiles from a multiple of four on, columns lie side by side.
  static CACHALOT_BOTH int ColumnOf(int g, int j) {
    if constexpr (kCode == KvCode::kE4M3) return g * kLaneBytes + j;
    return g * kLaneBytes / 16 * kKvUnit + g * kLaneBytes % 16 + j % kLaneBytes + j / kLaneBytes * 16;
  }
  // The codes of two tokens' word w, for tiles First(w, i) and i: pairs of bytes (E4M3, each pair the two tokens' byte), or of F16 2^-24 u (INT4,
  // i < 4) and 2^-20 u.
  static CACHALOT_BOTH int TileOf(int w, int i) {  // i: E4M3 0 .. 3; INT4 0 .. 7, the low halves first
    if constexpr (kCode == KvCode::kE4M3) return w * 4 + i;
    return w * 4 + i % 4 + i / 4 * kLaneBytes;
  }
  static CACHALOT_BOTH uint32_t BytePairs(uint32_t first, uint32_t second, int upper) {
    return PickBytes(first, second, upper ? 0x7362u : 0x5140u);
  }
  static CACHALOT_BOTH uint32_t HalfPair(uint32_t first, uint32_t second, int i) {
    const uint32_t byte = static_cast<uint32_t>(i % 4), pair = PickBytes(first, second, byte | byte << 4 | (byte + 4) << 8 | (byte + 4) << 12);
    return pair & (i < 4 ? 0x000f000fu : 0x00f000f0u);
  }
};

}  // namespace cachalot
