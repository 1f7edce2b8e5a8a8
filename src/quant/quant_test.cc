#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "quant/format.h"
#include "quant/fp8_e4m3.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q8_0.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

std::vector<std::byte> Encode(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> out(DTypeBytes(dtype, values.size()));
  FindQuantFormat(dtype)->encode(values.data(), out.data(), values.size());
  return out;
}

std::vector<float> Decode(DType dtype, const void* src, int64_t count) {
  std::vector<float> out(count);
  FindQuantFormat(dtype)->decode(static_cast<const std::byte*>(src), out.data(), count);
  return out;
}

// 64 values in [-1, 1) without a pattern that a block could hide.
std::vector<float> Noise(int64_t count) {
  std::vector<float> out(count);
  uint32_t state = 12345;
  for (float& value : out) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return out;
}

TEST(QuantFormat, TableIsConsistent) {
  for (const auto& format : AllQuantFormats()) {
    EXPECT_EQ(FindQuantFormat(format.dtype), &format);
    ASSERT_NE(format.decode, nullptr);
  }
  EXPECT_EQ(FindQuantFormat(DType::kIQ1_M), nullptr);
}

TEST(QuantFormat, EveryFormatRoundTripsWithinItsStep) {
  const auto values = Noise(1024);
  for (const auto& format : AllQuantFormats()) {
    SCOPED_TRACE(DTypeName(format.dtype));
    const auto decoded = Decode(format.dtype, Encode(format.dtype, values).data(), values.size());
    float step = 0;
    switch (format.dtype) {
      case DType::kF32:
        step = 0;
        break;
      case DType::kF16:
        step = 0x1p-12f;
        break;
      case DType::kBF16:
        step = 0x1p-9f;
        break;
      case DType::kFP8E4M3:
        step = 0x1p-5f;
        break;
      case DType::kQ8_0:
        step = 0.5f / 127 + 1e-3f;
        break;
      case DType::kQ4_0:
        step = 1.0f / 8 + 1e-3f;
        break;  // the far side of the range is cut at +7
      case DType::kQ4_1:
        step = 1.0f / 15 + 1e-3f;
        break;
      // Scales by least squares: the ends of the range may be cut a little.
      case DType::kQ5_0:
      case DType::kQ5_1:
      case DType::kQ5_K:
        step = 0.09f;
        break;
      case DType::kQ6_K:
        step = 0.05f;
        break;
      case DType::kQ4_K:
        step = 0.12f;
        break;
      case DType::kIQ4_NL:
      case DType::kIQ4_XS:
        step = 0.16f;
        break;
      case DType::kQ3_K:
        step = 0.36f;
        break;
      case DType::kQ2_K:
        step = 0.45f;
        break;
      default:
        FAIL() << "a format without a bound here";
    }
    for (size_t i = 0; i < values.size(); ++i) EXPECT_LE(std::fabs(decoded[i] - values[i]), step) << i;
    // What is representable comes back as it is.
    const auto again = Decode(format.dtype, Encode(format.dtype, decoded).data(), values.size());
    if (!IsQuantized(format.dtype)) {
      EXPECT_EQ(again, decoded);
    }
  }
}

TEST(QuantFormat, SixteenBitRoundsToEven) {
  EXPECT_EQ(Decode(DType::kF16, Encode(DType::kF16, {1.0f + 0x1p-11f}).data(), 1)[0], 1.0f);
  EXPECT_EQ(Decode(DType::kF16, Encode(DType::kF16, {1.0f + 3 * 0x1p-11f}).data(), 1)[0],
            1.0f + 2 * 0x1p-10f);
  EXPECT_EQ(Decode(DType::kBF16, Encode(DType::kBF16, {1.0f + 0x1p-8f}).data(), 1)[0], 1.0f);
  EXPECT_EQ(Decode(DType::kBF16, Encode(DType::kBF16, {1.0f + 3 * 0x1p-8f}).data(), 1)[0],
            1.0f + 2 * 0x1p-7f);
}

TEST(QuantFormat, DecodesUnalignedRows) {
  std::vector<std::byte> bytes(5);
  const uint16_t half = F32ToF16(-2.5f);
  std::memcpy(bytes.data() + 1, &half, 2);
  EXPECT_EQ(Decode(DType::kF16, bytes.data() + 1, 1)[0], -2.5f);
}

