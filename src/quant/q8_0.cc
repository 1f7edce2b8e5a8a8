#include "quant/q8_0.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quant/clamp.h"
#include "tensor/float_convert.h"

namespace cachalot {

void DecodeQ8_0(const std::byte* src, float* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, src += sizeof(BlockQ8_0)) {
    BlockQ8_0 block;
    std::memcpy(&block, src, sizeof(block));
    const float scale = F16ToF32(block.scale);
    for (int j = 0; j < 32; ++j) dst[i + j] = static_cast<float>(block.q[j]) * scale;
  }
}

// The scale maps the largest magnitude to 127; values are rounded with the F32 scale, before it becomes F16.
void EncodeQ8_0(const float* src, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; i += 32, dst += sizeof(BlockQ8_0)) {
    float largest = 0;
    for (int j = 0; j < 32; ++j) largest = std::max(largest, std::fabs(src[i + j]));
    const float scale = largest / 127.0f;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    BlockQ8_0 block;
    block.scale = F32ToF16(scale);
    for (int j = 0; j < 32; ++j)
      block.q[j] = static_cast<int8_t>(TruncateClamped(std::round(src[i + j] * inverse), -127, 127));
    std::memcpy(dst, &block, sizeof(block));
  }
}

}  // namespace cachalot
