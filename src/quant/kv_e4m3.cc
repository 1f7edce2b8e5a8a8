// FP8 E4M3 (fp8_e4m3.h) times a scale that puts the group's largest value at 448. The NaN codes are never written.
#include "quant/fp8_e4m3.h"
#include "quant/kv_code.h"

namespace cachalot {
namespace {

void Encode(const float* x, float inverse, uint8_t* main, uint8_t* /*high*/) {
  for (int i = 0; i < kKvUnit; ++i) main[i] = F32ToFP8E4M3(x[i] * inverse);
}

void Decode(const uint8_t* main, const uint8_t* /*high*/, float scale, float* x) {
  for (int i = 0; i < kKvUnit; ++i) x[i] = FP8E4M3ToF32(main[i]) * scale;
}

}  // namespace

const KvCodec kKvE4M3 = {KvCode::kE4M3, "e4m3", 32, 0, 448.0f, &Encode, &Decode};

}  // namespace cachalot
