// INT6: integers in [-32, 31] times the scale, stored as code + 32. Readers that multiply the unsigned codes take 32
// times the other factor's sum off again.
#include <algorithm>
#include <cmath>

#include "quant/kv_code.h"

namespace cachalot {
namespace {

void Encode(const float* x, float inverse, uint8_t* main, uint8_t* high) {
  uint8_t codes[kKvUnit];
  for (int i = 0; i < kKvUnit; ++i) {
    codes[i] = static_cast<uint8_t>(std::clamp(std::nearbyint(x[i] * inverse), -32.0f, 31.0f) + 32.0f);
  }
  for (int i = 0; i < 16; ++i) main[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[16 + i] & 15) << 4);
  for (int i = 0; i < 8; ++i) {
    high[i] = static_cast<uint8_t>(codes[i] >> 4 | codes[8 + i] >> 4 << 2 | codes[16 + i] >> 4 << 4 | codes[24 + i] >> 4 << 6);
  }
}

void Decode(const uint8_t* main, const uint8_t* high, float scale, float* x) {
  for (int i = 0; i < kKvUnit; ++i) {
    const int low = i < 16 ? main[i] & 15 : main[i - 16] >> 4;
    const int top = high[i % 8] >> (i / 8 * 2) & 3;
    x[i] = static_cast<float>((low | top << 4) - 32) * scale;
  }
}

}  // namespace

const KvCodec kKvInt6 = {KvCode::kInt6, "int6", 16, 8, 31.0f, &Encode, &Decode};

}  // namespace cachalot
