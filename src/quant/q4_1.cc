#include "quant/q4_1.h"

#include <algorithm>
#include <cstring>

#include "quant/clamp.h"
#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void DecodeQ4_1(const std::byte* src, float* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, src += sizeof(BlockQ4_1)) {
    BlockQ4_1 block;
    std::memcpy(&block, src, sizeof(block));
    const float scale = F16ToF32(block.scale);
    const float min = F16ToF32(block.min);
    for (int j = 0; j < 16; ++j) {
      dst[i + j] = static_cast<float>(block.q[j] & 0xf) * scale + min;
      dst[i + j + 16] = static_cast<float>(block.q[j] >> 4) * scale + min;
    }
  }
}

void EncodeQ4_1(const float* src, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, dst += sizeof(BlockQ4_1)) {
    const auto bounds = std::minmax_element(src + i, src + i + 32);
    const float min = *bounds.first, scale = (*bounds.second - min) / 15.0f;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    const auto quantise = [&](float value) {  // truncation of q + 0.5 rounds, as q is not negative
      return TruncateClamped((value - min) * inverse + 0.5f, 0, 15);
    };
    BlockQ4_1 block;
    block.scale = F32ToF16(scale);
    block.min = F32ToF16(min);
    for (int j = 0; j < 16; ++j) {
      block.q[j] = static_cast<uint8_t>(quantise(src[i + j]) | quantise(src[i + j + 16]) << 4);
    }
    std::memcpy(dst, &block, sizeof(block));
  }
}

void EncodeWeightedQ4_1(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, dst += sizeof(BlockQ4_1)) {
    BlockCodes codes;
    EncodeAffine32(src + i, importance == nullptr ? nullptr : importance + i, 15, &codes);
    BlockQ4_1 block;
    block.scale = codes.d;
    block.min = codes.dmin;
    for (int j = 0; j < 16; ++j) block.q[j] = static_cast<uint8_t>(codes.q[j] | codes.q[j + 16] << 4);
    std::memcpy(dst, &block, sizeof(block));
  }
}

}  // namespace cachalot
