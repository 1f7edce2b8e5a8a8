// Rows of weights into the device's layout: plain host code, so that whoever uploads needs no CUDA.
#include <cstring>

#include "base/check.h"
#include "kernels/matmul/matmul_cuda.h"

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
  CHECK(k % kBlock == 0) << DTypeName(dtype) << " rows of " << k;
  const int64_t block_bytes = GetDTypeInfo(dtype).block_bytes;
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
