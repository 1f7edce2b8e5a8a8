// KvRemap, a value at a time: the definition.
#include <algorithm>

#include "kernels/kv_remap/kv_remap_variants.h"
#include "quant/fp8_e4m3.h"
#include "quant/kv_rotate.h"

namespace cachalot {
namespace {

uint32_t Byte(const std::byte* data, int64_t i) { return static_cast<uint32_t>(data[i]); }

uint16_t Half(const std::byte* data, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, data + i * 2, 2);
  return bits;
}

// Of a value of a unit of 32: its four low bits.
uint32_t UnitLow(const std::byte* main, int32_t i) {
  const uint32_t byte = Byte(main, i / 32 * 16 + i % 16);
  return i % 32 < 16 ? byte & 15 : byte >> 4;
}

float Decode(const KvRemapTensor& t, const KvRemapRow& row, int32_t i) {
  const KvRemapScaleValue s = RemapScale(t, row.scales, t.group == 0 ? 0 : i / t.group);
  const auto unsigned_code = [&](uint32_t code) { return (static_cast<float>(code) - s.zero) * s.scale; };
  switch (t.code) {
    case KvRemapCode::kInt4:
      return unsigned_code(Byte(row.main, i / 2) >> (i % 2 * 4) & 15);
    case KvRemapCode::kInt6: {
      const int bit = i * 6;
      const uint32_t low = Byte(row.main, bit / 8) >> (bit % 8);
      return unsigned_code((bit % 8 > 2 ? low | Byte(row.main, bit / 8 + 1) << (8 - bit % 8) : low) & 63);
    }
    case KvRemapCode::kInt4Unit:
      return unsigned_code(UnitLow(row.main, i));
    case KvRemapCode::kInt6Unit:
      return unsigned_code(UnitLow(row.main, i) | (Byte(row.high, i / 32 * 8 + i % 8) >> (i % 32 / 8 * 2) & 3) << 4);
    case KvRemapCode::kInt8:
      return static_cast<float>(static_cast<int8_t>(Byte(row.main, i))) * s.scale;
    case KvRemapCode::kE4M3:
      return FP8E4M3ToF32(static_cast<uint8_t>(Byte(row.main, i))) * s.scale;
    case KvRemapCode::kF16:
      return F16ToF32(Half(row.main, i)) * s.scale;
    case KvRemapCode::kBF16:
      return BF16ToF32(Half(row.main, i)) * s.scale;
  }
  return 0;
}

float Number(float x) { return x == x ? x : 0.0f; }

}  // namespace

void KvRemapRef(const ExecContext& /*ctx*/, const KvRemapParams& params) {
  const float largest = params.to_bf16 ? kRemapLargestBF16 : kRemapLargestF16;
  ForEachRemapRow(params, [&](const KvRemapTensor& t, const KvRemapRow& row) {
    float x[kMaxRemapDim];
    for (int32_t i = 0; i < t.dim; ++i) x[i] = Number(Decode(t, row, i));
    if (t.rotation > 1) {
      RotateKv(x, t.dim, t.rotation);
      for (int32_t i = 0; i < t.dim; ++i) x[i] *= 1.0f / static_cast<float>(t.rotation);
    }
    for (int32_t i = 0; i < t.dim; ++i) {
      if (row.mean != nullptr) x[i] += row.mean[i];
      const float y = std::clamp(Number(x[i]), -largest, largest);
      row.out[i] = params.to_bf16 ? F32ToBF16(y) : F32ToF16(y);
    }
  });
}

}  // namespace cachalot
