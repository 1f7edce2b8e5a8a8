#include "quant/iq4_nl.h"

#include <cstring>

#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void UnpackIQ4_NL(const std::byte* src, BlockCodes* codes) {
  BlockIQ4_NL block;
  std::memcpy(&block, src, sizeof(block));
  codes->d = block.scale;
  for (int j = 0; j < 16; ++j) {
    codes->q[j] = block.q[j] & 0xf;
    codes->q[j + 16] = block.q[j] >> 4;
  }
}

void PackIQ4_NL(const BlockCodes& codes, std::byte* dst) {
  BlockIQ4_NL block{};
  block.scale = codes.d;
  for (int j = 0; j < 16; ++j) block.q[j] = static_cast<uint8_t>(codes.q[j] | codes.q[j + 16] << 4);
  std::memcpy(dst, &block, sizeof(block));
}

void ValuesIQ4_NL(const BlockCodes& codes, float* out) {
  const float scale = F16ToF32(codes.d);
  for (int j = 0; j < 32; ++j) out[j] = scale * static_cast<float>(kIQ4Levels[codes.q[j]]);
}

void DecodeIQ4_NL(const std::byte* src, float* dst, int64_t count) {
  DecodeCodes<32, sizeof(BlockIQ4_NL), UnpackIQ4_NL, ValuesIQ4_NL>(src, dst, count);
}

void EncodeWeightedIQ4_NL(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, dst += sizeof(BlockIQ4_NL)) {
    BlockCodes codes;
    EncodeLevels32(src + i, importance == nullptr ? nullptr : importance + i, &codes);
    PackIQ4_NL(codes, dst);
  }
}

void EncodeIQ4_NL(const float* src, std::byte* dst, int64_t count) {
  EncodeWeightedIQ4_NL(src, nullptr, dst, count);
}

}  // namespace cachalot
