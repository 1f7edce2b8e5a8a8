#include "quant/iq4_xs.h"

#include <cstring>

#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void UnpackIQ4_XS(const std::byte* src, BlockCodes* codes) {
  BlockIQ4_XS block;
  std::memcpy(&block, src, sizeof(block));
  codes->d = block.d;
  for (int j = 0; j < 8; ++j) {
    const int low = block.scales_low[j / 2] >> j % 2 * 4 & 0xf;
    codes->scale[j] = static_cast<uint8_t>(low | (block.scales_high >> 2 * j & 3) << 4);
  }
  for (int i = 0; i < 256; ++i) codes->q[i] = block.q[i / 32 * 16 + i % 16] >> i / 16 % 2 * 4 & 0xf;
}

void PackIQ4_XS(const BlockCodes& codes, std::byte* dst) {
  BlockIQ4_XS block{};
  block.d = codes.d;
  for (int j = 0; j < 8; ++j) {
    block.scales_low[j / 2] |= static_cast<uint8_t>((codes.scale[j] & 0xf) << j % 2 * 4);
    block.scales_high |= static_cast<uint16_t>((codes.scale[j] >> 4) << 2 * j);
  }
  for (int i = 0; i < 256; ++i) {
    block.q[i / 32 * 16 + i % 16] |= static_cast<uint8_t>(codes.q[i] << i / 16 % 2 * 4);
  }
  std::memcpy(dst, &block, sizeof(block));
}

void ValuesIQ4_XS(const BlockCodes& codes, float* out) {
  const float d = F16ToF32(codes.d);
  for (int i = 0; i < 256; ++i) {
    const float scale = d * static_cast<float>(codes.scale[i / 32] - 32);
    out[i] = scale * static_cast<float>(kIQ4Levels[codes.q[i]]);
  }
}

void DecodeIQ4_XS(const std::byte* src, float* dst, int64_t count) {
  DecodeCodes<256, sizeof(BlockIQ4_XS), UnpackIQ4_XS, ValuesIQ4_XS>(src, dst, count);
}

void EncodeWeightedIQ4_XS(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 256, dst += sizeof(BlockIQ4_XS)) {
    BlockCodes codes;
    EncodeLevels256(src + i, importance == nullptr ? nullptr : importance + i,
                    {.lo = -32, .hi = 31, .bias = 32}, &codes);
    PackIQ4_XS(codes, dst);
  }
}

void EncodeIQ4_XS(const float* src, std::byte* dst, int64_t count) {
  EncodeWeightedIQ4_XS(src, nullptr, dst, count);
}

}  // namespace cachalot
