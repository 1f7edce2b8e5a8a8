// Rows of codes as the kernels read them, against quant's decoders: every format, every length, every code and scale.
#include "kernels/matmul/code_rows.h"

#include <gtest/gtest.h>

#include <array>

#include "kernels/matmul/matmul_testing.h"

namespace cachalot {
namespace {

// Calls check.template operator()<type>() for each.
template <typename Check>
void ForEachCodeRow(Check check) {
  check.template operator()<DType::kQ5_0>();
  check.template operator()<DType::kQ5_1>();
  check.template operator()<DType::kIQ4_NL>();
  check.template operator()<DType::kQ2_K>();
  check.template operator()<DType::kQ3_K>();
  check.template operator()<DType::kQ4_K>();
  check.template operator()<DType::kQ5_K>();
  check.template operator()<DType::kQ6_K>();
  check.template operator()<DType::kIQ4_XS>();
}

std::vector<std::byte> RandomRow(DType dtype, int64_t k, TestRng* rng) {
  std::vector<std::byte> row(DTypeBytes(dtype, k));
  FillRandomCodes(dtype, k, rng, row.data());
  return row;
}

TEST(CodeRows, HaveARowForEveryCodeFormat) {
  for (const QuantFormat& format : AllQuantFormats()) {
    const CodeFormat* codes = FindCodeFormat(format.dtype);
    const CodeRow row = CodeRowOf(format.dtype);
    ASSERT_EQ(IsCodeRow(format.dtype), codes != nullptr) << DTypeName(format.dtype);
    if (codes == nullptr) continue;
    EXPECT_EQ(row.code_bits + row.high_bits, codes->bits) << DTypeName(format.dtype);
    EXPECT_EQ(row.minima, codes->has_min);
    EXPECT_EQ(row.sub_block, codes->sub_block);
    EXPECT_EQ(CudaBlockOf(format.dtype), GetDTypeInfo(format.dtype).block_size);
  }
}

TEST(CodeRows, TakeTheBytesOfTheFile) {
  ForEachCodeRow([]<DType kType>() {
    const int64_t file = DTypeBytes(kType, 4096), row = CudaRowsOf(kType, 4096).row_bytes;
    EXPECT_GE(row, file) << DTypeName(kType);
    EXPECT_LE(row, kType == DType::kQ3_K ? file / 110 * 112 + 16 : file) << DTypeName(kType);
  });
}

TEST(CodeRows, ValuesAreThoseOfTheFile) {
  ForEachCodeRow([]<DType kType>() {
    for (int64_t k : {32, 64, 96, 128, 160, 256, 512, 768, 1024, 1440, 4096, 14336}) {
      if (k % CudaBlockOf(kType) != 0) continue;
      SCOPED_TRACE(fmt::format("{} k {}", DTypeName(kType), k));
      TestRng rng(static_cast<uint64_t>(k));
      const std::vector<std::byte> file = RandomRow(kType, k, &rng);
      std::vector<float> want(k), got(k);
      FindQuantFormat(kType)->decode(file.data(), want.data(), k);
      const CudaRowLayout layout = CudaRowsOf(kType, k);
      for (const int64_t offset : {layout.row_bytes, layout.scales_offset, layout.minima_offset, layout.high_offset}) EXPECT_EQ(offset % 16, 0);
      GuardedBuffer<std::byte> row(layout.row_bytes);
      PackCudaRow(kType, file.data(), k, row.data());
      EXPECT_TRUE(row.Intact());
      for (int64_t i = 0; i < k; i += 4) {
        float v[4];
        LoadCodes4<kType>(row.data(), layout, i, v);
        std::copy(v, v + 4, got.begin() + i);
      }
      EXPECT_EQ(FirstBitDifference(got, want), "");
      for (int64_t i = k; i < (k + 127) / 128 * 128; i += 4) {  // the padding
        float v[4];
        LoadCodes4<kType>(row.data(), layout, i, v);
        for (float value : v) EXPECT_EQ(value, 0.0f);
      }
    }
  });
}

// What the tensor cores multiply: four lanes' words, chunk by chunk, with the loads' sizes and places.
TEST(CodeRows, LanesHoldTheValuesTheyMultiply) {
  ForEachCodeRow([]<DType kType>() {
    using C = CodeChunk<kType>;
    const int64_t k = C::kRow.whole_blocks ? 1280 : 1312;
    SCOPED_TRACE(DTypeName(kType));
    TestRng rng(7);
    const std::vector<std::byte> file = RandomRow(kType, k, &rng);
    std::vector<float> want(k);
    FindQuantFormat(kType)->decode(file.data(), want.data(), k);
    want.resize((k + 127) / 128 * 128);
    const CudaRowLayout layout = CudaRowsOf(kType, k);
    std::vector<std::byte> row(layout.row_bytes);
    PackCudaRow(kType, file.data(), k, row.data());
    std::vector<float> got(want.size(), -1.0f);
    for (int chunk = 0; chunk < static_cast<int>(want.size() / 128); ++chunk) {
      // As cp.async brings them: whole pieces, within the row.
      const int64_t code_at = int64_t{chunk} * C::kCodeBytes, high_at = layout.high_offset + int64_t{chunk} * C::kHighBytes;
      const int64_t record_at = layout.scales_offset + C::RecordAt(chunk), top_at = layout.minima_offset + C::TopAt(chunk);
      ASSERT_LE(code_at + C::kCodeBytes, layout.high_offset);
      ASSERT_LE(high_at + C::kHighBytes, layout.scales_offset);
      ASSERT_LE(record_at + C::kRecordBytes, layout.minima_offset);
      ASSERT_LE(top_at + C::kTopBytes, layout.row_bytes);
      ASSERT_EQ(record_at % C::kRecordBytes, 0);
      if constexpr (C::kTopBytes > 0) {
        ASSERT_EQ(top_at % C::kTopBytes, 0);
      }
      std::array<uint32_t, 16> codes = {};
      std::array<uint32_t, 8> high = {};
      std::array<uint32_t, 4> record = {}, top = {};
      std::memcpy(codes.data(), row.data() + code_at, C::kCodeBytes);
      std::memcpy(high.data(), row.data() + high_at, C::kHighBytes);
      std::memcpy(record.data(), row.data() + record_at, C::kRecordBytes);
      std::memcpy(top.data(), row.data() + top_at, C::kTopBytes);
      for (int lane = 0; lane < 4; ++lane) {
        for (int b = 0; b < 4; ++b) {
          uint32_t pairs[2][2];
          CodePairs<kType>(codes[lane * C::kWords + CodeWordOf<kType>(b)],
                           C::kHighWords > 0 ? high[lane * C::kHighWords + HighWordOf<kType>(b)] : 0, b, pairs);
          const CodeScales s = CodeScalesOf<kType>(record, top, chunk, b);
          for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 4; ++i) {
              const uint32_t pair = pairs[half][i % 2];
              const int number = static_cast<int>(i / 2 == 0 ? pair & 0xffff : pair >> 16);
              ASSERT_LT(number, 256);
              const float product = s.scale[half] * static_cast<float>(number - CodeZero<kType>());
              got[chunk * 128 + b * 32 + half * 16 + lane * 4 + i] = C::kMinima ? product - s.min[half] : product;
            }
          }
        }
      }
    }
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << i;
  });
}

}  // namespace
}  // namespace cachalot
