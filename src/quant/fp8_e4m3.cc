#include "quant/fp8_e4m3.h"

#include <array>
#include <bit>
#include <limits>

namespace cachalot {
namespace {

constexpr float Convert(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 0xfu;
  const uint32_t mantissa = bits & 0x7u;
  if (exponent == 0xfu && mantissa == 0x7u) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

constexpr std::array<float, 256> kTable = [] {
  std::array<float, 256> table{};
  for (int i = 0; i < 256; ++i) table[i] = Convert(static_cast<uint8_t>(i));
  return table;
}();

}  // namespace

float FP8E4M3ToF32(uint8_t bits) {
  return kTable[bits];
}

uint8_t F32ToFP8E4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;  // 448 and more
  if (magnitude < 0x3c800000u) {                      // below 2^-6: adding 2^14 leaves multiples of 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23);
  return sign | static_cast<uint8_t>(rounded >> 20);
}

void DecodeFP8E4M3(const std::byte* src, float* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dst[i] = kTable[static_cast<uint8_t>(src[i])];
}

void EncodeFP8E4M3(const float* src, std::byte* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dst[i] = static_cast<std::byte>(F32ToFP8E4M3(src[i]));
}

}  // namespace cachalot
