// INT4: sixteen steps around zero without a code for it, (u - 7.5) · scale for u in 0 … 15: the steps are 1/7.5 of
// the largest value, where codes with a zero would have 1/7.
#include <algorithm>
#include <cmath>

#include "quant/kv_code.h"

namespace cachalot {
namespace {

uint8_t CodeOf(float x, float inverse) {
  return static_cast<uint8_t>(std::clamp(std::floor(x * inverse + 8.0f), 0.0f, 15.0f));
}

void Encode(const float* x, float inverse, uint8_t* main, uint8_t* /*high*/) {
  for (int i = 0; i < 16; ++i) main[i] = static_cast<uint8_t>(CodeOf(x[i], inverse) | CodeOf(x[16 + i], inverse) << 4);
}

void Decode(const uint8_t* main, const uint8_t* /*high*/, float scale, float* x) {
  for (int i = 0; i < 16; ++i) {
    x[i] = (static_cast<float>(main[i] & 15) - 7.5f) * scale;
    x[16 + i] = (static_cast<float>(main[i] >> 4) - 7.5f) * scale;
  }
}

}  // namespace

const KvCodec kKvInt4 = {KvCode::kInt4, "int4", 16, 0, 7.5f, &Encode, &Decode};

}  // namespace cachalot
