#include "quant/q4_0.h"

#include <cmath>
#include <cstring>

#include "quant/clamp.h"
#include "quant/fit.h"
#include "tensor/float_convert.h"

namespace cachalot {

void DecodeQ4_0(const std::byte* src, float* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, src += sizeof(BlockQ4_0)) {
    BlockQ4_0 block;
    std::memcpy(&block, src, sizeof(block));
    const float scale = F16ToF32(block.scale);
    for (int j = 0; j < 16; ++j) {
      dst[i + j] = static_cast<float>((block.q[j] & 0xf) - 8) * scale;
      dst[i + j + 16] = static_cast<float>((block.q[j] >> 4) - 8) * scale;
    }
  }
}

// The value of largest magnitude, with its sign, maps to -8 (the side with one step more).
void EncodeQ4_0(const float* src, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, dst += sizeof(BlockQ4_0)) {
    float extreme = 0;
    for (int j = 0; j < 32; ++j) {
      if (std::fabs(src[i + j]) > std::fabs(extreme)) extreme = src[i + j];
    }
    const float scale = extreme / -8.0f;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    const auto quantise = [&](float value) {  // truncation of q + 0.5 rounds, as q is not negative
      return TruncateClamped(value * inverse + 8.5f, 0, 15);
    };
    BlockQ4_0 block;
    block.scale = F32ToF16(scale);
    for (int j = 0; j < 16; ++j) {
      block.q[j] = static_cast<uint8_t>(quantise(src[i + j]) | quantise(src[i + j + 16]) << 4);
    }
    std::memcpy(dst, &block, sizeof(block));
  }
}

void EncodeWeightedQ4_0(const float* src, const float* importance, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, dst += sizeof(BlockQ4_0)) {
    BlockCodes codes;
    EncodeSymmetric32(src + i, importance == nullptr ? nullptr : importance + i, -8, 7, &codes);
    BlockQ4_0 block;
    block.scale = codes.d;
    for (int j = 0; j < 16; ++j) block.q[j] = static_cast<uint8_t>(codes.q[j] | codes.q[j + 16] << 4);
    std::memcpy(dst, &block, sizeof(block));
  }
}

}  // namespace cachalot
