#include "quant/plain.h"

#include <cstring>

#include "tensor/float_convert.h"

namespace cachalot {
namespace {

// memcpy, since a file's rows need not be aligned to their element.
template <float (*kConvert)(uint16_t)>
void Decode16(const std::byte* src, float* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + i * 2, 2);
    dst[i] = kConvert(bits);
  }
}

template <uint16_t (*kConvert)(float)>
void Encode16(const float* src, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = kConvert(src[i]);
    std::memcpy(dst + i * 2, &bits, 2);
  }
}

}  // namespace

void DecodeF32(const std::byte* src, float* dst, int64_t count) {
  std::memcpy(dst, src, count * sizeof(float));
}
void EncodeF32(const float* src, std::byte* dst, int64_t count) {
  std::memcpy(dst, src, count * sizeof(float));
}
void DecodeF16(const std::byte* src, float* dst, int64_t count) {
  Decode16<F16ToF32>(src, dst, count);
}
void EncodeF16(const float* src, std::byte* dst, int64_t count) {
  Encode16<F32ToF16>(src, dst, count);
}
void DecodeBF16(const std::byte* src, float* dst, int64_t count) {
  Decode16<BF16ToF32>(src, dst, count);
}
void EncodeBF16(const float* src, std::byte* dst, int64_t count) {
  Encode16<F32ToBF16>(src, dst, count);
}

}  // namespace cachalot