TEST(FP8E4M3, NamedValues) {
  EXPECT_EQ(FP8E4M3ToF32(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(FP8E4M3ToF32(0x80)));
  EXPECT_EQ(FP8E4M3ToF32(0x01), 0x1p-9f);      // smallest subnormal
  EXPECT_EQ(FP8E4M3ToF32(0x07), 7 * 0x1p-9f);  // largest subnormal
  EXPECT_EQ(FP8E4M3ToF32(0x08), 0x1p-6f);      // smallest normal
  EXPECT_EQ(FP8E4M3ToF32(0x38), 1.0f);
  EXPECT_EQ(FP8E4M3ToF32(0x3c), 1.5f);
  EXPECT_EQ(FP8E4M3ToF32(0xc0), -2.0f);
  EXPECT_EQ(FP8E4M3ToF32(0x7e), 448.0f);
  EXPECT_EQ(FP8E4M3ToF32(0xfe), -448.0f);
  EXPECT_TRUE(std::isnan(FP8E4M3ToF32(0x7f)));
  EXPECT_TRUE(std::isnan(FP8E4M3ToF32(0xff)));
}

TEST(FP8E4M3, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(F32ToFP8E4M3(FP8E4M3ToF32(static_cast<uint8_t>(code))), code) << code;
  }
}

