// BF16 times a scale that puts the group's largest value near 1: no code in the strict sense, but what sinks are kept as
// in a cache of codes, so that they have the same form (rotated, without the mean) and go the same way.
#include <cstring>

#include "quant/kv_code.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

void Encode(const float* x, float inverse, uint8_t* main, uint8_t* /*high*/) {
  for (int i = 0; i < kKvUnit; ++i) {
    const uint16_t bits = F32ToBF16(x[i] * inverse);
    std::memcpy(main + 2 * i, &bits, sizeof(bits));
  }
}

void Decode(const uint8_t* main, const uint8_t* /*high*/, float scale, float* x) {
  for (int i = 0; i < kKvUnit; ++i) {
    uint16_t bits;
    std::memcpy(&bits, main + 2 * i, sizeof(bits));
    x[i] = BF16ToF32(bits) * scale;
  }
}

}  // namespace

const KvCodec kKvBF16 = {KvCode::kBF16, "bf16", 64, 0, 1.0f, &Encode, &Decode};

}  // namespace cachalot
