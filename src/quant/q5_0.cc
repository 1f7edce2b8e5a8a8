#include "quant/q5_0.h"

#include <cstring>

#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void UnpackQ5_0(const std::byte* src, BlockCodes* codes) {
  BlockQ5_0 block;
  std::memcpy(&block, src, sizeof(block));
  codes->d = block.scale;
  for (int j = 0; j < 16; ++j) {
    const int low = block.high[j / 8] >> j % 8 & 1, high = block.high[2 + j / 8] >> j % 8 & 1;
    codes->q[j] = static_cast<uint8_t>((block.q[j] & 0xf) | low << 4);
    codes->q[j + 16] = static_cast<uint8_t>(block.q[j] >> 4 | high << 4);
  }
}

void PackQ5_0(const BlockCodes& codes, std::byte* dst) {
  BlockQ5_0 block{};
  block.scale = codes.d;
  for (int j = 0; j < 16; ++j) {
    block.q[j] = static_cast<uint8_t>((codes.q[j] & 0xf) | codes.q[j + 16] << 4);
    block.high[j / 8] |= static_cast<uint8_t>((codes.q[j] >> 4) << j % 8);
    block.high[2 + j / 8] |= static_cast<uint8_t>((codes.q[j + 16] >> 4) << j % 8);
  }
  std::memcpy(dst, &block, sizeof(block));
}

void ValuesQ5_0(const BlockCodes& codes, float* out) {
  const float scale = F16ToF32(codes.d);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(codes.q[j] - 16) * scale;
}

void DecodeQ5_0(const std::byte* src, float* dst, int64_t count) {
  DecodeCodes<32, sizeof(BlockQ5_0), UnpackQ5_0, ValuesQ5_0>(src, dst, count);
}

void EncodeWeightedQ5_0(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, dst += sizeof(BlockQ5_0)) {
    BlockCodes codes;
    EncodeSymmetric32(src + i, importance == nullptr ? nullptr : importance + i, -16, 15, &codes);
    PackQ5_0(codes, dst);
  }
}

void EncodeQ5_0(const float* src, std::byte* dst, int64_t count) {
  EncodeWeightedQ5_0(src, nullptr, dst, count);
}

}  // namespace cachalot
