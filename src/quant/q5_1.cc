#include "quant/q5_1.h"

#include <cstring>

#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void UnpackQ5_1(const std::byte* src, BlockCodes* codes) {
  BlockQ5_1 block;
  std::memcpy(&block, src, sizeof(block));
  codes->d = block.scale;
  codes->dmin = block.min;
  for (int j = 0; j < 16; ++j) {
    const int low = block.high[j / 8] >> j % 8 & 1, high = block.high[2 + j / 8] >> j % 8 & 1;
    codes->q[j] = static_cast<uint8_t>((block.q[j] & 0xf) | low << 4);
    codes->q[j + 16] = static_cast<uint8_t>(block.q[j] >> 4 | high << 4);
  }
}

void PackQ5_1(const BlockCodes& codes, std::byte* dst) {
  BlockQ5_1 block{};
  block.scale = codes.d;
  block.min = codes.dmin;
  for (int j = 0; j < 16; ++j) {
    block.q[j] = static_cast<uint8_t>((codes.q[j] & 0xf) | codes.q[j + 16] << 4);
    block.high[j / 8] |= static_cast<uint8_t>((codes.q[j] >> 4) << j % 8);
    block.high[2 + j / 8] |= static_cast<uint8_t>((codes.q[j + 16] >> 4) << j % 8);
  }
  std::memcpy(dst, &block, sizeof(block));
}

void ValuesQ5_1(const BlockCodes& codes, float* out) {
  const float scale = F16ToF32(codes.d), min = F16ToF32(codes.dmin);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(codes.q[j]) * scale + min;
}

void DecodeQ5_1(const std::byte* src, float* dst, int64_t count) {
  DecodeCodes<32, sizeof(BlockQ5_1), UnpackQ5_1, ValuesQ5_1>(src, dst, count);
}

void EncodeWeightedQ5_1(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, dst += sizeof(BlockQ5_1)) {
    BlockCodes codes;
    EncodeAffine32(src + i, importance == nullptr ? nullptr : importance + i, 31, &codes);
    PackQ5_1(codes, dst);
  }
}

void EncodeQ5_1(const float* src, std::byte* dst, int64_t count) {
  EncodeWeightedQ5_1(src, nullptr, dst, count);
}

}  // namespace cachalot
