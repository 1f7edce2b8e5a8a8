// INT8: integers in [-127, 127] times the scale, as signed bytes.
#include <algorithm>
#include <cmath>

#include "quant/kv_code.h"

namespace cachalot {
namespace {

void Encode(const float* x, float inverse, uint8_t* main, uint8_t* /*high*/) {
  for (int i = 0; i < kKvUnit; ++i) {
    main[i] = static_cast<uint8_t>(static_cast<int8_t>(std::clamp(std::nearbyint(x[i] * inverse), -127.0f, 127.0f)));
  }
}

void Decode(const uint8_t* main, const uint8_t* /*high*/, float scale, float* x) {
  for (int i = 0; i < kKvUnit; ++i) x[i] = static_cast<float>(static_cast<int8_t>(main[i])) * scale;
}

}  // namespace

const KvCodec kKvInt8 = {KvCode::kInt8, "int8", 32, 0, 127.0f, &Encode, &Decode};

}  // namespace cachalot
