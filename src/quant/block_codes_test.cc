#include "quant/block_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "quant/fit.h"
#include "quant/format.h"
#include "quant/iq4_xs.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

template <typename Block>
std::vector<float> Decode(DType dtype, const Block& block) {
  std::vector<float> out(GetDTypeInfo(dtype).block_size);
  FindQuantFormat(dtype)->decode(reinterpret_cast<const std::byte*>(&block), out.data(), out.size());
  return out;
}

// Random blocks that the `gguf` package decoded (tools/make_quant_goldens.py): the same values, bit for bit.
TEST(QuantGolden, DecodesAsThePackageDoes) {
  std::ifstream file(std::string(CACHALOT_SOURCE_DIR) + "/tests/data/quant/blocks.bin", std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
  ASSERT_GT(data.size(), 16u);
  size_t at = 0;
  int num_types = 0;
  while (at < data.size()) {
    const std::string name(data.data() + at);
    uint32_t sizes[2];
    std::memcpy(sizes, data.data() + at + 8, 8);
    at += 16;
    const DType dtype = ParseDType(name).value();
    ASSERT_NE(FindQuantFormat(dtype), nullptr) << name;
    ASSERT_EQ(DTypeBytes(dtype, sizes[1]), sizes[0]) << name;
    std::vector<float> got(sizes[1]), want(sizes[1]);
    FindQuantFormat(dtype)->decode(reinterpret_cast<const std::byte*>(data.data() + at), got.data(),
                                   sizes[1]);
    std::memcpy(want.data(), data.data() + at + sizes[0], sizes[1] * sizeof(float));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << name << " value " << i;
    at += sizes[0] + sizes[1] * sizeof(float);
    ++num_types;
  }
  EXPECT_EQ(num_types, 12);
}

// All bits of a block are accounted for: unpacked and packed again it is the same.
TEST(BlockCodes, PackUndoesUnpack) {
  uint32_t state = 7;
  int num_formats = 0;
  for (int t = 0; t < kNumDTypes; ++t) {
    const CodeFormat* format = FindCodeFormat(static_cast<DType>(t));
    if (format == nullptr) continue;
    ++num_formats;
    const DTypeInfo& info = GetDTypeInfo(format->dtype);
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<std::byte> block(info.block_bytes), again(info.block_bytes);
      for (std::byte& byte : block)
        byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
      BlockCodes codes;
      format->unpack(block.data(), &codes);
      for (int i = 0; i < info.block_size; ++i) EXPECT_LT(codes.q[i], 1 << format->bits);
      format->pack(codes, again.data());
      EXPECT_EQ(block, again) << info.name;
    }
  }
  EXPECT_EQ(num_formats, 9);
}

TEST(Q5_0, ByHand) {
  BlockQ5_0 block{};
  block.scale = F32ToF16(0.5f);
  block.q[0] = 0xf3;     // values 0 and 16
  block.high[0] = 0x01;  // bit 0: value 0
  block.high[3] = 0x80;  // bit 31: value 31
  const auto out = Decode(DType::kQ5_0, block);
  EXPECT_EQ(out[0], 1.5f);    // (3 + 16 - 16) / 2
  EXPECT_EQ(out[16], -0.5f);  // (15 - 16) / 2
  EXPECT_EQ(out[31], 0.0f);   // 16 - 16
  EXPECT_EQ(out[1], -8.0f);
}

TEST(Q5_1, ByHand) {
  BlockQ5_1 block{};
  block.scale = F32ToF16(0.5f);
  block.min = F32ToF16(-4.0f);
  block.q[15] = 0x21;    // values 15 and 31
  block.high[1] = 0x80;  // bit 15
  const auto out = Decode(DType::kQ5_1, block);
  EXPECT_EQ(out[15], 4.5f);  // 17 / 2 - 4
  EXPECT_EQ(out[31], -3.0f);
  EXPECT_EQ(out[0], -4.0f);
}

TEST(Q2_K, ByHand) {
  BlockQ2_K block{};
  block.d = F32ToF16(2.0f);
  block.dmin = F32ToF16(0.5f);
  block.scales[0] = 0x13;   // values 0..15: scale 3, min 1
  block.scales[15] = 0xf1;  // values 240..255: scale 1, min 15
  block.q[0] = 0x02;        // value 0
  block.q[63] = 0xc0;       // value 255
  const auto out = Decode(DType::kQ2_K, block);
  EXPECT_EQ(out[0], 11.5f);  // 6 * 2 - 0.5
  EXPECT_EQ(out[1], -0.5f);
  EXPECT_EQ(out[255], -1.5f);  // 2 * 3 - 7.5
  EXPECT_EQ(out[100], 0.0f);
}

