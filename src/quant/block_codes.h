// The integers of one block, unpacked: what all formats with codes of 2 to 6 bits have in common. Each format
// has its own bytes (quant/<format>.h) and its own arithmetic from integers to values; encoders fill a
// BlockCodes, and kernels that want another arrangement of the bits start from one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace cachalot {

inline constexpr int kMaxBlockValues = 256;
inline constexpr int kMaxSubBlocks = 16;

struct BlockCodes {
  uint16_t d = 0;     // F16: the block's scale
  uint16_t dmin = 0;  // F16: the block's minimum, or the scale of the sub-blocks' minima
  // A sub-block's integers as the file holds them (Q3_K, IQ4_XS: the scale plus 32; Q6_K: two's complement).
  uint8_t scale[kMaxSubBlocks] = {};
  uint8_t min[kMaxSubBlocks] = {};
  uint8_t q[kMaxBlockValues] = {};  // unsigned, in the order of the values
};

struct CodeFormat {
  DType dtype;
  int bits;       // of a code
  int sub_block;  // values that share a scale: 16, or 32
  bool has_min;
  void (*unpack)(const std::byte* block, BlockCodes* codes);
  void (*pack)(const BlockCodes& codes, std::byte* block);
  // One block's values: the exact arithmetic of the format.
  void (*values)(const BlockCodes& codes, float* out);
};

// Null for types without codes of this kind (plain types, and Q4_0, Q4_1, Q8_0, whose bytes are plain
// enough).
const CodeFormat* FindCodeFormat(DType dtype);

// A decode of whole rows through the two steps of a format.
template <int kBlockValues, int64_t kBlockBytes, auto kUnpack, auto kValues>
void DecodeCodes(const std::byte* src, float* dst, int64_t count) {
  BlockCodes codes;
  for (int64_t i = 0; i < count; i += kBlockValues, src += kBlockBytes) {
    kUnpack(src, &codes);
    kValues(codes, dst + i);
  }
}

}  // namespace cachalot
