// The device's row layout against an index by index reading of what its header says.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/common/testing.h"
#include "kernels/matmul/matmul_cuda.h"
#include "quant/format.h"
#include "quant/fp8_e4m3.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kFP8E4M3,
                            DType::kQ8_0, DType::kQ4_0, DType::kQ4_1};

uint16_t HalfAt(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}

// Value i of a packed row, block scales of FP8 aside.
float ValueAt(DType dtype, int64_t k, const std::byte* row, int64_t i) {
  const CudaRowLayout layout = CudaRowsOf(dtype, k);
  const int64_t in_block = i % 32, block = i / 32;
  const auto half = [&](int64_t offset) { return F16ToF32(HalfAt(row + offset + block * 2)); };
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, row + i * 4, sizeof(value));
      return value;
    }
    case DType::kF16:
      return F16ToF32(HalfAt(row + i * 2));
    case DType::kBF16:
      return BF16ToF32(HalfAt(row + i * 2));
    case DType::kFP8E4M3:
    case DType::kQ8_0: {
      const std::byte code = row[i / 64 * 64 + in_block / 8 * 16 + block % 2 * 8 + in_block % 8];
      if (dtype == DType::kFP8E4M3) return FP8E4M3ToF32(static_cast<uint8_t>(code));
      return static_cast<float>(static_cast<int8_t>(code)) * half(layout.scales_offset);
    }
    default: {
      const int64_t at = in_block % 16;
      const auto pair = static_cast<uint8_t>(row[i / 128 * 64 + at / 4 * 16 + block % 4 * 4 + at % 4]);
      const int code = in_block < 16 ? pair & 0xf : pair >> 4;
      if (dtype == DType::kQ4_0) return static_cast<float>(code - 8) * half(layout.scales_offset);
      return static_cast<float>(code) * half(layout.scales_offset) + half(layout.minima_offset);
    }
  }
}

TEST(CudaRows, HoldTheFilesValues) {
  for (DType dtype : kTypes) {
    for (int64_t k : {1, 7, 8, 31, 32, 33, 64, 96, 127, 128, 160, 576, 1000, 1408, 4096}) {
      if (IsQuantized(dtype) && k % 32 != 0) continue;
      SCOPED_TRACE(fmt::format("{} k {}", DTypeName(dtype), k));
      TestRng rng(static_cast<uint64_t>(k));
      const std::vector<float> values = rng.NormalVector(k, 2.0f);
      std::vector<std::byte> file(DTypeBytes(dtype, k));
      std::vector<float> want(k);
      const QuantFormat* format = FindQuantFormat(dtype);
      format->encode(values.data(), file.data(), k);
      format->decode(file.data(), want.data(), k);
      const CudaRowLayout layout = CudaRowsOf(dtype, k);
      EXPECT_EQ(layout.row_bytes % 16, 0);
      EXPECT_EQ(layout.scales_offset % 16, 0);
      EXPECT_EQ(layout.minima_offset % 16, 0);
      GuardedBuffer<std::byte> row(layout.row_bytes);
      PackCudaRow(dtype, file.data(), k, row.data());
      EXPECT_TRUE(row.Intact());
      std::vector<float> got(k);
      for (int64_t i = 0; i < k; ++i) got[i] = ValueAt(dtype, k, row.data(), i);
      EXPECT_EQ(FirstBitDifference(got, want), "");
    }
  }
}

TEST(CudaRows, PaddingIsZero) {
  for (DType dtype : kTypes) {
    for (int64_t k : {1, 33, 32, 96, 1000}) {
      if (IsQuantized(dtype) && k % 32 != 0) continue;
      // A file of ones: every byte that is zero in the row is padding.
      const std::vector<std::byte> file(DTypeBytes(dtype, k), std::byte{0xff});
      std::vector<std::byte> row(CudaRowsOf(dtype, k).row_bytes, std::byte{0x55});
      PackCudaRow(dtype, file.data(), k, row.data());
      const auto ones = std::count(row.begin(), row.end(), std::byte{0xff});
      EXPECT_EQ(ones, static_cast<int64_t>(file.size())) << DTypeName(dtype) << " " << k;
      EXPECT_EQ(std::count(row.begin(), row.end(), std::byte{0}), static_cast<int64_t>(row.size()) - ones);
    }
  }
}

TEST(CudaRows, Sizes) {
  EXPECT_EQ(CudaRowsOf(DType::kBF16, 4096).row_bytes, 8192);
  EXPECT_EQ(CudaRowsOf(DType::kF32, 3).row_bytes, 16);
  EXPECT_EQ(CudaRowsOf(DType::kFP8E4M3, 7168).row_bytes, 7168);
  EXPECT_EQ(CudaRowsOf(DType::kFP8E4M3, 100).row_bytes, 128);
  EXPECT_EQ(CudaRowsOf(DType::kQ8_0, 4096).row_bytes, 4096 + 256);
  EXPECT_EQ(CudaRowsOf(DType::kQ4_0, 4096).row_bytes, 2048 + 256);
  EXPECT_EQ(CudaRowsOf(DType::kQ4_1, 4096).row_bytes, 2048 + 512);
  EXPECT_EQ(CudaRowsOf(DType::kQ4_1, 32).row_bytes, 64 + 16 + 16);
  EXPECT_EQ(CudaRowsOf(DType::kQ4_K, 4096).row_bytes, 4096 / 256 * 144);
  EXPECT_EQ(CudaRowsOf(DType::kQ6_K, 4096).row_bytes, 4096 / 256 * 210);
  EXPECT_EQ(CudaRowsOf(DType::kIQ2_XXS, 256).row_bytes, 0);
}

}  // namespace
}  // namespace cachalot