TEST(Q3_K, ByHand) {
  BlockQ3_K block{};
  block.d = F32ToF16(1.0f);
  block.scales[0] = 0x05;   // scale 0: low bits 5
  block.scales[8] = 0x02;   // its high bits: 2, so 37 - 32
  block.scales[7] = 0xf0;   // scale 15: low bits 15
  block.scales[11] = 0xc0;  // its high bits: 3, so 63 - 32
  block.q[1] = 0x03;
  block.high[0] = 0x01;   // value 0 has its third bit
  block.high[31] = 0x80;  // and value 255
  const auto out = Decode(DType::kQ3_K, block);
  EXPECT_EQ(out[0], 0.0f);   // 4 - 4
  EXPECT_EQ(out[1], -5.0f);  // 5 * (3 - 4)
  EXPECT_EQ(out[255], 0.0f);
  EXPECT_EQ(out[254], -124.0f);  // 31 * -4
  EXPECT_EQ(out[16], 128.0f);    // scale -32
}

TEST(Q4_K, ByHand) {
  BlockQ4_K block{};
  block.d = F32ToF16(0.5f);
  block.dmin = F32ToF16(2.0f);
  block.scales[0] = 0xc5;  // scale 0: 5; top bits of scale 4: 3
  block.scales[4] = 0x43;  // minimum 0: 3; top bits of minimum 4: 1
  block.scales[8] = 0x21;  // scale 4: 1 + 48, minimum 4: 2 + 16
  block.q[0] = 0x0f;       // value 0
  block.q[64] = 0x02;      // value 128: sub-block 4
  block.q[127] = 0xf0;     // value 255: sub-block 7, scale 0
  const auto out = Decode(DType::kQ4_K, block);
  EXPECT_EQ(out[0], 31.5f);  // 2.5 * 15 - 6
  EXPECT_EQ(out[1], -6.0f);
  EXPECT_EQ(out[128], 13.0f);  // 24.5 * 2 - 36
  EXPECT_EQ(out[255], 0.0f);
}

TEST(Q5_K, ByHand) {
  BlockQ5_K block{};
  block.d = F32ToF16(1.0f);
  block.dmin = F32ToF16(1.0f);
  block.scales[1] = 2;  // scale 1
  block.scales[5] = 7;  // minimum 1
  block.q[3] = 0x90;    // value 35: sub-block 1
  block.high[3] = 0x02;
  const auto out = Decode(DType::kQ5_K, block);
  EXPECT_EQ(out[35], 43.0f);  // 2 * 25 - 7
  EXPECT_EQ(out[36], -7.0f);
}

TEST(Q6_K, ByHand) {
  BlockQ6_K block{};
  block.d = F32ToF16(0.25f);
  block.scales[0] = -4;
  block.scales[15] = 8;
  block.low[0] = 0x05;    // value 0 (and, in the high half, value 64)
  block.high[0] = 0x02;   // + 32
  block.low[127] = 0xf0;  // value 255
  block.high[63] = 0xc0;  // + 48
  const auto out = Decode(DType::kQ6_K, block);
  EXPECT_EQ(out[0], -5.0f);    // -1 * (37 - 32)
  EXPECT_EQ(out[1], 32.0f);    // -1 * -32
  EXPECT_EQ(out[255], 62.0f);  // 2 * 31
}

TEST(IQ4_XS, ByHand) {
  BlockIQ4_XS block{};
  block.d = F32ToF16(0.5f);
  block.scales_low[0] = 0x40;  // sub-block 1: low bits 4
  block.scales_high = 0x0008;  // its high bits: 2, so 36 - 32
  block.q[16] = 0xf0;          // values 32 and 48
  const auto out = Decode(DType::kIQ4_XS, block);
  EXPECT_EQ(out[32], -254.0f);  // 2 * -127
  EXPECT_EQ(out[48], 226.0f);   // 2 * 113
  EXPECT_EQ(out[0], 2032.0f);   // 0.5 * -32 * -127
}

}  // namespace
}  // namespace cachalot
