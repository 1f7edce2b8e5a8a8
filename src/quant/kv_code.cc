#include "quant/kv_code.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

const KvCodec* const kCodecs[] = {&kKvInt4, &kKvInt6, &kKvInt8, &kKvE4M3, &kKvBF16};

}  // namespace

const KvCodec& KvCodecOf(KvCode code) {
  for (const KvCodec* codec : kCodecs) {
    if (codec->code == code) return *codec;
  }
  CHECK(false) << "no KV codec " << static_cast<int>(code);
}

void EncodeKvVector(const KvCoding& coding, const float* x, uint8_t* main, uint8_t* high, uint16_t* scales) {
  const KvCodec& codec = KvCodecOf(coding.code);
  for (int32_t begin = 0, g = 0; begin < coding.padded(); begin += coding.group, ++g) {
    const int32_t end = std::min(begin + coding.group, coding.padded());
    float largest = 0;
    for (int32_t i = begin; i < std::min(end, coding.dim); ++i) largest = std::max(largest, std::fabs(KvFinite(x[i])));
    scales[g] = KvScaleBits(largest, codec.limit);
    const float inverse = scales[g] == 0 ? 0.0f : 1.0f / BF16ToF32(scales[g]);
    for (int32_t u = begin / kKvUnit; u < end / kKvUnit; ++u) {
      float unit[kKvUnit] = {};
      for (int32_t i = 0; i < std::min(kKvUnit, coding.dim - u * kKvUnit); ++i) unit[i] = KvFinite(x[u * kKvUnit + i]);
      codec.encode(unit, inverse, main + int64_t{u} * codec.main_bytes, high + int64_t{u} * codec.high_bytes);
    }
  }
}

void DecodeKvVector(const KvCoding& coding, const uint8_t* main, const uint8_t* high, const uint16_t* scales, float* x) {
  const KvCodec& codec = KvCodecOf(coding.code);
  for (int32_t u = 0; u < coding.num_units(); ++u) {
    float unit[kKvUnit];
    codec.decode(main + int64_t{u} * codec.main_bytes, high + int64_t{u} * codec.high_bytes,
                 BF16ToF32(scales[u * kKvUnit / coding.group]), unit);
    std::copy_n(unit, std::min(kKvUnit, coding.dim - u * kKvUnit), x + u * kKvUnit);
  }
}

}  // namespace cachalot
