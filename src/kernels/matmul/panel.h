// The panel layout: what the SIMD kernels stream.
//
// kPanelRows rows of W are interleaved so that SIMD lanes are output rows: a kernel needs no horizontal sums,
// and each output is one chain over k whatever the number of rows of x. A matrix is ceil(n / 16) panels one
// after the other; rows beyond n are zero. Within a panel (r = row in the panel, 0..15):
//
// clang-format off
//   F32, F16    [k][16]                      the source's values as they are
//   BF16        [k][8][2]                    pairs (row j, row j + 8): F32 by a shift and by a mask
//   FP8 E4M3    for each 128 of k (the last one may be shorter):
//                 [16] F32 scales            one per row, so that parts may be stacked at any row
//                 [<=32 quads][16][4] codes  quad s holds k = 4s .. 4s+3, zero beyond the end; a NaN code
//                                            makes the row's scale NaN: the kernels decode no NaN
//   Q8_0        for each 32 of k:
//                 [16] F16 scales
//                 [8 quads][16][4] bytes     quad s holds k = 4s .. 4s+3; even k unsigned, 128 too large
//   Q4_0        for each 32 of k:
//                 [16] F16 scales
//                 [4][16][4] bytes           byte (s, r, t) is the source's byte 4s + t of row r: value
//                                            k = 4s + t in the low half, k = 16 + 4s + t in the high half
//   Q4_1        the same with [16] F16 minima behind the scales
//   others      matmul/panel_codes.h
// clang-format on
//
// So one 32-byte load of a block format feeds a byte multiply-add for 8 rows x 4 k (VNNI's 64 bytes: 16
// rows), and a panel takes exactly the bytes of its 16 source rows (FP8: plus 1/32 for the scales, and k
// rounded up to 4).
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace cachalot {

inline constexpr int64_t kPanelRows = 16;

inline int64_t NumPanels(int64_t n) {
  return (n + kPanelRows - 1) / kPanelRows;
}

bool HasPanelLayout(DType dtype);
int64_t PanelBytes(DType dtype, int64_t k);

// The 16 rows that make a panel, as a file holds them; null is a row of zeros.
struct PanelSource {
  const std::byte* rows[kPanelRows] = {};
  const float* scales[kPanelRows] = {};  // FP8: the scales [ceil(k/128)] of the row
};
void PackPanel(DType dtype, const PanelSource& source, int64_t k, std::byte* panel);

// Row `row` (0..15) of a panel in F32: out [k]. The same bits as decoding the source row.
void DecodePanelRow(DType dtype, const std::byte* panel, int64_t row, int64_t k, float* out);

}  // namespace cachalot
