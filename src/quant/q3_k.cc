#include "quant/q3_k.h"

#include <cstring>

#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void UnpackQ3_K(const std::byte* src, BlockCodes* codes) {
  BlockQ3_K block;
  std::memcpy(&block, src, sizeof(block));
  codes->d = block.d;
  for (int j = 0; j < 16; ++j) {
    const int low = block.scales[j % 8] >> j / 8 * 4 & 0xf, high = block.scales[8 + j % 4] >> j / 4 * 2 & 3;
    codes->scale[j] = static_cast<uint8_t>(low | high << 4);
  }
  for (int i = 0; i < 256; ++i) {
    const int low = block.q[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3,
              high = block.high[i % 32] >> i / 32 & 1;
    codes->q[i] = static_cast<uint8_t>(low | high << 2);
  }
}

void PackQ3_K(const BlockCodes& codes, std::byte* dst) {
  BlockQ3_K block{};
  block.d = codes.d;
  for (int j = 0; j < 16; ++j) {
    block.scales[j % 8] |= static_cast<uint8_t>((codes.scale[j] & 0xf) << j / 8 * 4);
    block.scales[8 + j % 4] |= static_cast<uint8_t>((codes.scale[j] >> 4) << j / 4 * 2);
  }
  for (int i = 0; i < 256; ++i) {
    block.q[i / 128 * 32 + i % 32] |= static_cast<uint8_t>((codes.q[i] & 3) << i / 32 % 4 * 2);
    block.high[i % 32] |= static_cast<uint8_t>((codes.q[i] >> 2) << i / 32);
  }
  std::memcpy(dst, &block, sizeof(block));
}

void ValuesQ3_K(const BlockCodes& codes, float* out) {
  const float d = F16ToF32(codes.d);
  for (int i = 0; i < 256; ++i) {
    const float scale = d * static_cast<float>(codes.scale[i / 16] - 32);
    out[i] = scale * static_cast<float>(codes.q[i] - 4);
  }
}

void DecodeQ3_K(const std::byte* src, float* dst, int64_t count) {
  DecodeCodes<256, sizeof(BlockQ3_K), UnpackQ3_K, ValuesQ3_K>(src, dst, count);
}

void EncodeWeightedQ3_K(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 256, dst += sizeof(BlockQ3_K)) {
    BlockCodes codes;
    EncodeSymmetric256(src + i, importance == nullptr ? nullptr : importance + i, 16, -4, 3,
                       {.lo = -32, .hi = 31, .bias = 32}, &codes);
    PackQ3_K(codes, dst);
  }
}

void EncodeQ3_K(const float* src, std::byte* dst, int64_t count) {
  EncodeWeightedQ3_K(src, nullptr, dst, count);
}

}  // namespace cachalot
