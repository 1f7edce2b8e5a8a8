#include "quant/q4_k.h"

#include <cstring>

#include "quant/fit.h"
#include "quant/six_bit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void UnpackQ4_K(const std::byte* src, BlockCodes* codes) {
  BlockQ4_K block;
  std::memcpy(&block, src, sizeof(block));
  codes->d = block.d;
  codes->dmin = block.dmin;
  UnpackSixBit(block.scales, codes);
  for (int i = 0; i < 256; ++i) codes->q[i] = block.q[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 0xf;
}

void PackQ4_K(const BlockCodes& codes, std::byte* dst) {
  BlockQ4_K block{};
  block.d = codes.d;
  block.dmin = codes.dmin;
  PackSixBit(codes, block.scales);
  for (int i = 0; i < 256; ++i) {
    block.q[i / 64 * 32 + i % 32] |= static_cast<uint8_t>(codes.q[i] << i / 32 % 2 * 4);
  }
  std::memcpy(dst, &block, sizeof(block));
}

void ValuesQ4_K(const BlockCodes& codes, float* out) {
  const float d = F16ToF32(codes.d), dmin = F16ToF32(codes.dmin);
  for (int j = 0; j < 8; ++j) {
    const float scale = d * static_cast<float>(codes.scale[j]), min = dmin * static_cast<float>(codes.min[j]);
    for (int l = j * 32; l < (j + 1) * 32; ++l) out[l] = scale * static_cast<float>(codes.q[l]) - min;
  }
}

void DecodeQ4_K(const std::byte* src, float* dst, int64_t count) {
  DecodeCodes<256, sizeof(BlockQ4_K), UnpackQ4_K, ValuesQ4_K>(src, dst, count);
}

void EncodeWeightedQ4_K(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 256, dst += sizeof(BlockQ4_K)) {
    BlockCodes codes;
    EncodeAffine256(src + i, importance == nullptr ? nullptr : importance + i, 32, 15, 63, &codes);
    PackQ4_K(codes, dst);
  }
}

void EncodeQ4_K(const float* src, std::byte* dst, int64_t count) {
  EncodeWeightedQ4_K(src, nullptr, dst, count);
}

}  // namespace cachalot
