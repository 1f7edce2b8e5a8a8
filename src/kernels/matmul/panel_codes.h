// Panels of the formats whose blocks are integers of 2 to 6 bits (quant/block_codes.h). The same 16 rows as
// in matmul/panel.h, every bit of the source block exactly once. A block (32 or 256 of k) is, in this order:
//
// clang-format off
//   [16] F16 d
//   [16] F16 dmin                     Q5_1, Q2_K, Q4_K, Q5_K
//   scales                            blocks of 256 only; j: the sub-block, b: the 32 of k (two sub-blocks of 16, or one)
//     Q6_K          [16 j][16] bytes
//     Q2_K          [8 b][16] scales of j = 2b in the low half, of 2b + 1 in the high half; [8 b][16] minima likewise
//     Q4_K, Q5_K    pairs (scale b, minimum b) of six bits: [8 b][16] the low four bits of either,
//                   [4][16] the high two: of b even in bits 0-1 and 2-3, of b odd in bits 4-5 and 6-7
//     Q3_K          the same for pairs (scale 2b, scale 2b + 1)
//     IQ4_XS        [4][16] low four bits of the scales 2i and 2i + 1; [2][16] high two of scales 4i .. 4i + 3
//   for each 32 of k (quad s: k = 4s .. 4s+3, byte t of a row's four is k = 4s + t):
//     low four bits  [4][16][4]       quad s in the low half, quad 4 + s in the high half   (formats of 4 to 6 bits)
//     or low two     [2][16][4]       quads 4i + s at bits 2s                               (of 2 and 3 bits)
//     high bit       [16][4]          bit s: quad s                                         (of 3 and 5 bits)
//     or high two    [2][16][4]       quads 4i + s at bits 2s                               (of 6 bits)
// clang-format on
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul/panel.h"

namespace cachalot {

// The format must have one: FindCodeFormat(dtype) != nullptr.
void PackCodePanel(DType dtype, const PanelSource& source, int64_t k, std::byte* panel);
void DecodeCodePanelRow(DType dtype, const std::byte* panel, int64_t row, int64_t k, float* out);

}  // namespace cachalot
