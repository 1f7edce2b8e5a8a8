#include "quant/q2_k.h"

#include <cstring>

#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void UnpackQ2_K(const std::byte* src, BlockCodes* codes) {
  BlockQ2_K block;
  std::memcpy(&block, src, sizeof(block));
  codes->d = block.d;
  codes->dmin = block.dmin;
  for (int j = 0; j < 16; ++j) {
    codes->scale[j] = block.scales[j] & 0xf;
    codes->min[j] = block.scales[j] >> 4;
  }
  for (int i = 0; i < 256; ++i) codes->q[i] = block.q[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
}

void PackQ2_K(const BlockCodes& codes, std::byte* dst) {
  BlockQ2_K block{};
  block.d = codes.d;
  block.dmin = codes.dmin;
  for (int j = 0; j < 16; ++j) block.scales[j] = static_cast<uint8_t>(codes.scale[j] | codes.min[j] << 4);
  for (int i = 0; i < 256; ++i) {
    block.q[i / 128 * 32 + i % 32] |= static_cast<uint8_t>(codes.q[i] << i / 32 % 4 * 2);
  }
  std::memcpy(dst, &block, sizeof(block));
}

void ValuesQ2_K(const BlockCodes& codes, float* out) {
  const float d = F16ToF32(codes.d), dmin = F16ToF32(codes.dmin);
  for (int j = 0; j < 16; ++j) {
    const float scale = d * static_cast<float>(codes.scale[j]), min = dmin * static_cast<float>(codes.min[j]);
    for (int l = j * 16; l < (j + 1) * 16; ++l) out[l] = scale * static_cast<float>(codes.q[l]) - min;
  }
}

void DecodeQ2_K(const std::byte* src, float* dst, int64_t count) {
  DecodeCodes<256, sizeof(BlockQ2_K), UnpackQ2_K, ValuesQ2_K>(src, dst, count);
}

void EncodeWeightedQ2_K(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 256, dst += sizeof(BlockQ2_K)) {
    BlockCodes codes;
    EncodeAffine256(src + i, importance == nullptr ? nullptr : importance + i, 16, 3, 15, &codes);
    PackQ2_K(codes, dst);
  }
}

void EncodeQ2_K(const float* src, std::byte* dst, int64_t count) {
  EncodeWeightedQ2_K(src, nullptr, dst, count);
}

}  // namespace cachalot
