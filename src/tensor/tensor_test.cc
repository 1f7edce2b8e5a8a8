#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/fault.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"
#include "tensor/float_convert.h"
#include "tensor/tensor_view.h"

namespace cachalot {
namespace {

TEST(DType, TableAndNames) {
  EXPECT_EQ(*DTypeFromGgml(2), DType::kQ4_0);
  EXPECT_EQ(*ParseDType("q4_k"), DType::kQ4_K);
  EXPECT_EQ(DTypeFromGgml(4).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(ParseDType("Q9").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DTypeBytes(DType::kQ8_0, 64), 68);
}

TEST(FloatConvert, EveryHalfRoundTripsAndAgreesWithTheCompiler) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = F16ToF32(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(value))));
      EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(value))));
      continue;
    }
    ASSERT_EQ(F32ToF16(value), half);
#if defined(__FLT16_MAX__)
    ASSERT_EQ(value, static_cast<float>(std::bit_cast<_Float16>(half)));
#endif
    const float bf = BF16ToF32(half);
    if (!std::isnan(bf)) {
      ASSERT_EQ(F32ToBF16(bf), half);
    }
  }
}

TEST(FloatConvert, RoundsToNearestEven) {
  EXPECT_EQ(F32ToBF16(1.00390625f), 0x3f80);   // half way, down to even
  EXPECT_EQ(F32ToBF16(1.01171875f), 0x3f82);   // half way, up to even
  EXPECT_EQ(F32ToF16(65519.9f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.f), 0x7c00);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0x0000);
  EXPECT_EQ(F32ToF16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(F32ToF16(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(TensorView, Strides) {
  float data[24];
  TensorView view(data, DType::kF32, {2, 3, 4});
  EXPECT_EQ(view.num_values(), 24);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.row_bytes(), 16);
  EXPECT_EQ(ShapeString(view.dims.data(), view.num_dims), "[2, 3, 4]");
}

TEST(Buffer, AlignedZeroedAndFailsAsAStatus) {
  auto buffer = Buffer::Allocate(5 << 20);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  EXPECT_EQ(buffer->as<int>()[12345], 0);
  EXPECT_EQ(Buffer::Allocate(int64_t{1} << 60).status().code(), StatusCode::kExhausted);
  ScopedFault fault("alloc");
  EXPECT_EQ(Buffer::Allocate(64).status().code(), StatusCode::kExhausted);
}

TEST(BufferArena, PiecesAreApartAndOutliveIt) {
  std::vector<Buffer> pieces;
  {
    BufferArena arena;
    EXPECT_EQ(arena.Take(0)->data(), nullptr);
    for (int64_t size : {1, 100, 3 << 20, 64, 300 << 20, 7}) {  // one is larger than what the arena maps at a time
      auto piece = arena.Take(size);
      ASSERT_TRUE(piece.ok());
      ASSERT_EQ(piece->size(), size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(piece->data()) % 64, 0u);
      pieces.push_back(std::move(*piece));
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[0].data()) % (2 << 20), 0u);
    EXPECT_EQ(pieces[1].data(), pieces[0].data() + 64);
    EXPECT_EQ(arena.Take(int64_t{1} << 60).status().code(), StatusCode::kExhausted);
    ScopedFault fault("alloc");
    EXPECT_EQ(arena.Take(64).status().code(), StatusCode::kExhausted);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::byte &front = pieces[i].data()[0], &back = pieces[i].data()[pieces[i].size() - 1];
    EXPECT_EQ(front, std::byte{0});
    EXPECT_EQ(back, std::byte{0});
    front = back = static_cast<std::byte>(i + 1);
  }
  pieces.erase(pieces.begin());
  for (size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(*pieces[i].data(), static_cast<std::byte>(i + 2));
}

}  // namespace
}  // namespace cachalot
