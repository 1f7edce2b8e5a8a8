// Rows of weights into the device's layout: plain host code, so that whoever uploads needs no CUDA.
#include <cstring>

#include "base/check.h"
#include "kernels/matmul/matmul_cuda.h"
#include "quant/block_codes.h"

namespace cachalot {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kHalf = 2;     // bytes of an F16

// Values of one byte: 64 at a time, the two blocks' runs of 8 bytes side by side.
void Interleave8(const std::byte* codes, int64_t block, std::byte* row) {
  std::byte* group = row + block / 2 * 64 + block % 2 * 8;
  for (int64_t q = 0; q < 4; ++q) std::memcpy(group + q * 16, codes + q * 8, 8);
}

// Two values a byte: 128 at a time, the four blocks' runs of 4 bytes side by side.
void Interleave4(const std::byte* codes, int64_t block, std::byte* row) {
  std::byte* group = row + block / 4 * 64 + block % 4 * 4;
  for (int64_t q = 0; q < 4; ++q) std::memcpy(group + q * 16, codes + q * 4, 4);
}

void Put16(std::byte* to, uint16_t bits) { std::memcpy(to, &bits, sizeof(bits)); }
void Or(std::byte* to, int bits) { *to |= static_cast<std::byte>(bits); }

// 32 values, block `block` of the row: their codes (code_rows.h).
void PackCodes(const CodeRow& format, const CudaRowLayout& layout, const uint8_t* codes, int64_t block, std::byte* row) {
  const int64_t chunk = block / 4, b = block % 4;
  std::byte* low = row + chunk * format.code_bits * 16;
  std::byte* high = row + layout.high_offset + chunk * format.high_bits * 16;
  for (int64_t l = 0; l < 32; ++l) {
    const int64_t half = l / 16, lane = l % 16 / 4, i = l % 4;
    const int code = codes[l], above = code >> format.code_bits, pair_shift = static_cast<int>(b % 2 * 2 + half * 4);
    if (format.code_bits == 4) Or(low + lane * 16 + b * 4 + i, (code & 0xf) << half * 4);
    else Or(low + lane * 8 + b / 2 * 4 + i, (code & 3) << pair_shift);
    if (format.high_bits == 1) Or(high + lane * 4 + i, above << (b + half * 4));
    if (format.high_bits == 2) Or(high + lane * 8 + b / 2 * 4 + i, above << pair_shift);
  }
}

// The record and the top of one block of 256 values, or of one of 32.
void PackScales(DType dtype, const CudaRowLayout& layout, const BlockCodes& codes, int64_t block, std::byte* row) {
  if (!CodeRowOf(dtype).whole_blocks) {
    Put16(row + layout.scales_offset + block * kHalf, codes.d);
    if (dtype == DType::kQ5_1) Put16(row + layout.minima_offset + block * kHalf, codes.dmin);
    return;
  }
  std::byte* record = row + layout.scales_offset + block * CodeRowOf(dtype).record_bytes;
  std::byte* top = row + layout.minima_offset + block * CodeRowOf(dtype).top_bytes;
  switch (dtype) {
    case DType::kQ4_K:
    case DType::kQ5_K:  // d, dmin, low halves of eight scales and minima, their high two bits
      Put16(record, codes.d);
      Put16(record + 2, codes.dmin);
      for (int j = 0; j < 8; ++j) {
        Or(record + 4 + j, (codes.scale[j] & 0xf) | (codes.min[j] & 0xf) << 4);
        Or(record + 12 + j / 2, (codes.scale[j] >> 4 | codes.min[j] >> 4 << 2) << j % 2 * 4);
      }
      break;
    case DType::kIQ4_XS:  // d, the scales' high two bits, their low four
      Put16(record, codes.d);
      for (int j = 0; j < 8; ++j) {
        Or(record + 2 + j / 4, codes.scale[j] >> 4 << j % 4 * 2);
        Or(record + 4 + j / 2, (codes.scale[j] & 0xf) << j % 2 * 4);
      }
      break;
    case DType::kQ2_K:
      for (int j = 0; j < 16; ++j) Or(record + j, codes.scale[j] | codes.min[j] << 4);
      Put16(top, codes.d);
      Put16(top + 2, codes.dmin);
      break;
    case DType::kQ3_K:  // sixteen scales' low four bits, their high two, d
      for (int j = 0; j < 16; ++j) {
        Or(record + j / 2, (codes.scale[j] & 0xf) << j % 2 * 4);
        Or(record + 8 + j / 4, codes.scale[j] >> 4 << j % 4 * 2);
      }
      Put16(record + 12, codes.d);
      break;
    default:  // Q6_K
      std::memcpy(record, codes.scale, 16);
      Put16(top, codes.d);
  }
}

}  // namespace

void PackCudaRow(DType dtype, const std::byte* source, int64_t k, std::byte* row) {
  const CudaRowLayout layout = CudaRowsOf(dtype, k);
  CHECK(layout.row_bytes > 0 || k == 0) << DTypeName(dtype) << " rows of " << k;
  std::memset(row, 0, static_cast<size_t>(layout.row_bytes));
  if (dtype == DType::kFP8E4M3) {
    for (int64_t i = 0; i < k; i += 8) {  // a run of 8 bytes at a time; the last may be shorter
      std::byte* run = row + i / 64 * 64 + i % 32 / 8 * 16 + i % 64 / 32 * 8;
      std::memcpy(run, source + i, static_cast<size_t>(k - i < 8 ? k - i : 8));
    }
    return;
  }
  if (!IsQuantized(dtype)) {
    std::memcpy(row, source, static_cast<size_t>(DTypeBytes(dtype, k)));
    return;
  }
  CHECK(k % CudaBlockOf(dtype) == 0) << DTypeName(dtype) << " rows of " << k;
  const int64_t block_bytes = GetDTypeInfo(dtype).block_bytes;
  if (IsCodeRow(dtype)) {
    const CodeFormat* format = FindCodeFormat(dtype);
    BlockCodes codes;
    const int64_t runs = CudaBlockOf(dtype) / kBlock;
    for (int64_t block = 0; block < k / CudaBlockOf(dtype); ++block, source += block_bytes) {
      format->unpack(source, &codes);
      for (int64_t run = 0; run < runs; ++run) PackCodes(CodeRowOf(dtype), layout, codes.q + run * kBlock, block * runs + run, row);
      PackScales(dtype, layout, codes, block, row);
    }
    return;
  }
  for (int64_t block = 0; block < k / kBlock; ++block, source += block_bytes) {
    std::memcpy(row + layout.scales_offset + block * kHalf, source, kHalf);
    if (dtype == DType::kQ8_0) {
      Interleave8(source + kHalf, block, row);
    } else if (dtype == DType::kQ4_0) {
      Interleave4(source + kHalf, block, row);
    } else {
      std::memcpy(row + layout.minima_offset + block * kHalf, source + kHalf, kHalf);
      Interleave4(source + 2 * kHalf, block, row);
    }
  }
}

}  // namespace cachalot
