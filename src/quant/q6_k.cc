#include "quant/q6_k.h"

#include <cstring>

#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void UnpackQ6_K(const std::byte* src, BlockCodes* codes) {
  BlockQ6_K block;
  std::memcpy(&block, src, sizeof(block));
  codes->d = block.d;
  std::memcpy(codes->scale, block.scales, sizeof(block.scales));
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, s = i / 32 % 4, l = i % 32;
    const int low = block.low[64 * half + 32 * (s % 2) + l] >> s / 2 * 4 & 0xf;
    codes->q[i] = static_cast<uint8_t>(low | (block.high[32 * half + l] >> 2 * s & 3) << 4);
  }
}

void PackQ6_K(const BlockCodes& codes, std::byte* dst) {
  BlockQ6_K block{};
  block.d = codes.d;
  std::memcpy(block.scales, codes.scale, sizeof(block.scales));
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, s = i / 32 % 4, l = i % 32;
    block.low[64 * half + 32 * (s % 2) + l] |= static_cast<uint8_t>((codes.q[i] & 0xf) << s / 2 * 4);
    block.high[32 * half + l] |= static_cast<uint8_t>((codes.q[i] >> 4) << 2 * s);
  }
  std::memcpy(dst, &block, sizeof(block));
}

void ValuesQ6_K(const BlockCodes& codes, float* out) {
  const float d = F16ToF32(codes.d);
  for (int i = 0; i < 256; ++i) {
    const float scale = d * static_cast<float>(static_cast<int8_t>(codes.scale[i / 16]));
    out[i] = scale * static_cast<float>(codes.q[i] - 32);
  }
}

void DecodeQ6_K(const std::byte* src, float* dst, int64_t count) {
  DecodeCodes<256, sizeof(BlockQ6_K), UnpackQ6_K, ValuesQ6_K>(src, dst, count);
}

void EncodeWeightedQ6_K(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 256, dst += sizeof(BlockQ6_K)) {
    BlockCodes codes;
    EncodeSymmetric256(src + i, importance == nullptr ? nullptr : importance + i, 16, -32, 31,
                       {.lo = -128, .hi = 127, .bias = 0}, &codes);
    PackQ6_K(codes, dst);
  }
}

void EncodeQ6_K(const float* src, std::byte* dst, int64_t count) {
  EncodeWeightedQ6_K(src, nullptr, dst, count);
}

}  // namespace cachalot
