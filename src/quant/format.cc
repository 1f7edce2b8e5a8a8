#include "quant/format.h"

#include "quant/fp8_e4m3.h"
#include "quant/plain.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q8_0.h"

namespace cachalot {
namespace {

constexpr QuantFormat kFormats[] = {
    {DType::kF32, DecodeF32, EncodeF32},    {DType::kF16, DecodeF16, EncodeF16},
    {DType::kBF16, DecodeBF16, EncodeBF16}, {DType::kFP8E4M3, DecodeFP8E4M3, EncodeFP8E4M3},
    {DType::kQ8_0, DecodeQ8_0, EncodeQ8_0}, {DType::kQ4_0, DecodeQ4_0, EncodeQ4_0},
    {DType::kQ4_1, DecodeQ4_1, EncodeQ4_1},
};

}  // namespace

std::span<const QuantFormat> AllQuantFormats() {
  return kFormats;
}

const QuantFormat* FindQuantFormat(DType dtype) {
  for (const auto& format : kFormats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

}  // namespace cachalot
