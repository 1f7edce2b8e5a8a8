#include <gtest/gtest.h>

#include <cstring>

#include "base/fault.h"
#include "kernels/matmul/matmul_testing.h"
#include "kernels/matmul/panel.h"

namespace cachalot {
namespace {

std::vector<float> AllRows(const PackedMatrix& matrix) {
  std::vector<float> out(matrix.n * matrix.k);
  for (int64_t row = 0; row < matrix.n; ++row) DecodeRow(matrix, row, out.data() + row * matrix.k);
  return out;
}

// What was packed comes back bit for bit, in every layout, alone and stacked, with threads and without; and
// the plan's number of bytes is the number that is taken.
TEST(Pack, RowsComeBack) {
  ThreadPool pool(3);
  for (const QuantFormat& format : AllQuantFormats()) {
    for (int64_t depth : {32, 160, 288}) {
      const int64_t k = WholeBlocks(format.dtype, depth);
      const TestWeight a(format.dtype, 128, k, 1), b(format.dtype, 37, k, 2);
      std::vector<float> want = a.Decoded();
      const std::vector<float> second = b.Decoded();
      want.insert(want.end(), second.begin(), second.end());
      const MatrixPart parts[] = {a.part(), b.part()};
      for (Isa isa : TestableIsas()) {
        for (ThreadPool* with : {static_cast<ThreadPool*>(nullptr), &pool}) {
          const PackOptions options = {.isa = isa, .pool = with};
          const PackedMatrix matrix = PackMatrix(parts, k, options).value();
          EXPECT_EQ(FirstBitDifference(AllRows(matrix), want), "")
              << DTypeName(format.dtype) << " " << IsaName(isa);
          EXPECT_EQ(matrix.n, 165);
          EXPECT_EQ(matrix.layout, isa == Isa::kRef ? PackLayout::kRowMajor : PackLayout::kPanel);
          EXPECT_EQ(matrix.storage.size() + matrix.scale_storage.size(),
                    PackedBytes(format.dtype, 165, k, options));
          EXPECT_EQ(matrix.data_bytes, PackedBytes(format.dtype, 165, k, options));
        }
      }
    }
  }
}

// Parts that end inside a block of 128 rows: each row keeps the scales it had.
TEST(Pack, Fp8PartsMayEndAnywhere) {
  const int64_t k = 160;
  const TestWeight a(DType::kFP8E4M3, 70, k, 3), b(DType::kFP8E4M3, 150, k, 4), c(DType::kFP8E4M3, 3, k, 5);
  std::vector<float> want;
  for (const TestWeight* w : {&a, &b, &c}) {
    const auto rows = w->Decoded();
    want.insert(want.end(), rows.begin(), rows.end());
  }
  const MatrixPart parts[] = {a.part(), b.part(), c.part()};
  for (Isa isa : TestableIsas()) {
    const PackedMatrix matrix = PackMatrix(parts, k, {.isa = isa}).value();
    EXPECT_EQ(FirstBitDifference(AllRows(matrix), want), "") << IsaName(isa);
  }
}

TEST(Pack, BorrowsASingleRowMajorPart) {
  for (DType dtype : {DType::kQ4_0, DType::kFP8E4M3}) {
    const TestWeight w(dtype, 20, 160, 6);
    const MatrixPart part = w.part();
    const PackOptions options = {.isa = Isa::kRef, .borrow = true};
    const PackedMatrix matrix = PackMatrix({&part, 1}, 160, options).value();
    EXPECT_EQ(matrix.data, w.bytes.data());
    EXPECT_EQ(matrix.storage.size() + matrix.scale_storage.size(), 0);
    EXPECT_EQ(PackedBytes(dtype, 20, 160, options), 0);
    EXPECT_EQ(FirstBitDifference(AllRows(matrix), w.Decoded()), "");
  }
}

// A panel takes no more than its rows did: a file of whole panels is not larger in memory.
TEST(Pack, PanelsAddNothingToWholeRows) {
  for (const QuantFormat& format : AllQuantFormats()) {
    const int64_t extra = format.dtype == DType::kFP8E4M3 ? 16 * 5 * 4 : 0;
    const int64_t k = WholeBlocks(format.dtype, 576);
    EXPECT_EQ(PanelBytes(format.dtype, k), DTypeBytes(format.dtype, 16 * k) + extra);
  }
}

TEST(Pack, ErrorsNameTheCause) {
  const std::byte data[512] = {};
  MatrixPart part{DType::kIQ1_M, 1, data, nullptr};
  Status status = PackMatrix({&part, 1}, 256, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("IQ1_M"), std::string::npos);

  part.dtype = DType::kQ8_0;
  status = PackMatrix({&part, 1}, 48, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("48"), std::string::npos);

  part.rows = int64_t{1} << 61;
  EXPECT_EQ(PackMatrix({&part, 1}, 64, {}).status().code(), StatusCode::kInvalidArgument);

  part.rows = 2;
  ScopedFault fault("alloc");
  EXPECT_EQ(PackMatrix({&part, 1}, 64, {}).status().code(), StatusCode::kExhausted);
}

}  // namespace
}  // namespace cachalot