// Between each two neighbours: below the middle down, above it up, the middle itself to the even code.
TEST(FP8E4M3, RoundsToNearestEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = FP8E4M3ToF32(static_cast<uint8_t>(code));
    const float high = FP8E4M3ToF32(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(F32ToFP8E4M3(middle), code + (code & 1)) << code;
    EXPECT_EQ(F32ToFP8E4M3(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(F32ToFP8E4M3(std::nextafter(middle, 1e9f)), code + 1) << code;
    EXPECT_EQ(F32ToFP8E4M3(-middle), 0x80 + code + (code & 1)) << code;
  }
}

TEST(FP8E4M3, Saturates) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(F32ToFP8E4M3(449.0f), 0x7e);
  EXPECT_EQ(F32ToFP8E4M3(1e30f), 0x7e);
  EXPECT_EQ(F32ToFP8E4M3(infinity), 0x7e);
  EXPECT_EQ(F32ToFP8E4M3(-infinity), 0xfe);
  EXPECT_EQ(F32ToFP8E4M3(std::nanf("")) & 0x7f, 0x7f);
  EXPECT_EQ(F32ToFP8E4M3(0x1p-11f), 0x00);
  EXPECT_EQ(F32ToFP8E4M3(1e-40f), 0x00);
}

TEST(Q8_0, DecodesByHand) {
  BlockQ8_0 block{};
  block.scale = F32ToF16(0.5f);
  block.q[0] = -128;
  block.q[1] = 3;
  block.q[31] = 127;
  const auto out = Decode(DType::kQ8_0, &block, 32);
  EXPECT_EQ(out[0], -64.0f);
  EXPECT_EQ(out[1], 1.5f);
  EXPECT_EQ(out[2], 0.0f);
  EXPECT_EQ(out[31], 63.5f);
}

TEST(Q8_0, EncodesByHand) {
  std::vector<float> values(32, 0.0f);
  values[0] = -254.0f;  // scale 2
  values[1] = 3.0f;     // 1.5: halves go away from zero
  values[2] = -5.0f;
  values[3] = 100.0f;
  const auto bytes = Encode(DType::kQ8_0, values);
  BlockQ8_0 block;
  std::memcpy(&block, bytes.data(), sizeof(block));
  EXPECT_EQ(block.scale, F32ToF16(2.0f));
  EXPECT_EQ(block.q[0], -127);
  EXPECT_EQ(block.q[1], 2);
  EXPECT_EQ(block.q[2], -3);
  EXPECT_EQ(block.q[3], 50);
  EXPECT_EQ(block.q[4], 0);
}

TEST(Q4_0, DecodesByHand) {
  BlockQ4_0 block{};
  block.scale = F32ToF16(-0.25f);
  block.q[0] = 0xf0;  // value 0: 0 - 8, value 16: 15 - 8
  block.q[15] = 0x9a;
  const auto out = Decode(DType::kQ4_0, &block, 32);
  EXPECT_EQ(out[0], 2.0f);
  EXPECT_EQ(out[16], -1.75f);
  EXPECT_EQ(out[15], -0.5f);
  EXPECT_EQ(out[31], -0.25f);
}

TEST(Q4_0, EncodesByHand) {
  std::vector<float> values(32, 0.0f);
  values[3] = 16.0f;   // extreme, positive: scale -2, q 0
  values[4] = -16.0f;  // would be 16: cut at 15
  values[5] = -3.0f;   // 1.5 + 8 = 9.5: up
  values[19] = 2.0f;   // high nibble of byte 3
  const auto bytes = Encode(DType::kQ4_0, values);
  BlockQ4_0 block;
  std::memcpy(&block, bytes.data(), sizeof(block));
  EXPECT_EQ(block.scale, F32ToF16(-2.0f));
  EXPECT_EQ(block.q[3], 0x70);
  EXPECT_EQ(block.q[4] & 0xf, 15);
  EXPECT_EQ(block.q[5] & 0xf, 10);
  EXPECT_EQ(block.q[0], 0x88);
}

TEST(Q4_1, DecodesByHand) {
  BlockQ4_1 block{};
  block.scale = F32ToF16(0.5f);
  block.min = F32ToF16(-3.0f);
  block.q[0] = 0xf1;
  const auto out = Decode(DType::kQ4_1, &block, 32);
  EXPECT_EQ(out[0], -2.5f);
  EXPECT_EQ(out[16], 4.5f);
  EXPECT_EQ(out[1], -3.0f);
}

TEST(Q4_1, EncodesByHand) {
  std::vector<float> values(32, -1.0f);
  values[1] = 14.0f;  // scale 1
  values[2] = 0.5f;   // 1.5: up
  values[17] = 3.0f;  // high nibble of byte 1
  const auto bytes = Encode(DType::kQ4_1, values);
  BlockQ4_1 block;
  std::memcpy(&block, bytes.data(), sizeof(block));
  EXPECT_EQ(block.scale, F32ToF16(1.0f));
  EXPECT_EQ(block.min, F32ToF16(-1.0f));
  EXPECT_EQ(block.q[0], 0x00);
  EXPECT_EQ(block.q[1], 0x4f);
  EXPECT_EQ(block.q[2], 0x02);
}

TEST(BlockFormats, ConstantAndZeroBlocks) {
  for (const QuantFormat& format : AllQuantFormats()) {
    const DType dtype = format.dtype;
    SCOPED_TRACE(DTypeName(dtype));
    const auto zero = Decode(dtype, Encode(dtype, std::vector<float>(256, 0.0f)).data(), 256);
    for (float value : zero) EXPECT_EQ(value, 0.0f);
    for (float all : {2.0f, -2.0f}) {
      const auto constant = Decode(dtype, Encode(dtype, std::vector<float>(256, all)).data(), 256);
      for (float value : constant) EXPECT_NEAR(value, all, 2e-3f);
    }
  }
}

// Weights that no model should have must still not be undefined behaviour.
TEST(BlockFormats, NonFiniteValuesDoNotTrap) {
  std::vector<float> values(256, 1.0f), importance(256, 1.0f);
  values[0] = std::numeric_limits<float>::infinity();
  values[1] = std::nanf("");
  values[2] = 1e-40f;
  values[40] = -std::numeric_limits<float>::max();
  importance[3] = std::nanf("");
  importance[4] = std::numeric_limits<float>::infinity();
  importance[5] = -1.0f;
  for (const QuantFormat& format : AllQuantFormats()) {
    if (!IsQuantized(format.dtype)) continue;
    Encode(format.dtype, values);
    Encode(format.dtype, std::vector<float>(256, 1e-41f));
    if (format.encode_weighted == nullptr) continue;
    std::vector<std::byte> out(DTypeBytes(format.dtype, 256));
    for (const auto* weights : {&importance, &values}) {
      format.encode_weighted(values.data(), weights->data(), out.data(), 256);
      for (float value : Decode(format.dtype, out.data(), 256)) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

// The search never loses to the plain rule, and a value of great importance is met more closely.
TEST(BlockFormats, WeightedEncodersSearch) {
  const auto values = Noise(1024);
  const auto error = [&](DType dtype, const std::vector<std::byte>& bytes,
                         const std::vector<float>& weights) {
    const auto decoded = Decode(dtype, bytes.data(), 1024);
    double sum = 0;
    for (int i = 0; i < 1024; ++i) {
      const double rest = static_cast<double>(decoded[i]) - static_cast<double>(values[i]);
      sum += static_cast<double>(weights[i]) * rest * rest;
    }
    return sum;
  };
  const std::vector<float> same(1024, 1.0f);
  std::vector<float> uneven(1024);
  for (int i = 0; i < 1024; ++i) uneven[i] = i % 7 == 0 ? 50.0f : 1.0f;
  for (const QuantFormat& format : AllQuantFormats()) {
    if (format.encode_weighted == nullptr) continue;
    SCOPED_TRACE(DTypeName(format.dtype));
    std::vector<std::byte> plain = Encode(format.dtype, values), weighted(plain.size());
    format.encode_weighted(values.data(), nullptr, weighted.data(), 1024);
    EXPECT_LE(error(format.dtype, weighted, same), error(format.dtype, plain, same) * 1.0001);
    const double without = error(format.dtype, weighted, uneven);
    format.encode_weighted(values.data(), uneven.data(), weighted.data(), 1024);
    EXPECT_LT(error(format.dtype, weighted, uneven), without * 0.97);
  }
}

}  // namespace
}  // namespace cachalot
